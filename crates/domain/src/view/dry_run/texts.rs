//! Warns of texts that stand where something else was meant: a condition that is a text, and a body that is JSON within a
//! text.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Warning, WarningCode, reads_only_input, with_scope};
use crate::{
    definition::{Definition, StepDefinition},
    template::{Budget, payload::Payload},
};

/// The parts of a step as it was written in which a text may stand for JSON.
#[derive(Deserialize)]
struct WrittenTexts<'s> {
    #[serde(borrow)]
    request: Option<WrittenRequest<'s>>,
    #[serde(borrow)]
    undo: Option<WrittenUndo<'s>>,
}

#[derive(Deserialize)]
struct WrittenUndo<'s> {
    #[serde(borrow)]
    request: Option<WrittenRequest<'s>>,
}

#[derive(Deserialize)]
struct WrittenRequest<'s> {
    #[serde(borrow)]
    body: Option<&'s RawValue>,
}

pub(super) fn check(
    definition: &Definition,
    input: Option<&Payload>,
    budget: &Budget,
    warnings: &mut Vec<Warning>,
) {
    let sources = definition.sources();
    let written: Vec<Option<WrittenTexts<'_>>> = { sources.iter() }
        .map(|step| serde_json::from_str(step.source.get()).ok())
        .collect();
    for index in definition.forward() {
        let step = definition.step(index);
        let mut warn = |code, field: &str, message: &str| {
            warnings.push(Warning {
                code,
                step: Some(step.name.clone()),
                pointer: step.pointer_of(field),
                message: message.to_owned(),
            });
        };
        if is_text_condition(step, input, budget) {
            let message = "it gives a text, and every text but the empty one counts as true, \"false\" too: compare it, as in `x == 'yes'`";
            warn(WarningCode::TextCondition, "when", message);
        }
        let Some(Some(written)) = written.get(index.at()) else {
            continue;
        };
        let of_undo = written.undo.as_ref().and_then(|undo| undo.request.as_ref());
        for (field, request) in [
            ("request/body", written.request.as_ref()),
            ("undo/request/body", of_undo),
        ] {
            if request
                .and_then(|request| request.body)
                .is_some_and(is_json_in_text)
            {
                let message = "it is a text that looks like JSON, and is sent as a text, with quotes and escapes: write the JSON itself, without the quotes around it";
                warn(WarningCode::TextBody, field, message);
            }
        }
    }
}

/// Returns whether the condition gives a text for the known input, or always.
fn is_text_condition(step: &StepDefinition, input: Option<&Payload>, budget: &Budget) -> bool {
    let Some(when) = &step.when else {
        return false;
    };
    let is_known = when.reads().names.is_empty() || input.is_some();
    if !is_known || !reads_only_input(when.reads()) {
        return false;
    }
    let null = Payload::null();
    let Some(single) = when.single() else {
        return false;
    };
    let value = with_scope(input.unwrap_or(&null), budget, |scope| {
        single.payload(scope)
    });
    value.is_ok_and(|value| value.as_json().starts_with('"'))
}

fn is_json_in_text(body: &RawValue) -> bool {
    let Ok(text) = serde_json::from_str::<String>(body.get()) else {
        return false;
    };
    let text = text.trim();
    let is_object = text.starts_with('{')
        && text.ends_with('}')
        && !text.starts_with("{{")
        && text.contains('"');
    let is_array = text.starts_with('[') && text.ends_with(']');
    is_object || is_array
}
