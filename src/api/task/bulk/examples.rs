//! Examples of the effect of a bulk command: a task before and after it, with the steps that change.

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    api::App,
    domain::{
        task::{PatchedBody, StepStatus, Task, TaskStatus},
        template::Payload,
        values::{StepIndex, TaskId, shortened},
    },
};

/// The most examples in a response.
pub(super) const MOST_EXAMPLES: usize = 3;
/// The most steps of an example on each side.
const MOST_STEPS: usize = 20;

/// The most bytes of a request body in an example.
const LONGEST_BODY: usize = 4096;

/// A task that would accept the command. Of a clone, `after` is the new task.
#[derive(Serialize, ToSchema)]
pub struct BulkExample {
    #[schema(value_type = uuid::Uuid)]
    task: TaskId,
    #[schema(required)]
    key: Option<String>,
    before: BulkExampleSide,
    after: BulkExampleSide,
}

/// A task before or after the command.
#[derive(Serialize, ToSchema)]
pub struct BulkExampleSide {
    #[schema(value_type = TaskStatus)]
    state: &'static str,
    /// True while an operator's pause holds the task: one in error stays so, and is paused too. Left out otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    paused: bool,
    /// The steps that the command changes, at most 20.
    #[schema(max_items = 20)]
    steps: Vec<BulkExampleStep>,
    /// With `patch`: the first 4096 bytes of the request body, with the secrets of agents hidden.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "{\"amount\":30}")]
    request_body: Option<String>,
}

/// A step before or after the command.
#[derive(Serialize, ToSchema)]
pub struct BulkExampleStep {
    #[schema(example = "charge")]
    name: String,
    #[schema(value_type = StepStatus)]
    state: &'static str,
}

/// The states of a task and its steps.
pub(super) struct ExampleState {
    state: &'static str,
    paused: bool,
    steps: Vec<(StepIndex, StepStatus)>,
}

impl ExampleState {
    pub fn of(task: &Task) -> Self {
        let steps = task.own_indexes();
        Self {
            state: task.status().as_str(),
            paused: task.paused && !task.is_ended(),
            steps: steps.map(|step| (step, task.step(step).status())).collect(),
        }
    }

    fn step(&self, step: StepIndex) -> Option<StepStatus> {
        let mut steps = self.steps.iter();
        steps.find(|(at, _)| *at == step).map(|(_, status)| *status)
    }
}

impl BulkExample {
    pub fn new(
        app: &App,
        task: &Task,
        before: &ExampleState,
        bodies: Option<&PatchedBody>,
    ) -> Self {
        let after = ExampleState::of(task);
        let changed = after
            .steps
            .iter()
            .filter(|(step, status)| before.step(*step) != Some(*status));
        let changed: Vec<_> = changed.take(MOST_STEPS).map(|(step, _)| *step).collect();
        let side = |of: &ExampleState, body: Option<&Payload>| BulkExampleSide {
            request_body: body.map(|body| shown(app, body)),
            state: of.state,
            paused: of.paused,
            steps: changed
                .iter()
                .filter_map(|step| {
                    Some(BulkExampleStep {
                        name: task.definition(*step).name.to_string(),
                        state: of.step(*step)?.as_str(),
                    })
                })
                .collect(),
        };
        Self {
            task: task.id(),
            key: task.details.key.as_deref().map(str::to_owned),
            before: side(before, bodies.map(|bodies| &bodies.before)),
            after: side(&after, bodies.map(|bodies| &bodies.after)),
        }
    }
}

impl BulkExample {
    /// Returns a task before it is cloned, and the clone as it begins.
    pub fn of_clone(original: &Task, clone: &Task) -> Self {
        let side = |task: &Task| BulkExampleSide {
            state: task.status().as_str(),
            paused: false,
            steps: Vec::new(),
            request_body: None,
        };
        Self {
            task: original.id(),
            key: original.details.key.as_deref().map(str::to_owned),
            before: side(original),
            after: side(clone),
        }
    }
}

/// Returns the beginning of a request body without the secrets of agents.
fn shown(app: &App, body: &Payload) -> String {
    let text = body.as_json().to_owned();
    let text = match app.agents.all_secrets() {
        Some(redactor) => redactor.hide_in_text(text),
        None => text,
    };
    shortened(&text, LONGEST_BODY)
}
