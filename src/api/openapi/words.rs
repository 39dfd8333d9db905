//! Named schemas of the OpenAPI document: enumerations, and the values that many bodies share. The document lists the
//! same words that the code uses.

use std::borrow::Cow;

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        ObjectBuilder, RefOr, Schema, Type,
        schema::{AdditionalProperties, SchemaType},
    },
};

use crate::domain::{
    AgentMode, AlertKind, AskFieldKind, AvailableAfter, BreakerAction, CatchUp, CheckPoint,
    CheckStatus, CheckVerdict, ClientAuthMethod, DURATION, DiagramFormat, Dst, Effect, FaultKind,
    HttpVersion, LONGEST_NAME, MOST_LABELS, Method, NotUndoneReason, OnChildError, OnConflict,
    OnUndo, Overlap, Policy, REPLIES, RepeatOutput, ReplyMode, RunSource, RunState, Runs,
    ScheduleAction, SkipReason, StepKind, StepStatus, TaskStatus, TlsVersion, UndoReason,
    WarningCode,
};

/// Declares the schema of a type whose values are words.
macro_rules! words {
    ($($type:ty = $name:literal, $about:literal, $words:expr;)*) => {
        $(
            impl utoipa::PartialSchema for $type {
                fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                    $crate::api::openapi::words::one_of($about, $words)
                }
            }

            impl utoipa::ToSchema for $type {
                fn name() -> std::borrow::Cow<'static, str> {
                    $name.into()
                }
            }
        )*
    };
}
pub(in crate::api) use words;

/// Declares the schemas of enumerations of the domain, each as a type of its own.
macro_rules! enumerations {
    ($($schema:ident($name:literal) = $type:ty, $about:literal;)*) => {
        $(
            #[doc = concat!("The words of [`", stringify!($type), "`].")]
            pub struct $schema;
        )*
        words! {
            $($schema = $name, $about, <$type>::ALL.iter().map(|value| value.as_str());)*
        }
    };
}

/// For [`words`].
pub fn one_of(about: &str, words: impl IntoIterator<Item = &'static str>) -> RefOr<Schema> {
    let words: Vec<_> = words.into_iter().collect();
    let schema = ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(about))
        .enum_values(Some(words));
    schema.build().into()
}

enumerations! {
    TaskStateSchema("TaskState") = TaskStatus, "The state of a task";
    StepStateSchema("StepState") = StepStatus, "The state of a step";
    StepKindSchema("StepKind") = StepKind, "What a step does: `call` a service, `wait` until a time, await a `signal`, or have a `task` of its own";
    MethodSchema("Method") = Method, "The method of a request";
    DiagramFormatSchema("PictureFormat") = DiagramFormat, "The format of a diagram";
    AlertKindSchema("AlertKind") = AlertKind, "The cause of an alert";
    PolicySchema("Policy") = Policy, "`error` stops the task until an operator acts, `undo` undoes the whole task, `skip` continues without the step";
    OnUndoSchema("OnUndo") = OnUndo, "`wait` for a call in flight until its complete-by, so that its outcome is known, or `drop` it at once";
    OnChildErrorSchema("OnChildError") = OnChildError, "While the task of a step is in error: the step is to `wait` for an operator, or to `undo` the task and fail then";
    RepeatOutputSchema("RepeatOutput") = RepeatOutput, "The output of a step that is repeated: that of the `last` iteration, or the list of `all`";
    FaultKindSchema("FaultKind") = FaultKind, "The kind of fault.";
    StepRunsSchema("StepRuns") = Runs, "Whether a step runs.";
    CheckPointSchema("CheckPoint") = CheckPoint, "What a check of an agent looks at";
    CheckStatusSchema("CheckStatus") = CheckStatus, "`failed`: steps cannot rely on it. `inconclusive`: it should have been seen, and was not. `not_applicable`: there is nothing to see, as without an undo";
    CheckVerdictSchema("CheckVerdict") = CheckVerdict, "The result of a check: `failed` if a point failed, `incomplete` if one is inconclusive";
    WarningCodeSchema("WarningCode") = WarningCode, "What a warning is about.";
    UndoReasonSchema("UndoBecause") = UndoReason, "Why there is something to undo.";
    AvailableAfterSchema("RenderableAfter") = AvailableAfter, "What must happen before a call can be shown.";
    OverlapSchema("Overlap") = Overlap, "What happens at a fire time while another run of the schedule is not over. `skip`, the default: nothing; `queue`: the run waits; `replace`: what runs is cancelled, and the run waits for its end; `allow`: it begins at once";
    CatchUpSchema("CatchUp") = CatchUp, "What happens with fire times at which no instance ran. `last`, the default: the last of them fires, unless another has come; `all`: the last 100 fire; `none`: none of them";
    DstSchema("Dst") = Dst, "What happens with times of `cron` where the clock changes. `once`, the default: one that the clock jumps over fires after the jump, one that comes twice fires the first time; `skip`: one that the clock jumps over does not fire; `both`: one that comes twice fires twice";
    RunSourceSchema("ScheduleRunSource") = RunSource, "Why there is a run";
    RunStateSchema("ScheduleRunState") = RunState, "`queued`: it has no task yet; `started`: its task was submitted; `skipped`: it was left out; `failed`: its task could not be submitted";
    SkipReasonSchema("SkipReason") = SkipReason, "Why a run was left out";
    ScheduleActionSchema("ScheduleAction") = ScheduleAction, "What a caller did";
    NotUndoneReasonSchema("PassedOverBecause") = NotUndoneReason, "Why the undo makes no call for a step.";
}

/// The one word of [`Effect`] that is shown.
pub struct OutcomeSchema;

/// What happens when an undo step has no retries left.
pub struct UndoPolicySchema;
/// What happens when the task's own complete-by passes.
pub struct DeadlinePolicySchema;
/// The events that a submitter can receive about a task.
pub struct ReplyEventSchema;

/// The words of [`AskFieldKind`].
pub struct AskFieldTypeSchema;
/// When a service replies.
pub struct ReplyModeSchema;
/// How the service of an agent gets its work.
pub struct AgentModeSchema;
/// What an operator does with breakers.
pub struct BreakerActionSchema;
/// How the token endpoint gets the credentials of a client.
pub struct ClientAuthMethodSchema;
/// A version of TLS.
pub struct TlsVersionSchema;

/// The words of [`HttpVersion`].
pub struct HttpVersionSchema;
/// What happens with a task that has no room.
pub struct OnConflictSchema;
/// Of a schedule.
pub struct ScheduleStatusSchema;
/// Of the runs of a backfill.
pub struct BackfillOverlapSchema;

fn policies(allowed: &'static [Policy]) -> impl Iterator<Item = &'static str> {
    allowed.iter().map(|policy| policy.as_str())
}

words! {
    AgentModeSchema = "AgentMode", "`call`, the default: it is called at its endpoints; `pull`: its workers fetch it", AgentMode::ALL.iter().map(|mode| (*mode).into());
    BreakerActionSchema = "BreakerAction", "`open`: no call is made; `close`: calls are made whatever fails; both until you decide otherwise; `reset`: closed, and it opens by itself again", BreakerAction::ALL.iter().map(|action| (*action).into());
    ClientAuthMethodSchema = "ClientAuthMethod", "How the token endpoint gets id and secret: `client_secret_basic`, the default: in the header `Authorization`; `client_secret_post`: in the body", ClientAuthMethod::ALL.iter().map(|method| (*method).into());
    HttpVersionSchema = "HttpVersion", "The version of HTTP", HttpVersion::ALL.iter().map(|version| (*version).into());
    TlsVersionSchema = "TlsVersion", "The least version of TLS. Default: 1.2", TlsVersion::ALL.iter().map(|version| (*version).into());
    OnConflictSchema = "OnConflict", "`wait`, the default: it waits, and the oldest goes first; `reject`: it is refused with 409; `replace`: those that are there are cancelled, and it waits for their end", OnConflict::ALL.iter().map(|choice| choice.as_str());
    BackfillOverlapSchema = "BackfillOverlap", "`queue`, the default: one after the other; `allow`: all at once", ["queue", "allow"];
    ScheduleStatusSchema = "ScheduleState", "`active`: it fires; `paused`: an operator has paused it; `ended`: it fires no more; `unreadable`: its record is damaged", ["active", "paused", "ended", "unreadable"];
    ReplyModeSchema = "ReplyMode", "`callback`: a 202 means that the service replies later, to the address in the header `Provost-Reply-To`; `response`: only a 202 with `Provost-Async: true` means that", ReplyMode::WORDS.iter().map(|mode| mode.as_str());
    ReplyEventSchema = "ReplyEvent", "An event about a task", REPLIES;
    AskFieldTypeSchema = "AskFieldType", "What a person fills in", AskFieldKind::ALL.iter().map(|kind| kind.as_str());
    UndoPolicySchema = "UndoPolicy", "`error` stops the task until an operator acts, `skip` leaves the effect of the step", policies(&[Policy::Error, Policy::Skip]);
    DeadlinePolicySchema = "DeadlinePolicy", "`error` stops the task until an operator acts, `undo` undoes the whole task", policies(&[Policy::Error, Policy::Undo]);
    OutcomeSchema = "Outcome", "Whether it is known what a call did at the service.", Effect::Unknown.word();
}

/// Any JSON value.
pub struct JsonSchema;

impl PartialSchema for JsonSchema {
    fn schema() -> RefOr<Schema> {
        let schema = ObjectBuilder::new()
            .schema_type(SchemaType::AnyValue)
            .description(Some("Any JSON value"))
            .examples([serde_json::json!({"id": "ch_1"})]);
        schema.build().into()
    }
}

impl ToSchema for JsonSchema {
    fn name() -> Cow<'static, str> {
        "Json".into()
    }
}

/// A duration, as [`crate::domain::Span`] parses it.
pub struct DurationSchema;

impl PartialSchema for DurationSchema {
    fn schema() -> RefOr<Schema> {
        let schema = ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some(
                "A duration: `250ms`, `30s`, `15m`, `24h`, `30d`, or several units as in `1h30m`",
            ))
            .pattern(Some(DURATION))
            .examples(["30s"]);
        schema.build().into()
    }
}

impl ToSchema for DurationSchema {
    fn name() -> Cow<'static, str> {
        "Duration".into()
    }
}

/// The labels of a task.
pub struct LabelsSchema;

impl PartialSchema for LabelsSchema {
    fn schema() -> RefOr<Schema> {
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
}

impl ToSchema for LabelsSchema {
    fn name() -> Cow<'static, str> {
        "Labels".into()
    }
}

/// A label for filtering tasks.
pub struct LabelFilterSchema;

impl PartialSchema for LabelFilterSchema {
    fn schema() -> RefOr<Schema> {
        let schema = ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("A label's name and value, with a colon between them"))
            .pattern(Some("^[^:]+:"))
            .examples(["customer:acme"]);
        schema.build().into()
    }
}

impl ToSchema for LabelFilterSchema {
    fn name() -> Cow<'static, str> {
        "LabelFilter".into()
    }
}
