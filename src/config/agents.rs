//! Validates the content of agents in the configuration file by the rules of the API for agents. Their form is
//! checked before.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{secrets, show, tokens::HIDDEN};
use crate::domain::{
    agent::AgentSpec,
    values::{AgentName, PLAIN_NAME, is_plain_name},
};

/// The fault of one agent: its path below `agents`, the value that was found, and the values that are allowed.
pub struct AgentFault {
    pub path: String,
    pub found: String,
    pub allowed: String,
}

pub fn faults(agents: &BTreeMap<AgentName, AgentSpec>) -> Vec<AgentFault> {
    let mut faults = Vec::new();
    for (name, spec) in agents {
        if !is_plain_name(name.as_str()) {
            faults.push(AgentFault {
                path: name.to_string(),
                found: format!("{name:?}"),
                allowed: PLAIN_NAME.to_owned(),
            });
        }
        let written = serde_json::to_value(spec).unwrap_or_default();
        let wrong = spec.faults("").into_iter();
        faults.extend(wrong.map(|(pointer, message)| {
            let path = format!("{name}{}", pointer.replace('/', "."));
            let value = written.pointer(&pointer);
            AgentFault {
                found: match secrets::names_secrets(&format!("agents.{path}")) {
                    true => HIDDEN.to_owned(),
                    false => value.map_or_else(String::new, found),
                },
                path,
                allowed: message.trim_start_matches("must be ").to_owned(),
            }
        }));
    }
    faults
}

fn found(value: &Value) -> String {
    match value {
        // A URL may hold a password.
        Value::String(text) => show::url_without_secrets(text),
        Value::Array(items) => format!("{} of them", items.len()),
        other => other.to_string(),
    }
}
