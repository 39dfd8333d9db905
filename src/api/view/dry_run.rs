//! The dry-run report: the effect that a definition would have, without storing anything.

use axum::{http::StatusCode, response::Response};

use crate::api::{App, Problem, bulkhead::EvaluationPermit, response::json};
use crate::{
    clock,
    domain::{
        definition::Definition,
        values::WorkflowName,
        view::{PlannedAgent, TaskFields, dry_run},
    },
};

/// The most workflows that a definition names whose existence is checked.
const MOST_LOOKED_UP: usize = 50;

/// Returns the workflows that the definition's steps would submit tasks of, and that do not exist.
async fn unknown_workflows(
    app: &App,
    definition: &Definition,
) -> Result<Vec<WorkflowName>, Problem> {
    let named = definition.steps.iter();
    let named = named.filter_map(|step| step.rule_to_run().child_rule());
    let mut named: Vec<_> = named
        .filter_map(|rule| rule.source.workflow().cloned())
        .collect();
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
    // The clock of this machine is precise enough for a forecast.
    let now = clock::wall();
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
