//! The entry in the history about a secret that was missing.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, sync::Arc, time::Duration};

use tempfile::TempDir;
use tokio::time::Instant;

use super::{payments, settings, spec};
use crate::{
    agent::{AgentSettings, Agents, SecretReader, secret::reader::SecretStore},
    config::SecretConfig,
    domain::{
        agent::AgentSpec,
        values::{SecretName, Timestamp},
    },
};

/// The resolution of times in the store.
const MILLISECOND: Duration = Duration::from_millis(1);
const SERVICE: &str = "https://payments.example";

fn put(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

/// An instance with one secret, and with the agents that may name it.
struct Bench {
    folder: TempDir,
    agents: Agents,
    reader: SecretReader,
}

impl Bench {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let secrets = Arc::new(SecretStore::default());
        secrets.configure(&[SecretConfig {
            name: SecretName::new("token"),
            file: Some(folder.path().join("token")),
            env: None,
            urls: vec![SERVICE.to_owned()],
        }]);
        let agents = Agents::new(AgentSettings {
            secrets,
            ..settings()
        });
        agents.put(payments(), with_token());
        Self {
            folder,
            agents,
            reader: SecretReader::default(),
        }
    }

    /// Does the same as a round of the secret upkeep.
    async fn look(&mut self) -> bool {
        let has_changed = self.reader.check_all(self.agents.secrets()).await;
        if has_changed {
            self.agents.secrets_changed();
        }
        has_changed
    }

    async fn put_secret(&mut self, text: &str) {
        put(&self.folder.path().join("token"), text);
        while !self.look().await {}
    }

    /// Returns the reason why the agent was not called until `earliest` or later.
    fn why(&self, earliest: Instant) -> Option<String> {
        let (now, instant) = (Timestamp::from_millis(1_000_000), Instant::now());
        let stop = self.agents.past_stop(&payments(), now, instant)?;
        let ago = now.since(stop.until);
        assert!(ago <= instant - earliest + MILLISECOND, "{ago:?} ago");
        Some(stop.why.clone())
    }
}

fn with_token() -> AgentSpec {
    AgentSpec {
        auth: serde_json::from_str(r#"{ "bearer": { "secret": "token" } }"#).unwrap(),
        ..spec(&[SERVICE])
    }
}

#[tokio::test]
async fn the_fault_that_was_there_last_is_the_reason() {
    let mut bench = Bench::new();
    bench.look().await;
    bench.put_secret("\n").await;
    assert!(bench.agents.try_take(&payments()).is_none());
    // An earlier record would have another time.
    tokio::time::sleep(MILLISECOND * 10).await;
    let still_empty = Instant::now();
    bench.put_secret("the-token-of-payments").await;
    assert!(bench.agents.try_take(&payments()).is_some());
    let empty = "the secret `token` cannot be used: it is empty";
    assert_eq!(bench.why(still_empty).as_deref(), Some(empty));
    // The rotation of a secret is no stop.
    bench.put_secret("another-token").await;
    assert_eq!(bench.why(still_empty).as_deref(), Some(empty));
}

#[tokio::test]
async fn a_secret_that_is_there_from_the_start_is_no_reason() {
    let mut bench = Bench::new();
    bench.put_secret("the-token-of-payments").await;
    assert!(bench.agents.try_take(&payments()).is_some());
    assert_eq!(bench.why(Instant::now()), None);
}

#[tokio::test]
async fn an_agent_that_no_longer_needs_the_secret_lacked_it_until_then() {
    let mut bench = Bench::new();
    bench.look().await;
    let before = Instant::now();
    bench.agents.put(payments(), spec(&[SERVICE]));
    assert!(bench.agents.try_take(&payments()).is_some());
    let missing = "the secret `token` cannot be used: its file does not exist";
    assert_eq!(bench.why(before).as_deref(), Some(missing));
}
