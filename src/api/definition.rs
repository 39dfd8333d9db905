//! What the documentation says of a step's definition. The domain reads it; these are its shapes only.
#![expect(dead_code, reason = "only shapes, for the OpenAPI document")]

use std::collections::BTreeMap;

use utoipa::ToSchema;

use crate::domain::{DeadlinePolicy, DurationText, Json, Method, OnUndo, Policy, UndoPolicy};

/// One step: a call to one remote service.
#[derive(ToSchema)]
#[schema(as = StepDefinition, example = json!({
    "name": "charge",
    "agent": "payments",
    "after": ["reserve"],
    "when": "input.total > 0",
    "request": {
        "method": "POST",
        "path": "/charges",
        "body": { "amount": "{{ input.total }}", "hold": "{{ steps.reserve.output.id }}" }
    },
    "complete_within": "10s",
    "max_failures": 3,
    "on_exhausted": { "extend": "10m", "times": 5, "then": "error" }
}))]
pub struct StepBody {
    /// 1 to 64 letters, digits, `_` or `-`, a letter first; unique within the task.
    #[schema(example = "charge")]
    name: String,
    /// A registered agent; or give `url`.
    #[schema(example = "payments")]
    agent: Option<String>,
    /// Where to call without a registered agent, if the settings allow it.
    #[schema(example = "http://127.0.0.1:9000")]
    url: Option<String>,
    /// The steps that must be done before this one. Left out: the step above. Empty: none.
    #[schema(example = json!(["reserve"]))]
    after: Option<Vec<String>>,
    /// An expression. False when it is this step's turn: the step is skipped.
    #[schema(example = "input.total > 0")]
    when: Option<String>,
    request: Option<StepRequest>,
    /// The step's complete-by, counted from each claim: 100ms to 30d.
    #[schema(default = "30s", example = "10s")]
    complete_within: Option<DurationText>,
    /// How many attempts may run out of time before `on_exhausted` decides.
    #[schema(default = 3, minimum = 0, maximum = 1000, example = 3)]
    max_failures: Option<u32>,
    on_exhausted: Option<OnExhaustedBody>,
    /// What follows when the service refuses for good: `error` needs an operator, `undo` undoes the
    /// whole task, `skip` goes on without the step.
    #[schema(default = "error", example = "undo")]
    on_permanent: Option<Policy>,
    /// What undoes the step, should the task be undone after it took effect.
    undo: Option<UndoBody>,
    /// Asks the service whether an attempt of unknown outcome took effect.
    probe: Option<ProbeBody>,
    /// What happens to a call under way when the task is to be undone: `wait` for it until its
    /// complete-by, so that its outcome is known, or `drop` it at once.
    #[schema(default = "wait", example = "wait")]
    on_undo: Option<OnUndo>,
    /// The point of no return: once it is done the task is only driven forward and cannot be undone.
    #[schema(default = false)]
    pivot: Option<bool>,
}

/// What undoes a step. Its expressions also see `output`, the step's own, and `request`, the step's
/// with its `method`, `path`, `headers` and `body`.
#[derive(ToSchema)]
#[schema(as = Undo, example = json!({
    "request": { "method": "DELETE", "path": "/charges/{{ output.id }}" },
    "complete_within": "30s"
}))]
pub struct UndoBody {
    request: StepRequest,
    #[schema(default = "30s", example = "30s")]
    complete_within: Option<DurationText>,
    #[schema(default = 3, minimum = 0, maximum = 1000, example = 3)]
    max_failures: Option<u32>,
    /// As for a step, without `undo`.
    on_exhausted: Option<OnExhaustedBody>,
    #[schema(default = "error", example = "error")]
    on_permanent: Option<UndoPolicy>,
}

/// A GET that says whether a step took effect. Its expressions also see `response`, with its `status`
/// and `body`.
#[derive(ToSchema)]
#[schema(as = Probe, example = json!({
    "request": { "path": "/charges?order={{ task.key }}" },
    "outcome": "'done' if response.body.total > 0 else 'not_done'",
    "output": "response.body.items[0]"
}))]
pub struct ProbeBody {
    request: StepRequest,
    /// Gives `done`, `not_done` or `in_progress`. Left out: 2xx is done, 404 and 410 are not.
    #[schema(example = "'done' if response.body.total > 0 else 'not_done'")]
    outcome: Option<String>,
    /// The step's output where it is done. Left out: the body of the answer.
    #[schema(example = "response.body.items[0]")]
    output: Option<String>,
    #[schema(default = "10s", example = "10s")]
    complete_within: Option<DurationText>,
}

/// What is said once for all steps that say nothing else.
#[derive(ToSchema)]
#[schema(as = Policies)]
pub struct PoliciesBody {
    on_exhausted: Option<OnExhaustedBody>,
    #[schema(default = "error", example = "undo")]
    on_permanent: Option<Policy>,
    /// What follows when the task's own complete-by passes.
    #[schema(default = "error", example = "undo")]
    on_deadline: Option<DeadlinePolicy>,
}

/// The request that a step makes. `{{ … }}` is an expression over `input`, `task` and
/// `steps.<name>.output`; filling a whole string it keeps its type.
#[derive(ToSchema)]
pub struct StepRequest {
    #[schema(default = "POST", example = "POST")]
    method: Option<Method>,
    /// Appended to the agent's endpoint, or to `url`. Starts with `/`.
    #[schema(example = "/charges/{{ input.id }}")]
    path: Option<String>,
    #[schema(example = json!({"x-tenant": "{{ task.labels.tenant }}"}))]
    headers: Option<BTreeMap<String, String>>,
    /// Any JSON. Left out: the task's input, for POST, PUT and PATCH.
    #[schema(value_type = Json, required = false, example = json!({"amount": "{{ input.total }}"}))]
    body: Option<String>,
}

/// What happens when more attempts failed than `max_failures`.
#[derive(ToSchema)]
#[schema(as = OnExhausted, example = "error")]
#[serde(untagged)]
pub enum OnExhaustedBody {
    /// `error`: an operator is needed. `undo`: the whole task is undone. `skip`: it goes on without.
    Word(Policy),
    Extend(Extension),
}

/// Wait an extended period and try again.
#[derive(ToSchema)]
#[schema(as = Extend)]
pub struct Extension {
    /// How long to wait.
    #[schema(example = "10m")]
    extend: DurationText,
    /// How often at most.
    #[schema(default = 1, minimum = 1, maximum = 1000, example = 5)]
    times: Option<u32>,
    /// What then.
    #[schema(default = "error", example = "error")]
    then: Option<Policy>,
}
