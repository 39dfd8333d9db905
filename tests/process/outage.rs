//! The database is lost while instances run, and before they start.

use std::collections::BTreeSet;

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{
    Answer, Api, Gate, Load, Postgres, Provost, Remote, binary, free_port, pipeline,
};

/// The operations that need no database. All others must report that there is none.
const WITHOUT: [&str; 16] = [
    "GET /livez",
    "GET /metrics",
    "GET /docs",
    "GET /openapi.json",
    "GET /problems",
    "GET /problems/{kind}",
    // The responses contain what this instance has in memory about agents, and what a definition says by itself.
    "GET /v1/agents",
    "GET /v1/agents/{name}",
    "POST /v1/workflows/{name}/validate",
    // The token of this test is one of a reply, and it is known without a record that such a token is no link of a
    // person.
    "GET /v1/asks/{token}",
    "POST /v1/asks/{token}",
    // The hold and the settings belong to this instance alone.
    "GET /v1/settings",
    "GET /v1/hold",
    "POST /v1/hold/release",
    // These are tested with names of their own, further down.
    "PUT /v1/agents/{name}",
    "DELETE /v1/agents/{name}",
];

fn body(operation: &str, token: &str) -> Option<Value> {
    let steps = json!([{ "name": "only", "agent": "known" }]);
    match operation {
        "POST /v1/tasks" => Some(json!({ "steps": steps })),
        "PUT /v1/workflows/{name}" => Some(json!({ "steps": steps })),
        "PUT /v1/schedules/{name}" => Some(json!({ "cron": "0 2 * * *", "workflow": "some" })),
        "POST /v1/schedules/{name}/backfill" => {
            Some(json!({ "from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z" }))
        }
        "PUT /v1/readers/{name}" => Some(json!({ "position": "oldest" })),
        "POST /v1/workflows/{name}/activate" => Some(json!({ "version": 1 })),
        "POST /v1/tasks/{id}/migrate" => Some(json!({ "to_version": 1 })),
        "POST /v1/bulk/{id}/resume" => Some(json!({ "rate": "1/s" })),
        "POST /v1/tasks/migrate" => Some(json!({ "workflow": "some", "to_version": 1 })),
        "POST /v1/tasks/resolve" => {
            Some(json!({ "agent": "known", "step": "only", "output": null }))
        }
        "POST /v1/tasks/rerun" => Some(json!({ "agent": "known", "from": "only" })),
        // These are commands for many tasks.
        bulk if bulk.starts_with("POST /v1/tasks/") && !bulk.contains('{') => {
            Some(json!({ "agent": "known" }))
        }
        // These are commands for many messages.
        "POST /v1/messages/redeliver" | "POST /v1/messages/discard" => {
            Some(json!({ "receiver": "known" }))
        }
        "POST /v1/agents/{name}/claim" => Some(json!({ "worker": "w-1" })),
        "POST /v1/agents/{name}/check" => Some(json!({ "request": { "path": "/" } })),
        "POST /v1/agents/{name}/breaker" => Some(json!({ "action": "reset" })),
        "POST /v1/replies" => Some(json!({ "replies": [{ "token": token, "output": null }] })),
        "POST /v1/replies/{token}" => Some(json!({ "output": null })),
        operation if operation.ends_with("/skip") || operation.ends_with("/resolve") => {
            Some(json!({ "output": null, "reason": "as the test wants it" }))
        }
        _ => None,
    }
}

/// Returns every operation of the API, such as `GET /v1/tasks/{id}`.
async fn operations(api: &Api) -> BTreeSet<String> {
    let document = api.get("/openapi.json").await.expect(200);
    let paths = document["paths"].as_object().unwrap().iter();
    paths
        .flat_map(|(path, operations)| {
            let methods = operations.as_object().unwrap().keys();
            methods.map(move |method| format!("{} {path}", method.to_uppercase()))
        })
        .collect()
}

async fn ask(api: &Api, operation: &str, task: &str, token: &str) -> Answer {
    let (method, path) = operation.split_once(' ').unwrap();
    let path = path
        .replace("{id}", task)
        .replace("{other}", task)
        .replace("{attempt}", "1")
        .replace("{fingerprint}", "0000000000000001")
        .replace("{token}", token)
        .replace("{name}", "one")
        .replace("{workflow}", "some")
        .replace("{key}", "some")
        .replace("{version}", "1");
    let call = api.call(Method::from_bytes(method.as_bytes()).unwrap(), &path);
    match body(operation, token) {
        Some(body) => call.json(&body).await,
        None => call.await,
    }
}

#[tokio::test]
async fn without_its_database_it_says_so_everywhere_and_keeps_what_calls_answer() {
    let database = Postgres::start().await;
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("the answer"))]).await;
    let provost = Provost::setup().database_url(&database.url()).start().await;
    provost.register("known", &remote.url(), 4).await;
    let task = provost.submit(&pipeline(&remote.url(), &["one"])).await;
    let seen = remote.requests(1).await;
    let address = seen[0].header("provost-reply-to").to_owned();
    let token = address.rsplit('/').next().unwrap();

    database.crash().await;
    gate.open();
    let operations: Vec<_> = operations(&provost).await.into_iter().collect();
    let asked = operations
        .iter()
        .map(|operation| ask(&provost, operation, &task, token));
    for (operation, answer) in operations.iter().zip(join_all(asked).await) {
        if WITHOUT.contains(&operation.as_str()) {
            continue;
        }
        assert_eq!(answer.status, 503, "{operation}: {answer:?}");
        assert!(
            answer.header("retry-after").is_some(),
            "{operation}: {answer:?}"
        );
        answer.expect_problem(503, "store-unavailable");
    }
    let spec = json!({ "endpoints": [{ "url": remote.url() }] });
    let put = provost.put("/v1/agents/another", &spec).await;
    put.expect_problem(503, "store-unavailable");
    let deleted = provost.delete("/v1/agents/known").await;
    deleted.expect_problem(503, "store-unavailable");
    for path in [
        "/livez",
        "/metrics",
        "/docs",
        "/openapi.json",
        "/v1/agents/known",
    ] {
        assert_eq!(provost.get(path).await.status, 200, "{path}");
    }
    let known = provost.get("/v1/agents/known").await.expect(200);
    let why = known["incomplete"].as_str();
    assert!(
        why.is_some_and(|why| why.contains("cannot be reached")),
        "{known}"
    );

    database.start_again().await;
    let settled = loop {
        let answer = provost.get(&format!("/v1/tasks/{task}?wait=60s")).await;
        if answer.status != 503 {
            break answer.expect(200);
        }
    };
    assert_eq!(settled["state"], "processed", "{settled:#}");
    assert_eq!(settled["steps"][0]["output"], "the answer");
    assert_eq!(
        (settled["steps"][0]["attempt"].clone(), remote.count()),
        (json!(1), 1)
    );
    provost.run(&pipeline(&remote.url(), &["one"])).await;
    assert_eq!(provost.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn a_database_that_crashes_under_load_loses_nothing_that_was_accepted() {
    let database = Postgres::start().await;
    let remote = Remote::quick().await;
    let setup = Provost::setup()
        .database_url(&database.url())
        .set("LOG", "warn,provost::service=info");
    let (a, b) = tokio::join!(setup.clone().start(), setup.start());
    let apis: Vec<&Api> = [a.api(), b.api()].repeat(8);
    let load = Load::on(&apis, pipeline(&remote.url(), &["one", "two"]));
    for _ in 0..3 {
        load.more(60).await;
        database.crash_and_start_again().await;
    }
    load.more(60).await;
    all_are_there(&a, &b, load.end().await).await;
}

/// Checks that every accepted task is processed, and is found by its key, at each instance.
pub async fn all_are_there(a: &Api, b: &Api, accepted: Vec<(String, String)>) {
    assert!(accepted.len() >= 200, "{}", accepted.len());
    let ids: BTreeSet<_> = accepted.iter().map(|(_, id)| id).collect();
    assert_eq!(
        ids.len(),
        accepted.len(),
        "one task was given out under two keys"
    );
    for (_, id) in &accepted {
        let task = a.settled(id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
    }
    let mut listed = BTreeSet::new();
    let mut cursor = String::new();
    loop {
        let page = b
            .get(&format!("/v1/tasks?limit=500{cursor}"))
            .await
            .expect(200);
        let items = page["items"].as_array().unwrap().iter();
        listed.extend(items.map(|task| task["id"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let missing: Vec<_> = ids.iter().filter(|id| !listed.contains(**id)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // A repeated submission makes no second task, even if the first response was lost.
    assert_eq!(listed.len(), ids.len());
}

#[tokio::test]
async fn started_before_its_database_it_waits_for_it_and_says_so() {
    let database = Postgres::start().await;
    database.crash().await;
    let listen = format!("127.0.0.1:{}", free_port());
    let setup = Provost::setup()
        .database_url(&database.url())
        .listen(&listen);
    let mut waiting = setup.launch();
    waiting.says("cannot be reached").await;
    let api = Api::new(&listen);
    assert_eq!(api.get("/livez").await.status, 200);
    for path in ["/readyz", "/v1/tasks", "/metrics"] {
        let answer = api.get(path).await;
        assert!(answer.header("retry-after").is_some(), "{path}: {answer:?}");
        answer.expect_problem(503, "store-unavailable");
    }
    let check = binary()
        .args(["migrate", "--database-url", &database.url()])
        .output();
    let migrated = check.await.unwrap();
    let said = String::from_utf8_lossy(&migrated.stderr);
    assert_eq!(migrated.status.code(), Some(1), "{said}");
    assert!(
        said.contains(&database.address()) && said.contains("cannot be reached"),
        "{said}"
    );

    database.start_again().await;
    waiting.ready().await;
    let remote = Remote::quick().await;
    let task = waiting.run(&pipeline(&remote.url(), &["one"])).await;
    assert_eq!(task["state"], "processed");
}

#[tokio::test]
async fn a_start_that_only_a_person_can_mend_ends_at_once_and_says_how() {
    let database = Postgres::start().await;
    let url = database.url();
    database.sql("CREATE ROLE guest LOGIN").await;
    for (url, remedy) in [
        (url.replace("provost@", "nobody@"), "pg_hba.conf"),
        (url.replace("/postgres", "/nowhere"), "createdb"),
        (url.replace("provost@", "guest@"), "provost migrate"),
        (format!("{url}?sslmode=require"), "sslmode"),
    ] {
        let (code, said) = Provost::setup().database_url(&url).refused().await;
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("cannot be opened"), "{said}");
        assert!(
            said.contains(remedy) && !said.contains(" at line "),
            "{said}"
        );
    }
}

#[tokio::test]
async fn who_may_not_change_the_schema_starts_where_there_is_nothing_to_change() {
    let database = Postgres::start().await;
    let migrated = binary()
        .args(["migrate", "--database-url", &database.url()])
        .status();
    assert!(migrated.await.unwrap().success());
    database
        .sql("CREATE ROLE guest LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO guest")
        .await;
    let guest = database.url().replace("provost@", "guest@");
    let remote = Remote::quick().await;
    let provost = Provost::setup().database_url(&guest).start().await;
    let task = provost.run(&pipeline(&remote.url(), &["one"])).await;
    assert_eq!(task["state"], "processed");
}

#[tokio::test]
async fn that_nothing_can_be_saved_is_not_said_again_for_every_answer_that_waits() {
    let database = Postgres::start().await;
    let gate = Gate::closed();
    let remote = Remote::with({
        let gate = gate.clone();
        move |_| gate.then(json!(1))
    })
    .await;
    let provost = Provost::setup().database_url(&database.url()).start().await;
    for _ in 0..8 {
        provost.submit(&pipeline(&remote.url(), &["one"])).await;
    }
    remote.requests(8).await;
    database.crash().await;
    gate.open();
    provost.says("could not save a batch").await;
    let began = std::time::Instant::now();
    // Each of these requests makes it save something, which fails.
    for _ in 0..100 {
        assert_eq!(provost.get("/readyz").await.status, 503);
    }
    let said = provost.log().matches("could not save a batch").count();
    let most = 2 + began.elapsed().as_secs() / 5;
    assert!(said as u64 <= most, "said {said} times, and not {most}");
}

#[tokio::test]
async fn told_to_stop_while_it_waits_for_its_database_it_stops() {
    let nowhere = format!("postgres://provost@127.0.0.1:{}/p", free_port());
    let mut waiting = Provost::setup().database_url(&nowhere).launch();
    waiting.says("cannot be reached").await;
    waiting.terminate();
    assert!(waiting.ended().await.success());
}
