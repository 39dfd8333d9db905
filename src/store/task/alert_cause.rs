//! The alerts of causes: all steps that fail at one agent for one cause have one alert.
//!
//! The row of a cause stands for the rows of its steps, which name it in `part_of`. Only the rows of the steps say what
//! needs an operator: they are counted when the number is requested, so that transactions do not wait for each other to
//! change it.
//!
//! Locks: a save takes the locks of the causes of its raised alerts after those of its tasks, in the order of kinds and
//! causes. It shares them with other saves, and with transactions that acknowledge a cause or save its count, so no
//! transaction waits however many steps fail. Then it closes causes, and skips those that others have locked:
//! [`Store::maintain_causes`] finds them. A transaction that has locked a cause waits only for later causes and for
//! queues of messages.
//!
//! [`Store::maintain_causes`]: crate::store::Store::maintain_causes

#[cfg(test)]
mod plans;
mod upkeep;

use std::collections::{BTreeMap, BTreeSet};

pub use upkeep::{CausesSeen, UnclosedCause};
use uuid::Uuid;

use crate::domain::{
    message::{AlertNotice, CauseVersion, Message, Sender},
    task::{AlertCause, AlertChange, AlertKind, BEFORE_WORDS, FirstFailure, MOST_WORDED},
    values::{AgentName, Timestamp},
};
use crate::{
    chance,
    store::{
        Batch, COUNTED_AT_ONCE, StoreError, Transaction,
        error::corrupt,
        rows::{Columns, Row},
        statement::Statement,
    },
};

/// The most attempts to join a cause that other instances close and raise at the same time.
const JOINS: u32 = 20;

/// Relies on alerts_unclosed_of_cause.
const FIND: &str = "SELECT id FROM alerts WHERE kind = $1 AND cause = $2 AND cause IS NOT NULL AND state <> 'closed'";

/// For each item of a list, which has a number, a kind, the text of a cause, and two other texts: returns whether the
/// alert of the cause is unclosed, and how many are between the two texts, up to a limit. Relies on
/// alerts_unclosed_of_cause.
const LOOK: &str = r#"
SELECT CAST(item.value ->> 0 AS bigint) AS number,
       (SELECT count(*) FROM (
            SELECT 1 AS one FROM alerts
            WHERE kind = item.value ->> 1 AND cause = item.value ->> 2 AND cause IS NOT NULL AND state <> 'closed') AS same)
       AS is_known,
       (SELECT count(*) FROM (
            SELECT 1 AS one FROM alerts
            WHERE kind = item.value ->> 1 AND cause > item.value ->> 3 AND cause < item.value ->> 4 AND cause IS NOT NULL
              AND state <> 'closed'
            LIMIT $2) AS others)
       AS others
FROM {items}"#;

const RAISE: &str = r#"
INSERT INTO alerts (id, kind, message, state, raised_at, agent, cause, first, members, peak, announced)
VALUES ($1, $2, $3, 'open', $4, $5, $6, $7, 1, 1, 1)
ON CONFLICT DO NOTHING"#;

/// Relies on alerts_unclosed_parts.
const ANY_PART: &str = r#"
SELECT id FROM alerts WHERE part_of = $1 AND part_of IS NOT NULL AND state <> 'closed'
ORDER BY part_of, id LIMIT 1"#;

/// Counts a step that failed again only once. Relies on alerts_parts.
const COUNT_ALL: &str = r#"
SELECT count(*) AS count FROM (
    SELECT DISTINCT task_id, idx FROM (
        SELECT task_id, idx FROM alerts WHERE part_of = $1 AND part_of IS NOT NULL LIMIT $2) AS looked_at) AS counted"#;

/// Relies on alerts_unclosed_parts.
const CLOSE: &str = r#"
UPDATE alerts SET state = 'closed', closed_at = $2, peak = CASE WHEN peak < $3 THEN $3 ELSE peak END
WHERE id = $1 AND state <> 'closed' AND NOT EXISTS (
    SELECT 1 FROM alerts AS part
    WHERE part.part_of = $1 AND part.part_of IS NOT NULL AND part.state <> 'closed')
RETURNING id, kind, message, raised_at, agent, cause, first, peak AS count"#;

/// A kind, and the text of a cause.
type CauseKey = (&'static str, String);

/// The alerts of the causes for which a save raises alerts. They are locked until it ends.
#[derive(Default)]
pub struct JoinedCauses {
    joined: BTreeMap<CauseKey, JoinedCause>,
    /// The causes that join their general one, which has no words of a service; each with the general one.
    general: BTreeMap<CauseKey, CauseKey>,
}

struct JoinedCause {
    id: Uuid,
    /// If this save has raised the alert: its notice, and the number of its steps so far.
    raised: Option<(AlertNotice, u64)>,
}

impl JoinedCauses {
    /// Returns the alert of the cause, for a step that is part of it.
    pub fn id(&self, kind: AlertKind, cause: &AlertCause) -> Option<Uuid> {
        let joined = self.joined.get(&self.key(kind, cause));
        joined.map(|joined| joined.id)
    }

    /// Returns whether the steps of the cause have an alert of their own, rather than that of the general cause.
    pub fn has_words(&self, kind: AlertKind, cause: &AlertCause) -> bool {
        let key = (kind.as_str(), cause.text.clone());
        !self.general.contains_key(&key)
    }

    fn key(&self, kind: AlertKind, cause: &AlertCause) -> CauseKey {
        let key = (kind.as_str(), cause.text.clone());
        self.general.get(&key).cloned().unwrap_or(key)
    }

    pub fn add(&mut self, kind: AlertKind, cause: &AlertCause) {
        let key = self.key(kind, cause);
        let joined = self.joined.get_mut(&key);
        if let Some(JoinedCause {
            raised: Some((_, count)),
            ..
        }) = joined
        {
            *count += 1;
        }
    }
}

impl Transaction<'_> {
    /// Raises and locks the alerts of the causes for which the batch raises alerts.
    pub(in crate::store) async fn join_causes(
        &mut self,
        batch: &Batch,
    ) -> Result<JoinedCauses, StoreError> {
        let mut found = JoinedCauses {
            general: self.causes_without_room(batch).await?,
            ..JoinedCauses::default()
        };
        let mut first: BTreeMap<CauseKey, (AlertCause, AlertNotice)> = BTreeMap::new();
        for change in &batch.changes {
            for (_, alert) in &change.alerts {
                let AlertChange::Raise {
                    step,
                    kind,
                    message,
                    cause: Some(cause),
                    ..
                } = alert
                else {
                    continue;
                };
                let key = found.key(*kind, cause);
                let cause = match key.1 == cause.text {
                    true => cause.clone(),
                    false => cause.without_words(),
                };
                first.entry(key).or_insert_with(|| {
                    let id = chance::id();
                    let notice = AlertNotice::raised(id, kind.as_str(), message, change.at);
                    let notice = AlertNotice {
                        agent: cause.agent.clone(),
                        cause: Some(cause.text.clone()),
                        ..change.notice(*step, notice)
                    };
                    (cause, notice)
                });
            }
        }
        for (key, (cause, notice)) in first {
            let cause = self.join_cause(&cause, notice).await?;
            found.joined.insert(key, cause);
        }
        Ok(found)
    }

    /// Returns the causes with words of a service that must join their general cause, each with the general one. Such a
    /// cause has no open alert, and gets none because too many are open that differ only in the words. One statement
    /// finds the alerts for the whole batch. It locks nothing: committers that read at the same time find the same
    /// room, and may each fill it.
    async fn causes_without_room(
        &mut self,
        batch: &Batch,
    ) -> Result<BTreeMap<CauseKey, CauseKey>, StoreError> {
        let mut worded: BTreeSet<(CauseKey, &str)> = BTreeSet::new();
        for (_, alert) in batch.changes.iter().flat_map(|change| &change.alerts) {
            if let AlertChange::Raise {
                kind,
                cause: Some(cause),
                ..
            } = alert
                && let Some(general) = &cause.general
            {
                worded.insert(((kind.as_str(), general.clone()), &cause.text));
            }
        }
        let mut without_room = BTreeMap::new();
        if worded.is_empty() {
            return Ok(without_room);
        }
        let items = worded.iter().enumerate().map(|(number, (general, text))| {
            let begin = format!("{}{BEFORE_WORDS}", general.1);
            // This text is after every text with that prefix.
            let end = format!("{begin}\u{10ffff}");
            (number, general.0, *text, begin, end)
        });
        let items = serde_json::to_string(&items.collect::<Vec<_>>()).map_err(corrupt)?;
        let look = LOOK.replace("{items}", self.dialect().json_items);
        let look = Statement::new(look).bind(items).bind(MOST_WORDED);
        let mut found: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for row in self.fetch(look).await? {
            let counts = (row.get("is_known")?, row.get("others")?);
            found.insert(row.get("number")?, counts);
        }
        let mut raised: BTreeMap<CauseKey, u64> = BTreeMap::new();
        for (number, (general, text)) in worded.into_iter().enumerate() {
            let (known, others) = found.get(&number).copied().unwrap_or_default();
            let raised = raised.entry(general.clone()).or_default();
            if known > 0 {
                continue;
            }
            if others + *raised < MOST_WORDED as u64 {
                *raised += 1;
            } else {
                without_room.insert((general.0, text.to_owned()), general);
            }
        }
        Ok(without_room)
    }

    async fn join_cause(
        &mut self,
        cause: &AlertCause,
        notice: AlertNotice,
    ) -> Result<JoinedCause, StoreError> {
        let find = format!("{FIND} {}", self.dialect().key_share);
        for _ in 0..JOINS {
            let find = Statement::new(find.as_str())
                .bind(notice.kind.as_str())
                .bind(cause.text.as_str());
            if let Some(found) = self.fetch_first(find).await? {
                return Ok(JoinedCause {
                    id: found.get("id")?,
                    raised: None,
                });
            }
            let first = notice.task.zip(notice.step.clone());
            let first = first.map(|(task, step)| FirstFailure {
                task,
                key: notice.key.as_deref().map(str::to_owned),
                workflow: notice.workflow.clone(),
                step,
            });
            let raise = Statement::new(RAISE)
                .bind(notice.id)
                .bind(notice.kind.as_str())
                .bind(notice.message.as_str())
                .bind(notice.raised_at)
                .bind(cause.agent.as_ref().map(AgentName::as_str))
                .bind(cause.text.as_str())
                .bind(serde_json::to_string(&first).map_err(corrupt)?);
            if self.execute(raise).await? > 0 {
                return Ok(JoinedCause {
                    id: notice.id,
                    raised: Some((notice, 0)),
                });
            }
        }
        Err(StoreError::Retryable(format!(
            "the alert of the cause {:?} was closed and raised by others",
            cause.text
        )))
    }

    /// Returns the messages about the causes that the save has raised. A cause without a new alert of a step is
    /// deleted.
    pub(in crate::store) async fn announce_causes(
        &mut self,
        joined: JoinedCauses,
        sender: &Sender,
        at: Timestamp,
    ) -> Result<Vec<Message>, StoreError> {
        let mut messages = Vec::new();
        for (notice, count) in joined.joined.into_values().filter_map(|cause| cause.raised) {
            if count == 0 {
                let delete = Statement::new("DELETE FROM alerts WHERE id = $1").bind(notice.id);
                self.run(delete).await?;
                continue;
            }
            let notice = AlertNotice { count, ..notice };
            let version = CauseVersion::Raised.number();
            messages.extend(sender.alert(&notice, version, at, chance::id));
            self.record_alert(&notice).await?;
        }
        Ok(messages)
    }

    /// Closes those of these alerts of causes that have no step left, unless another transaction has locked them.
    /// Returns the messages about them.
    pub(in crate::store) async fn close_causes(
        &mut self,
        causes: &BTreeSet<Uuid>,
        sender: &Sender,
        at: Timestamp,
    ) -> Result<Vec<Message>, StoreError> {
        let mut messages = Vec::new();
        for id in causes {
            // Mostly there are other steps, and nothing is locked.
            let any = Statement::new(ANY_PART).bind(*id);
            if self.fetch_first(any).await?.is_some() {
                continue;
            }
            // These are two statements, so that the second sees the changes that were saved before the lock was taken.
            let lock = format!(
                "SELECT id FROM alerts WHERE id = $1 AND state <> 'closed' {}",
                self.dialect().exclusive_unlocked
            );
            let lock = Statement::new(lock).bind(*id);
            if self.fetch_first(lock).await?.is_none() {
                continue;
            }
            if let Some(notice) = self.close_locked(*id, at).await? {
                let version = CauseVersion::Closed.number();
                messages.extend(sender.alert(&notice, version, at, chance::id));
                self.record_alert(&notice).await?;
            }
        }
        Ok(messages)
    }

    /// Closes a locked alert of a cause, unless a step joined it before it was locked.
    pub(in crate::store) async fn close_locked(
        &mut self,
        id: Uuid,
        at: Timestamp,
    ) -> Result<Option<AlertNotice>, StoreError> {
        let count = Statement::new(COUNT_ALL).bind(id).bind(COUNTED_AT_ONCE);
        let count: Option<i64> = match self.fetch_first(count).await? {
            Some(row) => row.get("count")?,
            None => None,
        };
        let close = Statement::new(CLOSE)
            .bind(id)
            .bind(at)
            .bind(count.unwrap_or(1));
        let closed = self.fetch_first(close).await?;
        closed.map(|row| Ok(notice(&row)?.closed(at))).transpose()
    }
}

fn notice(row: &Row) -> Result<AlertNotice, StoreError> {
    let (kind, message): (String, String) = (row.get("kind")?, row.get("message")?);
    let raised = AlertNotice::raised(row.get("id")?, &kind, &message, row.get("raised_at")?);
    let first = first_failure(row)?;
    let (task, step) = first.as_ref().map(|f| (f.task, f.step.clone())).unzip();
    let agent: Option<String> = row.get("agent")?;
    Ok(AlertNotice {
        task,
        step,
        key: first
            .as_ref()
            .and_then(|first| first.key.as_deref())
            .map(Into::into),
        workflow: first.and_then(|first| first.workflow),
        agent: agent.map(AgentName::new),
        cause: row.get("cause")?,
        count: row.get("count")?,
        ..raised
    })
}

/// Returns the first step that failed for a cause.
pub fn first_failure(row: &impl Columns) -> Result<Option<FirstFailure>, StoreError> {
    let first: Option<String> = row.get("first")?;
    let first = first.map(|first| serde_json::from_str(&first)).transpose();
    Ok(first.map_err(corrupt)?.flatten())
}
