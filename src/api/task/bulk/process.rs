//! Processes a job batch by batch, on the instance that has its lease: finds the next tasks, plans them in the record,
//! applies the command, saves the outcomes.

use axum::http::StatusCode;
use serde_json::value::RawValue;
use tracing::error;

use super::{
    apply::apply,
    request::{BulkRequest, TaskSelection, next_listed},
    send::JobRun,
};
use crate::{
    api::{App, Problem, problem::ProblemKind, task::bulk_log},
    domain::{
        task::{Actor, BulkChange, BulkOrder, BulkOutcome, BulkRefusal},
        values::{TaskId, Timestamp},
    },
    store::{BulkJobId, BulkJobRecord, Look, MOST_LOOKED_AT, Store, StoreError},
};

/// The result of a look at a job.
pub enum BulkProgress {
    /// The job as it is after a batch.
    Saved(Box<BulkJobRecord>),
    /// Another instance has the job, or it has no work now.
    NotOurs,
}

/// Processes the next batch of a job. `known` is the job as this instance has saved it last. With `since`, a job is left
/// alone that no operator has started or resumed after that time.
pub async fn process(
    app: &App,
    store: &Store,
    id: BulkJobId,
    known: Option<BulkJobRecord>,
    since: Option<Timestamp>,
) -> Result<BulkProgress, StoreError> {
    if let Some(since) = since {
        let record = app.store.reader.bulk_job(id).await?;
        if record.is_none_or(|record| record.job.commanded_at < since) {
            return Ok(BulkProgress::NotOurs);
        }
    }
    let mut record = match known {
        Some(known) => known,
        None => {
            let claim = BulkChange::Claim {
                by: app.instance.clone(),
                is_holder_gone: false,
            };
            match change(store, id, claim).await? {
                Some(record) => record,
                None => return Ok(BulkProgress::NotOurs),
            }
        }
    };
    let Some(lease) = record.job.lease.clone() else {
        return Ok(BulkProgress::NotOurs);
    };
    let request = match read(&record.order) {
        Ok(request) => request,
        Err(problem) => {
            let reason = format!(
                "the command cannot be read by instance {}: {}",
                app.instance,
                problem.explained()
            );
            error!(job = %id, reason, "a bulk job has failed");
            let saved = change(store, id, BulkChange::Fail { lease, reason }).await?;
            return Ok(saved.map_or(BulkProgress::NotOurs, progress));
        }
    };
    let is_repeated = record.job.batch.is_some();
    if !is_repeated {
        let found = next(app, &record, &request).await?;
        let plan = BulkChange::Plan {
            lease: lease.clone(),
            tasks: found.found,
            then: found.next,
        };
        match change(store, id, plan).await? {
            Some(planned) => record = planned,
            None => return Ok(BulkProgress::NotOurs),
        }
    }
    let Some(batch) = &record.job.batch else {
        note_end(&record);
        return Ok(progress(record));
    };
    let run = JobRun {
        app,
        store,
        job: id,
        by: Actor::operator(&record.order.by),
    };
    let outcomes = apply(&run, &request, &batch.tasks).await;
    let mut outcomes = match outcomes {
        Ok(outcomes) => outcomes,
        Err(problem) if problem.kind().status() == StatusCode::SERVICE_UNAVAILABLE => {
            return Err(interrupted(&problem));
        }
        Err(problem) => {
            let reason = problem.explained();
            error!(job = %id, reason, "a bulk job has failed");
            let saved = change(store, id, BulkChange::Fail { lease, reason }).await?;
            return Ok(saved.map_or(BulkProgress::NotOurs, progress));
        }
    };
    if is_repeated {
        count_accepted(&run, &batch.tasks, &mut outcomes).await?;
    }
    let complete = BulkChange::Complete { lease, outcomes };
    let saved = change(store, id, complete).await?;
    Ok(saved.map_or(BulkProgress::NotOurs, |record| {
        note_end(&record);
        progress(record)
    }))
}

/// Has a job fail that this process cannot carry out.
pub async fn fail(
    app: &App,
    store: &Store,
    id: BulkJobId,
    reason: String,
) -> Result<(), StoreError> {
    let claim = BulkChange::Claim {
        by: app.instance.clone(),
        is_holder_gone: false,
    };
    let Some(record) = change(store, id, claim).await? else {
        return Ok(());
    };
    if let Some(lease) = record.job.lease {
        change(store, id, BulkChange::Fail { lease, reason }).await?;
    }
    Ok(())
}

fn progress(record: BulkJobRecord) -> BulkProgress {
    BulkProgress::Saved(Box::new(record))
}

async fn change(
    store: &Store,
    id: BulkJobId,
    change: BulkChange,
) -> Result<Option<BulkJobRecord>, StoreError> {
    Ok(match store.change_bulk_job(id, change).await? {
        Some(Ok(record)) => Some(record),
        None | Some(Err(BulkRefusal::NotYours | BulkRefusal::Ended)) => None,
    })
}

/// Parses the command of a job.
pub(super) fn read(order: &BulkOrder) -> Result<BulkRequest, Problem> {
    let body: Box<RawValue> = serde_json::from_str(&order.body)
        .map_err(|error| Problem::new(ProblemKind::Internal, error.to_string()))?;
    let mut request = BulkRequest::read(order.action, &body, Vec::new())?;
    if let TaskSelection::Filter(filter) = &mut request.selection
        && filter.is_of_failures()
    {
        filter.failed_by.get_or_insert(order.at);
    }
    Ok(request)
}

/// Finds the tasks of the next batch. There may be none of them although the search continues.
async fn next(
    app: &App,
    record: &BulkJobRecord,
    request: &BulkRequest,
) -> Result<Look<Vec<TaskId>>, StoreError> {
    let (after, wanted) = (record.job.after, record.job.batch_size());
    let look = match &request.selection {
        TaskSelection::Ids(ids) => next_listed(ids, after, wanted),
        TaskSelection::Filter(filter) => {
            let reader = &app.store.reader;
            reader
                .task_ids(filter, after, wanted, MOST_LOOKED_AT)
                .await?
        }
    };
    Ok(match &request.selection {
        TaskSelection::Ids(_) => look,
        TaskSelection::Filter(_) => until(look, record.order.up_to),
    })
}

/// Leaves out the tasks that came later than the job. The search ends at the first of them.
fn until(mut look: Look<Vec<TaskId>>, last: TaskId) -> Look<Vec<TaskId>> {
    let has_later = look.found.iter().any(|task| *task > last);
    look.found.retain(|task| *task <= last);
    look.next = look.next.filter(|next| !has_later && *next < last);
    look
}

/// Corrects the outcomes of a batch that was begun before: tasks that had accepted the command then may refuse it now, or
/// it applies to them no longer.
async fn count_accepted(
    run: &JobRun<'_>,
    tasks: &[TaskId],
    outcomes: &mut Vec<BulkOutcome>,
) -> Result<(), StoreError> {
    let reader = &run.app.store.reader;
    let accepted = reader.accepted_of_bulk_job(run.job, tasks).await?;
    outcomes.retain(|outcome| !accepted.contains(&outcome.task));
    outcomes.extend(accepted.into_iter().map(|task| BulkOutcome {
        task,
        refusal: None,
    }));
    Ok(())
}

/// Converts the problem of the store, or of the compilation of a workflow, for the loop, which tries again later.
fn interrupted(problem: &Problem) -> StoreError {
    match problem.kind() {
        ProblemKind::StoreFull => StoreError::Full,
        _ => StoreError::Unavailable(problem.detail().to_owned()),
    }
}

fn note_end(record: &BulkJobRecord) {
    if record.job.is_running() {
        return;
    }
    bulk_log::carried_out(record);
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn task(number: u128) -> TaskId {
        TaskId(Uuid::from_u128(number))
    }

    #[test]
    fn tasks_that_came_after_the_job_are_left_out() {
        let look = |found: &[u128], next: Option<u128>| {
            let look = Look {
                found: found.iter().copied().map(task).collect(),
                looked_at: 0,
                next: next.map(task),
            };
            let look = until(look, task(5));
            (look.found.len(), look.next)
        };
        assert_eq!(look(&[1, 2], Some(2)), (2, Some(task(2))));
        assert_eq!(look(&[4, 5], Some(5)), (2, None));
        assert_eq!(look(&[4, 6], Some(6)), (1, None));
        assert_eq!(look(&[], Some(9)), (0, None));
        assert_eq!(look(&[], Some(3)), (0, Some(task(3))));
        assert_eq!(look(&[3], None), (1, None));
    }
}
