//! Clones many tasks with the same changes. Each clone is a submission, whose idempotency key is that of the job and the
//! original.

use std::{collections::BTreeMap, sync::Arc};

use axum::http::StatusCode;
use futures::future::join_all;
use serde_json::value::RawValue;

use super::{
    examples::{BulkExample, MOST_EXAMPLES},
    outcome::{LOAD_BATCH, load, outcome, refusal},
    send::JobRun,
};
use crate::{
    api::{
        App, Problem,
        extract::Conditions,
        task::{
            clone::{clone_submission, faults_of_changes},
            submit::{Submission, key_prefix, new_details},
        },
    },
    domain::{
        task::{BulkOutcome, Draft, Task},
        values::{FieldFault, TaskId},
    },
    store::{CommandError, Idempotency},
};

/// The submissions of clones by their originals, and the outcomes of the originals that have none.
type Clones = (Vec<BulkOutcome>, Vec<(Task, Submission)>);

/// Returns the faults of the changes in the body of the command.
pub(super) async fn faults(app: &App, body: &RawValue) -> Result<Vec<FieldFault>, Problem> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(body.get()).unwrap_or_default();
    match members.get("changes") {
        Some(changes) if changes.get().starts_with('{') => {
            faults_of_changes(app, changes, "/changes").await
        }
        // Another value is a fault of the command itself.
        _ => Ok(Vec::new()),
    }
}

/// Clones these tasks.
pub(super) async fn run(
    run: &JobRun<'_>,
    changes: &RawValue,
    tasks: &[TaskId],
) -> Result<Vec<BulkOutcome>, Problem> {
    let mut outcomes = Vec::with_capacity(tasks.len());
    for tasks in tasks.chunks(LOAD_BATCH) {
        let (refused, clones) = submissions(run.app, changes, tasks).await?;
        outcomes.extend(refused);
        let clones = clones.into_iter();
        let clones = clones.map(|(original, submission)| (original.id(), submission));
        let submitted = clones.map(async |(original, mut submission)| {
            let idempotency = Idempotency {
                key: run.job.key_of(original),
                fingerprint: "bulk".to_owned(),
            };
            submission.key_prefix = key_prefix(run.app, Some(&idempotency));
            let reason = submission.reason.clone();
            let id = run.store.new_task_id();
            let details = new_details(submission, id, &Conditions::default());
            let submitted = run.store.submit(details, reason, Some(idempotency)).await;
            (original, submitted.map(drop))
        });
        for (original, result) in join_all(submitted).await {
            match result {
                Err(CommandError::Store(error)) if !error.is_of_one_task() => {
                    return Err(error.into());
                }
                result => outcomes.push(outcome(original, result)),
            }
        }
    }
    Ok(outcomes)
}

/// Decides whether these tasks could be cloned, and adds the first ones to the examples.
pub(super) async fn decide(
    app: &App,
    changes: &RawValue,
    tasks: &[TaskId],
    examples: &mut Vec<BulkExample>,
) -> Result<Vec<BulkOutcome>, Problem> {
    let now = app.store.reader.now().await?;
    let (mut outcomes, clones) = submissions(app, changes, tasks).await?;
    for (original, submission) in clones {
        if examples.len() < MOST_EXAMPLES {
            // The clone is not stored: the id of the original serves to see how it begins.
            let details = new_details(submission, original.id(), &Conditions::default());
            let clone = Draft::submit(Arc::new(details), now).task;
            examples.push(BulkExample::of_clone(&original, &clone));
        }
        outcomes.push(outcome(original.id(), Ok(())));
    }
    Ok(outcomes)
}

async fn submissions(app: &App, changes: &RawValue, tasks: &[TaskId]) -> Result<Clones, Problem> {
    let (mut outcomes, loaded) = load(app, tasks).await?;
    let mut clones = Vec::with_capacity(loaded.len());
    for task in loaded {
        match clone_submission(app, &task.details, Some(changes)).await {
            Ok(submission) => clones.push((task, submission)),
            Err(problem) if problem.kind().status() == StatusCode::SERVICE_UNAVAILABLE => {
                return Err(problem);
            }
            Err(problem) => outcomes.push(refusal(task.id(), &problem)),
        }
    }
    Ok((outcomes, clones))
}
