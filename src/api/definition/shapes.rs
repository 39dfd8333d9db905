//! The shapes of a step's definition, for the OpenAPI document. The domain parses definitions.
#![expect(dead_code, reason = "only shapes, for the OpenAPI document")]

use std::collections::BTreeMap;

use utoipa::ToSchema;

use crate::api::openapi::words::{
    AskFieldTypeSchema, DeadlinePolicySchema, DurationSchema, EarlySignalSchema, JsonSchema,
    MethodSchema, OnChildErrorSchema, OnParentUndoSchema, OnUndoSchema, PolicySchema,
    RaceRestSchema, RepeatOutputSchema, ReplyModeSchema, StatusPoliciesSchema, StopStateSchema,
    UndoPolicySchema, UndoStatusPoliciesSchema,
};

/// One step: a call to one remote service, a wait, a signal that is awaited, a task of its own, values, the end of the task, or a
/// block of steps.
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
    #[schema(
        example = "charge",
        min_length = 1,
        max_length = 64,
        pattern = "^[A-Za-z][A-Za-z0-9_-]*$"
    )]
    name: String,
    /// A registered agent; alternatively set `url`, `wait`, `signal`, `task`, `set`, `stop`, `steps` or `switch`.
    #[schema(example = "payments")]
    agent: Option<AgentTargetBody>,
    /// The URL to call without a registered agent, if the settings allow it.
    #[schema(example = "http://127.0.0.1:9000")]
    url: Option<String>,
    /// The step calls no service and is processed when this time has come. It can only have these other fields:
    /// `name`, `after`, `when`, `while`, `for_each`, `repeat`, and `on_permanent`, which applies if an expression cannot be
    /// evaluated.
    wait: Option<WaitBody>,
    /// The step calls no service and is processed when its signal comes, `POST /v1/tasks/{id}/signals/{name}`. It can
    /// have the same other fields as with `wait`.
    signal: Option<SignalBody>,
    /// The step is done by a task of its own, its child, and is processed when the child is. It can have the same
    /// other fields as with `wait` but `while`, and `complete_within` (the time limit of the child) and `pivot`.
    task: Option<StepTaskBody>,
    /// The step calls no service: this object is evaluated when it becomes ready, and is its output. It can have the same
    /// other fields as with `wait` but `while`.
    #[schema(example = json!({ "net": "{{ input.price * input.count }}" }))]
    set: Option<BTreeMap<String, JsonSchema>>,
    /// The step ends the task on purpose. It can only have these other fields: `name`, `after`, `when` and `on_permanent`.
    stop: Option<StopBody>,
    /// The step is a block of steps. They are steps of the task, such as `pay.charge`, and name each other without the name
    /// of the block; the block itself ends after all of them. It can only have these other fields: `name`, `after`, `when`,
    /// `output`, and `on_exhausted` and `on_permanent` for the steps in it.
    #[schema(no_recursion, min_items = 1)]
    steps: Option<Vec<StepBody>>,
    /// The step is a block of which one branch runs: the first whose condition is true. It can have the same other fields as
    /// with `steps`.
    #[schema(no_recursion, min_items = 1, max_items = 100)]
    switch: Option<Vec<SwitchBranchBody>>,
    /// With `steps` or `switch`: any JSON with expressions, which can use the steps in the block. Default: null.
    #[schema(value_type = JsonSchema, required = false, example = json!({"charge": "{{ steps.charge.output.id }}"}))]
    output: Option<String>,
    /// The step is run for each item of a list: an array, or an expression that gives one, of at most 10,000 items.
    /// Each item is a step of its own, such as `import[17]`; its expressions can also use `item`, and `index` from 0.
    /// The step's output is the list of their outputs.
    #[schema(value_type = JsonSchema, required = false, example = json!("{{ steps.list.output.items }}"))]
    for_each: Option<String>,
    /// With `for_each`: the most items that run at once, 1 to 1000. Default: 10.
    #[schema(example = 10)]
    max_parallel: Option<NumberLimitBody>,
    /// With `for_each`: the number of items that must succeed, 1 to 1000. The others are cancelled then. Default: all must
    /// end.
    #[schema(example = 2)]
    enough: Option<NumberLimitBody>,
    /// With `for_each`: the policy after an item has failed permanently, instead of `on_permanent` and of the last
    /// policy of `on_exhausted`. `error`: the other items go on, and the step is in error once all have ended.
    /// `skip`: the item counts as skipped, and its output is null. `undo`: the whole task is undone at once.
    #[schema(example = "skip")]
    on_item_error: Option<PolicySchema>,
    /// The step is run again until a condition is true. Each run is an iteration, a step of its own, such as
    /// `poll[3]`; its expressions can also use `previous`, the output of the iteration before, and `index` from 0.
    /// Not together with `for_each`.
    repeat: Option<RepeatBody>,
    /// The steps that must be done before this one. Default: the previous step in the list. An empty list: none.
    after: Option<AfterBody>,
    /// A condition, evaluated when the step becomes ready. If false, the step is skipped.
    #[schema(example = "input.total > 0")]
    when: Option<String>,
    /// The step runs only as long as this condition is true: it may read the states of steps that run beside it. Once it is
    /// false, the step is skipped, and its call dropped. For calls, `wait` and `signal`.
    #[schema(example = "steps.pay.state != 'processed'")]
    r#while: Option<String>,
    request: Option<StepRequest>,
    /// The time limit of the step, counted from each claim: 100ms to 30d.
    #[schema(default = "30s", example = "10s")]
    complete_within: Option<DurationLimitBody>,
    /// The number of attempts that may run out of time before `on_exhausted` applies.
    #[schema(default = 3, minimum = 0, maximum = 1000, example = 3)]
    max_failures: Option<u32>,
    on_exhausted: Option<StepOnExhaustedBody>,
    on_permanent: Option<OnPermanentBody>,
    /// The number of attempts after which `on_exhausted` applies, whatever they failed with. Where it is set, the waits
    /// between attempts take no time from `complete_within`. `1` calls at most once, and leaves the outcome of a call that
    /// broke off unknown. Default: any number, within the time that `complete_within` and `max_failures` give.
    #[schema(minimum = 1, maximum = 1000, example = 5)]
    max_attempts: Option<u32>,
    retry: Option<RetryRuleBody>,
    /// Recognises an error in the body of a success.
    failed: Option<FailedBody>,
    /// The action that undoes the step if the task is undone after the step took effect.
    undo: Option<UndoBody>,
    /// A request that asks the service whether an attempt of unknown effect took effect.
    probe: Option<ProbeBody>,
    /// The policy for a call in flight when the task is to be undone: `wait` until the call's complete-by, so that
    /// its effect is known, or `drop` it at once.
    #[schema(default = "wait", example = "wait")]
    on_undo: Option<OnUndoSchema>,
    /// The way in which the service replies, if not with its response.
    #[schema(default = "response", example = "callback")]
    reply: Option<ReplyRuleBody>,
    /// The longest time without a heartbeat while the service has promised a later reply. A longer one is a failure
    /// of the step. 1s to 30d.
    #[schema(example = "30s")]
    heartbeat_within: Option<DurationSchema>,
    /// The headers of the response that are kept with its status: `steps.<name>.headers` and `steps.<name>.status` in
    /// expressions. Only if the service replies with its response. An empty list keeps the status alone. Together they
    /// take at most 8 KiB; a header that finds no room is left out.
    #[schema(max_items = 16, example = json!(["location", "etag"]))]
    keep_headers: Option<Vec<String>>,
    /// The request that asks the service to cancel its work, with `on_undo: drop`: sent when an undo drops a promised
    /// reply.
    cancel: Option<CancelBody>,
    /// The point of no return: once this step is done, the task can no longer be undone, only completed.
    #[schema(default = false)]
    pivot: Option<bool>,
}

/// A registered agent, or one of several.
#[derive(ToSchema)]
#[schema(as = AgentTarget, example = "payments")]
#[serde(untagged)]
pub enum AgentTargetBody {
    Named(String),
    OneOf(ChoiceBody),
}

/// A registered workflow, or one of several.
#[derive(ToSchema)]
#[schema(as = WorkflowTarget, example = "ship")]
#[serde(untagged)]
pub enum WorkflowTargetBody {
    Named(String),
    OneOf(ChoiceBody),
}

/// One of several names, chosen when the step is ready. The step becomes a block with a step for each name, such as
/// `ship.eu`, of which one runs. If the text is none of the names, the step fails.
#[derive(ToSchema)]
#[schema(as = Choice, example = json!({ "one_of": ["eu", "us"], "by": "{{ input.region }}" }))]
pub struct ChoiceBody {
    #[schema(min_items = 2, max_items = 100)]
    one_of: Vec<String>,
    /// An expression that gives one of the names.
    by: String,
}

/// A branch of a switch: either `when` with `steps`, or as the last one `else`.
#[derive(ToSchema)]
#[schema(as = SwitchBranch, example = json!({ "when": "input.total > 100", "steps": [{ "name": "approve", "agent": "desk" }] }))]
pub struct SwitchBranchBody {
    /// The branch runs if this condition is true, and those of all branches before it are false.
    #[schema(example = "input.total > 100")]
    when: Option<String>,
    #[schema(no_recursion, min_items = 1)]
    steps: Option<Vec<StepBody>>,
    /// The steps that run if no condition is true.
    #[schema(no_recursion, min_items = 1)]
    r#else: Option<Vec<StepBody>>,
}

/// A duration, or an expression of the input that gives one.
#[derive(ToSchema)]
#[schema(as = DurationLimit, example = "10s")]
#[serde(untagged)]
pub enum DurationLimitBody {
    Fixed(DurationSchema),
    FromInput(DurationFromInputBody),
}

#[derive(ToSchema)]
#[schema(as = DurationFromInput)]
pub struct DurationFromInputBody {
    /// An expression over `input` and `task`.
    #[schema(example = "{{ input.minutes }}m")]
    value: String,
    /// The longest duration that it may give.
    #[schema(example = "2h")]
    max: DurationSchema,
}

/// A number, or an expression of the input that gives one.
#[derive(ToSchema)]
#[schema(as = NumberLimit, example = 10)]
#[serde(untagged)]
pub enum NumberLimitBody {
    Fixed(u32),
    FromInput(NumberFromInputBody),
}

#[derive(ToSchema)]
#[schema(as = NumberFromInput)]
pub struct NumberFromInputBody {
    /// An expression over `input` and `task`.
    #[schema(example = "{{ input.workers }}")]
    value: String,
    /// The largest number that it may give.
    #[schema(minimum = 1, maximum = 1000, example = 50)]
    max: u32,
}

/// The time that a step waits: exactly one of the fields.
#[derive(ToSchema)]
#[schema(as = Wait, example = json!({ "for": "1h" }))]
pub struct WaitBody {
    /// A duration that begins when the step is ready, or an expression that gives one; at most 3650d.
    #[schema(example = "1h")]
    r#for: Option<String>,
    /// A time in RFC 3339, or an expression that gives one; at most 3650d away. If it has passed, the step is processed
    /// at once.
    #[schema(example = "{{ input.departure }}")]
    until: Option<String>,
}

/// The condition that ends the iterations of a step, and their bounds.
#[derive(ToSchema)]
#[schema(as = Repeat, example = json!({ "until": "output.state == 'done'", "at_most": 20, "every": "30s" }))]
pub struct RepeatBody {
    /// A condition, evaluated after each iteration. If true, the step is processed. The condition can also use
    /// `output`, that of the iteration, `previous` and `index`.
    #[schema(required, example = "output.state == 'done'")]
    until: String,
    /// The largest number of iterations, 1 to 1000.
    #[schema(required, example = 20)]
    at_most: NumberLimitBody,
    /// The pause from the end of an iteration to the begin of the next: 0s to 3650d.
    #[schema(default = "0s", example = "30s")]
    every: Option<DurationSchema>,
    /// The policy after `at_most` iterations. `skip`: the step is skipped, with its output. Default: the last policy
    /// of the step's or the task's `on_exhausted`.
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
    /// The time that the signal is awaited, from when the step is ready: 1s to 3650d.
    #[schema(example = "3d")]
    within: DurationLimitBody,
    /// The policy if the signal does not come within that time.
    #[schema(default = "error", example = "undo")]
    on_timeout: Option<PolicySchema>,
    /// A JSON Schema (2020-12) that the payload must match, as for `input_schema`: otherwise the signal is refused.
    #[schema(value_type = JsonSchema, required = false, example = json!({"type": "object", "required": ["approved"]}))]
    schema: Option<String>,
    /// A condition over `signal` (the payload), `input`, `task` and `steps.<name>.output`: a signal for which it is
    /// false is refused.
    #[schema(example = "signal.order == input.order")]
    r#match: Option<String>,
    /// What becomes of a signal that comes before the step is ready.
    #[schema(default = "keep", example = "refuse")]
    early: Option<EarlySignalSchema>,
    /// People are asked, and their decision is the signal. Not together with `schema` and `match`.
    ask: Option<AskBody>,
}

/// A question for people. Each of them gets a link of their own, with which they decide once, within `within`.
#[derive(ToSchema)]
#[schema(as = AskRule, example = json!({ "title": "Approve the refund of {{ input.amount }} EUR?", "of": ["ops@example.com"] }))]
pub struct AskBody {
    /// The question in one line, with expressions: at most 200 characters when it is rendered.
    #[schema(example = "Approve the refund of {{ input.amount }} EUR?")]
    title: String,
    /// Plain text below the title, with expressions: at most 4000 characters when it is rendered.
    #[schema(example = "Order {{ task.key }}: {{ input.reason }}")]
    text: Option<String>,
    /// The choices. The first one is the approval, which `approvals` counts; any other one decides at once. Default:
    /// `approve` and `reject`.
    #[schema(min_items = 1, max_items = 10, example = json!(["approve", "reject"]))]
    choices: Option<Vec<String>>,
    /// The fields that the page has besides the choice.
    #[schema(max_items = 20)]
    fields: Option<Vec<AskFieldBody>>,
    /// The people: addresses or names, with expressions, each of which may give a list; or one expression that gives
    /// the list. 1 to 20 different ones.
    #[schema(value_type = JsonSchema, example = json!(["ops@example.com"]))]
    of: String,
    /// The number of different people that must choose the first choice.
    #[schema(default = 1, minimum = 1, maximum = 20)]
    approvals: Option<u32>,
    /// The receivers of the links: names of `[[alert_webhooks]]` and of `[[receivers]]` with a `url`, and `reply_to`
    /// for that of the task. Default: all alert webhooks; and `reply_to`, if the steps are the submission's own and
    /// not a workflow's.
    #[schema(min_items = 1, max_items = 10, example = json!(["mailer"]))]
    send_to: Option<Vec<String>>,
}

/// A field of the page that people decide on.
#[derive(ToSchema)]
#[schema(as = AskField, example = json!({ "name": "amount", "type": "number", "label": "Amount to refund" }))]
pub struct AskFieldBody {
    /// The name of the value in the step's output: letters, digits, `_` and `-`.
    #[schema(example = "amount", max_length = 40)]
    name: String,
    #[schema(example = "Amount to refund", max_length = 200)]
    label: Option<String>,
    #[serde(rename = "type")]
    #[schema(rename = "type", default = "string", example = "number")]
    kind: Option<AskFieldTypeSchema>,
    /// True if the field must be filled in, for every choice; a boolean must be ticked.
    #[schema(default = false)]
    required: Option<bool>,
    /// The choices of a field of the type `choice`.
    #[schema(max_items = 50)]
    choices: Option<Vec<String>>,
}

/// The task that a step has, its child. The child has the priority and the trace of its parent, and no more time than
/// the parent has left.
#[derive(ToSchema)]
#[schema(as = StepTask, example = json!({ "workflow": "ship", "input": { "order": "{{ input.order }}" } }))]
pub struct StepTaskBody {
    /// A registered workflow. Its `output` is the output of the step. Required without `steps`.
    #[schema(example = "ship")]
    workflow: Option<WorkflowTargetBody>,
    /// The steps of the child, in place of a workflow. Beside them the task can have the fields of a workflow. Together they
    /// have at most 64 KiB.
    #[schema(no_recursion, min_items = 1)]
    steps: Option<Vec<StepBody>>,
    #[serde(flatten)]
    policies: PoliciesBody,
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
    /// The policy while the child is in error.
    #[schema(default = "wait", example = "undo")]
    on_error: Option<OnChildErrorSchema>,
    /// `false`: the step is done as soon as the child is made, and its output is the child's `id`, `workflow` and `version`.
    #[schema(default = true, example = false)]
    r#await: Option<bool>,
    /// With `"await": false`: what becomes of the child when the parent is undone or cancelled. `leave`: it goes on. `undo`: it is
    /// undone or cancelled as well.
    #[schema(default = "leave", example = "undo")]
    on_undo: Option<OnParentUndoSchema>,
}

/// Asks a service to cancel work whose reply is no longer awaited.
#[derive(ToSchema)]
#[schema(as = Cancel, example = json!({ "request": { "path": "/jobs/{{ task.id }}" } }))]
pub struct CancelBody {
    /// Default: a DELETE to the address at which the service is polled. The default method is DELETE.
    request: Option<StepRequest>,
}

/// The way in which a service replies.
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

/// The rule for polling a service. Polls go to the address in `Operation-Location`, or in `Location` or
/// `Content-Location` of a 202. A step whose method is GET and which gets no such address is polled by its own
/// request. The expressions can also use `response`, with its `status` and `body`.
#[derive(ToSchema)]
#[schema(as = PollRule, example = json!({
    "until": "response.body.status == 'succeeded'",
    "failed": "response.body.status == 'failed'",
    "output": "response.body.result",
    "every": "5s"
}))]
pub struct PollRuleBody {
    /// A condition. If true, the reply is there.
    #[schema(example = "response.body.status == 'succeeded'")]
    until: String,
    /// A condition, evaluated before `until`. If true, the service has failed permanently.
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
    complete_within: Option<DurationLimitBody>,
    #[schema(default = 3, minimum = 0, maximum = 1000, example = 3)]
    max_failures: Option<u32>,
    on_exhausted: Option<OnUndoExhaustedBody>,
    on_permanent: Option<OnUndoPermanentBody>,
    #[schema(minimum = 1, maximum = 1000, example = 5)]
    max_attempts: Option<u32>,
    retry: Option<RetryRuleBody>,
    /// The way in which the service replies, if not with its response.
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
    /// The number of attempts of the probe after which the step needs an operator.
    #[schema(minimum = 1, maximum = 1000, example = 10)]
    max_attempts: Option<u32>,
    retry: Option<RetryRuleBody>,
}

/// Defaults for all steps that do not set their own.
#[derive(ToSchema)]
#[schema(as = Policies)]
pub struct PoliciesBody {
    on_exhausted: Option<OnExhaustedBody>,
    #[schema(default = "error", example = "undo")]
    on_permanent: Option<PolicySchema>,
    /// The policy when the task's own complete-by passes.
    #[schema(default = "error", example = "undo")]
    on_deadline: Option<DeadlinePolicySchema>,
    /// The time in which a task can still be undone after it was processed, up to ten years. Default: as long as it
    /// is kept.
    #[schema(example = "30d")]
    undoable_for: Option<DurationSchema>,
    /// Any JSON with expressions over `input`, `task` and `steps.<name>.output`: the `output` of the task once it is
    /// processed.
    #[schema(value_type = JsonSchema, required = false, example = json!({"charge": "{{ steps.charge.output.id }}"}))]
    output: Option<String>,
    /// A JSON Schema (2020-12) that the input of tasks must match. `$ref` can only point into the schema itself, and
    /// patterns have neither lookaround nor backreferences. At most 64 KiB.
    #[schema(value_type = JsonSchema, required = false, example = json!({"type": "object", "required": ["sku"], "properties": {"sku": {"type": "string"}}}))]
    input_schema: Option<String>,
    /// Steps that run once, when all others have ended or are undone, however the task ends: `task.state` is `processed`,
    /// `undone` or `cancelled` in their expressions, and `task.error` the fault that had the task undone. They are not undone,
    /// and can be calls, waits, signals and `set`. A task in error waits for an operator first.
    #[schema(no_recursion, min_items = 1)]
    finally: Option<Vec<StepBody>>,
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

/// The waits before a call is made again, and the faults after which it is. Without `initial`, `factor`, `max` and
/// `jitter` the waits are those of the agent.
#[derive(ToSchema)]
#[schema(as = RetryRule, example = json!({ "initial": "1s", "max": "1m", "on": [429, "5xx", "connect"] }))]
pub struct RetryRuleBody {
    #[schema(default = "100ms", example = "1s")]
    initial: Option<DurationSchema>,
    /// Each wait is this many times the one before.
    #[schema(default = 2, minimum = 1, maximum = 10)]
    factor: Option<u32>,
    /// The longest wait.
    #[schema(default = "10s", example = "1m")]
    max: Option<DurationSchema>,
    /// True: each wait is a random one between zero and its whole length.
    #[schema(default = true)]
    jitter: Option<bool>,
    /// Exactly the faults after which the call is made again: statuses, classes such as `5xx`, `connect` for a connection
    /// that could not be made, and `broken` for a call that broke off. Default: `[408, 425, 429, "5xx", "connect",
    /// "broken"]`.
    #[schema(max_items = 50, example = json!([429, "5xx", "connect"]))]
    on: Option<Vec<RetriedFaultBody>>,
}

/// A fault after which a call is made again.
#[derive(ToSchema)]
#[schema(as = RetriedFault, example = 429)]
#[serde(untagged)]
pub enum RetriedFaultBody {
    Status(u16),
    /// A class such as `5xx`, `connect` or `broken`.
    Word(String),
}

/// Recognises an error in the body of a success: a condition over `output`, alone or with the message of the error. If it
/// is true, the step has a permanent error.
#[derive(ToSchema)]
#[schema(as = Failed, example = "output.ok == false")]
#[serde(untagged)]
pub enum FailedBody {
    Condition(String),
    Rule(FailedRuleBody),
}

#[derive(ToSchema)]
#[schema(as = FailedRule)]
pub struct FailedRuleBody {
    #[schema(example = "output.ok == false")]
    when: String,
    /// An expression that gives the message.
    #[schema(example = "output.error")]
    message: Option<String>,
}

/// The policy after a permanent error.
#[derive(ToSchema)]
#[schema(as = OnPermanent, example = json!({ "404": "skip", "409": "success", "else": "error" }))]
#[serde(untagged)]
pub enum OnPermanentBody {
    /// `error` stops the task until an operator acts, `undo` undoes the whole task, `skip` continues without the step.
    Word(PolicySchema),
    /// Policies by the status of the response, for statuses such as `404` and classes such as `4xx`. `success` counts the
    /// error as a success. `else` is for all others; its default is that of the whole field.
    ByStatus(StatusPoliciesSchema),
}

/// The policy after a permanent error of an undo.
#[derive(ToSchema)]
#[schema(as = OnUndoPermanent, example = "error")]
#[serde(untagged)]
pub enum OnUndoPermanentBody {
    /// `error` stops the task until an operator acts, `skip` leaves the effect of the step.
    Word(UndoPolicySchema),
    /// Policies by the status of the response, as for a step.
    ByStatus(UndoStatusPoliciesSchema),
}

/// The policy of a step when it is not tried again.
#[derive(ToSchema)]
#[schema(as = StepOnExhausted, example = "error")]
#[serde(untagged)]
pub enum StepOnExhaustedBody {
    /// `error`: an operator must act. `undo`: the whole task is undone. `skip`: the task continues without the
    /// step.
    Word(PolicySchema),
    Extend(Extension),
    /// Policies by the status of the last response, as in `on_permanent`.
    ByStatus(StatusPoliciesSchema),
}

/// The end of the task on purpose.
#[derive(ToSchema)]
#[schema(as = Stop, example = json!({ "state": "undone", "message": "nothing is left of {{ input.item }}" }))]
pub struct StopBody {
    state: StopStateSchema,
    /// A text with expressions that says why. Its first 500 bytes are kept.
    #[schema(example = "nothing is left of {{ input.item }}")]
    message: Option<String>,
    /// With `processed`: the output of the task, any JSON with expressions, instead of that of the definition.
    #[schema(value_type = JsonSchema, required = false, example = json!({ "paid": "{{ steps.charge.output.id }}" }))]
    output: Option<String>,
}

/// The steps that must be done before a step.
#[derive(ToSchema)]
#[schema(as = After, example = json!(["reserve"]))]
#[serde(untagged)]
pub enum AfterBody {
    /// All of these.
    All(Vec<String>),
    Race(RaceBody),
}

/// The step begins once as many of several steps have succeeded.
#[derive(ToSchema)]
#[schema(as = Race, example = json!({ "any": 1, "of": ["eu", "us", "timer"], "rest": "cancel" }))]
pub struct RaceBody {
    /// The number of steps that must succeed.
    #[schema(minimum = 1, maximum = 1000, example = 1)]
    any: u32,
    /// The steps that compete.
    #[schema(example = json!(["eu", "us", "timer"]), min_items = 1, max_items = 1000)]
    of: Vec<String>,
    #[schema(default = "cancel", example = "cancel")]
    rest: Option<RaceRestSchema>,
}

/// The policy when more than `max_failures` attempts have failed.
#[derive(ToSchema)]
#[schema(as = OnExhausted, example = "error")]
#[serde(untagged)]
pub enum OnExhaustedBody {
    /// `error`: an operator must act. `undo`: the whole task is undone. `skip`: the task continues without the
    /// step.
    Word(PolicySchema),
    Extend(Extension),
}

/// The policy when more than `max_failures` attempts of an undo have failed.
#[derive(ToSchema)]
#[schema(as = OnUndoExhausted, example = "error")]
#[serde(untagged)]
pub enum OnUndoExhaustedBody {
    /// `error`: an operator must act. `skip`: the undo continues without the undo of this step.
    Word(UndoPolicySchema),
    Extend(UndoExtension),
    /// Policies by the status of the last response, as in `on_permanent`.
    ByStatus(UndoStatusPoliciesSchema),
}

/// Wait for an extended period and try the undo again.
#[derive(ToSchema)]
#[schema(as = UndoExtend)]
pub struct UndoExtension {
    /// The length of the period.
    #[schema(example = "10m")]
    extend: DurationSchema,
    /// The largest number of extensions.
    #[schema(default = 1, minimum = 1, maximum = 1000, example = 5)]
    times: Option<u32>,
    /// The policy after the last extension.
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
    /// The largest number of extensions.
    #[schema(default = 1, minimum = 1, maximum = 1000, example = 5)]
    times: Option<u32>,
    /// The policy after the last extension.
    #[schema(default = "error", example = "error")]
    then: Option<PolicySchema>,
}
