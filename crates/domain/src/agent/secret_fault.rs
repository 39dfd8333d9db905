//! The secrets that stop calls of an instance, found from the agents whose requests it cannot make.

use super::{
    spec::AgentSpec,
    unusable_secrets::{SecretSubject, UnusableSecret, UnusableSecrets},
};
use crate::values::ids::{AgentName, SecretName};

/// The reason why an instance cannot make the requests of an agent.
pub struct AgentSecretFault<'a> {
    pub agent: &'a AgentName,
    pub spec: &'a AgentSpec,
    /// The JSON pointers of the secrets that the agent may not use, each with the reason.
    pub refused: Vec<(String, String)>,
    /// The secret whose text cannot be used for its purpose, if the fault is in one secret.
    pub secret: Option<SecretName>,
    pub message: String,
}

/// Returns each secret that an instance cannot use, with the agents that name it, and each agent whose secrets exist but
/// do not fit. `without_value` are the configured secrets that have no value, each with the reason.
pub fn unusable_secrets(
    without_value: Vec<(SecretName, String)>,
    mut faults: Vec<AgentSecretFault<'_>>,
) -> UnusableSecrets {
    let because = |reason| UnusableSecret {
        reason,
        ..UnusableSecret::default()
    };
    let without_value = without_value.into_iter();
    let mut unusable: UnusableSecrets = without_value
        .map(|(name, reason)| (SecretSubject::Secret(name), because(reason)))
        .collect();
    // The agents are sorted, so that each call names the same agents for a secret.
    faults.sort_by(|a, b| a.agent.cmp(b.agent));
    for fault in faults {
        let mut is_explained = false;
        for used in fault.spec.secrets() {
            let subject = SecretSubject::Secret(used.name.clone());
            let mut refused = fault.refused.iter();
            let known = match refused.find(|(pointer, _)| *pointer == used.pointer) {
                Some((_, reason)) => unusable
                    .entry(subject)
                    .or_insert_with(|| because(reason.clone())),
                None => match unusable.get_mut(&subject) {
                    Some(known) => known,
                    None => continue,
                },
            };
            known.add_agent(fault.agent);
            is_explained = true;
        }
        if !is_explained {
            let subject = match fault.secret {
                Some(secret) => SecretSubject::Secret(secret),
                None => SecretSubject::Agent(fault.agent.clone()),
            };
            let known = unusable
                .entry(subject)
                .or_insert_with(|| because(fault.message));
            known.add_agent(fault.agent);
        }
    }
    unusable
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec() -> AgentSpec {
        let spec = json!({
            "endpoints": [{ "url": "https://payments.example" }],
            "auth": { "bearer": { "secret": "token" } },
            "sign": [{ "secret": "key" }],
        });
        serde_json::from_value(spec).unwrap()
    }

    fn fault<'a>(agent: &'a AgentName, spec: &'a AgentSpec) -> AgentSecretFault<'a> {
        AgentSecretFault {
            agent,
            spec,
            refused: Vec::new(),
            secret: None,
            message: "they do not fit".to_owned(),
        }
    }

    /// Returns the subject, the reason and the agents of each entry.
    fn shown(unusable: &UnusableSecrets) -> Vec<(String, &str, Vec<&str>)> {
        let entries = unusable.iter().map(|(subject, fault)| {
            let agents = fault.agents.iter().map(AgentName::as_str).collect();
            let subject = subject.alert_subject().as_str().to_owned();
            (subject, fault.reason.as_str(), agents)
        });
        entries.collect()
    }

    #[test]
    fn a_secret_without_a_value_has_the_agents_that_name_it() {
        let (spec, pay, ship) = (spec(), AgentName::new("pay"), AgentName::new("ship"));
        let missing = vec![(SecretName::new("token"), "its file is missing".to_owned())];
        let faults = vec![fault(&ship, &spec), fault(&pay, &spec)];
        let found = unusable_secrets(missing, faults);
        let expected = (
            "secret:token".to_owned(),
            "its file is missing",
            vec!["pay", "ship"],
        );
        assert_eq!(shown(&found), [expected]);
    }

    #[test]
    fn a_secret_that_an_agent_may_not_use_has_the_reason_for_that() {
        let (spec, pay) = (spec(), AgentName::new("pay"));
        let refused = AgentSecretFault {
            refused: vec![("/sign/0/secret".to_owned(), "it may not".to_owned())],
            ..fault(&pay, &spec)
        };
        let found = unusable_secrets(Vec::new(), vec![refused]);
        let expected = ("secret:key".to_owned(), "it may not", vec!["pay"]);
        assert_eq!(shown(&found), [expected]);
    }

    #[test]
    fn secrets_that_exist_but_do_not_fit_are_a_fault_of_one_secret_or_of_the_agent() {
        let (spec, pay, ship) = (spec(), AgentName::new("pay"), AgentName::new("ship"));
        let of_one = AgentSecretFault {
            secret: Some(SecretName::new("key")),
            ..fault(&ship, &spec)
        };
        let found = unusable_secrets(Vec::new(), vec![of_one, fault(&pay, &spec)]);
        let expected = [
            ("secret:key".to_owned(), "they do not fit", vec!["ship"]),
            (
                "agent-secrets:pay".to_owned(),
                "they do not fit",
                vec!["pay"],
            ),
        ];
        assert_eq!(shown(&found), expected);
    }
}
