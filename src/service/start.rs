//! A start while the database is unreachable waits for it, as a running instance does, so the order in which both
//! start, or a failover during a restart, does not matter. A start on a full disk waits too. A fault that only a
//! person can fix (a wrong password, a schema that is too new) ends the start.

use std::{fmt::Display, time::Duration};

use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::database::{self, Database};
use crate::{
    config::{Config, Listen},
    instance::JoinError,
    store::{Health, OpenError, RECONNECT, Store, StoreError, StoreFault},
};

/// The interval at which an unchanged reason is logged again.
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// The backoff between attempts, and the log lines meanwhile: each new reason, and the same one now and then.
struct Patience {
    tries: u32,
    said: Option<(String, Instant)>,
}

impl Patience {
    fn new() -> Self {
        Self {
            tries: 0,
            said: None,
        }
    }

    /// Waits before the next attempt. Calls `say` with the reason if it is worth a log line.
    async fn wait(&mut self, error: impl Display, say: impl FnOnce(&str)) {
        self.tries += 1;
        let reason = error.to_string();
        let is_known = |(said, at): &(String, Instant)| *said == reason && at.elapsed() < SAY_AGAIN;
        if !self.said.as_ref().is_some_and(is_known) {
            say(&reason);
            self.said = Some((reason, Instant::now()));
        }
        // Jitter, so that instances do not all retry at the same moment.
        sleep(RECONNECT.equal_jitter(self.tries, rand::random())).await;
    }
}

/// Opens the database, as soon as it can be reached.
pub(super) async fn open(
    config: &Config,
    address: &Listen,
    health: &Health,
) -> Result<Database, OpenError> {
    let mut patience = Patience::new();
    // Whether the last try found the disk full.
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
            // There was no room when a write failed, and there was when the disk was looked at: the error says only the first.
            Err(error @ OpenError::Unusable { .. }) if was_full => {
                let say = |reason: &str| warn!(%address, "{reason}, on a disk that was full. Trying again");
                patience.wait(error, say).await;
            }
            Ok(database) => {
                health.clear(StoreFault::Full);
                if patience.tries > 0 {
                    info!(tries = patience.tries, "the database is available");
                }
                return Ok(database);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Runs one part of the start, and retries it while the database is unreachable.
pub(super) async fn insist<T, E, F>(
    store: &Store,
    what: &str,
    mut work: impl FnMut() -> F,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
    E: MayPass + Display,
{
    let mut patience = Patience::new();
    loop {
        match work().await {
            // These are the only faults of a file that can go away without a person.
            Err(error)
                if error.may_pass() && (store.is_shared || store.health.worst().is_some()) =>
            {
                let say = |reason: &str| warn!(reason, "cannot {what} yet; retrying");
                patience.wait(error, say).await;
            }
            done => return done,
        }
    }
}

/// Whether an error may be transient.
pub(super) trait MayPass {
    fn may_pass(&self) -> bool;
}

impl MayPass for StoreError {
    fn may_pass(&self) -> bool {
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

impl MayPass for JoinError {
    fn may_pass(&self) -> bool {
        matches!(self, Self::Store(error) if error.may_pass())
    }
}
