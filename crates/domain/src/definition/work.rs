//! The work of a step: it calls a service, waits for an event (a time, or a signal), or has a child.

use std::{ops::RangeInclusive, sync::Arc};

use super::{
    AskRule, FromInput, GroupRule, KnownAgents, Policy, RequestTemplate, Target, ask_rule,
    child_rule,
    child_rule::ChildRule,
    from_input,
    inline::Nesting,
    set,
    set::{SetRule, StopRule},
};
use crate::{
    definition::payload_schema::PayloadSchema,
    template::{Expression, Origin, Reads, Scope, Template},
    values::{
        fields::Fields,
        time::{SPAN_FORMS, Span, Timestamp},
    },
};

#[derive(Debug)]
pub enum StepWork {
    /// The step calls a service.
    Call {
        target: Target,
        request: RequestTemplate,
    },
    /// The step waits for a time.
    Wait(WaitRule),
    /// The step awaits a signal, by which a caller says that an event has happened.
    Signal(SignalRule),
    /// The step has a child, and ends when the child is done or, for an undo, undone.
    Task(Arc<ChildRule>),
    /// The step only names values.
    Set(SetRule),
    /// The step ends the task on purpose.
    Stop(StopRule),
    /// The step is a group, and its items do the work.
    Group(Box<GroupRule>),
}

/// A signal that a step awaits.
#[derive(Clone, Debug)]
pub struct SignalRule {
    /// The time for which it is awaited; the longest one, if the input gives it.
    pub within: Span,
    pub within_from: Option<Arc<FromInput<Span>>>,
    /// The policy for the case that no signal has come in the time `within`.
    pub on_timeout: Policy,
    /// The schema that the payload of the signal must match.
    pub schema: Option<Arc<PayloadSchema>>,
    /// The step accepts only a signal for which this expression is true.
    pub matches: Option<Arc<Expression>>,
    /// Decides about a signal that comes before the step is ready.
    pub early: EarlySignal,
    /// Set if people are asked, whose decision is the signal.
    pub ask: Option<Arc<AskRule>>,
}

/// Decides about a signal that comes before its step is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum EarlySignal {
    /// It is kept for the step.
    #[default]
    Keep,
    /// It is refused, and its sender may send it again.
    Refuse,
}

impl EarlySignal {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

impl StepWork {
    /// Returns the target of the call.
    pub fn target(&self) -> Option<&Target> {
        match self {
            StepWork::Call { target, .. } => Some(target),
            StepWork::Wait(_)
            | StepWork::Signal(_)
            | StepWork::Task(_)
            | StepWork::Set(_)
            | StepWork::Stop(_)
            | StepWork::Group(_) => None,
        }
    }

    /// Returns the ask of a step that asks people.
    pub fn ask(&self) -> Option<&Arc<AskRule>> {
        match self {
            StepWork::Signal(rule) => rule.ask.as_ref(),
            StepWork::Call { .. }
            | StepWork::Wait(_)
            | StepWork::Task(_)
            | StepWork::Set(_)
            | StepWork::Stop(_)
            | StepWork::Group(_) => None,
        }
    }

    /// Returns the kind of work; for a group that of its items.
    pub fn kind(&self) -> StepKind {
        match self {
            StepWork::Group(group) => group.item.work.kind(),
            StepWork::Call { .. } => StepKind::Call,
            StepWork::Wait(_) => StepKind::Wait,
            StepWork::Signal(_) => StepKind::Signal,
            StepWork::Task(_) => StepKind::Task,
            StepWork::Set(rule) => rule.kind(),
            StepWork::Stop(_) => StepKind::Stop,
        }
    }
}

/// The kind of work of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum StepKind {
    Call,
    Wait,
    Signal,
    Task,
    Set,
    Stop,
    Block,
}

impl StepKind {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// The end of a wait: after a duration or at a time.
#[derive(Debug)]
pub enum WaitRule {
    /// The wait ends when this duration has passed since the step became ready.
    For(Template),
    /// The wait ends at this time.
    Until(Template),
}

const TIME_FORMS: &str = "a time such as \"2026-02-03T04:05:06Z\"";

impl WaitRule {
    /// Returns the name of the field, and its template.
    pub fn field(&self) -> (&'static str, &Template) {
        match self {
            WaitRule::For(span) => ("for", span),
            WaitRule::Until(time) => ("until", time),
        }
    }

    /// Returns the end of a wait that begins at `begin`, if that does not depend on data.
    pub fn known_end(&self, begin: Timestamp) -> Option<Timestamp> {
        let (_, template) = self.field();
        if !template.is_literal() {
            return None;
        }
        let text = template.outline("");
        match self {
            WaitRule::For(_) => Span::parse(&text).map(|span| begin + span),
            WaitRule::Until(_) => Timestamp::parse(&text),
        }
    }

    /// Returns the end of a wait that begins `now`. The error text is for an operator: the definition or the data is
    /// wrong.
    pub fn end(&self, scope: &Scope<'_>, now: Timestamp) -> Result<Timestamp, String> {
        match self {
            WaitRule::For(span) => {
                let text = rendered("for", span, scope)?;
                Ok(now + span_of(&text).map_err(|fault| format!("`wait.for` {fault}"))?)
            }
            WaitRule::Until(time) => {
                let text = rendered("until", time, scope)?;
                let until = time_of(&text).map_err(|fault| format!("`wait.until` {fault}"))?;
                check_until(&text, until, now)?;
                Ok(until)
            }
        }
    }

    /// Returns the end if the definition itself names it as a time.
    pub(super) fn literal_until(&self) -> Option<LiteralUntil> {
        let WaitRule::Until(template) = self else {
            return None;
        };
        if !template.is_literal() {
            return None;
        }
        let text = template.outline("");
        let until = Timestamp::parse(&text)?;
        Some(LiteralUntil { text, until })
    }
}

/// The end of a wait that is a fixed time in the definition.
pub(super) struct LiteralUntil {
    text: String,
    until: Timestamp,
}

impl LiteralUntil {
    pub fn check(&self, now: Timestamp) -> Result<(), String> {
        check_until(&self.text, self.until, now)
    }
}

fn check_until(text: &str, until: Timestamp, now: Timestamp) -> Result<(), String> {
    match until > now + Span::LONGEST {
        false => Ok(()),
        true => Err(format!(
            "`wait.until` gives {text}, which is more than {} away",
            Span::LONGEST
        )),
    }
}

fn rendered(field: &str, template: &Template, scope: &Scope<'_>) -> Result<String, String> {
    let text = template.render_text(scope);
    text.map_err(|error| format!("`wait.{field}` could not be evaluated: {error}"))
}

fn span_of(text: &str) -> Result<Span, String> {
    let span = Span::parse(text).filter(|span| *span <= Span::LONGEST);
    span.ok_or_else(|| {
        format!(
            "must give {SPAN_FORMS}, of at most {}, not {}",
            Span::LONGEST,
            excerpt(text)
        )
    })
}

fn time_of(text: &str) -> Result<Timestamp, String> {
    let time = Timestamp::parse(text);
    time.ok_or_else(|| format!("must give {TIME_FORMS}, not {}", excerpt(text)))
}

/// The longest excerpt of a wrong value in a message, in characters.
const LONGEST_EXCERPT: usize = 60;

fn excerpt(text: &str) -> String {
    let short: String = text.chars().take(LONGEST_EXCERPT).collect();
    match short.len() < text.len() {
        true => format!("{short:?}…"),
        false => format!("{short:?}"),
    }
}

/// The fields each of which says what a step does that calls no service.
const WORKS: [&str; 5] = ["wait", "signal", "task", "set", "stop"];

/// The fields that are allowed only in steps that call a service.
const OF_CALLS: [&str; 17] = [
    "agent",
    "url",
    "request",
    "complete_within",
    "max_failures",
    "on_exhausted",
    "on_undo",
    "pivot",
    "probe",
    "undo",
    "reply",
    "heartbeat_within",
    "cancel",
    "keep_headers",
    "max_attempts",
    "retry",
    "failed",
];

/// The fields of [`OF_CALLS`] that a step with a child can have as well.
const ALSO_OF_TASKS: [&str; 2] = ["complete_within", "pivot"];

/// The limits of the time for which a signal is awaited.
const SIGNAL_WITHIN_RANGE: RangeInclusive<Span> = Span::from_secs(1)..=Span::LONGEST;

/// Reads the work of a step that calls no service, and collects the names that its expressions read. Returns `None` if
/// the step has none of the fields for such work, and `Some(None)` if the field has a fault. `on_timeout` is the policy
/// of a signal that does not set one, and `nesting` the place of this definition in others.
pub(super) fn read_uncalled_work(
    step: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
    signal_reads: &mut Vec<(String, Reads)>,
    known: &dyn KnownAgents,
    on_timeout: Policy,
    nesting: Nesting,
) -> Option<Option<StepWork>> {
    let is_there = WORKS.map(|field| step.peek(field).is_some());
    let task = step.peek("task").is_some();
    let mut own = WORKS.into_iter().zip(is_there);
    let mut own = own
        .by_ref()
        .filter(|(_, is_there)| *is_there)
        .map(|(field, _)| field);
    let Some(first) = own.next() else {
        // The fields are null or missing. They are taken so that they are not reported as unknown.
        for field in WORKS {
            step.value(field);
        }
        return None;
    };
    for field in OF_CALLS {
        if task && ALSO_OF_TASKS.contains(&field) {
            continue;
        }
        if step.value(field).is_some() {
            step.fault(
                field,
                format!("belongs to steps that call a service: remove it, or remove `{first}`"),
            );
        }
    }
    for other in own {
        step.fault(
            other,
            format!("give either `{first}` or `{other}`, not both"),
        );
    }
    let waits = read_wait(step, origin, reads).map(StepWork::Wait);
    let signals = read_signal(step, origin, reads, signal_reads, known, on_timeout);
    let signals = signals.map(StepWork::Signal);
    let task = child_rule::read(step, origin, reads, known, nesting).map(Arc::new);
    let sets = set::read_set(step, origin, reads).map(StepWork::Set);
    let stops = set::read_stop(step, origin, reads).map(StepWork::Stop);
    let task = task.map(StepWork::Task);
    Some(waits.or(signals).or(task).or(sets).or(stops))
}

fn read_signal(
    step: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
    signal_reads: &mut Vec<(String, Reads)>,
    known: &dyn KnownAgents,
    default_policy: Policy,
) -> Option<SignalRule> {
    let mut fields = step.object("signal")?;
    let ask = ask_rule::read(&mut fields, origin, reads, known);
    if fields.peek("within").is_none() {
        fields.missing("within", "say how long it is awaited, such as \"3d\"");
    }
    let (within, within_from) =
        from_input::span(&mut fields, "within", SIGNAL_WITHIN_RANGE, origin);
    let on_timeout = fields.choice("on_timeout", Policy::ALL);
    let schema = fields.value("schema").filter(|value| value.get() != "null");
    let schema = schema.and_then(|schema| {
        let read = PayloadSchema::read(schema, &fields.pointer("schema"), origin);
        read.map_err(|faults| fields.extend(faults)).ok()
    });
    let early = fields.choice("early", EarlySignal::ALL);
    if ask.is_some() && early.is_some() {
        fields.fault("early", "belongs to a signal that anybody sends: people decide only when they are asked; remove it");
    }
    let source = fields.string("match", usize::MAX);
    let matches = source.and_then(|source| match Expression::parse(&source, origin) {
        Ok(expression) => {
            signal_reads.push((fields.pointer("match"), expression.reads().clone()));
            Some(expression)
        }
        Err(message) => {
            fields.fault("match", message);
            None
        }
    });
    if let Err(faults) = fields.finish() {
        step.extend(faults);
        return None;
    }
    Some(SignalRule {
        within: within?,
        within_from: within_from.map(Arc::new),
        on_timeout: on_timeout.unwrap_or(default_policy),
        schema: schema.map(Arc::new),
        matches: matches.map(Arc::new),
        early: early.unwrap_or_default(),
        ask: ask.map(Arc::new),
    })
}

fn read_wait(
    step: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<WaitRule> {
    let mut fields = step.object("wait")?;
    let [has_for, has_until] = ["for", "until"].map(|field| fields.peek(field).is_some());
    if has_for && has_until {
        fields.fault("until", "give either `for` or `until`, not both");
    } else if !has_for && !has_until {
        fields.missing("for", format_args!("give {SPAN_FORMS}, or `until`"));
    }
    let mut template = |name: &str, check: &dyn Fn(&str) -> Result<(), String>| {
        let source = fields.string(name, usize::MAX)?;
        let template = match Template::parse(&source, origin) {
            Ok(template) => template,
            Err(message) => {
                fields.fault(name, message);
                return None;
            }
        };
        if template.is_literal()
            && let Err(message) = check(&template.outline(""))
        {
            fields.fault(name, message);
            return None;
        }
        reads.push((fields.pointer(name), template.reads()));
        Some(template)
    };
    let span = template("for", &|text| span_of(text).map(|_| ()));
    let time = template("until", &|text| time_of(text).map(|_| ()));
    if let Err(faults) = fields.finish() {
        step.extend(faults);
        return None;
    }
    span.map(WaitRule::For).or(time.map(WaitRule::Until))
}
