//! The loop: takes queues that are due, tries their first messages side by side, settles what became of
//! them. One transaction lets go of what has ended and takes what comes next.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use futures::FutureExt;
use rand::RngExt;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::{
    Receivers,
    delivery::deliver,
    meters::Meters,
    pace::{LONGEST_PAUSE, Pace},
};
use crate::{
    agent::Post,
    domain::{Delivery, Fate, InstanceId, Persistence, ReceiverName, Span, Timestamp},
    store::{First, Head, Held, Queues, Round, Settled, Settlement, Store, StoreError},
};

/// Beyond the time that a try may take: until its outcome is saved, on a busy store.
const HOLD_LONGER: Span = Span::from_secs(15);

/// When a queue is looked at again whose first message stands in a damaged part of the database.
const UNREADABLE_AGAIN: Span = Span::from_secs(600);

/// The most queues taken in one transaction.
const MOST_TAKEN: usize = 256;

#[derive(Clone, Copy, Debug)]
pub struct CourierSettings {
    pub poll: Duration,
    /// Of one try.
    pub timeout: Span,
    /// The most messages under way to one receiver.
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
    pace: Pace,
    meters: Meters,
    flights: JoinSet<Ended>,
    /// Ended, and still to be saved.
    settled: Vec<Settled>,
    /// Receivers that a message was given up for.
    given_up: Vec<(ReceiverName, Timestamp, String)>,
    /// Taken, with the first message still to be read.
    held: Vec<Held>,
    /// The receiver that was served last: the next round begins behind it.
    last: Option<ReceiverName>,
}

/// A try that has ended.
struct Ended {
    settled: Settled,
    /// How the receiver as a whole fared, where the try could tell.
    failing: Option<bool>,
    took: Duration,
    lag: Duration,
    /// What was written before has had its time.
    given_up_before: Timestamp,
}

impl Ended {
    fn untried(held: Held) -> Self {
        let how = Settlement::HandedBack;
        Self {
            settled: Settled { held, how },
            failing: None,
            took: Duration::ZERO,
            lag: Duration::ZERO,
            given_up_before: Timestamp::from_millis(0),
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
        // No longer than a single message would wait.
        let longest_pause = settings.persistence.max.duration().min(LONGEST_PAUSE);
        Self {
            store,
            instance,
            receivers,
            post,
            settings,
            pace: Pace::new(settings.max_in_flight, longest_pause),
            meters: Meters::new(),
            flights: JoinSet::new(),
            settled: Vec::new(),
            given_up: Vec::new(),
            held: Vec::new(),
            last: None,
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
        // Jitter, so that instances on one store do not all look at once.
        let jitter = rand::rng().random_range(0.75..1.25);
        let mut next = Instant::now() + self.settings.poll.mul_f64(jitter);
        let round = self.plan(&mut next).await?;
        let is_idle =
            round.settled.is_empty() && round.wanted.is_empty() && round.mended.is_empty();
        let buries = |settled: &Settled| {
            matches!(
                &settled.how,
                Settlement::Tried {
                    fate: Fate::Dead { .. },
                    ..
                }
            )
        };
        if !round.mended.is_empty() || round.settled.iter().any(buries) {
            // Webhooks may be told of an alert.
            next = Instant::now();
        }
        if !is_idle {
            let hold = self.settings.timeout.saturating_add(HOLD_LONGER);
            let (settled, given_up) = (round.settled.clone(), round.given_up.clone());
            let by = self.instance.clone();
            match self.store.outbox_round(round, by, hold).await {
                Ok(held) => self.held.extend(held),
                Err(error) => {
                    (self.settled, self.given_up) = (settled, given_up);
                    return Err(error);
                }
            }
        }
        self.start().await?;
        // A queue that turned out to be empty is let go at once.
        Ok(if self.settled.is_empty() {
            next
        } else {
            Instant::now()
        })
    }

    async fn plan(&mut self, next: &mut Instant) -> Result<Round, StoreError> {
        let reader = &self.store.housekeeping;
        let Queues {
            mut waiting,
            mended,
        } = reader.queues().await?;
        let now = reader.now().await?;
        self.pace
            .keep(|receiver| waiting.iter().any(|(known, _)| known == receiver));
        // Round and round, so that none is always last.
        if let Some(last) = &self.last {
            let behind = waiting.partition_point(|(receiver, _)| receiver <= last);
            waiting.rotate_left(behind);
        }
        let mut wanted = Vec::new();
        let mut left = MOST_TAKEN;
        for (receiver, due_at) in waiting {
            let wait = due_at.since(now);
            if wait > Duration::ZERO {
                *next = (*next).min(Instant::now() + wait);
                continue;
            }
            match self.pace.places(&receiver, Instant::now()) {
                Ok(places) if left > 0 => {
                    let places = places.min(left);
                    left -= places;
                    self.last = Some(receiver.clone());
                    wanted.push((receiver, places));
                }
                Ok(_) => *next = Instant::now(),
                Err(Some(until)) => *next = (*next).min(until),
                // Whatever ends next wakes this loop.
                Err(None) => {}
            }
        }
        Ok(Round {
            settled: std::mem::take(&mut self.settled),
            wanted,
            given_up: std::mem::take(&mut self.given_up),
            mended,
        })
    }

    /// Starts the first message of each queue that was taken.
    async fn start(&mut self) -> Result<(), StoreError> {
        if self.held.is_empty() {
            return Ok(());
        }
        let heads = self.store.housekeeping.heads(&self.held).await?;
        let now = self.store.housekeeping.now().await?;
        for (held, head) in std::mem::take(&mut self.held).into_iter().zip(heads) {
            let how = match head {
                First::Message(head) => {
                    self.fly(held, head);
                    continue;
                }
                First::None => Settlement::Empty,
                First::Unreadable { id, reason } => {
                    let reason = format!("its record in the database cannot be read: {reason}");
                    let fate = Fate::Dead { reason };
                    report(&held, "unknown", id, &fate);
                    self.meters.dead.increment(1);
                    Settlement::Tried { message: id, fate }
                }
                First::Lost(reason) => {
                    let reason = format!("a part of the database cannot be read: {reason}");
                    let fate = Fate::Again {
                        at: now + UNREADABLE_AGAIN,
                        reason,
                    };
                    let message = uuid::Uuid::nil();
                    report(&held, "unknown", message, &fate);
                    Settlement::Tried { message, fate }
                }
            };
            self.settled.push(Settled { held, how });
        }
        self.meters.in_flight.set(self.flights.len() as f64);
        Ok(())
    }

    fn fly(&mut self, held: Held, head: Head) {
        self.pace.started(&held.receiver);
        let (receivers, post) = (self.receivers.load_full(), self.post.clone());
        let (reader, persistence) = (self.store.housekeeping.clone(), self.settings.persistence);
        self.flights.spawn(async move {
            let began = Instant::now();
            let (message, kind, created_at) = (head.id, head.kind.clone(), head.created_at);
            let Ok(now) = reader.now().await else {
                return Ended::untried(held);
            };
            let delivery = AssertUnwindSafe(deliver(&receivers, &post, &held, head, now));
            // A try that panics has failed like any other: its place is free again, and the message waits.
            let delivery = delivery.catch_unwind().await.unwrap_or_else(|_| {
                error!(%message, receiver = %held.receiver, "the service panicked at a delivery");
                Delivery::Failed {
                    reason: "the service failed because of a fault of its own; its log says more"
                        .to_owned(),
                    retry_after: None,
                    receiver_failing: false,
                }
            });
            let failing = match &delivery {
                Delivery::Taken => Some(false),
                Delivery::Failed {
                    receiver_failing: true,
                    ..
                } => Some(true),
                Delivery::Failed { .. } | Delivery::Refused { .. } => None,
            };
            let took = began.elapsed();
            let now = now + Span::from_millis(took.as_millis() as u64);
            let chance = rand::random();
            let fate = persistence.fate(delivery, held.tries, held.since, now, chance);
            report(&held, &kind, message, &fate);
            Ended {
                settled: Settled {
                    held,
                    how: Settlement::Tried { message, fate },
                },
                failing,
                took,
                lag: now.since(created_at),
                given_up_before: persistence.given_up_before(now),
            }
        });
    }

    fn note(&mut self, ended: Result<Ended, tokio::task::JoinError>) {
        let ended = match ended {
            Ok(ended) => ended,
            // Its queue is taken up again when it is no longer held.
            Err(error) => return warn!(%error, "a delivery failed by itself"),
        };
        let receiver = &ended.settled.held.receiver;
        let chance = rand::random();
        self.pace
            .ended(receiver, ended.failing, Instant::now(), chance);
        if let Settlement::Tried { fate, .. } = &ended.settled.how {
            self.meters.tried(ended.took);
            match fate {
                Fate::Delivered => {
                    self.meters.delivered.increment(1);
                    self.meters.delivered_after(ended.lag);
                }
                Fate::Again { .. } => self.meters.failed.increment(1),
                Fate::Dead { reason } => {
                    self.meters.dead.increment(1);
                    if ended.failing == Some(true) {
                        let before = ended.given_up_before;
                        let given_up = (receiver.clone(), before, reason.clone());
                        self.given_up.push(given_up);
                    }
                }
            }
        }
        self.settled.push(ended.settled);
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
        let round = Round {
            settled: std::mem::take(&mut self.settled),
            ..Round::default()
        };
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

fn report(held: &Held, kind: &str, message: uuid::Uuid, fate: &Fate) {
    let (receiver, subject, tries) = (&held.receiver, held.subject, held.tries);
    match fate {
        Fate::Delivered => {
            debug!(%message, kind, %receiver, %subject, tries, "a message was delivered")
        }
        Fate::Again { at, reason } => {
            info!(%message, kind, %receiver, %subject, tries, %at, reason, "a message could not be delivered; it is tried again");
        }
        Fate::Dead { reason } => {
            warn!(%message, kind, %receiver, %subject, tries, reason, "a message is dead: GET /v1/messages?state=dead lists it");
        }
    }
}
