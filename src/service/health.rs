//! Keeps an eye on the store: on a database that is a file, and on what is told of its health.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::store::{Health, sqlite::Keeper};

/// How often the database file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Looks after the database file, at once when a fault is raised and every second.
pub(super) async fn keep(mut keeper: Keeper, health: Health, stop: CancellationToken) {
    let mut changes = health.subscribe();
    loop {
        // Never cut off: it may be writing the last copy of a database that was deleted.
        keeper.look().await;
        tokio::select! {
            () = stop.cancelled() => break,
            () = sleep(LOOK_EVERY) => {}
            Ok(()) = changes.changed() => {}
        }
    }
    // What happened since the last look: what is only open here is saved before it is closed.
    keeper.look_a_last_time().await;
}
