//! The secrets of an agent, as the API shows them. Secrets are named, never given.

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    agent::Agents,
    domain::{
        agent::AgentSpec,
        values::{AgentName, SecretName},
    },
};

/// A secret that the agent names, at the instance that responds.
#[derive(Serialize, ToSchema)]
#[schema(as = AgentSecret)]
pub struct SecretView {
    #[schema(example = "payments-token")]
    name: String,
    /// Why it cannot be used, or not by this agent; null if it can. While there is a fault, this instance makes no call of
    /// the agent.
    #[schema(required, example = "its file does not exist")]
    fault: Option<String>,
}

impl SecretView {
    /// `None` if the agent names no secret.
    pub fn all(agents: &Agents, name: &AgentName, spec: &AgentSpec) -> Option<Vec<Self>> {
        let mut names: Vec<_> = spec.secrets().into_iter().map(|used| used.name).collect();
        names.sort();
        names.dedup();
        let refused = agents.secret_faults(name, spec);
        let of = |secret: &SecretName| {
            let used = spec.secrets().into_iter().find(|used| used.name == secret);
            let pointer = used.map(|used| used.pointer);
            let refused = refused.iter().find(|(at, _)| Some(at) == pointer.as_ref());
            let fault = refused.map(|(_, why)| why.clone());
            let fault = fault.or_else(|| agents.secrets().fault(secret));
            Self {
                name: secret.to_string(),
                fault: fault.or_else(|| agents.misfit(name, secret)),
            }
        };
        let views: Vec<_> = names.into_iter().map(of).collect();
        (!views.is_empty()).then_some(views)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::domain::values::Object;

    fn faults(json: &str) -> Vec<String> {
        let json = json.replacen('{', r#"{"endpoints": [], "#, 1);
        let body = RawValue::from_string(json).unwrap();
        let faults = AgentSpec::read_object(&body, "").err().unwrap_or_default();
        let all: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert!(!all.join(" ").contains("hunter2"), "{all:?}");
        faults.into_iter().map(|fault| fault.pointer).collect()
    }

    #[test]
    fn a_secret_that_was_put_in_place_of_its_name_is_refused_and_not_repeated() {
        for (json, pointer) in [
            (r#"{"auth": "hunter2"}"#, "/auth"),
            (r#"{"auth": {"bearer": "hunter2"}}"#, "/auth/bearer"),
            (r#"{"auth": {}}"#, "/auth"),
            (r#"{"auth": {"bearer": null}}"#, "/auth"),
            (r#"{"auth": {"bearer": {}}}"#, "/auth/bearer/secret"),
            (r#"{"auth": {"digest": {}}}"#, "/auth/digest"),
            (
                r#"{"auth": {"bearer": {"secret": "a"}, "basic": {"user": "u", "password": {"secret": "a"}}}}"#,
                "/auth",
            ),
            (
                r#"{"auth": {"basic": {"user": "u", "password": "hunter2"}}}"#,
                "/auth/basic/password",
            ),
            (
                r#"{"auth": {"basic": {"password": {"secret": "a"}}}}"#,
                "/auth/basic/user",
            ),
            (
                r#"{"auth": {"oauth2": {"token_url": "https://h", "client_id": "c", "client_secret": "hunter2"}}}"#,
                "/auth/oauth2/client_secret",
            ),
            (
                r#"{"auth": {"oauth2": {"client_id": "c", "client_secret": {"secret": "a"}}}}"#,
                "/auth/oauth2/token_url",
            ),
            (
                r#"{"auth": {"oauth2": {"token_url": "https://h", "client_id": "c", "client_secret": {"secret": "a"}, "tls": {"key": "hunter2"}}}}"#,
                "/auth/oauth2/tls/key",
            ),
            (r#"{"tls": {"key": "hunter2"}}"#, "/tls/key"),
            (r#"{"tls": {"ca": 7}}"#, "/tls/ca"),
            (r#"{"tls": {"min_version": "1.1"}}"#, "/tls/min_version"),
            (r#"{"http_version": "3"}"#, "/http_version"),
            (r#"{"http_version": 2}"#, "/http_version"),
            (r#"{"headers": {"x": 7}}"#, "/headers/x"),
            (r#"{"headers": {"x": {"secret": 7}}}"#, "/headers/x/secret"),
            (
                r#"{"headers": {"x": {"secret": "a", "value": "hunter2"}}}"#,
                "/headers/x/value",
            ),
            (r#"{"query": ["hunter2"]}"#, "/query"),
            (r#"{"sign": [{"secret": "a"}, "hunter2"]}"#, "/sign/1"),
        ] {
            assert_eq!(faults(json), [pointer], "{json}");
        }
    }

    #[test]
    fn what_is_added_is_read_as_it_is_shown() {
        let json = r#"{"endpoints":[{"url":"https://a"}],"headers":{"x-tenant":"acme"},"query":{"key":{"secret":"a"}},"auth":{"basic":{"user":"u","password":{"secret":"b"}}},"sign":[{"secret":"c"}]}"#;
        let body = RawValue::from_string(json.to_owned()).unwrap();
        let spec = AgentSpec::parse(&body).unwrap();
        let shown = serde_json::to_value(&spec).unwrap();
        let given: serde_json::Value = serde_json::from_str(json).unwrap();
        for (name, value) in given.as_object().unwrap().iter().skip(1) {
            assert_eq!(shown[name], *value);
        }
    }
}
