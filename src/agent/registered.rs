//! Updates the agents that an instance knows to those that are registered in the store, where other instances may have
//! changed them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tokio::sync::Mutex;

use super::Agents;
use crate::{
    clock::{self, Instant},
    domain::{
        agent::{AgentSpec, RecordSource},
        values::AgentName,
    },
    store::{Reader, StoreError},
};

pub struct AgentRefresher {
    agents: Arc<Agents>,
    /// The agents of the configuration file. It takes precedence: the API cannot change an agent that the file names.
    configured: BTreeMap<AgentName, AgentSpec>,
    /// Serialises the refreshes: if two overlapped, the one with the older data could finish last.
    refresh_lock: Mutex<Option<LastRefresh>>,
}

/// The result of a refresh. Callers that waited for the lock during that refresh use it, so that they do not repeat
/// it.
struct LastRefresh {
    began: Instant,
    ended: Instant,
    /// The address of the reader in memory. Another reader has other connections.
    reader: usize,
    outcome: Result<(), StoreError>,
}

impl LastRefresh {
    /// Returns the result for a caller that arrived at this moment. Data that was read later is new enough. After an
    /// error, another attempt on the same reader would only make the caller wait as long again.
    fn outcome_for(&self, arrived: Instant, reader: &Reader) -> Option<Result<(), StoreError>> {
        let is_new = match &self.outcome {
            Ok(()) => self.began >= arrived,
            Err(_) => self.ended >= arrived && self.reader == std::ptr::from_ref(reader).addr(),
        };
        is_new.then(|| self.outcome.clone())
    }
}

impl AgentRefresher {
    pub fn new(agents: Arc<Agents>, configured: BTreeMap<AgentName, AgentSpec>) -> Self {
        Self {
            agents,
            configured,
            refresh_lock: Mutex::default(),
        }
    }

    /// Reads the registered agents, and applies the differences to the agents that are known.
    pub async fn refresh(&self, reader: &Reader) -> Result<(), StoreError> {
        let arrived = clock::instant();
        let mut turn = self.refresh_lock.lock().await;
        if let Some(outcome) = turn
            .as_ref()
            .and_then(|last| last.outcome_for(arrived, reader))
        {
            return outcome;
        }
        let began = clock::instant();
        let outcome = self.read(reader).await;
        *turn = Some(LastRefresh {
            began,
            ended: clock::instant(),
            reader: std::ptr::from_ref(reader).addr(),
            outcome: outcome.clone(),
        });
        outcome
    }

    async fn read(&self, reader: &Reader) -> Result<(), StoreError> {
        let records = reader.agents().await?.into_iter();
        let mut registered: HashMap<_, _> =
            records.map(|record| (record.name, record.spec)).collect();
        registered.extend(self.configured.clone());
        for agent in self.agents.list() {
            match registered.get(agent.name()) {
                None => {
                    self.agents.remove(agent.name());
                }
                Some(spec) if spec == agent.spec() => {
                    registered.remove(agent.name());
                }
                Some(_) => {}
            }
        }
        for (name, spec) in registered {
            self.agents.put(name, spec);
        }
        let mut controls: HashMap<_, _> = reader.agent_controls().await?.into_iter().collect();
        let now = reader.now().await?;
        for agent in self.agents.list() {
            let control = controls.remove(agent.name()).unwrap_or_default();
            agent.take_control(control, now, RecordSource::Read);
        }
        self.agents.take_checks(reader.agent_checks().await?);
        Ok(())
    }
}
