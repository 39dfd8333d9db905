//! Warns of values that the expressions of a definition read and that may not exist.

use std::collections::{BTreeMap, BTreeSet};

use super::{TaskFields, Warning, WarningCode, expressions_of, groups::Groups};
use crate::{
    definition::{Definition, Policy, StatusPolicy, StepDefinition, around, whole_name},
    template::{Budget, Reads, each_name, look_alikes, payload::Payload},
    values::fields::escape,
};

pub(super) fn check(
    definition: &Definition,
    fields: &TaskFields<'_>,
    groups: &Groups,
    budget: &Budget,
    warnings: &mut Vec<Warning>,
) {
    let mut needed = groups.inputs();
    let named = definition.forward();
    let named = named.map(|index| (definition.step(index).name.as_str(), index));
    let named: BTreeMap<_, _> = named.collect();
    for index in definition.forward() {
        let step = definition.step(index);
        let condition = step.when.as_ref().map(|when| when.reads());
        // A condition that checks a value guards the request after it.
        let guards =
            |name: &str| condition.is_some_and(|reads| reads.unguarded.guarded.contains(name));
        for (pointer, reads) in read_by(step) {
            for name in &reads.unguarded.inputs {
                if !guards(&format!("input.{name}")) {
                    needed.insert(name.clone());
                }
            }
            for name in &reads.unguarded.steps {
                let in_block = |block: &str| named.get(&*whole_name(block, name)).copied();
                let Some(read) = around(&step.block).find_map(in_block) else {
                    continue;
                };
                let is_looked_at = pointer != "when"
                    && condition.is_some_and(|reads| reads.steps.contains(name.as_str()));
                let is_group = groups.is_group(read);
                // A step that runs if the other one failed is read in its place.
                let has_stand_in = reads.steps.iter().any(|other| {
                    let other =
                        around(&step.block).find_map(|block| named.get(&*whole_name(block, other)));
                    let condition = other.and_then(|other| definition.step(*other).when.as_ref());
                    condition.is_some_and(|when| when.reads().steps.contains(name.as_str()))
                });
                let read = definition.step(read);
                let same = same_condition(read, step);
                let why = if read.when.is_some() && !same {
                    "which `when` may skip"
                } else if may_lose_without(read, step) {
                    "which may lose its race"
                } else if !has_stand_in && read.while_rule.is_some() {
                    "which `while` may skip"
                } else if !is_group && !has_stand_in && may_be_skipped_after_failure(read) {
                    "which its policies may skip"
                } else {
                    continue;
                };
                if !is_looked_at {
                    warnings.push(Warning {
                        code: WarningCode::ReadsSkipped,
                        step: Some(step.name.clone()),
                        pointer: step.pointer_of(&pointer),
                        message: format!(
                            "it reads the output of `{name}`, {why}: the output is then null and has no members; give a default, or a `when` that checks its state, as in `steps['{name}'].state == 'processed'`"
                        ),
                    });
                }
            }
        }
    }
    for name in required_by_schema(definition) {
        needed.remove(&name);
    }
    input_needed(needed, fields.input, budget, warnings);
    looks_like_expression(definition, fields, warnings);
}

/// Returns the members of the input without which a submission is refused.
fn required_by_schema(definition: &Definition) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct Schema {
        #[serde(default)]
        required: Vec<String>,
    }
    let schema = definition.policies.input_schema.as_ref();
    let schema = schema.and_then(|schema| serde_json::from_str::<Schema>(schema.as_json()).ok());
    schema.map_or_else(Vec::new, |schema| schema.required)
}

/// Returns the expressions that are evaluated before or when the step is claimed, with their JSON pointers relative to
/// the step.
fn read_by(step: &StepDefinition) -> Vec<(String, Reads)> {
    let condition = step.when.iter();
    let condition = condition.map(|when| ("when".to_owned(), when.reads().clone()));
    let work = expressions_of(step).into_iter();
    let work = work.map(|(pointer, reads)| (pointer.replace('.', "/"), reads));
    condition.chain(work).collect()
}

fn same_condition(a: &StepDefinition, b: &StepDefinition) -> bool {
    match (&a.when, &b.when) {
        (Some(a), Some(b)) => a.source() == b.source(),
        _ => false,
    }
}

/// Returns whether a step may lose a race in which another step does not lose with it.
fn may_lose_without(step: &StepDefinition, other: &StepDefinition) -> bool {
    step.lanes.iter().any(|lane| !other.lanes.contains(lane))
}

/// Returns whether a policy skips the step after a failure. What a group did without the items that failed is a list.
fn may_be_skipped_after_failure(step: &StepDefinition) -> bool {
    let skip = StatusPolicy::Policy(Policy::Skip);
    let rules = step.attempts.as_ref();
    let by_status = rules.map(|rules| [&rules.on_permanent, &rules.on_exhausted]);
    let mut by_status = by_status.into_iter().flatten().flatten();
    step.on_permanent == Policy::Skip
        || step.on_exhausted.then == Policy::Skip
        || by_status.any(|policies| policies.has(skip))
}

/// Adds one warning for all missing inputs. If an input is given, it names only the members that the input lacks.
fn input_needed(
    mut needed: BTreeSet<String>,
    input: Option<&Payload>,
    budget: &Budget,
    warnings: &mut Vec<Warning>,
) {
    /// The most inputs that are named.
    const MOST: usize = 20;
    budget.next();
    let is_known = input.is_none_or(|input| {
        each_name(input, budget, |name| {
            needed.remove(name);
        })
    });
    if !is_known {
        return;
    }
    let is_told = |name: &String| {
        let path = format!("`input.{name}`");
        warnings.iter().any(|warning| {
            warning.code == WarningCode::CannotRender && warning.message.contains(&path)
        })
    };
    // A message reports at most one of them, so only few more are looked at than are named.
    let missing = needed.iter().filter(|name| !is_told(name));
    let missing: Vec<_> = missing.take(MOST + 1).collect();
    if missing.is_empty() {
        return;
    }
    let mut names = missing
        .iter()
        .take(MOST)
        .map(|name| format!("input.{name}"))
        .collect::<Vec<_>>()
        .join(", ");
    if missing.len() > MOST {
        names.push_str(", …");
    }
    warnings.push(Warning {
        code: WarningCode::InputNeeded,
        step: None,
        pointer: "/input".to_owned(),
        message: format!(
            "a submission may omit these, and a step that reads a missing one ends in error: {names}; give a default where one is optional"
        ),
    });
}

/// Warns of texts that are sent or stored literally, although they look like expressions.
fn looks_like_expression(
    definition: &Definition,
    fields: &TaskFields<'_>,
    warnings: &mut Vec<Warning>,
) {
    /// One such text is enough to see the intention; a few show that it is everywhere.
    const MOST: usize = 5;
    let mut warn = |pointer: String, message: &str| {
        warnings.push(Warning {
            code: WarningCode::LooksLikeExpression,
            step: None,
            pointer,
            message: message.to_owned(),
        });
    };
    let finally = definition.policies.finally.iter();
    let finally = finally.map(|finally| ("/finally", finally));
    for (list, source) in [("/steps", &definition.source)].into_iter().chain(finally) {
        for found in look_alikes(source, MOST) {
            warn(format!("{list}{}", found.pointer), found.message);
        }
    }
    let key = fields.key.map(|key| ("/key".to_owned(), key));
    let labels = fields.labels.iter().flat_map(|labels| labels.iter());
    let labels = labels.map(|(name, value)| (format!("/labels/{}", escape(name)), value.as_str()));
    let stored = key.into_iter().chain(labels);
    for (pointer, _) in stored
        .filter(|(_, text)| text.contains("{{") || text.contains("${"))
        .take(MOST)
    {
        warn(
            pointer,
            "it is stored literally: the key and labels of a task cannot contain expressions",
        );
    }
}
