//! Destinations: what is on record of where messages are posted, as statements of any database.
//!
//! Most messages never need this. A destination has a row only while it fails, or while more waits for it
//! than may be under way: what waits is its *backlog*, and stands in no index that is searched for what is
//! due. So a look for what is due costs the same whatever waits elsewhere, and each queue is moved once.
//!
//! Whoever puts queues into a backlog holds a lock on the destination's row meanwhile, and whoever finds the
//! backlog empty looks again under a lock: so no backlog is ever without a row that leads to it. These locks
//! come after those of queues, in the order of destinations; later ones are taken only where nobody has to be
//! waited for.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    DROP_EMPTY, Held, Round, Session, Settlement, Undeliverable, destination, name, of_queue,
    take_each,
};
use crate::{
    domain::{Circuit, Destination, DestinationFailure, InstanceId, ReceiverName, Span, Timestamp},
    store::{
        StoreError,
        reading::{Statement, Value},
        rows::{self, Columns},
    },
};

/// When a backlog is looked at again that could have been taken from just now: by another instance, too.
const LOOK_AGAIN: Span = Span::from_millis(500);
/// When a probe is tried again that another transaction was in the way of.
const PROBE_AGAIN: Span = Span::from_millis(100);
/// The most queues that one round moves into backlogs, or gives up for one destination.
const MOST: usize = 200;

/// Relies on destinations_failing, destinations_behind and queues_due, each read in its order as far as it is needed;
/// the mended, where they are asked for, on alerts_unclosed_of_receiver and messages_died_by_receiver. One statement
/// for all: this is what an instance at rest asks again and again.
const OUTLOOK: &str = r#"
SELECT 'failing' AS kind, destination, receiver, next_at
FROM (SELECT destination, receiver, next_at FROM destinations
      WHERE failures > 0 AND next_at IS NOT NULL ORDER BY next_at LIMIT $1) AS failing
UNION ALL
SELECT 'behind', destination, receiver, next_at
FROM (SELECT destination, receiver, next_at FROM destinations
      WHERE failures = 0 AND next_at IS NOT NULL ORDER BY next_at LIMIT $1) AS behind
UNION ALL
SELECT 'due', NULL, NULL, (SELECT due_at FROM queues WHERE waiting = 0 ORDER BY due_at LIMIT 1)
UNION ALL
SELECT 'mended', NULL, receiver, NULL FROM alerts
WHERE $2 = 1 AND receiver IS NOT NULL AND state <> 'closed'
  AND NOT EXISTS (SELECT 1 FROM messages
                  WHERE messages.receiver = alerts.receiver AND died_at IS NOT NULL)"#;

/// The row is there and locked from here on.
const ENSURE: &str = r#"
INSERT INTO destinations (destination, receiver, failures, changed_at, paused_until, next_at)
VALUES ($1, $2, 0, 0, $3, $3)
ON CONFLICT (destination) DO UPDATE SET next_at = coalesce(destinations.next_at, destinations.paused_until)"#;

const PACE: &str = r#"
SELECT failures, failing_since, changed_at, paused_until FROM destinations WHERE destination = $1"#;

/// Relies on queues_waiting. Only for a row that [`ENSURE`] has locked.
const SET_PACE: &str = r#"
UPDATE destinations
SET failures = $2, failing_since = $3, changed_at = $4, paused_until = $5, locked_by = NULL,
    next_at = CASE WHEN EXISTS (SELECT 1 FROM queues WHERE destination = $1 AND waiting = 1) THEN $5 END
WHERE destination = $1"#;

const ANSWERED: &str = r#"
UPDATE destinations
SET failures = 0, failing_since = NULL, changed_at = $2, paused_until = $2, next_at = $2, locked_by = NULL
WHERE destination = $1 AND failures > 0"#;

const NOT_PROBED: &str = r#"
UPDATE destinations SET next_at = paused_until, locked_by = NULL
WHERE destination = $1 AND locked_by IS NOT NULL"#;

/// Those who probe no more.
const FREE: &str = r#"
UPDATE destinations SET next_at = paused_until, locked_by = NULL
WHERE locked_by IS NOT NULL AND locked_by = coalesce($1, locked_by)"#;

/// An operator asks: it is probed at once.
const HURRY: &str = r#"
UPDATE destinations SET paused_until = $2, next_at = CASE WHEN next_at IS NOT NULL THEN $2 END
WHERE destination = $1 AND failures > 0 AND locked_by IS NULL"#;

const POSTPONE: &str = r#"
UPDATE destinations SET next_at = $3
WHERE destination = $1
  AND destination IN (SELECT destination FROM destinations
                      WHERE destination = $1 AND next_at <= $2 {skip locked})"#;

/// Destinations at rest that something has come due for. Relies on queues_due. In this form each row is looked
/// up by its key, whatever the planner believes of the table: here and in what follows.
const RESTING: &str = r#"
WITH due AS MATERIALIZED (
    SELECT destination FROM queues WHERE waiting = 0 AND due_at <= $1 ORDER BY due_at LIMIT $2)
SELECT destination FROM due
WHERE (SELECT 1 FROM destinations
       WHERE destinations.destination = due.destination
         AND (next_at IS NULL OR next_at > paused_until AND failures > 0 AND locked_by IS NULL) LIMIT 1) = 1"#;

const WAKE: &str = r#"
UPDATE destinations SET next_at = paused_until
WHERE destination = $1
  AND destination IN (SELECT destination FROM destinations
                      WHERE destination = $1
                        AND (next_at IS NULL OR next_at > paused_until AND failures > 0 AND locked_by IS NULL)
                      {skip locked})"#;

/// Relies on queues_due.
const KNOWN: &str = r#"
WITH due AS MATERIALIZED (
    SELECT receiver, subject, destination FROM queues
    WHERE waiting = 0 AND due_at <= $1 ORDER BY due_at LIMIT $2 {skip locked})
SELECT receiver, subject FROM due
WHERE (SELECT next_at FROM destinations
       WHERE destinations.destination = due.destination AND next_at IS NOT NULL
       LIMIT 1 {share unlocked}) IS NOT NULL"#;

/// One that [`KNOWN`] has locked, with its destination.
const PUT_BACK: &str =
    "UPDATE queues SET waiting = 1, locked_by = NULL WHERE receiver = $1 AND subject = $2";

/// One probe at a time, whoever makes it. What waits for a destination that answers is shared by all
/// instances: it stays due for the others until one has looked at it.
const VISIT: &str = r#"
UPDATE destinations
SET next_at = CASE WHEN failures > 0 THEN $3 WHEN next_at > $2 THEN next_at ELSE $4 END,
    locked_by = CASE WHEN failures > 0 THEN $5 END
WHERE destination = $1
  AND destination IN (SELECT destination FROM destinations
                      WHERE destination = $1 AND next_at IS NOT NULL AND (failures = 0 OR next_at <= $2) {skip locked})
RETURNING failures"#;

/// Relies on queues_waiting.
const OLDEST: &str = r#"
SELECT receiver, subject FROM queues
WHERE destination = $1 AND waiting = 1 AND due_at <= $2
ORDER BY due_at LIMIT $3 {skip locked}"#;

/// Nothing is due in the backlog: until something is, or for good. Only for a row that [`VISIT`] has locked.
/// Relies on queues_waiting.
const REST: &str = r#"
UPDATE destinations
SET locked_by = NULL,
    next_at = (SELECT CASE WHEN due_at > $2 THEN due_at ELSE $2 END FROM queues
               WHERE destination = $1 AND waiting = 1 ORDER BY due_at LIMIT 1)
WHERE destination = $1"#;

/// Only for a row that [`VISIT`] has locked. Relies on queues_waiting.
const FORGET: &str = r#"
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
const LONGEST: &str = r#"
SELECT receiver, subject, tries FROM queues
WHERE destination = $1 AND waiting = 1 AND waits_since <= $2
ORDER BY waits_since LIMIT $3 {skip locked}"#;

/// The first message of a queue was tried as often as the queue says, those after it never. Relies on
/// messages_in_queue.
const GIVE_UP: &str = r#"
UPDATE messages
SET state = 'dead', error = $4, died_at = $5,
    tries = CASE WHEN id = (SELECT head.id FROM messages AS head
                            WHERE head.receiver = $1 AND head.subject = $2 AND head.state = 'pending'
                            ORDER BY head.place, head.id LIMIT 1) THEN $6 ELSE 0 END
WHERE receiver = $1 AND subject = $2 AND state = 'pending' AND coalesce(pending_since, created_at) <= $3"#;

/// One with messages that have not had their time. Relies on messages_in_queue.
const GOES_ON: &str = r#"
UPDATE queues
SET tries = 0, since = NULL, error = NULL, due_at = $3,
    waits_since = coalesce((SELECT min(coalesce(pending_since, created_at)) FROM messages
                            WHERE receiver = $1 AND subject = $2 AND state = 'pending'), $3)
WHERE receiver = $1 AND subject = $2"#;

/// What is known ahead of a round.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outlook {
    /// Destinations that fail and may be probed now, each with its receiver.
    pub failing: Vec<(Destination, ReceiverName)>,
    /// Those that answer and have a backlog.
    pub behind: Vec<(Destination, ReceiverName)>,
    /// Whether a queue outside of any backlog is due.
    pub is_due: bool,
    /// When something comes due next.
    pub next_at: Option<Timestamp>,
    /// Receivers with an alert whose dead letters are gone: delivered after all, discarded or purged.
    pub mended: Vec<ReceiverName>,
}

impl Outlook {
    /// Whether there may be more destinations that something can be done for now.
    pub fn is_full(&self, most: usize) -> bool {
        self.failing.len() >= most || self.behind.len() >= most
    }
}

/// A destination that messages were given up for.
#[derive(Clone, PartialEq, Debug)]
pub struct GivenUp {
    pub destination: Destination,
    pub reason: String,
    pub messages: u64,
    /// Whether there may be more than one round gives up.
    pub more: bool,
}

/// At most so many destinations of each kind.
pub fn outlook(most: usize, with_mended: bool) -> Statement {
    Statement::new(OUTLOOK)
        .bind(most)
        .bind(i64::from(with_mended))
}

pub fn seen_ahead(found: &[impl Columns], now: Timestamp) -> Result<Outlook, StoreError> {
    let mut outlook = Outlook::default();
    for row in found {
        let kind = rows::text(row, "kind")?;
        if kind == "mended" {
            outlook.mended.push(name(row)?);
            continue;
        }
        let Some(next_at) = rows::time(row, "next_at")? else {
            continue;
        };
        if next_at > now {
            outlook.next_at = Some(outlook.next_at.map_or(next_at, |next| next.min(next_at)));
            continue;
        }
        match &*kind {
            "failing" => outlook.failing.push((destination(row)?, name(row)?)),
            "behind" => outlook.behind.push((destination(row)?, name(row)?)),
            _ => outlook.is_due = true,
        }
    }
    Ok(outlook)
}

fn of(sql: &str, destination: &Destination) -> Statement {
    Statement::new(sql).bind(destination.as_str())
}

fn unlocked<S: Session>(sql: &str) -> String {
    sql.replace("{skip locked}", S::SKIP_LOCKED)
        .replace("{share unlocked}", S::SHARE_UNLOCKED)
}

/// What a round changes of one destination.
#[derive(Default)]
struct Change<'r> {
    has_backlog: Option<&'r ReceiverName>,
    failure: Option<&'r DestinationFailure>,
    has_answered: bool,
    is_unprobed: bool,
}

/// Notes how destinations fared, and which have a backlog now.
pub async fn change<S: Session>(tx: &mut S, round: &Round) -> Result<(), StoreError> {
    let mut changes: BTreeMap<&Destination, Change<'_>> = BTreeMap::new();
    for settled in &round.settled {
        if let Settlement::Waits | Settlement::Tried { waits: true, .. } = settled.how {
            let held = &settled.held;
            changes.entry(&held.destination).or_default().has_backlog = Some(&held.receiver);
        }
    }
    for failure in &round.failed {
        changes.entry(&failure.destination).or_default().failure = Some(failure);
    }
    for destination in &round.answered {
        changes.entry(destination).or_default().has_answered = true;
    }
    for destination in &round.unprobed {
        changes.entry(destination).or_default().is_unprobed = true;
    }
    let now = tx.at();
    for (destination, change) in changes {
        let receiver = change.failure.map(|failure| &failure.receiver);
        if let Some(receiver) = receiver.or(change.has_backlog) {
            let ensure = of(ENSURE, destination)
                .bind(receiver.as_str())
                .bind((now + LOOK_AGAIN).as_millis());
            tx.execute(ensure).await?;
        }
        if change.has_answered {
            let answered = of(ANSWERED, destination).bind(now.as_millis());
            tx.execute(answered).await?;
        } else if let Some(failure) = change.failure {
            fail(tx, failure, round).await?;
        } else if change.is_unprobed {
            tx.execute(of(NOT_PROBED, destination)).await?;
        }
    }
    Ok(())
}

async fn fail<S: Session>(
    tx: &mut S,
    failure: &DestinationFailure,
    round: &Round,
) -> Result<(), StoreError> {
    let now = tx.at();
    let before = pace(tx, &failure.destination).await?;
    let after = before.and_then(|pace| pace.after(failure, &round.policy, now));
    let Some(after) = after else {
        tx.execute(of(NOT_PROBED, &failure.destination)).await?;
        return Ok(());
    };
    let set = of(SET_PACE, &failure.destination)
        .bind(i64::from(after.failures))
        .bind(Value::Integer(
            after.failing_since.map(Timestamp::as_millis),
        ))
        .bind(after.changed_at.as_millis())
        .bind(after.paused_until.as_millis());
    tx.execute(set).await?;
    Ok(())
}

async fn pace<S: Session>(
    tx: &mut S,
    destination: &Destination,
) -> Result<Option<Circuit>, StoreError> {
    let found = tx.fetch(of(PACE, destination)).await?;
    let Some(row) = found.first() else {
        return Ok(None);
    };
    let time = |column| rows::required(rows::time(row, column)?, column);
    Ok(Some(Circuit {
        failures: rows::number(row, "failures")?,
        failing_since: rows::time(row, "failing_since")?,
        changed_at: time("changed_at")?,
        paused_until: time("paused_until")?,
    }))
}

/// Gives up what has waited for destinations that have failed for all of its time, many messages at once.
pub async fn give_up<S: Session>(
    tx: &mut S,
    round: &Round,
    undeliverable: &mut Undeliverable,
) -> Result<Vec<GivenUp>, StoreError> {
    let again = round.giving_up.iter();
    let again = again.map(|given_up| (&given_up.destination, given_up.reason.as_str()));
    let failed = round.failed.iter();
    let failed = failed.map(|failure| (&failure.destination, failure.reason.as_str()));
    let reasons: BTreeMap<_, _> = again.chain(failed).collect();
    let mut given_up = Vec::new();
    for (destination, reason) in reasons {
        let pace = pace(tx, destination).await?;
        let since = pace.and_then(|pace| pace.gives_up_since(&round.policy, tx.at()));
        if let Some(since) = since {
            let within = round.policy.give_up_after;
            let reason = format!("{reason}; no message was taken there within {within}");
            let done = bury(tx, destination, since, reason, undeliverable).await?;
            given_up.extend(done);
        }
    }
    Ok(given_up)
}

async fn bury<S: Session>(
    tx: &mut S,
    destination: &Destination,
    since: Timestamp,
    reason: String,
    undeliverable: &mut Undeliverable,
) -> Result<Option<GivenUp>, StoreError> {
    let now = tx.at();
    let longest = of(&unlocked::<S>(LONGEST), destination)
        .bind(since.as_millis())
        .bind(MOST);
    let longest = tx.fetch(longest).await?;
    if longest.is_empty() {
        return Ok(None);
    }
    let mut messages = 0;
    for queue in &longest {
        let give_up = of_queue(GIVE_UP, queue)?
            .bind(since.as_millis())
            .bind(reason.as_str())
            .bind(now.as_millis())
            .bind(rows::number::<i64>(queue, "tries")?);
        messages += tx.execute(give_up).await?;
        if tx.execute(of_queue(DROP_EMPTY, queue)?).await? == 0 {
            let goes_on = of_queue(GOES_ON, queue)?.bind(now.as_millis());
            tx.execute(goes_on).await?;
        }
    }
    if messages > 0 {
        let receivers: Result<BTreeSet<_>, _> = longest.iter().map(name).collect();
        let receivers = receivers?.into_iter();
        undeliverable.extend(receivers.map(|receiver| (receiver, reason.clone())));
    }
    Ok(Some(GivenUp {
        destination: destination.clone(),
        reason,
        messages,
        more: longest.len() == MOST,
    }))
}

pub async fn postpone<S: Session>(
    tx: &mut S,
    destinations: &[Destination],
) -> Result<(), StoreError> {
    let now = tx.at();
    for destination in destinations {
        let postpone = of(&unlocked::<S>(POSTPONE), destination)
            .bind(now.as_millis())
            .bind((now + LOOK_AGAIN).as_millis());
        tx.execute(postpone).await?;
    }
    Ok(())
}

/// Puts what has come due for destinations with a row into their backlogs.
pub async fn put_back<S: Session>(tx: &mut S) -> Result<u64, StoreError> {
    let now = tx.at().as_millis();
    let resting = Statement::new(RESTING).bind(now).bind(MOST);
    let resting: Result<BTreeSet<_>, _> =
        tx.fetch(resting).await?.iter().map(destination).collect();
    for destination in resting? {
        tx.execute(of(&unlocked::<S>(WAKE), &destination)).await?;
    }
    let known = Statement::new(unlocked::<S>(KNOWN)).bind(now).bind(MOST);
    let mut put_back = 0;
    for row in tx.fetch(known).await? {
        put_back += tx.execute(of_queue(PUT_BACK, &row)?).await?;
    }
    Ok(put_back)
}

/// Takes from a backlog: one queue of a destination that fails, if its pause is over; else up to `most`, also
/// those whose own time has not come. They failed with their destination.
pub async fn take<S: Session>(
    tx: &mut S,
    destination: &Destination,
    most: usize,
    by: &InstanceId,
    until: Timestamp,
) -> Result<Vec<Held>, StoreError> {
    let now = tx.at();
    let visit = of(&unlocked::<S>(VISIT), destination)
        .bind(now.as_millis())
        .bind(until.as_millis())
        .bind((now + LOOK_AGAIN).as_millis())
        .bind(by.as_str());
    let visited = tx.fetch(visit).await?;
    let Some(row) = visited.first() else {
        return Ok(Vec::new());
    };
    let is_probe = rows::number::<i64>(row, "failures")? > 0;
    let (due, most) = match is_probe {
        true => (now.as_millis(), 1),
        false => (i64::MAX, most),
    };
    let oldest = of(&unlocked::<S>(OLDEST), destination).bind(due).bind(most);
    let taken = take_each(tx, oldest, by, until, is_probe).await?;
    if taken.len() < most {
        let rest = match is_probe {
            true => of(REST, destination).bind((now + PROBE_AGAIN).as_millis()),
            false => of(FORGET, destination),
        };
        tx.execute(rest).await?;
    }
    Ok(taken)
}

pub async fn hurry<S: Session>(tx: &mut S, destination: &Destination) -> Result<(), StoreError> {
    let hurry = of(HURRY, destination).bind(tx.at().as_millis());
    tx.execute(hurry).await?;
    Ok(())
}

pub async fn free<S: Session>(tx: &mut S, by: Option<String>) -> Result<(), StoreError> {
    tx.execute(Statement::new(FREE).bind(Value::Text(by)))
        .await?;
    Ok(())
}

pub async fn purge<S: Session>(
    tx: &mut S,
    failed_before: Timestamp,
    limit: usize,
) -> Result<u64, StoreError> {
    let purge = Statement::new(unlocked::<S>(PURGE))
        .bind(failed_before.as_millis())
        .bind(limit);
    tx.execute(purge).await
}

/// Those whose cost must not grow with what waits elsewhere.
#[cfg(test)]
pub const STATEMENTS: [&str; 18] = [
    OUTLOOK, ENSURE, PACE, SET_PACE, ANSWERED, NOT_PROBED, HURRY, POSTPONE, RESTING, WAKE, KNOWN,
    PUT_BACK, VISIT, OLDEST, REST, FORGET, LONGEST, GIVE_UP,
];
