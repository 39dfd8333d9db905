//! Polling: a service says where its reply will be, and Provost requests it there until it is.

use super::{ReplyMode, ReplyRule};
use crate::{
    template::{Expression, Origin, Reads, RenderError, Scope, payload::Payload},
    values::{fields::Fields, time::Span},
};

const DEFAULT_EVERY: Span = Span::from_secs(5);
/// Polling more often than once a second would be a load on the service.
const EVERY: std::ops::RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(86_400);

/// The rule by which the reply is polled. The expressions see the response to the last poll.
#[derive(Debug)]
pub struct PollRule {
    /// True if the reply is there.
    pub until: Expression,
    /// True if the service has failed permanently. It is evaluated before `until`.
    pub failed: Option<Expression>,
    /// The step's output. `None`: the body of the response.
    pub output: Option<Expression>,
    pub every: Span,
}

/// The finding of a poll.
#[derive(Clone, PartialEq, Debug)]
pub enum PollFinding {
    Done(Payload),
    Failed,
    /// The service must be polled again.
    NotYet,
}

impl PollRule {
    /// `scope` holds the response. The error text is for an operator: the definition or the service is wrong.
    pub fn judge(&self, body: &Payload, scope: &Scope<'_>) -> Result<PollFinding, String> {
        let is_true = |name: &str, condition: &Expression| {
            let truth = condition.truth(scope);
            truth.map_err(|error| in_words(name, &error))
        };
        if let Some(failed) = &self.failed
            && is_true("failed", failed)?
        {
            return Ok(PollFinding::Failed);
        }
        if !is_true("until", &self.until)? {
            return Ok(PollFinding::NotYet);
        }
        let output = match &self.output {
            Some(output) => output.payload(scope),
            None => Ok(body.clone()),
        };
        let output = output.map_err(|error| in_words("output", &error))?;
        Ok(PollFinding::Done(output))
    }
}

fn in_words(name: &str, error: &RenderError) -> String {
    format!("`{name}` of its polling could not be evaluated: {error}")
}

/// Reads the field `reply` of a step, and collects the names that its expressions read.
pub(super) fn read(
    step: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<ReplyRule> {
    if !step.is_object("reply") {
        return step
            .choice_or("reply", ReplyMode::WORDS, " or { \"poll\": … }")
            .map(|mode| match mode {
                ReplyMode::Callback => ReplyRule::Callback,
                ReplyMode::Response | ReplyMode::Poll => ReplyRule::Response,
            });
    }
    let mut reply = step.object("reply")?;
    if reply.peek("poll").is_none() {
        reply.missing(
            "poll",
            "say how to poll, such as { \"until\": \"response.body.done\" }",
        );
    }
    let rule = reply.object("poll").map(|mut fields| {
        if fields.peek("until").is_none() {
            fields.missing(
                "until",
                "give the condition under which the reply is there, such as \"response.body.status == 'done'\"",
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
        let (until, failed, output) = (
            expression("until"),
            expression("failed"),
            expression("output"),
        );
        let every = fields.span("every", EVERY).unwrap_or(DEFAULT_EVERY);
        let rule = until.map(|until| PollRule {
            until,
            failed,
            output,
            every,
        });
        (rule, fields.finish())
    });
    let rule = rule.and_then(|(rule, faults)| {
        if let Err(faults) = faults {
            reply.extend(faults);
        }
        rule
    });
    if let Err(faults) = reply.finish() {
        step.extend(faults);
    }
    rule.map(|rule| ReplyRule::Poll(Box::new(rule)))
}
