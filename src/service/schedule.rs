//! Processes the schedules that are due, on the instance that supervises. An instance that is held never supervises.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, future::join_all};
use tracing::error;

use super::loops::{NextRound, PeriodicLoop};
use crate::{
    api::{App, fire_schedule},
    clock::{self, Instant},
    domain::{schedule::STEPPED_BACK, values::Timestamp},
    instance::LocalLease,
    store::{Store, StoreError},
};

/// The most schedules that are processed concurrently.
const AT_ONCE: usize = 16;
/// The most pages of schedules in one round. The remaining ones are due at the next look of the supervisor.
const MOST_PAGES: usize = 64;
/// The interval of the search for schedules whose next look is too far in the future because the clock was set back.
const CHECK: Duration = Duration::from_secs(30);
/// The longest time until an instance notices that it supervises.
const IDLE: Duration = Duration::from_secs(5);

pub(super) struct ScheduleLoop {
    app: Arc<App>,
    store: Store,
    local_lease: Arc<LocalLease>,
    checked: Option<Instant>,
    /// The time of the machine's clock at the last look, if the store's clock depends on it.
    wall: Option<Timestamp>,
}

impl ScheduleLoop {
    pub fn new(app: Arc<App>, local_lease: Arc<LocalLease>) -> Self {
        Self {
            store: app.store.clone(),
            app,
            local_lease,
            checked: None,
            wall: None,
        }
    }

    fn supervises(&self) -> bool {
        self.local_lease.term(clock::instant()).is_some()
    }

    async fn fire(&self, names: Vec<String>) -> Result<(), StoreError> {
        let fired = join_all(names.iter().map(|name| self.fire_one(name)));
        fired.await.into_iter().collect()
    }

    /// Processes one schedule. If that fails for a reason of its own, the schedule is left alone for some minutes, so
    /// that it delays no other.
    async fn fire_one(&self, name: &str) -> Result<(), StoreError> {
        let fired = AssertUnwindSafe(fire_schedule(&self.app, name)).catch_unwind();
        let reason = match fired.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) if error.is_damage() => {
                format!("its record cannot be read: {}", error.damage())
            }
            Ok(Err(error)) if !error.is_of_one_task() => return Err(error),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the service panicked; its log has the details".to_owned(),
        };
        error!(
            schedule = name,
            reason, "a schedule cannot be looked at; it is left alone for some minutes"
        );
        self.store.rest_schedule(name.to_owned(), reason).await
    }

    async fn fire_due(&self) -> Result<(), StoreError> {
        for _ in 0..MOST_PAGES {
            if !self.supervises() {
                return Ok(());
            }
            let due = self.store.housekeeping.due_schedules(AT_ONCE).await?;
            let is_full = due.len() == AT_ONCE;
            self.fire(due).await?;
            if !is_full {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns whether the clock of the machine shows an earlier time than at the last look.
    fn is_set_back(&mut self) -> bool {
        let Some(clock) = self.store.housekeeping.clock() else {
            return false;
        };
        let wall = clock.moment().wall;
        let before = self.wall.replace(wall);
        before.is_some_and(|before| wall + STEPPED_BACK < before)
    }

    /// Processes the schedules whose next look is too far in the future because the clock was set back.
    async fn check_clock(&mut self) -> Result<(), StoreError> {
        let now = clock::instant();
        let is_recent = |checked| now.duration_since(checked) < CHECK;
        if !self.is_set_back() && self.checked.is_some_and(is_recent) {
            return Ok(());
        }
        let ahead_of = self.store.housekeeping.wall_now().await? + STEPPED_BACK;
        let ahead = self.store.housekeeping.schedules_ahead(ahead_of, AT_ONCE);
        let ahead = ahead.await?;
        // While there are more, the next round continues with them.
        self.checked = (ahead.len() < AT_ONCE).then_some(now);
        self.fire(ahead).await
    }
}

impl PeriodicLoop for ScheduleLoop {
    const NAME: &'static str = "schedules";
    const AT_ONCE: bool = true;
    const LONGEST_REST: Duration = Duration::from_secs(5);

    fn interval(&self) -> Duration {
        CHECK
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        if !self.supervises() {
            self.checked = None;
            return Ok(NextRound::After(IDLE));
        }
        self.fire_due().await?;
        self.check_clock().await?;
        Ok(NextRound::AfterInterval)
    }

    async fn wait_for_wake(&mut self) {
        self.store.schedules.notified().await;
    }
}
