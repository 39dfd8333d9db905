//! Undos by policy that wait until an operator resumes the task, together with instances that do not know of them.

use serde_json::json;

use super::{
    harness::{Harness, New, postgres, postgres_at, refusal},
    shared::{outside, url},
    untouched::known_by_all,
};
use crate::{
    domain::task::{Command, Task, TaskStatus},
    store::SharedFeature,
};

/// The record of an instance that joined before undos waited for the resumption.
const OLDER: &str =
    "INSERT INTO instances (id, incarnation, term, until, started_at, version, process,
        reads_untouched, reads_claims, reads_key_prefix, completes_links, holds_undos, writes_ledger, reads_attempt_rules)
    VALUES ('older', '00000000-0000-0000-0000-000000000001', 1, 1, 1, '0.0.9', 'p', 1, 1, 1, 1, NULL, NULL, NULL)";
/// The record of an older instance that joins after that.
const LATE: &str = "INSERT INTO instances (id, incarnation, term, until, started_at, version, process, reads_untouched, reads_claims,
        reads_key_prefix, completes_links)
    VALUES ('late', '00000000-0000-0000-0000-000000000001', 1, 1, 1, '0.0.9', 'p', 1, 1, 1, 1)";

/// Returns a task that was paused before its step was refused. The policy of the step is to undo the task.
async fn refused_while_paused(h: &Harness) -> Task {
    h.slots("x", 100);
    let steps = json!([{ "name": "a", "agent": "x", "on_permanent": "undo" }]);
    let new = New {
        steps,
        ..New::default()
    };
    let id = h.submit(new).await.id();
    h.apply(id, Command::Pause { reason: None }).await.unwrap();
    h.reply(id, 0, 1, refusal()).await.unwrap();
    h.read(id).await
}

pub async fn an_undo_by_policy_waits_until_the_task_is_resumed(h: Harness) {
    known_by_all(&h, SharedFeature::HeldUndos).await;
    let task = refused_while_paused(&h).await;
    assert_eq!(task.status(), TaskStatus::Paused);
    assert_eq!(task.faults_that_undo_on_resume().count(), 1);
    let resume = Command::Resume { reason: None };
    let resumed = h.apply(task.id(), resume).await.unwrap();
    assert_eq!(resumed.status(), TaskStatus::Undone);
}

#[tokio::test]
async fn while_an_older_instance_is_on_record_no_undo_waits_for_the_resumption() {
    let first = Harness::new(postgres().await).await;
    known_by_all(&first, SharedFeature::HeldUndos).await;
    first.database.execute(OLDER).await;
    let h = Harness::new(postgres_at(url(&first)).await).await;
    // The store knows of the other feature, which proves that it has read the record.
    known_by_all(&h, SharedFeature::StepsWithoutRows).await;
    let task = refused_while_paused(&h).await;
    assert_eq!(task.status(), TaskStatus::Undone);
    h.database.execute("DELETE FROM instances").await;
    known_by_all(&h, SharedFeature::HeldUndos).await;
    let task = refused_while_paused(&h).await;
    assert_eq!(task.status(), TaskStatus::Paused);
    let joined = sqlx::query(LATE).execute(&mut outside(&h).await).await;
    let refused = joined.unwrap_err().to_string();
    assert!(refused.contains("older_instances_cannot_join"), "{refused}");
}
