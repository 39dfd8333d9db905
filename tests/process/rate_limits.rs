//! The rate limit of an agent: it applies to the calls of all instances together.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Act, Api, Provost, Remote, Seen, new_database, setups, step, until};

async fn register(api: &Api, remote: &Remote, limit: Value) {
    let spec = json!({ "endpoints": [{ "url": remote.url() }], "rate_limit": limit });
    let put = api.put("/v1/agents/payments", &spec).await;
    assert!(put.status < 300, "{put:?}");
}

/// Returns a task with `count` steps that are ready at once.
fn charges(count: usize) -> Value {
    let step = |at| json!({ "name": format!("charge{at}"), "agent": "payments", "after": [], "complete_within": "10m" });
    json!({ "steps": (0..count).map(step).collect::<Vec<_>>() })
}

/// Checks that in no interval there are more calls than the rate and the burst allow. A call takes a moment from its
/// grant to the service: `slack` is the part of one interval whose calls may come in the next.
fn check(calls: &[Seen], per_second: f64, burst: f64, slack: Duration) {
    let mut times: Vec<Instant> = calls.iter().map(|seen| seen.at).collect();
    times.sort();
    for (first, start) in times.iter().enumerate() {
        for (last, end) in times.iter().enumerate().skip(first) {
            let made = (last - first + 1) as f64;
            let time = end.duration_since(*start) + slack;
            let most = burst + per_second * time.as_secs_f64() + 1.0;
            assert!(made <= most, "{made} calls in {time:?}");
        }
    }
}

/// The time by which a busy machine may delay calls.
const SLACK: Duration = Duration::from_millis(500);

#[tokio::test]
async fn so_many_calls_begin_and_the_other_steps_wait() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let provost = setup.start().await;
        let rate = json!({ "rate": "40/s", "burst": 4 });
        register(provost.api(), &remote, rate).await;
        let id = provost.submit(&charges(60)).await;
        remote.requests(10).await;
        let task = provost.task(&id).await;
        let steps = task["steps"].as_array().unwrap().iter();
        let waits = steps.map(|step| &step["blocked_by"]);
        let limited = json!({ "reason": "rate_limit", "agent": "payments", "rate": "40/s" });
        // A call may be running at this moment.
        let others = json!("capacity");
        let mut waits = waits.filter(|blocked| !blocked.is_null());
        assert!(waits.all(|blocked| *blocked == limited || blocked["reason"] == others));
        assert_eq!(provost.settled(&id).await["state"], "processed");
        assert_eq!(remote.count(), 60);
        check(&remote.ledger(), 40.0, 4.0, SLACK);
    }
}

#[tokio::test]
async fn a_limit_that_is_lifted_or_lowered_holds_at_once() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let provost = setup.start().await;
        register(provost.api(), &remote, json!({ "rate": "1/h" })).await;
        let id = provost.submit(&charges(20)).await;
        let blocked = || async {
            let task = provost.task(&id).await;
            step(&task, "charge19")["blocked_by"]["reason"].clone()
        };
        until(json!("rate_limit"), blocked).await;
        assert_eq!(remote.count(), 0, "a start is no reason for a burst");
        register(
            provost.api(),
            &remote,
            json!({ "rate": "200/s", "burst": 5 }),
        )
        .await;
        assert_eq!(provost.settled(&id).await["state"], "processed");
        check(&remote.ledger(), 200.0, 5.0, SLACK);
        let unlimited = json!({ "endpoints": [{ "url": remote.url() }] });
        register(provost.api(), &remote, json!({ "rate": "1/h" })).await;
        let id = provost.submit(&charges(20)).await;
        provost
            .put("/v1/agents/payments", &unlimited)
            .await
            .expect(200);
        assert_eq!(provost.settled(&id).await["state"], "processed");
    }
}

/// Instances start and are killed while the service counts.
#[tokio::test]
async fn all_instances_together_keep_the_rate_while_they_come_and_go() {
    let url = new_database().await;
    let start = || {
        let setup = Provost::setup().database_url(&url);
        setup.set("INSTANCE__LEASE", "2s").start()
    };
    let remote = Remote::quick().await;
    let mut one = start().await;
    register(one.api(), &remote, json!({ "rate": "30/s", "burst": 3 })).await;
    let two = start().await;
    let mut ids = Vec::new();
    for provost in [&one, &two] {
        ids.push(provost.submit(&charges(60)).await);
    }
    remote.requests(30).await;
    let three = start().await;
    ids.push(three.submit(&charges(30)).await);
    remote.requests(70).await;
    one.kill().await;
    for id in &ids {
        assert_eq!(two.settled(id).await["state"], "processed");
    }
    check(&remote.ledger(), 30.0, 3.0, SLACK);
}

/// The service says so in its response to one call of one instance: a success with no quota left.
#[tokio::test]
async fn a_quota_that_is_used_up_holds_for_all_calls() {
    for setup in setups().await {
        let used_up = [("ratelimit", "\"default\";r=0;t=2")];
        let last = Act::answer(200, &used_up, "{}");
        let remote = Remote::script([last, Act::Ok(json!({}))]).await;
        let provost = setup.start().await;
        let limit = json!({ "rate": "10/s", "burst": 1 });
        register(provost.api(), &remote, limit).await;
        let id = provost.submit(&charges(3)).await;
        assert_eq!(provost.settled(&id).await["state"], "processed");
        let calls = remote.ledger();
        let waited = calls[1].at.duration_since(calls[0].at);
        assert!(waited > Duration::from_millis(1900), "{waited:?}");
    }
}

#[tokio::test]
async fn what_a_service_asks_for_with_retry_after_holds_for_all_calls() {
    let url = new_database().await;
    let start = || Provost::setup().database_url(&url).start();
    let (one, two) = (start().await, start().await);
    let busy = Act::answer(429, &[("retry-after", "2")], "");
    let remote = Remote::script([busy, Act::Ok(json!({}))]).await;
    register(one.api(), &remote, json!({ "rate": "10/s", "burst": 1 })).await;
    until(200, || async {
        two.get("/v1/agents/payments").await.status
    })
    .await;
    let ids = [one.submit(&charges(5)).await, two.submit(&charges(5)).await];
    remote.requests(1).await;
    for provost in [&one, &two] {
        until(true, || async {
            let agent = provost.get("/v1/agents/payments").await.expect(200);
            agent["throttle"]["reason"] == "the service responded 429 Too Many Requests"
        })
        .await;
        let throttled = r#"provost_agent_throttled{agent="payments"}"#;
        until(1.0, || provost.metric(throttled)).await;
    }
    let task = two.task(&ids[1]).await;
    let blocked = &step(&task, "charge4")["blocked_by"];
    assert_eq!(blocked["reason"], "throttled", "{blocked}");
    assert!(blocked["until"].is_string());
    for id in &ids {
        assert_eq!(one.settled(id).await["state"], "processed");
    }
    for provost in [&one, &two] {
        let throttled = r#"provost_agent_throttled{agent="payments"}"#;
        until(0.0, || provost.metric(throttled)).await;
    }
    let calls = remote.ledger();
    // The record is written a moment after the response, and its time is that of the database.
    let after = |seen: &Seen| seen.at.duration_since(calls[0].at);
    let meanwhile = calls.iter().filter(|seen| after(seen) > SLACK);
    let early = meanwhile.filter(|seen| after(seen) < Duration::from_millis(1900));
    assert_eq!(early.count(), 0, "{calls:#?}");
    assert!(
        one.get("/v1/agents/payments")
            .await
            .expect(200)
            .get("throttle")
            .is_none()
    );
}

#[tokio::test]
async fn what_is_no_rate_is_refused() {
    let provost = Provost::start().await;
    for (limit, pointer) in [
        (json!({}), "/rate_limit/rate"),
        (json!({ "rate": null }), "/rate_limit/rate"),
        (json!({ "rate": 5 }), "/rate_limit/rate"),
        (json!({ "rate": "5 per second" }), "/rate_limit/rate"),
        (json!({ "rate": "0/s" }), "/rate_limit/rate"),
        (json!({ "rate": "5/s", "burst": 0 }), "/rate_limit/burst"),
        (json!({ "rate": "5/s", "bursts": 1 }), "/rate_limit/bursts"),
    ] {
        let spec = json!({ "endpoints": [{ "url": "http://127.0.0.1:9" }], "rate_limit": limit });
        let put = provost.put("/v1/agents/payments", &spec).await;
        assert_eq!(put.expect_faults(), [pointer], "{limit}");
    }
}
