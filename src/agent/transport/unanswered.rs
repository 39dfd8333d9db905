//! The outcome of a call that got no complete response.

use super::attempt::{CallAttempt, Transient};
use crate::agent::{
    client::{
        address,
        connector::{Unanswered, root_cause},
    },
    routing::RoutedEndpoint,
};
use crate::domain::{task::CallOutcome, values::Effect};

/// Classifies a call that got no complete response.
pub(super) fn broken(
    endpoint: &RoutedEndpoint,
    request: CallAttempt<'_>,
    unanswered: &Unanswered,
) -> Result<CallOutcome, Transient> {
    let error = unanswered.error();
    if let Some(refusal) = address::refusal_in(error) {
        return Ok(request.permanent(refusal.to_string()));
    }
    let cause = root_cause(error);
    let url = &endpoint.url;
    if let Unanswered::Unconnected(_) = unanswered {
        return Err(request.transient(format!("could not connect to {url}: {cause}")));
    }
    if let Unanswered::Unprocessed(_) = unanswered {
        // Nothing was done, so the effect is known.
        return Err(request.transient(format!("the call to {url} failed: {cause}")));
    }
    let mut broken = request.transient(format!("the call to {url} broke off: {cause}"));
    broken.fault.effect = Effect::Unknown;
    Err(broken)
}
