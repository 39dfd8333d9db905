//! The positions of a task's steps in the queues of their agents, which only the store knows. The cost is bounded,
//! for queues of any length and tasks with any number of steps. Only a read of a single task pays it, never a
//! submission.

use std::sync::Arc;

use crate::{
    domain::{
        agent::{AdaptedLimit, AgentMode, AgentStop, SlowStartLimit},
        definition::KeyLimit,
        queue::LaneRule,
        task::Task,
        values::{AgentName, StepIndex, WorkflowName},
        view::{Blocked, StepView},
    },
    store::{Reader, StoreError, may_begin},
};

/// The most steps of other tasks that are counted in one queue.
const MOST_AHEAD: usize = 1000;
/// The most queues that are counted for one task.
const MOST_QUEUES: usize = 4;

/// Explains why a step waits if it does not wait for a free slot: because of an agent that is not registered, a
/// worker, the hold of this instance, a pause or an open breaker (`stopped`), or the limit of awaited replies
/// (`limit`). For a step that waits for a free slot it adds if the number of slots adapts (`adapted`), or grows
/// because the service has just recovered (`recovering`).
pub fn explain_other_reasons(
    steps: &mut [StepView<'_>],
    mode: impl Fn(&AgentName) -> Option<AgentMode>,
    limit: impl Fn(&AgentName) -> Option<u32>,
    adapted: impl Fn(&AgentName) -> Option<AdaptedLimit>,
    recovering: impl Fn(&AgentName) -> Option<SlowStartLimit>,
    stopped: impl Fn(&AgentName) -> Option<AgentStop>,
    is_held: bool,
) {
    for step in &mut *steps {
        if let Some(Blocked::Capacity {
            agent,
            ahead,
            ahead_is_at_least,
            ..
        }) = &step.blocked_by
        {
            let (agent, ahead) = (agent.clone(), *ahead);
            let ahead_is_at_least = *ahead_is_at_least;
            let mode = mode(&agent);
            if let Some(stopped) = mode.filter(|_| !is_held).and_then(|_| stopped(&agent)) {
                step.blocked_by = Some(stopped.blocks(agent));
                continue;
            }
            step.blocked_by = match mode {
                None => Some(Blocked::Agent { agent }),
                Some(_) if is_held => Some(Blocked::Held),
                Some(AgentMode::Pull) => Some(Blocked::Worker {
                    agent,
                    ahead,
                    ahead_is_at_least,
                }),
                Some(AgentMode::Call) => match limit(&agent) {
                    Some(max_open) => Some(Blocked::OpenReplies { agent, max_open }),
                    None => Some(Blocked::Capacity {
                        adaptive: adapted(&agent),
                        slow_start: recovering(&agent),
                        agent,
                        ahead,
                        ahead_is_at_least,
                    }),
                },
            };
        }
    }
}

/// One queue that contains steps of the task.
struct QueuePosition {
    agent: AgentName,
    of_others: u64,
    /// The number of earlier steps of the task itself: they are claimed in order.
    of_this: u64,
}

/// Explains which limit of a key a step waits for, if its workflow or its agent has limits. `rule` divides the queue
/// of an agent into lanes.
pub async fn explain_key_limits(
    steps: &mut [StepView<'_>],
    task: &Task,
    rule: impl Fn(&AgentName) -> Option<Arc<LaneRule>>,
    reader: &Reader,
) -> Result<(), StoreError> {
    let of_workflow = blocking_limit_of_workflow(steps, task, reader).await?;
    let mut known: Vec<(AgentName, Option<Blocked>)> = Vec::new();
    for step in &mut *steps {
        let Some(Blocked::Capacity { agent, .. } | Blocked::Worker { agent, .. }) =
            &step.blocked_by
        else {
            continue;
        };
        let agent = agent.clone();
        if let Some((workflow, key, limit)) = &of_workflow {
            step.blocked_by = Some(Blocked::KeyLimit {
                agent,
                workflow: Some(workflow.clone()),
                key: key.clone(),
                by: limit.by.clone(),
                max_in_flight: limit.max_in_flight,
                rate: limit.rate.map(|rate| rate.to_string()),
            });
            continue;
        }
        if !known.iter().any(|(other, _)| *other == agent) {
            let Some(rule) = rule(&agent).filter(|rule| rule.has_limits()) else {
                continue;
            };
            if known.len() >= MOST_QUEUES {
                continue;
            }
            let Some(index) = task.find(step.name) else {
                continue;
            };
            let lane = rule.lane(task, index);
            let keys = rule.limited(&lane);
            let counted = rule.counted([&*lane].into_iter());
            let usage = reader.key_usage(&agent, counted.as_deref(), &keys).await?;
            let limits = keys.iter().filter_map(|key| Some((key, rule.limit(key)?)));
            let now = reader.now().await?.as_millis().saturating_mul(1_000_000);
            let (begin, _) = may_begin(limits, &usage.buckets, now);
            let blocking = rule.blocking(&lane, &usage.running, &begin);
            let blocked = blocking.map(|(limit, key)| Blocked::KeyLimit {
                agent: agent.clone(),
                workflow: None,
                key,
                by: limit.by.clone(),
                max_in_flight: limit.max_in_flight,
                rate: limit.rate.map(|rate| rate.to_string()),
            });
            known.push((agent.clone(), blocked));
        }
        let found = known.iter().find(|(other, _)| *other == agent);
        if let Some((_, Some(blocked))) = found {
            step.blocked_by = Some(blocked.clone());
        }
    }
    Ok(())
}

/// Returns the limit of the task's workflow that lets none of its steps begin now, with the text of its key.
async fn blocking_limit_of_workflow<'t>(
    steps: &[StepView<'_>],
    task: &'t Task,
    reader: &Reader,
) -> Result<Option<(WorkflowName, String, &'t KeyLimit)>, StoreError> {
    let waits = steps.iter().any(|step| {
        let blocked = step.blocked_by.as_ref();
        matches!(
            blocked,
            Some(Blocked::Capacity { .. } | Blocked::Worker { .. })
        )
    });
    let Some(workflow) = &task.details.workflow else {
        return Ok(None);
    };
    if !waits || !task.has_step_limits() {
        return Ok(None);
    }
    let limits = task.details.limited_steps();
    let ids: Vec<_> = limits.iter().map(|(key, ..)| key.id.clone()).collect();
    let usage = reader.step_key_usage(&workflow.name, &ids).await?;
    let now = reader.now().await?.as_millis().saturating_mul(1_000_000);
    let mut blocking = limits.into_iter().filter(|(key, ..)| {
        let running = usage.running.get(&key.id).copied().unwrap_or(0);
        let bucket = usage.buckets.get(&key.id).copied();
        key.room(running, bucket, now) == 0
    });
    let blocking = blocking.next();
    Ok(blocking.map(|(_, text, limit)| (workflow.name.clone(), text, limit)))
}

/// Counts the steps that come before those of this task. `lane` returns the lane of a step in the queue of an agent.
pub async fn count_ahead(
    steps: &mut [StepView<'_>],
    task: &Task,
    lane: impl Fn(&AgentName, StepIndex) -> String,
    reader: &Reader,
) -> Result<(), StoreError> {
    let mut agents: Vec<(AgentName, String)> = Vec::new();
    for step in &*steps {
        if let Some(Blocked::Capacity { agent, .. } | Blocked::Worker { agent, .. }) =
            &step.blocked_by
            && agents.len() < MOST_QUEUES
            && !agents.iter().any(|(other, _)| other == agent)
            && let Some(index) = task.find(step.name)
        {
            agents.push((agent.clone(), lane(agent, index)));
        }
    }
    if agents.is_empty() {
        return Ok(());
    }
    let counted = reader.ahead(task, &agents, MOST_AHEAD).await?;
    let queues = agents.into_iter().zip(counted);
    let mut queues: Vec<QueuePosition> = queues
        .map(|((agent, _), of_others)| QueuePosition {
            agent,
            of_others,
            of_this: 0,
        })
        .collect();
    for step in &mut *steps {
        if let Some(
            Blocked::Capacity {
                agent,
                ahead,
                ahead_is_at_least,
                ..
            }
            | Blocked::Worker {
                agent,
                ahead,
                ahead_is_at_least,
            },
        ) = &mut step.blocked_by
            && let Some(queue) = queues.iter_mut().find(|queue| queue.agent == *agent)
        {
            *ahead = Some(queue.of_others + queue.of_this);
            *ahead_is_at_least = queue.of_others >= MOST_AHEAD as u64;
            queue.of_this += 1;
        }
    }
    Ok(())
}
