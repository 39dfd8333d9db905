//! Reads that are the same for every database: the statements use only SQL that all databases understand, and a backend
//! only runs them. A statement for one database alone belongs to the folder of its backend.

use uuid::Uuid;

use super::{
    AgentRecord, DueWork, EndedAt, EndedTask, ExpiredStep, HeldStep, Instances, MessageId,
    MessageQuery, MessageRecord, MessageTry, Promoted, QueueClaim, QueueHead, SavedChange,
    SavedChanges, StoreError, TaskFilter, TaskQuery, TaskSummaries, WorkflowRecord,
    message::outbox,
    rows::{self, AGENT, Columns, Loaded, Row, WORKFLOW},
    source::{SeenVersion, Source},
    sqlite::StoreClock,
    statement::Statement,
    task::{
        pages::{self, IndexFilter},
        search::{Look, Range},
    },
    upkeep::leases,
    view::ledger_sql::LedgerDialect,
};
use crate::{
    clock,
    domain::{
        task::{AlertKind, Task},
        upkeep::FileSpace,
        values::{
            AgentName, Attempt, InstanceId, ReceiverName, StepIndex, StepRef, TaskId, Timestamp,
            WorkflowName,
        },
    },
};

/// Relies on the index of a task's versions. Reads the events of no more changes than it returns, because one change of
/// a long list can have megabytes.
const HISTORY: &str = r#"
WITH looked AS (
    SELECT version, at, octet_length(events) AS bytes FROM history
    WHERE task_id = $1 AND version > $2 ORDER BY version LIMIT $3
), page AS (
    SELECT version, at, sum(bytes) OVER (ORDER BY version) - bytes AS bytes_before, count(*) OVER () AS looked FROM looked
)
SELECT version, at, looked,
       (SELECT history.events FROM history WHERE history.task_id = $1 AND history.version = page.version) AS events
FROM page WHERE bytes_before < $4 ORDER BY version"#;

/// Relies on steps_delayed. If the index covers the statement, nothing else is read, so a step in a damaged part is
/// found too.
const DUE: &str = r#"
SELECT task_id, idx FROM steps
WHERE due_at IS NOT NULL AND queued = 0 AND due_at <= $1
ORDER BY due_at LIMIT $2"#;

/// Relies on steps_line.
const ANY_QUEUED: &str =
    "SELECT idx FROM steps WHERE agent = $1 AND due_at IS NOT NULL AND queued = 1 LIMIT 1";

/// The agents with queued steps, as `line`. Goes from one agent to the next by steps_line, so that long queues cost no
/// more than short ones. The statement does not use `min`: up to version 16, PostgreSQL reads whole queues for it if
/// they were empty when it planned.
pub const QUEUED_AGENTS: &str = r#"
WITH RECURSIVE line (agent) AS (
    SELECT (SELECT agent FROM steps WHERE due_at IS NOT NULL AND queued = 1 ORDER BY agent LIMIT 1)
    UNION ALL
    SELECT (SELECT agent FROM steps WHERE due_at IS NOT NULL AND queued = 1 AND agent > line.agent
            ORDER BY agent LIMIT 1)
    FROM line WHERE line.agent IS NOT NULL
)"#;

/// Follows [`QUEUED_AGENTS`]. The row without an agent has the time when the next delayed step is due, and relies on
/// steps_delayed.
const BACKLOG: &str = r#"
SELECT agent, CAST(NULL AS bigint) AS due_at FROM line WHERE agent IS NOT NULL
UNION ALL
SELECT NULL, (SELECT due_at FROM steps WHERE due_at IS NOT NULL AND queued = 0 ORDER BY due_at LIMIT 1)"#;

/// Relies on steps_line: each half is one range of it from its beginning, so that no more is read than is counted. One
/// condition with OR would also read all entries after the task.
const AHEAD: &str = r#"
SELECT count(*) AS count FROM (
    SELECT 1 FROM {steps}
    WHERE agent = $1 AND due_at IS NOT NULL AND queued = 1 AND lane = $5 AND turn < $2
    UNION ALL
    SELECT 1 FROM {steps}
    WHERE agent = $1 AND due_at IS NOT NULL AND queued = 1 AND lane = $5 AND turn = $2 AND task_id < $3
    LIMIT $4) AS ahead"#;

/// Relies on tasks_overdue, and on the primary key of the steps. An ended task has no overdue_at. Steps without rows
/// are waiting or running.
const IN_DANGER: &str = r#"
SELECT count(*) AS looked_at, COALESCE(sum(waits), 0) AS tasks FROM (
    SELECT CASE WHEN EXISTS (
        SELECT 1 FROM steps WHERE steps.task_id = tasks.id AND steps.agent = $1
          AND steps.state IN ('waiting', 'pending', 'processing'))
      OR (untouched > 0 OR claim_step IS NOT NULL) AND EXISTS (
        SELECT 1 FROM {untouched}
        WHERE element.value = $1
          AND NOT EXISTS (SELECT 1 FROM steps WHERE steps.task_id = tasks.id AND steps.idx = element.key))
      THEN 1 ELSE 0 END AS waits
    FROM tasks WHERE overdue_at IS NOT NULL AND overdue_at <= $2
    ORDER BY overdue_at LIMIT $3) AS due"#;

/// The number of tasks whose own complete-by is before a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TasksInDanger {
    /// The tasks that have unfinished steps at an agent.
    pub tasks: u64,
    /// The number of tasks that were read, those with the earliest complete-by first.
    pub looked_at: u64,
}

/// The condition of a valid claim in the row of a task: a damaged claim affects only its task.
pub const IS_STEP: &str = "claim_step BETWEEN 0 AND 32767";

/// Relies on steps_processing and tasks_claimed, which cover the search for lost instances. The search reads them
/// completely, but few steps run compared to all steps. The parts that find the steps of lost instances are only run if
/// an instance is lost. The last parts rely on steps_awaited and steps_waits: no instance holds those steps, which may
/// be many.
const EXPIRED: &str = r#"
WITH holders AS MATERIALIZED (
    SELECT locked_by AS id FROM {steps} WHERE state = 'processing' AND locked_by IS NOT NULL{holders_of_claims}),
lost AS MATERIALIZED (
    SELECT DISTINCT id FROM holders WHERE id <> $3 AND id NOT IN (SELECT id FROM instances WHERE until > $1))
SELECT task_id, idx, attempt, complete_by, locked_by IN (SELECT id FROM lost) AS lost
FROM {steps}
WHERE state = 'processing' AND locked_by IS NOT NULL AND complete_by <= $1
UNION ALL
SELECT task_id, idx, attempt, complete_by, true
FROM {steps}
WHERE state = 'processing' AND locked_by IS NOT NULL AND complete_by > $1
  AND EXISTS (SELECT 1 FROM lost) AND locked_by IN (SELECT id FROM lost)
UNION ALL{expired_claims}
SELECT * FROM (
    SELECT task_id, idx, attempt, complete_by, false FROM {awaited}
    WHERE state = 'processing' AND locked_by IS NULL AND agent <> '' AND complete_by <= $1
    ORDER BY complete_by LIMIT $2) AS awaited
UNION ALL
SELECT * FROM (
    SELECT task_id, idx, attempt, complete_by, false FROM {waits}
    WHERE state = 'processing' AND agent = '' AND complete_by <= $1
    ORDER BY complete_by LIMIT $2) AS waits
ORDER BY complete_by LIMIT $2"#;

/// Finds the holders of claims in the rows of tasks.
const HOLDERS_OF_CLAIMS: &str = r#"
    UNION
    SELECT claimed_by FROM {claimed} WHERE claimed_by IS NOT NULL"#;
const EXPIRED_CLAIMS: &str = r#"
SELECT id, claim_step, 1, claim_until, claimed_by IN (SELECT id FROM lost)
FROM {claimed}
WHERE claimed_by IS NOT NULL AND claim_after <= $1 AND claim_until <= $1 AND {is_step}
UNION ALL
SELECT id, claim_step, 1, claim_until, true
FROM {claimed}
WHERE claimed_by IS NOT NULL AND claim_until > $1 AND {is_step}
  AND EXISTS (SELECT 1 FROM lost) AND claimed_by IN (SELECT id FROM lost)
UNION ALL"#;

/// Relies on tasks_claimed, which covers it.
const CLAIMED_TASKS: &str = "SELECT id FROM {claimed} WHERE claimed_by IS NOT NULL";
/// Finds what [`EXPIRED_CLAIMS`] finds, for one task by its key.
const EXPIRED_CLAIM: &str = r#"
SELECT id AS task_id, claim_step AS idx, 1 AS attempt, is_lost AS lost FROM (
    SELECT id, claim_step, claim_until,
           claimed_by <> $3 AND claimed_by NOT IN (SELECT id FROM instances WHERE until > $2) AS is_lost
    FROM tasks WHERE id = $1 AND claimed_by IS NOT NULL AND {is_step}) AS claimed
WHERE is_lost OR claim_until <= $2"#;

/// Reads tasks_ended alone, if no columns of the task are requested.
const ENDED: &str = r#"
SELECT id, ended_at{kind} FROM tasks
WHERE ended_at IS NOT NULL AND ended_at >= $1 AND (ended_at > $1 OR id > $2) AND ended_at < $3
ORDER BY ended_at, id LIMIT $4"#;

/// Relies on tasks_overdue.
const OVERDUE: &str = r#"
SELECT id FROM tasks
WHERE overdue_at IS NOT NULL AND overdue_at <= $1 ORDER BY overdue_at LIMIT $2"#;

/// Relies on steps_processing and tasks_claimed, because few steps run compared to all steps. The task of each step of
/// the page is found by its key.
const PROCESSING: &str = r#"
WITH running AS MATERIALIZED (
    SELECT task_id, idx, attempt, coalesce(last_fault LIKE '%"cancelled":true%', false) AS cancelled FROM {steps}
    WHERE state = 'processing' AND locked_by IS NOT NULL AND locked_by = coalesce($4, locked_by)
    UNION ALL
    SELECT id, claim_step, 1, false FROM {claimed}
    WHERE claimed_by IS NOT NULL AND claimed_by = coalesce($4, claimed_by) AND {is_step}),
page AS MATERIALIZED (
    SELECT task_id, idx, attempt, cancelled FROM running
    WHERE (task_id, idx) > ($1, $2) ORDER BY task_id, idx LIMIT $3)
SELECT task_id, idx, attempt, cancelled,
       (SELECT undo IS NOT NULL FROM tasks WHERE tasks.id = page.task_id) AS undoing
FROM page ORDER BY task_id, idx"#;

/// Reads two rows by their keys.
const HELD: &str = r#"
SELECT task_id, idx, attempt, coalesce(last_fault LIKE '%"cancelled":true%', false) AS cancelled,
       (SELECT undo IS NOT NULL FROM tasks WHERE tasks.id = steps.task_id) AS undoing
FROM steps WHERE task_id = $1 AND idx = $2 AND attempt = $3 AND state = 'processing'
UNION ALL
SELECT id, claim_step, 1, false, undo IS NOT NULL FROM tasks WHERE id = $1 AND claim_step = $2 AND $3 = 1"#;

/// Relies on alerts_unclosed.
const FAULTS: &str = r#"
SELECT task_id, idx, kind FROM alerts
WHERE state <> 'closed' AND task_id IS NOT NULL AND kind IN ($1, $2) LIMIT 1000"#;

/// Reads the input of [`read_backlog`].
pub fn any_queued(agent: &AgentName) -> Statement {
    Statement::new(ANY_QUEUED).bind(agent)
}

pub fn backlog() -> Statement {
    Statement::new(format!("{QUEUED_AGENTS}{BACKLOG}"))
}

pub fn read_backlog(found: &[impl Columns]) -> Result<Promoted, StoreError> {
    let mut backlog = Promoted::default();
    for row in found {
        match row.text("agent")? {
            Some(agent) => backlog.agents.push(AgentName::new(agent)),
            None => backlog.next_due = row.get("due_at")?,
        }
    }
    Ok(backlog)
}

/// Reads data, each time in a consistent snapshot, and never waits for the writer.
pub struct Reader {
    pub(super) source: Box<dyn Source>,
}

impl Reader {
    pub fn new(source: impl Source) -> Self {
        Self {
            source: Box::new(source),
        }
    }

    pub(super) async fn fetch(&self, statement: Statement) -> Result<Vec<Row>, StoreError> {
        let found = self.source.view(vec![statement]).await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Returns the rows that each of the statements finds, all in one snapshot.
    pub(super) async fn view_of(
        &self,
        statements: Vec<Statement>,
    ) -> Result<Vec<Vec<Row>>, StoreError> {
        self.source.view(statements).await
    }

    pub(super) fn ledger_dialect(&self) -> LedgerDialect {
        self.source.ledger()
    }

    pub(super) async fn all<T>(
        &self,
        statement: Statement,
        read: impl Fn(&Row) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        self.fetch(statement).await?.iter().map(read).collect()
    }

    pub(super) async fn first<T>(
        &self,
        statement: Statement,
        read: impl Fn(&Row) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let found = self.fetch(statement).await?;
        found.first().map(read).transpose()
    }

    /// Fetches rows under the settings of [`Source::along_indexes`].
    pub(super) async fn fetch_along_indexes(
        &self,
        statement: Statement,
    ) -> Result<Vec<Row>, StoreError> {
        let mut found = self.view_along_indexes(vec![statement]).await?;
        Ok(found.pop().unwrap_or_default())
    }

    pub(super) async fn view_along_indexes(
        &self,
        statements: Vec<Statement>,
    ) -> Result<Vec<Vec<Row>>, StoreError> {
        let settings = self.source.along_indexes();
        let settings_count = usize::from(settings.is_some());
        let statements = settings.into_iter().chain(statements).collect();
        let mut found = self.source.view(statements).await?;
        Ok(found.split_off(settings_count.min(found.len())))
    }

    /// Returns a filter by which one search finds all tasks, or else one that finds fewer than the states, if there is
    /// one.
    async fn shortest<'f>(&self, range: Range<'f>) -> Result<Option<IndexFilter<'f>>, StoreError> {
        let narrow = range.narrow();
        if narrow.is_empty() {
            return Ok(range.of_failures());
        }
        let long = narrow.iter().map(|first| range.is_long(first)).collect();
        let long = self.view_along_indexes(long).await?;
        let mut each = narrow.into_iter().zip(long);
        let short = each.find_map(|(first, long)| long.is_empty().then_some(first));
        Ok(short.or_else(|| range.of_failures()))
    }
}

impl Reader {
    pub async fn now(&self) -> Result<Timestamp, StoreError> {
        self.source.now().await
    }

    /// Returns [`Reader::now`] by the wall clock, see `Session::wall_now`.
    pub async fn wall_now(&self) -> Result<Timestamp, StoreError> {
        let now = self.now().await?;
        Ok(self.by_wall_clock(now))
    }

    /// Converts a time of the store's clock, now or a moment ago, to the wall clock.
    pub(super) fn by_wall_clock(&self, now: Timestamp) -> Timestamp {
        let ahead = self.source.clock().map_or(0, StoreClock::ahead_of_wall);
        Timestamp::from_millis(now.as_millis().saturating_sub(ahead))
    }

    /// See [`Source::clock`].
    pub fn clock(&self) -> Option<&StoreClock> {
        self.source.clock()
    }

    /// Returns the last [`Reader::now`] of the store, plus the time that has passed by this process's own clock. It
    /// never waits, and is accurate to a second or better. Returns `None` before the first time.
    pub fn estimated_now(&self) -> Option<Timestamp> {
        self.source.estimated_now()
    }

    /// Returns the space of a database file, or `None` for a server.
    pub async fn file_space(&self) -> Result<Option<FileSpace>, StoreError> {
        self.source.file_space().await
    }

    /// Writes the content of `-wal` into the database file, as far as no other connection has to wait for that.
    pub async fn fold(&self) -> Result<(), StoreError> {
        self.source.fold().await
    }

    pub async fn task(&self, id: TaskId) -> Result<Option<Task>, StoreError> {
        self.source.load(&[id]).await?.one()
    }

    /// Returns the tasks among `ids` that exist, in any order.
    pub async fn tasks_of(&self, ids: &[TaskId]) -> Result<Loaded, StoreError> {
        self.source.load(ids).await
    }

    /// Returns the versions of those of these tasks that exist. For a database that only this process writes, returns
    /// none.
    pub async fn versions(&self, ids: &[TaskId]) -> Result<Vec<SeenVersion>, StoreError> {
        self.source.versions(ids).await
    }

    /// Returns a page of tasks. If one search finds none, reads more tasks, but not many more: see [`pages::look_on`].
    pub async fn tasks(&self, query: &TaskQuery) -> Result<TaskSummaries, StoreError> {
        let began = clock::instant();
        let elapsed = || began.elapsed();
        pages::look_on(query, elapsed, async |query: TaskQuery| {
            self.look_for_page(&query).await
        })
        .await
    }

    async fn look_for_page(&self, query: &TaskQuery) -> Result<TaskSummaries, StoreError> {
        let found = self.view_along_indexes(pages::statements(query)).await?;
        let rows = |at: usize| found.get(at).into_iter().flatten();
        let tasks = rows(0).map(rows::summary).collect::<Result<_, _>>()?;
        let last = rows(1).next().map(|row| row.get("id"));
        Ok(TaskSummaries::new(tasks, query.limit, last.transpose()?))
    }

    /// Returns up to `limit` ids of the tasks of a bulk command, oldest first. Reads at most `most` tasks, and at most
    /// `MOST_LOOKED_AT`.
    pub async fn task_ids(
        &self,
        filter: &TaskFilter,
        after: Option<TaskId>,
        limit: usize,
        most: usize,
    ) -> Result<Look<Vec<TaskId>>, StoreError> {
        let range = Range::new(filter, after, most);
        let first = self.shortest(range).await?;
        let ids = range.ids(first.as_ref(), limit);
        let found = self.view_along_indexes(vec![ids, range.last(first.as_ref())]);
        match &found.await?[..] {
            [ids, last] => range.look(limit, ids, last),
            _ => Err(StoreError::Corrupt("a view of other statements".to_owned())),
        }
    }

    /// Counts these tasks, as far as one search goes.
    pub async fn count_tasks(
        &self,
        filter: &TaskFilter,
        after: Option<TaskId>,
        most: usize,
    ) -> Result<Look<u64>, StoreError> {
        let range = Range::new(filter, after, most);
        let first = self.shortest(range).await?;
        let count = range.count(first.as_ref());
        let found = self.view_along_indexes(vec![count, range.last(first.as_ref())]);
        match &found.await?[..] {
            [count, last] => range.counted(count, last),
            _ => Err(StoreError::Corrupt("a view of other statements".to_owned())),
        }
    }

    /// Returns the changes after version `after`, in order, or `None` if the task does not exist.
    pub async fn history(
        &self,
        id: TaskId,
        after: u64,
        limit: usize,
        bytes: usize,
    ) -> Result<Option<SavedChanges>, StoreError> {
        // Versions are counted from 1, one by one.
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let statement = Statement::new(HISTORY)
            .bind(id.0)
            .bind(after)
            .bind(limit.saturating_add(1))
            .bind(bytes);
        let found = self.all(statement, |row: &Row| {
            Ok((rows::change(row)?, row.get("looked")?))
        });
        let found: Vec<(SavedChange, u64)> = found.await?;
        let Some((_, looked)) = found.first() else {
            let exists = Statement::new("SELECT id FROM tasks WHERE id = $1").bind(id.0);
            let exists = self.first(exists, |_| Ok(())).await?;
            return Ok(exists.map(|()| SavedChanges::default()));
        };
        let kept = found.len().min(limit);
        Ok(Some(SavedChanges {
            has_more: (kept as u64) < *looked,
            changes: found
                .into_iter()
                .take(kept)
                .map(|(change, _)| change)
                .collect(),
        }))
    }

    /// Returns delayed steps that are due, at most [`Promoted::MOST`].
    pub async fn due(&self) -> Result<Vec<StepRef>, StoreError> {
        let now = self.now().await?.as_millis();
        let statement = Statement::new(DUE).bind(now).bind(Promoted::MOST);
        self.all(statement, rows::step_ref).await
    }

    /// Returns the agents with queued steps.
    pub async fn queued_agents(&self) -> Result<Vec<AgentName>, StoreError> {
        Ok(self.backlog().await?.agents)
    }

    /// Returns the result that a promotion has if it moves nothing.
    pub async fn backlog(&self) -> Result<Promoted, StoreError> {
        read_backlog(&self.fetch(backlog()).await?)
    }

    /// Returns how many steps of other tasks are before those of this task in the queue of each of these agents, in the
    /// lane that is named with it. The count of a queue ends at `limit`, and reads no more of it.
    pub async fn ahead(
        &self,
        task: &Task,
        queues: &[(AgentName, String)],
        limit: usize,
    ) -> Result<Vec<u64>, StoreError> {
        let sql = AHEAD.replace("{steps}", &self.source.by_index("steps", "steps_line"));
        let of_each = queues.iter().map(|(agent, lane)| {
            Statement::new(sql.clone())
                .bind(agent)
                .bind(task.turn())
                .bind(task.id().0)
                .bind(limit)
                .bind(lane.as_str())
        });
        let found = self.view_along_indexes(of_each.collect()).await?;
        let counts = found.iter().map(|rows| {
            let row = rows.first();
            row.map_or(Ok(0), |row| row.get("count"))
        });
        counts.collect()
    }

    /// Returns running steps that must be recovered, longest overdue first: those whose complete-by has passed, and
    /// those whose instance is lost because its lease has ended or it has no record. Both are decided at one `now`; if
    /// both are true, the instance counts as lost. The instance `asker` counts as alive, because it asks: its own steps
    /// only expire by their complete-by.
    pub async fn expired(
        &self,
        asker: &InstanceId,
        limit: usize,
    ) -> Result<Vec<ExpiredStep>, StoreError> {
        let steps = self.source.by_index("steps", "steps_processing");
        let awaited = self.source.by_index("steps", "steps_awaited");
        let claimed = self.source.by_index("tasks", "tasks_claimed");
        let now = self.now().await?.as_millis();
        let asked = |holders_of_claims: &str, expired_claims: &str| {
            let expired = EXPIRED
                .replace("{holders_of_claims}", holders_of_claims)
                .replace("{expired_claims}", expired_claims)
                .replace("{steps}", &steps)
                .replace("{claimed}", &claimed)
                .replace("{is_step}", IS_STEP)
                .replace("{awaited}", &awaited)
                .replace("{waits}", &self.source.by_index("steps", "steps_waits"));
            Statement::new(expired).bind(now).bind(limit).bind(asker)
        };
        let all = asked(HOLDERS_OF_CLAIMS, EXPIRED_CLAIMS);
        match self.all(all, rows::expired_step).await {
            // The unreadable record may be the row of a task that is claimed. All other steps are found nevertheless.
            Err(error) if error.is_damage() => {
                let mut expired = self.all(asked("", ""), rows::expired_step).await?;
                let room = limit.saturating_sub(expired.len());
                expired.extend(self.readable_claims(asker, now, room).await?);
                Ok(expired)
            }
            found => found,
        }
    }

    /// Returns up to `limit` claims in the rows of tasks that must be recovered, each read by itself, except those that
    /// cannot be read.
    async fn readable_claims(
        &self,
        asker: &InstanceId,
        now: i64,
        limit: usize,
    ) -> Result<Vec<ExpiredStep>, StoreError> {
        let claimed = self.source.by_index("tasks", "tasks_claimed");
        let tasks = Statement::new(CLAIMED_TASKS.replace("{claimed}", &claimed));
        let mut expired = Vec::new();
        for task in self.all(tasks, |row| row.get::<TaskId>("id")).await? {
            if expired.len() >= limit {
                break;
            }
            let claim = Statement::new(EXPIRED_CLAIM.replace("{is_step}", IS_STEP));
            let claim = claim.bind(task.0).bind(now).bind(asker);
            match self.all(claim, rows::expired_step).await {
                Err(error) if error.is_damage() => {}
                found => expired.extend(found?),
            }
        }
        Ok(expired)
    }

    /// Returns up to `limit` tasks that ended before `before`, longest ended first, beginning after `after`. Their
    /// workflow and state are read only on request, because that needs more than an index.
    pub async fn ended(
        &self,
        after: Option<EndedAt>,
        before: Timestamp,
        limit: usize,
        with_kind: bool,
    ) -> Result<Vec<EndedTask>, StoreError> {
        let (at, task) = after.map_or((i64::MIN, Uuid::nil()), |after| {
            (after.at.as_millis(), after.task.0)
        });
        let kind = if with_kind { ", workflow, state" } else { "" };
        let statement = Statement::new(ENDED.replace("{kind}", kind))
            .bind(at)
            .bind(task)
            .bind(before)
            .bind(limit);
        self.all(statement, |row| rows::ended_task(row, with_kind))
            .await
    }

    /// Counts the tasks that have unfinished steps at an agent, and whose own complete-by is before a time. Reads at
    /// most `limit` tasks.
    pub async fn tasks_in_danger(
        &self,
        agent: &AgentName,
        before: Timestamp,
        limit: usize,
    ) -> Result<TasksInDanger, StoreError> {
        let in_danger = IN_DANGER.replace("{untouched}", self.source.agents_of_untouched());
        let asked = Statement::new(in_danger)
            .bind(agent)
            .bind(before)
            .bind(limit);
        let found = self
            .all(asked, |row| {
                Ok(TasksInDanger {
                    tasks: row.get("tasks")?,
                    looked_at: row.get("looked_at")?,
                })
            })
            .await?;
        Ok(found.into_iter().next().unwrap_or(TasksInDanger {
            tasks: 0,
            looked_at: 0,
        }))
    }

    /// Returns tasks whose own complete-by has passed.
    pub async fn overdue(&self, limit: usize) -> Result<Vec<TaskId>, StoreError> {
        let now = self.now().await?.as_millis();
        let statement = Statement::new(OVERDUE).bind(now).bind(limit);
        self.all(statement, |row| row.get("id")).await
    }

    /// Returns running steps in batches by id: those that `locked_by` holds, or all if it is `None`.
    pub async fn processing(
        &self,
        locked_by: Option<&InstanceId>,
        after: Option<StepRef>,
        limit: usize,
    ) -> Result<Vec<HeldStep>, StoreError> {
        let steps = self.source.by_index("steps", "steps_processing");
        let claimed = self.source.by_index("tasks", "tasks_claimed");
        let processing = PROCESSING
            .replace("{steps}", &steps)
            .replace("{claimed}", &claimed)
            .replace("{is_step}", IS_STEP);
        let statement = Statement::new(processing)
            .bind(after.map_or(Uuid::nil(), |after| after.task.0))
            .bind(after.map_or(-1, |after| i64::from(after.step.0)))
            .bind(limit)
            .bind(locked_by);
        self.all(statement, rows::held_step).await
    }

    /// Returns an attempt, while its step is processing under it. This is cheap, because it precedes every retry of a
    /// call.
    pub async fn held(
        &self,
        step: StepRef,
        attempt: Attempt,
    ) -> Result<Option<HeldStep>, StoreError> {
        let statement = Statement::new(HELD)
            .bind(step.task.0)
            .bind(step.step)
            .bind(attempt);
        self.first(statement, rows::held_step).await
    }

    /// Returns a key of the store; see the migration that made it.
    pub async fn secret(&self, name: &str) -> Result<Option<String>, StoreError> {
        let statement = Statement::new("SELECT value FROM secrets WHERE name = $1").bind(name);
        self.first(statement, |row| row.get("value")).await
    }

    /// Returns every instance on record, by id, with the number of steps that it holds, and the supervisors' lease.
    pub async fn instances(&self) -> Result<Instances, StoreError> {
        let now = self.now().await?;
        let steps = self.source.by_index("steps", "steps_processing");
        let claimed = self.source.by_index("tasks", "tasks_claimed");
        let asked = vec![leases::instances(&steps, &claimed), leases::supervisor()];
        let found = self.view_along_indexes(asked).await?;
        let rows = |at: usize| found.get(at).into_iter().flatten();
        Ok(Instances {
            now,
            records: rows(0).map(leases::held).collect::<Result<_, _>>()?,
            supervisor: rows(1).next().map(leases::lease).transpose()?,
        })
    }

    /// Returns the latest version, or the one that is named.
    pub async fn workflow(
        &self,
        name: &WorkflowName,
        version: Option<u32>,
    ) -> Result<Option<WorkflowRecord>, StoreError> {
        let sql = format!(
            "SELECT {WORKFLOW} FROM workflows
WHERE name = $1 AND version = coalesce($2, version) ORDER BY version DESC LIMIT 1"
        );
        let statement = Statement::new(sql).bind(name).bind(version);
        self.first(statement, rows::workflow).await
    }

    pub async fn agents(&self) -> Result<Vec<AgentRecord>, StoreError> {
        let statement = Statement::new(format!("SELECT {AGENT} FROM agents ORDER BY name"));
        self.all(statement, rows::agent).await
    }

    /// Returns the tasks with an alert that says that the service could not decide on them, at a step, or not read
    /// them.
    pub async fn faults(&self) -> Result<Vec<(TaskId, Option<StepIndex>)>, StoreError> {
        let unreadable = AlertKind::TaskUnreadable.as_str();
        let statement = Statement::new(FAULTS)
            .bind(AlertKind::ServiceFault.as_str())
            .bind(unreadable);
        let fault = |row: &Row| {
            let step = row.get("idx")?;
            let is_of_step = row.get::<String>("kind")? != unreadable;
            Ok((row.get("task_id")?, is_of_step.then_some(step)))
        };
        self.all(statement, fault).await
    }

    /// Returns the work that the delivery loop can do now, for at most `most` destinations of each kind, and when there
    /// is more; with the receivers whose alert can be closed, on request.
    pub async fn due_work(&self, most: usize, with_resolved: bool) -> Result<DueWork, StoreError> {
        let now = self.now().await?;
        outbox::read_due_work(
            &self.fetch(outbox::due_work(most, with_resolved)).await?,
            now,
        )
    }

    /// Returns the receivers for which more than `least` bytes of messages wait, with the number of bytes.
    pub async fn waiting_bytes(&self, least: u64) -> Result<Vec<(ReceiverName, u64)>, StoreError> {
        let rows = self.fetch(outbox::waiting_bytes(least)).await?;
        let waiting = rows
            .iter()
            .map(|row| Ok((row.get("receiver")?, row.get("bytes")?)));
        waiting.collect()
    }

    /// Returns the receivers with an open alert that too many bytes wait.
    pub async fn alerts_of_waiting(&self) -> Result<Vec<ReceiverName>, StoreError> {
        let rows = self.fetch(outbox::alerts_of_waiting()).await?;
        let receivers = rows.iter().map(|row| {
            let subject: String = row.get("receiver")?;
            let receiver = subject
                .split_once(':')
                .map_or(&*subject, |(_, receiver)| receiver);
            Ok(ReceiverName::new(receiver))
        });
        receivers.collect()
    }

    /// Returns the first message of each of these queues.
    pub async fn next_messages(&self, claims: &[QueueClaim]) -> Result<Vec<QueueHead>, StoreError> {
        match self
            .source
            .view(claims.iter().map(outbox::next_message).collect())
            .await
        {
            Ok(heads) => Ok(heads
                .iter()
                .map(|found| outbox::queue_head(found.first()))
                .collect()),
            // A message in a damaged part must not delay the others.
            Err(error) if error.is_damage() => {
                let mut heads = Vec::with_capacity(claims.len());
                for claim in claims {
                    let found = self.source.view(vec![outbox::next_message(claim)]).await;
                    heads.push(match found {
                        Ok(found) => outbox::queue_head(found.iter().flatten().next()),
                        Err(error) if error.is_damage() => QueueHead::Lost(error.damage()),
                        Err(error) => return Err(error),
                    });
                }
                Ok(heads)
            }
            Err(error) => Err(error),
        }
    }

    pub async fn messages(&self, query: &MessageQuery) -> Result<Vec<MessageRecord>, StoreError> {
        self.all(outbox::messages(query), outbox::message).await
    }

    /// Returns the failed attempts to deliver a message, the latest first.
    pub async fn message_tries(&self, id: MessageId) -> Result<Vec<MessageTry>, StoreError> {
        self.all(outbox::message_tries(id), outbox::message_try)
            .await
    }
}
