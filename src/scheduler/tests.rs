//! The behaviour of the scheduler when the calls of its instance and the store differ.

use std::time::Duration;

use futures::FutureExt;

use super::{call::LeasePermission, *};
use crate::{
    agent::{AgentSettings, Permission, install_crypto},
    domain::{
        task::{Command, DroppedBy, Expiry, StepStatus},
        values::{StepIndex, TaskId, Term},
    },
    store::conformance::harness::{Harness, New, sqlite},
};

/// Returns the scheduler of the instance for which the harness claims.
fn local() -> (Arc<Local>, Arc<LocalLease>) {
    install_crypto();
    let agents = Arc::new(Agents::new(AgentSettings::default()));
    let local_lease = Arc::new(LocalLease::new());
    let (local, _) = Local::new(InstanceId::new("node-1"), local_lease.clone(), agents);
    (local, local_lease)
}

/// Returns a claimed step of a new task.
async fn claimed(h: &Harness) -> (StepRef, Attempt) {
    let task = h.submit(New::default()).await.id();
    let step = StepIndex(0);
    (StepRef { task, step }, Attempt(1))
}

fn call(local: &Local, (step, attempt): (StepRef, Attempt)) -> tokio::task::AbortHandle {
    let call = tokio::spawn(std::future::pending());
    let task = call.abort_handle();
    local
        .running
        .queue(std::iter::once(((step, attempt), DroppedBy::Withdrawal)));
    local.running.start((step, attempt), || call);
    task
}

async fn status(h: &Harness, task: TaskId) -> StepStatus {
    h.read(task).await.step(StepIndex(0)).status()
}

#[tokio::test]
async fn without_a_lease_nothing_is_claimed() {
    let (local, local_lease) = local();
    let agent = AgentName::new("http://127.0.0.1:1");
    assert_eq!(local.free(&agent), 0);
    assert!(local.try_take(&agent).is_none());
    assert!(local.take_for_queued(&agent).is_none());
    local_lease.renewed(Some(Term(1)), Instant::now() + Duration::from_secs(60));
    assert!(local.free(&agent) > 0);
    assert!(local.try_take(&agent).is_some());
    assert!(local.take_for_queued(&agent).is_some());
}

#[tokio::test]
async fn a_call_whose_step_another_took_over_is_dropped_and_the_others_go_on() {
    let h = Harness::new(sqlite().await).await;
    h.slots("x", 2);
    let (local, _) = local();
    let (lost, kept) = (claimed(&h).await, claimed(&h).await);
    let (lost_call, kept_call) = (call(&local, lost), call(&local, kept));
    let taken_over = Command::Expire {
        step: lost.0.step,
        attempt: lost.1,
        cause: Expiry::InstanceLost,
    };
    h.apply(lost.0.task, taken_over).await.unwrap();
    reconcile(&local, &h.store).await.unwrap();
    while !lost_call.is_finished() {
        tokio::task::yield_now().await;
    }
    assert!(!kept_call.is_finished());
    let all: Vec<_> = local.running.all().iter().map(|known| known.key).collect();
    assert_eq!(all, [kept]);
    assert_eq!(status(&h, kept.0.task).await, StepStatus::Processing);
}

#[tokio::test]
async fn a_claim_on_record_whose_call_never_started_is_handed_back() {
    let h = Harness::new(sqlite().await).await;
    h.slots("x", 2);
    let (local, _) = local();
    let (stray, kept) = (claimed(&h).await, claimed(&h).await);
    let _call = call(&local, kept);
    reconcile(&local, &h.store).await.unwrap();
    let step = h.read(stray.0.task).await.step(StepIndex(0)).clone();
    assert_eq!(step.status(), StepStatus::Pending);
    assert_eq!(step.failure_count, 0, "nothing failed");
    assert_eq!(status(&h, kept.0.task).await, StepStatus::Processing);
}

#[tokio::test]
async fn a_claim_whose_call_starts_meanwhile_is_left_alone() {
    let h = Harness::new(sqlite().await).await;
    h.slots("x", 1);
    let (local, _) = local();
    let late = claimed(&h).await;
    let (reconciled, ()) = tokio::join!(reconcile(&local, &h.store), async {
        tokio::time::sleep(recovery::START_WITHIN / 10).await;
        // The call continues without its handle.
        drop(call(&local, late));
    });
    reconciled.unwrap();
    assert_eq!(status(&h, late.0.task).await, StepStatus::Processing);
}

#[tokio::test]
async fn a_call_is_made_only_while_its_step_is_known_to_be_held() {
    let h = Harness::new(sqlite().await).await;
    h.slots("x", 2);
    let mut store = h.store.clone();
    store.is_shared = true;
    let (local, local_lease) = local();
    let renew = || local_lease.renewed(None, Instant::now() + Duration::from_secs(60));
    renew();
    let (kept, lost) = (claimed(&h).await, claimed(&h).await);
    let dispatched = std::mem::take(&mut *h.notes.dispatched.lock());
    let call_of = |(step, _)| {
        &dispatched
            .iter()
            .find(|d| d.call.step == step)
            .unwrap()
            .call
    };
    let asks = |_| LeasePermission::new(&local, &store, Instant::now());
    let (kept_asks, lost_asks) = (asks(kept), asks(lost));
    kept_asks.granted(call_of(kept)).now_or_never().unwrap();

    local_lease.lost();
    assert!(kept_asks.granted(call_of(kept)).now_or_never().is_none());
    let taken_over = Command::Expire {
        step: lost.0.step,
        attempt: lost.1,
        cause: Expiry::InstanceLost,
    };
    h.apply(lost.0.task, taken_over).await.unwrap();
    tokio::time::sleep(Duration::from_millis(2)).await;
    renew();
    let asking = lost_asks.granted(call_of(lost));
    tokio::select! {
        () = asking => panic!("another has it"),
        () = kept_asks.granted(call_of(kept)) => {}
    }
    kept_asks.granted(call_of(kept)).now_or_never().unwrap();
}
