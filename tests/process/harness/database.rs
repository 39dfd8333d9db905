//! The database file, as one who knows the schema reads it.

use std::path::Path;

use sqlx::{ConnectOptions, Connection, Row, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

pub struct Database {
    connection: SqliteConnection,
    _copy: Option<TempDir>,
}

#[derive(Debug)]
pub struct StepRow {
    /// As the API writes it.
    pub task: String,
    pub name: String,
    pub state: String,
}

impl Database {
    pub async fn open(path: &Path) -> Self {
        let options = SqliteConnectOptions::new().filename(path);
        Self {
            connection: options.connect().await.unwrap(),
            _copy: None,
        }
    }

    /// Opens a copy: whoever opens a database after a crash repairs it, and that is for Provost to do.
    pub async fn copy_of(path: &Path) -> Self {
        let folder = TempDir::new().unwrap();
        for suffix in ["", "-wal"] {
            let name = format!("{}{suffix}", path.display());
            if Path::new(&name).exists() {
                std::fs::copy(&name, folder.path().join(format!("copy.db{suffix}"))).unwrap();
            }
        }
        let mut copy = Self::open(&folder.path().join("copy.db")).await;
        copy._copy = Some(folder);
        copy
    }

    /// Dropped, it would be closed at some later time.
    pub async fn close(self) {
        self.connection.close().await.unwrap();
    }

    pub async fn execute(&mut self, sql: &'static str) {
        self.run(sql).await;
    }

    pub async fn run(&mut self, sql: &str) {
        sqlx::query(sqlx::AssertSqlSafe(sql.to_owned()))
            .execute(&mut self.connection)
            .await
            .unwrap();
    }

    /// The one value that a statement finds.
    pub async fn number(&mut self, sql: &'static str) -> i64 {
        let found = sqlx::query_scalar(sql).fetch_one(&mut self.connection);
        found.await.unwrap()
    }

    /// What SQLite finds wrong with it: `ok` is nothing.
    pub async fn check(&mut self) -> String {
        let checked = sqlx::query_scalar("PRAGMA integrity_check");
        checked.fetch_one(&mut self.connection).await.unwrap()
    }

    pub async fn steps(&mut self) -> Vec<StepRow> {
        let rows = sqlx::query("SELECT lower(hex(task_id)) AS task, name, state FROM steps")
            .fetch_all(&mut self.connection)
            .await
            .unwrap();
        let steps = rows.iter().map(|row| {
            let task: String = row.get("task");
            StepRow {
                task: uuid::Uuid::try_parse(&task).unwrap().to_string(),
                name: row.get("name"),
                state: row.get("state"),
            }
        });
        steps.collect()
    }

    /// Until when instances and the supervisor have their leases, in milliseconds since 1970.
    pub async fn lease_ends(&mut self) -> Vec<i64> {
        sqlx::query_scalar("SELECT until FROM instances UNION ALL SELECT until FROM supervisor")
            .fetch_all(&mut self.connection)
            .await
            .unwrap()
    }

    /// How SQLite would run a statement.
    pub async fn plan(&mut self, sql: &'static str) -> String {
        let rows = sqlx::query(sql)
            .fetch_all(&mut self.connection)
            .await
            .unwrap();
        let lines: Vec<String> = rows.iter().map(|row| row.get("detail")).collect();
        lines.join("\n")
    }
}
