//! What happens when a step or a task cannot go on by itself: said for a step, or once for
//! all steps of a task.

use std::{ops::RangeInclusive, sync::Arc};

use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    fields::{FieldFault, Fields, text},
    payload::Payload,
    step_limits::StepLimit,
    task_limits::TaskLimit,
    time::Span,
};

/// What follows when trying is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Policy {
    /// The step is in error and an operator is needed.
    Error,
    /// The whole task is undone.
    Undo,
    /// The task continues without the step.
    Skip,
}

impl Policy {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// What happens when `failure_count` passes `max_failures`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OnExhausted {
    /// First wait an extended period and try again.
    pub extend: Option<Extend>,
    pub then: Policy,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extend {
    pub wait: Span,
    /// At most so often.
    pub times: u32,
}

impl From<Policy> for OnExhausted {
    fn from(then: Policy) -> Self {
        Self { extend: None, then }
    }
}

/// What happens to a running call when the task is to be undone.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Serialize, strum::IntoStaticStr, strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum OnUndo {
    /// It is waited for until its complete-by, so that its outcome is known.
    Wait,
    /// It is dropped at once, and its outcome is unknown.
    Drop,
}

impl OnUndo {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// What a task or a workflow says for all its steps, each of which may say otherwise.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    pub on_exhausted: Option<OnExhausted>,
    pub on_permanent: Option<Policy>,
    /// The task's own complete-by has passed: `Error` or `Undo`.
    pub on_deadline: Option<Policy>,
    /// How long a processed task can still be undone; `None`: as long as it is kept.
    pub undoable_for: Option<Span>,
    /// Only of workflows: how many tasks run at once.
    pub limits: Arc<[TaskLimit]>,
    /// Only of workflows: how many steps of its tasks run at once, and how often one begins.
    pub step_limits: Arc<[StepLimit]>,
    /// A template of the task's output, as it was written.
    pub output: Option<Payload>,
    /// What the input must match, as it was written.
    pub input_schema: Option<Payload>,
    /// The JSON object that this was read from; none where nothing was said.
    source: Option<Payload>,
}

/// The fields of [`Policies`] in a task and in a workflow.
pub const POLICY_FIELDS: [&str; 6] = [
    "on_exhausted",
    "on_permanent",
    "on_deadline",
    "undoable_for",
    "output",
    "input_schema",
];
/// One more in a workflow.
const LIMITS: &str = "limits";

impl Policies {
    /// Takes the policies out of the fields of a submission.
    pub fn read(fields: &mut Fields<'_>) -> Self {
        Self::read_fields(fields, &POLICY_FIELDS)
    }

    /// Takes the policies out of the fields of a workflow.
    pub fn read_of_workflow(fields: &mut Fields<'_>) -> Self {
        let [exhausted, permanent, deadline, undoable, output, schema] = POLICY_FIELDS;
        let names = [
            exhausted, permanent, deadline, undoable, LIMITS, output, schema,
        ];
        let written = written(fields, &names);
        let (limits, step_limits) = TaskLimit::read_all(fields, LIMITS);
        let policies = Self::read_fields(fields, &[]);
        Self {
            source: written,
            limits,
            step_limits,
            ..policies
        }
    }

    fn read_fields(fields: &mut Fields<'_>, names: &[&str]) -> Self {
        Self {
            source: written(fields, names),
            on_exhausted: on_exhausted(fields, Policy::ALL),
            on_permanent: on_permanent(fields, Policy::ALL),
            on_deadline: word(fields, "on_deadline", &[Policy::Error, Policy::Undo], ""),
            undoable_for: fields.span("undoable_for", UNDOABLE_FOR),
            limits: Arc::default(),
            step_limits: Arc::default(),
            output: given(fields, "output"),
            input_schema: given(fields, "input_schema"),
        }
    }

    /// Reads what [`Policies::as_json`] gave.
    pub fn parse(json: &str) -> Result<Self, Vec<FieldFault>> {
        let source = Payload::parse(json.to_owned()).unwrap_or_else(Payload::null);
        let mut fields = Fields::of(source.raw(), "")?;
        let policies = Self::read_of_workflow(&mut fields);
        fields.finish()?;
        Ok(policies)
    }

    /// `None` where nothing was said.
    pub fn as_json(&self) -> Option<&str> {
        self.source.as_ref().map(Payload::as_json)
    }

    /// As [`Policies::as_json`].
    pub fn to_raw(&self) -> Option<Box<RawValue>> {
        self.source.as_ref().map(|source| source.raw().to_owned())
    }
}

/// Any JSON but null.
fn given(fields: &mut Fields<'_>, name: &str) -> Option<Payload> {
    let value = fields.value(name).filter(|value| value.get() != "null")?;
    Some(Payload::new(value.to_owned()))
}

/// Those of these fields that are there, as one object.
fn written(fields: &Fields<'_>, names: &[&str]) -> Option<Payload> {
    let given = names
        .iter()
        .filter_map(|name| Some((name, fields.peek(name)?)));
    let given: Vec<_> = given
        .map(|(name, value)| format!("{name:?}:{value}"))
        .collect();
    match given.is_empty() {
        true => None,
        // Each part was JSON before, and the names need no escapes.
        false => Payload::parse(format!("{{{}}}", given.join(","))),
    }
}

/// Up to ten years.
const UNDOABLE_FOR: RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(3650 * 86_400);
const PERIOD: RangeInclusive<Span> = Span::from_millis(100)..=Span::from_secs(30 * 86_400);

pub(super) fn on_exhausted(fields: &mut Fields<'_>, words: &[Policy]) -> Option<OnExhausted> {
    if !fields.is_object("on_exhausted") {
        let or = " or { \"extend\": \"10m\", \"times\": 5, \"then\": \"error\" }";
        return word(fields, "on_exhausted", words, or).map(OnExhausted::from);
    }
    let mut extend = fields.object("on_exhausted")?;
    if !extend.has("extend") {
        extend.missing("extend", "give the length of the wait, such as \"10m\"");
    }
    let wait = extend.span("extend", PERIOD);
    let times = extend.integer("times", 1..=1000).unwrap_or(1);
    let then = word(&mut extend, "then", words, "");
    if let Err(faults) = extend.finish() {
        fields.extend(faults);
    }
    Some(OnExhausted {
        extend: Some(Extend {
            wait: wait?,
            // Within 1 to 1000.
            times: times as u32,
        }),
        then: then.unwrap_or(Policy::Error),
    })
}

pub(super) fn on_permanent(fields: &mut Fields<'_>, words: &[Policy]) -> Option<Policy> {
    word(fields, "on_permanent", words, "")
}

/// A policy given by a word.
fn word(fields: &mut Fields<'_>, name: &str, words: &[Policy], or: &str) -> Option<Policy> {
    let value = fields.value(name).filter(|value| value.get() != "null")?;
    let given = text(value.get());
    let found = words
        .iter()
        .find(|policy| given.as_deref() == Some(policy.as_str()));
    if found.is_none() {
        let words: Vec<_> = words
            .iter()
            .map(|policy| format!("{:?}", policy.as_str()))
            .collect();
        let (last, others) = words.split_last()?;
        fields.fault(name, format!("must be {} or {last}{or}", others.join(", ")));
    }
    found.copied()
}
