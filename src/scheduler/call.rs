//! One call: from the saved claim to the saved reply.

use std::{panic::AssertUnwindSafe, time::Duration};

use async_trait::async_trait;
use futures::FutureExt;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tracing::{Span, debug, debug_span, error};

use super::{
    Local,
    recovery::{end, give_up},
};
use crate::{
    agent::{CallSlot, Permission},
    domain::{Actor, Call, CallOutcome, Command, Effect, Fault, FaultKind, Purpose, RetryWait},
    planted,
    store::{Apply, CommandError, Dispatch, LocalScheduler, Store, StoreError},
};

/// The wait between tries to save a reply while the store cannot commit.
const SAVE_AGAIN: Duration = Duration::from_millis(200);
/// The wait between looks whether this instance has a lease again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The span of an attempt, in that of its step, in that of its task. Its trace is the one that the call
/// passes on.
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
    let permission = HeldCalls::new(local, store, claimed.unwrap_or_else(Instant::now));
    // Nothing of it is needed once it is sent.
    let body = call.body.take();
    // It panics in here, if it does, and not where it is spawned: its slot is freed, and the attempt ends as
    // one of unknown outcome does.
    let answered = AssertUnwindSafe(async {
        planted::strike(call.task_key.as_deref(), "call");
        local.agents.call(&call, body, deadline, &permission).await
    });
    let answered = answered.catch_unwind().await;
    let answered = answered.unwrap_or_else(|_| Some(panicked(&call, store)));
    // One poll may take less time than the attempt has left.
    let answered = answered.or_else(|| {
        matches!(call.purpose, Purpose::Poll | Purpose::Cancel(_))
            .then(|| poll_timed_out(&call, store))
    });
    // Nothing comes back once complete-by has passed: the supervisor takes it from there.
    let Some(outcome) = answered else {
        debug!(task = %step.task, step = %call.step_name, attempt = attempt.0, "complete-by passed; the call was dropped");
        drop(slot);
        if Instant::now() >= deadline {
            give_up((step, attempt), call.complete_by, local, store).await;
        }
        return;
    };
    // The next queued step is claimed in the transaction that saves the reply.
    let mut kept = None;
    if let Some(slot) = slot {
        match matches!(outcome, CallOutcome::Deferred) && slot.is_open_limited() {
            // Where awaited replies are limited, the promise takes the place of the call.
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
    let is_saved = save(store, &call, command, &by, deadline).await;
    if let Some(slot) = kept.filter(|_| is_saved) {
        slot.becomes_open();
    }
    local.agent_queues.capacity_freed(call.target.agent());
}

fn poll_timed_out(call: &Call, store: &Store) -> CallOutcome {
    CallOutcome::Transient {
        fault: Fault {
            kind: FaultKind::Transient,
            message: "a poll got no response in time".to_owned(),
            status: None,
            body: None,
            at: store
                .housekeeping
                .estimated_now()
                .unwrap_or(call.complete_by),
            effect: Effect::Known,
            step: None,
            undo_on_resume: false,
        },
        wait: RetryWait::default(),
    }
}

fn panicked(call: &Call, store: &Store) -> CallOutcome {
    error!(task = %call.step.task, step = %call.step_name, attempt = call.attempt.0,
        "the service panicked during a call; the attempt counts as failed");
    CallOutcome::Crashed(Fault {
        kind: FaultKind::Transient,
        message: "the call failed because of an internal error; the service's log has the details"
            .to_owned(),
        status: None,
        body: None,
        at: store
            .housekeeping
            .estimated_now()
            .unwrap_or(call.complete_by),
        effect: Effect::Unknown,
        step: None,
        undo_on_resume: false,
    })
}

/// Saves a reply, and keeps trying while the store cannot commit: an answer that came in time must
/// not be lost to a full disk. Once the attempt is over there is nothing left to save. Whether it was saved.
async fn save(store: &Store, call: &Call, command: Command, by: &Actor, deadline: Instant) -> bool {
    loop {
        let saved = store.apply(Apply {
            task: call.step.task,
            command: command.clone(),
            by: by.clone(),
            if_version: None,
            idempotency: None,
        });
        match saved.await {
            Ok(_) => return true,
            // Saved twice it would be refused: the first ended the attempt.
            Err(CommandError::Store(error)) if error.may_pass() => {
                sleep(SAVE_AGAIN).await;
            }
            Err(error) => {
                debug!(task = %call.step.task, step = %call.step_name, attempt = call.attempt.0, %error,
                    late = Instant::now() > deadline, "a late reply changed nothing");
                return false;
            }
        }
    }
}

/// Asks this instance's lease, and the record where that is in doubt.
pub(super) struct HeldCalls<'a> {
    local: &'a Local,
    store: &'a Store,
    /// When the attempt was last known to be this instance's.
    held: Mutex<Instant>,
}

impl<'a> HeldCalls<'a> {
    pub fn new(local: &'a Local, store: &'a Store, held: Instant) -> Self {
        Self {
            local,
            store,
            held: Mutex::new(held),
        }
    }

    /// What the record says of the attempt.
    async fn holding(&self, call: &Call) -> Result<Holding, StoreError> {
        let asked = self.store.housekeeping.held(call.step, call.attempt);
        Ok(match asked.await? {
            None => Holding::Over,
            Some(held) if held.undoing && call.is_dropped_by_undo => Holding::ToBeDropped,
            Some(_) => Holding::Held,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holding {
    Held,
    /// The task is undone, and that waits until this call has ended.
    ToBeDropped,
    Over,
}

impl Holding {
    /// For the log.
    fn word(self) -> &'static str {
        match self {
            Holding::Held => "held",
            Holding::ToBeDropped => "to_be_dropped",
            Holding::Over => "over",
        }
    }
}

#[async_trait]
impl Permission for HeldCalls<'_> {
    /// Where others share the store, they may have ended the attempt, or wait for the end of its call. Most calls
    /// follow their claim at once. Where this instance had no lease for a moment, or has heard of drops since, the
    /// call is made only once the record has said that the attempt is this instance's own still; while the record
    /// cannot be asked none is made. Alone on its store an instance need not ask.
    async fn granted(&self, call: &Call) {
        if !self.store.is_shared {
            return;
        }
        loop {
            let now = Instant::now();
            let held = *self.held.lock();
            if self.local.local_lease.was_alive_since(held, now)
                && !self.local.has_heard_of_drops_since(held)
            {
                return;
            }
            if self.local.local_lease.is_alive(now) {
                match self.holding(call).await {
                    Ok(Holding::Held) => {
                        *self.held.lock() = now;
                        continue;
                    }
                    Ok(holding) => {
                        let key = (call.step, call.attempt);
                        debug!(task = %call.step.task, step = %call.step_name, attempt = call.attempt.0,
                            holding = holding.word(), "the call was skipped: its attempt is over in the record, or its task is being undone");
                        match holding {
                            Holding::ToBeDropped => self.local.drop_and_confirm(key),
                            Holding::Held | Holding::Over => self.local.running.abort(key),
                        };
                        // Aborted: this is as far as it gets.
                        return std::future::pending().await;
                    }
                    Err(error) => debug!(%error, "could not find out whether a step is still held"),
                }
            }
            sleep(LOOK_AGAIN).await;
        }
    }
}
