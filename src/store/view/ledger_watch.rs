//! Followers of the ledger. While there are any, one common read finds out how far the ledger can be read, after each commit
//! of this process and from time to time, because other instances commit too. Without followers it costs the writer one
//! atomic load.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, watch};
use tracing::debug;

use crate::domain::view::LedgerPosition;
use crate::{
    clock::{sleep, timeout},
    store::SharedReader,
};

/// The shortest time between two reads, so that followers read several commits at once.
const LEAST_REST: Duration = Duration::from_millis(20);
/// The time between two reads while no commit of this process is notified.
const LOOK: Duration = Duration::from_millis(250);
/// The number of reads soon after a commit that a read does not find: on PostgreSQL another transaction still runs.
const SOON: u32 = 10;

/// All followers of this process.
#[derive(Debug)]
pub struct LedgerWatch {
    followers: AtomicUsize,
    /// Notified of the first follower.
    began: Notify,
    /// Notified of a commit.
    committed: Notify,
    head: watch::Sender<LedgerPosition>,
}

/// Follows the ledger. Ends when it is dropped.
#[derive(Debug)]
pub struct LedgerFollow {
    watch: Arc<LedgerWatch>,
    head: watch::Receiver<LedgerPosition>,
}

impl Default for LedgerWatch {
    fn default() -> Self {
        Self {
            followers: AtomicUsize::new(0),
            began: Notify::new(),
            committed: Notify::new(),
            head: watch::Sender::new(LedgerPosition::OLDEST),
        }
    }
}

impl LedgerWatch {
    /// Begins to follow. What is committed after that wakes the follower.
    pub fn follow(self: &Arc<Self>) -> LedgerFollow {
        let follow = LedgerFollow {
            watch: self.clone(),
            head: self.head.subscribe(),
        };
        if self.followers.fetch_add(1, Ordering::AcqRel) == 0 {
            self.began.notify_one();
        }
        follow
    }

    /// Notifies followers of a commit.
    pub(in crate::store) fn committed(&self) {
        if self.followers.load(Ordering::Acquire) > 0 {
            self.committed.notify_one();
        }
    }

    /// Looks for new rows while there are followers. Never returns.
    pub(in crate::store) async fn look(self: Arc<Self>, reader: SharedReader) {
        let mut soon = 0;
        loop {
            if self.followers.load(Ordering::Acquire) == 0 {
                self.began.notified().await;
            }
            let rest = match soon {
                0 => LOOK,
                _ => LEAST_REST,
            };
            let is_committed = timeout(rest, self.committed.notified()).await.is_ok();
            if is_committed {
                soon = SOON;
            }
            match reader.ledger_head().await {
                Ok(head) => {
                    let is_new = self.head.send_if_modified(|known| {
                        let is_new = *known != head;
                        *known = head;
                        is_new
                    });
                    soon = match is_new {
                        true => 0,
                        false => u32::saturating_sub(soon, 1),
                    };
                }
                Err(error) => {
                    debug!(%error, "could not look for new entries of the ledger");
                    soon = 0;
                }
            }
            sleep(LEAST_REST).await;
        }
    }
}

impl LedgerFollow {
    /// Waits until the ledger can be read further than when this was last called, or at the begin of following.
    pub async fn changed(&mut self) {
        // The sender lives as long as the watch.
        let _ = self.head.changed().await;
    }
}

impl Drop for LedgerFollow {
    fn drop(&mut self) {
        self.watch.followers.fetch_sub(1, Ordering::AcqRel);
    }
}
