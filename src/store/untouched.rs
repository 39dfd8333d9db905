//! Whether steps in which nothing has happened may go without rows: every instance that uses the database must be able to read
//! such tasks. An older one takes the rows for lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::sleep;
use tracing::debug;

use super::{SharedReader, leases};

/// How long until it is looked again for instances that are older. The record of one is deleted an hour after it ended, or
/// becomes that of the instance that succeeds it.
const LOOK: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 5_000 });
/// The same while there is none. No older instance starts once the schema is newer than itself: it would have to come back
/// after its record was deleted, or have looked at the schema before the migration and be on record only after it.
const LOOK_AGAIN: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 15_000 });

/// Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct SparesRows(Arc<AtomicBool>);

impl SparesRows {
    /// `is_shared`: whether other instances may use the database.
    pub fn new(is_shared: bool) -> Self {
        Self(Arc::new(AtomicBool::new(!is_shared)))
    }

    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Keeps it up to date as long as it is polled.
    pub async fn keep(self, reader: SharedReader, is_shared: bool) -> std::convert::Infallible {
        if !is_shared {
            return std::future::pending().await;
        }
        loop {
            match reader.fetch(leases::older()).await {
                Ok(older) => self.0.store(older.is_empty(), Ordering::Release),
                Err(error) => debug!(%error, "could not look for older instances"),
            }
            sleep(if self.get() { LOOK_AGAIN } else { LOOK }).await;
        }
    }
}
