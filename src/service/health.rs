//! Monitors the store: the database file, and the health that clients and alerts report.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::store::{Health, sqlite::Keeper};

/// The interval of checks of the database file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Checks the database file every second, and at once when a fault is raised.
pub(super) async fn keep(mut keeper: Keeper, health: Health, stop: CancellationToken) {
    let mut changes = health.subscribe();
    loop {
        // Never cancelled: it may be writing the last copy of a deleted database.
        keeper.look().await;
        tokio::select! {
            () = stop.cancelled() => break,
            () = sleep(LOOK_EVERY) => {}
            Ok(()) = changes.changed() => {}
        }
    }
    // Anything since the last check: data that exists only in the open file is saved before the file is closed.
    keeper.look_a_last_time().await;
}
