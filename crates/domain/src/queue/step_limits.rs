//! Limits of a workflow on its steps: how many steps with the same key run at once, and how many begin in a time, for
//! all agents that they call.
//!
//! A step that is limited in this way is in a lane of its agent's queue that contains these limits: [`StepLane`].

use std::{borrow::Cow, collections::HashMap, fmt::Write, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::{
    definition::{KeyLimit, StepLimit},
    queue::{key::short, rate::RateBucket},
    task::aggregate::{Details, Task},
    values::{
        ids::AgentName,
        rate::{Rate, RateLimitSpec},
    },
};

/// The prefix of the lanes of steps that a workflow limits.
const LIMITED: &str = "limits:";
/// The number of bytes of a hash that make an id.
const ID_BYTES: usize = 16;

/// The key of a step, and its limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepKey {
    /// Identifies the workflow, the template and the key.
    pub id: String,
    pub max_in_flight: Option<u32>,
    pub rate: Option<RateLimitSpec>,
}

impl StepKey {
    /// Returns how many steps may begin now, if `running` steps run. `bucket` is that of the rate, `None` if no step
    /// has begun recently.
    pub fn room(&self, running: u32, bucket: Option<RateBucket>, now: i64) -> u32 {
        let slots = self.max_in_flight.map(|most| most.saturating_sub(running));
        let calls = self.rate.as_ref().map(|limit| {
            let bucket = self.bucket(bucket, now);
            bucket.available(limit, now)
        });
        slots.into_iter().chain(calls).min().unwrap_or(u32::MAX)
    }

    /// Returns the bucket as it is under this rate: it may have been filled under another one.
    pub fn bucket(&self, bucket: Option<RateBucket>, now: i64) -> RateBucket {
        let bucket = bucket.unwrap_or(RateBucket(0));
        let limit = self.rate.as_ref();
        limit.map_or(bucket, |limit| bucket.within(limit, now))
    }
}

/// The limits of a workflow that a lane contains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepLane {
    pub workflow: String,
    pub keys: Vec<StepKey>,
}

/// The form in which a lane is stored; the last part is the lane by the agent's own rule.
#[derive(Serialize, Deserialize)]
struct StoredLane(String, Vec<StoredKey>, Option<Box<RawValue>>);

#[derive(Serialize, Deserialize)]
struct StoredKey(String, Option<u32>, Option<Rate>, Option<u32>);

impl StepLane {
    /// Reads a lane. Returns `None` if no workflow limits the steps of this lane.
    pub fn of(lane: &str) -> Option<Self> {
        let StoredLane(workflow, keys, _) = stored(lane)?;
        let key = |StoredKey(id, max_in_flight, rate, burst)| StepKey {
            id,
            max_in_flight,
            rate: rate.map(|rate| RateLimitSpec { rate, burst }),
        };
        Some(Self {
            workflow,
            keys: keys.into_iter().map(key).collect(),
        })
    }

    /// Returns the name under which the rates of a workflow's keys are kept. No agent can have such a name.
    pub fn scope(workflow: &str) -> AgentName {
        AgentName::new(format!("workflow {workflow}"))
    }
}

fn stored(lane: &str) -> Option<StoredLane> {
    serde_json::from_str(lane.strip_prefix(LIMITED)?).ok()
}

/// Returns the lane by the agent's own rule; empty if the agent has none.
pub(crate) fn agent_part(lane: &str) -> Cow<'_, str> {
    match stored(lane) {
        Some(StoredLane(_, _, agent)) => match agent {
            Some(agent) => Cow::Owned(agent.get().to_owned()),
            None => Cow::Borrowed(""),
        },
        None => Cow::Borrowed(lane),
    }
}

/// Returns the lane of a waiting step. `agent` is the lane by the agent's own rule.
pub(crate) fn limited_lane(task: &Task, agent: String) -> String {
    let Some(workflow) = &task.details.workflow else {
        return agent;
    };
    let keys = task.details.step_keys().into_iter().map(|key| {
        let rate = key.rate.as_ref().map(|limit| limit.rate);
        let burst = key.rate.and_then(|limit| limit.burst);
        StoredKey(key.id, key.max_in_flight, rate, burst)
    });
    let name = workflow.name.as_str().to_owned();
    // A lane of an agent is a JSON array, or empty.
    let stored = StoredLane(name, keys.collect(), RawValue::from_string(agent).ok());
    // Texts and numbers always serialise.
    let stored = serde_json::to_string(&stored).unwrap_or_default();
    format!("{LIMITED}{stored}")
}

/// The number of steps that may begin in lanes that workflows limit, for all agents for which one transaction claims.
#[derive(Debug, Default)]
pub struct StepRoom {
    /// The ids of the keys of each lane, each with the number of steps that may begin by the record.
    of_lanes: HashMap<Arc<str>, Vec<(String, u32)>>,
    /// The number of steps that were taken since the record was read, by the id of the key.
    taken: HashMap<String, u32>,
}

impl StepRoom {
    pub fn set(&mut self, lane: Arc<str>, keys: Vec<(String, u32)>) {
        self.of_lanes.insert(lane, keys);
    }

    /// Returns how many steps of a lane may begin; `None` if no workflow limits them.
    pub fn of(&self, lane: &str) -> Option<u32> {
        let keys = self.of_lanes.get(lane)?.iter();
        let room = keys.map(|(id, room)| {
            let taken = self.taken.get(id).copied().unwrap_or(0);
            room.saturating_sub(taken)
        });
        room.min()
    }

    /// Gives back `count` of the steps that were taken for a lane, because they are not needed.
    pub fn give_back(&mut self, lane: &str, count: u32) {
        for (id, _) in self.of_lanes.get(lane).into_iter().flatten() {
            if let Some(taken) = self.taken.get_mut(id) {
                *taken = taken.saturating_sub(count);
            }
        }
    }

    pub(crate) fn take(&mut self, lane: &str, count: u32) {
        for (id, _) in self.of_lanes.get(lane).into_iter().flatten() {
            *self.taken.entry(id.clone()).or_default() += count;
        }
    }
}

/// Returns whether a workflow limits the steps of this lane.
pub fn is_limited_lane(lane: &str) -> bool {
    lane.starts_with(LIMITED)
}

impl Details {
    /// Returns the keys of the task's steps.
    pub fn step_keys(&self) -> Vec<StepKey> {
        self.limited_steps()
            .into_iter()
            .map(|(key, ..)| key)
            .collect()
    }

    /// Returns the keys as [`Details::step_keys`] does, each with its text and its limit.
    pub fn limited_steps(&self) -> Vec<(StepKey, String, &KeyLimit)> {
        let Some(workflow) = &self.workflow else {
            return Vec::new();
        };
        let limits = self.definition.policies.step_limits.iter();
        let keys = limits.map(|StepLimit { key, limit }| {
            let text = short(self.render_key(key));
            let step_key = StepKey {
                id: id(workflow.name.as_str(), &limit.by, &text),
                max_in_flight: limit.max_in_flight,
                rate: limit.rate_limit(),
            };
            (step_key, text, limit)
        });
        keys.collect()
    }
}

fn id(workflow: &str, by: &str, key: &str) -> String {
    // Texts always serialise.
    let whole = serde_json::to_vec(&(workflow, by, key)).unwrap_or_default();
    let mut id = String::with_capacity(2 * ID_BYTES);
    for byte in Sha256::digest(whole).iter().take(ID_BYTES) {
        // Writing to a text does not fail.
        let _ = write!(id, "{byte:02x}");
    }
    id
}
