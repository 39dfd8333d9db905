//! A start waits while the database is unreachable, as a running instance does. So the order in which both start, or a
//! failover during a restart, does not matter. A start on a full disk waits too. A fault that only a person can fix (a
//! wrong password, a schema that is too new) ends the start.

use std::{fmt::Display, time::Duration};

use tracing::{info, warn};

use super::database::{self, Database};
use crate::{
    chance,
    clock::{self, Instant, sleep},
    config::{Config, Listen},
    instance::JoinError,
    store::{Health, OpenError, RECONNECT, Store, StoreError, StoreFault},
};

/// The interval at which an unchanged reason is logged again.
const LOG_AGAIN: Duration = Duration::from_secs(30);

/// The backoff between attempts, and its log lines: each new reason, and an unchanged one at intervals.
struct StartBackoff {
    attempts: u32,
    said: Option<(String, Instant)>,
}

impl StartBackoff {
    fn new() -> Self {
        Self {
            attempts: 0,
            said: None,
        }
    }

    /// Waits before the next attempt. Calls `say` with the reason if it is worth a log line.
    async fn wait(&mut self, error: impl Display, say: impl FnOnce(&str)) {
        self.attempts += 1;
        let reason = error.to_string();
        let is_known = |(said, at): &(String, Instant)| *said == reason && at.elapsed() < LOG_AGAIN;
        if !self.said.as_ref().is_some_and(is_known) {
            say(&reason);
            self.said = Some((reason, clock::instant()));
        }
        // Jitter, so that instances do not all retry at the same moment.
        sleep(RECONNECT.equal_jitter(self.attempts, chance::random())).await;
    }
}

/// Opens the database, as soon as it can be reached.
pub(super) async fn open(
    config: &Config,
    address: &Listen,
    health: &Health,
) -> Result<Database, OpenError> {
    let mut patience = StartBackoff::new();
    // True if the last attempt found the disk full.
    let mut was_full = false;
    loop {
        let opened = database::open(config, health).await;
        let was_full =
            std::mem::replace(&mut was_full, matches!(opened, Err(OpenError::Full { .. })));
        match opened {
            Err(error @ OpenError::Unreachable { .. }) => {
                let say = |reason: &str| {
                    warn!(%address, "{reason}. Retrying until the database can be reached; until then /livez returns 200 and everything else 503");
                };
                patience.wait(error, say).await;
            }
            Err(error @ OpenError::Busy { .. }) => {
                let say = |reason: &str| {
                    warn!(%address, "{reason}. Retrying until it is migrated; until then /livez returns 200 and everything else 503");
                };
                patience.wait(error, say).await;
            }
            Err(error @ OpenError::Full { .. }) => {
                health.raise(StoreFault::Full, error.to_string());
                let say = |reason: &str| {
                    warn!(%address, "{reason}. Retrying until there is room; until then /livez returns 200 and everything else 503");
                };
                patience.wait(error, say).await;
            }
            // The disk was full when a write failed, and had room when it was checked, so the error names only the
            // write.
            Err(error @ OpenError::Unusable { .. }) if was_full => {
                let say = |reason: &str| warn!(%address, "{reason}, on a disk that was full. Trying again");
                patience.wait(error, say).await;
            }
            Ok(database) => {
                health.clear(StoreFault::Full);
                if patience.attempts > 0 {
                    info!(tries = patience.attempts, "the database is available");
                }
                return Ok(database);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Runs one part of the start, and retries it while the database is unreachable.
pub(super) async fn retry_while_unreachable<T, E, F>(
    store: &Store,
    what: &str,
    mut work: impl FnMut() -> F,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
    E: MayBeTransient + Display,
{
    let mut patience = StartBackoff::new();
    loop {
        match work().await {
            // These are the only faults of a file that can disappear without a person's action.
            Err(error)
                if error.may_be_transient()
                    && (store.is_shared || store.health.worst().is_some()) =>
            {
                let say = |reason: &str| warn!(reason, "cannot {what} yet; retrying");
                patience.wait(error, say).await;
            }
            done => return done,
        }
    }
}

/// Says whether an error may be transient.
pub(super) trait MayBeTransient {
    fn may_be_transient(&self) -> bool;
}

impl MayBeTransient for StoreError {
    fn may_be_transient(&self) -> bool {
        matches!(
            self,
            Self::Unavailable(_)
                | Self::Retryable(_)
                | Self::Lost(_)
                | Self::NotNow(_)
                | Self::RowLocked(_)
                | Self::Full
        )
    }
}

impl MayBeTransient for JoinError {
    fn may_be_transient(&self) -> bool {
        matches!(self, Self::Store(error) if error.may_pass())
    }
}
