//! The surroundings of the instances: services, a receiver, submitters, workers, people and operators. They have a runtime
//! of their own, whose clock is that of the simulation.

use std::{
    cell::RefCell,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use rand::{SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use super::{event_log::EventLog, plan::Plan};
use crate::host::{EPOCH, Surroundings};

thread_local! {
    static CURRENT: RefCell<Option<Arc<SimulatedWorld>>> = const { RefCell::new(None) };
}

pub struct SimulatedWorld {
    pub plan: Plan,
    pub surroundings: Arc<Surroundings>,
    pub events: EventLog,
    began: Instant,
    /// True once there are no more faults.
    is_well: AtomicBool,
    /// The number of remote services that were started.
    remotes: AtomicU8,
}

impl SimulatedWorld {
    /// Begins the world in its runtime, as that of this thread.
    pub fn begin(plan: Plan, surroundings: Arc<Surroundings>, keeps_events: bool) -> Arc<Self> {
        let world = Arc::new(Self {
            plan,
            surroundings,
            events: EventLog::new(keeps_events),
            began: Instant::now(),
            is_well: AtomicBool::new(false),
            remotes: AtomicU8::new(0),
        });
        CURRENT.set(Some(world.clone()));
        world
    }

    /// Returns the world that this thread simulates.
    pub fn of_this_thread() -> Arc<Self> {
        CURRENT.with_borrow(Clone::clone).expect("it has begun")
    }

    /// Returns a generator for one role.
    pub fn random(&self, role: u64) -> StdRng {
        StdRng::seed_from_u64(self.plan.seed.rotate_left(20) ^ role)
    }

    pub fn time(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn since_epoch(&self) -> Duration {
        EPOCH + self.surroundings.common_time(self.time())
    }

    pub fn note(&self, event: fmt::Arguments<'_>) {
        self.events.note(self.time(), event);
    }

    pub fn is_well(&self) -> bool {
        self.is_well.load(Ordering::Relaxed)
    }

    pub fn be_well(&self) {
        self.note(format_args!("no more faults"));
        self.is_well.store(true, Ordering::Relaxed);
    }

    /// Returns the address of the next remote service.
    pub fn new_address(&self) -> SocketAddr {
        let number = self.remotes.fetch_add(1, Ordering::Relaxed);
        SocketAddr::new(host(200 + number), 80)
    }
}

/// Returns the address of an instance.
pub fn instance(number: usize) -> SocketAddr {
    SocketAddr::new(host(1 + u8::try_from(number).unwrap()), 8080)
}

fn host(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}
