//! The tasks that a bulk command works through, oldest first, by filters that no index has all of: as with
//! [`super::pages`], an index gives tasks by one of them, and the others are asked of each. A look at them ends when
//! enough are found, or when as many were looked at as may be.

use uuid::Uuid;

use super::{
    StoreError, TaskFilter,
    pages::{IndexFilter, MOST_LOOKED_AT},
    rows::Columns,
    statement::Statement,
};
use crate::domain::{TaskId, TaskStatus};

/// How far a look went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look<T> {
    pub found: T,
    /// How many tasks were looked at.
    pub looked_at: usize,
    /// After this one there may be more. None: there are no more.
    pub next: Option<TaskId>,
}

/// Which tasks, from where, and how many are looked at: at most [`MOST_LOOKED_AT`].
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

    /// The filters beside the states that an index finds tasks by. What is found by one of them may be fewer, or many
    /// more, as it has the ended tasks too: which it is, [`Range::is_long`] asks.
    pub fn narrow(&self) -> Vec<IndexFilter<'f>> {
        let filter = self.filter;
        let key = filter.key.as_deref().map(IndexFilter::Key);
        let labels = filter.labels.iter();
        let labels = labels.map(|(label, value)| IndexFilter::Label(label, value));
        let workflow = filter.workflow.as_deref().map(IndexFilter::Workflow);
        let at_risk = filter.at_risk.then_some(IndexFilter::AtRisk);
        key.into_iter()
            .chain(at_risk)
            .chain(labels)
            .chain(workflow)
            .collect()
    }

    /// Finds a row where an index finds more by this than one look may have.
    pub fn is_long(&self, first: &IndexFilter<'_>) -> Statement {
        let mut statement = Statement::new("");
        self.of_index(&mut statement, first);
        statement.push(" LIMIT 1 OFFSET ?", MOST_LOOKED_AT);
        statement
    }

    /// The ids of up to `limit` tasks, each with its position among those that are looked at.
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

    /// The last of those that are looked at, if they are as many as may be.
    pub fn last(&self, first: Option<&IndexFilter<'_>>) -> Statement {
        let mut statement = Statement::new("SELECT id FROM (");
        self.looked_at(&mut statement, first);
        statement.push(
            ") AS looked ORDER BY id LIMIT 1 OFFSET ?",
            self.most.saturating_sub(1),
        );
        statement
    }

    /// What [`Range::ids`] and [`Range::last`] have found.
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

    /// What [`Range::count`] and [`Range::last`] have found.
    pub fn counted<R: Columns>(&self, count: &[R], last: &[R]) -> Result<Look<u64>, StoreError> {
        let found = count.first().map(|row| row.get("count"));
        let next = last.first().map(|row| row.get("id"));
        Ok(Look {
            found: found.transpose()?.unwrap_or_default(),
            looked_at: self.most,
            next: next.transpose()?,
        })
    }

    /// The first so many that the filter finds, or else the states.
    fn looked_at(&self, statement: &mut Statement, first: Option<&IndexFilter<'_>>) {
        let states = &self.filter.states;
        match (first, states.as_slice()) {
            (Some(first), _) => self.of_index(statement, first),
            (None, []) => self.of_index(statement, &IndexFilter::All),
            (None, [state]) => self.of_index(statement, &IndexFilter::State(*state)),
            (None, _) => {
                // tasks_by_state has the ids of one state in order, but not those of several.
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
        first.ids(statement, self.filter);
        statement.push(" AND id > ? ORDER BY id", self.after);
    }

    /// Nothing more is asked of those that were found by their state, where nothing else is given.
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
