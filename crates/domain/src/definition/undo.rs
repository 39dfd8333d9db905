//! The undo of a step: a request of its own, with limits and policies of its own.

use std::sync::Arc;

use super::{
    AttemptRules, Method, OnExhausted, OnUndo, Policy, ReplyRule, StepRule, StepWork, Target,
    attempt_rules::RulesOf,
    from_input,
    policies::{
        COMPLETE_WITHIN_RANGE, DEFAULT_COMPLETE_WITHIN, DEFAULT_MAX_FAILURES,
        on_exhausted_by_status, on_permanent_by_status,
    },
    reply_rule::{self, reads_reply},
    request::{self, RequestDraft},
};
use crate::{
    template::{Origin, Reads},
    values::{fields::Fields, ids::StepIndex, time::Span},
};

/// The field `undo` as it was read.
pub(super) struct UndoDraft {
    pub request: RequestDraft,
    /// The names and steps that each expression reads, with the JSON pointer of the expression.
    pub reads: Vec<(String, Reads)>,
    /// The same for the expressions of the request.
    pub request_reads: Vec<(String, Reads)>,
    pub complete_within: Span,
    pub max_failures: u32,
    pub on_exhausted: OnExhausted,
    pub on_permanent: Policy,
    pub reply: ReplyRule,
    pub reply_reads: Vec<(String, Reads)>,
    pub heartbeat_within: Option<Span>,
    pub attempts: Option<Arc<AttemptRules>>,
}

impl UndoDraft {
    /// Returns the rule of the undo, which calls the agent of the step that it undoes. `reads`: the steps that it reads. `block`: see
    /// [`StepRule::block`].
    pub fn finish(self, target: &Target, reads: Vec<StepIndex>, block: Arc<str>) -> StepRule {
        let reads_request = { self.reads.iter().chain(&self.request_reads) }
            .any(|(_, reads)| reads.names.contains("request"));
        StepRule {
            work: StepWork::Call {
                target: target.clone(),
                request: self.request.finish(),
            },
            reads,
            reads_request,
            reads_reply: reads_reply(&self.request_reads),
            complete_within: self.complete_within,
            max_failures: self.max_failures,
            on_exhausted: self.on_exhausted,
            on_permanent: self.on_permanent,
            on_undo: OnUndo::Wait,
            pivot: false,
            probe: None,
            reply: self.reply,
            heartbeat_within: self.heartbeat_within,
            cancel: None,
            attempts: self.attempts,
            block,
        }
    }
}

/// The policies of an undo. A failed undo is never followed by another undo.
const ALLOWED: [Policy; 2] = [Policy::Error, Policy::Skip];

/// Reads the field `undo` of a step. `takes_later_replies` returns an error that says why services cannot reply later.
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
    let (mut reads, mut request_reads) = (Vec::new(), Vec::new());
    let request = request::read(&mut fields, Method::Post, origin, &mut request_reads);
    let (complete_within, within_from) = from_input::span(
        &mut fields,
        "complete_within",
        COMPLETE_WITHIN_RANGE,
        origin,
    );
    let max_failures = fields.integer("max_failures", 0..=1000);
    let (on_exhausted, exhausted) = on_exhausted_by_status(&mut fields, &ALLOWED);
    let (on_permanent, permanent) = on_permanent_by_status(&mut fields, &ALLOWED);
    let by_status = [permanent, exhausted];
    let attempts = AttemptRules::read(
        &mut fields,
        RulesOf::Undo,
        origin,
        by_status,
        within_from,
        &mut reads,
    );
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
        request_reads,
        complete_within: complete_within.unwrap_or(DEFAULT_COMPLETE_WITHIN),
        // The value is within 0 to 1000.
        max_failures: max_failures.map_or(DEFAULT_MAX_FAILURES, |most| most as u32),
        on_exhausted: on_exhausted.unwrap_or(Policy::Error.into()),
        on_permanent: on_permanent.unwrap_or(Policy::Error),
        reply,
        reply_reads,
        heartbeat_within,
        attempts,
    })
}
