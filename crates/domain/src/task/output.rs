//! The output of a task, which its definition makes of its input and of the outputs of its steps. It is a function of
//! the record: it is evaluated whenever it is read, and stored nowhere.

use crate::{
    definition::StepWork,
    task::{aggregate::Task, status::TaskStatus},
    template::{Budget, RenderError, Scope, payload::Payload},
};

/// The budget of one evaluation: every read of the task evaluates the output again.
const COST: u64 = Budget::EVALUATION / 4;

/// Returns the output of a processed task whose definition has one, and `None` for any other task.
pub fn task_output(task: &Task) -> Option<Result<Payload, RenderError>> {
    evaluate(task, &Budget::new(COST))
}

/// Returns the cost of evaluating the output, in the units of [`Budget`].
pub(crate) fn output_cost(task: &Task) -> u64 {
    let budget = Budget::new(COST);
    evaluate(task, &budget);
    budget.spent()
}

fn evaluate(task: &Task, budget: &Budget) -> Option<Result<Payload, RenderError>> {
    if task.status() != TaskStatus::Processed {
        return None;
    }
    if let Some(stop) = task.stopped_by()
        && let StepWork::Stop(rule) = &task.definition(stop).work
        && rule.has_output()
    {
        let output = task.step(stop).output().cloned();
        return Some(Ok(output.unwrap_or_else(Payload::null)));
    }
    let output = task.details.definition.output.as_ref()?;
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
        record: Some(task),
        ..Scope::empty(budget)
    };
    let rendered = output.template.render(&scope);
    // The document was rendered as JSON, so it is valid.
    Some(rendered.map(|json| Payload::parse(json).unwrap_or_else(Payload::null)))
}
