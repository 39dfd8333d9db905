//! The policies for a step or a task that cannot continue. A step may set them, and a task or a workflow may set them
//! for all of its steps.

use std::{collections::BTreeMap, ops::RangeInclusive, sync::Arc};

use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    finally,
    status_policies::{self, StatusPolicies},
    workflow_limits::{StepLimit, TaskLimit},
};
use crate::{
    template::payload::Payload,
    values::{
        fields::{FieldFault, Fields, text},
        time::Span,
    },
};

/// The limits of `complete_within`.
pub(super) const COMPLETE_WITHIN_RANGE: RangeInclusive<Span> =
    Span::from_millis(100)..=Span::from_secs(30 * 86_400);
pub(super) const DEFAULT_COMPLETE_WITHIN: Span = Span::from_secs(30);
pub(super) const DEFAULT_MAX_FAILURES: u32 = 3;

/// The policy for a step that will not be retried.
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

/// The policy for a step whose `failure_count` passes `max_failures`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OnExhausted {
    /// If set, the step first waits for an extended period and is then retried.
    pub extend: Option<Extend>,
    pub then: Policy,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extend {
    pub wait: Span,
    /// The largest number of extended periods.
    pub times: u32,
}

impl From<Policy> for OnExhausted {
    fn from(then: Policy) -> Self {
        Self { extend: None, then }
    }
}

/// Decides about a running call when its task is to be undone.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Serialize, strum::IntoStaticStr, strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum OnUndo {
    /// The call is waited for until its complete-by, so that its effect is known.
    Wait,
    /// The call is dropped at once, and its effect is unknown.
    Drop,
}

impl OnUndo {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// The policies of a task or a workflow for all of its steps. Each step may set its own.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    pub on_exhausted: Option<OnExhausted>,
    pub on_permanent: Option<Policy>,
    /// The policy for a task whose own complete-by has passed: `Error` or `Undo`.
    pub on_deadline: Option<Policy>,
    /// The time for which a processed task can still be undone; `None`: as long as it is kept.
    pub undoable_for: Option<Span>,
    /// The limits of a workflow on the number of tasks that run at once.
    pub limits: Arc<[TaskLimit]>,
    /// The limits of a workflow on the number of steps of its tasks that run at once, and on the rate at which they
    /// begin.
    pub step_limits: Arc<[StepLimit]>,
    /// A template of the task's output, as it was written.
    pub output: Option<Payload>,
    /// The schema that the input must match, as it was written.
    pub input_schema: Option<Payload>,
    /// The array of the steps that run when the others have ended, as it was written.
    pub finally: Option<Payload>,
    /// True if callers with the role `read` do not see the payloads of the workflow's tasks.
    pub hide_bodies: bool,
    /// The JSON object that the policies were read from; `None` if it had no such fields.
    source: Option<Payload>,
}

/// The fields of [`Policies`] in a task and in a workflow.
pub const POLICY_FIELDS: [&str; 7] = [
    "on_exhausted",
    "on_permanent",
    "on_deadline",
    "undoable_for",
    "output",
    "input_schema",
    "finally",
];
/// The fields that only a workflow has.
const LIMITS: &str = "limits";
const HIDE_BODIES: &str = "hide_bodies";

impl Policies {
    /// Takes the policies out of the fields of a submission.
    pub fn read(fields: &mut Fields<'_>) -> Self {
        Self::read_fields(fields, &POLICY_FIELDS)
    }

    /// Takes the policies out of the fields of a workflow.
    pub fn read_of_workflow(fields: &mut Fields<'_>) -> Self {
        let [
            exhausted,
            permanent,
            deadline,
            undoable,
            output,
            schema,
            finally,
        ] = POLICY_FIELDS;
        let names = [
            exhausted,
            permanent,
            deadline,
            undoable,
            LIMITS,
            output,
            schema,
            HIDE_BODIES,
            finally,
        ];
        let written = present_fields(fields, &names);
        let (limits, step_limits) = TaskLimit::read_all(fields, LIMITS);
        let hide_bodies = fields.boolean(HIDE_BODIES).unwrap_or(false);
        let policies = Self::read_fields(fields, &[]);
        Self {
            source: written,
            limits,
            step_limits,
            hide_bodies,
            ..policies
        }
    }

    /// Adds that payloads are hidden, to policies of a task that cannot say so itself.
    #[must_use]
    pub(super) fn hiding_bodies(mut self, hides: bool) -> Self {
        if !hides || self.hide_bodies {
            return self;
        }
        let written = self.as_json().unwrap_or("{}");
        let others = written.trim_start_matches('{');
        let comma = if others == "}" { "" } else { "," };
        // It was an object, and is one with another member.
        self.source = Payload::parse(format!("{{\"{HIDE_BODIES}\":true{comma}{others}"));
        self.hide_bodies = true;
        self
    }

    fn read_fields(fields: &mut Fields<'_>, names: &[&str]) -> Self {
        Self {
            source: present_fields(fields, names),
            on_exhausted: on_exhausted(fields, Policy::ALL),
            on_permanent: on_permanent(fields, Policy::ALL),
            on_deadline: take_policy(fields, "on_deadline", &[Policy::Error, Policy::Undo], ""),
            undoable_for: fields.span("undoable_for", UNDOABLE_FOR),
            limits: Arc::default(),
            step_limits: Arc::default(),
            output: take_payload(fields, "output"),
            input_schema: take_payload(fields, "input_schema"),
            finally: finally::read(fields),
            hide_bodies: false,
        }
    }

    /// Reads JSON that [`Policies::as_json`] returned.
    pub fn parse(json: &str) -> Result<Self, Vec<FieldFault>> {
        let source = Payload::parse(json.to_owned()).unwrap_or_else(Payload::null);
        let mut fields = Fields::of(source.raw(), "")?;
        let policies = Self::read_of_workflow(&mut fields);
        fields.finish()?;
        Ok(policies)
    }

    /// Returns the policies as they were written; `None` if there were none.
    pub fn as_json(&self) -> Option<&str> {
        self.source.as_ref().map(Payload::as_json)
    }

    /// Returns the same as [`Policies::as_json`].
    pub fn to_raw(&self) -> Option<Box<RawValue>> {
        self.source.as_ref().map(|source| source.raw().to_owned())
    }
}

/// Takes a field whose value may be any JSON but null.
fn take_payload(fields: &mut Fields<'_>, name: &str) -> Option<Payload> {
    let value = fields.value(name).filter(|value| value.get() != "null")?;
    Some(Payload::new(value.to_owned()))
}

/// Returns the named fields that are present, as one object.
fn present_fields(fields: &Fields<'_>, names: &[&str]) -> Option<Payload> {
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

/// The limits of `undoable_for`: from one second to ten years.
const UNDOABLE_FOR: RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(3650 * 86_400);
const PERIOD: RangeInclusive<Span> = Span::from_millis(100)..=Span::from_secs(30 * 86_400);

pub(super) fn on_exhausted(fields: &mut Fields<'_>, words: &[Policy]) -> Option<OnExhausted> {
    if !fields.is_object("on_exhausted") {
        let or = " or { \"extend\": \"10m\", \"times\": 5, \"then\": \"error\" }";
        return take_policy(fields, "on_exhausted", words, or).map(OnExhausted::from);
    }
    let mut extend = fields.object("on_exhausted")?;
    if !extend.has("extend") {
        extend.missing("extend", "give the length of the wait, such as \"10m\"");
    }
    let wait = extend.span("extend", PERIOD);
    let times = extend.integer("times", 1..=1000).unwrap_or(1);
    let then = take_policy(&mut extend, "then", words, "");
    if let Err(faults) = extend.finish() {
        fields.extend(faults);
    }
    Some(OnExhausted {
        extend: Some(Extend {
            wait: wait?,
            // The value is within 1 to 1000.
            times: times as u32,
        }),
        then: then.unwrap_or(Policy::Error),
    })
}

pub(super) fn on_permanent(fields: &mut Fields<'_>, words: &[Policy]) -> Option<Policy> {
    take_policy(fields, "on_permanent", words, "")
}

/// Takes the policy of a step for permanent errors, with its policies for certain statuses.
pub(super) fn on_permanent_by_status(
    fields: &mut Fields<'_>,
    words: &[Policy],
) -> (Option<Policy>, Option<StatusPolicies>) {
    if fields.is_object("on_permanent") {
        let (by_status, otherwise) = status_policies::read(fields, "on_permanent", words);
        return (otherwise, by_status);
    }
    let or = " or { \"404\": \"skip\", \"else\": \"error\" }";
    (take_policy(fields, "on_permanent", words, or), None)
}

/// Takes the policy of a step that is not tried again, with its policies for certain statuses.
pub(super) fn on_exhausted_by_status(
    fields: &mut Fields<'_>,
    words: &[Policy],
) -> (Option<OnExhausted>, Option<StatusPolicies>) {
    let is_by_status = fields.peek("on_exhausted").is_some_and(|value| {
        let members = serde_json::from_str::<BTreeMap<String, &RawValue>>(value);
        members.is_ok_and(|members| members.keys().any(|name| status_policies::is_name(name)))
    });
    if is_by_status {
        let extends = fields.peek("on_exhausted").is_some_and(|value| {
            let members = serde_json::from_str::<BTreeMap<String, &RawValue>>(value);
            members.is_ok_and(|members| {
                members.contains_key("extend")
                    || members.values().any(|value| value.get().starts_with('{'))
            })
        });
        if extends {
            fields.value("on_exhausted");
            fields.fault(
                "on_exhausted",
                "has either policies by status or an extension, which is for all statuses: { \"extend\": \"10m\", \"times\": 5, \"then\": \"error\" }",
            );
            return (None, None);
        }
        let (by_status, otherwise) = status_policies::read(fields, "on_exhausted", words);
        return (otherwise.map(OnExhausted::from), by_status);
    }
    (on_exhausted(fields, words), None)
}

/// Takes a policy that is written as a word.
fn take_policy(fields: &mut Fields<'_>, name: &str, words: &[Policy], or: &str) -> Option<Policy> {
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
