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
    flight::{Ended, Flight, report},
    meters::Meters,
    slots::{Fared, Slot, Slots},
};
use crate::{
    agent::Post,
    domain::{
        Destination, Failure, Fate, InstanceId, Persistence, ReceiverName, Span, Timestamp,
        without_query,
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
pub struct CourierSettings {
    pub poll: Duration,
    /// Of one try.
    pub timeout: Span,
    /// The most messages under way to one destination.
    pub max_in_flight: usize,
    pub persistence: Persistence,
    /// How long messages under way may go on after the stop.
    pub grace: Duration,
}

pub struct Courier {
    store: Store,
    instance: InstanceId,
    receivers: Arc<ArcSwap<Receivers>>,
    post: Post,
    settings: CourierSettings,
    slots: Slots,
    meters: Meters,
    flights: JoinSet<Ended>,
    /// What is to be saved with the next round.
    done: Done,
    /// Taken, with the first message still to be read.
    held: Vec<(Held, Slot)>,
    /// Destinations with messages under way here and more in their backlog.
    behind: HashSet<Destination>,
    /// Destinations that may have a free slot again.
    refill: HashMap<Destination, ReceiverName>,
    look_for_mended: Instant,
    purge: Instant,
}

/// Ended, and still to be saved.
#[derive(Clone, Default)]
struct Done {
    settled: Vec<Settled>,
    failed: HashMap<Destination, Failure>,
    answered: HashSet<Destination>,
    unprobed: HashSet<Destination>,
    giving_up: Vec<GivenUp>,
}

impl Done {
    fn note(&mut self, ended: &Ended) {
        let held = &ended.settled.held;
        if matches!(ended.fared, Fared::Took | Fared::Answered) {
            // It says more than a failure of the same moment.
            if self.failed.remove(&held.destination).is_some() || held.is_probe {
                self.answered.insert(held.destination.clone());
            }
            return;
        }
        match (ended.fared, &ended.failure) {
            (Fared::Failed, Some(failure)) if !self.answered.contains(&held.destination) => {
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

    fn into_round(self, persistence: Persistence) -> Round {
        Round {
            settled: self.settled,
            failed: self.failed.into_values().collect(),
            answered: self.answered.into_iter().collect(),
            unprobed: self.unprobed.into_iter().collect(),
            giving_up: self.giving_up,
            persistence,
            ..Round::default()
        }
    }
}

impl Courier {
    pub fn new(
        store: Store,
        instance: InstanceId,
        receivers: Arc<ArcSwap<Receivers>>,
        post: Post,
        settings: CourierSettings,
    ) -> Self {
        Self {
            store,
            instance,
            receivers,
            post,
            settings,
            slots: Slots::new(settings.max_in_flight),
            meters: Meters::new(),
            flights: JoinSet::new(),
            done: Done::default(),
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
                Some(ended) = self.flights.join_next() => self.note(ended),
                () = sleep_until(next) => {}
            }
            while let Some(ended) = self.flights.try_join_next() {
                self.note(ended);
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

    /// Saves what has ended, takes what is due, and starts it. Answers when to look again.
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
        let is_done = self.done.settled.is_empty() && self.done.giving_up.is_empty();
        Ok(if is_done { next } else { Instant::now() })
    }

    /// Decides what is looked at. Probes get their slots at once: nobody else may make them meanwhile.
    fn plan(&mut self, outlook: &Outlook) -> (Round, HashMap<Destination, Slot>) {
        let mut round = std::mem::take(&mut self.done).into_round(self.settings.persistence);
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
                    if self.slots.under_way_to(&destination) > 0 {
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
                    self.slots.end(slot, Fared::Unknown);
                }
                self.done.restore(again);
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
            self.slots.end(slot, Fared::Unknown);
        }
        self.forget_unused();
        Ok(taken)
    }

    /// Enough is under way to its destination.
    fn put_aside(&mut self, held: Held) {
        if held.is_probe {
            self.done.unprobed.insert(held.destination.clone());
        }
        self.behind.insert(held.destination.clone());
        let how = Settlement::Waits;
        self.done.settled.push(Settled { held, how });
    }

    /// Where nothing is under way, the store says when to look.
    fn forget_unused(&mut self) {
        let slots = &self.slots;
        self.behind
            .retain(|destination| slots.under_way_to(destination) > 0);
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
                self.done.giving_up.push(given_up);
            }
        }
        self.start().await
    }

    async fn forget_destinations(&mut self) -> Result<(), StoreError> {
        if Instant::now() < self.purge {
            return Ok(());
        }
        let keep = self
            .settings
            .persistence
            .max
            .saturating_add(REMEMBER_LONGER);
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
                    self.fly(held, head, slot);
                    continue;
                }
                First::None => Settlement::Empty,
                First::Unreadable { id, reason } => {
                    let reason = format!("its record in the database cannot be read: {reason}");
                    let fate = Fate::Dead { reason };
                    report(&held, "unknown", id, &fate);
                    self.meters.dead.increment(1);
                    Settlement::Tried {
                        message: id,
                        fate,
                        waits: false,
                    }
                }
                First::Lost(reason) => {
                    let reason = format!("a part of the database cannot be read: {reason}");
                    let fate = Fate::Again {
                        at: now + UNREADABLE_AGAIN,
                        reason,
                    };
                    let message = uuid::Uuid::nil();
                    report(&held, "unknown", message, &fate);
                    Settlement::Tried {
                        message,
                        fate,
                        waits: false,
                    }
                }
            };
            self.free(slot, &held, Fared::Unknown);
            if held.is_probe {
                self.done.unprobed.insert(held.destination.clone());
            }
            self.done.settled.push(Settled { held, how });
        }
        self.meters.in_flight.set(self.flights.len() as f64);
        Ok(())
    }

    fn fly(&mut self, held: Held, head: Head, slot: Slot) {
        let flight = Flight {
            receivers: self.receivers.load_full(),
            post: self.post.clone(),
            reader: self.store.housekeeping.clone(),
            persistence: self.settings.persistence,
        };
        self.flights.spawn(flight.fly(held, head, slot));
    }

    /// A slot is free again: for what waits for the same destination.
    fn free(&mut self, slot: Slot, held: &Held, fared: Fared) {
        self.slots.end(slot, fared);
        let has_recovered = held.is_probe && matches!(fared, Fared::Took | Fared::Answered);
        if has_recovered || self.behind.contains(&held.destination) {
            let (destination, receiver) = (held.destination.clone(), held.receiver.clone());
            self.refill.insert(destination, receiver);
        }
    }

    fn note(&mut self, ended: Result<Ended, tokio::task::JoinError>) {
        let ended = match ended {
            Ok(ended) => ended,
            // Its queue is taken up again when it is no longer held.
            Err(error) => return warn!(%error, "a delivery failed by itself"),
        };
        if let Settlement::Tried { fate, .. } = &ended.settled.how {
            self.meters.tried(ended.took);
            match fate {
                Fate::Delivered => {
                    self.meters.delivered.increment(1);
                    self.meters.delivered_after(ended.lag);
                }
                Fate::Again { .. } => self.meters.failed.increment(1),
                Fate::Dead { .. } => self.meters.dead.increment(1),
            }
        }
        self.done.note(&ended);
        self.free(ended.slot, &ended.settled.held, ended.fared);
        self.done.settled.push(ended.settled);
        self.meters.in_flight.set(self.flights.len() as f64);
    }

    async fn drain(&mut self) {
        let under_way = self.flights.len();
        if under_way > 0 {
            info!(messages = under_way, "waiting for messages under way");
        }
        let grace = self.settings.grace;
        let ended = timeout(grace, async {
            while let Some(ended) = self.flights.join_next().await {
                self.note(ended);
            }
        });
        if ended.await.is_err() {
            warn!("messages under way did not end in time; they are tried again");
        }
        self.flights.abort_all();
        let round = std::mem::take(&mut self.done).into_round(self.settings.persistence);
        let hold = self.settings.timeout;
        let saved = self.store.outbox_round(round, self.instance.clone(), hold);
        let saved = match saved.await {
            // What is left was taken and never ended.
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
