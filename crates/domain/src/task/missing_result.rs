//! The reason why an expression finds no result of a step that it reads.

use crate::{
    task::{aggregate::Task, step::StepStatus},
    template::RenderError,
    values::ids::StepIndex,
};

/// Returns the reason why the first step that the expression reads has no result, if one has none. The text begins with
/// a separator from the message of the expression.
pub fn reason(task: &Task, index: StepIndex, error: &RenderError) -> Option<String> {
    let read = task.definition(index).reads.iter().copied();
    let mut named = read.filter(|read| {
        let name = task.definition(*read).name.as_str();
        error.steps.contains(name)
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

#[cfg(test)]
mod tests {
    use crate::template::{Budget, Expression, Origin, Scope};

    #[test]
    fn a_step_is_named_by_an_attribute_or_an_index() {
        for (source, expected) in [
            ("steps.ship.output.id", true),
            ("steps['ship'].output", true),
            ("steps[ \"ship\" ].output", true),
            ("steps.shipping.output", false),
            ("steps.a.output.ship", false),
            ("input.ship", false),
        ] {
            let budget = Budget::evaluation();
            let expression = Expression::parse(source, Origin::Submitted(&budget)).unwrap();
            let error = expression.payload(&Scope::empty(&budget)).unwrap_err();
            assert_eq!(error.steps.contains("ship"), expected, "{source}");
        }
    }
}
