//! The steps of a child that stand in the step of its parent, in place of the name of a workflow.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::{Definition, KnownAgents, POLICY_FIELDS, Policies};
use crate::{
    template::{Origin, payload::Payload},
    values::fields::{FieldFault, Fields, entries},
};

/// The greatest depth of nested tasks: a task that a person submits has the depth 0.
pub(crate) const MOST_TASK_DEPTH: u32 = 8;
/// Definitions lie in steps of others at most so deep: children cannot lie deeper.
const MOST_INSIDE: usize = MOST_TASK_DEPTH as usize;
/// The most bytes of the steps and what is beside them: each child has a copy of them in its record.
const LONGEST: usize = 64 << 10;

/// The place of a definition among those that it lies in, and the function that reads one inside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nesting {
    /// The number of definitions that it lies in.
    pub depth: usize,
    /// Reads the steps of a definition of this depth, whose pointers begin with `/steps`. A function, because the steps that
    /// it reads may have steps themselves.
    pub read: ReadInside,
    /// True if the workflow hides the payloads of its tasks: those of their children are hidden as well.
    pub hide_bodies: bool,
}

type ReadInside = fn(
    &Payload,
    &Policies,
    &dyn KnownAgents,
    Origin<'_>,
    usize,
) -> Result<Definition, Vec<FieldFault>>;

/// Reads the field `steps` of a `task`, and the fields that a workflow has beside its steps.
pub(super) fn read(
    task: &mut Fields<'_>,
    origin: Origin<'_>,
    known: &dyn KnownAgents,
    nesting: Nesting,
) -> Option<Arc<Definition>> {
    let steps = task.value("steps").filter(|steps| steps.get() != "null");
    let given = POLICY_FIELDS.map(|field| task.peek(field).is_some());
    let policies = Policies::read(task).hiding_bodies(nesting.hide_bodies);
    let Some(steps) = steps else {
        for (field, is_given) in POLICY_FIELDS.into_iter().zip(given) {
            if is_given {
                task.fault(
                    field,
                    "belongs to a task with `steps`: a workflow has its own",
                );
            }
        }
        return None;
    };
    if nesting.depth >= MOST_INSIDE {
        task.fault(
            "steps",
            format!("lie in {MOST_INSIDE} other tasks, and tasks lie at most {MOST_INSIDE} deep: register a workflow of these steps"),
        );
        return None;
    }
    let written = steps.get().len() + policies.as_json().map_or(0, str::len);
    if written > LONGEST {
        task.fault(
            "steps",
            format!("and the fields beside them have {written} bytes, and each child keeps them: at most {LONGEST} are allowed; register a workflow of them"),
        );
        return None;
    }
    let steps = Payload::new(steps.to_owned());
    // The number of steps is checked with those of the steps around them.
    let read = (nesting.read)(&steps, &policies, known, origin, nesting.depth + 1);
    let around = task.pointer("");
    let around = around.trim_end_matches('/');
    read.map(Arc::new)
        .map_err(|found| {
            let found = found.into_iter();
            task.extend(
                found.map(|fault| {
                    FieldFault::new(format!("{around}{}", fault.pointer), fault.message)
                }),
            );
        })
        .ok()
}

/// Returns the number of steps in the tasks that stand in a step, however deep.
pub(super) fn steps_inside(step: &RawValue) -> usize {
    inside(step, 2 * MOST_INSIDE)
}

fn inside(step: &RawValue, depth: usize) -> usize {
    let members = entries(step).unwrap_or_default();
    let task = { members.iter() }.find(|(name, _)| name == "task");
    let members = task.and_then(|(_, task)| entries(task));
    let lists = members.into_iter().flatten();
    let lists = lists.filter(|(name, _)| name == "steps" || name == "finally");
    lists.map(|(_, list)| listed(list, depth)).sum()
}

/// Returns the number of steps in a list, with those in blocks and in tasks.
fn listed(list: &RawValue, depth: usize) -> usize {
    let items: Vec<&RawValue> = serde_json::from_str(list.get()).unwrap_or_default();
    let Some(depth) = depth.checked_sub(1) else {
        // No definition lies so deep.
        return items.len();
    };
    let of_item = |item: &RawValue| {
        let blocks = entries(item).unwrap_or_default().into_iter();
        let blocks = blocks.map(|(name, value)| match &*name {
            "steps" => listed(value, depth),
            "switch" => {
                let branches: Vec<&RawValue> =
                    serde_json::from_str(value.get()).unwrap_or_default();
                let branches = branches.into_iter().filter_map(entries).flatten();
                let lists = branches.filter(|(name, _)| name == "steps" || name == "else");
                lists.map(|(_, list)| listed(list, depth)).sum()
            }
            _ => 0,
        });
        blocks.sum::<usize>() + inside(item, depth)
    };
    items.len() + items.into_iter().map(of_item).sum::<usize>()
}
