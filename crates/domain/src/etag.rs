//! Entity tags, and the conditions that name them (RFC 9110, sections 8.8.3 and 13).

use std::fmt::{self, Display};

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::{agent_spec::AgentSpec, time::Timestamp};

/// The most tags that one condition may name.
pub const MOST_ETAGS: usize = 64;

/// A strong tag, without its quotes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ETag(String);

impl ETag {
    /// Equal for equal parts. Each part counts with its length: none can pass for two.
    fn of(parts: &[&[u8]]) -> Self {
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

    /// Of an agent that is registered through the API: its specification, and nothing that changes by itself.
    pub fn of_agent(spec: &AgentSpec) -> Self {
        Self::of(&[b"agent", &canonical(spec)])
    }

    /// Of an agent of the configuration file.
    pub fn of_configured_agent(spec: &AgentSpec) -> Self {
        Self::of(&[b"configured agent", &canonical(spec)])
    }

    /// Of an agent whose record cannot be read.
    pub fn of_damaged(spec: &str) -> Self {
        Self::of(&[b"damaged agent", spec.as_bytes()])
    }

    /// Of one version of a workflow, by what is stored of it. `activations`: how often a version was made active.
    pub fn of_workflow(version: u32, body: &str, created_at: Timestamp, activations: u64) -> Self {
        let (version, created_at) = (version.to_be_bytes(), created_at.as_millis().to_be_bytes());
        let activations = activations.to_be_bytes();
        let mut parts: Vec<&[u8]> = vec![b"workflow", &version, body.as_bytes(), &created_at];
        if activations != [0; 8] {
            parts.push(&activations);
        }
        Self::of(&parts)
    }

    /// Of a schedule, by how often callers have changed it.
    pub fn of_schedule(id: Uuid, put_version: u64) -> Self {
        Self::of(&[b"schedule", id.as_bytes(), &put_version.to_be_bytes()])
    }

    /// Of the same thing where some of it is not shown: that is another representation.
    #[must_use]
    pub fn with_hidden_parts(&self) -> Self {
        Self(format!("{}-hidden", self.0))
    }
}

fn canonical(spec: &AgentSpec) -> Vec<u8> {
    // It was read from JSON, or from a file that says no more.
    serde_json::to_vec(spec).unwrap_or_default()
}

impl Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

/// The value of If-Match or If-None-Match.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ETags {
    /// `*`: whatever is there.
    Any,
    /// Strong tags; weak ones match nothing that is to be changed.
    Listed(Vec<ETag>),
}

impl ETags {
    /// `*`, or a list of entity tags. `None` where it is neither.
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

/// What must hold of a thing for it to be changed. By default nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Precondition {
    pub if_match: Option<ETags>,
    pub if_none_match: Option<ETags>,
}

impl Precondition {
    pub fn is_given(&self) -> bool {
        self.if_match.is_some() || self.if_none_match.is_some()
    }

    /// Judged against the tag of what is there, `None` where nothing is.
    pub fn check(&self, current: Option<ETag>) -> Result<(), Unmet> {
        let matches = self.if_match.as_ref();
        let matches = matches.is_none_or(|tags| tags.names(current.as_ref()));
        let differs = self.if_none_match.as_ref();
        let differs = differs.is_none_or(|tags| !tags.names(current.as_ref()));
        match matches && differs {
            true => Ok(()),
            false => Err(Unmet { current }),
        }
    }
}

/// A condition that did not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unmet {
    /// The tag of what is there.
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
        let spec = |url: &str| -> AgentSpec {
            serde_json::from_value(serde_json::json!({ "endpoints": [{ "url": url }] })).unwrap()
        };
        let (a, b) = (spec("http://a"), spec("http://b"));
        assert_eq!(ETag::of_agent(&a), ETag::of_agent(&a.clone()));
        assert_ne!(ETag::of_agent(&a), ETag::of_agent(&b));
        assert_ne!(ETag::of_agent(&a), ETag::of_configured_agent(&a));
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
