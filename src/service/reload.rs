//! Reloads tokens, secrets, receivers, alert webhooks and certificates in a running instance on SIGHUP. All other
//! settings need a restart, and the log names those that have changed.

use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::Value;
use thiserror::Error;
use tracing::{info, warn};

use crate::{
    agent::{Agents, Post},
    broker::Brokers,
    config::{AccessToken, Config, setting_paths},
    delivery::Receivers,
    domain::message::Sender,
    listener::{Tls, TlsError},
};

/// The settings that can be reloaded. The contents of the TLS files are reloaded too; their paths are fixed at the
/// start.
const LIVE: [&str; 4] = ["tokens", "secrets", "receivers", "alert_webhooks"];

#[derive(Debug, Error)]
pub enum ReloadError {
    #[error(
        "no token is left, and without one everybody who can connect may do everything: leave one in [[tokens]], or restart to run without"
    )]
    NoTokenLeft,
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The parts of the service that can be replaced at run time.
pub(super) struct Live {
    pub config: Config,
    /// The same, for the API.
    pub in_force: Arc<ArcSwap<Config>>,
    pub agents: Arc<Agents>,
    pub tokens: Arc<ArcSwap<Vec<AccessToken>>>,
    pub receivers: Arc<ArcSwap<Receivers>>,
    pub sender: Arc<ArcSwap<Sender>>,
    pub post: Post,
    pub brokers: Arc<Brokers>,
    pub tls: Option<Arc<Tls>>,
}

impl Live {
    /// Applies `new` as far as possible. On an error nothing changes.
    pub fn reload(&mut self, new: Config) -> Result<(), ReloadError> {
        let config = Config {
            tokens: new.tokens.clone(),
            secrets: new.secrets.clone(),
            receivers: new.receivers.clone(),
            alert_webhooks: new.alert_webhooks.clone(),
            ..self.config.clone()
        };
        // A token file that is empty while it is rewritten must not disable authentication.
        if config.tokens.is_empty() && !self.config.tokens.is_empty() {
            return Err(ReloadError::NoTokenLeft);
        }
        let restart = self.needs_restart(&new);
        if let Some(tls) = &self.tls {
            tls.reload()?;
        }
        self.tokens.store(Arc::new(config.tokens.clone()));
        self.agents.secrets().configure(&config.secrets);
        let receivers = Receivers::new(&config, self.post.clone(), self.brokers.clone());
        self.receivers.store(Arc::new(receivers));
        self.sender.rcu(|before| Sender {
            webhooks: Receivers::alert_webhooks(&config),
            console_url: match config.console_url {
                // The console has no token, so browsers get 401 from now on.
                None if !config.tokens.is_empty() => None,
                _ => before.console_url.clone(),
            },
            ..Sender::clone(before)
        });
        // Before the log says so: who reads it looks at them.
        self.in_force.store(Arc::new(config.clone()));
        info!(
            tokens = config.tokens.len(),
            secrets = config.secrets.len(),
            receivers = config.receivers.len(),
            alert_webhooks = config.alert_webhooks.len(),
            certificate = self.tls.is_some(),
            "reloaded tokens, secrets, receivers, alert webhooks and certificates"
        );
        if !restart.is_empty() {
            let settings = restart.join(", ");
            warn!(
                settings,
                "these settings have changed too, and take effect at the next start"
            );
        }
        self.config = config;
        Ok(())
    }

    /// The settings that differ in `new` but need a restart.
    fn needs_restart(&self, new: &Config) -> Vec<&'static str> {
        let value = |config: &Config| serde_json::to_value(config).unwrap_or_default();
        let (old_values, new_values) = (value(&self.config), value(new));
        let differs = |path: &str| match path {
            // These values are serialised without their passwords, so they are compared directly.
            "database_url" => self.config.database_url != new.database_url,
            "broker.url" => self.config.broker.url != new.broker.url,
            "intake" => self.config.intake != new.intake,
            _ => at(&old_values, path) != at(&new_values, path),
        };
        setting_paths()
            .filter(|path| !LIVE.contains(path) && differs(path))
            .collect()
    }
}

fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.')
        .try_fold(value, |value, name| value.get(name))
}
