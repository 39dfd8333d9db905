//! Pages of tasks by filters that no single index covers: an index finds tasks by one filter, newest first, and the
//! other filters are tested for each task. One search reads at most [`PAGE_LOOKS_AT`] entries of that index, even if
//! few tasks match. If it has found nothing, another search begins at its end, until [`MOST_LOOKED_AT`] tasks have been
//! read or [`LOOKING_TAKES`] is over: the page is empty in that case, and the end of the last search is the next cursor.

use std::time::Duration;

use uuid::Uuid;

use crate::domain::{
    task::{CauseFingerprint, TaskStatus},
    values::TaskId,
};
use crate::store::{
    AlertId, BulkJobId, BulkResultFilter, StoreError, TaskFilter, TaskQuery, TaskSummary,
    statement::Statement,
};

/// The most tasks that one search of a bulk command reads, and all searches for one page of a list.
pub const MOST_LOOKED_AT: usize = 10_000;
/// The most entries that one search for a page of a list reads. They take up to twenty milliseconds, because tasks in
/// one state are far apart in the table, and so are their steps.
const PAGE_LOOKS_AT: usize = 2_000;
/// After this time no further search begins for a page. A page takes several searches if the first ones find nothing,
/// because an operator takes an empty page for the complete result.
const LOOKING_TAKES: Duration = Duration::from_millis(200);

/// The most milliseconds between the time in an id and the time of its task, even if a clock was wrong when the task
/// was made: an instance knows the store's clock by its last answer, and releases before had ids by their own clocks.
const APART: i64 = 86_400_000;

const COLUMNS: &str = r#"
tasks.id, "key", workflow, workflow_version, labels, priority, created_at, version, state, start_at, complete_by,
ended_at, error, risk.predicted_end, risk.agent, risk.since"#;

/// Joins one row by its key. The row of a task that has ended is deleted a little later.
const RISK: &str =
    "LEFT JOIN tasks_at_risk AS risk ON risk.task_id = tasks.id AND tasks.overdue_at IS NOT NULL";

/// A page of tasks, newest first.
#[derive(Clone, Debug)]
pub struct TaskSummaries {
    pub tasks: Vec<TaskSummary>,
    /// There may be more tasks that are older than this one.
    pub next: Option<TaskId>,
}

impl TaskSummaries {
    /// Makes a page of the tasks that were found, which are one more than the limit if there are more, and of the last
    /// task that the search was allowed to read, if it read that many.
    pub fn new(mut tasks: Vec<TaskSummary>, limit: usize, looked_at_last: Option<TaskId>) -> Self {
        let more = tasks.len() > limit;
        tasks.truncate(limit);
        let next = match more {
            true => tasks.last().map(|last| last.id),
            false => looked_at_last,
        };
        Self { tasks, next }
    }
}

/// Searches on until a page has a task, no tasks are left, as many were read as may be, or the time is over. `elapsed` is
/// the time since the first search began.
pub async fn look_on<L: Future<Output = Result<TaskSummaries, StoreError>>>(
    query: &TaskQuery,
    elapsed: impl Fn() -> Duration,
    look: impl Fn(TaskQuery) -> L,
) -> Result<TaskSummaries, StoreError> {
    let mut query = query.clone();
    let mut looked_at = 0;
    loop {
        let page = look(query.clone()).await?;
        looked_at += PAGE_LOOKS_AT;
        let is_over = looked_at >= MOST_LOOKED_AT || elapsed() >= LOOKING_TAKES;
        if !page.tasks.is_empty() || page.next.is_none() || is_over {
            return Ok(page);
        }
        query.before = page.next;
    }
}

/// Returns the statement for the tasks of a page, one more than its limit, and the statement for the last task that the
/// search may read. The second is left out if the index alone finds the tasks.
pub fn statements(query: &TaskQuery) -> Vec<Statement> {
    let first = IndexFilter::of(&query.filter, query.before);
    let looked_at = |statement: &mut Statement| {
        first.ids(statement, &query.filter);
        if let Some(before) = query.before {
            statement.push(" AND id < ?", before.0);
        }
        statement.sql.push_str(" ORDER BY id DESC");
    };
    if first.is_all_of(&query.filter) {
        let mut page = Statement::new(format!("SELECT {COLUMNS} FROM ("));
        looked_at(&mut page);
        page.push(" LIMIT ?", query.limit + 1);
        page.sql.push_str(&format!(
            ") AS looked CROSS JOIN tasks {RISK} WHERE tasks.id = looked.id ORDER BY looked.id DESC"
        ));
        return vec![page];
    }
    let mut last = Statement::new("");
    looked_at(&mut last);
    last.push(" LIMIT 1 OFFSET ?", PAGE_LOOKS_AT - 1);
    // The inner selection is read lazily, as far as the page needs, because both are in the order of the index.
    let mut page = Statement::new("WITH found AS MATERIALIZED (SELECT ");
    if first.repeats_tasks() {
        page.sql.push_str("DISTINCT ");
    }
    page.sql.push_str("id FROM (");
    looked_at(&mut page);
    page.push(" LIMIT ?", PAGE_LOOKS_AT);
    page.sql.push_str(") AS looked WHERE true");
    page.others(&query.filter, &first);
    page.push(" ORDER BY id DESC LIMIT ?", query.limit + 1);
    page.sql.push_str(&format!(
        ") SELECT {COLUMNS} FROM found CROSS JOIN tasks {RISK} WHERE tasks.id = found.id ORDER BY found.id DESC"
    ));
    vec![page, last]
}

/// The filter by which an index finds tasks, newest first. Filters that usually find few tasks come first.
pub(in crate::store) enum IndexFilter<'f> {
    Key(&'f str),
    Parent(TaskId),
    /// The alert, with the task that follows those that were already read.
    Alert(AlertId, Option<TaskId>),
    Cause(CauseFingerprint),
    AtRisk,
    Bulk(BulkJobId, BulkResultFilter),
    Label(&'f str, &'f str),
    /// The agent of a step in error.
    FailedAgent(&'f str),
    /// The workflow of a task in error.
    FailedWorkflow(&'f str),
    State(TaskStatus),
    Workflow(&'f str),
    All,
}

impl<'f> IndexFilter<'f> {
    fn of(filter: &'f TaskFilter, before: Option<TaskId>) -> Self {
        if let Some(key) = &filter.key {
            return IndexFilter::Key(key);
        }
        if let Some(parent) = filter.parent {
            return IndexFilter::Parent(parent);
        }
        if let Some(alert) = filter.alert {
            return IndexFilter::Alert(alert, before);
        }
        if let Some(cause) = filter.cause {
            return IndexFilter::Cause(cause);
        }
        if filter.at_risk {
            return IndexFilter::AtRisk;
        }
        if let Some((job, result)) = filter.bulk {
            return IndexFilter::Bulk(job, result);
        }
        if filter.is_of_failures() && filter.labels.is_empty() {
            match (&filter.agent, &filter.workflow) {
                (Some(agent), _) => return IndexFilter::FailedAgent(agent),
                (None, Some(workflow)) => return IndexFilter::FailedWorkflow(workflow),
                (None, None) => {}
            }
        }
        if let Some((label, value)) = filter.labels.first() {
            return IndexFilter::Label(label, value);
        }
        match filter.states[..] {
            // tasks_by_state does not contain this state, because its tasks only grow in number.
            [state] if state != TaskStatus::Processed => return IndexFilter::State(state),
            _ => {}
        }
        match &filter.workflow {
            Some(workflow) => IndexFilter::Workflow(workflow),
            None => IndexFilter::All,
        }
    }

    /// Returns whether the index has an entry for each step, so that it may list a task several times in a row. The
    /// next cursor is after all of them.
    pub fn repeats_tasks(&self) -> bool {
        matches!(
            self,
            IndexFilter::Alert(..) | IndexFilter::Cause(_) | IndexFilter::FailedAgent(_)
        )
    }

    /// Returns whether there are no other filters.
    fn is_all_of(&self, filter: &TaskFilter) -> bool {
        let given = [
            filter.key.is_some(),
            !filter.states.is_empty(),
            filter.workflow.is_some(),
            filter.agent.is_some(),
            filter.created_after.is_some(),
            filter.created_before.is_some(),
            filter.at_risk,
            filter.parent.is_some(),
            filter.alert.is_some(),
            filter.cause.is_some(),
            filter.text.is_some(),
            filter.failed_by.is_some(),
            filter.bulk.is_some(),
        ];
        let given = given.into_iter().filter(|given| *given).count() + filter.labels.len();
        let covered = match self {
            // Some of the tasks at risk may have ended, those of a job may have been deleted, and tasks that are listed several times must be merged.
            IndexFilter::All
            | IndexFilter::AtRisk
            | IndexFilter::Bulk(..)
            | IndexFilter::Alert(..)
            | IndexFilter::Cause(_)
            | IndexFilter::FailedAgent(_) => 0,
            // The state and the workflow.
            IndexFilter::FailedWorkflow(_) => 2,
            _ => 1,
        };
        given == covered
    }

    /// Appends the selection of the ids, without an order.
    pub fn ids(&self, statement: &mut Statement, filter: &TaskFilter) {
        match self {
            IndexFilter::Key(key) => {
                statement.push(r#"SELECT id FROM tasks WHERE "key" = ?"#, *key);
            }
            IndexFilter::Parent(parent) => {
                let children =
                    "SELECT id FROM (SELECT child AS id FROM child_tasks WHERE parent = ?";
                statement.push(children, parent.0);
                statement.sql.push_str(") AS children WHERE true");
            }
            // The alert of a cause stands for those of its steps; another alert is about one step, or about none. Each
            // half has its own order and limit, because PostgreSQL would sort all rows otherwise.
            IndexFilter::Alert(alert, before) => {
                let parts = "SELECT id FROM (SELECT id FROM (SELECT task_id AS id FROM alerts WHERE part_of = ?";
                statement.push(parts, alert.0);
                let unclosed = " AND part_of IS NOT NULL AND state <> 'closed'";
                statement.sql.push_str(unclosed);
                time_bounds(statement, "task_id", filter);
                if let Some(before) = before {
                    statement.push(" AND task_id < ?", before.0);
                }
                statement.push(" ORDER BY task_id DESC LIMIT ?", PAGE_LOOKS_AT);
                let itself = ") AS parts UNION ALL SELECT task_id AS id FROM alerts WHERE id = ?";
                statement.push(itself, alert.0);
                statement.sql.push_str(
                    " AND state <> 'closed' AND task_id IS NOT NULL) AS alerted WHERE true",
                );
            }
            // The conditions are complete, so that the planner sees that alerts_unclosed_of_failure covers them.
            IndexFilter::Cause(cause) => {
                let failed =
                    "SELECT id FROM (SELECT task_id AS id FROM alerts WHERE fingerprint = ?";
                statement.push(failed, cause.to_string());
                statement.sql.push_str(
                    " AND fingerprint IS NOT NULL AND state <> 'closed') AS failed WHERE true",
                );
            }
            // Some of these tasks may have ended in the meantime.
            IndexFilter::AtRisk => statement.sql.push_str(
                "SELECT id FROM (SELECT task_id AS id FROM tasks_at_risk) AS at_risk WHERE true",
            ),
            // Some of these tasks may have been deleted in the meantime.
            IndexFilter::Bulk(job, result) => {
                let of_job =
                    "SELECT id FROM (SELECT task_id AS id FROM bulk_tasks WHERE job_id = ?";
                statement.push(of_job, *job);
                statement.push(" AND result = ?) AS of_job WHERE true", result.recorded());
            }
            IndexFilter::Label(label, value) => {
                let labelled =
                    "SELECT id FROM (SELECT task_id AS id FROM task_labels WHERE label = ?";
                statement.push(labelled, *label);
                statement.push(" AND value = ?) AS labelled WHERE true", *value);
            }
            // The conditions are complete, so that the planner sees that steps_failed and tasks_failed cover them.
            IndexFilter::FailedAgent(agent) => {
                let failed = "SELECT id FROM (SELECT task_id AS id FROM steps WHERE state = 'error' AND agent = ?";
                statement.push(failed, *agent);
                statement.sql.push_str(") AS failed WHERE true");
            }
            IndexFilter::FailedWorkflow(workflow) => {
                let failed = "SELECT id FROM tasks WHERE state = 'error' AND workflow = ?";
                statement.push(failed, *workflow);
            }
            // The condition is complete, so that the planner sees that tasks_by_state covers it.
            IndexFilter::State(state) => statement.push(
                "SELECT id FROM tasks WHERE state = ? AND state <> 'processed'",
                state.as_str(),
            ),
            IndexFilter::Workflow(workflow) => {
                statement.push("SELECT id FROM tasks WHERE workflow = ?", *workflow);
            }
            IndexFilter::All => statement.sql.push_str("SELECT id FROM tasks WHERE true"),
        }
        time_bounds(statement, "id", filter);
    }
}

/// Ids begin with the time, so entries far from the requested time are not read.
fn time_bounds(statement: &mut Statement, column: &str, filter: &TaskFilter) {
    if let Some(after) = filter.created_after {
        let millis = after.as_millis().saturating_sub(APART);
        statement.push(&format!(" AND {column} > ?"), least_of(millis));
    }
    if let Some(before) = filter.created_before {
        let millis = before.as_millis().saturating_add(APART);
        statement.push(&format!(" AND {column} < ?"), least_of(millis));
    }
}

/// Returns the agent as it is written in the list of the agents of steps without rows, so that the text is found only
/// there. Returns `None` for a text that is no agent's name.
fn quoted(agent: &str) -> Option<String> {
    let is_name = !agent.is_empty() && !agent.contains(['"', '\\']);
    is_name.then(|| format!(":\"{agent}\""))
}

/// Returns the pattern of LIKE for texts that contain this one, with `!` as the escape character. The databases write it in
/// small letters themselves, because they do not know the same letters.
fn contains(text: &str) -> String {
    let mut pattern = String::from("%");
    for letter in text.chars() {
        if matches!(letter, '!' | '%' | '_') {
            pattern.push('!');
        }
        pattern.push(letter);
    }
    pattern.push('%');
    pattern
}

/// Returns the least id of this time.
fn least_of(millis: i64) -> Uuid {
    let millis = u128::try_from(millis).unwrap_or(0).min((1 << 48) - 1);
    Uuid::from_u128(millis << 80)
}

impl Statement {
    /// Appends the tests of the other filters, each a subquery by its own key. A join or EXISTS is not used, because
    /// PostgreSQL makes a join of either, and would read all tasks, or all steps, for those that were found. The filter
    /// that found the tasks is not tested again.
    pub(in crate::store) fn others(&mut self, filter: &TaskFilter, found_by: &IndexFilter<'_>) {
        self.of_task(filter, found_by);
        // All fields are named, so that none is forgotten. Those of the task's own record were tested above.
        let TaskFilter {
            states: _,
            workflow: _,
            key: _,
            created_after: _,
            created_before: _,
            agent,
            labels,
            at_risk,
            parent,
            alert,
            cause,
            text,
            failed_by,
            bulk,
        } = filter;
        if let Some(agent) = agent
            && filter.is_of_failures()
        {
            if !matches!(found_by, IndexFilter::FailedAgent(_)) {
                let failed = " AND (SELECT 1 FROM steps WHERE task_id = looked.id AND state = 'error' AND agent = ? LIMIT 1) IS NOT NULL";
                self.push(failed, agent.as_str());
            }
        } else if let Some(agent) = agent {
            let of_agent = " AND ((SELECT 1 FROM steps WHERE task_id = looked.id AND agent = ? LIMIT 1) IS NOT NULL";
            self.push(of_agent, agent.as_str());
            if let Some(quoted) = quoted(agent) {
                let without_rows = " OR (SELECT 1 FROM tasks WHERE tasks.id = looked.id AND (untouched > 0 OR claim_step IS NOT NULL) AND replace(agents, ?, '') <> agents) IS NOT NULL";
                self.push(without_rows, quoted);
            }
            self.sql.push(')');
        }
        if let Some(time) = failed_by {
            let failed = " AND (SELECT 1 FROM steps WHERE task_id = looked.id AND state = 'error' AND ended_at <= ? LIMIT 1) IS NOT NULL";
            self.push(failed, *time);
        }
        if let Some((job, result)) = bulk
            && (*result == BulkResultFilter::FailedAgain
                || !matches!(found_by, IndexFilter::Bulk(..)))
        {
            let of_job = " AND (SELECT 1 FROM bulk_tasks WHERE task_id = looked.id AND job_id = ?";
            self.push(of_job, *job);
            self.push(" AND result = ?", result.recorded());
            if *result == BulkResultFilter::FailedAgain {
                self.sql.push_str(" AND (SELECT 1 FROM steps WHERE steps.task_id = looked.id AND steps.state = 'error' AND steps.ended_at >= bulk_tasks.at LIMIT 1) IS NOT NULL");
            }
            self.sql.push_str(") IS NOT NULL");
        }
        if *at_risk {
            self.sql.push_str(" AND (SELECT 1 FROM tasks_at_risk WHERE task_id = looked.id) IS NOT NULL AND (SELECT overdue_at FROM tasks WHERE tasks.id = looked.id) IS NOT NULL");
        }
        if let Some(alert) = alert
            && !matches!(found_by, IndexFilter::Alert(..))
        {
            let parts = " AND ((SELECT 1 FROM alerts WHERE part_of IS NOT NULL AND state <> 'closed' AND task_id = looked.id AND part_of = ? LIMIT 1) IS NOT NULL";
            self.push(parts, alert.0);
            let itself = " OR (SELECT 1 FROM alerts WHERE state <> 'closed' AND task_id = looked.id AND id = ?) IS NOT NULL)";
            self.push(itself, alert.0);
        }
        if let Some(cause) = cause
            && !matches!(found_by, IndexFilter::Cause(_))
        {
            let failed = " AND (SELECT 1 FROM alerts WHERE fingerprint = ? AND fingerprint IS NOT NULL AND state <> 'closed' AND task_id = looked.id LIMIT 1) IS NOT NULL";
            self.push(failed, cause.to_string());
        }
        if let Some(text) = text {
            let pattern = contains(text);
            let in_key = " AND ((SELECT 1 FROM tasks WHERE tasks.id = looked.id AND lower(\"key\") LIKE ? ESCAPE '!') IS NOT NULL";
            // Keys are compared byte by byte, so that small letters are those of ASCII here.
            self.push(in_key, pattern.to_ascii_lowercase());
            let in_message = " OR (SELECT 1 FROM (SELECT message FROM alerts WHERE task_id = looked.id AND state <> 'closed' ORDER BY idx LIMIT 100) AS failed WHERE lower(message) LIKE lower(?) ESCAPE '!' LIMIT 1) IS NOT NULL)";
            self.push(in_message, pattern.as_str());
        }
        if let Some(parent) = parent {
            let of_parent = " AND (SELECT 1 FROM child_tasks WHERE child = looked.id AND parent = ?) IS NOT NULL";
            self.push(of_parent, parent.0);
        }
        let labels_asked = usize::from(matches!(found_by, IndexFilter::Label(..)));
        for (label, value) in labels.iter().skip(labels_asked) {
            let labelled =
                " AND (SELECT 1 FROM task_labels WHERE task_id = looked.id AND label = ?";
            self.push(labelled, label.as_str());
            self.push(" AND value = ?) IS NOT NULL", value.as_str());
        }
    }

    /// Appends the filters on the task's own record.
    fn of_task(&mut self, filter: &TaskFilter, found_by: &IndexFilter<'_>) {
        let states = match found_by {
            IndexFilter::State(_) | IndexFilter::FailedWorkflow(_) => &[],
            _ => &filter.states[..],
        };
        let workflow = match found_by {
            IndexFilter::Workflow(_) | IndexFilter::FailedWorkflow(_) => None,
            _ => filter.workflow.as_ref(),
        };
        let key = match found_by {
            IndexFilter::Key(_) => None,
            _ => filter.key.as_ref(),
        };
        let has_time = filter.created_after.is_some() || filter.created_before.is_some();
        if states.is_empty() && workflow.is_none() && key.is_none() && !has_time {
            return;
        }
        self.sql
            .push_str(" AND (SELECT 1 FROM tasks WHERE tasks.id = looked.id");
        for (at, state) in states.iter().enumerate() {
            let word = if at == 0 { " AND state IN (?" } else { ", ?" };
            self.push(word, state.as_str());
        }
        if !states.is_empty() {
            self.sql.push(')');
        }
        if let Some(workflow) = workflow {
            self.push(" AND workflow = ?", workflow.as_str());
        }
        if let Some(key) = key {
            self.push(r#" AND "key" = ?"#, key.as_str());
        }
        if let Some(after) = filter.created_after {
            self.push(" AND created_at > ?", after.as_millis());
        }
        if let Some(before) = filter.created_before {
            self.push(" AND created_at < ?", before.as_millis());
        }
        self.sql.push_str(") IS NOT NULL");
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Returns how many searches a page takes if each takes this time and only the one at this position finds a task;
    /// and whether the page ends with a cursor.
    async fn looks(took: Duration, found_at: usize, all: usize) -> (usize, bool) {
        let positions = RefCell::new(Vec::new());
        let query = TaskQuery {
            filter: TaskFilter::default(),
            before: None,
            limit: 10,
        };
        let elapsed = || took * u32::try_from(positions.borrow().len()).unwrap();
        let page = look_on(&query, elapsed, async |query: TaskQuery| {
            let position = query.before.map_or(0, |before| before.0.as_u128());
            positions.borrow_mut().push(position);
            let looked = positions.borrow().len();
            let next = TaskId(Uuid::from_u128(position + 1));
            Ok(TaskSummaries {
                tasks: if looked == found_at {
                    vec![summary()]
                } else {
                    Vec::new()
                },
                next: (looked < all).then_some(next),
            })
        });
        let page = page.await.unwrap();
        let positions = positions.into_inner();
        let expected: Vec<_> = (0..).take(positions.len()).collect();
        assert_eq!(positions, expected);
        (positions.len(), page.next.is_some())
    }

    fn summary() -> TaskSummary {
        TaskSummary {
            id: TaskId(Uuid::nil()),
            key: None,
            workflow: None,
            state: TaskStatus::Error,
            priority: crate::domain::values::Priority::default(),
            labels: serde_json::value::RawValue::from_string("{}".to_owned()).unwrap(),
            created_at: crate::domain::values::Timestamp::from_millis(0),
            start_at: None,
            complete_by: None,
            at_risk: None,
            ended_at: None,
            version: 1,
            error: None,
        }
    }

    #[tokio::test]
    async fn a_page_looks_on_until_it_has_found_something_or_has_read_enough() {
        let millis = Duration::from_millis;
        assert_eq!(looks(millis(20), 1, 100).await, (1, true));
        assert_eq!(looks(millis(20), 4, 100).await, (4, true));
        assert_eq!(looks(millis(70), 99, 100).await, (3, true));
        assert_eq!(looks(millis(500), 99, 100).await, (1, true));
        assert_eq!(looks(millis(20), 99, 4).await, (4, false));
        assert_eq!(looks(millis(0), 99, 100).await, (5, true));
    }
}
