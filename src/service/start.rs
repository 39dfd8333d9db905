//! A start that meets a database which is away waits for it, as a running instance does: whoever starts
//! both at once, or restarts instances during a failover, need not care for the order. So does a start on a full
//! disk. What only a person
//! can mend (a wrong password, a schema that is too new) ends the start.

use std::{fmt::Display, time::Duration};

use rand::RngExt;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::database::{self, Database};
use crate::{
    config::{Config, Listen},
    instance::JoinError,
    store::{Health, OpenError, Store, StoreError, StoreFault},
};

const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// How often it is said again that nothing has changed.
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// The waits between tries, and what is said meanwhile: each new reason, and the same one now and then.
struct Patience {
    wait: Duration,
    tries: u32,
    said: Option<(String, Instant)>,
}

impl Patience {
    fn new() -> Self {
        Self {
            wait: FIRST_WAIT,
            tries: 0,
            said: None,
        }
    }

    /// Waits before the next try. `say` is called with the reason where that is worth a line.
    async fn wait(&mut self, error: impl Display, say: impl FnOnce(&str)) {
        self.tries += 1;
        let reason = error.to_string();
        let is_known = |(said, at): &(String, Instant)| *said == reason && at.elapsed() < SAY_AGAIN;
        if !self.said.as_ref().is_some_and(is_known) {
            say(&reason);
            self.said = Some((reason, Instant::now()));
        }
        // Jitter, so that instances do not all come at once.
        sleep(self.wait.mul_f64(rand::rng().random_range(0.5..1.0))).await;
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
    }
}

/// Opens the database, as soon as it can be reached.
pub(super) async fn open(
    config: &Config,
    address: &Listen,
    health: &Health,
) -> Result<Database, OpenError> {
    let mut patience = Patience::new();
    loop {
        match database::open(config, health).await {
            Err(error @ OpenError::Unreachable { .. }) => {
                let say = |reason: &str| {
                    warn!(%address, "{reason}. Trying on until it can be reached; until then /livez answers 200 and all else 503");
                };
                patience.wait(error, say).await;
            }
            Err(error @ OpenError::Full { .. }) => {
                health.raise(StoreFault::Full, error.to_string());
                let say = |reason: &str| {
                    warn!(%address, "{reason}. Trying on until there is room; until then /livez answers 200 and all else 503");
                };
                patience.wait(error, say).await;
            }
            Ok(database) => {
                health.clear(StoreFault::Full);
                if patience.tries > 0 {
                    info!(tries = patience.tries, "the database can be used");
                }
                return Ok(database);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Does one piece of the start, again and again while the database is away.
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
            // A file has no other trouble that passes by itself than those.
            Err(error)
                if error.may_pass() && (store.is_shared || store.health.worst().is_some()) =>
            {
                let say = |reason: &str| warn!(reason, "cannot {what} yet; trying on");
                patience.wait(error, say).await;
            }
            done => return done,
        }
    }
}

/// Whether an error may be over in a moment.
pub(super) trait MayPass {
    fn may_pass(&self) -> bool;
}

impl MayPass for StoreError {
    fn may_pass(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Retryable(_) | Self::Full)
    }
}

impl MayPass for JoinError {
    fn may_pass(&self) -> bool {
        matches!(self, Self::Store(error) if error.may_pass())
    }
}
