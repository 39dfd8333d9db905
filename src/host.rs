//! A simulated host: what the code of an instance gets instead of the clocks, the chance, the network and the database
//! file of this machine while a simulation runs it. It exists only in tests. In the product, and in all other tests,
//! there is no host, and `clock`, `chance`, the connections to services and those to SQLite are those of the system.
//!
//! Every host has a runtime of its own, whose clock tokio has paused. The simulation runs one host after the other, each
//! for a short time, on one thread; so the host of that thread is the one whose code runs.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    io::DuplexStream,
    sync::mpsc,
    time::{Instant, sleep},
};
use uuid::Uuid;

/// The wall clock of the simulation at its start.
pub const EPOCH: Duration = Duration::from_secs(1_900_000_000);
/// The time since the start of each machine at the start of the simulation.
const UP: Duration = Duration::from_secs(1000);
/// The bytes that a network takes before its reader has read any.
const NETWORK_BUFFER: usize = 16 << 10;

thread_local! {
    static CURRENT: RefCell<Option<Arc<Host>>> = const { RefCell::new(None) };
}

/// Returns the host whose code runs, if a simulation runs it.
pub fn current() -> Option<Arc<Host>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Makes the thread that of a host until this is dropped.
pub struct Presence(Option<Arc<Host>>);

impl Drop for Presence {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// The network, and the clock of the database, which all hosts share.
#[derive(Default, Debug)]
pub struct Surroundings {
    listeners: Mutex<BTreeMap<SocketAddr, mpsc::UnboundedSender<DuplexStream>>>,
    /// The latest time since the start of the simulation, in nanoseconds, that the database or the services have read.
    latest: AtomicU64,
    /// The connection that has begun a transaction, which others that write wait for.
    transaction: Mutex<Option<u64>>,
    next_connection: AtomicU64,
}

impl Surroundings {
    /// Returns the connections to an address as they are opened.
    pub fn listen(&self, address: SocketAddr) -> mpsc::UnboundedReceiver<DuplexStream> {
        let (opened, accepted) = mpsc::unbounded_channel();
        self.listeners.lock().insert(address, opened);
        accepted
    }

    /// Returns the common time since the start of the simulation: `now`, or the latest one that was read before. The database
    /// and the services have it, so that what follows from something else is never before it.
    pub fn common_time(&self, now: Duration) -> Duration {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let before = self.latest.fetch_max(now, Ordering::Relaxed);
        Duration::from_nanos(before.max(now))
    }

    pub fn connect(&self, address: SocketAddr) -> io::Result<DuplexStream> {
        let (near, far) = tokio::io::duplex(NETWORK_BUFFER);
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let listeners = self.listeners.lock();
        let listener = listeners.get(&address).ok_or_else(refused)?;
        listener.send(far).map_err(|_| refused())?;
        Ok(near)
    }
}

/// The faults of the database as one host sees them: of so many jobs in a thousand.
#[derive(Clone, Copy, Default, Debug)]
pub struct DatabaseFaults {
    /// The connection is lost before the job is done.
    pub fails: u32,
    /// The transaction is committed, and its result is lost.
    pub loses_result: u32,
    /// The most time before a job and after it.
    pub longest_delay: Duration,
    /// The host cannot reach the database.
    pub partition: Option<Partition>,
}

/// The end of jobs while a host cannot reach the database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Partition {
    /// A job fails soon.
    Refuses,
    /// A job hangs until the database can be reached again, or until the connection is given up.
    Hangs,
}

/// The time after which a connection whose other end is silent is given up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(5);
/// The time between two looks whether the database can be reached again.
const REACHES_EVERY: Duration = Duration::from_millis(20);

impl DatabaseFaults {
    /// Returns whether a job may end with an error that no database without faults returns.
    pub fn breaks(self) -> bool {
        self.fails > 0 || self.loses_result > 0
    }
}

/// The database cannot be reached.
struct Unreachable;

pub struct Host {
    pub name: String,
    pub surroundings: Arc<Surroundings>,
    /// True if several hosts use the database.
    pub shares_database: bool,
    chance: Mutex<StdRng>,
    time: Mutex<HostTime>,
    faults: Mutex<DatabaseFaults>,
    /// The time of the last id, and the number of ids of that time before it.
    last_id: Mutex<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct HostTime {
    /// The time of the host's runtime when the simulation began to run it the last time.
    resumed: Option<Instant>,
    /// The time since the start of the simulation at that moment, by the clock of this host.
    elapsed: Duration,
    /// The same, by the clock of the simulation.
    common: Duration,
    /// The milliseconds by which the wall clock of this host is ahead.
    ahead: i64,
}

impl Host {
    pub fn new(
        name: String,
        seed: u64,
        shares_database: bool,
        surroundings: Arc<Surroundings>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            surroundings,
            shares_database,
            chance: Mutex::new(StdRng::seed_from_u64(seed)),
            time: Mutex::new(HostTime {
                resumed: None,
                elapsed: Duration::ZERO,
                common: Duration::ZERO,
                ahead: 0,
            }),
            faults: Mutex::default(),
            last_id: Mutex::default(),
        })
    }

    /// Makes this thread that of the host. The runtime of the host runs from now on, and `common` is the time of the
    /// simulation.
    pub fn enter(self: &Arc<Self>, now: Instant, common: Duration) -> Presence {
        let mut time = self.time.lock();
        time.resumed = Some(now);
        time.common = common;
        drop(time);
        Presence(CURRENT.replace(Some(self.clone())))
    }

    /// Notes that the runtime has run for so long.
    pub fn has_run(&self, time: Duration) {
        self.time.lock().elapsed += time;
    }

    /// Returns the time since the start of the simulation by the clock of this host.
    fn elapsed(&self) -> Duration {
        let time = *self.time.lock();
        let running = time.resumed.map(|resumed| Instant::now() - resumed);
        let elapsed = time.elapsed + running.unwrap_or_default();
        match self.shares_database {
            true => elapsed,
            // The database has the clock of its only host.
            false => self.surroundings.common_time(elapsed),
        }
    }

    pub fn since_boot(&self) -> Duration {
        UP + self.elapsed()
    }

    pub fn since_epoch(&self) -> Duration {
        let wall = EPOCH + self.elapsed();
        let ahead = self.time.lock().ahead;
        let step = Duration::from_millis(ahead.unsigned_abs());
        match ahead < 0 {
            true => wall.saturating_sub(step),
            false => wall + step,
        }
    }

    /// Sets the wall clock of this host: so many milliseconds ahead of that of the simulation.
    pub fn set_clock(&self, ahead: i64) {
        self.time.lock().ahead = ahead;
    }

    /// Returns the time of the database, if it has a clock of its own: the time since 1970.
    pub fn database_clock(&self) -> Option<Duration> {
        if !self.shares_database {
            return None;
        }
        let time = *self.time.lock();
        let running = time.resumed.map(|resumed| Instant::now() - resumed);
        let now = time.common + running.unwrap_or_default();
        Some(EPOCH + self.surroundings.common_time(now))
    }

    pub fn with_chance<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.chance.lock())
    }

    /// Returns a new id of this time. Those of one millisecond are in the order in which they were made.
    pub fn id_at(&self, millis: u64) -> Uuid {
        let mut last = self.last_id.lock();
        let random: u128 = self.with_chance(RngExt::random);
        // Version 7 and its variant: 48 bits of time, 12 bits that count, and chance.
        let count = match last.0 == millis {
            true => last.1 + 1,
            false => 0,
        };
        *last = (millis, count);
        let time = u128::from(millis & 0xffff_ffff_ffff) << 80;
        let count = u128::from(count & 0xfff) << 64;
        let random = random & 0x3fff_ffff_ffff_ffff;
        Uuid::from_u128(time | 7 << 76 | count | 2 << 62 | random)
    }

    pub fn set_faults(&self, faults: DatabaseFaults) {
        *self.faults.lock() = faults;
    }

    fn is_drawn(&self, of_thousand: u32) -> bool {
        of_thousand > 0 && self.with_chance(|chance| chance.random_range(0..1000) < of_thousand)
    }

    async fn delay(&self, longest: Duration) {
        let longest = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
        if longest > 0 {
            let micros = self.with_chance(|chance| chance.random_range(0..longest));
            sleep(Duration::from_micros(micros)).await;
        }
    }

    /// Runs one job of a database connection, with the faults of this host. `lost` makes the error of a lost connection.
    pub async fn job<T, E>(
        &self,
        job: impl Future<Output = Result<T, E>>,
        turn: &DatabaseTurn,
        lost: impl Fn() -> E,
    ) -> Result<T, E> {
        self.reach(turn).await.map_err(|Unreachable| lost())?;
        let faults = *self.faults.lock();
        self.delay(faults.longest_delay).await;
        if self.is_drawn(faults.fails) {
            return Err(lost());
        }
        let done = job.await;
        self.delay(faults.longest_delay).await;
        // The result of what is done arrives late.
        if self.faults.lock().partition == Some(Partition::Hangs) {
            let is_reached = self.reach(turn).await;
            if turn.is_in_transaction() {
                is_reached.map_err(|Unreachable| lost())?;
            }
        }
        done
    }

    /// Waits until the database can be reached, for as long as a connection is kept. A transaction that has hung is
    /// rolled back: the times of its decisions are over.
    async fn reach(&self, turn: &DatabaseTurn) -> Result<(), Unreachable> {
        let partition = || self.faults.lock().partition;
        let began = Instant::now();
        while let Some(partition) = partition() {
            sleep(REACHES_EVERY).await;
            let is_over = began.elapsed() > GIVEN_UP_AFTER;
            if partition == Partition::Refuses || is_over || turn.is_in_transaction() {
                return Err(Unreachable);
            }
        }
        Ok(())
    }

    /// Returns whether the result of a commit that was just done is lost.
    pub fn loses_commit(&self) -> bool {
        let of_thousand = self.faults.lock().loses_result;
        self.is_drawn(of_thousand)
    }
}

/// A connection to the simulated database, which takes part in the turns of those that write.
#[derive(Debug)]
pub struct DatabaseTurn {
    surroundings: Arc<Surroundings>,
    id: u64,
    writes: bool,
}

impl DatabaseTurn {
    pub fn new(surroundings: Arc<Surroundings>, writes: bool) -> Self {
        let id = surroundings.next_connection.fetch_add(1, Ordering::Relaxed);
        Self {
            surroundings,
            id,
            writes,
        }
    }

    fn is_in_transaction(&self) -> bool {
        *self.surroundings.transaction.lock() == Some(self.id)
    }

    /// Waits until no other connection has begun a transaction.
    pub async fn wait(&self) {
        while self.writes
            && self
                .surroundings
                .transaction
                .lock()
                .is_some_and(|id| id != self.id)
        {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Notes whether this connection has begun a transaction.
    pub fn note(&self, in_transaction: bool) {
        let mut transaction = self.surroundings.transaction.lock();
        match (in_transaction, *transaction) {
            (true, _) if self.writes => *transaction = Some(self.id),
            (false, Some(id)) if id == self.id => *transaction = None,
            _ => {}
        }
    }
}

impl Drop for DatabaseTurn {
    fn drop(&mut self) {
        self.note(false);
    }
}
