//! Monitors the store: the database file, and the health that clients and alerts report.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::loops::{self, NextRound, PeriodicLoop};
use crate::store::{Health, StoreError, sqlite::Keeper};

/// Checks the database file every second, and at once when a fault is raised.
pub(super) async fn keep(keeper: Keeper, health: Health, stop: CancellationToken) {
    let changes = health.subscribe();
    let mut file = loops::run(FileWatch { keeper, changes }, stop).await;
    // This covers changes since the last check: data that exists only in the open file is saved before it is closed.
    file.keeper.look_a_last_time().await;
}

struct FileWatch {
    keeper: Keeper,
    changes: watch::Receiver<()>,
}

impl PeriodicLoop for FileWatch {
    const NAME: &'static str = "store keeper";
    const AT_ONCE: bool = true;

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// A round may write the last copy of a deleted database.
    async fn round(&mut self) -> Result<NextRound, StoreError> {
        self.keeper.look().await;
        Ok(NextRound::AfterInterval)
    }

    async fn wait_for_wake(&mut self) {
        if self.changes.changed().await.is_err() {
            std::future::pending().await
        }
    }
}
