//! Destinations: the record of each circuit and of its backlog, as statements of any database.
//!
//! Most messages never need this. A destination has a row only while it fails, or while more messages wait for it than
//! it has slots. Its waiting queues are its *backlog*, which the index of due queues does not contain: so a query for
//! due queues costs the same for any number of queues in backlogs, and each queue is moved once.
//!
//! A transaction that moves queues into a backlog has a lock on the destination's row, and one that finds the backlog
//! empty checks again under a lock: so every backlog has a row that leads to it. These locks are taken after those of
//! queues, in the order of destinations; later statements skip rows that are locked.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ClaimRequest, DeadByReceiver, QueueClaim, QueueRelease, of_queue,
    queues::{DELETE_IF_EMPTY, claim_each},
};
use crate::{
    domain::{
        message::{BacklogState, Circuit, DestinationFailure, ExpiredMessages},
        values::{Destination, InstanceId, ReceiverName, Span, Timestamp},
    },
    store::{
        StoreError, Transaction,
        rows::{self, Columns},
        statement::Statement,
    },
};

/// The time until a backlog is read again after a request for it, by this or another instance.
const BACKLOG_POLL: Span = Span::from_millis(500);
/// The time until a probe whose queue another transaction had locked is attempted again.
const PROBE_RETRY: Span = Span::from_millis(100);
/// The most queues that one request moves into backlogs, or expires for one destination.
const BATCH: usize = 200;

/// Relies on destinations_failing, destinations_behind and queues_due, each read in its order as far as it is needed,
/// and for resolved alerts on alerts_unclosed_of_receiver and messages_died_by_receiver. One statement for all,
/// because an idle instance runs it at every poll.
const DUE_WORK: &str = r#"
SELECT 'failing' AS kind, destination, receiver, next_at
FROM (SELECT destination, receiver, next_at FROM destinations
      WHERE failures > 0 AND next_at IS NOT NULL ORDER BY next_at LIMIT $1) AS failing
UNION ALL
SELECT 'backlogged', destination, receiver, next_at
FROM (SELECT destination, receiver, next_at FROM destinations
      WHERE failures = 0 AND next_at IS NOT NULL ORDER BY next_at LIMIT $1) AS backlogged
UNION ALL
SELECT 'due', NULL, NULL, (SELECT due_at FROM queues WHERE waiting = 0 ORDER BY due_at LIMIT 1)
UNION ALL
SELECT 'resolved', NULL, receiver, NULL FROM alerts
WHERE $2 = 1 AND receiver IS NOT NULL AND state <> 'closed' AND kind = 'message.undeliverable'
  AND NOT EXISTS (SELECT 1 FROM messages
                  WHERE messages.receiver = alerts.receiver AND died_at IS NOT NULL)"#;

/// After this statement the row exists and is locked.
const LOCK_OR_INSERT: &str = r#"
INSERT INTO destinations (destination, receiver, failures, changed_at, paused_until, next_at)
VALUES ($1, $2, 0, 0, $3, $3)
ON CONFLICT (destination) DO UPDATE SET next_at = coalesce(destinations.next_at, destinations.paused_until)"#;

const CIRCUIT: &str = r#"
SELECT failures, failing_since, changed_at, paused_until FROM destinations WHERE destination = $1"#;

/// Relies on queues_waiting. Only for a row that [`LOCK_OR_INSERT`] has locked.
const UPDATE_CIRCUIT: &str = r#"
UPDATE destinations
SET failures = $2, failing_since = $3, changed_at = $4, paused_until = $5, locked_by = NULL,
    next_at = CASE WHEN EXISTS (SELECT 1 FROM queues WHERE destination = $1 AND waiting = 1) THEN $5 END
WHERE destination = $1"#;

/// Makes the backlog due with the recovery.
const CLOSE_CIRCUIT: &str = r#"
UPDATE destinations
SET failures = $2, failing_since = $3, changed_at = $4, paused_until = $5, locked_by = NULL, next_at = $5
WHERE destination = $1 AND failures > 0"#;

const CANCEL_PROBE: &str = r#"
UPDATE destinations SET next_at = paused_until, locked_by = NULL
WHERE destination = $1 AND locked_by IS NOT NULL"#;

/// Releases the probes of one instance, or of all.
const RELEASE_PROBES: &str = r#"
UPDATE destinations SET next_at = paused_until, locked_by = NULL
WHERE locked_by IS NOT NULL AND locked_by = coalesce($1, locked_by)"#;

/// Makes the next probe due now at the request of an operator.
const EXPEDITE: &str = r#"
UPDATE destinations SET paused_until = $2, next_at = CASE WHEN next_at IS NOT NULL THEN $2 END
WHERE destination = $1 AND failures > 0 AND locked_by IS NULL"#;

const POSTPONE: &str = r#"
UPDATE destinations SET next_at = $3
WHERE destination = $1
  AND destination IN (SELECT destination FROM destinations
                      WHERE destination = $1 AND next_at <= $2 {skip locked})"#;

/// Idle destinations with a queue that has become due. Relies on queues_due. In this form PostgreSQL looks up each
/// row by its key, whatever its statistics say: here and in the statements that follow.
const IDLE_WITH_DUE: &str = r#"
WITH due AS MATERIALIZED (
    SELECT destination FROM queues WHERE waiting = 0 AND due_at <= $1 ORDER BY due_at LIMIT $2)
SELECT destination FROM due
WHERE (SELECT 1 FROM destinations
       WHERE destinations.destination = due.destination
         AND (next_at IS NULL OR next_at > paused_until AND failures > 0 AND locked_by IS NULL) LIMIT 1) = 1"#;

const SCHEDULE_PROBE: &str = r#"
UPDATE destinations SET next_at = paused_until
WHERE destination = $1
  AND destination IN (SELECT destination FROM destinations
                      WHERE destination = $1
                        AND (next_at IS NULL OR next_at > paused_until AND failures > 0 AND locked_by IS NULL)
                      {skip locked})"#;

/// Relies on queues_due.
const DUE_WITH_BACKLOG: &str = r#"
WITH due AS MATERIALIZED (
    SELECT receiver, subject, destination FROM queues
    WHERE waiting = 0 AND due_at <= $1 ORDER BY due_at LIMIT $2 {skip locked})
SELECT receiver, subject FROM due
WHERE (SELECT next_at FROM destinations
       WHERE destinations.destination = due.destination AND next_at IS NOT NULL
       LIMIT 1 {share unlocked}) IS NOT NULL"#;

/// Only for a queue that [`DUE_WITH_BACKLOG`] has locked together with its destination.
const MOVE_TO_BACKLOG: &str =
    "UPDATE queues SET waiting = 1, locked_by = NULL WHERE receiver = $1 AND subject = $2";

/// Allows one probe at a time, among all instances. They share the backlog of a destination that responds: it stays due
/// for the others until one of them has read it.
const LOCK_BACKLOG: &str = r#"
UPDATE destinations
SET next_at = CASE WHEN failures > 0 THEN $3 WHEN next_at > $2 THEN next_at ELSE $4 END,
    locked_by = CASE WHEN failures > 0 THEN $5 END
WHERE destination = $1
  AND destination IN (SELECT destination FROM destinations
                      WHERE destination = $1 AND next_at IS NOT NULL AND (failures = 0 OR next_at <= $2) {skip locked})
RETURNING failures, failing_since, changed_at, paused_until"#;

/// Relies on queues_waiting.
const OLDEST_IN_BACKLOG: &str = r#"
SELECT receiver, subject FROM queues
WHERE destination = $1 AND waiting = 1 AND due_at <= $2
ORDER BY due_at LIMIT $3 {skip locked}"#;

/// If no queue in the backlog is due, the destination is idle until one is. Only for a row that [`LOCK_BACKLOG`] has
/// locked. Relies on queues_waiting.
const IDLE: &str = r#"
UPDATE destinations
SET locked_by = NULL,
    next_at = (SELECT CASE WHEN due_at > $2 THEN due_at ELSE $2 END FROM queues
               WHERE destination = $1 AND waiting = 1 ORDER BY due_at LIMIT 1)
WHERE destination = $1"#;

/// Only for a row that [`LOCK_BACKLOG`] has locked. Relies on queues_waiting.
const DELETE_UNUSED: &str = r#"
DELETE FROM destinations
WHERE destination = $1 AND failures = 0
  AND NOT EXISTS (SELECT 1 FROM queues WHERE destination = $1 AND waiting = 1)"#;

/// Relies on destinations_idle.
const PURGE: &str = r#"
DELETE FROM destinations
WHERE next_at IS NULL
  AND destination IN (SELECT destination FROM destinations
                      WHERE next_at IS NULL AND changed_at < $1 AND paused_until < $1
                      ORDER BY changed_at LIMIT $2 {skip locked})"#;

/// Relies on queues_waiting_since.
const EXPIRED_QUEUES: &str = r#"
SELECT receiver, subject, tries FROM queues
WHERE destination = $1 AND waiting = 1 AND waits_since <= $2
ORDER BY waits_since LIMIT $3 {skip locked}"#;

/// The queue counts the attempts of its first message; those after it were never attempted. Relies on
/// messages_in_queue.
const EXPIRE_MESSAGES: &str = r#"
UPDATE messages
SET state = 'dead', error = $4, died_at = $5,
    tries = CASE WHEN id = (SELECT head.id FROM messages AS head
                            WHERE head.receiver = $1 AND head.subject = $2 AND head.state = 'pending'
                            ORDER BY head.place, head.id LIMIT 1) THEN $6 ELSE 0 END
WHERE receiver = $1 AND subject = $2 AND state = 'pending' AND coalesce(pending_since, created_at) <= $3"#;

/// For a queue with messages that have not expired. Relies on messages_in_queue.
const CONTINUE_QUEUE: &str = r#"
UPDATE queues
SET tries = 0, since = NULL, error = NULL, due_at = $3,
    waits_since = coalesce((SELECT min(coalesce(pending_since, created_at)) FROM messages
                            WHERE receiver = $1 AND subject = $2 AND state = 'pending'), $3)
WHERE receiver = $1 AND subject = $2"#;

/// The work that the delivery loop finds before it claims anything.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DueWork {
    /// Failing destinations whose probe is due, each with its receiver.
    pub failing: Vec<(Destination, ReceiverName)>,
    /// Destinations that respond and have a backlog.
    pub backlogged: Vec<(Destination, ReceiverName)>,
    /// True if a queue outside of any backlog is due.
    pub is_due: bool,
    /// The time when the next work is due.
    pub next_at: Option<Timestamp>,
    /// Receivers with an open alert and no dead letters any more: all were redelivered, discarded or purged.
    pub resolved: Vec<ReceiverName>,
}

impl DueWork {
    pub fn is_any_due(&self) -> bool {
        self.is_due || !self.failing.is_empty() || !self.backlogged.is_empty()
    }

    /// Returns whether there may be more destinations than were read.
    pub fn is_full(&self, most: usize) -> bool {
        self.failing.len() >= most || self.backlogged.len() >= most
    }
}

/// Messages in the backlog of a destination that were marked as dead together.
#[derive(Clone, PartialEq, Debug)]
pub struct BacklogExpiry {
    pub destination: Destination,
    /// The failure of the destination.
    pub cause: String,
    /// The error of the messages.
    pub reason: String,
    pub messages: u64,
    /// True if there may be more expired messages than one request marks.
    pub has_more: bool,
}

/// Finds the due work of at most `most` destinations of each kind.
pub fn due_work(most: usize, with_resolved: bool) -> Statement {
    Statement::new(DUE_WORK).bind(most).bind(with_resolved)
}

pub fn read_due_work(found: &[impl Columns], now: Timestamp) -> Result<DueWork, StoreError> {
    let mut due_work = DueWork::default();
    for row in found {
        let kind: String = row.get("kind")?;
        if kind == "resolved" {
            due_work.resolved.push(row.get("receiver")?);
            continue;
        }
        let Some(next_at) = row.get("next_at")? else {
            continue;
        };
        if next_at > now {
            due_work.next_at = Some(due_work.next_at.map_or(next_at, |next| next.min(next_at)));
            continue;
        }
        match &*kind {
            "failing" => due_work
                .failing
                .push((row.get("destination")?, row.get("receiver")?)),
            "backlogged" => due_work
                .backlogged
                .push((row.get("destination")?, row.get("receiver")?)),
            _ => due_work.is_due = true,
        }
    }
    Ok(due_work)
}

fn of(sql: &str, destination: &Destination) -> Statement {
    Statement::new(sql).bind(destination)
}

fn unlocked(tx: &Transaction<'_>, sql: &str) -> String {
    sql.replace("{skip locked}", tx.dialect().skip_locked)
        .replace("{share unlocked}", tx.dialect().share_unlocked)
}

/// The changes of one destination in a request.
#[derive(Default)]
struct Change<'r> {
    has_backlog: Option<&'r ReceiverName>,
    failure: Option<&'r DestinationFailure>,
    has_recovered: bool,
    is_probe_cancelled: bool,
}

/// Records the failures and recoveries of destinations, and the destinations that have a backlog now.
pub async fn record(tx: &mut Transaction<'_>, request: &ClaimRequest) -> Result<(), StoreError> {
    let mut changes: BTreeMap<&Destination, Change<'_>> = BTreeMap::new();
    let now = tx.now();
    for QueueRelease { claim, reason } in &request.releases {
        if reason.decide(claim.attempt(), now).joins_backlog() {
            changes.entry(&claim.destination).or_default().has_backlog = Some(&claim.receiver);
        }
    }
    for failure in &request.failures {
        changes.entry(&failure.destination).or_default().failure = Some(failure);
    }
    for destination in &request.recovered {
        changes.entry(destination).or_default().has_recovered = true;
    }
    for destination in &request.cancelled_probes {
        changes.entry(destination).or_default().is_probe_cancelled = true;
    }
    for (destination, change) in changes {
        let receiver = change.failure.map(|failure| &failure.receiver);
        if let Some(receiver) = receiver.or(change.has_backlog) {
            let lock = of(LOCK_OR_INSERT, destination)
                .bind(receiver)
                .bind(now + BACKLOG_POLL);
            tx.execute(lock).await?;
        }
        if change.has_recovered {
            save(tx, CLOSE_CIRCUIT, destination, Circuit::recovered(now)).await?;
        } else if let Some(failure) = change.failure {
            fail(tx, failure, request).await?;
        } else if change.is_probe_cancelled {
            tx.execute(of(CANCEL_PROBE, destination)).await?;
        }
    }
    Ok(())
}

async fn fail(
    tx: &mut Transaction<'_>,
    failure: &DestinationFailure,
    request: &ClaimRequest,
) -> Result<(), StoreError> {
    let now = tx.now();
    let before = circuit(tx, &failure.destination).await?;
    let after = before.and_then(|circuit| circuit.after(failure, &request.policy, now));
    let Some(after) = after else {
        tx.execute(of(CANCEL_PROBE, &failure.destination)).await?;
        return Ok(());
    };
    save(tx, UPDATE_CIRCUIT, &failure.destination, after).await
}

async fn save(
    tx: &mut Transaction<'_>,
    sql: &str,
    destination: &Destination,
    circuit: Circuit,
) -> Result<(), StoreError> {
    let save = of(sql, destination)
        .bind(circuit.failures)
        .bind(circuit.failing_since)
        .bind(circuit.changed_at)
        .bind(circuit.paused_until);
    tx.run(save).await
}

async fn circuit(
    tx: &mut Transaction<'_>,
    destination: &Destination,
) -> Result<Option<Circuit>, StoreError> {
    let found = tx.fetch(of(CIRCUIT, destination)).await?;
    found.first().map(rows::circuit).transpose()
}

/// Marks messages as dead that waited for a destination which has failed for all of their time, many at once.
pub async fn expire(
    tx: &mut Transaction<'_>,
    request: &ClaimRequest,
    dead: &mut DeadByReceiver,
) -> Result<Vec<BacklogExpiry>, StoreError> {
    let remaining = request.expiries.iter();
    let remaining = remaining.map(|expiry| (&expiry.destination, expiry.cause.as_str()));
    let failed = request.failures.iter();
    let failed = failed.map(|failure| (&failure.destination, failure.reason.as_str()));
    let causes: BTreeMap<_, _> = remaining.chain(failed).collect();
    let mut expiries = Vec::new();
    for (destination, cause) in causes {
        let circuit = circuit(tx, destination).await?;
        let expired = circuit.and_then(|circuit| circuit.expire(&request.policy, cause, tx.now()));
        if let Some(expired) = expired {
            let done = expire_backlog(tx, destination, &expired, dead).await?;
            if let Some((messages, has_more)) = done {
                expiries.push(BacklogExpiry {
                    destination: destination.clone(),
                    cause: cause.to_owned(),
                    reason: expired.reason,
                    messages,
                    has_more,
                });
            }
        }
    }
    Ok(expiries)
}

/// Returns how many messages expired, and whether there may be more; `None` if no queue has waited that long.
async fn expire_backlog(
    tx: &mut Transaction<'_>,
    destination: &Destination,
    expired: &ExpiredMessages,
    dead: &mut DeadByReceiver,
) -> Result<Option<(u64, bool)>, StoreError> {
    let now = tx.now();
    let queues = of(&unlocked(tx, EXPIRED_QUEUES), destination)
        .bind(expired.waiting_since)
        .bind(BATCH);
    let queues = tx.fetch(queues).await?;
    if queues.is_empty() {
        return Ok(None);
    }
    let mut messages = 0;
    for queue in &queues {
        let expire = of_queue(EXPIRE_MESSAGES, queue)?
            .bind(expired.waiting_since)
            .bind(expired.reason.as_str())
            .bind(now)
            .bind(queue.get::<i64>("tries")?);
        messages += tx.execute(expire).await?;
        if tx.execute(of_queue(DELETE_IF_EMPTY, queue)?).await? == 0 {
            let continue_queue = of_queue(CONTINUE_QUEUE, queue)?.bind(now);
            tx.execute(continue_queue).await?;
        }
    }
    if messages > 0 {
        let receivers: Result<BTreeSet<_>, _> =
            queues.iter().map(|row| row.get("receiver")).collect();
        let receivers = receivers?.into_iter();
        dead.extend(receivers.map(|receiver| (receiver, expired.reason.clone())));
    }
    Ok(Some((messages, queues.len() == BATCH)))
}

pub async fn postpone(
    tx: &mut Transaction<'_>,
    destinations: &[Destination],
) -> Result<(), StoreError> {
    let now = tx.now();
    for destination in destinations {
        let postpone = of(&unlocked(tx, POSTPONE), destination)
            .bind(now)
            .bind(now + BACKLOG_POLL);
        tx.execute(postpone).await?;
    }
    Ok(())
}

/// Moves due queues of destinations that have a row into their backlogs.
pub async fn move_to_backlogs(tx: &mut Transaction<'_>) -> Result<u64, StoreError> {
    let now = tx.now().as_millis();
    let resting = Statement::new(IDLE_WITH_DUE).bind(now).bind(BATCH);
    let resting: Result<BTreeSet<_>, _> = tx
        .fetch(resting)
        .await?
        .iter()
        .map(|row| row.get("destination"))
        .collect();
    for destination in resting? {
        tx.execute(of(&unlocked(tx, SCHEDULE_PROBE), &destination))
            .await?;
    }
    let known = Statement::new(unlocked(tx, DUE_WITH_BACKLOG))
        .bind(now)
        .bind(BATCH);
    let mut put_back = 0;
    for row in tx.fetch(known).await? {
        put_back += tx.execute(of_queue(MOVE_TO_BACKLOG, &row)?).await?;
    }
    Ok(put_back)
}

/// Claims from a backlog: one queue of a failing destination, if its pause is over; otherwise up to `limit` queues,
/// even if their own next attempt is later, because they failed only with their destination.
pub async fn claim_from_backlog(
    tx: &mut Transaction<'_>,
    destination: &Destination,
    limit: usize,
    by: &InstanceId,
    until: Timestamp,
) -> Result<Vec<QueueClaim>, StoreError> {
    let now = tx.now();
    let lock = of(&unlocked(tx, LOCK_BACKLOG), destination)
        .bind(now)
        .bind(until)
        .bind(now + BACKLOG_POLL)
        .bind(by);
    let locked = tx.fetch(lock).await?;
    let Some(row) = locked.first() else {
        return Ok(Vec::new());
    };
    let claim = rows::circuit(row)?.claim(limit);
    let due_before = match claim.only_due {
        true => now.as_millis(),
        false => i64::MAX,
    };
    let oldest = of(&unlocked(tx, OLDEST_IN_BACKLOG), destination)
        .bind(due_before)
        .bind(claim.limit);
    let claims = claim_each(tx, oldest, by, until, claim.is_probe).await?;
    let after = match claim.after(claims.len()) {
        BacklogState::Remains => return Ok(claims),
        BacklogState::Idle => of(IDLE, destination).bind(now + PROBE_RETRY),
        BacklogState::Empty => of(DELETE_UNUSED, destination),
    };
    tx.execute(after).await?;
    Ok(claims)
}

pub async fn expedite(
    tx: &mut Transaction<'_>,
    destination: &Destination,
) -> Result<(), StoreError> {
    let expedite = of(EXPEDITE, destination).bind(tx.now());
    tx.run(expedite).await
}

pub async fn release_probes(
    tx: &mut Transaction<'_>,
    by: Option<String>,
) -> Result<(), StoreError> {
    tx.run(Statement::new(RELEASE_PROBES).bind(by)).await
}

pub async fn purge(
    tx: &mut Transaction<'_>,
    failed_before: Timestamp,
    limit: usize,
) -> Result<u64, StoreError> {
    let purge = Statement::new(unlocked(tx, PURGE))
        .bind(failed_before)
        .bind(limit);
    tx.execute(purge).await
}

/// The statements whose cost must not grow with the backlogs of other destinations.
#[cfg(test)]
pub const STATEMENTS: [&str; 18] = [
    DUE_WORK,
    LOCK_OR_INSERT,
    CIRCUIT,
    UPDATE_CIRCUIT,
    CLOSE_CIRCUIT,
    CANCEL_PROBE,
    EXPEDITE,
    POSTPONE,
    IDLE_WITH_DUE,
    SCHEDULE_PROBE,
    DUE_WITH_BACKLOG,
    MOVE_TO_BACKLOG,
    LOCK_BACKLOG,
    OLDEST_IN_BACKLOG,
    IDLE,
    DELETE_UNUSED,
    EXPIRED_QUEUES,
    EXPIRE_MESSAGES,
];
