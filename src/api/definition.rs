//! What the documentation says of a step's definition. The domain reads it; these are its shapes only.
#![expect(dead_code, reason = "only shapes, for the OpenAPI document")]

use std::collections::BTreeMap;

use utoipa::ToSchema;

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
    complete_within: Option<String>,
    /// How many attempts may run out of time before `on_exhausted` decides.
    #[schema(default = 3, minimum = 0, maximum = 1000, example = 3)]
    max_failures: Option<u32>,
    on_exhausted: Option<OnExhaustedBody>,
    /// What follows when the service refuses for good: `error` needs an operator, `skip` goes on.
    #[schema(default = "error", example = "error")]
    on_permanent: Option<String>,
}

/// The request that a step makes. `{{ … }}` is an expression over `input`, `task` and
/// `steps.<name>.output`; filling a whole string it keeps its type.
#[derive(ToSchema)]
pub struct StepRequest {
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
    #[schema(default = "POST", example = "POST")]
    method: Option<String>,
    /// Appended to the agent's endpoint, or to `url`. Starts with `/`.
    #[schema(example = "/charges/{{ input.id }}")]
    path: Option<String>,
    #[schema(example = json!({"x-tenant": "{{ task.labels.tenant }}"}))]
    headers: Option<BTreeMap<String, String>>,
    /// Any JSON. Left out: the task's input, for POST, PUT and PATCH.
    #[schema(value_type = Option<Object>, example = json!({"amount": "{{ input.total }}"}))]
    body: Option<String>,
}

/// What happens when more attempts failed than `max_failures`.
#[derive(ToSchema)]
#[schema(as = OnExhausted, example = "error")]
#[serde(untagged)]
pub enum OnExhaustedBody {
    /// `error`: an operator is needed.
    Word(String),
    Extend(Extension),
}

/// Wait an extended period and try again.
#[derive(ToSchema)]
#[schema(as = Extend)]
pub struct Extension {
    /// How long to wait.
    #[schema(example = "10m")]
    extend: String,
    /// How often at most.
    #[schema(default = 1, minimum = 1, maximum = 1000, example = 5)]
    times: Option<u32>,
    /// What then: `error`.
    #[schema(default = "error", example = "error")]
    then: Option<String>,
}
