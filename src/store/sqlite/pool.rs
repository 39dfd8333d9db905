//! Connections that never write, taken in turns.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    connection::{ConnectionAccess, ConnectionThread, connect},
    files::DatabaseFiles,
};
use crate::{clock::timeout, store::StoreError};

/// The longest time for which a read waits for a connection.
const WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct ReaderPool {
    files: DatabaseFiles,
    max_pages: Option<u64>,
    /// Has one permit for each connection that may exist.
    places: Arc<Semaphore>,
    free: Mutex<Vec<Arc<ConnectionThread>>>,
}

impl ReaderPool {
    /// Opens the first connection immediately, which proves that connections can be opened.
    pub async fn open(
        files: &DatabaseFiles,
        max_pages: Option<u64>,
        most: usize,
    ) -> rusqlite::Result<Arc<Self>> {
        let first = start(files, max_pages).await?;
        Ok(Arc::new(Self {
            files: files.clone(),
            max_pages,
            places: Arc::new(Semaphore::new(most)),
            free: Mutex::new(vec![first]),
        }))
    }

    /// Runs the job on a free connection. The connection becomes free again when the job is done, even if its caller
    /// waits no longer.
    pub async fn run<R: Send + 'static>(
        self: &Arc<Self>,
        job: impl FnOnce(&mut Connection) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let place = timeout(WITHIN, self.places.clone().acquire_owned()).await;
        let Ok(Ok(place)) = place else {
            return Err(StoreError::no_connection());
        };
        let free = self.free.lock().pop();
        let connection = match free {
            Some(connection) => connection,
            None => {
                // Opening uses the name, which may lead to another file now.
                self.files.check()?;
                start(&self.files, self.max_pages).await?
            }
        };
        let taken = Taken {
            pool: self.clone(),
            connection: connection.clone(),
            _place: place,
        };
        let within = move |opened: &mut Connection| {
            let _taken = taken;
            job(opened)
        };
        connection.run(within).await
    }
}

async fn start(
    files: &DatabaseFiles,
    max_pages: Option<u64>,
) -> rusqlite::Result<Arc<ConnectionThread>> {
    let file = files.file.clone();
    let open = move || connect(&file, max_pages, ConnectionAccess::Read);
    ConnectionThread::start(open).await.map(Arc::new)
}

/// A connection that is in use. It becomes free again when this is dropped.
struct Taken {
    pool: Arc<ReaderPool>,
    connection: Arc<ConnectionThread>,
    _place: OwnedSemaphorePermit,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.pool.free.lock().push(self.connection.clone());
    }
}
