//! The rules of a bulk job.

use uuid::Uuid;

use super::*;
use crate::values::{InstanceId, Rate, Span, TaskId, Timestamp};

const START: Timestamp = Timestamp::from_millis(1_000_000);

fn at(seconds: u64) -> Timestamp {
    START + Span::from_millis(seconds * 1000)
}

fn task(number: u128) -> TaskId {
    TaskId(Uuid::from_u128(number))
}

fn claim(by: &str) -> BulkChange {
    BulkChange::Claim {
        by: InstanceId::new(by),
        is_holder_gone: false,
    }
}

fn outcome(number: u128, refused: bool) -> BulkOutcome {
    BulkOutcome {
        task: task(number),
        refusal: refused.then(|| TaskRefusal {
            kind: "task-ended".to_owned(),
            reason: "the task has ended".to_owned(),
        }),
    }
}

fn new() -> BulkJob {
    BulkJob::new("ann", None, None, START)
}

/// Has an instance take the job, and returns its lease.
fn taken(job: &mut BulkJob, by: &str, now: Timestamp) -> BulkLease {
    job.change(&claim(by), now).unwrap();
    job.lease.clone().unwrap()
}

fn plan(lease: &BulkLease, tasks: &[u128], then: Option<u128>) -> BulkChange {
    BulkChange::Plan {
        lease: lease.clone(),
        tasks: tasks.iter().copied().map(task).collect(),
        then: then.map(task),
    }
}

fn complete(lease: &BulkLease, outcomes: &[BulkOutcome]) -> BulkChange {
    BulkChange::Complete {
        lease: lease.clone(),
        outcomes: outcomes.to_vec(),
    }
}

#[test]
fn a_job_counts_the_outcomes_of_its_batches_and_ends_after_the_last() {
    let mut job = new();
    let lease = taken(&mut job, "one", START);
    job.change(&plan(&lease, &[1, 2], Some(2)), at(1)).unwrap();
    let outcomes = [outcome(1, false), outcome(2, true)];
    job.change(&complete(&lease, &outcomes), at(1)).unwrap();
    assert_eq!((job.matched, job.accepted, job.refused), (2, 1, 1));
    assert_eq!(job.after, Some(task(2)));
    assert_eq!(job.state, BulkState::Running);
    job.change(&plan(&lease, &[], Some(9)), at(2)).unwrap();
    assert_eq!((job.after, job.matched), (Some(task(9)), 2));
    job.change(&plan(&lease, &[10], None), at(2)).unwrap();
    job.change(&complete(&lease, &[outcome(10, false)]), at(3))
        .unwrap();
    assert_eq!(job.state, BulkState::Ended { at: at(3) });
    assert_eq!(job.refusals["task-ended"], 1);
    assert_eq!(job.kept_until(), Some(at(3) + KEPT_FOR));
    let by = "ann".to_owned();
    let resumed = BulkChange::Resume {
        by: by.clone(),
        first: None,
        rate: None,
    };
    assert_eq!(job.change(&resumed, at(4)), Err(BulkRefusal::Ended));
    let stopped = BulkChange::Stop { by };
    assert_eq!(job.change(&stopped, at(4)), Err(BulkRefusal::Ended));
}

#[test]
fn another_instance_takes_a_job_over_and_the_first_one_saves_nothing_any_more() {
    let mut job = new();
    let first = taken(&mut job, "one", START);
    job.change(&plan(&first, &[1], None), at(1)).unwrap();
    assert_eq!(job.change(&claim("two"), at(5)), Err(BulkRefusal::NotYours));
    let second = taken(&mut job, "two", at(30));
    assert_eq!(job.batch.as_ref().unwrap().tasks, [task(1)]);
    let late = complete(&first, &[outcome(1, false)]);
    assert_eq!(job.change(&late, at(31)), Err(BulkRefusal::NotYours));
    assert_eq!(job.matched, 0);
    job.change(&complete(&second, &[outcome(1, false)]), at(31))
        .unwrap();
    assert_eq!(job.accepted, 1);
    let mut job = new();
    taken(&mut job, "one", START);
    let gone = BulkChange::Claim {
        by: InstanceId::new("two"),
        is_holder_gone: true,
    };
    job.change(&gone, at(1)).unwrap();
    assert_eq!(job.lease.unwrap().holder, InstanceId::new("two"));
}

#[test]
fn a_job_is_stopped_after_the_batch_that_it_has_begun_and_can_be_resumed() {
    let stop = BulkChange::Stop {
        by: "ann".to_owned(),
    };
    let mut job = new();
    let lease = taken(&mut job, "one", START);
    job.change(&plan(&lease, &[1], Some(1)), at(1)).unwrap();
    job.change(&stop, at(1)).unwrap();
    assert_eq!(job.state, BulkState::Stopping);
    assert!(job.due_at().is_some(), "its batch is completed");
    job.change(&complete(&lease, &[outcome(1, false)]), at(2))
        .unwrap();
    assert_eq!(job.state.as_str(), "stopped");
    assert_eq!(job.due_at(), None);
    assert_eq!(job.change(&claim("one"), at(3)), Err(BulkRefusal::NotYours));
    job.change(&stop, at(3)).unwrap();
    let resume = BulkChange::Resume {
        by: "bob".to_owned(),
        first: Some(1),
        rate: None,
    };
    job.change(&resume, at(4)).unwrap();
    let lease = taken(&mut job, "two", at(4));
    assert_eq!(job.batch_size(), 1);
    job.change(&plan(&lease, &[2], Some(2)), at(5)).unwrap();
    job.change(&complete(&lease, &[outcome(2, false)]), at(5))
        .unwrap();
    let cause = StopCause::First;
    assert_eq!(job.state, BulkState::Stopped { at: at(5), cause });
    assert_eq!(job.after, Some(task(2)));
    let mut idle = new();
    idle.change(&stop, at(1)).unwrap();
    assert_eq!(idle.state.as_str(), "stopped");
}

#[test]
fn a_rate_spaces_the_batches() {
    let rate = Rate::parse("20/s");
    let mut job = BulkJob::new("ann", rate, None, START);
    assert_eq!(job.batch_size(), 20);
    let lease = taken(&mut job, "one", START);
    let tasks: Vec<_> = (1..=10).collect();
    job.change(&plan(&lease, &tasks, Some(10)), START).unwrap();
    job.change(&complete(&lease, &[]), START).unwrap();
    assert_eq!(job.due_at(), Some(START + Span::from_millis(500)));
    assert_eq!(job.change(&claim("one"), START), Err(BulkRefusal::NotYours));
    let slow = BulkJob::new("ann", Rate::parse("10/m"), None, START);
    assert_eq!(slow.batch_size(), 1);
    let fast = BulkJob::new("ann", Rate::parse("5000/s"), None, START);
    assert_eq!(fast.batch_size(), BULK_BATCH);
}

#[test]
fn the_journal_of_a_job_is_bounded() {
    let mut job = new();
    for round in 0..200 {
        let resume = BulkChange::Resume {
            by: "ann".to_owned(),
            first: Some(1),
            rate: None,
        };
        job.change(&resume, at(round)).unwrap();
    }
    assert_eq!(job.entries.len(), 50);
    assert_eq!(job.entries[0].event, "started");
}

#[test]
fn a_job_is_read_back_as_it_was_saved() {
    let mut job = BulkJob::new("ann", Rate::parse("20/s"), Some(5), START);
    let lease = taken(&mut job, "one", START);
    job.change(&plan(&lease, &[1], None), at(1)).unwrap();
    let json = serde_json::to_string(&job).unwrap();
    assert_eq!(serde_json::from_str::<BulkJob>(&json).unwrap(), job);
}
