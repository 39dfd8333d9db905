//! Reports that are to be recorded, of all agents.

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::domain::agent::BreakerReport;

#[derive(Default)]
pub struct Reports {
    waiting: Mutex<Vec<BreakerReport>>,
    wake: Notify,
}

impl Reports {
    pub fn add(&self, report: BreakerReport) {
        self.waiting.lock().push(report);
        self.wake.notify_one();
    }

    pub fn take(&self) -> Vec<BreakerReport> {
        std::mem::take(&mut *self.waiting.lock())
    }

    /// There may be something to record, or to look at later.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    pub async fn woken(&self) {
        self.wake.notified().await;
    }
}
