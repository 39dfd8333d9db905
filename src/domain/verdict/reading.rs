//! What the expressions of a definition read that may not be there.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Warning, WarningCode, expressions};
use crate::domain::{
    Definition, Payload, StepDefinition, StepIndex, fields::escape, template::Reads,
};

pub(super) fn check(definition: &Definition, input: Option<&Payload>, warnings: &mut Vec<Warning>) {
    let mut needed = BTreeSet::new();
    for index in definition.forward() {
        let step = definition.step(index);
        let condition = step.when.as_ref().map(|when| when.reads());
        // A condition that asks about something guards the request behind it.
        let guards =
            |name: &str| condition.is_some_and(|reads| reads.unguarded.guarded.contains(name));
        for (place, reads) in read_by(step) {
            for name in &reads.unguarded.inputs {
                if !guards(&format!("input.{name}")) {
                    needed.insert(name.clone());
                }
            }
            for name in &reads.unguarded.steps {
                let Some(read) = find(definition, name) else {
                    continue;
                };
                let is_looked_at = place != "when"
                    && condition.is_some_and(|reads| reads.steps.contains(name.as_str()));
                let same = same_condition(definition.step(read), step);
                if definition.step(read).when.is_some() && !is_looked_at && !same {
                    warnings.push(Warning {
                        code: WarningCode::ReadsSkipped,
                        step: Some(step.name.clone()),
                        pointer: format!("/steps/{}/{}", index.at(), place),
                        message: format!(
                            "it reads the output of `{name}`, which `when` may skip: that is null then, and has nothing in it; give a default, or a `when` that asks for it, as in `steps['{name}'].output is not none`"
                        ),
                    });
                }
            }
        }
    }
    input_needed(needed, input, warnings);
    looks_like_expression(definition, warnings);
}

/// The expressions that are evaluated before or when the step is claimed, with their places in it.
fn read_by(step: &StepDefinition) -> Vec<(String, Reads)> {
    let condition = step.when.iter();
    let condition = condition.map(|when| ("when".to_owned(), when.reads().clone()));
    let request = expressions(&step.request).into_iter();
    let request = request.map(|(place, reads)| (place.replace('.', "/"), reads));
    condition.chain(request).collect()
}

fn find(definition: &Definition, name: &str) -> Option<StepIndex> {
    definition
        .forward()
        .find(|index| definition.step(*index).name.as_str() == name)
}

fn same_condition(a: &StepDefinition, b: &StepDefinition) -> bool {
    match (&a.when, &b.when) {
        (Some(a), Some(b)) => a.source() == b.source(),
        _ => false,
    }
}

/// One warning for all. Where an input is given, only of what it lacks.
fn input_needed(needed: BTreeSet<String>, input: Option<&Payload>, warnings: &mut Vec<Warning>) {
    /// The most that are named.
    const MOST: usize = 20;
    let given: Option<Value> = input.and_then(|input| serde_json::from_str(input.as_json()).ok());
    let is_there = |name: &String| {
        given
            .as_ref()
            .is_some_and(|input| input.get(name).is_some())
    };
    let is_told = |name: &String| {
        let path = format!("`input.{name}`");
        warnings.iter().any(|warning| {
            warning.code == WarningCode::CannotRender && warning.message.contains(&path)
        })
    };
    let missing: Vec<_> = needed
        .into_iter()
        .filter(|name| !is_there(name) && !is_told(name))
        .collect();
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
            "no submission has to give these, and a step that reads one that is not there ends in error: {names}; give a default where one may be left out"
        ),
    });
}

/// `${…}` in a text is sent as it stands.
fn looks_like_expression(definition: &Definition, warnings: &mut Vec<Warning>) {
    /// One such text is enough to see what was meant; a few show that it is everywhere.
    const MOST: usize = 5;
    if !definition.source.as_json().contains("${") {
        return;
    }
    let Ok(source) = serde_json::from_str::<Value>(definition.source.as_json()) else {
        return;
    };
    let mut open = vec![("/steps".to_owned(), &source)];
    let mut found = 0;
    while let Some((pointer, value)) = open.pop() {
        match value {
            Value::String(text) => {
                let is_it = text
                    .split_once("${")
                    .is_some_and(|(_, behind)| behind.contains('}') && !text.contains("{{"));
                if is_it {
                    found += 1;
                    warnings.push(Warning {
                        code: WarningCode::LooksLikeExpression,
                        step: None,
                        pointer,
                        message: "`${…}` is sent as it stands: an expression is written `{{ … }}`"
                            .to_owned(),
                    });
                    if found == MOST {
                        return;
                    }
                }
            }
            Value::Array(items) => {
                let items = items.iter().enumerate().rev();
                open.extend(items.map(|(at, item)| (format!("{pointer}/{at}"), item)));
            }
            Value::Object(members) => {
                let members = members.iter();
                open.extend(
                    members.map(|(name, item)| (format!("{pointer}/{}", escape(name)), item)),
                );
            }
            _ => {}
        }
    }
}
