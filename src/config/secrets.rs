//! The secrets that agents may name, each with its file or variable and the URLs that it may be sent to. The settings
//! contain no secret.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::receivers::ListFault;
use crate::domain::{
    agent::{AgentSpec, SecretScope},
    values::{AgentName, PLAIN_WORD, SecretName, WebAddress, is_plain_word},
};

/// A secret that agents may name.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretConfig {
    pub name: SecretName,
    /// A file that only its owner may read. Either this or `env`.
    pub file: Option<PathBuf>,
    /// A variable of the environment.
    pub env: Option<String>,
    /// The secret is sent to these URLs, and to URLs below them. None: only agents of the configuration file may use
    /// it.
    #[serde(default)]
    pub urls: Vec<String>,
}

impl SecretConfig {
    /// Returns the `urls` that can be parsed. One that cannot prevents the start.
    pub fn addresses(&self) -> Vec<WebAddress> {
        let parsed = self.urls.iter().map(|url| WebAddress::parse(url));
        parsed.filter_map(Result::ok).collect()
    }
}

pub fn faults(secrets: &[SecretConfig]) -> Vec<ListFault> {
    let mut faults = Vec::new();
    for (at, secret) in secrets.iter().enumerate() {
        let mut fault = |field: &str, found: String, allowed: &str| {
            faults.push((format!("secrets.{at}.{field}"), found, allowed.to_owned()));
        };
        let name = secret.name.as_str();
        if !is_plain_word(name) {
            fault("name", format!("{name:?}"), PLAIN_WORD);
        } else if secrets[..at].iter().any(|other| other.name == secret.name) {
            let found = format!("{name:?}, which another one has already");
            fault("name", found, "a unique name");
        }
        match (&secret.file, &secret.env) {
            (Some(file), None) if file.as_os_str().is_empty() => {
                fault("file", "\"\"".to_owned(), "the path of a file");
            }
            (None, Some(env)) if env.is_empty() || env.contains(['=', '\0']) => {
                let allowed = "the name of an environment variable";
                fault("env", format!("{env:?}"), allowed);
            }
            (Some(_), None) | (None, Some(_)) => {}
            (None, None) => fault("file", "nothing, nor an `env`".to_owned(), "one of them"),
            (Some(_), Some(_)) => fault("env", "both it and a `file`".to_owned(), "one of them"),
        }
        for (index, url) in secret.urls.iter().enumerate() {
            let parsed = WebAddress::parse(url);
            let wrong = match parsed {
                Err(wrong) => wrong,
                Ok(_) if url.contains('?') => "has a query: remove it".to_owned(),
                Ok(_) => continue,
            };
            let allowed = "an http:// or https:// URL, such as \"https://payments.example\"";
            fault(
                &format!("urls.{index}"),
                format!("a URL that {wrong}"),
                allowed,
            );
        }
    }
    faults
}

/// Returns the faults of agents in the configuration file that name a secret which does not exist, or which may not
/// be sent to their URL.
pub fn faults_of_agents(
    secrets: &[SecretConfig],
    agents: &BTreeMap<AgentName, AgentSpec>,
) -> Vec<ListFault> {
    let addresses: Vec<_> = secrets.iter().map(SecretConfig::addresses).collect();
    let scope = |name: &SecretName| {
        let mut known = secrets.iter().zip(&addresses);
        let (secret, urls) = known.find(|(secret, _)| secret.name == *name)?;
        Some(match secret.urls.is_empty() {
            true => SecretScope::ConfiguredAgents,
            false => SecretScope::Urls(urls),
        })
    };
    let mut faults = Vec::new();
    for (name, spec) in agents {
        for (pointer, fault) in spec.secret_faults(true, scope) {
            let path = format!("agents.{name}{}", pointer.replace('/', "."));
            let allowed = "a secret of [[secrets]] that may be sent to the agent's endpoints";
            faults.push((path, fault, allowed.to_owned()));
        }
    }
    faults
}

/// Returns whether the setting contains names of secrets. Its value is not shown, because a user may by mistake have
/// written the secret itself.
pub fn names_secrets(path: &str) -> bool {
    const FIELDS: [&str; 6] = ["headers", "query", "body", "auth", "sign", "tls"];
    let mut parts = path.split('.');
    match parts.next() {
        Some("secrets") => true,
        Some("agents") => parts.any(|part| FIELDS.contains(&part)),
        _ => false,
    }
}
