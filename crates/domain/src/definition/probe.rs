//! A probe: a GET that says whether an attempt of unknown outcome took effect.

use http::StatusCode;

use super::{Method, RequestTemplate, request};
use crate::{
    fields::Fields,
    payload::Payload,
    template::{Expression, Origin, Reads, RenderError, Scope},
    time::Span,
};

const DEFAULT_WITHIN: Span = Span::from_secs(10);

#[derive(Debug)]
pub struct Probe {
    pub request: RequestTemplate,
    /// Gives `done`, `not_done` or `in_progress`. Without it the status decides: 2xx done, 404 and 410 not.
    pub outcome: Option<Expression>,
    /// The step's output where it is done; without it the body of the answer.
    pub output: Option<Expression>,
    pub complete_within: Span,
}

/// What a probe found out.
#[derive(Clone, PartialEq, Debug)]
pub enum Finding {
    /// The step took effect; this is its output.
    Done(Payload),
    NotDone,
    /// The service is still at it: it is asked again later.
    InProgress,
}

impl Probe {
    /// `scope` holds the probe's answer as `response`. The error is the definition's or the service's
    /// fault, in words for an operator.
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

/// Reads the field `probe` of a step and notes what its expressions look at.
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
    let complete_within = fields.span("complete_within", super::step::TRY);
    if let Err(faults) = fields.finish() {
        step.extend(faults);
        return None;
    }
    Some(Probe {
        request: request?.finish(),
        outcome,
        output,
        complete_within: complete_within.unwrap_or(DEFAULT_WITHIN),
    })
}
