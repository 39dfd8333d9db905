//! What undoes a step: a request of its own, with limits and policies of its own.

use super::{
    Method, OnExhausted, Policy, ReplyRule,
    policies::{on_exhausted, on_permanent},
    reply_rule,
    request::{self, RequestDraft},
    step::{DEFAULT_MAX_FAILURES, DEFAULT_TRY, TRY},
};
use crate::{
    fields::Fields,
    template::{Origin, Reads},
    time::Span,
};

/// What was read of the field `undo`.
pub(super) struct UndoDraft {
    pub request: RequestDraft,
    /// What each expression looks at, with its position in the body.
    pub reads: Vec<(String, Reads)>,
    pub complete_within: Span,
    pub max_failures: u32,
    pub on_exhausted: OnExhausted,
    pub on_permanent: Policy,
    pub reply: ReplyRule,
    pub reply_reads: Vec<(String, Reads)>,
    pub heartbeat_within: Option<Span>,
}

/// An undo that fails is never answered by another undo.
const ALLOWED: [Policy; 2] = [Policy::Error, Policy::Skip];

/// Reads the field `undo` of a step. `takes_later_replies`: or why not.
pub(super) fn read(
    step: &mut Fields<'_>,
    origin: Origin<'_>,
    takes_later_replies: impl Fn() -> Result<(), String>,
) -> Option<UndoDraft> {
    let mut fields = step.object("undo")?;
    if !fields.has("request") {
        fields.missing(
            "request",
            "give the action that undoes the step, such as { \"method\": \"DELETE\", \"path\": \"/charges/{{ output.id }}\" }",
        );
    }
    let mut reads = Vec::new();
    let request = request::read(&mut fields, Method::Post, origin, &mut reads);
    let complete_within = fields.span("complete_within", TRY);
    let max_failures = fields.integer("max_failures", 0..=1000);
    let on_exhausted = on_exhausted(&mut fields, &ALLOWED);
    let on_permanent = on_permanent(&mut fields, &ALLOWED);
    let mut reply_reads = Vec::new();
    let (reply, heartbeat_within) =
        reply_rule::read(&mut fields, origin, &mut reply_reads, takes_later_replies);
    if let Err(faults) = fields.finish() {
        step.extend(faults);
        return None;
    }
    Some(UndoDraft {
        request: request?,
        reads,
        complete_within: complete_within.unwrap_or(DEFAULT_TRY),
        // Within 0 to 1000.
        max_failures: max_failures.map_or(DEFAULT_MAX_FAILURES, |most| most as u32),
        on_exhausted: on_exhausted.unwrap_or(Policy::Error.into()),
        on_permanent: on_permanent.unwrap_or(Policy::Error),
        reply,
        reply_reads,
        heartbeat_within,
    })
}
