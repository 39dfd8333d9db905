//! The wall clock of the machine is set while the service runs on SQLite, or while it is stopped. libfaketime shows the
//! process another wall clock; the clock that counts elapsed time stays as it is.

use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Act, Api, Gate, Provost, Remote, Setup, alerts, step, until};

/// The time by which the clock is set. It is longer than anything that the tests wait for.
const TWO_HOURS: i64 = 7200;

/// The offset of the wall clock of a process.
struct WallClock {
    folder: TempDir,
}

impl WallClock {
    fn off_by(seconds: i64) -> Self {
        let folder = TempDir::new().unwrap();
        let clock = Self { folder };
        clock.set(seconds);
        clock
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    fn set(&self, seconds: i64) {
        let next = self.folder.path().join("next");
        std::fs::write(&next, format!("{seconds:+}")).unwrap();
        // The process reads the file at every reading of the clock, and must never find half of it.
        std::fs::rename(next, self.file()).unwrap();
    }

    fn setup(&self) -> Setup {
        Provost::setup()
            .environment("LD_PRELOAD", library().to_str().unwrap())
            .environment("FAKETIME_TIMESTAMP_FILE", self.file().to_str().unwrap())
            .environment("FAKETIME_NO_CACHE", "1")
            .environment("DONT_FAKE_MONOTONIC", "1")
    }
}

/// Returns the library that `scripts/prepare` installs, in a folder with the name of the architecture.
fn library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").unwrap();
    let mut found = folders.map(|folder| {
        let folder = folder.unwrap().path();
        folder.join("faketime/libfaketimeMT.so.1")
    });
    found
        .find(|library| library.exists())
        .expect("libfaketime is missing: run scripts/prepare")
}

fn waiting(lasts: &str) -> Value {
    json!({ "steps": [{ "name": "pause", "wait": { "for": lasts } }] })
}

async fn submit_waiting(api: &Api, lasts: &str) -> String {
    let id = api.submit(&waiting(lasts)).await;
    until(json!("processing"), async || {
        step(&api.task(&id).await, "pause")["state"].clone()
    })
    .await;
    id
}

/// Waits for the alert of a clock that was set, and returns its message.
async fn alerted(provost: &Provost) -> String {
    let find = async || {
        let open = alerts(provost, "open").await.into_iter();
        let mut of_clock = open.filter(|alert| alert["kind"] == "clock.set");
        of_clock.next()
    };
    until(true, async || find().await.is_some()).await;
    find().await.unwrap()["message"]
        .as_str()
        .unwrap()
        .to_owned()
}

async fn ahead(provost: &Provost) -> f64 {
    provost.metric("provost_store_clock_ahead_seconds").await
}

#[tokio::test]
async fn waits_and_retries_end_in_time_though_the_clock_is_set_back() {
    let clock = WallClock::off_by(0);
    let mut provost = clock.setup().start().await;
    let busy = Act::answer(503, &[("retry-after", "2")], "");
    let remote = Remote::script([busy, Act::Ok(json!({}))]).await;

    let waits = submit_waiting(provost.api(), "2s").await;
    let retried = json!({ "steps": [{ "name": "call", "url": remote.url() }] });
    let retried = provost.api().submit(&retried).await;
    until(1, async || remote.count()).await;
    clock.set(-TWO_HOURS);
    for id in [&waits, &retried] {
        assert_eq!(provost.api().settled(id).await["state"], "processed");
    }
    assert_eq!(remote.count(), 2);
    let said = alerted(&provost).await;
    assert!(
        said.contains("was set back: the store's clock is"),
        "{said}"
    );
    assert!(ahead(&provost).await > 7000.0);
    provost.says("was set back: the store's clock is").await;

    // A process that is started after this has only the wrong clock.
    let waits = submit_waiting(provost.api(), "2s").await;
    provost.kill().await;
    provost.restart().await;
    assert_eq!(provost.api().settled(&waits).await["state"], "processed");
    assert!(ahead(&provost).await > 7000.0);
    alerted(&provost).await;

    clock.set(0);
    until(true, async || alerts(&provost, "open").await.is_empty()).await;
    provost.says("agree again").await;
}

#[tokio::test]
async fn nothing_ends_early_though_the_clock_is_set_forward() {
    let clock = WallClock::off_by(0);
    let provost = clock.setup().start().await;
    let api = provost.api();
    let gate = Gate::closed();
    let behind = gate.clone();
    let remote = Remote::with(move |_| behind.then(json!({}))).await;

    let called = json!({ "steps": [
        { "name": "call", "url": remote.url(), "complete_within": "10m" }] });
    let called = api.submit(&called).await;
    let waits = submit_waiting(api, "1h").await;
    until(1, async || remote.count()).await;
    clock.set(TWO_HOURS);
    let said = alerted(&provost).await;
    assert!(
        said.contains("was set forward: the store's clock is"),
        "{said}"
    );
    assert!(ahead(&provost).await < -7000.0);
    // When this task has ended, the supervisor has checked for everything that is due since the clock was set.
    let short = submit_waiting(api, "1s").await;
    assert_eq!(api.settled(&short).await["state"], "processed");
    assert_eq!(api.task(&waits).await["state"], "processing");
    assert_eq!(remote.count(), 1, "the call was made again while it ran");
    gate.open();
    assert_eq!(api.settled(&called).await["state"], "processed");
    assert_eq!(remote.count(), 1);
}

#[tokio::test]
async fn a_clock_that_is_set_by_more_than_a_day_is_followed_at_once() {
    let clock = WallClock::off_by(0);
    let provost = clock.setup().start().await;
    let waits = submit_waiting(provost.api(), "24h").await;
    clock.set(30 * 86_400);
    assert_eq!(provost.api().settled(&waits).await["state"], "processed");
    let said = alerted(&provost).await;
    assert!(said.contains("followed at once"), "{said}");
    assert!(ahead(&provost).await.abs() < 1.0);
}

/// By the store's clock the call has 30 hours more.
#[tokio::test]
async fn a_call_that_was_given_up_is_not_made_again_because_the_clock_was_set_back() {
    let clock = WallClock::off_by(0);
    let provost = clock.setup().set("INSTANCE__LEASE", "1s").start().await;
    let remote = Remote::with(|_| Act::Hang).await;
    let hangs = json!({ "steps": [
        { "name": "call", "url": remote.url(), "complete_within": "2s", "max_failures": 0 }] });
    let id = provost.api().submit(&hangs).await;
    until(1, async || remote.count()).await;
    clock.set(-30 * 3600);
    let task = provost.api().settled(&id).await;
    assert_eq!(task["state"], "error", "{task:#}");
    assert_eq!(step(&task, "call")["outcome"], "unknown");
    assert_eq!(step(&task, "call")["failure_count"], 1);
    assert_eq!(remote.count(), 1, "it was called again");
}

#[tokio::test]
async fn schedules_go_by_the_wall_clock() {
    let clock = WallClock::off_by(TWO_HOURS);
    let provost = clock.setup().start().await;
    let api = provost.api();
    let workflow = json!({ "steps": [{ "name": "pause", "wait": { "for": "10ms" } }] });
    api.put("/v1/workflows/tick", &workflow).await.expect(201);
    let schedule = json!({ "every": "1s", "workflow": "tick", "overlap": "allow" });
    api.put("/v1/schedules/tick", &schedule).await.expect(201);
    let fired_before = async |bound: jiff::Timestamp| {
        let page = api.get("/v1/schedules/tick/runs?limit=1").await.expect(200);
        let last = page["items"][0]["fire_time"].as_str();
        last.is_some_and(|at| at.parse::<jiff::Timestamp>().unwrap() < bound)
    };
    let after = |hours: i64| jiff::Timestamp::now() + jiff::SignedDuration::from_hours(hours);
    until(true, async || fired_before(after(3)).await).await;
    assert!(!fired_before(after(1)).await);

    // The next fire time is two hours earlier at once, not only when the store's clock has reached it.
    clock.set(0);
    until(true, async || fired_before(after(1)).await).await;
    // The clock is compared only now and then.
    until(true, async || ahead(&provost).await > 7000.0).await;
}

/// A service can refuse calls that come too late, because the header uses the wall clock, which the service has too.
/// The alert is about the last time that the clock was set.
#[tokio::test]
async fn services_are_told_times_of_the_wall_clock_and_the_alert_follows_each_change() {
    let clock = WallClock::off_by(-TWO_HOURS);
    let provost = clock.setup().start().await;
    let remote = Remote::quick().await;
    clock.set(0);
    let said = alerted(&provost).await;
    assert!(said.contains("was set forward"), "{said}");
    let task =
        json!({ "steps": [{ "name": "call", "url": remote.url(), "complete_within": "5m" }] });
    provost.run(&task).await;
    let seen = remote.requests(1).await.remove(0);
    let complete_by: jiff::Timestamp = seen.header("provost-complete-by").parse().unwrap();
    let left = complete_by.duration_since(jiff::Timestamp::now());
    assert!((0..=301).contains(&left.as_secs()), "{left:?}");

    clock.set(-2 * TWO_HOURS);
    let set_back = async || alerted(&provost).await.contains("was set back");
    until(true, set_back).await;
}

#[tokio::test]
async fn the_alert_is_replaced_when_the_clock_is_set_again_while_the_service_is_down() {
    let clock = WallClock::off_by(0);
    let mut provost = clock.setup().start().await;
    clock.set(-TWO_HOURS);
    assert!(alerted(&provost).await.contains("was set back"));
    let open = async |provost: &Provost| {
        let open = alerts(provost, "open").await.into_iter();
        let of_clock = open.filter(|alert| alert["kind"] == "clock.set");
        of_clock
            .map(|alert| alert["id"].clone())
            .collect::<Vec<_>>()
    };
    let before = open(&provost).await;
    provost.kill().await;
    provost.restart().await;
    provost.says("was set back").await;
    until(true, async || ahead(&provost).await > 7000.0).await;
    assert_eq!(open(&provost).await, before, "it is still about the same");

    provost.kill().await;
    clock.set(TWO_HOURS);
    provost.restart().await;
    let set_forward = async || alerted(&provost).await.contains("was set forward");
    until(true, set_forward).await;
    assert_eq!(open(&provost).await.len(), 1);
}
