//! Reads the files of secrets when they have changed, and hands the secrets to the agents that name them.

use std::{sync::Arc, time::Duration};

use super::loops::{NextRound, PeriodicLoop};
use crate::{
    agent::{Agents, SecretReader},
    store::StoreError,
};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// A rest that only a new list of secrets ends.
const LONG: Duration = Duration::from_secs(3600);

pub(super) struct SecretUpkeep {
    pub agents: Arc<Agents>,
    pub reader: SecretReader,
    /// The list is another one: URLs may have been added, although no value has changed.
    pub is_reconfigured: bool,
}

impl PeriodicLoop for SecretUpkeep {
    const NAME: &'static str = "secrets";
    const AT_ONCE: bool = true;

    fn interval(&self) -> Duration {
        LOOK
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        let secrets = self.agents.secrets();
        let has_changed = self.reader.look(secrets).await;
        if has_changed || std::mem::take(&mut self.is_reconfigured) {
            self.agents.secrets_changed();
        }
        Ok(match secrets.has_files() {
            true => NextRound::AfterInterval,
            false => NextRound::After(LONG),
        })
    }

    async fn woken(&mut self) {
        self.agents.secrets().reconfigured().await;
        self.is_reconfigured = true;
    }
}
