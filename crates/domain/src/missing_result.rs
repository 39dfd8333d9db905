//! Why an expression finds no result of a step that it reads.

use crate::{ids::StepIndex, step::StepStatus, task::Task, template::RenderError};

/// Of the first step that the expression names and whose result is not there: why. Begins with what separates it from the
/// message of the expression.
pub fn reason(task: &Task, index: StepIndex, error: &RenderError) -> Option<String> {
    let read = task.definition(index).reads.iter().copied();
    let mut named = read.filter(|read| {
        let name = task.definition(*read).name.as_str();
        [&error.expression, &error.reason]
            .iter()
            .any(|text| names(text, name))
    });
    named.find_map(|read| {
        let (step, name) = (task.step(read), &task.definition(read).name);
        let fault = step
            .last_fault
            .as_ref()
            .map(|fault| format!(" after \"{}\"", fault.message));
        match step.status() {
            StepStatus::Processed => None,
            StepStatus::Skipped if step.output().is_some() => None,
            StepStatus::Skipped => Some(format!(
                "; step {name} was skipped{} and has no result",
                fault.unwrap_or_default()
            )),
            other => Some(format!(
                "; step {name} is {} and has no result",
                other.as_str()
            )),
        }
    })
}

/// Whether a text reads the step: `steps.name`, or `steps['name']`.
fn names(text: &str, step: &str) -> bool {
    let mut found = text.match_indices(step).map(|(at, _)| at);
    found.any(|at| {
        let (before, after) = (&text[..at], &text[at + step.len()..]);
        let is_of_name = |letter: char| letter.is_alphanumeric() || letter == '_';
        let is_attribute = before.ends_with("steps.") && !after.starts_with(is_of_name);
        let is_index = ["'", "\""].iter().any(|quote| {
            let before = before.strip_suffix(quote).map(str::trim_end);
            before.is_some_and(|before| before.ends_with('[')) && after.starts_with(quote)
        });
        is_attribute || is_index
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_named_by_an_attribute_or_an_index() {
        for (text, expected) in [
            ("{{ steps.ship.output.id }}", true),
            ("`steps['ship'].output` does not exist", true),
            ("steps[ \"ship\" ].output", true),
            ("steps.shipping.output", false),
            ("steps.a.output.ship", false),
            ("input.ship", false),
        ] {
            assert_eq!(names(text, "ship"), expected, "{text}");
        }
    }
}
