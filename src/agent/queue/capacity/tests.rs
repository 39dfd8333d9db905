//! Slots are never more than there are, and each is given back once.

use std::task::Poll;

use super::*;

fn bulkhead(max: u32) -> (Arc<Bulkhead>, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let name = AgentName::new("payments");
    let made = Bulkhead::new(
        name,
        max,
        Arc::clone(&gate),
        Wants::default(),
        crate::agent::meters::CallMetrics::new("payments").in_flight,
    );
    (Arc::new(made), gate)
}

#[test]
fn no_more_slots_are_given_than_there_are() {
    let (bulkhead, _) = bulkhead(2);
    let first = bulkhead.try_take().unwrap();
    let _second = bulkhead.try_take().unwrap();
    assert!(bulkhead.try_take().is_none());
    assert_eq!(bulkhead.free(), 0);
    drop(first);
    assert_eq!(bulkhead.free(), 1);
    assert!(bulkhead.try_take().is_some());
}

#[test]
fn a_slot_given_back_is_announced_after_it_is_free() {
    let (bulkhead, gate) = bulkhead(1);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (log, watched) = (Arc::clone(&heard), Arc::clone(&bulkhead));
    gate.on_freed(Box::new(move |agent| {
        log.lock().push((agent.to_string(), watched.free()));
    }));
    drop(bulkhead.try_take());
    assert_eq!(*heard.lock(), [("payments".to_owned(), 1)]);
}

#[test]
fn a_closed_gate_gives_nothing_and_takes_back() {
    let (bulkhead, gate) = bulkhead(2);
    let slot = bulkhead.try_take().unwrap();
    gate.close();
    assert!(bulkhead.try_take().is_none());
    assert_eq!(bulkhead.free(), 0);
    drop(slot);
    assert_eq!(bulkhead.in_flight(), 0);
}

#[test]
fn a_smaller_maximum_takes_effect_as_slots_come_back() {
    let (bulkhead, _) = bulkhead(3);
    let slots: Vec<_> = std::iter::from_fn(|| bulkhead.try_take()).collect();
    assert_eq!(slots.len(), 3);
    bulkhead.resize(1);
    assert_eq!(bulkhead.free(), 0);
    let mut slots = slots.into_iter();
    drop(slots.next());
    drop(slots.next());
    assert!(bulkhead.try_take().is_none());
    drop(slots.next());
    assert!(bulkhead.try_take().is_some());
}

#[test]
fn replies_that_are_awaited_take_room_until_they_come() {
    let (bulkhead, _) = bulkhead(10);
    bulkhead.limit_open(Some(2));
    assert_eq!(bulkhead.free(), 0, "they are not counted yet");
    bulkhead.remove_open_reply();
    assert_eq!(bulkhead.free(), 0, "still");
    bulkhead.set_open_replies(0);
    let (first, second) = (bulkhead.try_take().unwrap(), bulkhead.try_take().unwrap());
    assert!(bulkhead.try_take().is_none());
    first.becomes_open();
    assert!(bulkhead.try_take().is_none());
    assert_eq!(bulkhead.blocking_limit(), Some(2));
    second.release();
    assert_eq!(bulkhead.free(), 1);
    assert_eq!(bulkhead.blocking_limit(), None);
    bulkhead.remove_open_reply();
    assert_eq!(bulkhead.free(), 2);
    bulkhead.set_open_replies(5);
    assert_eq!(bulkhead.free(), 0);
    bulkhead.limit_open(None);
    assert_eq!(bulkhead.free(), 10);
}

#[test]
fn only_a_limit_on_replies_counts_as_one() {
    let (bulkhead, _) = bulkhead(10);
    bulkhead.slots.configure(Some(2), false);
    let (_first, second) = (bulkhead.try_take().unwrap(), bulkhead.try_take().unwrap());
    assert!(bulkhead.try_take().is_none());
    assert_eq!(bulkhead.blocking_limit(), None, "it has none");
    bulkhead.limit_open(Some(5));
    bulkhead.set_open_replies(0);
    assert_eq!(bulkhead.blocking_limit(), None, "slots are fewer");
    second.release();
    bulkhead.set_open_replies(4);
    assert_eq!(bulkhead.blocking_limit(), Some(5));
}

/// Returns the bulkhead of an agent with `max` slots, all taken. Its calls end so fast that further steps are
/// claimed ahead.
fn busy(max: u32) -> (Arc<Bulkhead>, Vec<Slot>) {
    let (bulkhead, gate) = bulkhead(max);
    bulkhead.allow_claims_ahead(true);
    for _ in 0..100 {
        gate.add_commit_time(Duration::from_millis(10));
    }
    // These windows are in the future, so the pace measures none after them.
    let mut pace = bulkhead.ahead.pace.lock();
    for hour in 1..=3 {
        pace.per_second(hour * 36_000_000, Duration::from_secs(hour * 3600));
    }
    drop(pace);
    let taken = std::iter::from_fn(|| bulkhead.try_take()).collect();
    (bulkhead, taken)
}

async fn begin(claim: AheadClaim) -> Result<Slot, Release> {
    CallSlot::Ahead(claim).begin(Duration::from_secs(10)).await
}

#[tokio::test]
async fn a_claim_ahead_gets_the_next_slot_that_is_freed_and_no_call_is_too_many() {
    let (bulkhead, mut taken) = busy(2);
    assert_eq!(bulkhead.free(), 0);
    assert_eq!(bulkhead.free_ahead(), 2, "no more than there are slots");
    let (first, second) = (bulkhead.try_claim_ahead(), bulkhead.try_claim_ahead());
    assert!(bulkhead.try_claim_ahead().is_none());
    let mut second = Box::pin(begin(second.unwrap()));
    assert!(futures::poll!(&mut second).is_pending());
    let mut first = Box::pin(begin(first.unwrap()));
    assert!(futures::poll!(&mut first).is_pending());
    assert_eq!(bulkhead.in_flight(), 2);
    taken.pop().unwrap().release();
    assert!(futures::poll!(&mut first).is_pending(), "it came later");
    let Poll::Ready(Ok(slot)) = futures::poll!(&mut second) else {
        panic!("its slot is free");
    };
    assert_eq!(bulkhead.in_flight(), 2);
    assert_eq!(bulkhead.free_ahead(), 1);
    assert!(bulkhead.try_take().is_none());
    drop((slot, taken.pop()));
    assert!(first.await.is_ok());
    assert_eq!(bulkhead.in_flight(), 0);
    assert_eq!(bulkhead.free(), 2);
}

#[tokio::test]
async fn a_claim_ahead_whose_slot_is_not_freed_in_time_is_given_up() {
    let (bulkhead, taken) = busy(2);
    let claim = bulkhead.try_claim_ahead().unwrap();
    let begun = CallSlot::Ahead(claim).begin(Duration::from_millis(10));
    assert_eq!(begun.await.err(), Some(Release::NoSlot));
    assert_eq!(bulkhead.ahead.count.load(Ordering::Relaxed), 0);
    drop(taken);
    assert_eq!(bulkhead.in_flight(), 0);
    assert_eq!(bulkhead.free(), 2);
}

#[tokio::test]
async fn a_slot_passes_those_that_wait_no_more() {
    let (bulkhead, mut taken) = busy(3);
    let claims: Vec<_> = std::iter::from_fn(|| bulkhead.try_claim_ahead()).collect();
    let mut waiting: Vec<_> = claims
        .into_iter()
        .map(|claim| Box::pin(begin(claim)))
        .collect();
    for claim in &mut waiting {
        assert!(futures::poll!(claim).is_pending());
    }
    drop(waiting.remove(0));
    drop(taken.pop());
    assert_eq!(bulkhead.in_flight(), 3, "the second has it");
    // This call is aborted after the slot was sent to it, and before it received the slot.
    drop(waiting.remove(0));
    let slot = waiting.remove(0).await;
    assert!(slot.is_ok());
    assert_eq!(bulkhead.in_flight(), 3);
    drop((slot, taken));
    assert_eq!(bulkhead.in_flight(), 0);
}

#[tokio::test]
async fn no_call_that_was_claimed_ahead_begins_while_the_agent_is_not_called() {
    let (bulkhead, mut taken) = busy(2);
    let claim = begin(bulkhead.try_claim_ahead().unwrap());
    bulkhead.resize(0);
    taken.pop();
    assert_eq!(claim.await.err(), Some(Release::Stopped));
    bulkhead.resize(2);
    let (freed, bulkhead) = (taken.pop(), bulkhead);
    drop(freed);
    assert_eq!(bulkhead.in_flight(), 0);
    bulkhead.allow_claims_ahead(false);
    assert!(bulkhead.try_claim_ahead().is_none());
}

#[test]
fn threads_never_overdraw() {
    let (bulkhead, _) = bulkhead(7);
    let most = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    if let Some(_slot) = bulkhead.try_take() {
                        most.fetch_max(bulkhead.in_flight(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(most.load(Ordering::Relaxed) <= 7);
    assert_eq!(bulkhead.in_flight(), 0);
}
