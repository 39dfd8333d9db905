//! Reads the files of secrets that have changed, and gives the secrets to the agents that name them.

use std::{sync::Arc, time::Duration};

use crate::service::loops::{NextRound, PeriodicLoop};
use crate::{
    agent::{Agents, SecretReader},
    store::StoreError,
};

/// The interval at which the files are checked.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// A rest that only a new list of secrets ends.
const LONG: Duration = Duration::from_secs(3600);

pub(in crate::service) struct SecretUpkeep {
    pub agents: Arc<Agents>,
    pub reader: SecretReader,
    /// True if the list has changed. URLs may have been added, although no value has changed.
    pub is_reconfigured: bool,
}

impl PeriodicLoop for SecretUpkeep {
    const NAME: &'static str = "secrets";
    const AT_ONCE: bool = true;

    fn interval(&self) -> Duration {
        CHECK_EVERY
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        let secrets = self.agents.secrets();
        let has_changed = self.reader.check_all(secrets).await;
        if has_changed || std::mem::take(&mut self.is_reconfigured) {
            self.agents.secrets_changed();
        }
        Ok(match secrets.has_files() {
            true => NextRound::AfterInterval,
            false => NextRound::After(LONG),
        })
    }

    async fn wait_for_wake(&mut self) {
        self.agents.secrets().reconfigured().await;
        self.is_reconfigured = true;
    }
}
