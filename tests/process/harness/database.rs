//! The database file, as a program that knows the schema reads it.

use std::path::Path;

use rusqlite::{
    Batch, Connection, OpenFlags, Row, fallible_iterator::FallibleIterator, types::FromSql,
};
use tempfile::TempDir;

/// The connection is closed when this is dropped, before the copy is removed.
pub struct Database {
    connection: Connection,
    _copy: Option<TempDir>,
}

#[derive(Debug)]
pub struct StepRow {
    /// The id as the API writes it.
    pub task: String,
    pub name: String,
    pub state: String,
}

impl Database {
    pub fn open(path: &Path) -> Self {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE);
        Self {
            connection: connection.unwrap(),
            _copy: None,
        }
    }

    /// Opens a copy: opening a database after a crash repairs it, and Provost itself must do that.
    pub fn copy_of(path: &Path) -> Self {
        let folder = TempDir::new().unwrap();
        for suffix in ["", "-wal"] {
            let name = format!("{}{suffix}", path.display());
            if Path::new(&name).exists() {
                std::fs::copy(&name, folder.path().join(format!("copy.db{suffix}"))).unwrap();
            }
        }
        let mut copy = Self::open(&folder.path().join("copy.db"));
        copy._copy = Some(folder);
        copy
    }

    /// Runs each statement, and reads all rows of a statement that returns some.
    pub fn execute(&self, sql: &str) {
        let mut statements = Batch::new(&self.connection, sql);
        while let Some(mut statement) = statements.next().unwrap() {
            let mut rows = statement.query([]).unwrap();
            while rows.next().unwrap().is_some() {}
        }
    }

    /// Returns the one value of a statement.
    pub fn number(&self, sql: &str) -> i64 {
        self.value(sql)
    }

    /// Returns the result of SQLite's check: `ok` if the file is not damaged.
    pub fn check(&self) -> String {
        self.value("PRAGMA integrity_check")
    }

    pub fn steps(&self) -> Vec<StepRow> {
        let steps = "SELECT lower(hex(task_id)) AS task, name, state FROM steps";
        self.rows(steps, |row| {
            let task: String = row.get("task")?;
            Ok(StepRow {
                task: uuid::Uuid::try_parse(&task).unwrap().to_string(),
                name: row.get("name")?,
                state: row.get("state")?,
            })
        })
    }

    /// Returns the ids of all tasks.
    pub fn tasks(&self) -> Vec<String> {
        self.rows("SELECT lower(hex(id)) AS id FROM tasks", |row| {
            let id: String = row.get("id")?;
            Ok(uuid::Uuid::try_parse(&id).unwrap().to_string())
        })
    }

    /// Returns the ends of the leases of the instances and of the supervisor, in milliseconds since 1970.
    pub fn lease_ends(&self) -> Vec<i64> {
        let ends = "SELECT until FROM instances UNION ALL SELECT until FROM supervisor";
        self.rows(ends, |row| row.get("until"))
    }

    pub fn columns(&self, table: &str) -> Vec<String> {
        let sql = format!("SELECT name FROM pragma_table_info('{table}')");
        self.rows(&sql, |row| row.get("name"))
    }

    /// Returns SQLite's plan for a statement.
    pub fn plan(&self, sql: &str) -> String {
        let lines: Vec<String> = self.rows(sql, |row| row.get("detail"));
        lines.join("\n")
    }

    fn value<V: FromSql>(&self, sql: &str) -> V {
        self.connection
            .query_row(sql, [], |row| row.get(0))
            .unwrap()
    }

    fn rows<R>(&self, sql: &str, read: impl FnMut(&Row<'_>) -> rusqlite::Result<R>) -> Vec<R> {
        let mut statement = self.connection.prepare(sql).unwrap();
        let rows = statement.query_map([], read).unwrap();
        rows.map(Result::unwrap).collect()
    }
}
