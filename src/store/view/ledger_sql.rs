//! The clauses by which the databases read the ledger.
//!
//! In a file the rows are in the order of the commits. On a server a row is in the order of its transaction's id, which the
//! transaction got at its first write, and it may commit after others with higher ids. So a reader reads only the rows of
//! transactions before the oldest one that runs at that moment, by the snapshot of its own statement: no row that it has not
//! seen can come before one that it has. A transaction that stays open, in any database of the server, delays readers,
//! and no row is ever passed over.

use crate::domain::view::{ChangedTask, LedgerRowNumber};
use crate::store::{
    StoreError,
    error::corrupt,
    rows::{Columns, Row},
    statement::Statement,
};

/// Selects the rows that a reader may read: the condition of the order above. Rows of an earlier epoch were restored,
/// so their transactions have ended.
const READABLE: &str =
    "(epoch, xid) < ((SELECT epoch FROM ledger_state), pg_snapshot_xmin(pg_current_snapshot()))";

/// The events of changes of tasks. Reads the events of no more changes than it returns, because one change of a long list
/// can have megabytes. Relies on the index of the history by task, and on the key of tasks.
const EVENTS: &str = r#",
looked AS (
    SELECT place, task_id, version,
           (SELECT octet_length(history.events) FROM history
            WHERE history.task_id = listed.task_id AND history.version = listed.version) AS bytes
    FROM listed
), page AS (
    SELECT place, task_id, version, bytes,
           sum(coalesce(bytes, 0)) OVER (ORDER BY place) - coalesce(bytes, 0) AS bytes_before
    FROM looked
)
SELECT page.place, tasks."key", tasks.workflow, tasks.workflow_version, tasks.labels,
       (SELECT history.at FROM history
        WHERE history.task_id = page.task_id AND history.version = page.version) AS at,
       (SELECT history.events FROM history
        WHERE history.task_id = page.task_id AND history.version = page.version) AS events
FROM page LEFT JOIN tasks ON tasks.id = page.task_id
WHERE bytes_before < $2 ORDER BY page.place"#;

/// The database whose ledger is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LedgerDialect {
    Sqlite,
    Postgres,
}

impl LedgerDialect {
    /// Returns the columns of a row's number, and those after it.
    fn columns(self) -> &'static str {
        match self {
            Self::Sqlite => "id, at, hex(changes) AS changes, records",
            Self::Postgres => {
                "epoch, CAST(xid AS text) AS xid_text, id, at, encode(changes, 'hex') AS changes, records"
            }
        }
    }

    fn order(self, direction: &str) -> String {
        match self {
            Self::Sqlite => format!(" ORDER BY id {direction}"),
            Self::Postgres => {
                format!(" ORDER BY epoch {direction}, xid {direction}, id {direction}")
            }
        }
    }

    /// Adds the comparison of a row's number with this one.
    pub fn compare(self, statement: &mut Statement, operator: &str, number: LedgerRowNumber) {
        let LedgerRowNumber {
            epoch,
            transaction,
            id,
        } = number;
        match self {
            Self::Sqlite => statement.push(&format!("id {operator} ?"), id),
            Self::Postgres => {
                statement.push(&format!("(epoch, xid, id) {operator} (?"), epoch);
                let transaction = transaction.to_string();
                statement.push(", CAST(CAST(? AS text) AS xid8)", transaction.as_str());
                statement.push(", ?)", id);
            }
        }
    }

    /// Selects readable rows from a number on, or after it, oldest first. Relies on the primary key.
    pub fn rows(self, operator: &str, from: LedgerRowNumber, limit: usize) -> Statement {
        let mut rows = Statement::new(format!("SELECT {} FROM ledger WHERE ", self.columns()));
        self.compare(&mut rows, operator, from);
        self.add_readable(&mut rows);
        rows.sql.push_str(&self.order("ASC"));
        rows.push(" LIMIT ?", limit);
        rows
    }

    /// Selects readable rows of audited records, latest first. Relies on ledger_audited, which has no others.
    pub fn audited(self, before: Option<LedgerRowNumber>, limit: usize) -> Statement {
        let (columns, from) = (self.columns(), self.audited_rows());
        let mut rows = Statement::new(format!(
            "SELECT {columns} FROM {from} WHERE audited IS NOT NULL"
        ));
        if let Some(before) = before {
            rows.sql.push_str(" AND ");
            self.compare(&mut rows, "<", before);
        }
        self.add_readable(&mut rows);
        rows.sql.push_str(&self.order("DESC"));
        rows.push(" LIMIT ?", limit);
        rows
    }

    /// Selects the latest readable row, without its content. Relies on the primary key.
    pub fn newest(self) -> Statement {
        let number = self.number();
        let mut newest = Statement::new(format!("SELECT {number}, at FROM ledger WHERE "));
        self.compare(&mut newest, ">", LedgerRowNumber::default());
        self.add_readable(&mut newest);
        newest.sql.push_str(&self.order("DESC"));
        newest.sql.push_str(" LIMIT 1");
        newest
    }

    /// Selects one row without its content. Relies on the primary key.
    pub fn one(self, number: LedgerRowNumber) -> Statement {
        let mut one = Statement::new(format!("SELECT {}, at FROM ledger WHERE ", self.number()));
        self.compare(&mut one, "=", number);
        one
    }

    /// Selects the first readable rows after a number, or with `>=` from it on, without their content. Relies on the primary
    /// key.
    pub fn first(self, operator: &str, number: LedgerRowNumber, limit: usize) -> Statement {
        let columns = self.number();
        let mut first = Statement::new(format!("SELECT {columns}, at FROM ledger WHERE "));
        self.compare(&mut first, operator, number);
        self.add_readable(&mut first);
        first.sql.push_str(&self.order("ASC"));
        first.push(" LIMIT ?", limit);
        first
    }

    /// Selects the last readable row before a number, without its content. Relies on the primary key.
    pub fn last_before(self, number: LedgerRowNumber) -> Statement {
        let columns = self.number();
        let mut last = Statement::new(format!("SELECT {columns}, at FROM ledger WHERE "));
        self.compare(&mut last, "<", number);
        self.add_readable(&mut last);
        last.sql.push_str(&self.order("DESC"));
        last.sql.push_str(" LIMIT 1");
        last
    }

    /// Returns the part of a number that grows within an epoch.
    pub fn key_of(self, number: LedgerRowNumber) -> u64 {
        match self {
            Self::Sqlite => number.id,
            Self::Postgres => number.transaction,
        }
    }

    /// Returns the lowest number with this key.
    pub fn number_of(self, epoch: u64, key: u64) -> LedgerRowNumber {
        match self {
            Self::Sqlite => LedgerRowNumber {
                id: key,
                ..LedgerRowNumber::default()
            },
            Self::Postgres => LedgerRowNumber {
                epoch,
                transaction: key,
                id: 0,
            },
        }
    }

    /// Selects the oldest rows of audited records, without their content. Relies on ledger_audited.
    pub fn oldest_audited(self, limit: usize) -> Statement {
        let (columns, from) = (self.number(), self.audited_rows());
        let mut oldest = Statement::new(format!(
            "SELECT {columns}, at FROM {from} WHERE audited IS NOT NULL"
        ));
        oldest.sql.push_str(&self.order("ASC"));
        oldest.push(" LIMIT ?", limit);
        oldest
    }

    fn audited_rows(self) -> &'static str {
        match self {
            Self::Sqlite => "ledger INDEXED BY ledger_audited",
            Self::Postgres => "ledger",
        }
    }

    /// Selects the row of the state.
    pub fn state(self) -> Statement {
        Statement::new(match self {
            Self::Sqlite => "SELECT floor_id, complete_since FROM ledger_state",
            Self::Postgres => {
                "SELECT floor_epoch, CAST(floor_xid AS text) AS floor_xid_text, floor_id, complete_since FROM ledger_state"
            }
        })
    }

    /// Sets the floor: the last row that was looked at for deletion.
    pub fn set_floor(self, floor: LedgerRowNumber) -> Statement {
        let mut set = Statement::new("UPDATE ledger_state SET ");
        match self {
            Self::Sqlite => set.push("floor_id = ?", floor.id),
            Self::Postgres => {
                set.push("floor_epoch = ?", floor.epoch);
                let transaction = floor.transaction.to_string();
                let cast = ", floor_xid = CAST(CAST(? AS text) AS xid8)";
                set.push(cast, transaction.as_str());
                set.push(", floor_id = ?", floor.id);
            }
        }
        set
    }

    /// Deletes the rows after one number up to another; with `audited` those that are kept longer, otherwise the others.
    pub fn delete(
        self,
        after: LedgerRowNumber,
        through: LedgerRowNumber,
        audited: bool,
    ) -> Statement {
        let mut delete = Statement::new("DELETE FROM ledger WHERE ");
        self.compare(&mut delete, ">", after);
        delete.sql.push_str(" AND ");
        self.compare(&mut delete, "<=", through);
        delete.sql.push_str(match audited {
            true => " AND audited IS NOT NULL",
            false => " AND audited IS NULL",
        });
        delete
    }

    /// Adds a row with records.
    pub fn add(self) -> &'static str {
        match self {
            Self::Sqlite => "INSERT INTO ledger (at, records, audited) VALUES ($1, $2, $3)",
            Self::Postgres => {
                "INSERT INTO ledger (epoch, at, records, audited) SELECT epoch, $1, $2, $3 FROM ledger_state"
            }
        }
    }

    /// Selects the events of changes of tasks, until they have this number of bytes.
    pub fn events(self, changes: &[ChangedTask], bytes: usize) -> Statement {
        let listed = match self {
            Self::Sqlite => {
                "WITH listed AS MATERIALIZED (
    SELECT key AS place, unhex(value ->> 0) AS task_id, value ->> 1 AS version FROM json_each($1))"
            }
            Self::Postgres => {
                "WITH listed AS MATERIALIZED (
    SELECT place - 1 AS place, (value ->> 0)::uuid AS task_id, (value ->> 1)::bigint AS version
    FROM json_array_elements($1::text::json) WITH ORDINALITY AS item (value, place))"
            }
        };
        let changes: Vec<_> = changes
            .iter()
            .map(|change| (change.task.0.simple().to_string(), change.version))
            .collect();
        // Texts and numbers always serialise.
        let changes = serde_json::to_string(&changes).unwrap_or_default();
        Statement::new(format!("{listed}{EVENTS}"))
            .bind(changes)
            .bind(bytes)
    }

    fn number(self) -> &'static str {
        match self {
            Self::Sqlite => "id",
            Self::Postgres => "epoch, CAST(xid AS text) AS xid_text, id",
        }
    }

    fn add_readable(self, statement: &mut Statement) {
        if self == Self::Postgres {
            statement.sql.push_str(" AND ");
            statement.sql.push_str(READABLE);
        }
    }

    /// Reads the number of a row. `prefix` comes before the names of its columns.
    pub fn read_number(self, row: &Row, prefix: &str) -> Result<LedgerRowNumber, StoreError> {
        let id = row.get(&format!("{prefix}id"))?;
        match self {
            Self::Sqlite => Ok(LedgerRowNumber {
                id,
                ..LedgerRowNumber::default()
            }),
            Self::Postgres => {
                let transaction: String = row.get(&format!("{prefix}xid_text"))?;
                Ok(LedgerRowNumber {
                    epoch: row.get(&format!("{prefix}epoch"))?,
                    transaction: transaction.parse().map_err(corrupt)?,
                    id,
                })
            }
        }
    }
}

/// Returns every statement that reads the ledger, for tests of their plans.
#[cfg(test)]
pub fn statements(dialect: LedgerDialect) -> Vec<Statement> {
    let row = LedgerRowNumber {
        epoch: 1,
        transaction: 900,
        id: 900,
    };
    let changed = ChangedTask {
        task: crate::domain::values::TaskId(uuid::Uuid::nil()),
        version: 1,
    };
    vec![
        dialect.rows(">", row, 100),
        dialect.rows(">=", row, 100),
        dialect.newest(),
        dialect.one(row),
        dialect.first(">", row, 100),
        dialect.last_before(row),
        dialect.audited(None, 100),
        dialect.audited(Some(row), 100),
        dialect.oldest_audited(100),
        dialect.events(&[changed], 1000),
    ]
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    #[test]
    fn every_statement_of_the_ledger_follows_an_index() {
        let database = Connection::open_in_memory().unwrap();
        for migration in crate::store::migrations::sqlite() {
            database.execute_batch(migration.sql.as_str()).unwrap();
        }
        for statement in statements(LedgerDialect::Sqlite) {
            let sql = statement.sql;
            let mut explain = database
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .unwrap();
            let lines = explain
                .raw_query()
                .mapped(|line| line.get::<_, String>("detail"));
            for line in lines.map(Result::unwrap) {
                // The changes that were asked for.
                let is_small = ["json_each", "listed", "looked", "page", "(subquery-"];
                let is_small = is_small.iter().any(|of| line.contains(of));
                let is_index = line.contains("USING INDEX ledger_audited");
                assert!(
                    !line.starts_with("SCAN ") || is_small || is_index,
                    "{line} in {sql}"
                );
                assert!(
                    !line.contains("TEMP B-TREE") || sql.contains("listed"),
                    "{line} in {sql}"
                );
            }
        }
    }
}
