//! Brings the agents that an instance knows in line with those that are registered in the store, where
//! other instances may have changed them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tokio::{sync::Mutex, time::Instant};

use super::{Agents, RecordSource};
use crate::{
    domain::{AgentName, AgentSpec},
    store::{Reader, StoreError},
};

pub struct Registered {
    agents: Arc<Agents>,
    /// From the file, which is the stronger source: what it names, the API cannot change.
    configured: BTreeMap<AgentName, AgentSpec>,
    /// One at a time: of two that overlap, the one that read first could have the last word.
    turn: Mutex<Option<LastRefresh>>,
}

/// A look that callers who waited for their turn meanwhile take over, so that they do not repeat it.
struct LastRefresh {
    began: Instant,
    ended: Instant,
    /// The address of the reader: others have other connections.
    reader: usize,
    outcome: Result<(), StoreError>,
}

impl LastRefresh {
    /// The outcome for a caller that came at this moment: what was read since then is new enough, and a database that
    /// could not be read until then would only have the caller wait as long again.
    fn outcome_for(&self, arrived: Instant, reader: &Reader) -> Option<Result<(), StoreError>> {
        let is_new = match &self.outcome {
            Ok(()) => self.began >= arrived,
            Err(_) => self.ended >= arrived && self.reader == std::ptr::from_ref(reader).addr(),
        };
        is_new.then(|| self.outcome.clone())
    }
}

impl Registered {
    pub fn new(agents: Arc<Agents>, configured: BTreeMap<AgentName, AgentSpec>) -> Self {
        Self {
            agents,
            configured,
            turn: Mutex::default(),
        }
    }

    /// Reads what is registered, and takes over what differs from what is known.
    pub async fn refresh(&self, reader: &Reader) -> Result<(), StoreError> {
        let arrived = Instant::now();
        let mut turn = self.turn.lock().await;
        if let Some(outcome) = turn
            .as_ref()
            .and_then(|last| last.outcome_for(arrived, reader))
        {
            return outcome;
        }
        let began = Instant::now();
        let outcome = self.read(reader).await;
        *turn = Some(LastRefresh {
            began,
            ended: Instant::now(),
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
