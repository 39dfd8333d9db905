//! The way in which the reply to a call comes, and the time for which its service may be silent before: for a step, and
//! for its undo.

use std::ops::RangeInclusive;

use super::{ReplyRule, names::REPLY, poll_rule};
use crate::{
    template::{Origin, Reads},
    values::{fields::Fields, time::Span},
};

/// The limits of the time for which a service that replies later may be silent.
const HEARTBEAT: RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(30 * 86_400);

/// Returns whether the expressions of a request read the address for the reply.
pub(super) fn reads_reply(reads: &[(String, Reads)]) -> bool {
    reads.iter().any(|(_, reads)| reads.names.contains(REPLY))
}

/// Reads the fields `reply` and `heartbeat_within`, and collects the names that the expressions read.
/// `takes_later_replies` returns an error that says why services cannot reply later.
pub(super) fn read(
    fields: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
    takes_later_replies: impl Fn() -> Result<(), String>,
) -> (ReplyRule, Option<Span>) {
    let reply = poll_rule::read(fields, origin, reads).unwrap_or(ReplyRule::Response);
    if let ReplyRule::Callback = reply
        && let Err(why) = takes_later_replies()
    {
        fields.fault("reply", why);
    }
    let heartbeat_within = fields.span("heartbeat_within", HEARTBEAT);
    if let (ReplyRule::Poll(_), Some(_)) = (&reply, heartbeat_within) {
        fields.fault(
            "heartbeat_within",
            "is for services that reply by themselves: one that is polled sends no heartbeats; remove it",
        );
    }
    (reply, heartbeat_within)
}
