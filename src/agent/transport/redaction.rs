//! Hides the secrets of an agent in what its service has returned.

use super::attempt::Transient;
use crate::domain::{
    task::{CallOutcome, Redactor},
    template::Payload,
    values::Fault,
};

pub(in crate::agent) fn without_secrets(body: Vec<u8>, redactor: Option<&Redactor>) -> Vec<u8> {
    match redactor {
        Some(redactor) => redactor.hide_in_body(body),
        None => body,
    }
}

/// Hides secrets in messages about failures: they may quote the service, as a header, the name of a host, or an error of its TLS.
pub(super) fn without_secrets_in_messages(
    result: Result<CallOutcome, Transient>,
    redactor: &Redactor,
) -> Result<CallOutcome, Transient> {
    let hidden = |mut fault: Fault| {
        fault.message = redactor.hide_in_text(fault.message);
        fault
    };
    match result {
        Ok(CallOutcome::Failed(fault)) => Ok(CallOutcome::Failed(hidden(fault))),
        Ok(CallOutcome::Crashed(fault)) => Ok(CallOutcome::Crashed(hidden(fault))),
        Err(Transient { fault, retry_after }) => Err(Transient {
            fault: hidden(fault),
            retry_after,
        }),
        other => other,
    }
}

/// Hides the address for the reply in all that its service has returned.
pub(super) fn without_address(
    result: Result<CallOutcome, Transient>,
    address: &Redactor,
) -> Result<CallOutcome, Transient> {
    let hidden = |output: Payload| match address.hide(output.as_json().as_bytes()) {
        Some(hidden) => {
            let hidden = String::from_utf8(hidden).ok().and_then(Payload::parse);
            hidden.unwrap_or_else(Payload::null)
        }
        None => output,
    };
    let in_fault = |mut fault: Fault| {
        fault.body = fault.body.map(|body| address.hide_in_text(body));
        fault
    };
    Ok(match without_secrets_in_messages(result, address) {
        Ok(CallOutcome::Success(output)) => CallOutcome::Success(hidden(output)),
        Ok(CallOutcome::Kept { output, response }) => CallOutcome::Kept {
            output: hidden(output),
            response,
        },
        Ok(CallOutcome::Failed(fault)) => CallOutcome::Failed(in_fault(fault)),
        Ok(CallOutcome::Crashed(fault)) => CallOutcome::Crashed(in_fault(fault)),
        Ok(other) => other,
        Err(Transient { fault, retry_after }) => {
            return Err(Transient {
                fault: in_fault(fault),
                retry_after,
            });
        }
    })
}

pub(in crate::agent) fn text_without_secrets(text: String, redactor: Option<&Redactor>) -> String {
    match redactor {
        Some(redactor) => redactor.hide_in_text(text),
        None => text,
    }
}
