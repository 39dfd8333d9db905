//! Secrets that instances cannot use, and their alerts: one alert for a secret, however many instances and agents it
//! concerns. The record has these instances, so that the alert closes with the last of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    message::alert::AlertNotice,
    task::alert_kind::AlertKind,
    values::{
        ids::{AgentName, InstanceId, ReceiverName, SecretName},
        time::{Span, Timestamp},
    },
};

/// The time for which a secret must be unusable before its alert is raised, and usable before the alert closes: a file
/// that is replaced may be missing for a moment.
pub const SECRET_ALERT_AFTER: Duration = Duration::from_secs(10);
/// The interval at which an instance repeats its report.
pub const CONFIRM_SECRETS_EVERY: Duration = Duration::from_secs(10);
/// An instance that has reported nothing for this time is lost.
const STALE_AFTER: Span = Span::from_secs(40);
/// The most entries of one instance in the record.
const MOST_OF_AN_INSTANCE: usize = 100;
/// The most agents, instances and reasons that a message names.
const MOST_NAMED: usize = 5;

/// The subject of an alert.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretSubject {
    Secret(SecretName),
    /// The agent's secrets exist, but they are not valid for it: for example a key that does not belong to its
    /// certificate.
    Agent(AgentName),
}

impl SecretSubject {
    /// Returns the subject of its alert: at most one alert with it is open. No configured receiver and no origin has
    /// such a name.
    pub fn alert_subject(&self) -> ReceiverName {
        ReceiverName::new(match self {
            SecretSubject::Secret(name) => format!("secret:{name}"),
            SecretSubject::Agent(name) => format!("agent-secrets:{name}"),
        })
    }
}

impl fmt::Display for SecretSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretSubject::Secret(name) => write!(f, "the secret `{name}` cannot be used"),
            SecretSubject::Agent(name) => write!(f, "agent {name} cannot use its secrets"),
        }
    }
}

/// The reason why an instance cannot use a secret, and the agents whose calls wait for it at this instance.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct UnusableSecret {
    pub reason: String,
    pub agents: BTreeSet<AgentName>,
}

impl UnusableSecret {
    /// Adds an agent, up to one more than a message names: the message then ends with "and others".
    pub fn add_agent(&mut self, agent: &AgentName) {
        if self.agents.len() <= MOST_NAMED {
            self.agents.insert(agent.clone());
        }
    }
}

/// The secrets that one instance cannot use.
pub type UnusableSecrets = BTreeMap<SecretSubject, UnusableSecret>;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct ReportedSecret {
    subject: SecretSubject,
    instance: InstanceId,
    #[serde(flatten)]
    fault: UnusableSecret,
    confirmed_at: Timestamp,
}

/// The secrets that instances cannot use, by subject and instance.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretReports(Vec<ReportedSecret>);

/// A change of an alert that follows from a change of the record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SecretAlertChange {
    Raise(SecretSubject, String),
    /// The alert concerns other instances or agents than before.
    Reword(SecretSubject, String),
    Close(SecretSubject),
}

impl SecretReports {
    /// Replaces the entries of an instance: it can use all secrets except these.
    pub fn report(&mut self, instance: &InstanceId, found: &UnusableSecrets, now: Timestamp) {
        self.0.retain(|known| known.instance != *instance);
        let found = found.iter().take(MOST_OF_AN_INSTANCE);
        self.0.extend(found.map(|(subject, fault)| ReportedSecret {
            subject: subject.clone(),
            instance: instance.clone(),
            fault: fault.clone(),
            confirmed_at: now,
        }));
        let key = |known: &ReportedSecret| (known.subject.clone(), known.instance.clone());
        self.0.sort_by_key(key);
    }

    /// Removes the entries of lost instances. An instance that is restarted under another id reports the same secrets
    /// before.
    pub fn forget_stale(&mut self, now: Timestamp) {
        self.0
            .retain(|known| now <= known.confirmed_at + STALE_AFTER);
    }

    /// Returns whether [`SecretReports::forget_stale`] would remove anything.
    pub fn is_stale(&self, now: Timestamp) -> bool {
        let mut known = self.0.iter();
        known.any(|known| now > known.confirmed_at + STALE_AFTER)
    }

    /// Returns the changes of alerts since `before`.
    pub fn alert_changes(&self, before: &Self) -> Vec<SecretAlertChange> {
        let (was, is) = (before.messages(), self.messages());
        let gone = was.keys().filter(|subject| !is.contains_key(*subject));
        let mut changes: Vec<_> = gone.cloned().map(SecretAlertChange::Close).collect();
        for (subject, message) in is {
            changes.extend(match was.get(&subject) {
                None => Some(SecretAlertChange::Raise(subject, message)),
                Some(known) if *known != message => {
                    Some(SecretAlertChange::Reword(subject, message))
                }
                Some(_) => None,
            });
        }
        changes
    }

    fn messages(&self) -> BTreeMap<SecretSubject, String> {
        let mut of: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for known in &self.0 {
            of.entry(known.subject.clone()).or_default().push(known);
        }
        let messages = of.into_iter();
        let messages = messages.map(|(subject, known)| {
            let message = message(&subject, &known);
            (subject, message)
        });
        messages.collect()
    }
}

fn message(subject: &SecretSubject, known: &[&ReportedSecret]) -> String {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for known in known {
        let instances = reasons.entry(&known.fault.reason).or_default();
        instances.push(known.instance.as_str());
    }
    let reasons = reasons.into_iter().take(MOST_NAMED);
    let reasons = reasons.map(|(reason, instances)| {
        let s = if instances.len() == 1 { "" } else { "s" };
        format!("at instance{s} {}: {reason}", named(&instances))
    });
    let reasons = reasons.collect::<Vec<_>>().join("; ");
    let agents: BTreeSet<_> = known
        .iter()
        .flat_map(|known| &known.fault.agents)
        .map(AgentName::as_str)
        .collect();
    let agents: Vec<_> = agents.into_iter().collect();
    let effect = match &agents[..] {
        [] => "no agent names it".to_owned(),
        [one] => format!("calls of agent {one} wait there"),
        _ => format!("calls of agents {} wait there", named(&agents)),
    };
    format!("{subject} {reasons}; {effect}")
}

fn named(names: &[&str]) -> String {
    let mut text = names
        .iter()
        .take(MOST_NAMED)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > MOST_NAMED {
        text.push_str(" and others");
    }
    text
}

pub fn secret_unusable(
    id: Uuid,
    subject: &SecretSubject,
    message: &str,
    at: Timestamp,
) -> AlertNotice {
    AlertNotice {
        receiver: Some(subject.alert_subject()),
        ..AlertNotice::raised(id, AlertKind::SecretUnusable.as_str(), message, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn token() -> SecretSubject {
        SecretSubject::Secret(SecretName::new("token"))
    }

    fn missing(agents: &[&str]) -> UnusableSecrets {
        let mut fault = UnusableSecret {
            reason: "its file does not exist".to_owned(),
            ..UnusableSecret::default()
        };
        for agent in agents {
            fault.add_agent(&AgentName::new(*agent));
        }
        [(token(), fault)].into()
    }

    fn id(name: &str) -> InstanceId {
        InstanceId::new(name)
    }

    /// Returns the changes of alerts that a change of the record makes.
    fn changed(
        reports: &mut SecretReports,
        change: impl FnOnce(&mut SecretReports),
    ) -> Vec<SecretAlertChange> {
        let before = reports.clone();
        change(reports);
        reports.alert_changes(&before)
    }

    #[test]
    fn one_alert_is_open_while_some_instance_cannot_use_a_secret() {
        let mut reports = SecretReports::default();
        let raised = changed(&mut reports, |r| {
            r.report(&id("a"), &missing(&["pay"]), NOW)
        });
        let message = "the secret `token` cannot be used at instance a: its file does not exist; calls of agent pay wait there";
        assert_eq!(
            raised,
            [SecretAlertChange::Raise(token(), message.to_owned())]
        );
        // The same report again changes nothing.
        let again = changed(&mut reports, |r| {
            r.report(&id("a"), &missing(&["pay"]), NOW)
        });
        assert_eq!(again, []);
        let also = changed(&mut reports, |r| {
            r.report(&id("b"), &missing(&["pay", "ship"]), NOW);
        });
        let [SecretAlertChange::Reword(_, message)] = &also[..] else {
            panic!("{also:?}")
        };
        assert!(message.contains("at instances a, b: "), "{message}");
        assert!(
            message.contains("calls of agents pay, ship wait there"),
            "{message}"
        );
        let only_b = changed(&mut reports, |r| {
            r.report(&id("a"), &UnusableSecrets::new(), NOW);
        });
        assert!(
            matches!(&only_b[..], [SecretAlertChange::Reword(_, message)] if message.contains("at instance b: "))
        );
        let none = changed(&mut reports, |r| {
            r.report(&id("b"), &UnusableSecrets::new(), NOW);
        });
        assert_eq!(none, [SecretAlertChange::Close(token())]);
        assert_eq!(reports, SecretReports::default());
    }

    #[test]
    fn an_instance_that_is_gone_leaves_no_alert() {
        let mut reports = SecretReports::default();
        reports.report(&id("a"), &missing(&[]), NOW);
        let later = NOW + STALE_AFTER + Span::from_millis(1);
        reports.report(&id("b"), &missing(&[]), later);
        assert!(!reports.is_stale(NOW + STALE_AFTER) && reports.is_stale(later));
        let left = changed(&mut reports, |r| r.forget_stale(later));
        assert!(
            matches!(&left[..], [SecretAlertChange::Reword(_, message)] if message.contains("at instance b: "))
        );
        let gone = changed(&mut reports, |r| {
            r.forget_stale(later + STALE_AFTER + Span::from_millis(1));
        });
        assert_eq!(gone, [SecretAlertChange::Close(token())]);
    }

    #[test]
    fn record_and_message_are_bounded() {
        let mut found = UnusableSecrets::new();
        for number in 0..1000 {
            let subject = SecretSubject::Secret(SecretName::new(format!("s{number}")));
            found.insert(subject, UnusableSecret::default());
        }
        let mut reports = SecretReports::default();
        reports.report(&id("a"), &found, NOW);
        assert_eq!(reports.0.len(), MOST_OF_AN_INSTANCE);
        let names: Vec<_> = (0..500).map(|n| format!("agent-{n:03}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let mut reports = SecretReports::default();
        for number in 0..50 {
            reports.report(&id(&format!("i{number:02}")), &missing(&names), NOW);
        }
        let message = &reports.messages()[&token()];
        assert!(message.len() < 300, "{message}");
        assert!(
            message.contains("i04 and others") && message.contains("agent-004 and others"),
            "{message}"
        );
    }

    #[test]
    fn the_record_is_read_as_it_was_written() {
        let mut reports = SecretReports::default();
        let agent = SecretSubject::Agent(AgentName::new("pay"));
        let mut found = missing(&["pay"]);
        found.insert(agent, UnusableSecret::default());
        reports.report(&id("a"), &found, NOW);
        let json = serde_json::to_string(&reports).unwrap();
        assert_eq!(
            serde_json::from_str::<SecretReports>(&json).unwrap(),
            reports
        );
    }
}
