//! Finds the tasks of a bulk command, oldest first, by filters that no single index covers. As in [`super::pages`], an
//! index finds tasks by one filter, and the other filters are tested for each task. A search ends when enough tasks are
//! found, or when the most tasks that it may read were read.

use uuid::Uuid;

use super::pages::{IndexFilter, MOST_LOOKED_AT};
use crate::domain::{task::TaskStatus, values::TaskId};
use crate::store::{StoreError, TaskFilter, rows::Columns, statement::Statement};

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look<T> {
    pub found: T,
    /// The number of tasks that were read.
    pub looked_at: usize,
    /// There may be more tasks after this one. `None` if there are no more.
    pub next: Option<TaskId>,
}

/// The tasks that are searched, where the search begins, and how many tasks it reads: at most [`MOST_LOOKED_AT`].
#[derive(Clone, Copy)]
pub struct Range<'f> {
    filter: &'f TaskFilter,
    after: Uuid,
    most: usize,
}

impl<'f> Range<'f> {
    pub fn new(filter: &'f TaskFilter, after: Option<TaskId>, most: usize) -> Self {
        Self {
            filter,
            after: after.map_or(Uuid::nil(), |after| after.0),
            most: most.min(MOST_LOOKED_AT),
        }
    }

    /// Returns the filters, except states, by which an index finds tasks. An index may find fewer tasks by such a
    /// filter than by the states, or many more, because it has the ended tasks too: [`Range::is_long`] finds out.
    pub fn narrow(&self) -> Vec<IndexFilter<'f>> {
        let filter = self.filter;
        let key = filter.key.as_deref().map(IndexFilter::Key);
        let labels = filter.labels.iter();
        let labels = labels.map(|(label, value)| IndexFilter::Label(label, value));
        let workflow = filter.workflow.as_deref().map(IndexFilter::Workflow);
        let at_risk = filter.at_risk.then_some(IndexFilter::AtRisk);
        let bulk = filter.bulk;
        let bulk = bulk.map(|(job, result)| IndexFilter::Bulk(job, result));
        key.into_iter()
            .chain(at_risk)
            .chain(bulk)
            .chain(labels)
            .chain(workflow)
            .collect()
    }

    /// Returns the filter whose index has only tasks in error, if there is one. Each of them matches the states too, so
    /// that it finds fewer tasks than those, however many it finds.
    pub fn of_failures(&self) -> Option<IndexFilter<'f>> {
        let filter = self.filter;
        if let Some(cause) = filter.cause {
            return Some(IndexFilter::Cause(cause));
        }
        if !filter.is_of_failures() {
            return None;
        }
        match (&filter.agent, &filter.workflow) {
            (Some(agent), _) => Some(IndexFilter::FailedAgent(agent)),
            (None, Some(workflow)) => Some(IndexFilter::FailedWorkflow(workflow)),
            (None, None) => None,
        }
    }

    /// Finds a row if an index has more tasks for this filter than one search may read.
    pub fn is_long(&self, first: &IndexFilter<'_>) -> Statement {
        let mut statement = Statement::new("");
        self.of_index(&mut statement, first);
        statement.push(" LIMIT 1 OFFSET ?", MOST_LOOKED_AT);
        statement
    }

    /// Finds the ids of up to `limit` tasks, each with its position among those that are read.
    pub fn ids(&self, first: Option<&IndexFilter<'_>>, limit: usize) -> Statement {
        let mut statement = Statement::new(
            "SELECT id, place FROM (SELECT id, row_number() OVER (ORDER BY id) AS place FROM (",
        );
        self.looked_at(&mut statement, first);
        statement.sql.push_str(") AS ids) AS looked WHERE true");
        self.others(&mut statement, first);
        statement.push(" ORDER BY id LIMIT ?", limit);
        statement
    }

    pub fn count(&self, first: Option<&IndexFilter<'_>>) -> Statement {
        let mut statement = Statement::new("SELECT count(*) AS count FROM (");
        self.looked_at(&mut statement, first);
        statement.sql.push_str(") AS looked WHERE true");
        self.others(&mut statement, first);
        statement
    }

    /// Finds the last of the tasks that are read, if they are the most that may be.
    pub fn last(&self, first: Option<&IndexFilter<'_>>) -> Statement {
        let mut statement = Statement::new("SELECT id FROM (");
        self.looked_at(&mut statement, first);
        statement.push(
            ") AS looked ORDER BY id LIMIT 1 OFFSET ?",
            self.most.saturating_sub(1),
        );
        statement
    }

    /// Reads the results of [`Range::ids`] and [`Range::last`].
    pub fn look<R: Columns>(
        &self,
        limit: usize,
        ids: &[R],
        last: &[R],
    ) -> Result<Look<Vec<TaskId>>, StoreError> {
        let found = ids.iter().map(|row| row.get("id"));
        let found = found.collect::<Result<Vec<_>, _>>()?;
        if let (Some(id), Some(row), true) = (found.last(), ids.last(), found.len() >= limit) {
            return Ok(Look {
                next: Some(*id),
                looked_at: row.get("place")?,
                found,
            });
        }
        let next = last.first().map(|row| row.get("id"));
        Ok(Look {
            found,
            looked_at: self.most,
            next: next.transpose()?,
        })
    }

    /// Reads the results of [`Range::count`] and [`Range::last`].
    pub fn counted<R: Columns>(&self, count: &[R], last: &[R]) -> Result<Look<u64>, StoreError> {
        let found = count.first().map(|row| row.get("count"));
        let next = last.first().map(|row| row.get("id"));
        Ok(Look {
            found: found.transpose()?.unwrap_or_default(),
            looked_at: self.most,
            next: next.transpose()?,
        })
    }

    /// Appends the selection of the first tasks by this filter, or else by the states, up to the most that may be read.
    fn looked_at(&self, statement: &mut Statement, first: Option<&IndexFilter<'_>>) {
        let states = &self.filter.states;
        match (first, states.as_slice()) {
            (Some(first), _) => self.of_index(statement, first),
            (None, []) => self.of_index(statement, &IndexFilter::All),
            // No index by states has processed tasks: the states are tested for each task.
            (None, states) if states.contains(&TaskStatus::Processed) => {
                self.of_index(statement, &IndexFilter::All);
            }
            (None, [state]) => self.of_index(statement, &IndexFilter::State(*state)),
            (None, _) => {
                // tasks_by_state has the ids of one state in order, but not those of several states.
                statement.sql.push_str("SELECT id FROM (");
                for (at, state) in states.iter().enumerate() {
                    let word = if at == 0 { "" } else { " UNION ALL " };
                    statement.sql.push_str(word);
                    statement.sql.push_str("SELECT id FROM (");
                    self.of_index(statement, &IndexFilter::State(*state));
                    statement.push(" LIMIT ?", self.most);
                    statement.sql.push_str(&format!(") AS state_{at}"));
                }
                statement.sql.push_str(") AS states ORDER BY id");
            }
        }
        statement.push(" LIMIT ?", self.most);
    }

    fn of_index(&self, statement: &mut Statement, first: &IndexFilter<'_>) {
        // Several rows of a task follow each other in the index, so that no more is read than for one row each.
        if first.repeats_tasks() {
            statement.sql.push_str("SELECT DISTINCT id FROM (");
        }
        first.ids(statement, self.filter);
        statement.push(" AND id > ?", self.after);
        if first.repeats_tasks() {
            statement.sql.push_str(") AS repeated");
        }
        statement.sql.push_str(" ORDER BY id");
    }

    /// Appends the other filters. Tasks that were found by their states need no test if there are no other filters.
    fn others(&self, statement: &mut Statement, first: Option<&IndexFilter<'_>>) {
        let states = TaskFilter {
            states: self.filter.states.clone(),
            ..TaskFilter::default()
        };
        let is_all = !states.states.contains(&TaskStatus::Processed) && *self.filter == states;
        if first.is_some() || !is_all {
            statement.others(self.filter, &IndexFilter::All);
        }
    }
}
