//! Runs one call: from the saved claim to the saved reply.

use std::{panic::AssertUnwindSafe, time::Duration};

use async_trait::async_trait;
use futures::FutureExt;
use parking_lot::Mutex;
use tracing::{Span, debug, debug_span, error};

use super::{
    Local,
    recovery::{end, give_up},
};
use crate::{
    agent::{CallReport, CallSlot, Permission},
    clock::{self, Instant, sleep},
    domain::{
        task::{AttemptExchange, Call, CallOutcome, Command, Purpose, RetryWait},
        values::{Attempt, Effect, Fault, StepRef, Timestamp},
    },
    planted,
    store::{Apply, CommandError, Dispatch, LocalScheduler, Store, StoreError},
};

/// The wait before a reply is saved again while the store cannot commit.
const SAVE_AGAIN: Duration = Duration::from_millis(200);
/// The wait before the next check that this instance has a lease again.
const CHECK_AGAIN: Duration = Duration::from_millis(50);

/// The wait before each try to add to the record of an attempt, and the number of tries. The record is one for people, and
/// has the request as it was rendered again.
const NOTE_AGAIN: Duration = Duration::from_millis(300);
const NOTE_TRIES: u32 = 10;

/// Returns the span of an attempt, within that of its step, within that of its task. The call passes on its trace id.
pub(super) fn span(call: &Call) -> Span {
    let task = debug_span!("task", task = %call.step.task, key = call.task_key.as_deref());
    let step = debug_span!(parent: &task, "step", step = %call.step_name);
    debug_span!(parent: &step, "attempt", attempt = call.attempt.0, trace_id = %format_args!("{:032x}", call.trace.id))
}

pub(super) async fn run(dispatch: Dispatch, local: &Local, store: &Store) {
    let Dispatch {
        mut call,
        deadline,
        permit,
    } = dispatch;
    let by = local.actor().clone();
    let (step, attempt) = (call.step, call.attempt);
    let claimed = deadline.checked_sub(call.complete_within.duration());
    let slot = match permit.into_slot::<CallSlot>() {
        Some(claimed) => match claimed.begin(call.complete_within.duration()).await {
            Ok(slot) => Some(slot),
            Err(why) => return end((step, attempt), why, local, store).await,
        },
        None => None,
    };
    let permission = LeasePermission::new(local, store, claimed.unwrap_or_else(clock::instant));
    // The body is not needed after it has been sent.
    let body = call.body.take();
    // A panic of the call is caught here, and not at its spawn: its slot is freed, and the attempt ends as one of
    // unknown outcome.
    let answered = AssertUnwindSafe(async {
        planted::strike(call.task_key.as_deref(), "call");
        local.agents.call(&call, body, deadline, &permission).await
    });
    let answered = answered.catch_unwind().await;
    let answered = answered.unwrap_or_else(|_| Some(panicked(&call, store).into()));
    // The time for one poll may be shorter than the time that the attempt has left.
    let answered = answered.or_else(|| {
        matches!(call.purpose, Purpose::Poll | Purpose::Cancel(_))
            .then(|| poll_timed_out(&call, store).into())
    });
    // Nothing is reported once complete-by has passed. The supervisor recovers the step.
    let Some(CallReport { outcome, exchange }) = answered else {
        debug!(task = %step.task, step = %call.step_name, attempt = attempt.0, "complete-by passed; the call was dropped");
        drop(slot);
        if clock::instant() >= deadline {
            give_up((step, attempt), call.complete_by, local, store).await;
        }
        return;
    };
    // The next queued step is claimed in the transaction that saves the reply.
    let mut kept = None;
    if let Some(slot) = slot {
        match matches!(outcome, CallOutcome::Deferred) && slot.is_open_limited() {
            // Where awaited replies are limited, the promise takes the slot of the call.
            true => kept = Some(slot),
            false => slot.release(),
        }
    }
    if let CallOutcome::Transient { fault, wait } = &outcome {
        debug!(task = %step.task, step = %call.step_name, attempt = attempt.0, status = fault.status,
            "{}; retried in {:?}", fault.message, wait.whole());
    }
    let command = Command::Reply {
        step: step.step,
        attempt,
        outcome,
    };
    let reply = Apply::new(step.task, command, by).with_exchange(exchange);
    let is_saved = save(store, &call, reply, deadline).await;
    if let Some(slot) = kept.filter(|_| is_saved) {
        slot.becomes_open();
    }
    local.agent_queues.capacity_freed(call.target.agent());
}

/// Adds what was sent to the record of an attempt without a response, once the attempt has ended in the record.
async fn note_what_was_sent(
    step: StepRef,
    attempt: Attempt,
    sent: Box<AttemptExchange>,
    store: Store,
) {
    for _ in 0..NOTE_TRIES {
        sleep(NOTE_AGAIN).await;
        let noted = store.complete_attempt(step, attempt, sent.clone());
        match noted.await {
            Ok(true) => return,
            Err(error) if !error.may_pass() => return,
            Ok(false) | Err(_) => {}
        }
    }
}

fn poll_timed_out(call: &Call, store: &Store) -> CallOutcome {
    CallOutcome::Transient {
        fault: Fault::transient("a poll got no response in time", time_of_end(call, store)),
        wait: RetryWait::default(),
    }
}

fn panicked(call: &Call, store: &Store) -> CallOutcome {
    error!(task = %call.step.task, step = %call.step_name, attempt = call.attempt.0,
        "the service panicked during a call; the attempt counts as failed");
    let message = "the call failed because of an internal error; the service's log has the details";
    CallOutcome::Crashed(Fault {
        effect: Effect::Unknown,
        ..Fault::transient(message, time_of_end(call, store))
    })
}

/// Returns the time at which a call has ended just now, by the store's clock as far as this instance knows it.
fn time_of_end(call: &Call, store: &Store) -> Timestamp {
    let now = store.housekeeping.estimated_now();
    now.unwrap_or(call.complete_by)
}

/// Saves a reply, and keeps trying while the store cannot commit: an answer that came in time must
/// not be lost to a full disk. Once the attempt is over there is nothing left to save. Whether it was saved.
async fn save(store: &Store, call: &Call, reply: Apply, deadline: Instant) -> bool {
    loop {
        let saved = store.apply(reply.clone());
        match saved.await {
            Ok(_) => return true,
            // The reply may have been saved in spite of the error. A second save is then refused, because the first
            // one ended the attempt.
            Err(CommandError::Store(error)) if error.may_pass() => {
                sleep(SAVE_AGAIN).await;
            }
            Err(error) => {
                debug!(task = %call.step.task, step = %call.step_name, attempt = call.attempt.0, %error,
                    late = clock::instant() > deadline, "a late reply changed nothing");
                return false;
            }
        }
    }
}

/// Grants attempts by the lease of this instance, and by the store if the lease leaves a doubt.
pub(super) struct LeasePermission<'a> {
    local: &'a Local,
    store: &'a Store,
    /// The last time when this instance was known to hold the attempt.
    held: Mutex<Instant>,
}

impl<'a> LeasePermission<'a> {
    pub fn new(local: &'a Local, store: &'a Store, held: Instant) -> Self {
        Self {
            local,
            store,
            held: Mutex::new(held),
        }
    }

    /// Reads the state of the attempt in the store.
    async fn holding(&self, call: &Call) -> Result<AttemptHold, StoreError> {
        let asked = self.store.housekeeping.held(call.step, call.attempt);
        Ok(match asked.await? {
            None => AttemptHold::Over,
            Some(held) if held.is_to_be_dropped(call.dropped_by) => AttemptHold::ToBeDropped,
            Some(_) => AttemptHold::Held,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AttemptHold {
    Held,
    /// The task is being undone, and the undo waits until this call has ended.
    ToBeDropped,
    Over,
}

impl AttemptHold {
    /// Returns the name for the log.
    fn word(self) -> &'static str {
        match self {
            AttemptHold::Held => "held",
            AttemptHold::ToBeDropped => "to_be_dropped",
            AttemptHold::Over => "over",
        }
    }
}

#[async_trait]
impl Permission for LeasePermission<'_> {
    /// Returns once the call may be made. Where instances share the store, another one may have ended the attempt, or
    /// may wait for the end of its call. Most calls directly follow their claim and are made at once. If this instance
    /// has been without a lease, or has heard of drops, since the claim, the call is made only after the store has
    /// confirmed that this instance still holds the attempt. While the store cannot be read, no call is made. An
    /// instance that is alone on its store need not ask.
    async fn granted(&self, call: &Call) {
        if !self.store.is_shared {
            return;
        }
        loop {
            let now = clock::instant();
            let held = *self.held.lock();
            if self.local.local_lease.was_alive_since(held, now)
                && !self.local.has_heard_of_drops_since(held)
            {
                return;
            }
            if self.local.local_lease.is_alive(now) {
                match self.holding(call).await {
                    Ok(AttemptHold::Held) => {
                        *self.held.lock() = now;
                        continue;
                    }
                    Ok(holding) => {
                        let key = (call.step, call.attempt);
                        debug!(task = %call.step.task, step = %call.step_name, attempt = call.attempt.0,
                            holding = holding.word(), "the call was skipped: its attempt is over in the record, or its task is being undone");
                        match holding {
                            AttemptHold::ToBeDropped => self.local.drop_and_confirm(key),
                            AttemptHold::Held | AttemptHold::Over => self.local.running.abort(key),
                        };
                        // The call has been aborted, so this future is dropped here.
                        return std::future::pending().await;
                    }
                    Err(error) => debug!(%error, "could not find out whether a step is still held"),
                }
            }
            sleep(CHECK_AGAIN).await;
        }
    }

    fn unanswered(&self, call: &Call, mut sent: Box<AttemptExchange>) {
        // A poll that got no response in time is an attempt of its own in the record.
        if matches!(call.purpose, Purpose::Poll | Purpose::Cancel(_)) {
            return;
        }
        // Where very many calls are dropped at once, the records of some are not completed: each is a transaction.
        let Ok(permit) = self.local.notes.clone().try_acquire_owned() else {
            return;
        };
        sent.instance = Some(self.local.instance().clone());
        let noting = note_what_was_sent(call.step, call.attempt, sent, self.store.clone());
        tokio::spawn(async move {
            noting.await;
            drop(permit);
        });
    }
}
