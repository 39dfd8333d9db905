//! A probe: a GET that finds out whether an attempt of unknown effect took effect.

use std::sync::Arc;

use http::StatusCode;

use super::{
    AttemptRules, Method, RequestTemplate, attempt_rules::RulesOf, policies::COMPLETE_WITHIN_RANGE,
    request,
};
use crate::{
    template::{Expression, Origin, Reads, RenderError, Scope, payload::Payload},
    values::{fields::Fields, time::Span},
};

const DEFAULT_WITHIN: Span = Span::from_secs(10);

#[derive(Debug)]
pub struct Probe {
    pub request: RequestTemplate,
    /// Evaluates to `done`, `not_done` or `in_progress`. Without it the status decides: 404 and 410 mean not done, 2xx
    /// means done.
    pub outcome: Option<Expression>,
    /// The step's output if it is done. `None`: the body of the response.
    pub output: Option<Expression>,
    pub complete_within: Span,
    /// The rules for its attempts, if it has any.
    pub attempts: Option<Arc<AttemptRules>>,
}

/// The finding of a probe.
#[derive(Clone, PartialEq, Debug)]
pub enum Finding {
    /// The step took effect; the payload is its output.
    Done(Payload),
    NotDone,
    /// The service is still working on the step. It is probed again later.
    InProgress,
}

impl Probe {
    /// `scope` holds the response to the probe as `response`. The error text is for an operator: the definition or the
    /// service is wrong.
    pub fn judge(&self, status: u16, body: &Payload, scope: &Scope<'_>) -> Result<Finding, String> {
        let done = || match &self.output {
            Some(output) => output.payload(scope).map_err(in_words),
            None => Ok(body.clone()),
        };
        let Some(outcome) = &self.outcome else {
            return Ok(match StatusCode::from_u16(status) {
                Ok(StatusCode::NOT_FOUND | StatusCode::GONE) => Finding::NotDone,
                _ => Finding::Done(done()?),
            });
        };
        let word = outcome.payload(scope).map_err(in_words)?;
        match word.as_json() {
            "\"done\"" => Ok(Finding::Done(done()?)),
            "\"not_done\"" => Ok(Finding::NotDone),
            "\"in_progress\"" => Ok(Finding::InProgress),
            other => Err(format!(
                "its probe's `outcome` returned {other}, but must return \"done\", \"not_done\" or \"in_progress\""
            )),
        }
    }
}

fn in_words(error: RenderError) -> String {
    format!("its probe's response could not be parsed: {error}")
}

/// Reads the field `probe` of a step, and collects the names that its expressions read.
pub(super) fn read(
    step: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<Probe> {
    let mut fields = step.object("probe")?;
    if !fields.has("request") {
        fields.missing(
            "request",
            "give the GET that finds out whether the step took effect, such as { \"path\": \"/charges/{{ task.id }}\" }",
        );
    }
    let request = request::read(&mut fields, Method::Get, origin, reads);
    if let Some(request) = &request
        && request.method != Method::Get
    {
        fields.fault(
            "request",
            "a probe must not change anything: its method is GET",
        );
    }
    let mut expression = |name: &str| {
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
    };
    let outcome = expression("outcome");
    let output = expression("output");
    let complete_within = fields.span("complete_within", COMPLETE_WITHIN_RANGE);
    let attempts = AttemptRules::read(
        &mut fields,
        RulesOf::Probe,
        origin,
        [None, None],
        None,
        &mut Vec::new(),
    );
    if let Err(faults) = fields.finish() {
        step.extend(faults);
        return None;
    }
    Some(Probe {
        request: request?.finish(),
        outcome,
        output,
        complete_within: complete_within.unwrap_or(DEFAULT_WITHIN),
        attempts,
    })
}
