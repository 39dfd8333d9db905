//! The places in line of a task's steps: only the store knows them.

use crate::{
    domain::{AgentName, Blocked, StepRef, Task, TaskView},
    store::{Reader, StoreError},
};

/// Finds out the places in line of steps that wait for a free place.
pub async fn with_places<'a>(
    mut view: TaskView<'a>,
    task: &Task,
    reader: &dyn Reader,
    knows: impl Fn(&AgentName) -> bool,
) -> Result<TaskView<'a>, StoreError> {
    for (index, view) in task.indexes().zip(&mut view.steps) {
        if let Some(Blocked::Capacity { agent, ahead }) = &mut view.blocked_by {
            if knows(agent) {
                let step = StepRef {
                    task: task.id(),
                    step: index,
                };
                *ahead = reader.place_in_line(task, step).await?;
            } else {
                let agent = agent.clone();
                view.blocked_by = Some(Blocked::Agent { agent });
            }
        }
    }
    Ok(view)
}
