//! The positions of a task's steps in the queues of their agents, which only the store knows. The cost is bounded,
//! however long the queues are and however many steps the task has. Only a read of a single task pays it, never a
//! submission.

use crate::{
    agent::Stopped,
    domain::{AgentMode, AgentName, Blocked, Task, TaskView},
    store::{Reader, StoreError},
};

/// The most steps of other tasks that are counted in one queue.
const MOST_AHEAD: usize = 1000;
/// The most queues that are counted for one task.
const MOST_QUEUES: usize = 4;

/// Explains what a step waits for if it does not wait for a free slot: an agent that is not registered, a worker, the
/// release of this instance, the end of a pause or a breaker to close (`stopped`), or replies of the agent where they
/// are limited (`limit`).
pub fn explain_other_reasons(
    view: &mut TaskView<'_>,
    mode: impl Fn(&AgentName) -> Option<AgentMode>,
    limit: impl Fn(&AgentName) -> Option<u32>,
    stopped: impl Fn(&AgentName) -> Option<Stopped>,
    is_held: bool,
) {
    for step in &mut view.steps {
        if let Some(Blocked::Capacity {
            agent,
            ahead,
            ahead_is_at_least,
        }) = &step.blocked_by
        {
            let (agent, ahead) = (agent.clone(), *ahead);
            let ahead_is_at_least = *ahead_is_at_least;
            let mode = mode(&agent);
            if let Some(stopped) = mode.filter(|_| !is_held).and_then(|_| stopped(&agent)) {
                step.blocked_by = Some(match stopped {
                    Stopped::Paused(pause) => Blocked::AgentPaused {
                        agent,
                        until: pause.until,
                        message: pause.reason,
                    },
                    Stopped::Throttled(throttle) => Blocked::Throttled {
                        agent,
                        until: throttle.until,
                        message: throttle.reason,
                    },
                    Stopped::Rate(limit) => Blocked::RateLimit {
                        agent,
                        rate: limit.rate.to_string(),
                    },
                    Stopped::Secret(message) => Blocked::Secret { agent, message },
                    Stopped::Breaker { until, reason } => Blocked::Breaker {
                        agent,
                        until,
                        message: reason,
                    },
                });
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
                    None => continue,
                },
            };
        }
    }
}

/// One queue that contains steps of the task.
struct QueuePosition {
    agent: AgentName,
    of_others: u64,
    /// Steps of the task itself that come earlier: they are claimed in order.
    of_this: u64,
}

/// Counts how many steps come before those of this task.
pub async fn count_ahead(
    view: &mut TaskView<'_>,
    task: &Task,
    reader: &Reader,
) -> Result<(), StoreError> {
    let mut agents: Vec<AgentName> = Vec::new();
    for step in &view.steps {
        if let Some(Blocked::Capacity { agent, .. } | Blocked::Worker { agent, .. }) =
            &step.blocked_by
            && agents.len() < MOST_QUEUES
            && !agents.contains(agent)
        {
            agents.push(agent.clone());
        }
    }
    if agents.is_empty() {
        return Ok(());
    }
    let counted = reader.ahead(task, &agents, MOST_AHEAD).await?;
    let queues = agents.into_iter().zip(counted);
    let mut queues: Vec<QueuePosition> = queues
        .map(|(agent, of_others)| QueuePosition {
            agent,
            of_others,
            of_this: 0,
        })
        .collect();
    for step in &mut view.steps {
        if let Some(
            Blocked::Capacity {
                agent,
                ahead,
                ahead_is_at_least,
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
