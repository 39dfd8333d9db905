//! The prefix of the keys of a task's steps is kept with the task, and no task that an older instance may call gets
//! one.

use super::{
    harness::{Harness, New, now, postgres, postgres_at},
    shared::{outside, url},
    untouched::known_by_all,
};
use crate::{
    domain::{
        task::{Details, KeyPrefixes},
        values::StepIndex,
    },
    store::SharedFeature,
};

fn prefixes() -> KeyPrefixes {
    KeyPrefixes::new(b"0123456789abcdef").unwrap()
}

pub async fn a_task_keeps_the_prefix_that_it_was_submitted_with(h: Harness) {
    let prefix = prefixes().of_request("order-1", "f");
    let details = Details {
        key_prefix: Some(prefix.clone()),
        ..h.details(&New::default())
    };
    let keyed = now(h.store.submit(details, None, None).await.unwrap());
    let read = h.read(keyed.id()).await;
    assert_eq!(read.idempotency_key(StepIndex(0)), format!("{prefix}:a"));
    // A task without a prefix is like the tasks of earlier versions.
    let plain = h.submit(New::default()).await;
    let read = h.read(plain.id()).await;
    assert_eq!(
        read.idempotency_key(StepIndex(0)),
        format!("{}:a", plain.id())
    );
}

pub async fn tasks_get_prefixes_where_the_operator_wants_them(h: Harness) {
    known_by_all(&h, SharedFeature::KeyPrefixes).await;
    assert!(h.store.key_prefixes().is_none());
    h.store.use_key_prefixes(prefixes());
    assert!(h.store.key_prefixes().is_some());
}

/// The record of an instance that joined before keys had prefixes.
const OLDER: &str =
    "INSERT INTO instances (id, incarnation, term, until, started_at, version, process,
        reads_untouched, reads_claims, reads_key_prefix, completes_links, holds_undos, writes_ledger, reads_attempt_rules)
    VALUES ('older', '00000000-0000-0000-0000-000000000001', 1, 1, 1, '0.0.9', 'p', 1, 1, NULL, NULL, NULL, NULL, NULL)";
/// Renews the lease of the older instance.
const RENEWED: &str = "UPDATE instances SET term = 2, until = 2, reads_untouched = 1, reads_claims = 1 WHERE id = 'older'";
/// The record of an older instance that joins after that.
const LATE: &str = "INSERT INTO instances (id, incarnation, term, until, started_at, version, process, reads_untouched, reads_claims)
    VALUES ('late', '00000000-0000-0000-0000-000000000001', 1, 1, 1, '0.0.9', 'p', 1, 1)";

#[tokio::test]
async fn while_an_older_instance_is_on_record_no_task_gets_a_prefix_of_its_own() {
    let first = Harness::new(postgres().await).await;
    known_by_all(&first, SharedFeature::KeyPrefixes).await;
    first.database.execute(OLDER).await;
    let h = Harness::new(postgres_at(url(&first)).await).await;
    h.store.use_key_prefixes(prefixes());
    // The store knows of the other feature, which proves that it has read the record.
    known_by_all(&h, SharedFeature::StepsWithoutRows).await;
    assert!(h.store.key_prefixes().is_none());
    h.database.execute(RENEWED).await;
    h.database.execute("DELETE FROM instances").await;
    known_by_all(&h, SharedFeature::KeyPrefixes).await;
    assert!(h.store.key_prefixes().is_some());
    let joined = sqlx::query(LATE).execute(&mut outside(&h).await).await;
    let refused = joined.unwrap_err().to_string();
    assert!(refused.contains("older_instances_cannot_join"), "{refused}");
}
