//! Active checks: an endpoint whose check says that it is not well, or gets no response, gets no calls.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::harness::{
    Act, Api, Provost, Remote, Seen, alerts, all_processed, new_database, setups, step,
    submit_charges, until,
};

fn health() -> Value {
    json!({ "path": "/health", "interval": "1s", "timeout": "300ms", "unhealthy_after": 2, "healthy_after": 1 })
}

async fn register(api: &Api, remotes: &[&Remote], health: Value) {
    let endpoints = remotes.iter();
    let endpoints = endpoints.map(|remote| json!({ "url": remote.url(), "max_in_flight": 4 }));
    let spec = json!({ "endpoints": endpoints.collect::<Vec<_>>(), "health": health,
        "headers": { "x-tenant": "acme" }, "retry": { "initial": "10ms", "max": "50ms" } });
    let put = api.put("/v1/agents/payments", &spec).await;
    assert!(put.status < 300, "{put:?}");
}

async fn endpoints(api: &Api) -> Vec<Value> {
    let agent = api.get("/v1/agents/payments").await.expect(200);
    agent["endpoints"].as_array().unwrap().clone()
}

async fn until_states(api: &Api, wanted: &[&str]) {
    let wanted: Vec<_> = wanted.iter().map(|state| json!(state)).collect();
    until(wanted, async || {
        let endpoints = endpoints(api).await.into_iter();
        endpoints
            .map(|endpoint| endpoint["state"].clone())
            .collect()
    })
    .await;
}

fn is_check(seen: &Seen) -> bool {
    seen.path == "/health"
}

fn calls(remote: &Remote) -> usize {
    let ledger = remote.ledger();
    ledger.iter().filter(|seen| !is_check(seen)).count()
}

/// Returns a service that does its work in any case, and reports that it is well unless it is sick.
async fn service() -> (Remote, Arc<AtomicBool>) {
    let sick = Arc::new(AtomicBool::new(false));
    let is_sick = sick.clone();
    let remote = Remote::with(move |seen| match is_check(seen) {
        true if is_sick.load(Ordering::SeqCst) => Act::status(503),
        _ => Act::Ok(json!({})),
    })
    .await;
    (remote, sick)
}

#[tokio::test]
async fn an_endpoint_that_fails_its_checks_gets_no_calls_until_they_succeed() {
    for setup in setups().await {
        let ((one, one_sick), (two, two_sick)) = (service().await, service().await);
        one_sick.store(true, Ordering::SeqCst);
        let provost = setup.start().await;
        let api = provost.api();
        register(api, &[&one, &two], health()).await;
        until_states(api, &["unhealthy", "healthy"]).await;
        let made = calls(&one);
        let ids = submit_charges(api, 10).await;
        all_processed(api, &ids).await;
        assert_eq!(calls(&one), made, "it was called");
        let ledger = one.ledger();
        let check = ledger.iter().find(|seen| is_check(seen)).unwrap();
        assert_eq!(check.method, "GET");
        assert_eq!(check.header("x-tenant"), "acme");
        let reason =
            "2 checks in a row failed; the last one: GET /health responded 503 Service Unavailable";
        assert_eq!(endpoints(api).await[0]["reason"], reason);
        let raised = alerts(&provost, "open").await;
        assert_eq!(raised.len(), 1, "{raised:#?}");
        assert_eq!(raised[0]["kind"], "endpoint.unhealthy");
        let message = raised[0]["message"].as_str().unwrap();
        assert!(
            message.contains(&format!("{} ({reason})", one.url())),
            "{message}"
        );
        let metric = |remote: &Remote| {
            let url = remote.url();
            format!(r#"provost_endpoint_healthy{{agent="payments",endpoint="{url}"}}"#)
        };
        assert_eq!(provost.metric(&metric(&one)).await, 0.0);
        assert_eq!(provost.metric(&metric(&two)).await, 1.0);

        two_sick.store(true, Ordering::SeqCst);
        until_states(api, &["unhealthy", "unhealthy"]).await;
        let made = (calls(&one), calls(&two));
        let ids = submit_charges(api, 5).await;
        let task = provost.task(&ids[0]).await;
        let blocked = &step(&task, "charge")["blocked_by"];
        assert_eq!(blocked["reason"], "unhealthy", "{blocked}");
        assert_eq!(blocked["message"], reason);
        assert!(blocked["until"].is_string(), "{blocked}");
        one_sick.store(false, Ordering::SeqCst);
        all_processed(api, &ids).await;
        assert_eq!((made.0 + 5, made.1), (calls(&one), calls(&two)));
        // The findings of an endpoint are removed together with it.
        register(api, &[&one], health()).await;
        assert!(alerts(&provost, "open").await.is_empty());
        assert_eq!(endpoints(api).await.len(), 1);
    }
}

#[tokio::test]
async fn a_check_that_hangs_or_redirects_has_failed_and_a_large_body_has_not() {
    let provost = Provost::start().await;
    let checked = |act: fn() -> Act| {
        Remote::with(move |seen| match is_check(seen) {
            true => act(),
            false => Act::Ok(json!({})),
        })
    };
    let moved = || Act::answer(302, &[("location", "/elsewhere")], "");
    let remotes = [
        checked(|| Act::Hang).await,
        checked(moved).await,
        checked(|| Act::Flood).await,
        checked(|| Act::Drip).await,
        checked(|| Act::Close).await,
        checked(|| Act::Interim).await,
    ];
    let all: Vec<_> = remotes.iter().collect();
    register(provost.api(), &all, health()).await;
    let (good, bad) = ("healthy", "unhealthy");
    until_states(provost.api(), &[bad, bad, good, bad, bad, bad]).await;
    let reasons = endpoints(provost.api()).await;
    let parts = [
        "GET /health had no whole response within 300ms",
        "GET /health responded 302 Found; redirects are not followed",
        "",
        "GET /health had no whole response within 300ms",
        "GET /health broke off",
        "GET /health ",
    ];
    for (reason, part) in reasons.iter().zip(parts) {
        let reason = reason["reason"].as_str().unwrap_or_default();
        assert!(reason.contains(part), "{reason}");
    }
    remotes[2].paths("/health", 3).await;
    until_states(provost.api(), &[bad, bad, good, bad, bad, bad]).await;
    assert!(
        !remotes[1]
            .ledger()
            .iter()
            .any(|seen| seen.path == "/elsewhere")
    );
}

#[tokio::test]
async fn faults_of_a_check_are_named() {
    let provost = Provost::start().await;
    let health = |health: Value| {
        let spec = json!({ "endpoints": [{ "url": "http://127.0.0.1:1" }], "health": health });
        provost.put("/v1/agents/payments", &spec)
    };
    assert_eq!(health(json!({})).await.expect_faults(), ["/health/path"]);
    let wrong = json!({ "path": "health", "interval": "1ms", "paths": 1 });
    let faults = health(wrong).await.expect_faults();
    assert_eq!(faults, ["/health/paths"]);
    let wrong = json!({ "path": "health", "interval": "1ms" });
    let faults = health(wrong).await.expect_faults();
    assert_eq!(
        faults,
        ["/health/path", "/health/interval", "/health/timeout"]
    );
}

/// The instance that checks is killed while the endpoint is not well. Another instance finds that it is well again.
#[tokio::test]
async fn one_instance_checks_and_another_takes_over() {
    let url = new_database().await;
    let start = |id: &str| {
        let setup = Provost::setup().database_url(&url);
        setup
            .set("INSTANCE__LEASE", "2s")
            .set("INSTANCE_ID", id)
            .start()
    };
    let mut instances = vec![start("one").await, start("two").await, start("three").await];
    let (remote, sick) = service().await;
    register(instances[0].api(), &[&remote], health()).await;
    for instance in &instances {
        until(200, async || {
            instance.get("/v1/agents/payments").await.status
        })
        .await;
    }
    let began = Instant::now();
    remote.paths("/health", 6).await;
    let took = began.elapsed();
    assert!(took > Duration::from_secs(4), "six checks in {took:?}");
    sick.store(true, Ordering::SeqCst);
    for instance in &instances {
        until_states(instance.api(), &["unhealthy"]).await;
    }
    let by = endpoints(instances[0].api()).await[0]["by"].clone();
    let names = ["one", "two", "three"];
    let checker = names.iter().position(|name| by == *name).unwrap();
    instances.remove(checker).kill().await;
    let ids = submit_charges(instances[0].api(), 4).await;
    let task = instances[1].task(&ids[0]).await;
    assert_eq!(step(&task, "charge")["blocked_by"]["reason"], "unhealthy");
    sick.store(false, Ordering::SeqCst);
    all_processed(instances[0].api(), &ids).await;
    for instance in &instances {
        until_states(instance.api(), &["healthy"]).await;
        assert!(alerts(instance, "open").await.is_empty());
    }
}
