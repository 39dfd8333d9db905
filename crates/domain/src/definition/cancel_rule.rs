//! `cancel`: the request to a service whose promised reply is no longer awaited.

use super::{Method, ReplyRule, RequestTemplate, request};
use crate::{
    template::{Origin, Reads},
    values::fields::Fields,
};

#[derive(Debug)]
pub struct CancelRule {
    /// The request. `None`: a DELETE to the address at which the service is polled.
    pub request: Option<RequestTemplate>,
}

/// Reads the field `cancel` of a step, and collects the names that its expressions read.
pub(super) fn read(
    step: &mut Fields<'_>,
    reply: &ReplyRule,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<CancelRule> {
    let mut fields = step.object("cancel")?;
    let is_given = fields.has("request");
    let request = request::read(&mut fields, Method::Delete, origin, reads).filter(|_| is_given);
    if let Err(faults) = fields.finish() {
        step.extend(faults);
        return None;
    }
    if !is_given && !matches!(reply, ReplyRule::Poll(_)) {
        step.fault(
            "cancel",
            "needs the request that cancels the work, such as { \"request\": { \"path\": \"/jobs/{{ task.id }}\" } }: only an operation that is polled has an address",
        );
    }
    Some(CancelRule {
        request: request.map(|request| request.finish()),
    })
}
