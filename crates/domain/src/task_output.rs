//! The output of a task: what its definition makes of its input and of what its steps gave. It is a function of the
//! record, evaluated where it is asked for and stored nowhere.

use crate::{
    payload::Payload,
    task::{Task, TaskStatus},
    template::{Budget, RenderError, Scope},
};

/// What one evaluation may cost: every read of the task evaluates it again.
const COST: u64 = Budget::EVALUATION / 4;

/// The output of a processed task whose definition has one: `None` of any other.
pub fn task_output(task: &Task) -> Option<Result<Payload, RenderError>> {
    evaluate(task, &Budget::new(COST))
}

/// What it costs, in the units of [`Budget`].
pub(crate) fn output_cost(task: &Task) -> u64 {
    let budget = Budget::new(COST);
    evaluate(task, &budget);
    budget.spent()
}

fn evaluate(task: &Task, budget: &Budget) -> Option<Result<Payload, RenderError>> {
    let output = task.details.definition.output.as_ref()?;
    if task.status() != TaskStatus::Processed {
        return None;
    }
    let scope = Scope {
        task_id: task.id(),
        key: task.details.key.as_deref(),
        labels: &task.details.labels,
        input: Some(&task.details.input),
        steps: output
            .reads
            .iter()
            .map(|read| (&task.definition(*read).name, task.step(*read).output()))
            .collect(),
        ..Scope::empty(budget)
    };
    let rendered = output.template.render(&scope);
    // What was rendered as JSON is JSON.
    Some(rendered.map(|json| Payload::parse(json).unwrap_or_else(Payload::null)))
}
