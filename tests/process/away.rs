//! The loops of an instance continue when its store is available again: tasks that wait for others of their key begin,
//! waits end, and tasks at risk and unusable secrets are noticed. While the store is unavailable, time passes and
//! events happen.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::{
    harness::{
        Act, Gate, Postgres, Provost, Remote, Setup, SmallDisk, alerts, all_processed, step, until,
    },
    secrets::{SecretFiles, secret, spec},
};

struct Scene {
    provost: Provost,
    limited: Remote,
    quick: Remote,
    gate: Gate,
    files: SecretFiles,
    limited_tasks: Vec<String>,
    waiting: String,
    late: String,
    begin: Instant,
}

const WAIT: Duration = Duration::from_secs(4);

impl Scene {
    async fn begin(setup: Setup) -> Self {
        let gate = Gate::closed();
        let first = gate.clone();
        let limited = Remote::with(move |_| first.then(json!("done"))).await;
        let quick = Remote::with(|_| Act::Ok(json!({}))).await;
        let files = SecretFiles::new().name("token", &[quick.url()]);
        files.put("token", "the-first-token\n");
        let private = fs::Permissions::from_mode(0o400);
        fs::set_permissions(files.path("token"), private).unwrap();
        let setup = setup
            .set("SUPERVISOR__PREDICTION_INTERVAL", "100ms")
            .config(&files.config);
        let provost = setup.start().await;
        let workflow = json!({
            "limits": [{ "by": "{{ task.labels.customer }}", "max_running": 1 }],
            "steps": [{ "name": "only", "url": limited.url() }] });
        provost
            .put("/v1/workflows/sync", &workflow)
            .await
            .expect(201);
        let bearer = json!({ "auth": { "bearer": secret("token") } });
        let payments = spec(&quick.url(), bearer);
        provost
            .put("/v1/agents/payments", &payments)
            .await
            .expect(201);
        provost.register("paused", &quick.url(), 4).await;
        provost.command("/v1/agents/paused/pause").await.expect(200);
        let begin = Instant::now();
        let one = json!({ "workflow": "sync", "labels": { "customer": "acme" } });
        let mut limited_tasks = Vec::new();
        for _ in 0..3 {
            limited_tasks.push(provost.submit(&one).await);
        }
        limited.requests(1).await;
        let wait = format!("{}s", WAIT.as_secs());
        let wait = json!({ "steps": [{ "name": "pause", "wait": { "for": wait } }] });
        let late =
            json!({ "complete_within": "9h", "steps": [{ "name": "late", "agent": "paused" }] });
        Self {
            waiting: provost.submit(&wait).await,
            late: provost.submit(&late).await,
            provost,
            limited,
            quick,
            gate,
            files,
            limited_tasks,
            begin,
        }
    }

    async fn at_risk(&self) -> usize {
        let page = self.provost.get("/v1/tasks?at_risk=true").await.expect(200);
        page["items"].as_array().unwrap().len()
    }

    async fn secret_alerts(&self) -> usize {
        let open = alerts(&self.provost, "open").await;
        let of_secrets = open
            .iter()
            .filter(|alert| alert["kind"] == "secret.unusable");
        of_secrets.count()
    }

    /// Changes things while the store cannot be written.
    async fn meanwhile(&self) {
        fs::remove_file(self.files.path("token")).unwrap();
        self.gate.open();
        while self.begin.elapsed() < WAIT + Duration::from_secs(1) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn afterwards(self) {
        let provost = &self.provost;
        all_processed(provost.api(), &self.limited_tasks).await;
        assert_eq!(self.limited.count(), 3);
        let waited = provost.settled(&self.waiting).await;
        assert_eq!(step(&waited, "pause")["state"], "processed", "{waited}");
        until(1, || self.at_risk()).await;
        until(1, || self.secret_alerts()).await;
        self.files.put("token", "the-second-token\n");
        let private = fs::Permissions::from_mode(0o400);
        fs::set_permissions(self.files.path("token"), private).unwrap();
        until(0, || self.secret_alerts()).await;
        provost
            .command("/v1/agents/paused/resume")
            .await
            .expect(200);
        assert_eq!(provost.settled(&self.late).await["state"], "processed");
        until(0, || self.at_risk()).await;
        let paid: Value = json!({ "steps": [{ "name": "only", "agent": "payments" }] });
        assert_eq!(provost.run(&paid).await["state"], "processed");
        assert!(self.quick.count() >= 2);
    }
}

#[tokio::test]
async fn after_a_full_disk_the_loops_go_on() {
    let disk = SmallDisk::mount(4);
    let setup = Provost::setup().database(&disk.path().join("provost.db"));
    let scene = Scene::begin(setup).await;
    until(1, || scene.at_risk()).await;
    let ballast = disk.ballast("ballast");
    let large = json!({ "input": "x".repeat(50 << 10), "steps": [{ "name": "only", "url": scene.quick.url() }] });
    let mut refused = 202;
    let mut accepted = 0;
    while refused == 202 {
        refused = scene.provost.post("/v1/tasks", &large).await.status;
        accepted += 1;
        assert!(accepted < 1000, "it never gets full");
    }
    let rest = disk.ballast("rest");
    scene.meanwhile().await;
    fs::remove_file(ballast).unwrap();
    fs::remove_file(rest).unwrap();
    scene.afterwards().await;
}

#[tokio::test]
async fn after_an_outage_of_the_database_the_loops_go_on() {
    let database = Postgres::start().await;
    let setup = Provost::setup().database_url(&database.url());
    let scene = Scene::begin(setup).await;
    until(1, || scene.at_risk()).await;
    database.crash().await;
    scene.meanwhile().await;
    // No task begins before the end of the previous one is on record.
    assert_eq!(scene.limited.count(), 1);
    database.start_again().await;
    scene.afterwards().await;
}

/// The network forgets a connection in the middle of the start.
#[tokio::test]
async fn a_start_that_gets_no_answer_from_postgresql_begins_again() {
    let server = Postgres::start().await;
    let setup = Provost::setup().database_url(&server.url());
    let mut provost = setup.start().await;
    provost.terminate();
    assert!(provost.ended().await.success());
    let mut silent = PgConnection::connect(&server.url()).await.unwrap();
    for sql in [
        "BEGIN",
        "LOCK TABLE _sqlx_migrations IN ACCESS EXCLUSIVE MODE",
    ] {
        sqlx::query(sql).execute(&mut silent).await.unwrap();
    }
    provost.launch();
    provost.says("did not respond within 10s").await;
    silent.close().await.unwrap();
    provost.ready().await;
}
