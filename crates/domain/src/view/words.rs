//! The schemas of words and values that several views and requests have: enumerations, JSON, durations, labels. The
//! document lists the same words that the code uses.

use std::borrow::Cow;

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        ObjectBuilder, RefOr, Schema, Type,
        schema::{AdditionalProperties, SchemaType},
    },
};

use crate::{
    agent::{BreakerAction, CheckPoint, CheckStatus, CheckVerdict},
    definition::{
        AskFieldKind, EarlySignal, Method, OnChildError, OnConflict, OnParentUndo, OnUndo, Policy,
        RaceRest, RepeatOutput, ReplyMode, StepKind, StopState,
    },
    schedule::{CatchUp, Dst, Overlap, RunSource, RunState, ScheduleAction, SkipReason},
    task::{AlertKind, REPLIES, StepStatus, TaskStatus},
    template::Payload,
    values::{DURATION, Effect, FaultKind, LONGEST_NAME, MOST_LABELS},
    view::drawing::DiagramFormat,
};

/// Returns the schema of a value that is one of these words.
pub fn words_schema(about: &str, words: impl IntoIterator<Item = &'static str>) -> RefOr<Schema> {
    let words: Vec<_> = words.into_iter().collect();
    let schema = ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(about))
        .enum_values(Some(words));
    schema.build().into()
}

/// Declares the name and the schema of types.
macro_rules! schemas {
    ($($type:ty = $name:literal, $schema:expr;)*) => {
        $(
            impl PartialSchema for $type {
                fn schema() -> RefOr<Schema> {
                    $schema
                }
            }

            impl ToSchema for $type {
                fn name() -> Cow<'static, str> {
                    $name.into()
                }
            }
        )*
    };
}

/// Declares the schemas of enumerations, each of which has a list of its words.
macro_rules! enumerations {
    ($($type:ty = $name:literal, $about:literal;)*) => {
        schemas! {
            $($type = $name, words_schema($about, <$type>::ALL.iter().map(|value| value.as_str()));)*
        }
    };
}

enumerations! {
    TaskStatus = "TaskState", "The state of a task";
    StepStatus = "StepState", "The state of a step";
    StepKind = "StepKind", "What a step does: `call` a service, `wait` until a time, await a `signal`, have a `task` of its own, `set` values, or `stop` the task";
    Method = "Method", "The method of a request";
    DiagramFormat = "PictureFormat", "The format of a diagram";
    AlertKind = "AlertKind", "The cause of an alert";
    Policy = "Policy", "`error` stops the task until an operator acts, `undo` undoes the whole task, `skip` continues without the step";
    RaceRest = "RaceRest", "The others of a race are cancelled (`cancel`), go on (`let`), or are cancelled and undone (`undo`)";
    StopState = "StopState", "`processed`: the steps that have not ended are cancelled; `undone`: the task is undone; `error`: an operator must act";
    OnUndo = "OnUndo", "`wait` for a call in flight until its complete-by, so that its outcome is known, or `drop` it at once";
    OnChildError = "OnChildError", "While the task of a step is in error: the step is to `wait` for an operator, or to `undo` the task and fail then";
    EarlySignal = "EarlySignal", "A signal that comes before its step is ready: `keep` it for the step, or `refuse` it";
    OnParentUndo = "OnParentUndo", "When the parent of a child for which nobody waits is undone or cancelled: `leave` the child, or `undo` or cancel it too";
    RepeatOutput = "RepeatOutput", "The output of a step that is repeated: that of the `last` iteration, or the list of `all`";
    FaultKind = "FaultKind", "The kind of fault.";
    AskFieldKind = "AskFieldType", "What a person fills in";
    CheckPoint = "CheckPoint", "What a check of an agent looks at";
    CheckStatus = "CheckStatus", "`failed`: steps cannot rely on it. `inconclusive`: it should have been seen, and was not. `not_applicable`: there is nothing to see, as without an undo";
    CheckVerdict = "CheckVerdict", "The result of a check: `failed` if a point failed, `incomplete` if one is inconclusive";
    OnConflict = "OnConflict", "`wait`, the default: it waits, and the oldest goes first; `reject`: it is refused with 409; `replace`: those that are there are cancelled, and it waits for their end";
    Overlap = "Overlap", "What happens at a fire time while another run of the schedule is not over. `skip`, the default: nothing; `queue`: the run waits; `replace`: what runs is cancelled, and the run waits for its end; `allow`: it begins at once";
    CatchUp = "CatchUp", "What happens with fire times at which no instance ran. `last`, the default: the last of them fires, unless another has come; `all`: the last 100 fire; `none`: none of them";
    Dst = "Dst", "What happens with times of `cron` where the clock changes. `once`, the default: one that the clock jumps over fires after the jump, one that comes twice fires the first time; `skip`: one that the clock jumps over does not fire; `both`: one that comes twice fires twice";
    RunSource = "ScheduleRunSource", "Why there is a run";
    RunState = "ScheduleRunState", "`queued`: it has no task yet; `started`: its task was submitted; `skipped`: it was left out; `failed`: its task could not be submitted";
    SkipReason = "SkipReason", "Why a run was left out";
    ScheduleAction = "ScheduleAction", "What a caller did";
}

/// The schema of a [`Span`](crate::values::Span), whose crate does not know OpenAPI.
pub struct DurationSchema;

/// The schema of the labels of a task.
pub struct LabelsSchema;

/// The events that a submitter can receive about a task, [`REPLIES`].
pub struct ReplyEvent;

schemas! {
    Payload = "Json", json();
    DurationSchema = "Duration", duration();
    LabelsSchema = "Labels", labels();
    ReplyEvent = "ReplyEvent", words_schema("An event about a task", REPLIES);
    ReplyMode = "ReplyMode", words_schema("`callback`: a 202 means that the service replies later, to the address in the header `Provost-Reply-To`; `response`: only a 202 with `Provost-Async: true` means that", ReplyMode::WORDS.iter().map(|mode| mode.as_str()));
    BreakerAction = "BreakerAction", words_schema("`open`: no call is made; `close`: calls are made whatever fails; both until you decide otherwise; `reset`: closed, and it opens by itself again", BreakerAction::ALL.iter().map(|action| (*action).into()));
    // Only the word for an unknown effect is shown.
    Effect = "Outcome", words_schema("Whether it is known what a call did at the service.", Effect::Unknown.word());
}

fn json() -> RefOr<Schema> {
    let schema = ObjectBuilder::new()
        .schema_type(SchemaType::AnyValue)
        .description(Some("Any JSON value"))
        .examples([serde_json::json!({"id": "ch_1"})]);
    schema.build().into()
}

fn duration() -> RefOr<Schema> {
    let schema = ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(
            "A duration: `250ms`, `30s`, `15m`, `24h`, `30d`, or several units as in `1h30m`",
        ))
        .pattern(Some(DURATION))
        .examples(["30s"]);
    schema.build().into()
}

fn labels() -> RefOr<Schema> {
    let text = || {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .max_length(Some(LONGEST_NAME))
    };
    // A colon separates name and value in `?label=`.
    let name = text().pattern(Some("^[^:]*$")).build();
    let schema = ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some("Names and values by which tasks can be found"))
        .property_names(Some(name))
        .additional_properties(Some(AdditionalProperties::from(text())))
        .max_properties(Some(MOST_LABELS))
        .examples([serde_json::json!({"customer": "acme"})]);
    schema.build().into()
}
