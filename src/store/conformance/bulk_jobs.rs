//! The record of bulk jobs and of their tasks.

use uuid::Uuid;

use super::harness::Harness;
use crate::{
    domain::{
        task::{
            BulkAction, BulkChange, BulkJob, BulkLease, BulkOrder, BulkOutcome, BulkRefusal,
            TaskRefusal,
        },
        values::{InstanceId, TaskId, Timestamp},
    },
    store::{
        BulkJobError, BulkJobId, BulkJobRecord, BulkResultFilter, BulkTaskQuery, Idempotency,
        NewBulkJob,
    },
};

fn task(number: u128) -> TaskId {
    TaskId(Uuid::from_u128(number))
}

fn new(number: u128, now: Timestamp) -> NewBulkJob {
    NewBulkJob {
        id: BulkJobId(Uuid::from_u128(number)),
        order: BulkOrder {
            action: BulkAction::Retry,
            body: r#"{"all":true}"#.to_owned(),
            by: "ann".to_owned(),
            reason: None,
            sentence: "retry 3 tasks".to_owned(),
            total: 3,
            total_is_at_least: false,
            up_to: task(u128::MAX),
            at: now,
        },
        job: BulkJob::new("ann", None, None, now),
        idempotency: None,
    }
}

async fn add(h: &Harness, number: u128) -> BulkJobId {
    let now = h.store.reader.now().await.unwrap();
    let added = h.store.add_bulk_job(new(number, now)).await.unwrap();
    added.record.id
}

async fn change(
    h: &Harness,
    id: BulkJobId,
    change: BulkChange,
) -> Result<BulkJobRecord, BulkRefusal> {
    h.store.change_bulk_job(id, change).await.unwrap().unwrap()
}

async fn claim(h: &Harness, id: BulkJobId, by: &str) -> Result<BulkLease, BulkRefusal> {
    let claim = BulkChange::Claim {
        by: InstanceId::new(by),
        is_holder_gone: false,
    };
    Ok(change(h, id, claim).await?.job.lease.unwrap())
}

fn plan(lease: &BulkLease, tasks: &[u128], then: Option<u128>) -> BulkChange {
    BulkChange::Plan {
        lease: lease.clone(),
        tasks: tasks.iter().copied().map(task).collect(),
        then: then.map(task),
    }
}

fn complete(lease: &BulkLease, outcomes: &[(u128, Option<&str>)]) -> BulkChange {
    let outcomes = outcomes.iter().map(|(number, reason)| BulkOutcome {
        task: task(*number),
        refusal: reason.map(|reason| TaskRefusal {
            kind: "task-ended".to_owned(),
            reason: reason.to_owned(),
        }),
    });
    BulkChange::Complete {
        lease: lease.clone(),
        outcomes: outcomes.collect(),
    }
}

pub async fn a_job_is_changed_by_the_instance_that_has_it_alone(h: Harness) {
    let id = add(&h, 1).await;
    assert_eq!(h.store.reader.due_bulk_jobs().await.unwrap().len(), 1);
    // No instance of this id has a lease, so another one may take the job over.
    let first = claim(&h, id, "one").await.unwrap();
    let second = claim(&h, id, "two").await.unwrap();
    let late = plan(&first, &[1], Some(1));
    assert_eq!(
        change(&h, id, late).await.unwrap_err(),
        BulkRefusal::NotYours
    );
    change(&h, id, plan(&second, &[1, 2], Some(2)))
        .await
        .unwrap();
    let third = claim(&h, id, "one").await.unwrap();
    let outcomes = [(1, None), (2, Some("it has ended"))];
    let late = complete(&second, &outcomes);
    assert_eq!(
        change(&h, id, late).await.unwrap_err(),
        BulkRefusal::NotYours
    );
    let saved = change(&h, id, complete(&third, &outcomes)).await.unwrap();
    assert_eq!((saved.job.matched, saved.job.refused), (2, 1));
    let read = h.store.reader.bulk_job(id).await.unwrap().unwrap();
    assert_eq!(read.job, saved.job);
    change(&h, id, plan(&third, &[], None)).await.unwrap();
    assert!(h.store.reader.due_bulk_jobs().await.unwrap().is_empty());
    let stop = BulkChange::Stop {
        by: "ann".to_owned(),
    };
    assert_eq!(
        change(&h, id, stop.clone()).await.unwrap_err(),
        BulkRefusal::Ended
    );
    let nobody = BulkJobId(Uuid::from_u128(9));
    let none = h.store.change_bulk_job(nobody, stop).await.unwrap();
    assert!(none.is_none());
}

pub async fn the_tasks_of_a_job_are_listed_by_result_in_pages_and_deleted_with_it(h: Harness) {
    let id = add(&h, 1).await;
    let other = add(&h, 2).await;
    for job in [id, other] {
        let lease = claim(&h, job, "one").await.unwrap();
        let tasks: Vec<_> = (1..=60).collect();
        change(&h, job, plan(&lease, &tasks, None)).await.unwrap();
        let long = "x".repeat(5000);
        let outcomes = { tasks.iter() }.map(|task| (*task, (task % 2 == 0).then_some(&*long)));
        let outcomes: Vec<_> = outcomes.collect();
        change(&h, job, complete(&lease, &outcomes)).await.unwrap();
    }
    let page = async |result, after, limit| {
        let query = BulkTaskQuery {
            job: id,
            result,
            after,
            limit,
        };
        h.store.reader.bulk_tasks(&query).await.unwrap()
    };
    let first = page(BulkResultFilter::Refused, None, 20).await;
    assert_eq!(first.tasks.len(), 20);
    assert_eq!(first.tasks[0].task, task(2));
    assert_eq!(first.tasks[0].kind.as_deref(), Some("task-ended"));
    assert!(first.tasks[0].reason.as_ref().unwrap().len() < 600);
    let second = page(BulkResultFilter::Refused, first.next, 20).await;
    assert_eq!((second.tasks.len(), second.next), (10, None));
    let accepted = page(BulkResultFilter::Accepted, None, 100).await;
    assert_eq!(accepted.tasks.len(), 30);
    let again = page(BulkResultFilter::FailedAgain, None, 100).await;
    assert_eq!((again.tasks.len(), again.next), (0, None));
    let counted = h.store.reader.count_failed_again(id).await.unwrap();
    assert_eq!(counted, (0, false));
    let newest = h.store.reader.bulk_jobs(None, 1).await.unwrap();
    assert_eq!(newest[0].id, other);
    let older = h.store.reader.bulk_jobs(Some(other), 9).await.unwrap();
    assert_eq!(older[0].id, id);
    // Both are kept for some time after their end.
    assert!(!h.store.purge_bulk_jobs(50).await.unwrap());
    let over = "UPDATE bulk_jobs SET kept_until = 1 WHERE state = 'ended'";
    h.database.execute(over).await;
    while h.store.purge_bulk_jobs(50).await.unwrap() {}
    assert_eq!(h.database.count("SELECT count(*) FROM bulk_jobs").await, 0);
    assert_eq!(h.database.count("SELECT count(*) FROM bulk_tasks").await, 0);
}

pub async fn a_repeated_request_adds_no_job_and_so_many_run_at_once(h: Harness) {
    let now = h.store.reader.now().await.unwrap();
    let keyed = |number, fingerprint: &str| NewBulkJob {
        idempotency: Some(Idempotency {
            key: "once".to_owned(),
            fingerprint: fingerprint.to_owned(),
        }),
        ..new(number, now)
    };
    let first = h.store.add_bulk_job(keyed(1, "a")).await.unwrap();
    assert!(!first.is_replayed);
    let second = h.store.add_bulk_job(keyed(2, "a")).await.unwrap();
    assert!(second.is_replayed);
    assert_eq!(second.record.id, first.record.id);
    let other = h.store.add_bulk_job(keyed(3, "b")).await;
    assert!(matches!(other, Err(BulkJobError::KeyReused)));
    for number in 10..109 {
        add(&h, number).await;
    }
    let more = h.store.add_bulk_job(new(200, now)).await;
    assert!(matches!(more, Err(BulkJobError::TooMany)));
}
