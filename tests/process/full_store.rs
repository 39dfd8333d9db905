//! Schedules, children, asks and activations while nothing can be saved, because the disk is full or the database is
//! down: nothing is lost or done twice once it can be saved again.

use std::{
    fs,
    time::{Duration, Instant},
};

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    harness::{
        Act, Answer, Api, Gate, Postgres, Provost, Remote, Setup, SmallDisk, one_step, step, until,
    },
    schedules::each_second_once,
};

const PARENTS: usize = 3;

struct Scene {
    provost: Provost,
    remote: Remote,
    /// Blocks the calls of children.
    gate: Gate,
    parents: Vec<String>,
    asking: String,
    link: String,
    /// A task that is used only for commands.
    spare: String,
}

async fn register(api: &Api, name: &str, workflow: &Value) {
    let put = api.put(&format!("/v1/workflows/{name}"), workflow).await;
    assert!(put.status < 300, "{put:?}");
}

/// Returns the number of runs of the schedule that have a task.
async fn started(api: &Api) -> usize {
    let page = api.get("/v1/tasks?label=schedule:tick&limit=500").await;
    page.expect(200)["items"].as_array().unwrap().len()
}

impl Scene {
    async fn begin(setup: Setup) -> Self {
        let gate = Gate::closed();
        let held = gate.clone();
        let remote = Remote::with(move |seen| match seen.path.as_str() {
            "/pack" => held.then(json!({ "id": "p1" })),
            _ => Act::Ok(json!({})),
        })
        .await;
        let provost = setup.start().await;
        let api = provost.api();
        let url = remote.url();
        register(api, "report", &one_step(&url, "/report")).await;
        let pack = json!({ "output": "{{ steps.pack.output.id }}", "steps": [
            { "name": "pack", "url": url, "complete_within": "10m", "request": { "path": "/pack" } } ] });
        register(api, "parcel", &pack).await;
        for version in ["/first", "/second"] {
            register(api, "order", &one_step(&url, version)).await;
        }
        let tick =
            json!({ "every": "1s", "workflow": "report", "overlap": "allow", "catch_up": "all" });
        let put = api.put("/v1/schedules/tick", &tick).await;
        assert!(put.status < 300, "{put:?}");
        let parent = json!({ "steps": [
            { "name": "ship", "for_each": ["a", "b"], "task": { "workflow": "parcel" } },
            { "name": "mail", "url": url, "request": { "path": "/mail", "body": "{{ steps.ship.output }}" } } ] });
        let mut parents = Vec::new();
        for _ in 0..PARENTS {
            parents.push(api.submit(&parent).await);
        }
        let asking = json!({ "steps": [
            { "name": "approve", "signal": { "within": "1h", "ask": { "title": "Pay?", "of": ["ann@x"] } } },
            { "name": "pay", "url": url, "request": { "path": "/pay", "body": "{{ steps.approve.output.choice }}" } } ] });
        let asking = api.submit(&asking).await;
        let spare = json!({ "steps": [{ "name": "pause", "wait": { "for": "1h" } }] });
        let spare = api.submit(&spare).await;
        let asks = api.get("/v1/asks?open=true").await.expect(200);
        let link = asks["items"][0]["people"][0]["link"].as_str().unwrap();
        let (_, token) = link.split_once("/v1/asks/").unwrap();
        let link = format!("/v1/asks/{token}");
        remote.paths("/pack", 2 * PARENTS).await;
        until(true, async || started(&provost).await >= 2).await;
        Self {
            provost,
            remote,
            gate,
            parents,
            asking,
            link,
            spare,
        }
    }

    async fn decide(&self) -> Answer {
        let form = "application/x-www-form-urlencoded";
        let call = self.provost.call(Method::POST, &self.link);
        call.text(form, "choice=approve").await
    }

    async fn activate(&self) -> Answer {
        let body = json!({ "version": 1, "reason": "roll back" });
        let path = "/v1/workflows/order/activate";
        self.provost.post(path, &body).await
    }

    /// Hardly anything can be saved during this time: requests are refused, calls of children end, and the schedule is
    /// due several times.
    async fn meanwhile(&self, may_save: bool) {
        self.gate.open();
        let began = Instant::now();
        let mut refused = 0;
        while began.elapsed() < Duration::from_secs(4) {
            for answer in [self.decide().await, self.activate().await] {
                if answer.status == 503 {
                    refused += 1;
                    assert!(answer.header("retry-after").is_some(), "{answer:?}");
                } else {
                    assert!(may_save && answer.status == 200, "{answer:?}");
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(refused > 0);
    }

    async fn afterwards(self) {
        let provost = &self.provost;
        let api = provost.api();
        until(200, async || match api.get("/readyz").attempt().await {
            Ok(answer) => answer.status,
            Err(_) => 0,
        })
        .await;
        // The same decision as before is accepted now, and once.
        until(200, async || self.decide().await.status).await;
        let task = provost.settled(&self.asking).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        let asks = provost.get("/v1/asks?open=true").await.expect(200);
        assert_eq!(asks["items"], json!([]));
        until(200, async || self.activate().await.status).await;
        let order = provost.run(&json!({ "workflow": "order" })).await;
        assert_eq!(order["workflow_version"], 1);
        let activations = provost.get("/v1/workflows/order").await.expect(200);
        let roll_backs = activations["activations"].as_array().unwrap().iter();
        let roll_backs = roll_backs.filter(|activation| activation["reason"] == "roll back");
        assert_eq!(roll_backs.count(), 1, "{activations:#}");
        for id in &self.parents {
            let task = provost.settled(id).await;
            assert_eq!(task["state"], "processed", "{task:#}");
            assert_eq!(step(&task, "ship")["output"], json!(["p1", "p1"]));
            let children = provost.get(&format!("/v1/tasks?parent={id}")).await;
            let children = children.expect(200)["items"].as_array().unwrap().clone();
            assert_eq!(children.len(), 2);
        }
        let calls = |path: &str| {
            let ledger = self.remote.ledger().into_iter();
            ledger.filter(|seen| seen.path == path).count()
        };
        assert_eq!(calls("/pack"), 2 * PARENTS);
        assert_eq!((calls("/mail"), calls("/pay")), (PARENTS, 1));
        assert_eq!((calls("/first"), calls("/second")), (1, 0));
        // The fire times during the outage have runs too.
        let before = started(api).await;
        until(true, async || started(api).await >= before.max(6) + 2).await;
        assert!(each_second_once(api, "tick").await >= 8);
    }
}

#[tokio::test]
async fn what_the_newer_steps_are_about_outlives_a_full_disk() {
    let disk = SmallDisk::mount(4);
    let setup = Provost::setup().database(&disk.path().join("provost.db"));
    let scene = Scene::begin(setup).await;
    let ballast = disk.ballast("ballast");
    let mut large = one_step(&scene.remote.url(), "/large");
    large["input"] = json!("x".repeat(50 << 10));
    for accepted in 0.. {
        assert!(accepted < 1000, "it never gets full");
        if scene.provost.post("/v1/tasks", &large).await.status != 202 {
            break;
        }
    }
    // The reserve for running tasks is used up by commands for one task.
    let mut files = vec![ballast];
    for turn in 0.. {
        assert!(turn < 10_000, "commands never find the disk full");
        files.push(disk.ballast(&format!("rest-{turn}")));
        let command = ["pause", "resume"][turn % 2];
        let path = format!("/v1/tasks/{}/{command}", scene.spare);
        if scene.provost.command(&path).await.status == 503 {
            break;
        }
    }
    scene.meanwhile(true).await;
    for file in files {
        fs::remove_file(file).unwrap();
    }
    scene.afterwards().await;
}

#[tokio::test]
async fn what_the_newer_steps_are_about_outlives_an_outage_of_the_database() {
    let database = Postgres::start().await;
    let setup = Provost::setup().database_url(&database.url());
    let scene = Scene::begin(setup).await;
    database.crash().await;
    scene.meanwhile(false).await;
    database.start_again().await;
    scene.afterwards().await;
}
