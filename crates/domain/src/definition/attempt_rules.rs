//! The rules for the attempts of a call that most steps do without: they take one pointer of a step that has none.

use std::{sync::Arc, time::Duration};

use http::HeaderName;

use super::{
    FromInput, Policy,
    status_policies::{StatusPattern, StatusPolicies, StatusPolicy},
};
use crate::{
    template::{Expression, Origin, Reads, Scope, payload::Payload},
    values::{
        backoff::Backoff,
        fault::{Effect, Fault, FaultKind},
        fields::{FieldFault, Fields, text},
        hidden::is_secret_header,
        time::Span,
    },
};

/// The rules for the attempts of a step, of its undo, or of its probe.
#[derive(Debug, Default)]
pub struct AttemptRules {
    /// The headers of the response that are kept with its status. `None`: neither is kept.
    pub keep_headers: Option<Box<[HeaderName]>>,
    /// The number of attempts after which the step is not tried again, until an operator retries it.
    pub max_attempts: Option<u32>,
    pub retry: Option<RetryRule>,
    /// The policies for permanent errors with certain statuses. For all others `on_permanent` of the step applies.
    pub on_permanent: Option<StatusPolicies>,
    /// The same for a step that is not tried again. For all others `on_exhausted` of the step applies.
    pub on_exhausted: Option<StatusPolicies>,
    /// Recognises an error in the body of a success.
    pub failed: Option<FailedRule>,
    /// The time of an attempt, if the input gives it. Otherwise `complete_within` of the step applies, which is the
    /// maximum here.
    pub complete_within: Option<FromInput<Span>>,
}

/// The faults after which a call is made again, and the waits before that.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RetryRule {
    /// `None`: the waits of the agent.
    pub waits: Option<RetryWaits>,
    /// `None`: the faults that are transient by themselves.
    pub on: Option<Box<[RetriedFault]>>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RetryWaits {
    pub backoff: Backoff,
    /// True if each wait is a random one between zero and that of the backoff.
    pub has_jitter: bool,
}

impl RetryWaits {
    /// Returns the wait after this many faults in a row. `chance` is a random number from 0 to 1.
    pub fn wait(&self, faults: u32, chance: f64) -> Duration {
        match self.has_jitter {
            true => self.backoff.full_jitter(faults, chance),
            false => self.backoff.wait(faults),
        }
    }
}

/// A fault after which a call is made again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetriedFault {
    Status(StatusPattern),
    /// There was no connection, so that nothing was done.
    Connect,
    /// The call broke off, so that it may have taken effect.
    Broken,
}

impl RetriedFault {
    fn matches(self, fault: &Fault) -> bool {
        match (self, fault.status) {
            (Self::Status(pattern), Some(status)) => pattern.matches(status),
            (Self::Connect, None) => fault.effect == Effect::Known,
            (Self::Broken, None) => fault.effect == Effect::Unknown,
            (Self::Status(_), None) | (Self::Connect | Self::Broken, Some(_)) => false,
        }
    }
}

/// The condition under which the output of a call is an error, and the error's message.
#[derive(Debug)]
pub struct FailedRule {
    pub when: Expression,
    pub message: Option<Expression>,
}

/// The longest message that a service has in a fault, in bytes.
const LONGEST_MESSAGE: usize = 500;

impl FailedRule {
    /// Returns the message if the output is an error. `scope` has the output. The error text is for an operator: the
    /// definition or the service is wrong.
    pub fn judge(&self, scope: &Scope<'_>) -> Result<Option<String>, String> {
        let in_words = |error| format!("`failed` could not be evaluated: {error}");
        if !self.when.truth(scope).map_err(in_words)? {
            return Ok(None);
        }
        let Some(message) = &self.message else {
            return Ok(Some("the service reported an error".to_owned()));
        };
        let said = message.payload(scope).map_err(in_words)?;
        let said = serde_json::from_str::<String>(said.as_json())
            .unwrap_or_else(|_| said.as_json().to_owned());
        let end = said.floor_char_boundary(LONGEST_MESSAGE);
        let said = said[..end].replace('\0', "\u{fffd}");
        Ok(Some(format!("the service reported an error: {said}")))
    }
}

/// The call that the rules are for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RulesOf {
    Step,
    Undo,
    Probe,
}

/// The most headers that a step keeps.
const MOST_HEADERS: usize = 16;
/// The most entries of `retry.on`.
const MOST_RETRIED: usize = 50;
const WAIT: std::ops::RangeInclusive<Span> = Span::from_millis(1)..=Span::from_secs(30 * 86_400);
const DEFAULT_INITIAL: Span = Span::from_millis(100);
const DEFAULT_MAX: Span = Span::from_secs(10);

impl AttemptRules {
    /// Reads the rules of a step, its undo or its probe, and collects the names that its expressions read. `policies`
    /// were read before.
    pub(super) fn read(
        fields: &mut Fields<'_>,
        of: RulesOf,
        origin: Origin<'_>,
        policies: [Option<StatusPolicies>; 2],
        complete_within: Option<FromInput<Span>>,
        reads: &mut Vec<(String, Reads)>,
    ) -> Option<Arc<Self>> {
        let is_step = of == RulesOf::Step;
        let [on_permanent, on_exhausted] = policies;
        let max_attempts = fields.integer("max_attempts", 1..=1000);
        let rules = Self {
            keep_headers: is_step.then(|| keep_headers(fields)).flatten(),
            // The value is within 1 to 1000.
            max_attempts: max_attempts.map(|most| most as u32),
            retry: retry(fields),
            on_permanent,
            on_exhausted,
            failed: is_step.then(|| failed(fields, origin, reads)).flatten(),
            complete_within,
        };
        (!rules.is_empty()).then(|| Arc::new(rules))
    }

    fn is_empty(&self) -> bool {
        self.keep_headers.is_none()
            && self.max_attempts.is_none()
            && self.retry.is_none()
            && self.on_permanent.is_none()
            && self.on_exhausted.is_none()
            && self.failed.is_none()
            && self.complete_within.is_none()
    }

    /// Returns whether a call is made again after a fault, if the rules say so.
    pub fn retries(&self, fault: &Fault) -> Option<bool> {
        let on = self.retry.as_ref()?.on.as_ref()?;
        // A request that cannot be made has no status either, and no attempt makes it better.
        let was_made = fault.kind == FaultKind::Transient || fault.status.is_some();
        Some(was_made && on.iter().any(|retried| retried.matches(fault)))
    }

    pub fn waits(&self) -> Option<&RetryWaits> {
        self.retry.as_ref()?.waits.as_ref()
    }

    /// Returns whether a policy for certain statuses is this one.
    pub fn has_policy(&self, policy: Policy) -> bool {
        [&self.on_permanent, &self.on_exhausted]
            .into_iter()
            .flatten()
            .any(|policies| policies.has(StatusPolicy::Policy(policy)))
    }
}

/// The output of a step whose policy counts an error as a success: the body of the response, if it is known whole.
pub fn output_of_error(fault: &Fault) -> Payload {
    match &fault.body {
        Some(body) if body.len() < crate::values::fault::BODY_EXCERPT => {
            Payload::parse(body.clone()).unwrap_or_else(|| Payload::from_string(body))
        }
        _ => Payload::null(),
    }
}

fn keep_headers(fields: &mut Fields<'_>) -> Option<Box<[HeaderName]>> {
    let items = fields.array("keep_headers")?;
    let mut names: Vec<HeaderName> = Vec::with_capacity(items.len().min(MOST_HEADERS));
    if items.len() > MOST_HEADERS {
        let message = format!("has {} names: at most {MOST_HEADERS}", items.len());
        fields.fault("keep_headers", message);
        return None;
    }
    for (at, item) in items.into_iter().enumerate() {
        let name = text(item.get());
        let name = name.and_then(|name| HeaderName::from_bytes(name.as_bytes()).ok());
        let fault = match &name {
            None => "must be the name of a header, such as \"location\"",
            Some(name) if is_secret_header(name.as_str()) => {
                "may be a secret, which the record of a task does not keep: remove it"
            }
            Some(name) if names.contains(name) => "is listed twice: remove one",
            Some(_) => "",
        };
        match name.filter(|_| fault.is_empty()) {
            Some(name) => names.push(name),
            None => {
                let pointer = format!("{}/{at}", fields.pointer("keep_headers"));
                fields.extend([FieldFault::new(pointer, fault)]);
            }
        }
    }
    Some(names.into())
}

fn retry(step: &mut Fields<'_>) -> Option<RetryRule> {
    let mut fields = step.object("retry")?;
    let has_waits = ["initial", "factor", "max", "jitter"]
        .iter()
        .any(|name| fields.has(name));
    let initial = fields.span("initial", WAIT).unwrap_or(DEFAULT_INITIAL);
    let factor = fields.integer("factor", 1..=10).unwrap_or(2);
    let max = fields.span("max", WAIT);
    if let Some(max) = max
        && max < initial
    {
        let message = format!("must be at least as long as `initial` ({initial})");
        fields.fault("max", message);
    }
    let max = max.unwrap_or(DEFAULT_MAX).max(initial);
    let has_jitter = fields.boolean("jitter").unwrap_or(true);
    let on = retried_faults(&mut fields);
    if let Err(faults) = fields.finish() {
        step.extend(faults);
        return None;
    }
    let backoff = Backoff {
        initial: initial.duration(),
        max: max.duration(),
        // The value is within 1 to 10.
        factor: factor as u32,
    };
    Some(RetryRule {
        waits: has_waits.then_some(RetryWaits {
            backoff,
            has_jitter,
        }),
        on,
    })
}

fn retried_faults(fields: &mut Fields<'_>) -> Option<Box<[RetriedFault]>> {
    let items = fields.array("on")?;
    if items.len() > MOST_RETRIED {
        let message = format!("has {} entries: at most {MOST_RETRIED}", items.len());
        fields.fault("on", message);
        return None;
    }
    let mut retried = Vec::with_capacity(items.len());
    for (at, item) in items.into_iter().enumerate() {
        let word = text(item.get());
        let found = match word.as_deref() {
            Some("connect") => Some(RetriedFault::Connect),
            Some("broken") => Some(RetriedFault::Broken),
            word => StatusPattern::parse(word.unwrap_or(item.get())).map(RetriedFault::Status),
        };
        match found {
            Some(found) => retried.push(found),
            None => {
                let pointer = format!("{}/{at}", fields.pointer("on"));
                let message = "must be a status such as 429, a class such as \"5xx\", \"connect\" or \"broken\"";
                fields.extend([FieldFault::new(pointer, message)]);
            }
        }
    }
    Some(retried.into())
}

fn failed(
    step: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<FailedRule> {
    if !step.is_object("failed") {
        let when = expression(step, "failed", origin, reads)?;
        return Some(FailedRule {
            when,
            message: None,
        });
    }
    let mut fields = step.object("failed")?;
    if !fields.has("when") {
        fields.missing(
            "when",
            "give the condition under which the output is an error, such as \"output.ok == false\"",
        );
    }
    let when = expression(&mut fields, "when", origin, reads);
    let message = expression(&mut fields, "message", origin, reads);
    if let Err(faults) = fields.finish() {
        step.extend(faults);
        return None;
    }
    Some(FailedRule {
        when: when?,
        message,
    })
}

fn expression(
    fields: &mut Fields<'_>,
    name: &str,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<Expression> {
    let source = fields.string(name, usize::MAX)?;
    match Expression::parse(&source, origin) {
        Ok(expression) => {
            reads.push((fields.pointer(name), expression.reads().clone()));
            Some(expression)
        }
        Err(message) => {
            fields.fault(name, message);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::{template::Budget, values::time::Timestamp};

    fn read(json: &str) -> Result<Option<Arc<AttemptRules>>, String> {
        let raw = RawValue::from_string(json.to_owned()).unwrap();
        let mut fields = Fields::of(&raw, "").unwrap();
        let budget = Budget::evaluation();
        let origin = Origin::Submitted(&budget);
        let mut reads = Vec::new();
        let rules = AttemptRules::read(
            &mut fields,
            RulesOf::Step,
            origin,
            [None, None],
            None,
            &mut reads,
        );
        let faults = fields.finish().err().unwrap_or_default();
        let faults = faults.iter().map(|fault| fault.message.as_str());
        match faults.collect::<Vec<_>>().join("\n") {
            none if none.is_empty() => Ok(rules),
            faults => Err(faults),
        }
    }

    fn fault(status: Option<u16>, effect: Effect) -> Fault {
        Fault {
            status,
            effect,
            ..Fault::transient("x", Timestamp::from_millis(0))
        }
    }

    #[test]
    fn a_step_without_rules_has_none() {
        assert!(read("{}").unwrap().is_none());
        assert!(read(r#"{"max_attempts": 1}"#).unwrap().is_some());
    }

    #[test]
    fn exactly_the_named_faults_are_retried() {
        let rules = read(r#"{"retry": {"on": [409, "5xx", "connect"]}}"#);
        let rules = rules.unwrap().unwrap();
        for (status, effect, expected) in [
            (Some(409), Effect::Known, true),
            (Some(503), Effect::Unknown, true),
            (Some(429), Effect::Known, false),
            (None, Effect::Known, true),
            (None, Effect::Unknown, false),
        ] {
            let retried = rules.retries(&fault(status, effect));
            assert_eq!(retried, Some(expected), "{status:?}");
        }
        let unmade = Fault::permanent("its address is refused", Timestamp::from_millis(0));
        assert_eq!(rules.retries(&unmade), Some(false));
        assert_eq!(rules.waits(), None, "the waits are those of the agent");
        let rules = read(r#"{"retry": {"initial": "1s"}}"#).unwrap().unwrap();
        assert_eq!(rules.retries(&fault(Some(503), Effect::Known)), None);
    }

    #[test]
    fn waits_grow_and_have_jitter_unless_the_step_says_otherwise() {
        let waits = |json: &str| *read(json).unwrap().unwrap().waits().unwrap();
        let exact =
            waits(r#"{"retry": {"initial": "1s", "factor": 3, "max": "5s", "jitter": false}}"#);
        let millis = [1, 2, 3].map(|faults| exact.wait(faults, 0.5).as_millis());
        assert_eq!(millis, [1000, 3000, 5000]);
        let random = waits(r#"{"retry": {"initial": "1m"}}"#);
        assert_eq!(random.wait(1, 0.5).as_millis(), 30_000);
        assert_eq!(
            random.wait(9, 1.0).as_millis(),
            60_000,
            "`max` follows `initial`"
        );
    }

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        for (json, message) in [
            (r#"{"max_attempts": 0}"#, "1 to 1000"),
            (
                r#"{"retry": {"initial": "2s", "max": "1s"}}"#,
                "at least as long",
            ),
            (
                r#"{"retry": {"on": ["sometimes"]}}"#,
                "must be a status such as 429",
            ),
            (r#"{"retry": {"on": [42]}}"#, "must be a status such as 429"),
            (
                r#"{"failed": {"message": "output.error"}}"#,
                "give the condition",
            ),
            (r#"{"failed": "{{ output.ok }}"}"#, "no braces"),
        ] {
            let found = read(json).unwrap_err();
            assert!(found.contains(message), "{json}: {found}");
        }
    }

    #[test]
    fn the_body_of_an_error_becomes_the_output_if_it_is_whole() {
        let of = |body: Option<String>| {
            let fault = Fault {
                body,
                ..fault(Some(409), Effect::Known)
            };
            output_of_error(&fault).as_json().to_owned()
        };
        assert_eq!(of(Some(r#"{"id":7}"#.to_owned())), r#"{"id":7}"#);
        assert_eq!(of(Some("exists".to_owned())), r#""exists""#);
        assert_eq!(of(Some("x".repeat(4096))), "null");
        assert_eq!(of(None), "null");
    }
}
