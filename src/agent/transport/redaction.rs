//! Hides the secrets of an agent in what its service has returned.

use super::attempt::Transient;
use crate::domain::{
    task::{CallOutcome, Redactor},
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

pub(in crate::agent) fn text_without_secrets(text: String, redactor: Option<&Redactor>) -> String {
    match redactor {
        Some(redactor) => redactor.hide_in_text(text),
        None => text,
    }
}
