//! Policies by the status of the response: `{ "404": "skip", "409": "success", "5xx": "undo", "else": "error" }`.

use std::fmt;

use super::Policy;
use crate::values::fields::{FieldFault, Fields, escape};

/// A status, or all statuses of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatusPattern {
    Status(u16),
    /// The first digit of the statuses.
    Class(u16),
}

impl StatusPattern {
    /// Reads a status such as `404`, or a class such as `4xx`.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(class) = text.strip_suffix("xx") {
            let class = class.parse().ok().filter(|class| (1..=5).contains(class));
            return class.map(Self::Class);
        }
        let status = text.parse().ok();
        let status = status.filter(|status| (100..=599).contains(status) && text.len() == 3);
        status.map(Self::Status)
    }

    pub fn matches(self, status: u16) -> bool {
        match self {
            Self::Status(own) => own == status,
            Self::Class(class) => class == status / 100,
        }
    }
}

impl fmt::Display for StatusPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{status}"),
            Self::Class(class) => write!(f, "{class}xx"),
        }
    }
}

/// The policy for an error with a certain status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatusPolicy {
    /// The error counts as a success.
    Success,
    Policy(Policy),
}

/// The policies for errors by their statuses.
#[derive(Clone, PartialEq, Debug)]
pub struct StatusPolicies(Box<[(StatusPattern, StatusPolicy)]>);

impl StatusPolicies {
    /// Returns the policy for an error. A status counts before its class. `None`: the policy for all others applies.
    pub fn of(&self, status: Option<u16>) -> Option<StatusPolicy> {
        let status = status?;
        let matching = |is_class: bool| {
            let mut rules = self.0.iter();
            rules.find(|(pattern, _)| {
                matches!(pattern, StatusPattern::Class(_)) == is_class && pattern.matches(status)
            })
        };
        let found = matching(false).or_else(|| matching(true));
        found.map(|(_, policy)| *policy)
    }

    pub fn patterns(&self) -> impl Iterator<Item = StatusPattern> {
        self.0.iter().map(|(pattern, _)| *pattern)
    }

    pub fn has(&self, policy: StatusPolicy) -> bool {
        self.0.iter().any(|(_, own)| *own == policy)
    }
}

/// The word for an error that counts as a success.
const SUCCESS: &str = "success";
/// The name for all errors that no other name is for.
const ELSE: &str = "else";
/// The longest name of a status, and of a policy.
const LONGEST: usize = 20;
/// The most statuses that a step names.
const MOST: usize = 50;

/// Returns whether a field may have this name only if it has policies by status.
pub(super) fn is_name(name: &str) -> bool {
    name == ELSE || StatusPattern::parse(name).is_some()
}

/// Reads the policies of a field that is an object, and the policy for all others.
pub(super) fn read(
    step: &mut Fields<'_>,
    name: &str,
    words: &[Policy],
) -> (Option<StatusPolicies>, Option<Policy>) {
    let entries = step.string_map(name, LONGEST);
    let pointer = step.pointer(name);
    let mut rules = Vec::new();
    let mut otherwise = None;
    let mut faults = Vec::new();
    if entries.len() > MOST {
        let message = format!("{} statuses are too many: at most {MOST}", entries.len());
        faults.push(FieldFault::new(&pointer, message));
    }
    for (status, word) in entries {
        let own = format!("{pointer}/{}", escape(&status));
        let policy = words.iter().find(|policy| policy.as_str() == word);
        let policy = match (policy, word.as_str()) {
            (Some(policy), _) => StatusPolicy::Policy(*policy),
            (None, SUCCESS) => StatusPolicy::Success,
            (None, _) => {
                let words: Vec<_> = words.iter().map(|policy| policy.as_str()).collect();
                let message = format!(
                    "{word:?} for {status:?} is no policy: use {} or {SUCCESS}",
                    words.join(", ")
                );
                faults.push(FieldFault::new(own, message));
                continue;
            }
        };
        match (StatusPattern::parse(&status), status.as_str(), policy) {
            (Some(pattern), ..) => rules.push((pattern, policy)),
            (None, ELSE, StatusPolicy::Policy(policy)) => otherwise = Some(policy),
            (None, ELSE, StatusPolicy::Success) => faults.push(FieldFault::new(
                own,
                format!("{ELSE:?} cannot be {SUCCESS}: name the statuses that count as a success"),
            )),
            (None, ..) => faults.push(FieldFault::new(
                own,
                format!("{status:?} is no status: use one such as \"404\", a class such as \"4xx\", or {ELSE:?}"),
            )),
        }
    }
    if rules.is_empty() && faults.is_empty() {
        let message = "names no status: give one, such as { \"404\": \"skip\" }";
        faults.push(FieldFault::new(&pointer, message.to_owned()));
    }
    step.extend(faults);
    (Some(StatusPolicies(rules.into())), otherwise)
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    fn parse(json: &str) -> Result<(StatusPolicies, Option<Policy>), String> {
        let raw = RawValue::from_string(format!("{{\"on_permanent\":{json}}}")).unwrap();
        let mut fields = Fields::of(&raw, "").unwrap();
        let (policies, otherwise) = read(&mut fields, "on_permanent", Policy::ALL);
        match fields.finish() {
            Ok(()) => Ok((policies.unwrap(), otherwise)),
            Err(faults) => Err(faults[0].message.clone()),
        }
    }

    #[test]
    fn a_status_counts_before_its_class_and_what_is_not_named_is_left_to_the_step() {
        let (policies, otherwise) =
            parse(r#"{"4xx": "undo", "404": "skip", "409": "success", "else": "error"}"#).unwrap();
        let of = |status: u16| policies.of(Some(status));
        assert_eq!(of(404), Some(StatusPolicy::Policy(Policy::Skip)));
        assert_eq!(of(409), Some(StatusPolicy::Success));
        assert_eq!(of(422), Some(StatusPolicy::Policy(Policy::Undo)));
        assert_eq!(of(301), None);
        assert_eq!(policies.of(None), None);
        assert_eq!(otherwise, Some(Policy::Error));
        assert!(policies.has(StatusPolicy::Policy(Policy::Undo)));
        assert!(!policies.has(StatusPolicy::Policy(Policy::Error)));
    }

    #[test]
    fn what_is_no_status_and_what_is_no_policy_is_refused_by_name() {
        for (json, message) in [
            (r#"{"4x": "skip"}"#, "is no status"),
            (r#"{"0404": "skip"}"#, "is no status"),
            (r#"{"9xx": "skip"}"#, "is no status"),
            (
                r#"{"404": "ignore"}"#,
                "is no policy: use error, undo, skip or success",
            ),
            (r#"{"404": "skip", "else": "success"}"#, "cannot be success"),
            (r#"{"else": "skip"}"#, "names no status"),
        ] {
            let found = parse(json).unwrap_err();
            assert!(found.contains(message), "{json}: {found}");
        }
    }
}
