//! One host: an instance of Provost in a runtime of its own. A crash drops the runtime, with everything that runs in it, and
//! a pause leaves it alone, so that afterwards its clock has jumped.

use std::{path::Path, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Runtime},
    task::LocalSet,
    time::{Instant, advance, sleep},
};

use super::{
    plan::{Harm, Plan},
    world::{self, SimulatedWorld},
};
use crate::{
    config::{Auto, Config, DatabaseUrl, Listen},
    domain::values::{InstanceId, Span},
    host::{DatabaseFaults, Host, Partition},
    service::Service,
    telemetry::Metrics,
};

/// Begins the reason of an instance that has not started.
pub const CANNOT_START: &str = "it cannot start";
/// The time after which an instance that ended by itself starts again.
const RESTART: Duration = Duration::from_secs(1);

pub struct Machine {
    host: Arc<Host>,
    config: Config,
    /// The parts in a thousand by which its clock is faster.
    drift: i32,
    /// The runtime, and the task of the service itself, which stays on the thread that has started it.
    runtime: Option<(Runtime, LocalSet)>,
    /// The reason why the instance ended by itself.
    ended: Arc<Mutex<Option<String>>>,
    /// The time of the simulation at which the host runs again.
    rests_until: Duration,
    /// The time since the start of the simulation by its own clock.
    elapsed: Duration,
    faults: DatabaseFaults,
    /// The last partition, and its end.
    partition: Option<(Partition, Duration)>,
}

impl Machine {
    pub fn new(plan: &Plan, number: usize, database: &Path, world: &SimulatedWorld) -> Self {
        let seed = plan.seed.rotate_left(32) ^ number as u64;
        let name = format!("host-{number}");
        let surroundings = world.surroundings.clone();
        let host = Host::new(name, seed, plan.is_shared, surroundings);
        Self {
            config: config(&host.name, number, database),
            host,
            drift: plan.drifts[number],
            runtime: None,
            ended: Arc::default(),
            rests_until: Duration::ZERO,
            elapsed: Duration::ZERO,
            faults: plan.database,
            partition: None,
        }
    }

    /// Ends all faults of the database.
    pub fn be_well(&mut self) {
        self.faults = DatabaseFaults::default();
        self.partition = None;
    }

    /// Returns the faults of the database at this time.
    fn faults(&self, now: Duration) -> DatabaseFaults {
        let partition = self.partition.filter(|(_, end)| now < *end);
        DatabaseFaults {
            partition: partition.map(|(partition, _)| partition),
            ..self.faults
        }
    }

    pub fn harm(&mut self, harm: Harm, now: Duration) {
        match harm {
            Harm::Crash(down) => {
                self.kill(now);
                self.rests_until = now + down;
            }
            Harm::Pause(length) => self.rests_until = self.rests_until.max(now + length),
            Harm::Partition(length, way) => self.partition = Some((way, now + length)),
            Harm::SetClock(ahead) => self.host.set_clock(ahead),
        }
    }

    /// Ends the instance without a goodbye.
    fn kill(&mut self, now: Duration) {
        let Some((runtime, service)) = self.runtime.take() else {
            return;
        };
        let handle = runtime.handle().clone();
        let _entered = handle.enter();
        let _presence = self.host.enter(Instant::now(), now);
        drop(service);
        drop(runtime);
    }

    /// Runs the host until this time of the simulation. Returns why the instance has ended by itself, if it has.
    pub fn run_until(&mut self, now: Duration, until: Duration) -> Option<String> {
        self.host.set_faults(self.faults(now));
        let ended = self.ended.lock().take();
        if ended.is_some() {
            self.kill(now);
            self.rests_until = now + RESTART;
        }
        if now < self.rests_until {
            return ended;
        }
        let faster = until.mul_f64(f64::from(self.drift.abs()) / 1000.0);
        let target = match self.drift < 0 {
            true => until - faster,
            false => until + faster,
        };
        if self.runtime.is_none() {
            self.start(target);
        }
        let missing = target.saturating_sub(self.elapsed);
        // Timers count milliseconds.
        let missing = Duration::from_millis(u64::try_from(missing.as_millis()).unwrap());
        let turn = until - now;
        let Some((runtime, service)) = &self.runtime else {
            return ended;
        };
        let before = {
            let _entered = runtime.enter();
            Instant::now()
        };
        // The time of a pause has passed already by the clock of the database.
        let _presence = self.host.enter(before, until.saturating_sub(missing));
        let ran = service.block_on(runtime, async {
            // The time of a pause passes at once.
            if missing > 2 * turn {
                advance(missing - turn).await;
                sleep(turn).await;
            } else {
                sleep(missing).await;
            }
            before.elapsed()
        });
        self.host.has_run(ran);
        self.elapsed += ran;
        ended
    }

    fn start(&mut self, target: Duration) {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        // The clocks of the machine have gone on while the instance was down.
        self.host.has_run(target.saturating_sub(self.elapsed));
        self.elapsed = self.elapsed.max(target);
        let (config, ended) = (self.config.clone(), self.ended.clone());
        let service = LocalSet::new();
        service.spawn_local(async move {
            let reason = match Service::start(config, Metrics::detached()).await {
                Ok(service) => {
                    service.failed().await;
                    "a component has ended".to_owned()
                }
                Err(error) => format!("{CANNOT_START}: {error}"),
            };
            *ended.lock() = Some(reason);
        });
        self.runtime = Some((runtime, service));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill(Duration::ZERO);
    }
}

fn config(name: &str, number: usize, database: &Path) -> Config {
    let mut config = Config {
        listen: Listen::Tcp(world::instance(number)),
        insecure: true,
        database_url: DatabaseUrl::Sqlite(database.to_owned()),
        instance_id: Some(InstanceId::new(name.to_owned())),
        ..Config::default()
    };
    config.calls.allow_private_addresses = Auto::Fixed(true);
    config.instance.lease = Span::from_secs(4);
    config.courier.retry_initial = Span::from_millis(200);
    config.courier.retry_max = Span::from_secs(2);
    config.courier.allow_urls = Auto::Fixed(true);
    config.courier.allow_unsigned = Auto::Fixed(true);
    // Nothing notifies the instances of each other's changes, so that they poll.
    config.postgres.listen = false;
    config
}
