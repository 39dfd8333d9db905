//! The delivery loop claims queues that are due, attempts their first messages concurrently, and saves the results.
//! One transaction releases the queues of completed attempts and claims the next ones.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Receivers,
    attempt::{CompletedAttempt, DeliveryAttempt, report},
    meters::Meters,
    slots::{DeliverySlot, Slots},
    unsaved::UnsavedResults,
};
use crate::{
    agent::Post,
    chance,
    clock::{self, Instant, sleep_until, timeout},
    domain::{
        message::{
            DeliveryDecision, DeliveryPolicy, DestinationResponse, ReleaseReason,
            with_complete_links,
        },
        task::ReplyKey,
        values::{
            Destination, InstanceId, ReceiverName, Span, TaskId, Timestamp, idle, jittered,
            without_query,
        },
    },
    store::{
        BacklogExpiry, ClaimRequest, ClaimResponse, DueWork, NextMessage, QueueClaim, QueueHead,
        QueueRelease, Store, StoreError,
    },
};

/// The time by which a claim lasts longer than an attempt, so that the result is saved in time on a busy store.
const CLAIM_MARGIN: Span = Span::from_secs(15);

/// The wait before a queue is attempted again whose first message is in a damaged part of the database.
const UNREADABLE_RETRY: Span = Span::from_secs(600);

/// The most due queues claimed in one transaction.
const MAX_CLAIMS: usize = 256;

/// The most messages read at once.
const MAX_READ: usize = 32;

/// The most destinations of each kind visited in one transaction.
const MAX_DESTINATIONS: usize = 128;

/// The wait before due queues are read again that another transaction had locked.
const LOCKED_RETRY: Duration = Duration::from_millis(20);

/// The interval of the search for alerts of receivers without dead letters. Not every poll searches, because many
/// receivers may have dead letters.
const RESOLVED_EVERY: Duration = Duration::from_secs(1);

/// Idle destinations are purged at this interval, at most `MAX_PURGED` at once.
const PURGE_EVERY: Duration = Duration::from_secs(60);
const MAX_PURGED: usize = 500;
/// The time by which an idle destination is kept longer than the longest wait between two attempts.
const KEEP_MARGIN: Span = Span::from_secs(300);

#[derive(Clone, Copy, Debug)]
pub struct DeliverySettings {
    pub poll: Duration,
    /// The timeout of one attempt.
    pub timeout: Span,
    /// The most messages in flight to one destination.
    pub max_in_flight: usize,
    pub policy: DeliveryPolicy,
    /// The longest time that messages in flight may continue after the stop.
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
    /// The results that the next request saves.
    unsaved: UnsavedResults,
    /// The claims whose first message has not been read yet.
    claims: Vec<(QueueClaim, DeliverySlot)>,
    /// The destinations with messages in flight here and more in their backlog.
    backlogged: HashSet<Destination>,
    /// The destinations that may have a free slot again.
    refill: HashMap<Destination, ReceiverName>,
    next_resolved_check: Instant,
    next_purge: Instant,
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
            claims: Vec::new(),
            backlogged: HashSet::new(),
            refill: HashMap::new(),
            next_resolved_check: clock::instant(),
            next_purge: clock::instant() + PURGE_EVERY,
        }
    }

    /// Runs until `stop`. After that it lets messages in flight complete within the grace period, and releases the
    /// other claims.
    pub async fn run(mut self, stop: CancellationToken) {
        let outbox = self.store.outbox.clone();
        let mut next = clock::instant();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = outbox.notified() => {}
                Some(completed) = self.in_flight.join_next() => self.record(completed),
                () = sleep_until(next) => {}
            }
            while let Some(completed) = self.in_flight.try_join_next() {
                self.record(completed);
            }
            next = match self.round().await {
                Ok(next) => next,
                Err(error) => {
                    warn!(%error, "could not read the outbox; trying again");
                    let pause = clock::instant() + self.settings.poll;
                    if stop.run_until_cancelled(sleep_until(pause)).await.is_none() {
                        break;
                    }
                    pause
                }
            };
        }
        self.drain().await;
    }

    /// Saves results, claims due queues, and starts their first messages. Returns when to poll again.
    async fn round(&mut self) -> Result<Instant, StoreError> {
        self.purge_destinations().await?;
        let reader = &self.store.housekeeping;
        let with_resolved = clock::instant() >= self.next_resolved_check;
        let due_work = reader.due_work(MAX_DESTINATIONS, with_resolved).await?;
        let now = reader.now().await?;
        let mut next = clock::instant() + jittered(self.poll_after(&due_work), chance::random());
        match with_resolved {
            true => {
                self.next_resolved_check = clock::instant() + RESOLVED_EVERY.min(self.settings.poll)
            }
            // This round may have been woken by the end of a dead letter.
            false => next = next.min(self.next_resolved_check),
        }
        if let Some(next_at) = due_work.next_at {
            next = next.min(clock::instant() + next_at.since(now));
        }
        let (request, probes) = self.plan(&due_work);
        if !request.is_empty() {
            let response = self.claim(request, probes).await?;
            let has_progressed = response.moved_to_backlog > 0 || !response.claims.is_empty();
            if due_work.is_due {
                next = next.min(clock::instant() + LOCKED_RETRY);
            }
            let has_expired = !response.expiries.is_empty();
            if has_progressed || has_expired || due_work.is_full(MAX_DESTINATIONS) {
                next = clock::instant();
            }
            self.record_expiries(response.expiries);
            self.start().await?;
        }
        // An empty queue is released at once, and an alert may have added messages to webhooks.
        Ok(match self.unsaved.has_releases_or_expiries() {
            true => clock::instant(),
            false => next,
        })
    }

    /// Returns the poll interval. It is long while nothing is due, because new messages are reported by the writer of
    /// this instance or by the supervising instance.
    fn poll_after(&self, due_work: &DueWork) -> Duration {
        let is_idle = !due_work.is_any_due() && self.in_flight.is_empty() && self.refill.is_empty();
        match is_idle {
            true => idle(self.settings.poll),
            false => self.settings.poll,
        }
    }

    /// Plans the next request. A probe gets its slot now, because no other instance may make the probe meanwhile.
    fn plan(&mut self, due_work: &DueWork) -> (ClaimRequest, HashMap<Destination, DeliverySlot>) {
        let mut request = std::mem::take(&mut self.unsaved).into_request(self.settings.policy);
        let mut probes = HashMap::new();
        for (destination, receiver) in &due_work.failing {
            match self.slots.acquire(destination, receiver, true) {
                Some(slot) => {
                    probes.insert(destination.clone(), slot);
                    request.backlogs.push((destination.clone(), 1));
                }
                None => request.postponed.push(destination.clone()),
            }
        }
        for (destination, receiver) in &due_work.backlogged {
            self.refill.insert(destination.clone(), receiver.clone());
        }
        for (destination, receiver) in std::mem::take(&mut self.refill) {
            match self.slots.available(&destination, &receiver) {
                0 => {
                    if self.slots.in_flight_to(&destination) > 0 {
                        self.backlogged.insert(destination.clone());
                    }
                    request.postponed.push(destination);
                }
                available => request.backlogs.push((destination, available)),
            }
        }
        request.limit = if due_work.is_due { MAX_CLAIMS } else { 0 };
        request.resolved = due_work.resolved.clone();
        (request, probes)
    }

    async fn claim(
        &mut self,
        request: ClaimRequest,
        mut probes: HashMap<Destination, DeliverySlot>,
    ) -> Result<ClaimResponse, StoreError> {
        let hold = self.settings.timeout.saturating_add(CLAIM_MARGIN);
        let unsaved = request.clone();
        let response = self
            .store
            .claim_queues(request, self.instance.clone(), hold)
            .await;
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                for (_, slot) in probes {
                    self.slots.release(slot, DestinationResponse::Unknown);
                }
                self.unsaved.restore(unsaved);
                return Err(error);
            }
        };
        for (destination, _) in unsaved.backlogs {
            if !probes.contains_key(&destination) {
                self.backlogged.insert(destination);
            }
        }
        for destination in &response.drained {
            self.backlogged.remove(destination);
        }
        for claim in response.claims.iter().cloned() {
            let reserved = match claim.is_probe {
                true => probes.remove(&claim.destination),
                false => None,
            };
            let (destination, receiver) = (&claim.destination, &claim.receiver);
            let slot =
                reserved.or_else(|| self.slots.acquire(destination, receiver, claim.is_probe));
            match slot {
                Some(slot) => self.claims.push((claim, slot)),
                None => self.return_to_backlog(claim),
            }
        }
        for (_, slot) in probes {
            self.slots.release(slot, DestinationResponse::Unknown);
        }
        self.forget_unused();
        Ok(response)
    }

    /// Returns a claim to the backlog, because its destination has no free slot.
    fn return_to_backlog(&mut self, claim: QueueClaim) {
        if claim.is_probe {
            self.unsaved.cancel_probe(&claim);
        }
        self.backlogged.insert(claim.destination.clone());
        let reason = ReleaseReason::DestinationBusy;
        self.unsaved.release(QueueRelease { claim, reason });
    }

    /// Forgets backlogs of destinations without messages in flight. The store says when to read such a backlog.
    fn forget_unused(&mut self) {
        let slots = &self.slots;
        self.backlogged
            .retain(|destination| slots.in_flight_to(destination) > 0);
    }

    fn record_expiries(&mut self, expiries: Vec<BacklogExpiry>) {
        for expiry in expiries {
            let destination = without_query(expiry.destination.as_str());
            let (messages, reason) = (expiry.messages, &expiry.reason);
            warn!(%destination, messages, reason, "messages became dead letters: GET /v1/messages?state=dead lists them");
            self.meters.dead.increment(messages);
            if expiry.has_more {
                self.unsaved.expire_more(expiry);
            }
        }
    }

    async fn purge_destinations(&mut self) -> Result<(), StoreError> {
        if clock::instant() < self.next_purge {
            return Ok(());
        }
        let keep = self.settings.policy.max.saturating_add(KEEP_MARGIN);
        let now = self.store.housekeeping.now().await?;
        let before = Timestamp::from_millis(now.as_millis() - keep.as_millis());
        let purged = self.store.purge_destinations(before, MAX_PURGED).await?;
        if purged < MAX_PURGED as u64 {
            self.next_purge = clock::instant() + PURGE_EVERY;
        }
        Ok(())
    }

    /// Starts the first message of each claimed queue.
    async fn start(&mut self) -> Result<(), StoreError> {
        if self.claims.is_empty() {
            return Ok(());
        }
        let now = self.store.housekeeping.now().await?;
        // A few messages are read at a time, because each may be large.
        while !self.claims.is_empty() {
            let count = self.claims.len().min(MAX_READ);
            let claims: Vec<_> = self.claims[..count]
                .iter()
                .map(|(claim, _)| claim.clone())
                .collect();
            let heads = self.store.housekeeping.next_messages(&claims).await?;
            let claims: Vec<_> = self.claims.drain(..count).collect();
            for ((claim, slot), head) in claims.into_iter().zip(heads) {
                self.start_one(claim, slot, head, now);
            }
        }
        self.meters.in_flight.set(self.in_flight.len() as f64);
        Ok(())
    }

    fn start_one(
        &mut self,
        claim: QueueClaim,
        mut slot: DeliverySlot,
        head: QueueHead,
        now: Timestamp,
    ) {
        match head {
            QueueHead::Message(message) if self.slots.hold(&mut slot, message.body.len()) => {
                self.deliver(claim, message, slot);
            }
            // Too many bytes are in flight. The message waits as if its destination had no free slot.
            QueueHead::Message(_) => {
                self.slots.release(slot, DestinationResponse::Unknown);
                self.return_to_backlog(claim);
            }
            QueueHead::Empty => self.skip(claim, slot, ReleaseReason::QueueEmpty),
            QueueHead::Unreadable { id, reason } => {
                let reason = format!("its record in the database cannot be read: {reason}");
                self.meters.dead.increment(1);
                self.skip_damaged(claim, slot, id, DeliveryDecision::Dead { reason });
            }
            QueueHead::Lost(reason) => {
                let decision = DeliveryDecision::Retry {
                    at: now + UNREADABLE_RETRY,
                    reason: format!("a part of the database cannot be read: {reason}"),
                    in_backlog: false,
                };
                self.skip_damaged(claim, slot, uuid::Uuid::nil(), decision);
            }
        }
    }

    fn deliver(&mut self, claim: QueueClaim, mut message: NextMessage, slot: DeliverySlot) {
        let complete = |key: ReplyKey| {
            // The subject of a message about a question is its task.
            with_complete_links(&key, message.id, TaskId(claim.subject), &message.body)
        };
        if let Some(body) = self.store.ask_key().and_then(complete) {
            message.body = body;
        }
        let attempt = DeliveryAttempt {
            receivers: self.receivers.load_full(),
            post: self.post.clone(),
            reader: self.store.housekeeping.clone(),
            policy: self.settings.policy,
        };
        self.in_flight.spawn(attempt.deliver(claim, message, slot));
    }

    /// Releases a claim whose first message cannot be sent, because its record is damaged.
    fn skip_damaged(
        &mut self,
        claim: QueueClaim,
        slot: DeliverySlot,
        message: uuid::Uuid,
        decision: DeliveryDecision,
    ) {
        report(&claim, "unknown", message, &decision);
        let reason = ReleaseReason::Attempted {
            message,
            decision,
            tried: None,
        };
        self.skip(claim, slot, reason);
    }

    fn skip(&mut self, claim: QueueClaim, slot: DeliverySlot, reason: ReleaseReason) {
        self.free(slot, &claim, DestinationResponse::Unknown);
        if claim.is_probe {
            self.unsaved.cancel_probe(&claim);
        }
        self.unsaved.release(QueueRelease { claim, reason });
    }

    /// Frees a slot for other messages to the same destination.
    fn free(&mut self, slot: DeliverySlot, claim: &QueueClaim, response: DestinationResponse) {
        self.slots.release(slot, response);
        let has_recovered = claim.is_probe && response.is_answer();
        if has_recovered || self.backlogged.contains(&claim.destination) {
            let (destination, receiver) = (claim.destination.clone(), claim.receiver.clone());
            self.refill.insert(destination, receiver);
        }
    }

    fn record(&mut self, completed: Result<CompletedAttempt, tokio::task::JoinError>) {
        let completed = match completed {
            Ok(completed) => completed,
            // The queue is due again when the claim has expired.
            Err(error) => return warn!(%error, "a delivery task failed"),
        };
        if let ReleaseReason::Attempted { decision, .. } = &completed.release.reason {
            self.meters.record_attempt(completed.took);
            match decision {
                DeliveryDecision::Delivered => {
                    self.meters.delivered.increment(1);
                    self.meters.record_lag(completed.lag);
                }
                DeliveryDecision::Retry { .. } => self.meters.failed.increment(1),
                DeliveryDecision::Dead { .. } => self.meters.dead.increment(1),
            }
        }
        self.unsaved.record(&completed);
        self.free(completed.slot, &completed.release.claim, completed.response);
        self.unsaved.release(completed.release);
        self.meters.in_flight.set(self.in_flight.len() as f64);
    }

    async fn drain(&mut self) {
        let in_flight = self.in_flight.len();
        if in_flight > 0 {
            info!(messages = in_flight, "waiting for messages in flight");
        }
        let grace = self.settings.grace;
        let all_completed = timeout(grace, async {
            while let Some(completed) = self.in_flight.join_next().await {
                self.record(completed);
            }
        });
        if all_completed.await.is_err() {
            warn!("messages in flight did not complete in time; they will be tried again");
        }
        self.in_flight.abort_all();
        let request = std::mem::take(&mut self.unsaved).into_request(self.settings.policy);
        let hold = self.settings.timeout;
        let saved = self
            .store
            .claim_queues(request, self.instance.clone(), hold)
            .await;
        let released = match saved {
            // This releases the claims whose attempt did not complete.
            Ok(_) => self.store.release_queues(Some(self.instance.clone())).await,
            Err(error) => Err(error),
        };
        if let Err(error) = released {
            warn!(%error, "could not save the results of deliveries; those messages will be delivered again");
        }
    }
}
