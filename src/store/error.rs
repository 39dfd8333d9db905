//! The errors of the store, and of commands that are sent to it.

use sqlx::postgres::PgDatabaseError;
use thiserror::Error;

use super::{postgres, sqlite};
use crate::domain::{task::Refusal, values::TaskId};

#[derive(Clone, Debug, Error)]
pub enum StoreError {
    #[error(
        "the disk that holds the database is full, or the database has reached its size limit: free some space; the service then continues automatically"
    )]
    Full,
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// It is not known whether the transaction was saved, and the database cannot be asked: another attempt could make
    /// all of its changes twice.
    #[error(
        "{0}; the command may have been carried out: check, or send it again under the same Idempotency-Key"
    )]
    CommitUnknown(String),
    /// The connection was lost, or there was no response: the changes that were sent for commit may be saved, or not.
    #[error("the connection to the database was lost: {0}")]
    Lost(String),
    /// The database can be reached, and refuses all writes, or the locks that this write needs. Nothing was saved, and
    /// an immediate retry would not help.
    #[error(
        "the database lets nothing be saved now ({0}), and nothing was changed: retry after Retry-After"
    )]
    NotNow(String),
    /// Another session has locked a row that this write needs. Nothing was saved. Writes to other rows are not
    /// affected.
    #[error(
        "another session of the database holds a record that this needs ({0}), and nothing was changed: retry after Retry-After"
    )]
    RowLocked(String),
    /// Nothing of the transaction was saved, and another attempt may well succeed: the writer makes it.
    #[error("the transaction was interrupted: {0}")]
    Retryable(String),
    #[error(
        "a record in the database cannot be read ({0}): it is damaged, or a newer version wrote it. Other tasks are not affected; see docs/deploy.md, \"A part that cannot be read\""
    )]
    Corrupt(String),
    #[error(transparent)]
    Task(#[from] UnreadableTask),
    /// Nothing was changed. The writer has logged the panic.
    #[error(
        "an internal error prevented this, and nothing was changed; the service's log has the details: report it, and retry once it is fixed"
    )]
    Panicked,
    /// A page of the database file is damaged, or the disk does not return it.
    #[error(
        "a part of the database cannot be read ({0}): tasks in other parts continue; see docs/deploy.md, \"A part that cannot be read\""
    )]
    Unreadable(String),
    #[error("the service is stopping")]
    Stopping,
}

/// A task that exists, and whose record cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "task {task} cannot be read ({reason}): its record in the database is damaged, or a newer version wrote it. The task is left unchanged, and all other tasks continue. Cancel it if it is not needed (POST /v1/tasks/{task}/cancel), or repair the database: docs/deploy.md, \"A part that cannot be read\""
)]
pub struct UnreadableTask {
    pub task: TaskId,
    /// The damaged part of the record, and its damage.
    pub reason: String,
}

impl StoreError {
    /// Returns whether requested data is damaged, even if other data can be read and written.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            StoreError::Corrupt(_) | StoreError::Unreadable(_) | StoreError::Task(_)
        )
    }

    /// Returns whether the same request may succeed later without a change by a person, because the database or its
    /// disk recovers.
    pub fn may_pass(&self) -> bool {
        match self {
            StoreError::Full
            | StoreError::Unavailable(_)
            | StoreError::CommitUnknown(_)
            | StoreError::Lost(_)
            | StoreError::NotNow(_)
            | StoreError::RowLocked(_)
            | StoreError::Retryable(_) => true,
            StoreError::Corrupt(_)
            | StoreError::Task(_)
            | StoreError::Panicked
            | StoreError::Unreadable(_)
            | StoreError::Stopping => false,
        }
    }

    /// Returns whether an alert or the log names the error already, and no other task is affected.
    pub fn is_of_one_task(&self) -> bool {
        matches!(self, StoreError::Task(_) | StoreError::Panicked)
    }

    /// Returns the description of the damage without the remedy.
    pub fn damage(self) -> String {
        match self {
            StoreError::Corrupt(reason) | StoreError::Unreadable(reason) => reason,
            StoreError::Task(unreadable) => unreadable.reason,
            error => error.to_string(),
        }
    }

    /// Returns the error of a read that has waited too long for a connection.
    pub(super) fn no_connection() -> Self {
        StoreError::Unavailable(
            "timed out waiting for a read connection: either the database cannot be reached, or there are more reads at once than connections (on PostgreSQL: postgres.max_connections)".to_owned(),
        )
    }

    /// Converts the error for callers that do not retry, or have retried often enough.
    pub(super) fn into_unavailable(self) -> Self {
        match self {
            StoreError::Retryable(reason) | StoreError::Lost(reason) => {
                StoreError::Unavailable(reason)
            }
            error => error,
        }
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let message = error.to_string();
        match &error {
            sqlx::Error::Database(database) => {
                let code = database.code().unwrap_or_default();
                match database.try_downcast_ref::<PgDatabaseError>() {
                    Some(said) => {
                        let of_row = said.r#where().is_some();
                        postgres::error(&code, said.message().to_owned(), of_row)
                    }
                    None => StoreError::Unavailable(message),
                }
            }
            sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::Decode(_) => StoreError::Corrupt(message),
            sqlx::Error::PoolTimedOut => StoreError::no_connection(),
            // These are errors of a connection to a server.
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => {
                StoreError::Lost(message)
            }
            _ => StoreError::Unavailable(message),
        }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        let message = error.to_string();
        match error {
            rusqlite::Error::SqliteFailure(code, _) => sqlite::error(code.extended_code, message),
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnName(_)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::QueryReturnedNoRows
            | rusqlite::Error::Utf8Error(..) => StoreError::Corrupt(message),
            _ => StoreError::Unavailable(message),
        }
    }
}

#[derive(Clone, Debug, Error)]
pub enum CommandError {
    #[error("the task does not exist; ended tasks are deleted after the retention time")]
    NoTask,
    #[error("{refusal}")]
    Refused {
        refusal: Refusal,
        /// The state of the task that refused the command.
        state: &'static str,
    },
    #[error("the task has changed: it is at version {current}, not {expected}")]
    VersionMismatch { expected: u64, current: u64 },
    #[error("this Idempotency-Key was used with another request")]
    KeyReused,
    #[error(
        "as many tasks with the key {key:?} of {by:?} run as the workflow allows: {max_running}; submit it again when one has ended"
    )]
    TaskLimit {
        by: String,
        key: String,
        max_running: u32,
    },
    /// The decision panicked. Other commands are not affected.
    #[error(
        "an internal error prevented this command, which changed nothing; the service's log has the details, and if the command was about a task, an alert names it: report it, and send the command again once it is fixed"
    )]
    Panicked,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl CommandError {
    /// Returns whether steps prevent a task from moving to another version.
    pub fn is_unmapped(&self) -> bool {
        matches!(
            self,
            CommandError::Refused {
                refusal: Refusal::Unmapped { .. },
                ..
            }
        )
    }
}

pub fn corrupt(reason: impl ToString) -> StoreError {
    StoreError::Corrupt(reason.to_string())
}
