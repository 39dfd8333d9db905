//! Says whether the store accepts requests, and if not, why: one value that `/readyz`, submissions, the metric, the
//! alert webhooks and the log read.
//!
//! The backend raises and clears faults; all other code only reads them. A store without a fault costs its readers one
//! atomic load.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use metrics::{describe_gauge, gauge};
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::{error, info};

use super::progress::WriterProgress;
use crate::store::StoreError;

/// The faults of the store as a whole. The most serious comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StoreFault {
    /// Another file has the name of the database.
    Replaced,
    /// The latest writes are missing from the files that are in use.
    Cut,
    /// The database file, or a file that belongs to it, is not where it was.
    Missing,
    /// The database contains data that cannot be read.
    Unreadable,
    /// There is no room for more data.
    Full,
}

impl StoreFault {
    pub const ALL: [Self; 5] = [
        Self::Replaced,
        Self::Cut,
        Self::Missing,
        Self::Unreadable,
        Self::Full,
    ];

    /// Returns the name in metrics and alerts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Replaced => "replaced",
            Self::Cut => "cut",
            Self::Missing => "missing",
            Self::Unreadable => "unreadable",
            Self::Full => "full",
        }
    }

    /// Returns whether nothing at all may be written.
    fn refuses_writes(self) -> bool {
        matches!(self, Self::Replaced | Self::Cut | Self::Missing)
    }

    /// Returns whether nothing new is accepted. Accepted tasks continue.
    fn refuses_submissions(self) -> bool {
        self.refuses_writes() || self == Self::Full
    }
}

/// A fault that exists now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnosis {
    pub fault: StoreFault,
    /// The description of the fault, and its remedy.
    pub detail: String,
}

impl Diagnosis {
    pub fn error(&self) -> StoreError {
        match self.fault {
            StoreFault::Full => StoreError::Full,
            _ => StoreError::Unavailable(self.detail.clone()),
        }
    }
}

/// The health of one store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Health(Arc<HealthState>);

#[derive(Debug)]
struct HealthState {
    is_faulty: AtomicBool,
    /// In the order of [`StoreFault`].
    faults: Mutex<Vec<Diagnosis>>,
    changed: watch::Sender<()>,
    progress: WriterProgress,
}

impl Default for Health {
    fn default() -> Self {
        describe_gauge!(
            "provost_store_fault",
            "1 while the store has this fault, which makes /readyz return 503"
        );
        for fault in StoreFault::ALL {
            show(fault, false);
        }
        Self(Arc::new(HealthState {
            is_faulty: AtomicBool::new(false),
            faults: Mutex::default(),
            changed: watch::Sender::new(()),
            progress: WriterProgress::default(),
        }))
    }
}

impl Health {
    /// Raises a fault. `detail` is its description and its remedy. A fault that is raised already only gets the new
    /// detail.
    pub fn raise(&self, fault: StoreFault, detail: impl Into<String>) {
        let detail = detail.into();
        let mut faults = self.0.faults.lock();
        if let Some(known) = faults.iter_mut().find(|known| known.fault == fault) {
            known.detail = detail;
            return;
        }
        error!(fault = fault.as_str(), "the store is not ready: {detail}");
        show(fault, true);
        faults.push(Diagnosis { fault, detail });
        faults.sort_by_key(|found| found.fault);
        self.0.is_faulty.store(true, Ordering::Release);
        self.0.changed.send_replace(());
    }

    /// Raises the fault that an error of the store shows. An unreadable part stays raised until the service is
    /// restarted: to repair it, the service must be stopped, and it is not known before which other parts are damaged.
    pub fn note(&self, error: &StoreError) {
        if let StoreError::Unreadable(reason) = error
            && !self.has(StoreFault::Unreadable)
        {
            self.raise(
                StoreFault::Unreadable,
                format!(
                    "a part of the database cannot be read ({reason}): the disk or the file is damaged. Tasks in other parts continue. Check the disk, stop the service, keep a copy of all files of the database, then restore a backup, or rescue what can be read with `sqlite3 provost.db .recover`: see docs/deploy.md, \"A part that cannot be read\""
                ),
            );
        }
    }

    pub fn clear(&self, fault: StoreFault) {
        if !self.is_faulty() {
            return;
        }
        let mut faults = self.0.faults.lock();
        let before = faults.len();
        faults.retain(|known| known.fault != fault);
        if faults.len() == before {
            return;
        }
        info!(fault = fault.as_str(), "a fault of the store is resolved");
        show(fault, false);
        self.0
            .is_faulty
            .store(!faults.is_empty(), Ordering::Release);
        self.0.changed.send_replace(());
    }

    pub fn has(&self, fault: StoreFault) -> bool {
        self.is_faulty()
            && self
                .0
                .faults
                .lock()
                .iter()
                .any(|known| known.fault == fault)
    }

    /// Returns all faults, the most serious first.
    pub fn faults(&self) -> Vec<Diagnosis> {
        self.0.faults.lock().clone()
    }

    /// Returns the most serious fault, because of which the service is not ready.
    pub fn worst(&self) -> Option<Diagnosis> {
        self.first(|_| true)
    }

    /// Returns an error unless new tasks may be accepted.
    pub fn check_submission(&self) -> Result<(), StoreError> {
        self.check(StoreFault::refuses_submissions)
    }

    /// Returns an error unless writes are allowed.
    pub fn check_write(&self) -> Result<(), StoreError> {
        self.check(StoreFault::refuses_writes)
    }

    /// The progress of the writer of this store.
    pub fn writer(&self) -> &WriterProgress {
        &self.0.progress
    }

    /// Returns a receiver that is notified whenever a fault was raised or cleared.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.0.changed.subscribe()
    }

    fn check(&self, refuses: impl Fn(StoreFault) -> bool) -> Result<(), StoreError> {
        match self.first(refuses) {
            Some(found) => Err(found.error()),
            None => Ok(()),
        }
    }

    fn first(&self, of: impl Fn(StoreFault) -> bool) -> Option<Diagnosis> {
        if !self.is_faulty() {
            return None;
        }
        self.0
            .faults
            .lock()
            .iter()
            .find(|found| of(found.fault))
            .cloned()
    }

    fn is_faulty(&self) -> bool {
        self.0.is_faulty.load(Ordering::Acquire)
    }
}

fn show(fault: StoreFault, is_raised: bool) {
    gauge!("provost_store_fault", "fault" => fault.as_str()).set(f64::from(is_raised));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gravest_fault_speaks_and_each_is_cleared_alone() {
        let health = Health::default();
        assert_eq!(health.worst(), None);
        assert!(health.check_submission().is_ok());
        health.raise(StoreFault::Full, "full");
        assert!(matches!(health.check_submission(), Err(StoreError::Full)));
        assert!(health.check_write().is_ok(), "running tasks continue");
        health.raise(StoreFault::Missing, "gone");
        let refused = health.check_write().unwrap_err();
        assert!(refused.to_string().contains("gone"), "{refused}");
        assert_eq!(
            health.worst().map(|worst| worst.fault),
            Some(StoreFault::Missing)
        );
        health.clear(StoreFault::Missing);
        assert_eq!(
            health.worst().map(|worst| worst.fault),
            Some(StoreFault::Full)
        );
        health.clear(StoreFault::Full);
        assert!(health.check_submission().is_ok());
    }

    #[test]
    fn a_page_that_cannot_be_read_makes_the_service_unready_and_stops_no_submission() {
        let health = Health::default();
        health.raise(StoreFault::Unreadable, "page 7");
        assert!(health.worst().is_some());
        assert!(health.check_submission().is_ok());
    }

    #[test]
    fn who_listens_is_woken_by_what_is_new_and_by_nothing_else() {
        let health = Health::default();
        let mut changes = health.subscribe();
        health.raise(StoreFault::Full, "full");
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        health.raise(StoreFault::Full, "still full");
        health.clear(StoreFault::Missing);
        assert!(!changes.has_changed().unwrap());
        assert_eq!(health.faults()[0].detail, "still full");
    }
}
