//! What can go wrong with the store, and with a command sent to it.

use thiserror::Error;

use crate::domain::Refusal;

#[derive(Clone, Debug, Error)]
pub enum StoreError {
    #[error(
        "the disk that holds the database is full, or the database has reached its size limit: free some space; the service goes on by itself"
    )]
    Full,
    #[error("the store cannot be reached right now: {0}")]
    Unavailable(String),
    #[error("the database holds something that this version cannot read: {0}")]
    Corrupt(String),
    #[error("the service is stopping")]
    Stopping,
}

#[derive(Clone, Debug, Error)]
pub enum CommandError {
    #[error("there is no such task")]
    NoTask,
    #[error("{refusal}")]
    Refused {
        refusal: Refusal,
        /// The state of the task that refused.
        state: &'static str,
    },
    #[error("the task has changed: it is at version {current}, not {expected}")]
    VersionMismatch { expected: u64, current: u64 },
    #[error("this Idempotency-Key was used with another request")]
    KeyReused,
    #[error(transparent)]
    Store(#[from] StoreError),
}
