//! Breakers and ejections over SIGKILL. In each state one instance is killed, then all of them, and then they start
//! again: the service is not called while it must not be, no step gets a failure for that, and each step is done once.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::harness::{
    Act, Gate, PATIENCE, Provost, Remote, Seen, Setup, all_processed, new_database, step,
    submit_charges, until,
};

/// The state in which the instances are killed.
#[derive(Clone, Copy, PartialEq, Debug)]
enum KilledWhile {
    HalfFullWindow,
    Open,
    HalfOpen,
    SlowStart,
    OpenedByOperator,
    Ejected,
}

/// The protection that is tested in a state, and what it must show.
struct Row {
    protection: Value,
    endpoints: usize,
    /// The state of the first endpoint, or of its breaker.
    state: &'static str,
    /// True if its steps wait for the breaker until a time, false if they wait without a time, `None` if they do not
    /// wait.
    waits: Option<bool>,
    alerts: usize,
}

/// The number of failed calls after which the window of one instance is half full.
const HALF: u32 = 10;
const FULL: u32 = 2 * HALF;
const MAX_IN_FLIGHT: usize = 8;

impl KilledWhile {
    fn row(self) -> Row {
        let breaker = |min_calls: u32, open_for: &str| {
            let canaries = 1;
            json!({ "breaker": { "min_calls": min_calls, "window": "10m", "open_for": open_for, "canaries": canaries } })
        };
        let row = |protection, state, waits| Row {
            protection,
            endpoints: 1,
            state,
            waits,
            alerts: 1,
        };
        match self {
            Self::HalfFullWindow => Row {
                alerts: 0,
                ..row(breaker(FULL, "1s"), "closed", None)
            },
            Self::Open => row(breaker(4, "6s"), "open", Some(true)),
            Self::HalfOpen => row(breaker(4, "500ms"), "half_open", Some(false)),
            Self::SlowStart => Row {
                alerts: 0,
                ..row(breaker(4, "500ms"), "closed", None)
            },
            Self::OpenedByOperator => row(breaker(4, "500ms"), "forced_open", Some(false)),
            Self::Ejected => Row {
                endpoints: 2,
                alerts: 0,
                ..row(
                    json!({ "ejection": { "after": 3, "for": "15s", "max": "15s" } }),
                    "ejected",
                    None,
                )
            },
        }
    }
}

/// The way in which the service responds.
#[derive(Clone, Copy)]
enum Mood {
    /// The service responds 503, and does nothing.
    Sick,
    Well,
    /// The service does the work, and responds once the gate is open.
    Silent,
}

/// The number of times that the work of each key was done.
type Ledger = Arc<Mutex<BTreeMap<String, usize>>>;

struct Service {
    remote: Remote,
    /// The mood for a number of calls, and the mood after them.
    mood: Arc<Mutex<(Mood, u32, Mood)>>,
    gate: Gate,
}

impl Service {
    async fn new(mood: Mood, ledger: Ledger) -> Self {
        let gate = Gate::closed();
        let mood = Arc::new(Mutex::new((mood, 0_u32, mood)));
        let (own_gate, own_mood) = (gate.clone(), mood.clone());
        let behaviour = move |seen: &Seen| {
            let mood = {
                let mut mood = own_mood.lock().unwrap();
                match mood.1.checked_sub(1) {
                    Some(left) => {
                        mood.1 = left;
                        mood.0
                    }
                    None => mood.2,
                }
            };
            if !matches!(mood, Mood::Sick) {
                let mut ledger = ledger.lock().unwrap();
                *ledger.entry(seen.key().to_owned()).or_default() += 1;
            }
            match mood {
                Mood::Sick => Act::status(503),
                Mood::Well => Act::Ok(json!({})),
                Mood::Silent => own_gate.then(json!({})),
            }
        };
        let remote = Remote::with(behaviour).await;
        Self { remote, mood, gate }
    }

    fn is(&self, mood: Mood) {
        self.is_at_first(mood, 0, mood);
    }

    fn is_at_first(&self, mood: Mood, calls: u32, then: Mood) {
        *self.mood.lock().unwrap() = (mood, calls, then);
    }

    /// Checks that no call came before this time, apart from the first `made` calls.
    fn assert_left_alone(&self, made: usize, until: Instant) {
        // The recorded times have milliseconds.
        let from = until - Duration::from_millis(1);
        let early: Vec<_> = self.remote.ledger()[made..]
            .iter()
            .map(|seen| from.saturating_duration_since(seen.at))
            .filter(|early| !early.is_zero())
            .collect();
        assert!(early.is_empty(), "called too early, by {early:?}");
    }
}

/// Converts a time to the monotonic clock of this machine.
fn instant(time: &Value) -> Instant {
    let time: jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
    let millis = time.as_millisecond() - jiff::Timestamp::now().as_millisecond();
    let distance = Duration::from_millis(millis.unsigned_abs());
    match millis >= 0 {
        true => Instant::now() + distance,
        false => Instant::now() - distance,
    }
}

struct Run {
    case: KilledWhile,
    row: Row,
    instances: Vec<Provost>,
    /// The number of dead instances, which are the first in the list.
    dead: usize,
    services: Vec<Service>,
    ledger: Ledger,
    tasks: Vec<String>,
    /// The number of calls that were running at an instance when it was killed.
    torn: usize,
}

impl Run {
    async fn start(case: KilledWhile, setup: &Setup, count: usize) -> Self {
        let row = case.row();
        let mut instances = Vec::new();
        for number in 1..=count {
            let setup = setup.clone().set("INSTANCE__LEASE", "2s");
            let id = format!("instance-{number}");
            instances.push(setup.set("INSTANCE_ID", &id).start().await);
        }
        let ledger = Ledger::default();
        let mut services = vec![Service::new(Mood::Sick, ledger.clone()).await];
        while services.len() < row.endpoints {
            services.push(Service::new(Mood::Well, ledger.clone()).await);
        }
        let endpoints = services
            .iter()
            .map(|service| json!({ "url": service.remote.url(), "max_in_flight": MAX_IN_FLIGHT }));
        let mut spec = json!({ "endpoints": endpoints.collect::<Vec<_>>(),
            "retry": { "initial": "10ms", "max": "50ms" } });
        let protection = row.protection.as_object().unwrap().clone();
        spec.as_object_mut().unwrap().extend(protection);
        let put = instances[0].put("/v1/agents/payments", &spec).await;
        put.expect(201);
        let run = Self {
            case,
            row,
            instances,
            dead: 0,
            services,
            ledger,
            tasks: Vec::new(),
            torn: 0,
        };
        for instance in run.living() {
            until(200, || async {
                instance.get("/v1/agents/payments").await.status
            })
            .await;
        }
        run
    }

    fn living(&self) -> &[Provost] {
        &self.instances[self.dead..]
    }

    fn sick(&self) -> &Service {
        &self.services[0]
    }

    /// Submits `count` tasks at each instance that is running.
    async fn submit(&mut self, count: usize) {
        let mut tasks = Vec::new();
        for instance in self.living() {
            tasks.extend(submit_charges(instance.api(), count).await);
        }
        self.tasks.extend(tasks);
    }

    async fn until_state(&self, wanted: &str) {
        for instance in self.living() {
            until(json!(wanted), || async {
                first(instance).await["state"].clone()
            })
            .await;
        }
    }

    async fn in_flight(&self) -> Vec<usize> {
        let mut each = Vec::new();
        for instance in self.living() {
            let agent = instance.get("/v1/agents/payments").await.expect(200);
            each.push(agent["in_flight"].as_u64().unwrap() as usize);
        }
        each
    }

    async fn until_in_flight(&self, wanted: usize) {
        until(wanted, || async { self.in_flight().await.iter().sum() }).await;
    }

    /// Opens the breaker by failed calls, and waits until no call is running.
    async fn open(&mut self) {
        self.submit(8).await;
        self.until_state("open").await;
        self.until_in_flight(0).await;
    }

    async fn enter(&mut self) {
        let count = self.instances.len();
        match self.case {
            KilledWhile::HalfFullWindow => {
                self.sick().is_at_first(Mood::Sick, HALF, Mood::Silent);
                self.submit(8).await;
                self.until_in_flight(8 * count).await;
            }
            KilledWhile::Open => self.open().await,
            KilledWhile::HalfOpen => {
                self.open().await;
                self.sick().is(Mood::Silent);
                // An earlier canary may have failed.
                until(1, async || self.ledger.lock().unwrap().len()).await;
            }
            KilledWhile::SlowStart => {
                self.open().await;
                self.sick().is_at_first(Mood::Well, 3, Mood::Silent);
                // One of the three calls closes the breaker, and each of the others lets one more call begin.
                self.until_state("closed").await;
                until(true, || async {
                    self.in_flight().await.iter().all(|calls| *calls > 0)
                })
                .await;
                let under_way: usize = self.in_flight().await.iter().sum();
                assert!(under_way <= count + 2, "{under_way} at once");
            }
            KilledWhile::OpenedByOperator => {
                self.sick().is(Mood::Well);
                let body = json!({ "action": "open", "reason": "the disk is replaced" });
                let last = self.instances.last().unwrap();
                let path = "/v1/agents/payments/breaker";
                last.post(path, &body).await.expect(200);
                self.until_state("forced_open").await;
                self.submit(8).await;
            }
            KilledWhile::Ejected => {
                // Once a call has failed, the endpoint gets few other calls, so tasks are submitted until three calls
                // in a row have failed.
                let begun = Instant::now();
                while first(&self.living()[0]).await["state"] != "ejected" {
                    assert!(begun.elapsed() < PATIENCE, "it was never ejected");
                    self.submit(10).await;
                    all_processed(self.living()[0].api(), &self.tasks).await;
                }
                self.until_state("ejected").await;
            }
        }
    }

    /// Checks what every running instance must show, with tasks that are submitted now.
    async fn look(&mut self) {
        self.until_state(self.row.state).await;
        let known = self.tasks.len();
        self.submit(2).await;
        for instance in self.living() {
            let alerts = breaker_alerts(instance, "open").await;
            assert_eq!(alerts, self.row.alerts);
            for id in &self.tasks[known..] {
                self.look_at(instance, id).await;
            }
        }
        if self.case == KilledWhile::Ejected {
            // The other endpoint does the work.
            all_processed(self.living()[0].api(), &self.tasks).await;
        }
    }

    async fn look_at(&self, instance: &Provost, id: &str) {
        let Some(until_a_time) = self.row.waits else {
            return;
        };
        let task = instance.task(id).await;
        if first(instance).await["state"] != self.row.state {
            // The time of the breaker is over, which is a matter of seconds.
            return;
        }
        let charge = step(&task, "charge");
        if self.case == KilledWhile::HalfOpen && charge["state"] == "processing" {
            // The step is the canary.
            return;
        }
        let blocked = &charge["blocked_by"];
        assert_eq!(blocked["reason"], "breaker", "{charge:#}");
        assert_eq!(blocked["until"].is_string(), until_a_time, "{blocked}");
    }

    /// Kills one running instance: the first, or the one that makes the canaries.
    async fn kill_one(&mut self) {
        let calls = self.in_flight().await;
        let busiest = (0..calls.len()).rev().max_by_key(|at| calls[*at]).unwrap();
        self.instances.swap(self.dead, self.dead + busiest);
        self.torn += calls[busiest];
        self.instances[self.dead].kill().await;
        self.dead += 1;
    }

    async fn restart_all(&mut self) {
        for instance in &mut self.instances {
            instance.launch();
        }
        for instance in &mut self.instances {
            instance.ready().await;
        }
        self.dead = 0;
    }

    /// Makes the service well, or lets an operator reset the breaker.
    async fn end(&mut self) {
        self.sick().is(Mood::Well);
        self.sick().gate.open();
        if self.case == KilledWhile::OpenedByOperator {
            let reset = json!({ "action": "reset" });
            let path = "/v1/agents/payments/breaker";
            self.living()[0].post(path, &reset).await.expect(200);
        }
        all_processed(self.living()[0].api(), &self.tasks).await;
        let is_ejected = self.case == KilledWhile::Ejected;
        self.until_state(if is_ejected { "healthy" } else { "closed" })
            .await;
        let made = self.sick().remote.count();
        let more = submit_charges(self.living()[0].api(), 20).await;
        all_processed(self.living()[0].api(), &more).await;
        assert!(self.sick().remote.count() > made, "it is called again");
        self.tasks.extend(more);
    }

    async fn assert_done_once(&self) {
        let ledger = self.ledger.lock().unwrap().clone();
        assert_eq!(ledger.len(), self.tasks.len(), "keys");
        // The response to a call that was running at a kill is lost, and the service gets the same key again.
        let again: usize = ledger.values().map(|times| times - 1).sum();
        let torn = self.torn;
        assert!(again <= torn, "{again} again, {torn} torn off: {ledger:?}");
        let mut failures = 0;
        for id in &self.tasks {
            let task = self.living()[0].task(id).await;
            failures += step(&task, "charge")["failure_count"].as_u64().unwrap() as usize;
        }
        assert!(failures <= torn, "{failures} failures, {torn} torn off");
    }
}

/// Tests both databases: with one instance, and with three.
async fn survives(case: KilledWhile) {
    let url = new_database().await;
    let setups = [
        (Provost::setup(), 1),
        (Provost::setup().database_url(&url), 3),
    ];
    for (setup, count) in setups {
        let mut run = Run::start(case, &setup, count).await;
        run.enter().await;
        let (entered, made) = (Instant::now(), run.sick().remote.count());
        let ends = first(&run.instances[0]).await["until"].clone();
        run.look().await;
        if count > 1 {
            run.kill_one().await;
            run.look().await;
        }
        while run.dead < count {
            run.kill_one().await;
        }
        let calls_of = |run: &Run, before: usize| run.sick().remote.count() - before;
        if case == KilledWhile::HalfFullWindow {
            // The windows of the killed instances are lost, and the breaker opens when one of the new windows is full.
            run.sick().is(Mood::Sick);
            let before = run.sick().remote.count();
            run.restart_all().await;
            until(1, || breaker_alerts(&run.instances[0], "open")).await;
            let calls = calls_of(&run, before);
            assert!(calls >= FULL as usize, "open after {calls}");
        } else {
            run.restart_all().await;
            run.look().await;
        }
        let calls = calls_of(&run, made);
        match case {
            KilledWhile::HalfOpen => {
                // The instance of the canary makes it again, and other instances do so only if that instance is lost
                // for long.
                let others = entered.elapsed().as_secs() as usize / 10;
                assert!(calls <= 1 + others, "{calls} more than the canary");
            }
            KilledWhile::OpenedByOperator => assert_eq!(calls, 0),
            _ => {}
        }
        run.end().await;
        let none_under_way = [
            KilledWhile::Open,
            KilledWhile::OpenedByOperator,
            KilledWhile::Ejected,
        ];
        if none_under_way.contains(&case) {
            assert_eq!(run.torn, 0);
        }
        if ends.is_string() && case != KilledWhile::HalfOpen {
            run.sick().assert_left_alone(made, instant(&ends));
        }
        run.assert_done_once().await;
        let alerts = usize::from(case != KilledWhile::Ejected);
        for instance in run.living() {
            assert_eq!(breaker_alerts(instance, "open").await, 0);
            assert_eq!(breaker_alerts(instance, "closed").await, alerts);
        }
    }
}

#[tokio::test]
async fn a_half_full_window_is_forgotten() {
    survives(KilledWhile::HalfFullWindow).await;
}

#[tokio::test]
async fn an_open_breaker_stays_open_until_its_time() {
    survives(KilledWhile::Open).await;
}

#[tokio::test]
async fn a_half_open_breaker_lets_only_its_canaries_through() {
    survives(KilledWhile::HalfOpen).await;
}

#[tokio::test]
async fn a_slow_start_loses_nothing() {
    survives(KilledWhile::SlowStart).await;
}

#[tokio::test]
async fn a_breaker_that_an_operator_opened_stays_open_until_it_is_reset() {
    survives(KilledWhile::OpenedByOperator).await;
}

#[tokio::test]
async fn an_ejected_endpoint_is_left_out_until_its_time() {
    survives(KilledWhile::Ejected).await;
}

/// Returns the first endpoint, as its breaker or its ejection shows it.
async fn first(instance: &Provost) -> Value {
    let agent = instance.get("/v1/agents/payments").await.expect(200);
    let shown = agent.get("breakers").unwrap_or(&agent["endpoints"]);
    shown[0].clone()
}

async fn breaker_alerts(instance: &Provost, state: &str) -> usize {
    let page = instance.get(&format!("/v1/alerts?state={state}")).await;
    let alerts = page.expect(200)["items"].as_array().unwrap().clone();
    let of_breakers = alerts
        .iter()
        .filter(|alert| alert["kind"] == "breaker.open");
    of_breakers.count()
}
