//! The outbox: messages in their queues, as statements of any database.
//!
//! A queue is what one receiver is still to be told about one subject. It is a row of its own, and
//! whoever adds a message to it or takes one from it locks that row: so two instances never send from
//! one queue at a time, and none is deleted while a message is being added. A queue that is held is due
//! when its holder should long have been done: if that one died, another takes it up then.
//!
//! What is posted to one URL has one *destination*, and a pace of its own there: see [`destinations`].

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use uuid::Uuid;

mod destinations;
#[cfg(test)]
mod plans;

use super::{
    MessageId, MessageQuery, MessageRecord, MessageState, StoreError,
    reading::{Statement, Value},
    rows::{self, Columns},
};
use crate::domain::{
    AlertKind, AlertNotice, DeliveryDecision, DeliveryPolicy, Destination, DestinationFailure,
    InstanceId, Message, ReceiverName, Sender, TaskId, Timestamp, destination_of,
};
pub use destinations::{GivenUp, Outlook, outlook, seen_ahead};

/// A queue that this instance holds, to try its first message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    pub receiver: ReceiverName,
    pub subject: Uuid,
    pub destination: Destination,
    /// Whether this is the one message that a destination which fails is asked by.
    pub is_probe: bool,
    /// Of its first message, with the one to come: the fence. No later holder has the same.
    pub tries: u32,
    /// When that was tried for the first time.
    pub since: Timestamp,
}

/// The first message of a queue.
#[derive(Clone, PartialEq, Debug)]
pub struct Head {
    pub id: Uuid,
    pub kind: String,
    pub url: Option<String>,
    pub body: String,
    pub created_at: Timestamp,
}

/// What was found of the first message of a queue.
#[derive(Clone, PartialEq, Debug)]
pub enum First {
    Message(Head),
    /// The queue is empty.
    None,
    /// It is there, and damaged: what of it, and how.
    Unreadable {
        id: Uuid,
        reason: String,
    },
    /// The place where it stands is damaged, so that nothing can be said or written of it.
    Lost(String),
}

/// How a queue that was held is let go.
#[derive(Clone, PartialEq, Debug)]
pub struct Settled {
    pub held: Held,
    pub how: Settlement,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Settlement {
    Tried {
        message: Uuid,
        decision: DeliveryDecision,
        /// Whether it waits in the backlog of its destination, where it is to be tried again.
        waits: bool,
    },
    /// Nothing was in it.
    Empty,
    /// Nothing was tried.
    HandedBack,
    /// Nothing was tried, because enough is under way to its destination: it goes into the backlog of that.
    Waits,
}

/// What the delivery loop asks for in one transaction.
#[derive(Clone, Debug, Default)]
pub struct Round {
    pub settled: Vec<Settled>,
    /// Destinations that failed, with how: of several failures the one that began last.
    pub failed: Vec<DestinationFailure>,
    /// Destinations that may have failed, and have answered.
    pub answered: Vec<Destination>,
    /// Destinations whose probe was not made.
    pub unprobed: Vec<Destination>,
    /// Destinations that there was more to give up for than one round does.
    pub giving_up: Vec<GivenUp>,
    /// Destinations whose backlog is looked at, and how many queues are taken from each at most. One that
    /// fails is probed, if its pause is over.
    pub wanted: Vec<(Destination, usize)>,
    /// Destinations that nothing can be posted to now, because enough is under way elsewhere.
    pub postponed: Vec<Destination>,
    /// How many queues that are due and in no backlog are taken at most.
    pub take: usize,
    /// Receivers whose dead letters may all be gone.
    pub mended: Vec<ReceiverName>,
    pub policy: DeliveryPolicy,
}

/// What a round came to.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    pub held: Vec<Held>,
    /// How many queues that were due went into the backlogs of their destinations.
    pub put_back: u64,
    /// Of the destinations that were wanted, those with no more in their backlog than was taken.
    pub exhausted: Vec<Destination>,
    /// Destinations that messages were given up for.
    pub given_up: Vec<GivenUp>,
}

/// A transaction, as this file needs it.
#[async_trait]
pub trait Session: Send {
    type Row: Columns + Send + Sync;

    /// How a SELECT locks its rows, waiting for nobody who holds one.
    const SKIP_LOCKED: &'static str;
    /// The same, for rows that others may lock in the same way and nobody may change.
    const SHARE_UNLOCKED: &'static str;

    /// Its time.
    fn at(&self) -> Timestamp;

    async fn fetch(&mut self, statement: Statement) -> Result<Vec<Self::Row>, StoreError>;
    /// How many rows it affected.
    async fn execute(&mut self, statement: Statement) -> Result<u64, StoreError>;
}

/// What the delivery loop and operators do with messages. As with leases, each call comes in a transaction of
/// its own.
#[async_trait]
pub trait Outbox: Send {
    /// Lets go of queues, then takes others, `by` whom, and until when they are held at the latest.
    async fn outbox_round(
        &mut self,
        round: &Round,
        by: &InstanceId,
        until: Timestamp,
        sender: &Sender,
    ) -> Result<Taken, StoreError>;
    /// Answers which of the messages are there and in a state for it.
    async fn handle_letters(
        &mut self,
        letter: Letter,
        ids: &[MessageId],
    ) -> Result<Vec<MessageId>, StoreError>;
    /// Lets go of the queues that `by` holds, or all that are held. Answers how many.
    async fn free_queues(&mut self, by: Option<&InstanceId>) -> Result<u64, StoreError>;
    /// Deletes up to `limit` dead letters that died before `died_before`.
    async fn purge_letters(
        &mut self,
        died_before: Timestamp,
        limit: usize,
    ) -> Result<u64, StoreError>;
    /// Forgets up to `limit` destinations that nothing waits for and that last failed before then.
    async fn purge_destinations(
        &mut self,
        failed_before: Timestamp,
        limit: usize,
    ) -> Result<u64, StoreError>;
}

/// Relies on queues_due. What has come due for a destination with a backlog is not taken: the statements of
/// [`destinations`] put it there.
const DUE: &str = r#"
WITH due AS MATERIALIZED (
    SELECT receiver, subject, destination FROM queues
    WHERE waiting = 0 AND due_at <= $1
    ORDER BY due_at LIMIT $2 {skip locked})
SELECT receiver, subject FROM due
WHERE (SELECT 1 FROM destinations WHERE destinations.destination = due.destination LIMIT 1) IS NULL"#;

/// One that was found and locked by [`DUE`], or in a backlog. By its key: PostgreSQL keeps the plan that it made
/// when there was next to nothing, and joined with what was found, it may read all queues for it.
const TAKE: &str = r#"
UPDATE queues
SET waiting = 0, locked_by = $3, tries = tries + 1, since = coalesce(since, $4), due_at = $5
WHERE receiver = $1 AND subject = $2
RETURNING receiver, subject, destination, tries, since"#;

/// Relies on messages_in_queue.
const HEAD: &str = r#"
SELECT id, kind, url, body, created_at FROM messages
WHERE receiver = $1 AND subject = $2 AND state = 'pending'
ORDER BY place, id LIMIT 1"#;

/// The row is locked from here on: what is added to the queue comes after. Relies on messages_in_queue.
const PASS: &str = r#"
UPDATE queues SET locked_by = NULL, tries = 0, since = NULL, error = NULL, due_at = $5,
    waits_since = coalesce((SELECT coalesce(pending_since, created_at) FROM messages
                            WHERE receiver = $1 AND subject = $2 AND state = 'pending'
                            ORDER BY place, id LIMIT 1), waits_since)
WHERE receiver = $1 AND subject = $2 AND locked_by = $3 AND tries = $4"#;

/// Only for a queue that [`PASS`] has locked. Relies on messages_in_queue.
const DROP_EMPTY: &str = r#"
DELETE FROM queues
WHERE receiver = $1 AND subject = $2
  AND NOT EXISTS (SELECT 1 FROM messages WHERE receiver = $1 AND subject = $2 AND state = 'pending')"#;

const TRY_AGAIN: &str = r#"
UPDATE queues SET locked_by = NULL, due_at = $5, error = $6, waiting = $7
WHERE receiver = $1 AND subject = $2 AND locked_by = $3 AND tries = $4"#;

const HAND_BACK: &str = r#"
UPDATE queues SET locked_by = NULL, tries = tries - 1, since = CASE WHEN tries > 1 THEN since END, due_at = $5,
    waiting = $6
WHERE receiver = $1 AND subject = $2 AND locked_by = $3 AND tries = $4"#;

const DELIVERED: &str = "DELETE FROM messages WHERE id = $1";

const BURY: &str = r#"
UPDATE messages SET state = 'dead', tries = $2, error = $3, died_at = $4
WHERE id = $1 AND state = 'pending'"#;

const INSERT: &str = r#"
INSERT INTO messages (id, receiver, subject, place, task_id, kind, url, body, created_at, state, tries)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'pending', 0)"#;

const ADD_TO_QUEUE: &str = r#"
INSERT INTO queues (receiver, subject, due_at, destination, waits_since, tries) VALUES ($1, $2, $3, $4, $3, 0)
ON CONFLICT (receiver, subject) DO UPDATE SET tries = queues.tries"#;

/// An operator asks: what waits for a later time is tried at once, and in a backlog first.
const HURRY: &str = r#"
UPDATE queues SET due_at = CASE waiting WHEN 0 THEN $3 ELSE 0 END
WHERE receiver = $1 AND subject = $2 AND locked_by IS NULL"#;

const REVIVE: &str = r#"
UPDATE messages SET state = 'pending', tries = 0, error = NULL, pending_since = $2
WHERE id = $1 AND state = 'dead'"#;

const DISCARD: &str = "DELETE FROM messages WHERE id = $1 AND state = 'dead'";

/// Everything that is held, or what one instance holds.
const FREE: &str = r#"
UPDATE queues SET locked_by = NULL, due_at = $1
WHERE locked_by IS NOT NULL AND locked_by = coalesce($2, locked_by)"#;

/// Relies on messages_died.
const PURGE: &str = r#"
DELETE FROM messages
WHERE id IN (SELECT id FROM messages
             WHERE died_at IS NOT NULL AND died_at < $1 AND state = 'dead'
             ORDER BY died_at LIMIT $2)"#;

/// Relies on alerts_unclosed_of_receiver.
const RAISE: &str = r#"
INSERT INTO alerts (id, receiver, kind, message, state, raised_at)
VALUES ($1, $2, $3, $4, 'open', $5)
ON CONFLICT DO NOTHING"#;

/// Relies on alerts_unclosed_of_receiver and messages_died_by_receiver.
const CLOSE: &str = r#"
UPDATE alerts SET state = 'closed', closed_at = $2
WHERE receiver = $1 AND state <> 'closed'
  AND NOT EXISTS (SELECT 1 FROM messages WHERE receiver = $1 AND died_at IS NOT NULL)
RETURNING id, kind, message, raised_at"#;

/// Relies on the primary key, or for dead letters of one receiver on messages_died_by_receiver.
const MESSAGES: &str = r#"
SELECT id, messages.receiver, task_id, kind, url, created_at, state, died_at,
       CASE WHEN first THEN queues.tries ELSE messages.tries END AS tries,
       CASE WHEN first THEN coalesce(queues.error, messages.error) ELSE messages.error END AS error,
       CASE WHEN first AND queues.waiting > 0 AND destinations.next_at > queues.due_at
            THEN destinations.next_at WHEN first THEN queues.due_at END AS due_at,
       {body}
FROM (SELECT messages.*,
             state = 'pending' AND id = (SELECT head.id FROM messages AS head
                                         WHERE head.receiver = messages.receiver
                                           AND head.subject = messages.subject AND head.state = 'pending'
                                         ORDER BY head.place, head.id LIMIT 1) AS first
      FROM messages) AS messages
LEFT JOIN queues ON queues.receiver = messages.receiver AND queues.subject = messages.subject
LEFT JOIN destinations ON destinations.destination = queues.destination
WHERE true"#;

fn destination(row: &impl Columns) -> Result<Destination, StoreError> {
    Ok(Destination::new(rows::text(row, "destination")?))
}

fn held(row: &impl Columns, is_probe: bool) -> Result<Held, StoreError> {
    Ok(Held {
        receiver: name(row)?,
        subject: rows::uuid(row, "subject")?,
        destination: destination(row)?,
        is_probe,
        tries: rows::number(row, "tries")?,
        since: rows::required(rows::time(row, "since")?, "since")?,
    })
}

pub fn name(row: &impl Columns) -> Result<ReceiverName, StoreError> {
    Ok(ReceiverName::new(rows::text(row, "receiver")?))
}

pub fn head(held: &Held) -> Statement {
    in_queue(HEAD, held)
}

pub fn first(row: Option<&impl Columns>) -> First {
    let Some(row) = row else {
        return First::None;
    };
    match (head_of(row), rows::uuid(row, "id")) {
        (Ok(head), _) => First::Message(head),
        (Err(error), Ok(id)) => First::Unreadable {
            id,
            reason: error.damage(),
        },
        (Err(error), Err(_)) => First::Lost(error.damage()),
    }
}

fn head_of(row: &impl Columns) -> Result<Head, StoreError> {
    Ok(Head {
        id: rows::uuid(row, "id")?,
        kind: rows::text(row, "kind")?,
        url: row.text("url")?,
        body: rows::text(row, "body")?,
        created_at: rows::required(rows::time(row, "created_at")?, "created_at")?,
    })
}

pub fn messages(query: &MessageQuery) -> Statement {
    let body = if query.with_body {
        "body"
    } else {
        "NULL AS body"
    };
    let mut statement = Statement::new(MESSAGES.replace("{body}", body));
    if let Some(id) = query.id {
        statement.push(" AND id = ?", id.0);
    }
    if let Some(state) = query.state {
        statement.push(" AND state = ?", state.as_str());
        if state == MessageState::Dead {
            // Said in full, so that the planner sees which index covers it.
            statement.sql.push_str(" AND died_at IS NOT NULL");
        }
    }
    if let Some(receiver) = &query.receiver {
        statement.push(" AND messages.receiver = ?", receiver.as_str());
    }
    if let Some(task) = query.task {
        statement.push(" AND task_id = ?", task.0);
    }
    if let Some(before) = query.before {
        statement.push(" AND id < ?", before.0);
    }
    statement.push(" ORDER BY id DESC LIMIT ?", query.limit);
    statement
}

pub fn message(row: &impl Columns) -> Result<MessageRecord, StoreError> {
    let state = rows::text(row, "state")?;
    let state =
        MessageState::parse(&state).ok_or_else(|| rows::corrupt(format!("state {state}")))?;
    Ok(MessageRecord {
        id: MessageId(rows::uuid(row, "id")?),
        receiver: name(row)?,
        task: row.uuid("task_id")?.map(TaskId),
        kind: rows::text(row, "kind")?,
        url: row.text("url")?,
        body: row.text("body")?,
        state,
        created_at: rows::required(rows::time(row, "created_at")?, "created_at")?,
        tries: rows::number(row, "tries")?,
        error: row.text("error")?,
        next_try_at: rows::time(row, "due_at")?,
        died_at: rows::time(row, "died_at")?,
    })
}

fn in_queue(sql: &str, held: &Held) -> Statement {
    Statement::new(sql)
        .bind(held.receiver.as_str())
        .bind(held.subject)
}

fn fenced(sql: &str, held: &Held, by: &InstanceId) -> Statement {
    in_queue(sql, held)
        .bind(by.as_str())
        .bind(i64::from(held.tries))
}

#[async_trait]
impl<S: Session> Outbox for S {
    async fn outbox_round(
        &mut self,
        round: &Round,
        by: &InstanceId,
        until: Timestamp,
        sender: &Sender,
    ) -> Result<Taken, StoreError> {
        let mut taken = Taken::default();
        let mut undeliverable = settle(self, round, by).await?;
        destinations::change(self, round).await?;
        taken.given_up = destinations::give_up(self, round, &mut undeliverable).await?;
        alert(self, undeliverable, &round.mended, sender).await?;
        // From here on nothing is waited for that another round has locked.
        destinations::postpone(self, &round.postponed).await?;
        if round.take > 0 {
            taken.put_back = destinations::put_back(self).await?;
        }
        for (destination, most) in &round.wanted {
            let found = destinations::take(self, destination, *most, by, until).await?;
            if found.len() < *most {
                taken.exhausted.push(destination.clone());
            }
            taken.held.extend(found);
        }
        if round.take > 0 {
            taken.held.extend(take(self, round.take, by, until).await?);
        }
        Ok(taken)
    }

    async fn handle_letters(
        &mut self,
        letter: Letter,
        ids: &[MessageId],
    ) -> Result<Vec<MessageId>, StoreError> {
        handle(self, letter, ids).await
    }

    async fn free_queues(&mut self, by: Option<&InstanceId>) -> Result<u64, StoreError> {
        let by_text = by.map(ToString::to_string);
        destinations::free(self, by_text.clone()).await?;
        let free = Statement::new(FREE)
            .bind(self.at().as_millis())
            .bind(Value::Text(by_text));
        self.execute(free).await
    }

    async fn purge_letters(
        &mut self,
        died_before: Timestamp,
        limit: usize,
    ) -> Result<u64, StoreError> {
        let purge = Statement::new(PURGE)
            .bind(died_before.as_millis())
            .bind(limit);
        self.execute(purge).await
    }

    async fn purge_destinations(
        &mut self,
        failed_before: Timestamp,
        limit: usize,
    ) -> Result<u64, StoreError> {
        destinations::purge(self, failed_before, limit).await
    }
}

/// Receivers that a message was given up for, each with why.
type Undeliverable = BTreeMap<ReceiverName, String>;

/// Lets go of queues.
async fn settle<S: Session>(
    tx: &mut S,
    round: &Round,
    by: &InstanceId,
) -> Result<Undeliverable, StoreError> {
    let now = tx.at();
    // In one order, so that instances do not wait for each other in a circle.
    let mut settled: Vec<_> = round.settled.iter().collect();
    settled.sort_unstable_by_key(|settled| (&settled.held.receiver, settled.held.subject));
    let mut undeliverable = Undeliverable::new();
    for Settled { held, how } in settled {
        let back = |waiting: bool| {
            fenced(HAND_BACK, held, by)
                .bind(now.as_millis())
                .bind(i64::from(waiting))
        };
        match how {
            Settlement::Tried {
                message,
                decision,
                waits,
            } => match decision {
                DeliveryDecision::Delivered => {
                    tx.execute(Statement::new(DELIVERED).bind(*message)).await?;
                    pass(tx, held, by, now).await?;
                }
                DeliveryDecision::Dead { reason } => {
                    let bury = Statement::new(BURY)
                        .bind(*message)
                        .bind(i64::from(held.tries))
                        .bind(reason.as_str())
                        .bind(now.as_millis());
                    if tx.execute(bury).await? > 0 {
                        undeliverable.insert(held.receiver.clone(), reason.clone());
                    }
                    pass(tx, held, by, now).await?;
                }
                DeliveryDecision::Retry { at, reason } => {
                    let again = fenced(TRY_AGAIN, held, by)
                        .bind(at.as_millis())
                        .bind(reason.as_str())
                        .bind(i64::from(*waits));
                    tx.execute(again).await?;
                }
            },
            Settlement::Empty => pass(tx, held, by, now).await?,
            Settlement::HandedBack => drop(tx.execute(back(false)).await?),
            Settlement::Waits => drop(tx.execute(back(true)).await?),
        }
    }
    Ok(undeliverable)
}

/// Raises and closes the alerts that are due.
async fn alert<S: Session>(
    tx: &mut S,
    undeliverable: Undeliverable,
    mended: &[ReceiverName],
    sender: &Sender,
) -> Result<(), StoreError> {
    let now = tx.at();
    for (receiver, reason) in undeliverable {
        raise(tx, &receiver, &reason, now, sender).await?;
    }
    for receiver in mended {
        close(tx, receiver, now, sender).await?;
    }
    Ok(())
}

async fn take<S: Session>(
    tx: &mut S,
    most: usize,
    by: &InstanceId,
    until: Timestamp,
) -> Result<Vec<Held>, StoreError> {
    let now = tx.at();
    let due = Statement::new(DUE.replace("{skip locked}", S::SKIP_LOCKED))
        .bind(now.as_millis())
        .bind(most);
    take_each(tx, due, by, until, false).await
}

/// Takes the queues that a statement finds and locks.
async fn take_each<S: Session>(
    tx: &mut S,
    found: Statement,
    by: &InstanceId,
    until: Timestamp,
    is_probe: bool,
) -> Result<Vec<Held>, StoreError> {
    let now = tx.at();
    let mut taken = Vec::new();
    for row in tx.fetch(found).await? {
        let take = of_queue(TAKE, &row)?
            .bind(by.as_str())
            .bind(now.as_millis())
            .bind(until.as_millis());
        for row in tx.fetch(take).await? {
            taken.push(held(&row, is_probe)?);
        }
    }
    Ok(taken)
}

/// A statement about the queue of this row.
fn of_queue(sql: &str, row: &impl Columns) -> Result<Statement, StoreError> {
    Ok(Statement::new(sql)
        .bind(rows::text(row, "receiver")?)
        .bind(rows::uuid(row, "subject")?))
}

/// The first message is done with: the next one's turn, if there is one.
async fn pass<S: Session>(
    tx: &mut S,
    held: &Held,
    by: &InstanceId,
    now: Timestamp,
) -> Result<(), StoreError> {
    let passed = tx.execute(fenced(PASS, held, by).bind(now.as_millis()));
    if passed.await? > 0 {
        tx.execute(in_queue(DROP_EMPTY, held)).await?;
    }
    Ok(())
}

const UNDELIVERABLE: &str = AlertKind::MessageUndeliverable.as_str();

async fn raise<S: Session>(
    tx: &mut S,
    receiver: &ReceiverName,
    reason: &str,
    now: Timestamp,
    sender: &Sender,
) -> Result<(), StoreError> {
    let message = format!("messages to {receiver} cannot be delivered: {reason}");
    let alert = AlertNotice {
        receiver: Some(receiver.clone()),
        ..AlertNotice::raised(Uuid::now_v7(), UNDELIVERABLE, &message, now)
    };
    let raise = Statement::new(RAISE)
        .bind(alert.id)
        .bind(receiver.as_str())
        .bind(UNDELIVERABLE)
        .bind(message)
        .bind(now.as_millis());
    if tx.execute(raise).await? > 0 {
        add(tx, &sender.alert(&alert, 0, now, Uuid::now_v7)).await?;
    }
    Ok(())
}

async fn close<S: Session>(
    tx: &mut S,
    receiver: &ReceiverName,
    now: Timestamp,
    sender: &Sender,
) -> Result<(), StoreError> {
    let close = Statement::new(CLOSE)
        .bind(receiver.as_str())
        .bind(now.as_millis());
    for row in tx.fetch(close).await? {
        let alert = AlertNotice {
            receiver: Some(receiver.clone()),
            ..closed_alert(&row, now)?
        };
        add(tx, &sender.alert(&alert, 1, now, Uuid::now_v7)).await?;
    }
    Ok(())
}

/// An alert that a statement has just closed; whom it was about is known to the caller.
pub fn closed_alert(row: &impl Columns, now: Timestamp) -> Result<AlertNotice, StoreError> {
    let (kind, message) = (rows::text(row, "kind")?, rows::text(row, "message")?);
    let raised_at = rows::required(rows::time(row, "raised_at")?, "raised_at")?;
    let raised = AlertNotice::raised(rows::uuid(row, "id")?, &kind, &message, raised_at);
    Ok(raised.closed(now))
}

/// Adds a few messages. Those of a batch are added by its own statements.
pub async fn add<S: Session>(tx: &mut S, messages: &[Message]) -> Result<(), StoreError> {
    for message in messages {
        let insert = Statement::new(INSERT)
            .bind(message.id)
            .bind(message.receiver.as_str())
            .bind(message.subject)
            .bind(message.place)
            .bind(Value::MaybeUuid(message.task.map(|task| task.0)))
            .bind(message.kind.as_str())
            .bind(Value::Text(message.url.clone()))
            .bind(message.body.as_str())
            .bind(message.at.as_millis());
        tx.execute(insert).await?;
        let queue = Statement::new(ADD_TO_QUEUE)
            .bind(message.receiver.as_str())
            .bind(message.subject)
            .bind(message.at.as_millis())
            .bind(message.destination().as_str());
        tx.execute(queue).await?;
    }
    Ok(())
}

/// What an operator does with a message that is not delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Letter {
    /// Tried again, from now on as if for the first time; one that is not dead, at once.
    Redeliver,
    /// A dead one is deleted.
    Discard,
}

async fn handle<S: Session>(
    tx: &mut S,
    letter: Letter,
    ids: &[MessageId],
) -> Result<Vec<MessageId>, StoreError> {
    let now = tx.at();
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        let place = Statement::new("SELECT receiver, subject, url FROM messages WHERE id = $1");
        for row in tx.fetch(place.bind(id.0)).await? {
            let (receiver, subject) = (name(&row)?, rows::uuid(&row, "subject")?);
            let destination = destination_of(&receiver, row.text("url")?.as_deref());
            found.push((receiver, subject, destination, *id));
        }
    }
    // In one order, so that instances do not wait for each other in a circle.
    found.sort_unstable_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    let mut done = Vec::with_capacity(found.len());
    let mut hurried_to = BTreeSet::new();
    for (receiver, subject, destination, id) in found {
        let queue = |sql: &str| {
            Statement::new(sql)
                .bind(receiver.as_str())
                .bind(subject)
                .bind(now.as_millis())
        };
        match letter {
            Letter::Redeliver => {
                let add = queue(ADD_TO_QUEUE).bind(destination.as_str());
                tx.execute(add).await?;
                let revive = Statement::new(REVIVE).bind(id.0).bind(now.as_millis());
                let revived = tx.execute(revive).await? > 0;
                let hurried = tx.execute(queue(HURRY)).await? > 0;
                if revived || hurried {
                    done.push(id);
                    hurried_to.insert(destination);
                }
            }
            Letter::Discard => {
                if tx.execute(Statement::new(DISCARD).bind(id.0)).await? > 0 {
                    done.push(id);
                }
            }
        }
    }
    for destination in &hurried_to {
        destinations::hurry(tx, destination).await?;
    }
    Ok(done)
}
