//! The loop: takes queues that are due, tries their first messages side by side, settles what became of
//! them. One transaction lets go of what has ended and takes what comes next.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use rand::RngExt;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Receivers,
    attempt::{CompletedAttempt, DeliveryAttempt, report},
    meters::Meters,
    slots::{DestinationResponse, Slot, Slots},
};
use crate::{
    agent::Post,
    domain::{
        DeliveryDecision, DeliveryPolicy, Destination, DestinationFailure, InstanceId,
        ReceiverName, Span, Timestamp, without_query,
    },
    store::{
        First, GivenUp, Head, Held, Outlook, Round, Settled, Settlement, Store, StoreError, Taken,
    },
};

/// Beyond the time that a try may take: until its outcome is saved, on a busy store.
const HOLD_LONGER: Span = Span::from_secs(15);

/// When a queue is looked at again whose first message stands in a damaged part of the database.
const UNREADABLE_AGAIN: Span = Span::from_secs(600);

/// The most queues that are due taken in one transaction.
const MOST_TAKEN: usize = 256;

/// The most destinations of each kind looked at in one transaction.
const MOST_VISITED: usize = 128;

/// When queues that are due are looked at again that another transaction was in the way of.
const IN_THE_WAY: Duration = Duration::from_millis(20);

/// How often it is looked whether all dead letters of a receiver are gone: not each time, because receivers with
/// dead letters may be many.
const MENDED_EVERY: Duration = Duration::from_secs(1);

/// How often destinations are forgotten that nothing waits for, and how many at once.
const PURGE_EVERY: Duration = Duration::from_secs(60);
const MOST_PURGED: usize = 500;
/// So long is one remembered beyond the longest wait between two tries of a message.
const REMEMBER_LONGER: Span = Span::from_secs(300);

#[derive(Clone, Copy, Debug)]
pub struct DeliverySettings {
    pub poll: Duration,
    /// Of one try.
    pub timeout: Span,
    /// The most messages under way to one destination.
    pub max_in_flight: usize,
    pub policy: DeliveryPolicy,
    /// How long messages under way may go on after the stop.
    pub grace: Duration,
}

pub struct DeliveryLoop {
    store: Store,
    instance: InstanceId,
    receivers: Arc<ArcSwap<Receivers>>,
    post: Post,
    settings: DeliverySettings,
    slots: Slots,
    meters: Meters,
    in_flight: JoinSet<CompletedAttempt>,
    /// What is to be saved with the next round.
    unsaved: UnsavedResults,
    /// Taken, with the first message still to be read.
    held: Vec<(Held, Slot)>,
    /// Destinations with messages under way here and more in their backlog.
    behind: HashSet<Destination>,
    /// Destinations that may have a free slot again.
    refill: HashMap<Destination, ReceiverName>,
    look_for_mended: Instant,
    purge: Instant,
}

/// CompletedAttempt, and still to be saved.
#[derive(Clone, Default)]
struct UnsavedResults {
    settled: Vec<Settled>,
    failed: HashMap<Destination, DestinationFailure>,
    answered: HashSet<Destination>,
    unprobed: HashSet<Destination>,
    giving_up: Vec<GivenUp>,
}

impl UnsavedResults {
    fn note(&mut self, completed: &CompletedAttempt) {
        let held = &completed.settled.held;
        if matches!(
            completed.response,
            DestinationResponse::Accepted | DestinationResponse::Rejected
        ) {
            // It says more than a failure of the same moment.
            if self.failed.remove(&held.destination).is_some() || held.is_probe {
                self.answered.insert(held.destination.clone());
            }
            return;
        }
        match (completed.response, &completed.failure) {
            (DestinationResponse::Failed, Some(failure))
                if !self.answered.contains(&held.destination) =>
            {
                let known = self.failed.get(&held.destination);
                if known.is_none_or(|known| known.began <= failure.began) {
                    let failure = failure.clone();
                    self.failed.insert(held.destination.clone(), failure);
                }
            }
            _ if held.is_probe => drop(self.unprobed.insert(held.destination.clone())),
            _ => {}
        }
    }

    /// Not saved: all of it once more.
    fn restore(&mut self, round: Round) {
        self.settled.extend(round.settled);
        let failed = round.failed.into_iter();
        self.failed
            .extend(failed.map(|failure| (failure.destination.clone(), failure)));
        self.answered.extend(round.answered);
        self.unprobed.extend(round.unprobed);
        self.giving_up.extend(round.giving_up);
    }

    fn into_round(self, policy: DeliveryPolicy) -> Round {
        Round {
            settled: self.settled,
            failed: self.failed.into_values().collect(),
            answered: self.answered.into_iter().collect(),
            unprobed: self.unprobed.into_iter().collect(),
            giving_up: self.giving_up,
            policy,
            ..Round::default()
        }
    }
}

impl DeliveryLoop {
    pub fn new(
        store: Store,
        instance: InstanceId,
        receivers: Arc<ArcSwap<Receivers>>,
        post: Post,
        settings: DeliverySettings,
    ) -> Self {
        Self {
            store,
            instance,
            receivers,
            post,
            settings,
            slots: Slots::new(settings.max_in_flight),
            meters: Meters::new(),
            in_flight: JoinSet::new(),
            unsaved: UnsavedResults::default(),
            held: Vec::new(),
            behind: HashSet::new(),
            refill: HashMap::new(),
            look_for_mended: Instant::now(),
            purge: Instant::now() + PURGE_EVERY,
        }
    }

    /// Runs until `stop`, then lets messages under way end within the grace period and hands back the
    /// rest.
    pub async fn run(mut self, stop: CancellationToken) {
        let outbox = self.store.outbox.clone();
        let mut next = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = outbox.notified() => {}
                Some(completed) = self.in_flight.join_next() => self.note(completed),
                () = sleep_until(next) => {}
            }
            while let Some(completed) = self.in_flight.try_join_next() {
                self.note(completed);
            }
            next = match self.round().await {
                Ok(next) => next,
                Err(error) => {
                    warn!(%error, "messages could not be looked at; trying again");
                    let pause = Instant::now() + self.settings.poll;
                    if stop.run_until_cancelled(sleep_until(pause)).await.is_none() {
                        break;
                    }
                    pause
                }
            };
        }
        self.drain().await;
    }

    /// Saves what has completed, takes what is due, and starts it. Answers when to look again.
    async fn round(&mut self) -> Result<Instant, StoreError> {
        self.forget_destinations().await?;
        // Jitter, so that instances on one store do not all look at once.
        let jitter = rand::rng().random_range(0.75..1.25);
        let mut next = Instant::now() + self.settings.poll.mul_f64(jitter);
        let reader = &self.store.housekeeping;
        let with_mended = Instant::now() >= self.look_for_mended;
        let outlook = reader.outlook(MOST_VISITED, with_mended).await?;
        let now = reader.now().await?;
        if with_mended {
            self.look_for_mended = Instant::now() + MENDED_EVERY.min(self.settings.poll);
        }
        if let Some(next_at) = outlook.next_at {
            next = next.min(Instant::now() + next_at.since(now));
        }
        let (round, probes) = self.plan(&outlook);
        if !is_idle(&round) {
            let taken = self.act(round, probes).await?;
            let has_progressed = taken.put_back > 0 || !taken.held.is_empty();
            if outlook.is_due {
                next = next.min(Instant::now() + IN_THE_WAY);
            }
            if has_progressed || !taken.given_up.is_empty() || outlook.is_full(MOST_VISITED) {
                next = Instant::now();
            }
            self.take_in(taken).await?;
        }
        // A queue that turned out to be empty is let go at once, and webhooks may be told of an alert.
        let is_done = self.unsaved.settled.is_empty() && self.unsaved.giving_up.is_empty();
        Ok(if is_done { next } else { Instant::now() })
    }

    /// Decides what is looked at. Probes get their slots at once: nobody else may make them meanwhile.
    fn plan(&mut self, outlook: &Outlook) -> (Round, HashMap<Destination, Slot>) {
        let mut round = std::mem::take(&mut self.unsaved).into_round(self.settings.policy);
        let mut probes = HashMap::new();
        for (destination, receiver) in &outlook.failing {
            match self.slots.start(destination, receiver, true) {
                Some(slot) => {
                    probes.insert(destination.clone(), slot);
                    round.wanted.push((destination.clone(), 1));
                }
                None => round.postponed.push(destination.clone()),
            }
        }
        for (destination, receiver) in &outlook.behind {
            self.refill.insert(destination.clone(), receiver.clone());
        }
        for (destination, receiver) in std::mem::take(&mut self.refill) {
            match self.slots.free(&destination, &receiver) {
                0 => {
                    if self.slots.in_flight_to(&destination) > 0 {
                        self.behind.insert(destination.clone());
                    }
                    round.postponed.push(destination);
                }
                free => round.wanted.push((destination, free)),
            }
        }
        round.take = if outlook.is_due { MOST_TAKEN } else { 0 };
        round.mended = outlook.mended.clone();
        (round, probes)
    }

    async fn act(
        &mut self,
        round: Round,
        mut probes: HashMap<Destination, Slot>,
    ) -> Result<Taken, StoreError> {
        let hold = self.settings.timeout.saturating_add(HOLD_LONGER);
        let again = round.clone();
        let taken = self
            .store
            .outbox_round(round, self.instance.clone(), hold)
            .await;
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => {
                for (_, slot) in probes {
                    self.slots.end(slot, DestinationResponse::Unknown);
                }
                self.unsaved.restore(again);
                return Err(error);
            }
        };
        for (destination, _) in again.wanted {
            if !probes.contains_key(&destination) {
                self.behind.insert(destination);
            }
        }
        for destination in &taken.exhausted {
            self.behind.remove(destination);
        }
        for held in taken.held.iter().cloned() {
            let reserved = match held.is_probe {
                true => probes.remove(&held.destination),
                false => None,
            };
            let (destination, receiver) = (&held.destination, &held.receiver);
            let slot = reserved.or_else(|| self.slots.start(destination, receiver, held.is_probe));
            match slot {
                Some(slot) => self.held.push((held, slot)),
                None => self.put_aside(held),
            }
        }
        for (_, slot) in probes {
            self.slots.end(slot, DestinationResponse::Unknown);
        }
        self.forget_unused();
        Ok(taken)
    }

    /// Enough is under way to its destination.
    fn put_aside(&mut self, held: Held) {
        if held.is_probe {
            self.unsaved.unprobed.insert(held.destination.clone());
        }
        self.behind.insert(held.destination.clone());
        let how = Settlement::Waits;
        self.unsaved.settled.push(Settled { held, how });
    }

    /// Where nothing is under way, the store says when to look.
    fn forget_unused(&mut self) {
        let slots = &self.slots;
        self.behind
            .retain(|destination| slots.in_flight_to(destination) > 0);
    }

    async fn take_in(&mut self, taken: Taken) -> Result<(), StoreError> {
        for given_up in taken.given_up {
            let GivenUp {
                destination,
                reason,
                messages,
                more,
            } = &given_up;
            let destination = without_query(destination.as_str());
            warn!(%destination, messages, reason, "messages are dead: GET /v1/messages?state=dead lists them");
            self.meters.dead.increment(*messages);
            if *more {
                self.unsaved.giving_up.push(given_up);
            }
        }
        self.start().await
    }

    async fn forget_destinations(&mut self) -> Result<(), StoreError> {
        if Instant::now() < self.purge {
            return Ok(());
        }
        let keep = self.settings.policy.max.saturating_add(REMEMBER_LONGER);
        let now = self.store.housekeeping.now().await?;
        let before = Timestamp::from_millis(now.as_millis() - keep.as_millis());
        let purged = self.store.purge_destinations(before, MOST_PURGED).await?;
        if purged < MOST_PURGED as u64 {
            self.purge = Instant::now() + PURGE_EVERY;
        }
        Ok(())
    }

    /// Starts the first message of each queue that was taken.
    async fn start(&mut self) -> Result<(), StoreError> {
        if self.held.is_empty() {
            return Ok(());
        }
        let queues: Vec<Held> = self.held.iter().map(|(held, _)| held.clone()).collect();
        let heads = self.store.housekeeping.heads(&queues).await?;
        let now = self.store.housekeeping.now().await?;
        for ((held, slot), head) in std::mem::take(&mut self.held).into_iter().zip(heads) {
            let how = match head {
                First::Message(head) => {
                    self.deliver(held, head, slot);
                    continue;
                }
                First::None => Settlement::Empty,
                First::Unreadable { id, reason } => {
                    let reason = format!("its record in the database cannot be read: {reason}");
                    let decision = DeliveryDecision::Dead { reason };
                    report(&held, "unknown", id, &decision);
                    self.meters.dead.increment(1);
                    Settlement::Tried {
                        message: id,
                        decision,
                        waits: false,
                    }
                }
                First::Lost(reason) => {
                    let reason = format!("a part of the database cannot be read: {reason}");
                    let decision = DeliveryDecision::Retry {
                        at: now + UNREADABLE_AGAIN,
                        reason,
                    };
                    let message = uuid::Uuid::nil();
                    report(&held, "unknown", message, &decision);
                    Settlement::Tried {
                        message,
                        decision,
                        waits: false,
                    }
                }
            };
            self.free(slot, &held, DestinationResponse::Unknown);
            if held.is_probe {
                self.unsaved.unprobed.insert(held.destination.clone());
            }
            self.unsaved.settled.push(Settled { held, how });
        }
        self.meters.in_flight.set(self.in_flight.len() as f64);
        Ok(())
    }

    fn deliver(&mut self, held: Held, head: Head, slot: Slot) {
        let attempt = DeliveryAttempt {
            receivers: self.receivers.load_full(),
            post: self.post.clone(),
            reader: self.store.housekeeping.clone(),
            policy: self.settings.policy,
        };
        self.in_flight.spawn(attempt.deliver(held, head, slot));
    }

    /// A slot is free again: for what waits for the same destination.
    fn free(&mut self, slot: Slot, held: &Held, response: DestinationResponse) {
        self.slots.end(slot, response);
        let has_recovered = held.is_probe
            && matches!(
                response,
                DestinationResponse::Accepted | DestinationResponse::Rejected
            );
        if has_recovered || self.behind.contains(&held.destination) {
            let (destination, receiver) = (held.destination.clone(), held.receiver.clone());
            self.refill.insert(destination, receiver);
        }
    }

    fn note(&mut self, completed: Result<CompletedAttempt, tokio::task::JoinError>) {
        let completed = match completed {
            Ok(completed) => completed,
            // Its queue is taken up again when it is no longer held.
            Err(error) => return warn!(%error, "a delivery failed by itself"),
        };
        if let Settlement::Tried { decision, .. } = &completed.settled.how {
            self.meters.tried(completed.took);
            match decision {
                DeliveryDecision::Delivered => {
                    self.meters.delivered.increment(1);
                    self.meters.delivered_after(completed.lag);
                }
                DeliveryDecision::Retry { .. } => self.meters.failed.increment(1),
                DeliveryDecision::Dead { .. } => self.meters.dead.increment(1),
            }
        }
        self.unsaved.note(&completed);
        self.free(completed.slot, &completed.settled.held, completed.response);
        self.unsaved.settled.push(completed.settled);
        self.meters.in_flight.set(self.in_flight.len() as f64);
    }

    async fn drain(&mut self) {
        let in_flight = self.in_flight.len();
        if in_flight > 0 {
            info!(messages = in_flight, "waiting for messages under way");
        }
        let grace = self.settings.grace;
        let completed = timeout(grace, async {
            while let Some(completed) = self.in_flight.join_next().await {
                self.note(completed);
            }
        });
        if completed.await.is_err() {
            warn!("messages under way did not end in time; they are tried again");
        }
        self.in_flight.abort_all();
        let round = std::mem::take(&mut self.unsaved).into_round(self.settings.policy);
        let hold = self.settings.timeout;
        let saved = self.store.outbox_round(round, self.instance.clone(), hold);
        let saved = match saved.await {
            // What is left was taken and never completed.
            Ok(_) => self.store.free_queues(Some(self.instance.clone())).await,
            Err(error) => Err(error),
        };
        if let Err(error) = saved {
            warn!(%error, "what became of messages could not be saved; they are delivered again");
        }
    }
}

fn is_idle(round: &Round) -> bool {
    let is_empty = round.settled.is_empty() && round.giving_up.is_empty();
    let is_unwanted = round.wanted.is_empty() && round.postponed.is_empty() && round.take == 0;
    is_empty && is_unwanted && round.unprobed.is_empty() && round.mended.is_empty()
}
