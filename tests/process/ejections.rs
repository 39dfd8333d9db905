//! Ejections: an endpoint that fails several times in a row gets no calls for a while, and the other endpoints of its
//! agent take them. Also breakers that open together.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};

use crate::harness::{
    Act, Api, PATIENCE, Provost, Remote, alerts, all_processed, new_database, setups, step,
    submit_charges, until,
};

async fn register(api: &Api, remotes: &[&Remote], protection: Value) {
    let endpoints = remotes.iter();
    let endpoints = endpoints.map(|remote| json!({ "url": remote.url(), "max_in_flight": 4 }));
    let mut spec = json!({ "endpoints": endpoints.collect::<Vec<_>>(),
        "retry": { "initial": "10ms", "max": "50ms" } });
    let fields = protection.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(fields);
    api.put("/v1/agents/payments", &spec).await.expect(201);
}

/// Returns one field of each endpoint, breaker and so on.
async fn each(api: &Api, list: &str, field: &str) -> Vec<Value> {
    let agent = api.get("/v1/agents/payments").await.expect(200);
    let all = agent[list].as_array().unwrap().iter();
    all.map(|one| one[field].clone()).collect()
}

async fn states(api: &Api) -> Vec<Value> {
    each(api, "endpoints", "state").await
}

/// Submits until the condition is true. The endpoint of a call is chosen by chance, and a failing one is chosen ever
/// more rarely.
async fn submit_until<F: Future<Output = bool>>(api: &Api, so: impl Fn() -> F) {
    let submitted = async {
        while !so().await {
            let ids = submit_charges(api, 10).await;
            all_processed(api, &ids).await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, submitted).await;
    in_time.expect("it never came to be, however many tasks were submitted");
}

/// Returns a service that responds 503 while it is sick.
async fn service() -> (Remote, Arc<AtomicBool>) {
    let sick = Arc::new(AtomicBool::new(true));
    let is_sick = sick.clone();
    let remote = Remote::with(move |_| match is_sick.load(Ordering::SeqCst) {
        true => Act::status(503),
        false => Act::Ok(json!({})),
    })
    .await;
    (remote, sick)
}

#[tokio::test]
async fn an_endpoint_that_fails_in_a_row_is_left_out_and_comes_back() {
    for setup in setups().await {
        let ((remote, sick), healthy) = (service().await, Remote::quick().await);
        let mut provost = setup.start().await;
        let ejection = json!({ "ejection": { "after": 3, "for": "1h", "max": "1h" } });
        register(provost.api(), &[&remote, &healthy], ejection).await;
        let api = provost.api();
        submit_until(api, || async {
            states(api).await == ["ejected", "healthy"]
        })
        .await;
        let agent = provost.get("/v1/agents/payments").await.expect(200);
        let ejected = &agent["endpoints"][0];
        let reason = ejected["reason"].as_str().unwrap();
        assert_eq!(
            reason,
            "3 calls in a row failed; the last one: the service responded 503 Service Unavailable"
        );
        assert!(ejected["until"].is_string() && ejected["by"].is_string());
        let metric = format!(
            r#"provost_endpoint_ejected{{agent="payments",endpoint="{}"}}"#,
            remote.url()
        );
        assert_eq!(provost.metric(&metric).await, 1.0);
        assert!(alerts(&provost, "open").await.is_empty(), "the others work");
        let made = remote.count();
        // Three failures in a row eject it, and up to three more calls may have been sent before.
        assert!((3..=6).contains(&made), "{made}");

        provost.kill().await;
        provost.restart().await;
        let api = provost.api();
        let ids = submit_charges(api, 10).await;
        all_processed(api, &ids).await;
        assert_eq!(remote.count(), made, "it was called while ejected");

        sick.store(false, Ordering::SeqCst);
        let reset = json!({ "action": "reset" });
        let after = api.post("/v1/agents/payments/breaker", &reset).await;
        assert_eq!(after.expect(200)["endpoints"][0]["state"], "healthy");
        submit_until(api, || async { remote.count() > made }).await;
        assert_eq!(provost.metric(&metric).await, 0.0);
    }
}

#[tokio::test]
async fn an_ejection_ends_by_itself_and_the_next_takes_longer() {
    let ((remote, sick), healthy) = (service().await, Remote::quick().await);
    let provost = Provost::start().await;
    let api = provost.api();
    let ejection = json!({ "ejection": { "after": 1, "for": "700ms", "max": "1h" } });
    register(api, &[&remote, &healthy], ejection).await;
    let length = async || {
        let agent = api.get("/v1/agents/payments").await.expect(200);
        let time = |field: &str| {
            let text = agent["endpoints"][0][field].as_str()?;
            let time: jiff::Timestamp = text.parse().unwrap();
            Some(time.as_millisecond())
        };
        Some(time("until")? - time("since")?)
    };
    let mut lengths = Vec::new();
    let three = async {
        while lengths.len() < 3 {
            let ids = submit_charges(api, 2).await;
            all_processed(api, &ids).await;
            if let Some(length) = length().await
                && lengths.last() != Some(&length)
            {
                lengths.push(length);
            }
        }
    };
    tokio::time::timeout(PATIENCE, three).await.unwrap();
    assert_eq!(lengths, [700, 1400, 2100]);
    sick.store(false, Ordering::SeqCst);
    until(vec![json!("healthy"); 2], || states(api)).await;
    let made = remote.count();
    submit_until(api, || async { remote.count() > made }).await;
}

#[tokio::test]
async fn at_least_half_of_the_endpoints_stay_and_one_alone_does() {
    let sick = async || service().await.0;
    let remotes = [sick().await, sick().await, sick().await];
    let provost = Provost::start().await;
    let ejection = json!({ "ejection": { "after": 2, "for": "1h", "max": "1h" } });
    let all: Vec<_> = remotes.iter().collect();
    register(provost.api(), &all, ejection.clone()).await;
    submit_charges(provost.api(), 5).await;
    let ejected = async || {
        let states = states(provost.api()).await.into_iter();
        states.filter(|state| state == "ejected").count()
    };
    until(1, ejected).await;
    let made = async || -> usize { remotes.iter().map(Remote::count).sum() };
    let now = made().await;
    until(true, async || made().await >= now + 40).await;
    assert_eq!(ejected().await, 1, "half of three, rounded down");
    assert_eq!(
        provost
            .api()
            .delete("/v1/agents/payments?force=true")
            .await
            .status,
        204
    );
    register(provost.api(), &all[..1], ejection).await;
    let now = remotes[0].count();
    remotes[0].requests(now + 20).await;
    assert_eq!(states(provost.api()).await, ["healthy"]);
}

#[tokio::test]
async fn what_one_instance_saw_of_an_endpoint_the_others_know() {
    let url = new_database().await;
    let start = || Provost::setup().database_url(&url).start();
    let (mut one, two) = (start().await, start().await);
    let ((remote, _), healthy) = (service().await, Remote::quick().await);
    let ejection = json!({ "ejection": { "after": 3, "for": "1h", "max": "1h" } });
    register(one.api(), &[&remote, &healthy], ejection).await;
    until(200, || async {
        two.get("/v1/agents/payments").await.status
    })
    .await;
    submit_until(one.api(), || async {
        states(one.api()).await[0] == "ejected"
    })
    .await;
    until(vec![json!("ejected"), json!("healthy")], || {
        states(two.api())
    })
    .await;
    let made = remote.count();
    one.kill().await;
    let ids = submit_charges(two.api(), 20).await;
    all_processed(two.api(), &ids).await;
    assert_eq!(remote.count(), made, "the other one called it");
    let late = Provost::setup().database_url(&url).start().await;
    assert_eq!(states(late.api()).await, ["ejected", "healthy"]);
}

/// Each endpoint gets too few calls to open its breaker alone.
#[tokio::test]
async fn endpoints_that_all_fail_are_opened_together() {
    for setup in setups().await {
        let sick = async || service().await;
        let services = [sick().await, sick().await, sick().await, sick().await];
        let remotes: Vec<_> = services.iter().map(|(remote, _)| remote).collect();
        let provost = setup.start().await;
        let breaker = json!({ "breaker": { "min_calls": 40, "window": "10m", "open_for": "1h" } });
        register(provost.api(), &remotes, breaker).await;
        let ids = submit_charges(provost.api(), 20).await;
        let breakers = || each(provost.api(), "breakers", "state");
        until(vec![json!("open"); 4], breakers).await;
        let reasons = each(provost.api(), "breakers", "reason").await;
        let cause = "calls in 10m failed at all endpoints; the last one: the service responded 503";
        for reason in reasons {
            assert!(reason.as_str().unwrap().contains(cause), "{reason}");
        }
        let made: usize = remotes.iter().map(|remote| remote.count()).sum();
        assert!((40..=56).contains(&made), "{made}");
        // The step may first wait for its next attempt.
        let waits = || async {
            let task = provost.task(&ids[0]).await;
            step(&task, "charge")["blocked_by"]["reason"].clone()
        };
        until(json!("breaker"), waits).await;
        assert_eq!(alerts(&provost, "open").await.len(), 1);
        for (_, sick) in &services {
            sick.store(false, Ordering::SeqCst);
        }
        let reset = json!({ "action": "reset" });
        let path = "/v1/agents/payments/breaker";
        provost.api().post(path, &reset).await.expect(200);
        all_processed(provost.api(), &ids).await;
    }
}

#[tokio::test]
async fn one_endpoint_that_is_well_keeps_the_others_from_being_opened_together() {
    let ((remote, _), (other, _), healthy) =
        (service().await, service().await, Remote::quick().await);
    let provost = Provost::start().await;
    let breaker = json!({ "breaker": { "min_calls": 30, "window": "10m", "open_for": "1h" } });
    register(provost.api(), &[&remote, &other, &healthy], breaker).await;
    let ids = submit_charges(provost.api(), 60).await;
    all_processed(provost.api(), &ids).await;
    let states = each(provost.api(), "breakers", "state").await;
    assert_eq!(states[2], "closed");
}

/// The fault of a number out of range names the range, also for a negative number.
#[tokio::test]
async fn numbers_out_of_range_name_the_range() {
    let provost = Provost::start().await;
    let endpoints = json!([{ "url": "http://127.0.0.1:1" }]);
    let faults = async |field: &str, value: Value| {
        let spec = json!({ "endpoints": endpoints, field: value });
        let put = provost.put("/v1/agents/payments", &spec).await;
        let faults = put.expect_problem(422, "invalid")["errors"].take();
        let faults = faults.as_array().unwrap().iter();
        let faults = faults.map(|fault| format!("{} {}", fault["pointer"], fault["message"]));
        faults.collect::<Vec<_>>().join(" ").replace('"', "")
    };
    for after in [json!(-1), json!(0), json!(1001), json!(1.5), json!(1e30)] {
        let said = faults("ejection", json!({ "after": after })).await;
        let range = "/ejection/after must be a whole number from 1 to 1000, not ";
        assert!(said.starts_with(range), "{said}");
    }
    for (field, most) in [
        ("failure_percent", 100),
        ("slow_percent", 100),
        ("min_calls", 10_000),
        ("canaries", 100),
    ] {
        let said = faults("breaker", json!({ field: -1 })).await;
        let range = format!("/breaker/{field} must be a whole number from 1 to {most}, not -1");
        assert_eq!(said, range);
    }
}
