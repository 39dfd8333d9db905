//! Applies the faults of a schedule to instances on one PostgreSQL, to their networks, to the database and to a message
//! broker. Starts processes again that ended by themselves, as a service manager does.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, sleep_until},
};

use super::{
    broker,
    schedule::{Fault, Schedule, ToNetwork, ToProcess},
};
use crate::{
    audit::{At, Exit, Suspension, Trouble},
    cluster::{self, Proxy, Server},
    harness::{Api, Provost, Rabbit, Setup},
};

/// Prints what happens, with the time since the begin of the schedule.
#[derive(Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    pub fn say(self, what: impl std::fmt::Display) {
        println!(
            "{:7.3} {} {what}",
            self.0.elapsed().as_secs_f64(),
            At::now()
        );
    }
}

/// The faults that were applied, with their times.
#[derive(Clone, Default)]
struct Troubles(Arc<Mutex<Vec<Trouble>>>);

impl Troubles {
    /// Notes a connection to the broker that stays dead. Both ends notice this once two heartbeats were missed, and
    /// keep their unacknowledged messages until then.
    fn was_forgotten(&self, from: At) {
        let to = At::now().plus(Duration::from_secs(30));
        self.0.lock().unwrap().push(Trouble { from, to });
    }

    fn was(&self, from: At) {
        let to = At::now();
        self.0.lock().unwrap().push(Trouble { from, to });
    }
}

/// The instances before any fault.
pub struct Harm {
    server: Arc<Server>,
    rabbit: Option<Rabbit>,
    instances: Vec<Provost>,
    proxies: Vec<Arc<Proxy>>,
    broker_proxies: Vec<Arc<Proxy>>,
}

/// The state after all faults. The instances are running again once the last fault is over.
pub struct Done {
    clock: Clock,
    kept: Vec<JoinHandle<(Provost, Seen)>>,
    troubles: Troubles,
    rabbit: Option<Rabbit>,
    proxies: Vec<Arc<Proxy>>,
}

/// The state in which all instances run and are well.
pub struct Ended {
    pub clock: Clock,
    pub exits: Vec<Exit>,
    /// Lines of the logs in which an instance reports a panic.
    pub panics: Vec<String>,
    pub suspensions: Vec<Suspension>,
    pub troubles: Vec<Trouble>,
    pub rabbit: Option<Rabbit>,
    instances: Vec<Provost>,
    /// The proxies are kept because without them no connection works.
    _proxies: Vec<Arc<Proxy>>,
}

/// The observations of one instance.
#[derive(Default)]
struct Seen {
    exits: Vec<Exit>,
    panics: Vec<String>,
    suspensions: Vec<Suspension>,
}

impl Harm {
    /// Starts the instances. Each reaches the database, and the broker if there is one, through a proxy of its own.
    pub async fn start(
        server: &Arc<Server>,
        rabbit: Option<Rabbit>,
        instances: usize,
        log: &str,
    ) -> Self {
        let mut proxies = Vec::new();
        let mut broker_proxies = Vec::new();
        let mut started = Vec::new();
        for number in 0..instances {
            let proxy = Arc::new(Proxy::before(server.port()).await);
            let mut setup = setup(number, &proxy, log);
            if let Some(rabbit) = &rabbit {
                let proxy = Arc::new(Proxy::before(rabbit.port()).await);
                let intake = format!(r#"[{{name="chaos",queue="{}"}}]"#, broker::ORDERS);
                setup = setup
                    .set("BROKER__URL", &rabbit.url_through(proxy.port()))
                    .set("BROKER__REPLY_QUEUES", &format!("[\"{}\"]", broker::TOLD))
                    .set("INTAKE", &intake);
                broker_proxies.push(proxy);
            }
            started.push(setup.start().await);
            proxies.push(proxy);
        }
        Self {
            server: Arc::clone(server),
            rabbit,
            instances: started,
            proxies,
            broker_proxies,
        }
    }

    pub fn apis(&self) -> Arc<Vec<Api>> {
        Arc::new(self.instances.iter().map(|p| p.api().clone()).collect())
    }

    /// Returns when all faults of the schedule are over. The instances are kept running until `over`.
    pub async fn done(
        self,
        schedule: Schedule,
        length: Duration,
        over: watch::Receiver<bool>,
    ) -> Done {
        let clock = Clock(Instant::now());
        let troubles = Troubles::default();
        let mut kept = Vec::new();
        for ((number, provost), faults) in self
            .instances
            .into_iter()
            .enumerate()
            .zip(schedule.processes)
        {
            let keeper = Keeper {
                number,
                clock,
                seen: Seen::default(),
                troubles: troubles.clone(),
                provost,
            };
            kept.push(tokio::spawn(keeper.keep(faults, over.clone())));
        }
        let mut networks = JoinSet::new();
        for ((number, proxy), faults) in self
            .proxies
            .iter()
            .cloned()
            .enumerate()
            .zip(schedule.networks)
        {
            let name = format!("network {number}");
            networks.spawn(harass(name, proxy, faults, clock, troubles.clone()));
        }
        let to_broker = self.broker_proxies.iter().cloned().enumerate();
        for ((number, proxy), faults) in to_broker.zip(schedule.broker_networks) {
            let name = format!("network {number} to the broker");
            networks.spawn(harass(name, proxy, faults, clock, troubles.clone()));
        }
        let killed = kill_broker(self.rabbit, schedule.broker_kills, clock, troubles.clone());
        let killed = tokio::spawn(killed);
        for at in schedule.restarts {
            sleep_until(clock.0 + at).await;
            clock.say("the database crashes");
            let from = At::now();
            self.server.restart_at_once().await;
            troubles.was(from);
            clock.say("the database is back");
        }
        sleep_until(clock.0 + length).await;
        networks.join_all().await;
        let mut proxies = self.proxies;
        proxies.extend(self.broker_proxies);
        Done {
            clock,
            kept,
            troubles,
            rabbit: killed.await.unwrap(),
            proxies,
        }
    }
}

impl Done {
    /// Waits until every instance is well.
    pub async fn ends(self) -> Ended {
        let mut ended = Ended {
            clock: self.clock,
            exits: Vec::new(),
            panics: Vec::new(),
            suspensions: Vec::new(),
            troubles: Vec::new(),
            rabbit: self.rabbit,
            instances: Vec::new(),
            _proxies: self.proxies,
        };
        for kept in self.kept {
            let (mut provost, seen) = kept.await.unwrap();
            provost.ready().await;
            ended.exits.extend(seen.exits);
            ended.panics.extend(seen.panics);
            ended.suspensions.extend(seen.suspensions);
            ended.instances.push(provost);
        }
        ended.troubles = self.troubles.0.lock().unwrap().clone();
        self.clock.say("no more faults");
        ended
    }
}

impl Ended {
    /// Checks whether an instance has ended or panicked since all was well.
    pub async fn look_again(&mut self) {
        for (number, provost) in self.instances.iter_mut().enumerate() {
            self.panics.extend(panics(provost));
            let gone = tokio::time::timeout(Duration::ZERO, provost.exits()).await;
            if let Ok(status) = gone {
                self.exits.push(exit(number, provost, status));
            }
        }
        self.panics.sort();
        self.panics.dedup();
    }
}

struct Keeper {
    number: usize,
    clock: Clock,
    seen: Seen,
    troubles: Troubles,
    provost: Provost,
}

impl Keeper {
    async fn keep(
        mut self,
        faults: Vec<Fault<ToProcess>>,
        mut over: watch::Receiver<bool>,
    ) -> (Provost, Seen) {
        let number = self.number;
        for Fault { at, what, lasts } in faults {
            self.alive_until(sleep_until(self.clock.0 + at)).await;
            self.clock
                .say(format_args!("instance {number}: {what:?} for {lasts:?}"));
            let from = At::now();
            match what {
                ToProcess::Kill => {
                    self.provost.kill().await;
                    sleep(lasts).await;
                    self.launch();
                }
                ToProcess::Suspend => {
                    self.provost.suspend();
                    sleep(lasts).await;
                    self.provost.resume();
                    self.seen.suspensions.push(Suspension {
                        instance: name(number),
                        from,
                        to: At::now(),
                    });
                }
            }
            self.troubles.was(from);
        }
        let is_over = async move {
            let _ = over.wait_for(|over| *over).await;
        };
        self.alive_until(is_over).await;
        while !self.provost.is_ready() {
            self.alive_until(sleep(Duration::from_millis(50))).await;
        }
        self.seen.panics.extend(panics(&self.provost));
        (self.provost, self.seen)
    }

    fn launch(&mut self) {
        self.seen.panics.extend(panics(&self.provost));
        self.provost.launch();
    }

    async fn alive_until(&mut self, until: impl Future<Output = ()>) {
        tokio::pin!(until);
        loop {
            tokio::select! {
                () = &mut until => return,
                status = self.provost.exits() => {
                    self.clock.say(format_args!("instance {} ended: {status}", self.number));
                    // An instance that finds no database at its start may exit. One that is running must not.
                    if self.provost.is_ready() {
                        self.seen.exits.push(exit(self.number, &self.provost, status));
                    }
                    let from = At::now();
                    sleep(Duration::from_millis(200)).await;
                    self.launch();
                    self.troubles.was(from);
                }
            }
        }
    }
}

fn exit(instance: usize, provost: &Provost, status: std::process::ExitStatus) -> Exit {
    let log = provost.log();
    let last: Vec<_> = log.lines().rev().take(3).collect();
    Exit {
        at: At::now(),
        instance,
        said: format!("{status}; the last that it said: {}", last.join(" | ")),
    }
}

fn panics(provost: &Provost) -> Vec<String> {
    let log = provost.log();
    let panics = log.lines().filter(|line| line.contains("panicked"));
    panics.map(str::to_owned).collect()
}

/// Kills the broker as scheduled, and returns it running.
async fn kill_broker(
    mut rabbit: Option<Rabbit>,
    faults: Vec<Fault<()>>,
    clock: Clock,
    troubles: Troubles,
) -> Option<Rabbit> {
    let server = rabbit.as_mut()?;
    for Fault { at, lasts, .. } in faults {
        sleep_until(clock.0 + at).await;
        clock.say(format_args!("the broker: Kill for {lasts:?}"));
        let from = At::now();
        server.kill().await;
        sleep(lasts).await;
        server.start_again().await;
        troubles.was(from);
        clock.say("the broker is back");
    }
    rabbit
}

async fn harass(
    name: String,
    proxy: Arc<Proxy>,
    faults: Vec<Fault<ToNetwork>>,
    clock: Clock,
    troubles: Troubles,
) {
    for Fault { at, what, lasts } in faults {
        sleep_until(clock.0 + at).await;
        clock.say(format_args!("{name}: {what:?} for {lasts:?}"));
        let from = At::now();
        match what {
            ToNetwork::Cut => proxy.cut(),
            ToNetwork::Hang | ToNetwork::HangAndForget => proxy.hang(),
            ToNetwork::HangAnswers => proxy.hang_answers_at_claim(),
        }
        sleep(lasts).await;
        match what {
            ToNetwork::Cut | ToNetwork::Hang | ToNetwork::HangAnswers => proxy.heal(),
            ToNetwork::HangAndForget => proxy.heal_for_new_ones(),
        }
        match what {
            ToNetwork::HangAndForget if name.ends_with("broker") => troubles.was_forgotten(from),
            _ => troubles.was(from),
        }
    }
}

/// Returns the name of the instance, or `None` for an instance that generates a name at each start. The steps of the
/// two kinds are recovered in different ways.
fn name(number: usize) -> Option<String> {
    number.is_multiple_of(2).then(|| format!("node-{number}"))
}

fn setup(number: usize, proxy: &Proxy, log: &str) -> Setup {
    let port = cluster::free_port();
    let mut setup = Provost::setup()
        .database_url(&cluster::url(proxy.port()))
        .listen(&format!("127.0.0.1:{port}"))
        .set("INSTANCE__LEASE", "3s")
        .set("COURIER__RETRY_INITIAL", "20ms")
        .set("COURIER__RETRY_MAX", "300ms")
        .set(
            "LOG",
            &format!("{log},hyper=info,sqlx=info,h2=info,reqwest=info"),
        );
    if let Some(name) = name(number) {
        setup = setup.set("INSTANCE_ID", &name);
    }
    setup
}
