//! Tests of processes that share a store.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Hold, JoinError, LocalLease, Membership, membership::IdLost};
use crate::{
    domain::values::{InstanceId, Renewal, Span, Term},
    store::{
        Store,
        conformance::{
            harness::{Harness, sqlite},
            leases::process,
        },
    },
};

/// Returns a store that other processes may use. Each of them is a member of its own here.
async fn shared() -> Harness {
    let mut opened = sqlite().await;
    opened.connections.is_shared = true;
    Harness::new(opened).await
}

async fn join(
    store: &Store,
    name: &str,
    lease: Span,
) -> Result<(Membership, Arc<LocalLease>), JoinError> {
    let local_lease = Arc::new(LocalLease::new());
    let instance = InstanceId::new(name);
    let member = Membership::join(store.clone(), instance, lease, local_lease.clone()).await?;
    Ok((member, local_lease))
}

const LONG: Span = Span::from_secs(3600);

fn term(local_lease: &LocalLease) -> Option<Term> {
    local_lease.term(Instant::now())
}

#[tokio::test]
async fn the_first_member_supervises_and_the_second_after_it_left() {
    let h = shared().await;
    let (first, one) = join(&h.store, "node-1", LONG).await.unwrap();
    let (second, two) = join(&h.store, "node-2", LONG).await.unwrap();
    assert!(one.is_alive(Instant::now()) && two.is_alive(Instant::now()));
    assert_eq!((term(&one), term(&two)), (Some(Term(1)), None));
    first.leave().await;
    assert!(!one.is_alive(Instant::now()));
    assert_eq!(term(&one), None);
    second.renew_now().await;
    assert_eq!(term(&two), Some(Term(2)));
}

#[tokio::test]
async fn a_member_that_will_not_supervise_gives_that_up_at_once_and_stays() {
    let h = shared().await;
    let (first, one) = join(&h.store, "node-1", LONG).await.unwrap();
    // The renewal is far from due, but other instances wait for the supervisors' lease.
    first.renew_if_due(false).await.unwrap();
    assert_eq!(term(&one), None);
    assert!(one.is_alive(Instant::now()));
    let (_second, two) = join(&h.store, "node-2", LONG).await.unwrap();
    assert_eq!(term(&two), Some(Term(2)));
}

#[tokio::test]
async fn a_member_that_may_not_supervise_rests_although_nobody_does_and_asks_at_once_when_it_may() {
    let h = shared().await;
    let (first, _) = join(&h.store, "node-1", LONG).await.unwrap();
    first.leave().await;
    let hold = Arc::new(Hold::new(true));
    let local_lease = Arc::new(LocalLease::with(hold.clone()));
    let instance = InstanceId::new("node-2");
    let joined = Membership::join(h.store.clone(), instance, LONG, local_lease.clone()).await;
    let held = joined.unwrap();
    assert!(held.due_in() > Duration::from_secs(60), "nobody supervises");
    hold.release();
    held.renew_if_due(true).await.unwrap();
    assert_eq!(term(&local_lease), Some(Term(2)));
    // An instance that will stop gives the lease up, and rests as well.
    held.renew_if_due(false).await.unwrap();
    assert_eq!(term(&local_lease), None);
    assert!(held.due_in() > Duration::from_secs(60), "nobody supervises");
}

#[tokio::test]
async fn a_supervisor_that_fell_silent_is_followed_when_its_lease_is_over() {
    let h = shared().await;
    let (_silent, one) = join(&h.store, "node-1", Span::from_millis(300))
        .await
        .unwrap();
    // By its own lease it would not ask again within the hour.
    let (next, two) = join(&h.store, "node-2", LONG).await.unwrap();
    while term(&two).is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        next.renew_if_due(true).await.unwrap();
        assert!(
            term(&one).is_none() || term(&two).is_none(),
            "two supervise"
        );
    }
    assert_eq!(term(&two), Some(Term(2)));
}

#[tokio::test]
async fn a_second_process_of_one_name_is_refused_while_the_first_renews() {
    let h = shared().await;
    let (first, _) = join(&h.store, "node-1", LONG).await.unwrap();
    let renewing = async {
        loop {
            first.renew_now().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let refused = tokio::select! {
        joined = join(&h.store, "node-1", LONG) => joined.err().unwrap(),
        () = renewing => unreachable!(),
    };
    let said = refused.to_string();
    assert!(said.contains("node-1 is in use"), "{said}");
    assert!(
        said.contains(&format!("pid={}", std::process::id())),
        "{said}"
    );
    assert!(said.contains("--instance-id"), "{said}");
}

#[tokio::test]
async fn a_name_whose_process_fell_silent_is_had_when_its_lease_is_over_and_not_given_back() {
    let h = shared().await;
    let (silent, one) = join(&h.store, "node-1", Span::from_millis(400))
        .await
        .unwrap();
    let (_next, two) = join(&h.store, "node-1", LONG).await.unwrap();
    assert!(
        !one.is_alive(Instant::now()),
        "it stopped to trust its lease before"
    );
    assert!(two.is_alive(Instant::now()));
    assert_eq!(term(&two), Some(Term(2)));
    assert_eq!(silent.renew_if_due(true).await, Err(IdLost));
    assert!(!one.is_alive(Instant::now()));
}

#[tokio::test]
async fn a_name_whose_process_is_seen_to_be_gone_is_had_at_once() {
    let h = shared().await;
    let crashed = Renewal {
        process: super::process::this().replace("started=", "started=1"),
        ..process("node-1", LONG)
    };
    h.store.renew(crashed).await.unwrap();
    let (_member, local_lease) = join(&h.store, "node-1", LONG).await.unwrap();
    assert_eq!(
        term(&local_lease),
        Some(Term(2)),
        "what it had been it is again"
    );
}

#[tokio::test]
async fn where_no_other_process_can_be_there_is_nothing_to_wait_for() {
    let h = Harness::new(sqlite().await).await;
    for name in ["node-1", "node-2"] {
        h.store.renew(process(name, LONG)).await.unwrap();
    }
    let (_member, local_lease) = join(&h.store, "node-2", LONG).await.unwrap();
    assert_eq!(term(&local_lease), Some(Term(2)));
    let instances = h.store.reader.instances().await.unwrap();
    assert_eq!(instances.records.len(), 1);
}
