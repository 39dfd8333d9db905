//! Looks at schedules that are due, on the instance that supervises. A held instance never is that.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, future::join_all};
use tokio::time::Instant;
use tracing::error;

use super::loops::{NextRound, PeriodicLoop};
use crate::{
    api::{App, fire_schedule},
    domain::{STEPPED_BACK, Timestamp},
    instance::LocalLease,
    store::{Store, StoreError},
};

/// How many schedules are looked at side by side.
const AT_ONCE: usize = 16;
/// How many pages of them in one round: those that are left are due at the next look of the supervisor.
const MOST_PAGES: usize = 64;
/// How often it is looked for schedules that a clock which was set back has left in the future.
const CHECK: Duration = Duration::from_secs(30);
/// How soon an instance finds out that it supervises.
const IDLE: Duration = Duration::from_secs(5);

pub(super) struct ScheduleLoop {
    app: Arc<App>,
    store: Store,
    local_lease: Arc<LocalLease>,
    checked: Option<Instant>,
    /// What the clock of the machine showed at the last look at it, where the store goes by that.
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
        self.local_lease.term(Instant::now()).is_some()
    }

    async fn fire(&self, names: Vec<String>) -> Result<(), StoreError> {
        let fired = join_all(names.iter().map(|name| self.fire_one(name)));
        fired.await.into_iter().collect()
    }

    /// A schedule that cannot be looked at is left alone for a while, so that it delays no other.
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

    /// Whether the clock of the machine shows an earlier time than at the last look at it.
    fn is_set_back(&mut self) -> bool {
        let Some(clock) = self.store.housekeeping.clock() else {
            return false;
        };
        let wall = clock.moment().wall;
        let before = self.wall.replace(wall);
        before.is_some_and(|before| wall + STEPPED_BACK < before)
    }

    /// Their next look would come when the clock is there again.
    async fn check_clock(&mut self) -> Result<(), StoreError> {
        let now = Instant::now();
        let is_recent = |checked| now.duration_since(checked) < CHECK;
        if !self.is_set_back() && self.checked.is_some_and(is_recent) {
            return Ok(());
        }
        let ahead_of = self.store.housekeeping.wall_now().await? + STEPPED_BACK;
        let ahead = self.store.housekeeping.schedules_ahead(ahead_of, AT_ONCE);
        let ahead = ahead.await?;
        // While there are more, the next round goes on with them.
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

    async fn woken(&mut self) {
        self.store.schedules.notified().await;
    }
}
