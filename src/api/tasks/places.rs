//! The places of a task's steps in the queues of their agents: only the store knows them. To find them out is
//! one piece of work of a bounded size, however long the queues are and however many steps the task has; and
//! it is done where one task is read, never on the way of a submission.

use crate::{
    domain::{AgentName, Blocked, Task, TaskView},
    store::{Reader, StoreError},
};

/// Steps of other tasks that are counted in one queue.
const MOST_AHEAD: usize = 1000;
/// Queues that are counted for one task.
const MOST_QUEUES: usize = 4;

/// Says of steps that wait for no free place what they wait for: an agent that nobody has registered, or the
/// release of this instance.
pub fn tell_other_reasons(
    view: &mut TaskView<'_>,
    knows: impl Fn(&AgentName) -> bool,
    is_held: bool,
) {
    for step in &mut view.steps {
        if let Some(Blocked::Capacity { agent, .. }) = &step.blocked_by {
            if !knows(agent) {
                let agent = agent.clone();
                step.blocked_by = Some(Blocked::Agent { agent });
            } else if is_held {
                step.blocked_by = Some(Blocked::Held);
            }
        }
    }
}

/// One queue that steps of the task wait in.
struct Queue {
    agent: AgentName,
    of_others: u64,
    /// Steps of the task itself that were passed already: they are claimed in their order.
    of_this: u64,
}

/// Counts how many steps come before those of this task.
pub async fn count_ahead(
    view: &mut TaskView<'_>,
    task: &Task,
    reader: &dyn Reader,
) -> Result<(), StoreError> {
    let mut agents: Vec<AgentName> = Vec::new();
    for step in &view.steps {
        if let Some(Blocked::Capacity { agent, .. }) = &step.blocked_by
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
    let mut queues: Vec<Queue> = queues
        .map(|(agent, of_others)| Queue {
            agent,
            of_others,
            of_this: 0,
        })
        .collect();
    for step in &mut view.steps {
        if let Some(Blocked::Capacity {
            agent,
            ahead,
            ahead_is_at_least,
        }) = &mut step.blocked_by
            && let Some(queue) = queues.iter_mut().find(|queue| queue.agent == *agent)
        {
            *ahead = Some(queue.of_others + queue.of_this);
            *ahead_is_at_least = queue.of_others >= MOST_AHEAD as u64;
            queue.of_this += 1;
        }
    }
    Ok(())
}
