//! The submission of a schedule: the same parser, limits and problems as over HTTP, when the schedule is put and at
//! each of its runs.

use serde_json::value::RawValue;

use super::submit::{self, MessageSource, Submission, new_details};
use crate::{
    api::{App, Problem, definition::workflows, extract::Conditions, problem::ProblemKind},
    domain::{
        schedule::{FIRE_TIME_LABEL, RunSource, RunSubmission, SCHEDULE_LABEL, ScheduleRun},
        values::{FieldFault, MOST_LABELS, Trace, WorkflowName},
    },
    store::{CommandError, Idempotency, ScheduleRecord, StoreError, Submitted},
};

/// Returns the faults of a schedule's submission.
pub async fn check_scheduled(app: &App, body: &RawValue) -> Result<(), Problem> {
    read(app, body).await.map(drop)
}

/// Submits the task of a run under the key of its fire time. An error is temporary: another attempt may succeed.
pub async fn submit_run(
    app: &App,
    record: &ScheduleRecord,
    run: &ScheduleRun,
) -> Result<RunSubmission, Problem> {
    if app.stop.is_cancelled() {
        let detail = "the service is stopping and accepts no more tasks";
        return Err(Problem::new(ProblemKind::Stopping, detail));
    }
    let body: Box<RawValue> = match serde_json::from_str(&record.submission) {
        Ok(body) => body,
        Err(error) => {
            return Ok(RunSubmission::Rejected(format!(
                "its record cannot be read: {error}"
            )));
        }
    };
    let read = read(app, &body).await;
    let mut submission = match read {
        Ok(submission) => submission,
        Err(problem) if is_temporary(problem.kind()) => return Err(problem),
        Err(problem) => return Ok(RunSubmission::Rejected(problem.explained())),
    };
    let name = &record.name;
    submission.key = Some(run.task_key(name));
    submission.labels.extend(run.task_labels(name));
    let by = run.by.as_deref().unwrap_or_default();
    let reason = match run.source {
        RunSource::Scheduled => format!("schedule {name}"),
        RunSource::CaughtUp => format!("schedule {name}, caught up"),
        RunSource::Backfilled => format!("schedule {name}, backfilled by {by}"),
        RunSource::Triggered => format!("schedule {name}, triggered by {by}"),
    };
    let prefixes = app.store.key_prefixes();
    submission.key_prefix =
        prefixes.map(|all| all.of_run(name, &record.state, run, &record.submission));
    let conditions = Conditions {
        trace: Trace::join(&[], &[]),
        ..Conditions::default()
    };
    let idempotency = Idempotency {
        key: record.state.idempotency_key(name, run),
        // A task that another run has submitted does not belong to this one.
        fingerprint: run.number.to_string(),
    };
    let details = new_details(submission, app.store.new_task_id(), &conditions);
    let submitted = app.store.submit(details, Some(reason), Some(idempotency));
    Ok(match submitted.await {
        Ok(Submitted::New(task)) => RunSubmission::Task(task.id()),
        Ok(Submitted::Replayed(task)) => RunSubmission::Task(task),
        Err(CommandError::KeyReused) => RunSubmission::Repeated,
        Err(CommandError::Store(error)) if is_temporary_error(&error) => return Err(error.into()),
        Err(error) => RunSubmission::Rejected(error.to_string()),
    })
}

async fn read(app: &App, body: &RawValue) -> Result<Submission, Problem> {
    // Another instance may have registered a version that is unknown here, and its notification may be lost.
    let workflow = workflow_of(body);
    if let Some(workflow) = &workflow {
        workflows::load_active(app, workflow).await?;
    }
    let source = MessageSource {
        is_scheduled: true,
        ..MessageSource::default()
    };
    let submission = submit::read(app, body, None, Some(source)).await?;
    let mut faults = Vec::new();
    for label in [SCHEDULE_LABEL, FIRE_TIME_LABEL] {
        if submission.labels.contains_key(label) {
            let message = "is set by the schedule: omit it";
            faults.push(FieldFault::new(format!("/labels/{label}"), message));
        }
    }
    let most = MOST_LABELS - 2;
    if submission.labels.len() > most {
        let count = submission.labels.len();
        let message =
            format!("{count} labels are too many; at most {most}, because the schedule adds two");
        faults.push(FieldFault::new("/labels", message));
    }
    match faults.is_empty() {
        true => Ok(submission),
        false => Err(Problem::invalid(faults)),
    }
}

fn workflow_of(body: &RawValue) -> Option<WorkflowName> {
    #[derive(serde::Deserialize)]
    struct Named {
        workflow: String,
    }
    let named: Named = serde_json::from_str(body.get()).ok()?;
    Some(WorkflowName::new(named.workflow))
}

fn is_temporary(kind: ProblemKind) -> bool {
    matches!(
        kind,
        ProblemKind::Busy
            | ProblemKind::Stopping
            | ProblemKind::StoreFull
            | ProblemKind::StoreUnavailable
    )
}

fn is_temporary_error(error: &StoreError) -> bool {
    match error {
        StoreError::Full
        | StoreError::Unavailable(_)
        | StoreError::CommitUnknown(_)
        | StoreError::Retryable(_)
        | StoreError::Lost(_)
        | StoreError::NotNow(_)
        | StoreError::RowLocked(_)
        | StoreError::Stopping => true,
        StoreError::Corrupt(_)
        | StoreError::Task(_)
        | StoreError::Panicked
        | StoreError::Unreadable(_) => false,
    }
}
