//! Facts about a database, which `provost doctor` learns without changing it.

use std::time::Duration;

/// The facts about a database.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DatabaseFacts {
    /// The name and version of the server or of the library.
    pub server: String,
    /// The last migration that was applied; 0 before the first.
    pub schema: i64,
    /// The last migration that this version knows.
    pub known_schema: i64,
    pub bytes: u64,
    /// The clock of the server minus that of this machine, in milliseconds. `None`: it is the same clock.
    pub clock_ahead: Option<i64>,
    /// Transactions that have been open for long, as `pg_stat_activity` shows them.
    pub long_transactions: Vec<String>,
    /// Statements that are slow on average. `None`: the server does not record statements.
    pub slow_statements: Option<Vec<String>>,
    /// The time that it took to connect and to read.
    pub took: Duration,
    /// The damage that a quick check found.
    pub damage: Option<String>,
}
