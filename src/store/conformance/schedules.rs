//! The record of schedules.

use super::harness::Harness;
use crate::{
    domain::{
        schedule::{
            KEPT_RUNS, Overlap, RunRequest, RunState, RunSubmission, ScheduleSpec, TriggerRequest,
        },
        values::{InstanceId, Precondition, TaskId, Timestamp},
    },
    store::{ScheduleCommand, ScheduleError, SchedulePut, ScheduleRecord, ScheduleSave},
};

fn put(name: &str) -> SchedulePut {
    let spec: ScheduleSpec = serde_json::from_str(
        r#"{"every":"1h","timezone":"UTC","overlap":"allow","catch_up":"last","dst":"once"}"#,
    )
    .unwrap();
    SchedulePut {
        name: name.to_owned(),
        spec,
        submission: r#"{"workflow":"report"}"#.to_owned(),
        paused: None,
        by: "ann".to_owned(),
        condition: Precondition::default(),
    }
}

fn triggered(key: &str, fingerprint: &str) -> ScheduleCommand {
    let trigger = TriggerRequest {
        by: "ann".to_owned(),
        overlap: Overlap::Allow,
        request: Some(RunRequest {
            key: key.to_owned(),
            fingerprint: fingerprint.to_owned(),
        }),
        reason: None,
    };
    let times = None;
    ScheduleCommand::MakeRuns { trigger, times }
}

async fn read(h: &Harness, name: &str) -> ScheduleRecord {
    h.store.reader.schedule(name).await.unwrap().unwrap()
}

pub async fn of_two_that_look_at_a_schedule_one_decides(h: Harness) {
    let (new, is_new) = h.store.put_schedule(put("a")).await.unwrap();
    assert!(is_new);
    let (same, is_new) = h.store.put_schedule(put("a")).await.unwrap();
    assert!(!is_new);
    assert_eq!(same.etag(), new.etag());
    let seen = read(&h, "a").await;
    let rule = seen.rule().unwrap();
    let later = Timestamp::from_millis(seen.state.handled_at.as_millis() + 2 * 3_600_000);
    let mut saves = Vec::new();
    for _ in 0..2 {
        let mut record = seen.clone();
        let look = record.state.decide(&rule, later, |_| true);
        record.next_at = look.next_at;
        saves.push(ScheduleSave {
            record,
            runs: look.records.into_values().collect(),
            was_failing: false,
        });
    }
    for (save, is_saved) in saves.into_iter().zip([true, false]) {
        assert_eq!(h.store.save_schedule(save).await.unwrap(), is_saved);
    }
    let after = read(&h, "a").await;
    assert_eq!(
        after.etag(),
        new.etag(),
        "a run does not change it for callers"
    );
    assert!(!after.state.open.is_empty());
    let runs = h.store.reader.schedule_runs("a", None, 10).await.unwrap();
    assert!(runs.iter().any(|run| run.state == RunState::Queued));
}

pub async fn schedules_are_due_until_they_are_looked_at_and_listed_by_name(h: Harness) {
    for name in ["b", "a", "c"] {
        h.store.put_schedule(put(name)).await.unwrap();
    }
    let due = h.store.reader.due_schedules(10).await.unwrap();
    assert_eq!(due.len(), 3);
    let asker = InstanceId::new("node-1");
    let summary = h.store.reader.due_summary(&asker).await.unwrap();
    assert!(summary.is_schedule_due);
    for name in due {
        let mut record = read(&h, &name).await;
        record.next_at = None;
        let save = ScheduleSave {
            record,
            runs: Vec::new(),
            was_failing: false,
        };
        assert!(h.store.save_schedule(save).await.unwrap());
    }
    assert!(h.store.reader.due_schedules(10).await.unwrap().is_empty());
    let summary = h.store.reader.due_summary(&asker).await.unwrap();
    assert!(!summary.is_schedule_due);
    let page = h.store.reader.schedules("a", 1).await.unwrap();
    assert_eq!(page[0].0, "b");
    assert!(page[0].1.is_ok());
    let ahead = async |of| h.store.reader.schedules_ahead(of, 10).await.unwrap().len();
    assert_eq!(ahead(Timestamp::from_millis(0)).await, 3);
    assert_eq!(ahead(Timestamp::MAX).await, 0);
    let any = Precondition::default();
    assert!(
        h.store
            .delete_schedule("b".to_owned(), any.clone())
            .await
            .unwrap()
    );
    assert!(!h.store.delete_schedule("b".to_owned(), any).await.unwrap());
}

pub async fn so_many_runs_of_a_schedule_are_kept_and_a_repeated_request_makes_none(h: Harness) {
    h.store.put_schedule(put("a")).await.unwrap();
    let trigger = async |key: &str, fingerprint: &str| {
        let command = triggered(key, fingerprint);
        h.store.command_schedule("a".to_owned(), command).await
    };
    let first = trigger("k", "1").await.unwrap().unwrap();
    let again = trigger("k", "1").await.unwrap().unwrap();
    assert!(!first.is_replayed && again.is_replayed);
    assert_eq!(first.runs, again.runs);
    assert!(matches!(
        trigger("k", "2").await,
        Err(ScheduleError::KeyReused)
    ));
    let missing = h
        .store
        .command_schedule("x".to_owned(), triggered("k", "1"));
    assert!(missing.await.unwrap().is_none());
    for number in 0..KEPT_RUNS + 20 {
        let key = format!("n{number}");
        let run = trigger(&key, "1").await.unwrap().unwrap().runs.remove(0);
        let mut record = read(&h, "a").await;
        let task = RunSubmission::Task(TaskId(uuid::Uuid::from_u128(u128::from(number))));
        let begun = record
            .state
            .record_submission(run.number, task, Timestamp::from_millis(1));
        let save = ScheduleSave {
            record,
            runs: begun.into_iter().collect(),
            was_failing: false,
        };
        assert!(h.store.save_schedule(save).await.unwrap());
    }
    let runs = h.store.reader.schedule_runs("a", None, 1000).await.unwrap();
    let started = runs.iter().filter(|run| run.state == RunState::Started);
    assert!(started.count() as u64 <= KEPT_RUNS);
    let oldest = runs.last().unwrap();
    assert_eq!(
        (oldest.number, oldest.state),
        (1, RunState::Queued),
        "one that waits is kept"
    );
    assert!(
        h.store
            .reader
            .unended(&read(&h, "a").await.state.running)
            .await
            .unwrap()
            .is_empty()
    );
}
