//! Checks the undo of a definition: the calls that it would make, and the parts that its author may have forgotten.

use serde::Serialize;
use utoipa::ToSchema;

use super::{Warning, WarningCode, expressions_of};
use crate::{
    definition::{Definition, Method, Policy, RaceRest, StepDefinition, StepWork},
    values::ids::{AgentName, StepIndex, StepName},
};

/// One call of an undo.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct UndoStep {
    #[schema(value_type = String, example = "charge.undo")]
    pub name: StepName,
    #[schema(value_type = String, example = "charge")]
    pub undoes: StepName,
    /// Null if the task of a step is undone.
    #[schema(value_type = Option<String>, required, example = "payments")]
    pub agent: Option<AgentName>,
    /// Null if the task of a step is undone.
    #[schema(value_type = Option<Method>, required)]
    pub method: Option<&'static str>,
    /// Counted from 1: the calls of a stage can run in parallel once the earlier stages have ended.
    #[schema(value_type = u32, example = 1)]
    pub stage: usize,
    /// True if a probe runs first when the step's effect is unknown.
    #[schema(example = false)]
    pub probe: bool,
}

/// Returns the plan of the undo. `undoes_task` returns whether the step at this index has another policy that undoes
/// the task.
pub(super) fn check(
    definition: &Definition,
    undoes_task: impl Fn(usize) -> bool,
    warnings: &mut Vec<Warning>,
) -> Vec<UndoStep> {
    let final_steps = after_pivots(definition);
    let plan = plan(definition, &final_steps);
    not_undoable(definition, &final_steps, warnings);
    for index in definition.forward() {
        let step = definition.step(index);
        let mut warn = |code, message: String| {
            warnings.push(Warning {
                code,
                step: Some(step.name.clone()),
                pointer: step.pointer_of(""),
                message,
            });
        };
        if (asks_for_undo(step) || undoes_task(index.at())) && !can_be_undone_at(definition, index)
        {
            let message = "its policy undoes the task, but neither this step nor any step before it or parallel to it has an `undo`: define one, or use \"error\"";
            warn(WarningCode::NothingToUndo, message.to_owned());
        }
        let standing = left_by_race(definition, index);
        if !standing.is_empty() {
            warnings.push(Warning {
                code: WarningCode::NotUndoable,
                step: Some(step.name.clone()),
                pointer: step.pointer_of("after/rest"),
                message: format!(
                    "what these did stands if they lose the race, because they have no `undo`: {}; define one, or set `rest` to \"cancel\"",
                    standing.join(", ")
                ),
            });
        }
        let mut warn = |code, message: String| {
            warnings.push(Warning {
                code,
                step: Some(step.name.clone()),
                pointer: step.pointer_of(""),
                message,
            });
        };
        let Some(undo) = step.undo.map(|undo| definition.step(undo)) else {
            continue;
        };
        if final_steps[index.at()] {
            let message = "its `undo` never runs, because the step comes after a pivot: remove it, or move the pivot after the step";
            warn(WarningCode::UndoNeverRuns, message.to_owned());
            continue;
        }
        let reads = expressions_of(undo);
        let output = reads.iter().find(|(_, reads)| {
            reads.names.contains("output") || reads.steps.contains(step.name.as_str())
        });
        if let Some((pointer, _)) = output
            && step.probe.is_none()
        {
            let message = format!(
                "`undo.{pointer}` reads the step's output, which does not exist after an attempt of unknown outcome: the undo would fail and need an operator. Define a `probe`, or use `task.id`, `request` or the header Provost-Undoes"
            );
            warn(WarningCode::UndoNeedsOutput, message);
        }
        let fields = [
            ("on_permanent", undo.on_permanent == Policy::Skip),
            ("on_exhausted", undo.on_exhausted.then == Policy::Skip),
            (
                "on_permanent",
                undo.attempts
                    .as_ref()
                    .is_some_and(|rules| rules.has_policy(Policy::Skip)),
            ),
        ];
        for (field, _) in fields.into_iter().filter(|(_, skips)| *skips) {
            let message = format!(
                "`undo.{field}` is skip: if the undo fails, the effect of the step remains, the task counts as undone, and no alert is raised; use \"error\" unless that is harmless"
            );
            warn(WarningCode::UndoMayBeSkipped, message);
        }
    }
    plan
}

/// Returns the steps that a race is to undo and that nothing undoes.
fn left_by_race(definition: &Definition, join: StepIndex) -> Vec<&str> {
    let race = definition.step(join).race.as_ref();
    if race.is_none_or(|race| race.rest != RaceRest::Undo) {
        return Vec::new();
    }
    let steps = definition.forward().map(|index| definition.step(index));
    let losers = steps.filter(|step| step.lanes.iter().any(|lane| lane.join == join));
    let left = losers.filter(|step| {
        step.undoes.is_none()
            && step.undo.is_none()
            && !matches!(step.method(), None | Some(Method::Get))
    });
    left.map(|step| step.name.as_str()).collect()
}

fn asks_for_undo(step: &StepDefinition) -> bool {
    let on_timeout = match &step.work {
        StepWork::Signal(rule) => rule.on_timeout,
        StepWork::Stop(rule) => rule.state.policy().unwrap_or(Policy::Error),
        StepWork::Call { .. }
        | StepWork::Wait(_)
        | StepWork::Task(_)
        | StepWork::Set(_)
        | StepWork::Group(_) => Policy::Error,
    };
    let by_status = step.attempts.as_ref();
    [step.on_permanent, step.on_exhausted.then, on_timeout].contains(&Policy::Undo)
        || by_status.is_some_and(|rules| rules.has_policy(Policy::Undo))
}

/// Returns whether anything can be undone when this step fails: any step may have been done by then, except its
/// followers.
fn can_be_undone_at(definition: &Definition, index: StepIndex) -> bool {
    let follows = reached(definition, index);
    let others = definition.forward().filter(|other| !follows[other.at()]);
    others
        .chain([index])
        .any(|other| definition.step(other).undo.is_some())
}

/// Returns for each step, by its index, whether it follows this one directly or indirectly.
fn reached(definition: &Definition, from: StepIndex) -> Vec<bool> {
    let mut reached = vec![false; definition.steps.len()];
    let mut path = vec![from];
    while let Some(index) = path.pop() {
        for follower in &*definition.step(index).followers {
            if !std::mem::replace(&mut reached[follower.at()], true) {
                path.push(*follower);
            }
        }
    }
    reached
}

/// Returns for each step, by its index, whether it begins only after a pivot, when nothing can be undone any more.
fn after_pivots(definition: &Definition) -> Vec<bool> {
    let mut behind = vec![false; definition.steps.len()];
    for index in definition.order.iter().copied() {
        let mut after = definition.step(index).after.iter();
        behind[index.at()] =
            after.any(|before| behind[before.at()] || definition.step(*before).pivot);
    }
    behind
}

/// Returns the plan: each undo comes after the undos of all steps that followed.
fn plan(definition: &Definition, behind: &[bool]) -> Vec<UndoStep> {
    let mut stages = vec![0; definition.steps.len()];
    let mut plan = Vec::new();
    for index in definition.order.iter().rev().copied() {
        let step = definition.step(index);
        let followers = step.followers.iter();
        let before = followers.map(|follower| stages[follower.at()]).max();
        let stage = before.unwrap_or_default();
        stages[index.at()] = stage;
        let Some(undo) = step.undo.filter(|_| !behind[index.at()]) else {
            continue;
        };
        stages[index.at()] += 1;
        let undo = definition.step(undo);
        plan.push(UndoStep {
            name: undo.name.clone(),
            undoes: step.name.clone(),
            agent: undo.agent().cloned(),
            method: undo.method().map(Method::as_str),
            stage: stage + 1,
            probe: step.probe.is_some(),
        });
    }
    plan.sort_by_key(|undo| undo.stage);
    plan
}

/// Adds one warning for all these steps: a missing undo is often intended, as with an email that was sent.
fn not_undoable(definition: &Definition, behind: &[bool], warnings: &mut Vec<Warning>) {
    let wants_undo = !definition.undos.is_empty()
        || definition.policies.on_deadline == Some(Policy::Undo)
        || definition.steps.iter().any(asks_for_undo);
    if !wants_undo {
        return;
    }
    let names: Vec<_> = definition
        .forward()
        .filter(|index| !behind[index.at()])
        .map(|index| definition.step(index))
        .filter(|step| {
            let may_change = step.method().is_some_and(|method| method != Method::Get)
                || step.rule_to_run().has_child();
            let is_left = step.undo.is_none() && step.undoes.is_none();
            is_left && !step.pivot && !step.is_finally && may_change
        })
        .map(|step| step.name.as_str())
        .collect();
    if !names.is_empty() {
        warnings.push(Warning {
            code: WarningCode::NotUndoable,
            step: None,
            pointer: "/steps".to_owned(),
            message: format!(
                "the task may be undone, but the effects of these steps remain: {}; define an `undo` for them, or place them after a pivot",
                names.join(", ")
            ),
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        definition::{Accepted, Limits, Policies, parse_steps},
        template::payload::Payload,
        view::dry_run::{DryRunReport, TaskFields, dry_run},
    };

    fn of(steps: Value) -> DryRunReport {
        let steps = Payload::from_value(&steps);
        let definition = parse_steps(
            &steps,
            "",
            &Policies::default(),
            &Limits::default(),
            &Accepted,
        )
        .unwrap();
        dry_run(&definition, &TaskFields::default(), &|_| None)
    }

    /// The warnings about undo.
    fn warnings(steps: Value) -> Vec<(WarningCode, String)> {
        let warnings = of(steps).warnings.into_iter();
        let about_undo =
            warnings.filter(|warning| warning.code != WarningCode::ReliesOnIdempotencyKey);
        about_undo
            .map(|warning| {
                (
                    warning.code,
                    warning
                        .step
                        .map_or_else(String::new, |step| step.to_string()),
                )
            })
            .collect()
    }

    /// A step with an undo that is safe in every case.
    fn undoable(name: &str, more: Value) -> Value {
        let mut step = json!({ "name": name, "agent": name,
            "undo": { "request": { "path": "/undo/{{ task.id }}" } } });
        step.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        step
    }

    #[test]
    fn the_undo_is_planned_backward_with_branches_side_by_side() {
        let report = of(json!([
            undoable("start", json!({})),
            undoable("left", json!({ "after": ["start"], "probe": { "request": { "path": "/" } } })),
            { "name": "right", "agent": "x", "after": ["start"] },
            undoable("join", json!({ "after": ["left", "right"], "undo": { "request": { "method": "DELETE" } } })),
            { "name": "ship", "agent": "x", "pivot": true },
            undoable("told", json!({})),
        ]));
        let plan = report.undo.iter();
        let plan: Vec<_> = plan
            .map(|u| (u.name.as_str(), u.method.unwrap(), u.stage, u.probe))
            .collect();
        assert_eq!(
            plan,
            [
                ("join.undo", "DELETE", 1, false),
                ("left.undo", "POST", 2, true),
                ("start.undo", "POST", 3, false)
            ]
        );
    }

    #[test]
    fn a_definition_without_undo_is_not_bothered() {
        assert_eq!(warnings(json!([{ "name": "a", "agent": "x" }])), []);
        assert_eq!(
            warnings(json!([undoable("a", json!({ "on_permanent": "undo" }))])),
            []
        );
    }

    #[test]
    fn what_stays_when_the_task_is_undone_is_named_in_one_warning() {
        let steps = json!([
            undoable("a", json!({})),
            { "name": "mail", "agent": "x" },
            { "name": "look", "agent": "x", "request": { "method": "GET" } },
            { "name": "use", "agent": "x", "request": { "body": "{{ steps.look.output }}" } },
            { "name": "ship", "agent": "x", "pivot": true },
            { "name": "behind", "agent": "x" },
        ]);
        assert_eq!(
            warnings(steps.clone()),
            [(WarningCode::NotUndoable, String::new())]
        );
        let report = of(steps);
        let message = &report
            .warnings
            .iter()
            .find(|w| w.code == WarningCode::NotUndoable)
            .unwrap()
            .message;
        assert!(message.contains(": mail, use;"), "{message}");
    }

    #[test]
    fn a_policy_that_undoes_nothing_is_worth_a_warning() {
        let steps = json!([
            { "name": "a", "agent": "x", "on_permanent": "undo", "request": { "method": "PUT" } },
            undoable("b", json!({})),
        ]);
        let found = warnings(steps);
        assert!(
            found.contains(&(WarningCode::NothingToUndo, "a".to_owned())),
            "{found:?}"
        );
        let beside = json!([
            { "name": "a", "agent": "x", "after": [], "on_permanent": "undo" },
            undoable("b", json!({ "after": [] })),
        ]);
        assert!(
            !warnings(beside)
                .iter()
                .any(|(code, _)| *code == WarningCode::NothingToUndo)
        );
    }

    #[test]
    fn an_undo_that_reads_an_output_nobody_may_know_is_worth_a_warning() {
        let reads = |expression: &str| json!({ "undo": { "request": { "method": "PUT", "body": { "id": expression } } } });
        for expression in ["{{ output.id }}", "{{ steps.a.output.id }}"] {
            let steps = json!([undoable("a", reads(expression))]);
            assert_eq!(
                warnings(steps),
                [(WarningCode::UndoNeedsOutput, "a".to_owned())]
            );
            let mut probed = reads(expression);
            probed["probe"] = json!({ "request": { "path": "/" } });
            assert_eq!(warnings(json!([undoable("a", probed)])), []);
        }
        assert_eq!(
            warnings(json!([undoable("a", reads("{{ request.path }}"))])),
            []
        );
    }

    #[test]
    fn an_undo_that_never_runs_or_fails_in_silence_is_worth_a_warning() {
        let steps = json!([
            undoable("a", json!({ "undo": { "request": {}, "on_permanent": "skip",
                "on_exhausted": { "extend": "1m", "then": "skip" } } })),
            { "name": "ship", "agent": "x", "pivot": true },
            undoable("b", json!({})),
        ]);
        assert_eq!(
            warnings(steps),
            [
                (WarningCode::UndoMayBeSkipped, "a".to_owned()),
                (WarningCode::UndoMayBeSkipped, "a".to_owned()),
                (WarningCode::UndoNeverRuns, "b".to_owned()),
            ]
        );
    }
}
