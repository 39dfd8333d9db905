//! Entity tags, and the conditions that name them (RFC 9110, sections 8.8.3 and 13).

use std::fmt::{self, Display};

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::values::time::Timestamp;

/// The most tags that one condition may name.
pub const MOST_ETAGS: usize = 64;

/// A strong tag, without its quotes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ETag(String);

impl ETag {
    /// Makes a tag that is equal for equal parts. Each part is hashed with its length, so that no two lists of parts
    /// have the same bytes.
    pub(crate) fn of(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        let digest = hash.finalize();
        Self(
            digest[..16]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        )
    }

    /// Makes the tag of one version of a workflow from its record. `activations` is the number of times that a version
    /// was activated.
    pub fn of_workflow(version: u32, body: &str, created_at: Timestamp, activations: u64) -> Self {
        let (version, created_at) = (version.to_be_bytes(), created_at.as_millis().to_be_bytes());
        let activations = activations.to_be_bytes();
        let mut parts: Vec<&[u8]> = vec![b"workflow", &version, body.as_bytes(), &created_at];
        if activations != [0; 8] {
            parts.push(&activations);
        }
        Self::of(&parts)
    }

    /// Makes the tag of a schedule from the number of changes by callers.
    pub fn of_schedule(id: Uuid, put_version: u64) -> Self {
        Self::of(&[b"schedule", id.as_bytes(), &put_version.to_be_bytes()])
    }

    pub fn of_ledger_reader(name: &str, version: u64, created_at: Timestamp) -> Self {
        let (version, created_at) = (version.to_be_bytes(), created_at.as_millis().to_be_bytes());
        Self::of(&[b"reader", name.as_bytes(), &version, &created_at])
    }

    /// Returns the tag of the representation in which some parts are not shown.
    #[must_use]
    pub fn with_hidden_parts(&self) -> Self {
        Self(format!("{}-hidden", self.0))
    }
}

impl Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

/// The value of If-Match or If-None-Match.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ETags {
    /// `*`: any tag of an existing resource.
    Any,
    /// The strong tags. A weak tag never matches for a change.
    Listed(Vec<ETag>),
}

impl ETags {
    /// Parses `*` or a list of entity tags. Returns `None` if the value is neither.
    pub fn parse(value: &str) -> Option<Self> {
        let mut rest = value.trim_matches([' ', '\t']);
        if rest == "*" {
            return Some(Self::Any);
        }
        let mut listed = Vec::new();
        let mut is_empty = true;
        loop {
            rest = rest.trim_start_matches([' ', '\t', ',']);
            if rest.is_empty() {
                return (!is_empty).then_some(Self::Listed(listed));
            }
            let weak = rest.strip_prefix("W/");
            let opaque = weak.unwrap_or(rest).strip_prefix('"')?;
            let (tag, after) = opaque.split_once('"')?;
            let is_legal = |b: u8| b == b'!' || (0x23..=0x7e).contains(&b);
            let after = after.trim_start_matches([' ', '\t']);
            let ends_well = after.is_empty() || after.starts_with(',');
            if !tag.bytes().all(is_legal) || !ends_well || listed.len() == MOST_ETAGS {
                return None;
            }
            if weak.is_none() {
                listed.push(ETag(tag.to_owned()));
            }
            is_empty = false;
            rest = after;
        }
    }

    fn names(&self, current: Option<&ETag>) -> bool {
        match (self, current) {
            (_, None) => false,
            (Self::Any, Some(_)) => true,
            (Self::Listed(listed), Some(current)) => listed.contains(current),
        }
    }
}

/// The condition that a resource must meet to be changed. The default is no condition.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Precondition {
    pub if_match: Option<ETags>,
    pub if_none_match: Option<ETags>,
}

impl Precondition {
    pub fn is_given(&self) -> bool {
        self.if_match.is_some() || self.if_none_match.is_some()
    }

    /// Checks the condition against the tag of the resource, `None` if the resource does not exist.
    pub fn check(&self, current: Option<ETag>) -> Result<(), PreconditionFailure> {
        let matches = self.if_match.as_ref();
        let matches = matches.is_none_or(|tags| tags.names(current.as_ref()));
        let differs = self.if_none_match.as_ref();
        let differs = differs.is_none_or(|tags| !tags.names(current.as_ref()));
        match matches && differs {
            true => Ok(()),
            false => Err(PreconditionFailure { current }),
        }
    }
}

/// A condition that is not met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PreconditionFailure {
    /// The tag of the resource, if it exists.
    pub current: Option<ETag>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(text: &str) -> ETag {
        ETag(text.to_owned())
    }

    #[test]
    fn a_condition_is_a_star_or_a_list_of_tags() {
        let listed = |tags: &[&str]| Some(ETags::Listed(tags.iter().map(|t| tag(t)).collect()));
        assert_eq!(ETags::parse(" * "), Some(ETags::Any));
        assert_eq!(ETags::parse("\"a\""), listed(&["a"]));
        assert_eq!(ETags::parse(", \"a\" ,\t\"b,c\","), listed(&["a", "b,c"]));
        assert_eq!(ETags::parse("W/\"a\""), listed(&[]));
        assert_eq!(ETags::parse("W/\"a\", \"b\""), listed(&["b"]));
        for broken in [
            "",
            ",",
            "a",
            "\"a",
            "\"a\"b",
            "\"a\" \"b\"",
            "*, \"a\"",
            "\"a b\"",
            "w/\"a\"",
        ] {
            assert_eq!(ETags::parse(broken), None, "{broken}");
        }
        let many = vec!["\"a\""; MOST_ETAGS + 1].join(",");
        assert_eq!(ETags::parse(&many), None);
    }

    #[test]
    fn a_condition_holds_of_what_is_there() {
        let on = |if_match: Option<&str>, if_none_match: Option<&str>, current: Option<&str>| {
            let parse = |text| ETags::parse(text).unwrap();
            let condition = Precondition {
                if_match: if_match.map(parse),
                if_none_match: if_none_match.map(parse),
            };
            condition.check(current.map(tag)).is_ok()
        };
        for current in [None, Some("a")] {
            assert!(on(None, None, current));
        }
        for (if_match, current, holds) in [
            ("*", Some("a"), true),
            ("*", None, false),
            ("\"a\"", Some("a"), true),
            ("\"b\", \"a\"", Some("a"), true),
            ("\"b\"", Some("a"), false),
            ("W/\"a\"", Some("a"), false),
            ("\"a\"", None, false),
        ] {
            assert_eq!(on(Some(if_match), None, current), holds, "{if_match}");
            assert_eq!(on(None, Some(if_match), current), !holds, "{if_match}");
        }
        assert!(!on(Some("\"a\""), Some("*"), Some("a")));
    }

    #[test]
    fn a_tag_changes_with_what_is_shown() {
        let at = Timestamp::from_millis;
        let first = ETag::of_workflow(1, "{}", at(7), 0);
        for other in [
            ETag::of_workflow(2, "{}", at(7), 0),
            ETag::of_workflow(1, "{} ", at(7), 0),
            ETag::of_workflow(1, "{}", at(8), 0),
            ETag::of_workflow(1, "{}", at(7), 1),
            first.with_hidden_parts(),
        ] {
            assert_ne!(first, other);
        }
    }
}
