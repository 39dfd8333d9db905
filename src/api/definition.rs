//! The shapes of a step's definition, for the OpenAPI document. The domain parses definitions.
#![expect(dead_code, reason = "only shapes, for the OpenAPI document")]

use std::collections::BTreeMap;

use utoipa::ToSchema;

use crate::api::openapi::words::{
    AskFieldTypeSchema, DeadlinePolicySchema, DurationSchema, JsonSchema, MethodSchema,
    OnChildErrorSchema, OnUndoSchema, PolicySchema, RepeatOutputSchema, ReplyModeSchema,
    UndoPolicySchema,
};

/// One step: a call to one remote service, a wait, a signal that is awaited, or a task of its own.
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
    /// 1 to 64 letters, digits, `_` or `-`, starting with a letter; unique within the task.
    #[schema(example = "charge")]
    name: String,
    /// A registered agent; alternatively set `url`, `wait`, `signal` or `task`.
    #[schema(example = "payments")]
    agent: Option<String>,
    /// The URL to call without a registered agent, if the settings allow it.
    #[schema(example = "http://127.0.0.1:9000")]
    url: Option<String>,
    /// The step calls no service: it is processed when this time has come. Of the other fields it can only have `name`,
    /// `after`, `when` and `on_permanent`, which applies if an expression cannot be evaluated.
    wait: Option<WaitBody>,
    /// The step calls no service: it is processed when its signal comes, `POST /v1/tasks/{id}/signals/{name}`. It can have the
    /// same other fields as with `wait`.
    signal: Option<SignalBody>,
    /// The step is done by a task of its own, its child: it is processed when that is. It can have the same other fields as with
    /// `wait`, and `complete_within` (the time limit of the child) and `pivot`.
    task: Option<StepTaskBody>,
    /// The step is run for each item of a list: an array, or an expression that gives one, of at most 10,000 items. Each item is a
    /// step of its own, such as `import[17]`; its expressions can also use `item`, and `index` from 0. The step's output is the
    /// list of their outputs.
    #[schema(value_type = JsonSchema, required = false, example = json!("{{ steps.list.output.items }}"))]
    for_each: Option<String>,
    /// With `for_each`: the most items that run at once. Default: 10.
    #[schema(minimum = 1, maximum = 1000, example = 10)]
    max_parallel: Option<u32>,
    /// With `for_each`: what happens after an item has failed permanently, instead of `on_permanent` and of what `on_exhausted` says
    /// in the end. `error`: the others go on, and the step is in error once all have ended. `skip`: it counts as skipped, its
    /// output is null. `undo`: the whole task is undone at once.
    #[schema(example = "skip")]
    on_item_error: Option<PolicySchema>,
    /// The step is run again until a condition is true. Each time is an iteration, a step of its own, such as `poll[3]`; its
    /// expressions can also use `previous`, the output of the one before, and `index` from 0. Not together with `for_each`.
    repeat: Option<RepeatBody>,
    /// The steps that must be done before this one. Default: the previous step in the list. An empty list: none.
    #[schema(example = json!(["reserve"]))]
    after: Option<Vec<String>>,
    /// A condition, evaluated when the step becomes ready. If false, the step is skipped.
    #[schema(example = "input.total > 0")]
    when: Option<String>,
    request: Option<StepRequest>,
    /// The time limit of the step, counted from each claim: 100ms to 30d.
    #[schema(default = "30s", example = "10s")]
    complete_within: Option<DurationSchema>,
    /// How many attempts may run out of time before `on_exhausted` applies.
    #[schema(default = 3, minimum = 0, maximum = 1000, example = 3)]
    max_failures: Option<u32>,
    on_exhausted: Option<OnExhaustedBody>,
    /// What happens after a permanent error: `error` stops the task until an operator acts, `undo` undoes the whole
    /// task, `skip` continues without the step.
    #[schema(default = "error", example = "undo")]
    on_permanent: Option<PolicySchema>,
    /// The action that undoes the step if the task is undone after the step took effect.
    undo: Option<UndoBody>,
    /// A request that asks the service whether an attempt with an unknown outcome took effect.
    probe: Option<ProbeBody>,
    /// What happens to a call in flight when the task is to be undone: `wait` until the call's complete-by, so that
    /// its outcome is known, or `drop` it at once.
    #[schema(default = "wait", example = "wait")]
    on_undo: Option<OnUndoSchema>,
    /// How the service replies, if not with its response.
    #[schema(default = "response", example = "callback")]
    reply: Option<ReplyRuleBody>,
    /// While the service has promised a later reply: if it sends no heartbeat for so long, that is a failure. 1s to
    /// 30d.
    #[schema(example = "30s")]
    heartbeat_within: Option<DurationSchema>,
    /// The request that asks the service to cancel its work, with `on_undo: drop`: sent when an undo drops a promised
    /// reply.
    cancel: Option<CancelBody>,
    /// The point of no return: once this step is done, the task can no longer be undone, only completed.
    #[schema(default = false)]
    pivot: Option<bool>,
}

/// How long a step waits: exactly one of the fields.
#[derive(ToSchema)]
#[schema(as = Wait, example = json!({ "for": "1h" }))]
pub struct WaitBody {
    /// A duration that begins when the step is ready, or an expression that gives one; at most 3650d.
    #[schema(example = "1h")]
    r#for: Option<String>,
    /// A time in RFC 3339, or an expression that gives one; at most 3650d away. If it has passed, the step is processed at
    /// once.
    #[schema(example = "{{ input.departure }}")]
    until: Option<String>,
}

/// Until when a step is repeated.
#[derive(ToSchema)]
#[schema(as = Repeat, example = json!({ "until": "output.state == 'done'", "at_most": 20, "every": "30s" }))]
pub struct RepeatBody {
    /// A condition, evaluated after each iteration. If true, the step is processed. It can also use `output`, that of the
    /// iteration, `previous` and `index`.
    #[schema(required, example = "output.state == 'done'")]
    until: String,
    /// The most iterations.
    #[schema(required, minimum = 1, maximum = 1000, example = 20)]
    at_most: u32,
    /// From the end of an iteration to the begin of the next: 0s to 3650d.
    #[schema(default = "0s", example = "30s")]
    every: Option<DurationSchema>,
    /// What happens after `at_most` iterations. `skip`: the step is skipped, with its output. Default: as the `on_exhausted` of
    /// the step or the task says in the end.
    #[schema(example = "undo")]
    on_exhausted: Option<PolicySchema>,
    /// The output of the step: that of the last iteration, or the list of all.
    #[schema(default = "last", example = "all")]
    output: Option<RepeatOutputSchema>,
}

/// A signal that a step awaits. Its payload is the step's output.
#[derive(ToSchema)]
#[schema(as = Signal, example = json!({ "within": "3d", "on_timeout": "undo" }))]
pub struct SignalBody {
    /// How long it is awaited from when the step is ready: 1s to 3650d.
    #[schema(example = "3d")]
    within: DurationSchema,
    /// What happens if it does not come by then.
    #[schema(default = "error", example = "undo")]
    on_timeout: Option<PolicySchema>,
    /// A JSON Schema (2020-12) that the payload must match, as for `input_schema`: otherwise the signal is refused.
    #[schema(value_type = JsonSchema, required = false, example = json!({"type": "object", "required": ["approved"]}))]
    schema: Option<String>,
    /// A condition over `signal` (the payload), `input`, `task` and `steps.<name>.output`: a signal for which it is false is
    /// refused.
    #[schema(example = "signal.order == input.order")]
    r#match: Option<String>,
    /// People are asked, and their decision is the signal. Not together with `schema` and `match`.
    ask: Option<AskBody>,
}

/// What people are asked. Each of them gets a link of their own, with which they decide once, within `within`.
#[derive(ToSchema)]
#[schema(as = AskRule, example = json!({ "title": "Approve the refund of {{ input.amount }} EUR?", "of": ["ops@example.com"] }))]
pub struct AskBody {
    /// One line, with expressions: at most 200 characters when it is rendered.
    #[schema(example = "Approve the refund of {{ input.amount }} EUR?")]
    title: String,
    /// Plain text below it, with expressions: at most 4000 characters when it is rendered.
    #[schema(example = "Order {{ task.key }}: {{ input.reason }}")]
    text: Option<String>,
    /// What can be chosen. The first choice is the approval, which `approvals` counts; any other one decides at once.
    /// Default: `approve` and `reject`.
    #[schema(min_items = 1, max_items = 10, example = json!(["approve", "reject"]))]
    choices: Option<Vec<String>>,
    /// What is asked besides the choice.
    #[schema(max_items = 20)]
    fields: Option<Vec<AskFieldBody>>,
    /// The people: addresses or names, with expressions, each of which may give a list; or one expression that gives it. 1
    /// to 20 different ones.
    #[schema(value_type = JsonSchema, example = json!(["ops@example.com"]))]
    of: String,
    /// So many different people must choose the first choice.
    #[schema(default = 1, minimum = 1, maximum = 20)]
    approvals: Option<u32>,
    /// Who gets the links: names of `[[alert_webhooks]]` and of `[[receivers]]` with a `url`, and `reply_to` for that of the task.
    /// Default: all alert webhooks; and `reply_to`, if the steps are the submission's own and not a workflow's.
    #[schema(min_items = 1, max_items = 10, example = json!(["mailer"]))]
    send_to: Option<Vec<String>>,
}

/// A field of the page.
#[derive(ToSchema)]
#[schema(as = AskField, example = json!({ "name": "amount", "type": "number", "label": "Amount to refund" }))]
pub struct AskFieldBody {
    /// Of the value in the step's output: letters, digits, `_` and `-`.
    #[schema(example = "amount", max_length = 40)]
    name: String,
    #[schema(example = "Amount to refund", max_length = 200)]
    label: Option<String>,
    #[serde(rename = "type")]
    #[schema(rename = "type", default = "string", example = "number")]
    kind: Option<AskFieldTypeSchema>,
    /// Whether it must be filled in, whatever is chosen; a boolean must be ticked.
    #[schema(default = false)]
    required: Option<bool>,
    /// Of the type `choice`: what can be chosen.
    #[schema(max_items = 50)]
    choices: Option<Vec<String>>,
}

/// The task that a step has, its child. The child has the priority and the trace of its parent, and no more time than that has
/// left.
#[derive(ToSchema)]
#[schema(as = StepTask, example = json!({ "workflow": "ship", "input": { "order": "{{ input.order }}" } }))]
pub struct StepTaskBody {
    /// A registered workflow. Its `output` is the output of the step.
    #[schema(example = "ship")]
    workflow: String,
    /// The workflow's version; the default is the active one when the step begins.
    #[schema(minimum = 1, example = 3)]
    version: Option<u32>,
    /// JSON whose strings may have expressions; the default is null.
    #[schema(value_type = JsonSchema, required = false, example = json!({"order": "{{ input.order }}"}))]
    input: Option<String>,
    /// The key of the child, which may have expressions.
    #[schema(example = "parcel-{{ input.order }}")]
    key: Option<String>,
    /// Up to 32 labels, whose values may have expressions.
    #[schema(example = json!({"customer": "{{ task.labels.customer }}"}))]
    labels: Option<BTreeMap<String, String>>,
    /// What happens while the child is in error.
    #[schema(default = "wait", example = "undo")]
    on_error: Option<OnChildErrorSchema>,
}

/// Asks a service to cancel work whose reply is no longer awaited.
#[derive(ToSchema)]
#[schema(as = Cancel, example = json!({ "request": { "path": "/jobs/{{ task.id }}" } }))]
pub struct CancelBody {
    /// Default: a DELETE to the address at which the service is polled. The default method is DELETE.
    request: Option<StepRequest>,
}

/// How a service replies.
#[derive(ToSchema)]
#[schema(as = ReplyRule, example = "callback")]
#[serde(untagged)]
pub enum ReplyRuleBody {
    Word(ReplyModeSchema),
    Poll(PollReplyBody),
}

/// The service is polled for its reply.
#[derive(ToSchema)]
#[schema(as = PollReply)]
pub struct PollReplyBody {
    poll: PollRuleBody,
}

/// How a service is polled: at the address in `Operation-Location`, or in `Location` or `Content-Location` of a 202; a
/// step whose method is GET without such an address by its own request. Its expressions can also use `response`, with
/// its `status` and `body`.
#[derive(ToSchema)]
#[schema(as = PollRule, example = json!({
    "until": "response.body.status == 'succeeded'",
    "failed": "response.body.status == 'failed'",
    "output": "response.body.result",
    "every": "5s"
}))]
pub struct PollRuleBody {
    /// True: the reply is there.
    #[schema(example = "response.body.status == 'succeeded'")]
    until: String,
    /// True: the service has failed permanently. Evaluated before `until`.
    #[schema(example = "response.body.status == 'failed'")]
    failed: Option<String>,
    /// The step's output. Default: the body of the response.
    #[schema(example = "response.body.result")]
    output: Option<String>,
    /// The time between two polls, 1s to 24h. `Retry-After` of a response can make it longer.
    #[schema(default = "5s", example = "5s")]
    every: Option<DurationSchema>,
}

/// The action that undoes a step. Its expressions can also use the step's own `output`, and `request`: the step's
/// rendered `method`, `path`, `headers` and `body`.
#[derive(ToSchema)]
#[schema(as = Undo, example = json!({
    "request": { "method": "DELETE", "path": "/charges/{{ output.id }}" },
    "complete_within": "30s"
}))]
pub struct UndoBody {
    request: StepRequest,
    #[schema(default = "30s", example = "30s")]
    complete_within: Option<DurationSchema>,
    #[schema(default = 3, minimum = 0, maximum = 1000, example = 3)]
    max_failures: Option<u32>,
    on_exhausted: Option<OnUndoExhaustedBody>,
    #[schema(default = "error", example = "error")]
    on_permanent: Option<UndoPolicySchema>,
    /// How the service replies, if not with its response.
    #[schema(default = "response", example = "callback")]
    reply: Option<ReplyRuleBody>,
    #[schema(example = "30s")]
    heartbeat_within: Option<DurationSchema>,
}

/// A GET that finds out whether a step took effect. Its expressions can also use `response`, with its `status` and
/// `body`.
#[derive(ToSchema)]
#[schema(as = Probe, example = json!({
    "request": { "path": "/charges?order={{ task.key }}" },
    "outcome": "'done' if response.body.total > 0 else 'not_done'",
    "output": "response.body.items[0]"
}))]
pub struct ProbeBody {
    request: StepRequest,
    /// Returns `done`, `not_done` or `in_progress`. Default: 2xx means done, 404 and 410 mean not done.
    #[schema(example = "'done' if response.body.total > 0 else 'not_done'")]
    outcome: Option<String>,
    /// The step's output if it is done. Default: the body of the response.
    #[schema(example = "response.body.items[0]")]
    output: Option<String>,
    #[schema(default = "10s", example = "10s")]
    complete_within: Option<DurationSchema>,
}

/// Defaults for all steps that do not set their own.
#[derive(ToSchema)]
#[schema(as = Policies)]
pub struct PoliciesBody {
    on_exhausted: Option<OnExhaustedBody>,
    #[schema(default = "error", example = "undo")]
    on_permanent: Option<PolicySchema>,
    /// What happens when the task's own complete-by passes.
    #[schema(default = "error", example = "undo")]
    on_deadline: Option<DeadlinePolicySchema>,
    /// How long a task can still be undone after it was processed, up to ten years. Default: as long as it is kept.
    #[schema(example = "30d")]
    undoable_for: Option<DurationSchema>,
    /// Any JSON with expressions over `input`, `task` and `steps.<name>.output`: the `output` of the task once it is processed.
    #[schema(value_type = JsonSchema, required = false, example = json!({"charge": "{{ steps.charge.output.id }}"}))]
    output: Option<String>,
    /// A JSON Schema (2020-12) that the input of tasks must match. `$ref` leads to places in it, and patterns have neither
    /// lookaround nor backreferences. At most 64 KiB.
    #[schema(value_type = JsonSchema, required = false, example = json!({"type": "object", "required": ["sku"], "properties": {"sku": {"type": "string"}}}))]
    input_schema: Option<String>,
}

/// The HTTP request of a step. `{{ … }}` is an expression over `input`, `task` and `steps.<name>.output`; an
/// expression that is a whole string keeps its type.
#[derive(ToSchema)]
pub struct StepRequest {
    #[schema(default = "POST", example = "POST")]
    method: Option<MethodSchema>,
    /// Appended to the agent's endpoint, or to `url`. Starts with `/`.
    #[schema(example = "/charges/{{ input.id }}")]
    path: Option<String>,
    #[schema(example = json!({"x-tenant": "{{ task.labels.tenant }}"}))]
    headers: Option<BTreeMap<String, String>>,
    /// Any JSON. Default for POST, PUT and PATCH: the task's input.
    #[schema(value_type = JsonSchema, required = false, example = json!({"amount": "{{ input.total }}"}))]
    body: Option<String>,
}

/// What happens when more than `max_failures` attempts have failed.
#[derive(ToSchema)]
#[schema(as = OnExhausted, example = "error")]
#[serde(untagged)]
pub enum OnExhaustedBody {
    /// `error`: an operator must act. `undo`: the whole task is undone. `skip`: the task continues without the
    /// step.
    Word(PolicySchema),
    Extend(Extension),
}

/// What happens when more than `max_failures` attempts of an undo have failed.
#[derive(ToSchema)]
#[schema(as = OnUndoExhausted, example = "error")]
#[serde(untagged)]
pub enum OnUndoExhaustedBody {
    /// `error`: an operator must act. `skip`: the undo continues without this step's.
    Word(UndoPolicySchema),
    Extend(UndoExtension),
}

/// Wait for an extended period and try the undo again.
#[derive(ToSchema)]
#[schema(as = UndoExtend)]
pub struct UndoExtension {
    /// The length of the period.
    #[schema(example = "10m")]
    extend: DurationSchema,
    /// The most extensions.
    #[schema(default = 1, minimum = 1, maximum = 1000, example = 5)]
    times: Option<u32>,
    /// What happens after the last extension.
    #[schema(default = "error", example = "error")]
    then: Option<UndoPolicySchema>,
}

/// Wait for an extended period and try again.
#[derive(ToSchema)]
#[schema(as = Extend)]
pub struct Extension {
    /// The length of the period.
    #[schema(example = "10m")]
    extend: DurationSchema,
    /// The most extensions.
    #[schema(default = 1, minimum = 1, maximum = 1000, example = 5)]
    times: Option<u32>,
    /// What happens after the last extension.
    #[schema(default = "error", example = "error")]
    then: Option<PolicySchema>,
}
