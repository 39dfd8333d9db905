//! The dry-run report: what a definition would do, without storing anything.
#![expect(dead_code, reason = "the shapes are for the OpenAPI document")]

use axum::{http::StatusCode, response::Response};
use utoipa::ToSchema;

use super::{App, Problem, bulkhead::EvaluationPermit, response::json};
use crate::api::openapi::words::{
    DurationSchema, MethodSchema, StepKindSchema, StepRunsSchema, WarningCodeSchema,
};
use crate::domain::{Definition, PlannedAgent, TaskFields, Timestamp, WorkflowName, dry_run};

/// What a definition would do. This is a forecast: nothing was stored.
#[derive(ToSchema)]
#[schema(as = DryRunReport)]
pub struct DryRunReportBody {
    /// In a possible order of execution.
    steps: Vec<PlannedStepBody>,
    /// The chain of steps that takes longest in the worst case.
    #[schema(example = json!(["reserve", "charge", "ship"]))]
    critical_path: Vec<String>,
    /// The duration of the critical path if every attempt but the last runs out of time. The supervisor adds up to
    /// its interval to each failure. Steps whose `worst_case` is null count as nothing.
    #[schema(example = "6m21s")]
    worst_case: DurationSchema,
    #[schema(example = "15m")]
    complete_within: Option<DurationSchema>,
    /// Whether the worst case ends within `complete_within`. True if there is no such limit.
    #[schema(example = true)]
    fits: bool,
    /// The calls of an undo after all steps have run or, if there is a pivot, just before it runs.
    undo: Vec<UndoStepBody>,
    /// Possible mistakes in the definition.
    warnings: Vec<WarningBody>,
}

/// One call of an undo.
#[derive(ToSchema)]
#[schema(as = UndoStep)]
pub struct UndoStepBody {
    #[schema(example = "charge.undo")]
    name: String,
    #[schema(example = "charge")]
    undoes: String,
    /// Null if the task of a step is undone.
    #[schema(required, example = "payments")]
    agent: Option<String>,
    /// As `agent`.
    #[schema(required, example = "DELETE")]
    method: Option<MethodSchema>,
    /// Counted from 1: the calls of a stage can run in parallel once the earlier stages have ended.
    #[schema(example = 1)]
    stage: u32,
    /// Whether a probe runs first if it is unknown whether the step took effect.
    #[schema(example = false)]
    probe: bool,
}

/// The items of a planned step.
#[derive(ToSchema)]
#[schema(as = PlannedItems)]
pub struct PlannedItemsBody {
    /// How many there are; null where the list depends on more than the input.
    #[schema(required, example = 50)]
    items: Option<u32>,
    /// The most that run at once.
    #[schema(example = 10)]
    max_parallel: u32,
}

/// The iterations of a step that is repeated.
#[derive(ToSchema)]
#[schema(as = PlannedRepeat)]
pub struct PlannedRepeatBody {
    #[schema(example = 20)]
    at_most: u32,
    /// From the end of an iteration to the begin of the next.
    #[schema(example = "30s")]
    every: DurationSchema,
}

/// One step as it would run.
#[derive(ToSchema)]
#[schema(as = PlannedStep)]
pub struct PlannedStepBody {
    #[schema(example = "charge")]
    name: String,
    #[schema(example = "call")]
    kind: StepKindSchema,
    /// The workflow of the task that it has; null if it has none.
    #[schema(required, example = "ship")]
    workflow: Option<String>,
    /// The agent, or the origin of the step's URL; null if the step calls no service.
    #[schema(required, example = "payments")]
    agent: Option<String>,
    /// Null if the step calls no service.
    #[schema(required, example = "POST")]
    method: Option<MethodSchema>,
    /// The steps that must be done before this one.
    #[schema(example = json!(["reserve"]))]
    after: Vec<String>,
    /// Counted from 1: the steps of a stage can run in parallel once the earlier stages have ended.
    #[schema(example = 2)]
    stage: u32,
    /// `always`; `conditionally`, if the condition depends on data of the task; or `never`, if the condition is
    /// false for the given input.
    #[schema(example = "always")]
    runs: StepRunsSchema,
    /// The most attempts.
    #[schema(example = 4)]
    attempts: u32,
    /// If it is run for each item of a list: `attempts` are those of one item.
    for_each: Option<PlannedItemsBody>,
    /// If it is repeated: `attempts` are those of one iteration.
    repeat: Option<PlannedRepeatBody>,
    /// Of a wait: how long it takes, or 0ms where that is not known in advance. Null if the step has a task and no
    /// `complete_within` for it: only that task's workflow may limit it.
    #[schema(required, example = "2m7s")]
    worst_case: Option<DurationSchema>,
}

#[derive(ToSchema)]
#[schema(as = Warning)]
pub struct WarningBody {
    #[schema(example = "relies_on_idempotency_key")]
    code: WarningCodeSchema,
    /// Absent if the warning is about several steps.
    #[schema(example = "charge")]
    step: Option<String>,
    /// A JSON pointer into the body, as in a fault.
    #[schema(example = "/steps/1")]
    pointer: String,
    #[schema(
        example = "steps can be called more than once; make sure that their services deduplicate by Idempotency-Key: charge"
    )]
    message: String,
}

/// So many workflows that a definition names are looked up.
const MOST_LOOKED_UP: usize = 50;

/// The workflows that the steps of a definition have tasks of, and that do not exist.
async fn unknown_workflows(
    app: &App,
    definition: &Definition,
) -> Result<Vec<WorkflowName>, Problem> {
    let named = definition.steps.iter();
    let named = named.filter_map(|step| step.run().child_rule());
    let mut named: Vec<_> = named.map(|rule| rule.workflow.clone()).collect();
    named.sort_unstable();
    named.dedup();
    let mut unknown = Vec::new();
    for name in named.into_iter().take(MOST_LOOKED_UP) {
        let (store, reader) = (&app.store, &app.store.reader);
        let found = app.workflows.resolve(store, reader, &name, None).await?;
        if found.is_none() {
            unknown.push(name);
        }
    }
    Ok(unknown)
}

pub async fn respond(
    app: &App,
    definition: &Definition,
    fields: &TaskFields<'_>,
    permit: &EvaluationPermit<'_>,
) -> Result<Response, Problem> {
    let unknown = unknown_workflows(app, definition).await?;
    // A forecast: the clock of this machine is good enough.
    let now = Timestamp::from_millis(jiff::Timestamp::now().as_millisecond());
    let fields = TaskFields {
        now: Some(now),
        ..*fields
    };
    Ok(permit.run(|| {
        let mut report = dry_run(definition, &fields, &|agent| {
            let known: PlannedAgent = app.agents.get(agent)?.spec().into();
            let check = app.agents.last_check(agent);
            let check = check.and_then(|(check, is_current)| is_current.then_some(check));
            Some(PlannedAgent { check, ..known })
        });
        report.warn_of_workflows(definition, &unknown);
        json(StatusCode::OK, &report)
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;
    use utoipa::PartialSchema;

    use super::*;
    use crate::domain::{Accepted, Limits, Payload, Policies, Span, parse_steps};

    fn names<'a>(members: impl Iterator<Item = &'a String>) -> BTreeSet<&'a str> {
        members.map(String::as_str).collect()
    }

    /// The domain knows nothing of the document, so the shapes here could drift from what is sent.
    #[test]
    fn the_documented_shape_is_the_one_that_is_sent() {
        let steps = r#"[{"name": "a", "agent": "x", "for_each": [1], "complete_within": "2h", "undo": {"request": {}}},
            {"name": "b", "agent": "x", "repeat": {"until": "output.done", "at_most": 2}}]"#;
        let steps = Payload::parse(steps.to_owned()).unwrap();
        let definition = parse_steps(
            &steps,
            "",
            &Policies::default(),
            &Limits::default(),
            &Accepted,
        )
        .unwrap();
        let fields = TaskFields {
            complete_within: Some(Span::from_secs(60)),
            ..TaskFields::default()
        };
        let sent = dry_run(&definition, &fields, &|_| None);
        let mut sent = serde_json::to_value(&sent).unwrap();
        // A step has one of the two.
        sent["steps"][0]["repeat"] = sent["steps"][1]["repeat"].clone();
        let warning = sent["warnings"].as_array().unwrap();
        let warning = warning.iter().find(|warning| warning["step"].is_string());
        for (sent, schema) in [
            (&sent, DryRunReportBody::schema()),
            (&sent["steps"][0], PlannedStepBody::schema()),
            (&sent["steps"][0]["repeat"], PlannedRepeatBody::schema()),
            (&sent["undo"][0], UndoStepBody::schema()),
            (warning.unwrap(), WarningBody::schema()),
        ] {
            let schema: Value = serde_json::to_value(schema).unwrap();
            let documented = schema["properties"].as_object().unwrap();
            assert_eq!(
                names(sent.as_object().unwrap().keys()),
                names(documented.keys())
            );
        }
    }
}
