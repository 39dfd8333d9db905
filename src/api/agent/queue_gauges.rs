//! The reasons why steps wait in the queues of agents, for the metrics: reasons that stop a whole agent, and keys
//! that have reached their limits. They are read only for a scrape, with a bounded number of reads.

use std::collections::{BTreeMap, HashMap, HashSet};

use metrics::gauge;

use crate::{
    agent::{Agent, Agents, metrics_label},
    domain::{
        queue::{LaneRule, LimitedKey, StepKey, StepLane},
        values::{AgentName, WorkflowName},
        view::Blocked,
    },
    store::{Reader, StoreCounts, StoreError, may_begin},
};

/// The most agents whose lanes are read: those with the longest queues.
const MOST_AGENTS: usize = 20;
/// The most lanes of an agent that are read.
const MOST_LANES: usize = 100;

/// The reasons for waiting at one moment, by the labels of the agents.
#[derive(Default)]
pub struct QueueBlocks {
    /// The label of an agent and a reason, with the name that it has in `blocked_by`.
    reasons: HashSet<(String, String)>,
    keys: HashMap<String, KeyCounts>,
}

/// The counts of the first lanes of an agent: those with queued steps, and those among them whose key is at its
/// limit.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct KeyCounts {
    queued: u64,
    limited: u64,
}

impl QueueBlocks {
    pub async fn read(
        agents: &Agents,
        counts: &StoreCounts,
        reader: &Reader,
    ) -> Result<Self, StoreError> {
        let mut blocks = Self::default();
        let mut queues: Vec<_> = counts
            .queued
            .iter()
            .filter(|(_, count)| *count > 0)
            .collect();
        queues.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (name, _) in &queues {
            if let Some(reason) = reason(name, agents.get(name).as_deref()) {
                let label = metrics_label(name.as_str());
                blocks.reasons.insert((label, reason));
            }
        }
        for (name, _) in queues.into_iter().take(MOST_AGENTS) {
            let rule = agents.lane_rule(name);
            let counts = key_counts(name, rule.as_deref(), reader).await?;
            if counts.queued > 0 {
                let of_label = blocks.keys.entry(metrics_label(name.as_str())).or_default();
                of_label.queued += counts.queued;
                of_label.limited += counts.limited;
            }
        }
        Ok(blocks)
    }
}

/// Returns the reason why the whole agent is not called now, if there is one.
fn reason(name: &AgentName, agent: Option<&Agent>) -> Option<String> {
    let name = name.clone();
    let blocked = match agent {
        None => Blocked::Agent { agent: name },
        Some(agent) => match (agent.stopped(), agent.blocking_limit()) {
            (Some(stopped), _) => stopped.blocks(name),
            (None, Some(max_open)) => Blocked::OpenReplies {
                agent: name,
                max_open,
            },
            (None, None) => return None,
        },
    };
    let word = serde_json::to_value(&blocked).ok()?;
    Some(word["reason"].as_str()?.to_owned())
}

/// Counts the lanes of an agent with queued steps, and those of them that have to wait for the limit of a key.
async fn key_counts(
    name: &AgentName,
    rule: Option<&LaneRule>,
    reader: &Reader,
) -> Result<KeyCounts, StoreError> {
    let lanes: Vec<String> = reader
        .lanes(name, MOST_LANES, 1)
        .await?
        .into_iter()
        .map(|(lane, _)| lane)
        .collect();
    let limited: Vec<_> = lanes.iter().map(|lane| StepLane::of(lane)).collect();
    if rule.is_none() && limited.iter().all(Option::is_none) {
        return Ok(KeyCounts::default());
    }
    let now = reader.now().await?.as_millis().saturating_mul(1_000_000);
    let mut full = vec![false; lanes.len()];
    if let Some(rule) = rule.filter(|rule| rule.has_limits()) {
        let keys: Vec<LimitedKey> = lanes.iter().flat_map(|lane| rule.limited(lane)).collect();
        let counted = rule.counted(lanes.iter().map(String::as_str));
        let usage = reader.key_usage(name, counted.as_deref(), &keys).await?;
        let limits = keys.iter().filter_map(|key| Some((key, rule.limit(key)?)));
        let (begin, _) = may_begin(limits, &usage.buckets, now);
        for (lane, full) in lanes.iter().zip(&mut full) {
            *full = rule.blocking(lane, &usage.running, &begin).is_some();
        }
    }
    let mut by_workflow: BTreeMap<&str, Vec<(usize, &StepKey)>> = BTreeMap::new();
    for (at, lane) in limited.iter().enumerate() {
        for StepLane { workflow, keys } in lane.iter() {
            let keys = keys.iter().map(|key| (at, key));
            by_workflow.entry(workflow).or_default().extend(keys);
        }
    }
    for (workflow, keys) in by_workflow {
        let ids: Vec<_> = keys.iter().map(|(_, key)| key.id.clone()).collect();
        let usage = reader
            .step_key_usage(&WorkflowName::new(workflow), &ids)
            .await?;
        for (at, key) in keys {
            let running = usage.running.get(&key.id).copied().unwrap_or(0);
            let bucket = usage.buckets.get(&key.id).copied();
            full[at] |= key.room(running, bucket, now) == 0;
        }
    }
    Ok(KeyCounts {
        queued: lanes.len() as u64,
        limited: full.into_iter().filter(|full| *full).count() as u64,
    })
}

/// The series that earlier scrapes returned. A series that no longer applies must be reported as zero.
#[derive(Default)]
pub struct ShownBlocks {
    reasons: HashSet<(String, String)>,
    keys: HashSet<String>,
}

impl ShownBlocks {
    pub fn show(&mut self, blocks: &QueueBlocks) {
        self.reasons.extend(blocks.reasons.iter().cloned());
        for (agent, reason) in &self.reasons {
            let is_now = blocks.reasons.contains(&(agent.clone(), reason.clone()));
            gauge!("provost_queue_blocked", "agent" => agent.clone(), "reason" => reason.clone())
                .set(f64::from(u8::from(is_now)));
        }
        self.keys.extend(blocks.keys.keys().cloned());
        for agent in &self.keys {
            let counts = blocks.keys.get(agent).copied().unwrap_or_default();
            gauge!("provost_queue_keys", "agent" => agent.clone()).set(counts.queued as f64);
            gauge!("provost_queue_keys_at_limit", "agent" => agent.clone())
                .set(counts.limited as f64);
        }
    }
}

pub fn describe() {
    metrics::describe_gauge!(
        "provost_queue_blocked",
        "Whether steps are queued and this instance calls their agent for none of them, by the reason that blocked_by gives: 1 while it holds"
    );
    metrics::describe_gauge!(
        "provost_queue_keys",
        "Lanes with queued steps, one for each combination of the keys of limits and fairness, up to 100"
    );
    metrics::describe_gauge!(
        "provost_queue_keys_at_limit",
        "Of provost_queue_keys, the lanes that wait because a key has reached its limit"
    );
}
