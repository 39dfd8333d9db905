//! Counts how many steps of each agent this process has completed, and how long they took. The predictions read it from
//! time to time; the writer only counts.

use parking_lot::Mutex;

use crate::domain::{
    task::{StepState, Task},
    values::{AgentName, Attempt, StepIndex},
    view::CompleteSteps,
};
use crate::store::CountedSteps;

/// Bounds the agents, because steps with addresses of their own could name any number of them.
const MOST_AGENTS: usize = 1000;
const FIRST: Attempt = Attempt(1);

#[derive(Default)]
pub struct StepCounter(Mutex<CountedSteps>);

impl StepCounter {
    /// Counts those of these steps of a saved task that were completed by a response.
    pub(in crate::store) fn count(&self, task: &Task, steps: &[StepIndex]) {
        for index in steps {
            let step = task.step(*index);
            let StepState::Processed { at, .. } = &step.state else {
                continue;
            };
            let first = step.started_at.filter(|_| step.attempt == FIRST);
            let took = first.map(|claimed| at.since(claimed));
            if let Some(agent) = task.definition(*index).agent() {
                self.add(agent, |count| count.add(took));
            }
        }
    }

    fn add(&self, agent: &AgentName, add: impl FnOnce(&mut CompleteSteps)) {
        let mut counted = self.0.lock();
        if let Some(count) = counted.get_mut(agent) {
            add(count);
            return;
        }
        // Agents that still complete steps are added again soon.
        if counted.len() >= MOST_AGENTS {
            counted.clear();
        }
        add(counted.entry(agent.clone()).or_default());
    }

    pub fn counted(&self) -> CountedSteps {
        self.0.lock().clone()
    }
}
