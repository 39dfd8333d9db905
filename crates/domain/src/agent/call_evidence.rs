//! The evidence that a call gives about its endpoint: its health, which breakers and ejections count, and the load
//! that it can take, to which an adaptive limit adapts.

use http::StatusCode;

use super::adaptive::LoadSample;
use crate::{task::CallOutcome, values::fault::Fault};

/// Returns whether a transient fault is a sign of ill health. A service that asks for fewer calls, or for another token,
/// is well.
pub fn is_ill_health(fault: &Fault) -> bool {
    const WELL: [StatusCode; 2] = [StatusCode::TOO_MANY_REQUESTS, StatusCode::UNAUTHORIZED];
    !WELL.iter().any(|well| fault.status == Some(well.as_u16()))
}

impl<'f> LoadSample<'f> {
    /// Returns the evidence of a call that was not a transient fault of its service.
    pub fn of_outcome(outcome: &CallOutcome) -> Self {
        match outcome {
            CallOutcome::Success(_)
            | CallOutcome::Kept { .. }
            | CallOutcome::Deferred
            | CallOutcome::PollAt { .. }
            | CallOutcome::Polled { .. }
            | CallOutcome::Probed { .. } => Self::Served,
            CallOutcome::Failed(_) | CallOutcome::Crashed(_) | CallOutcome::Transient { .. } => {
                Self::Unclear
            }
        }
    }

    /// Returns the evidence of a transient fault.
    pub fn of_transient(fault: &'f Fault) -> Self {
        const FULL: [StatusCode; 4] = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::BAD_GATEWAY,
            StatusCode::SERVICE_UNAVAILABLE,
            StatusCode::GATEWAY_TIMEOUT,
        ];
        match fault.status {
            Some(status) if !FULL.iter().any(|full| status == full.as_u16()) => Self::Unclear,
            // Without a status, there was no connection, or it broke.
            Some(_) | None => Self::Refused(&fault.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::time::Timestamp;

    fn transient(status: Option<u16>) -> Fault {
        Fault {
            status,
            ..Fault::transient("busy", Timestamp::from_millis(0))
        }
    }

    #[test]
    fn a_service_that_asks_for_fewer_calls_is_full_and_well() {
        for (status, is_ill, is_full) in [
            (None, true, true),
            (Some(401), false, false),
            (Some(408), true, false),
            (Some(429), false, true),
            (Some(500), true, false),
            (Some(502), true, true),
            (Some(503), true, true),
            (Some(504), true, true),
        ] {
            let fault = transient(status);
            assert_eq!(is_ill_health(&fault), is_ill, "{status:?}");
            let expected = match is_full {
                true => LoadSample::Refused("busy"),
                false => LoadSample::Unclear,
            };
            assert_eq!(LoadSample::of_transient(&fault), expected, "{status:?}");
        }
    }

    #[test]
    fn a_call_that_failed_at_once_says_nothing_about_load() {
        let failed = CallOutcome::Failed(transient(Some(404)));
        assert_eq!(LoadSample::of_outcome(&failed), LoadSample::Unclear);
        let promised = CallOutcome::Deferred;
        assert_eq!(LoadSample::of_outcome(&promised), LoadSample::Served);
    }
}
