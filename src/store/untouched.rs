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

    /// Looks until there is no older instance. Then there will be none: the schema keeps those that are not on record from
    /// joining.
    pub async fn settle(self, reader: SharedReader) {
        while !self.get() {
            match reader.fetch(leases::older()).await {
                Ok(older) if older.is_empty() => self.0.store(true, Ordering::Release),
                Ok(_) => sleep(LOOK).await,
                Err(error) => {
                    debug!(%error, "could not look for older instances");
                    sleep(LOOK).await;
                }
            }
        }
    }
}
