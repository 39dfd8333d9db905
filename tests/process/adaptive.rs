//! Adaptive concurrency: the number of calls in flight to a service converges to what the service can take, whatever
//! the configured maximum is, and no task fails because of it. The tests try to break it: with a service that queues or
//! refuses calls for which it has no room, refuses everything for a while, or fails at once; with other instances that
//! call it too; with a restart, after which nothing is known; and with an invalid specification. The limit itself is
//! tested with simulated services, in the domain.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::harness::{
    Act, Api, Gate, Provost, Remote, all_processed, new_database, setups, step, submit_charges,
    until,
};

/// A service that works on a limited number of calls at a time, each for a while.
struct Service {
    remote: Remote,
    seen: Arc<Mutex<Load>>,
}

#[derive(Default)]
struct Load {
    /// The ends of the calls that it works on.
    busy: Vec<Instant>,
    /// The number of calls that have no response yet.
    in_flight: usize,
    most: usize,
    /// The number of calls in flight at the arrival of each call.
    at_arrival: Vec<usize>,
    refused: usize,
}

impl Service {
    async fn start(slots: usize, takes: Duration, refuses: bool) -> Self {
        let seen = Arc::new(Mutex::new(Load::default()));
        let load = seen.clone();
        let remote = Remote::with(move |_| {
            let now = Instant::now();
            let mut known = load.lock().unwrap();
            known.in_flight += 1;
            known.most = known.most.max(known.in_flight);
            let in_flight = known.in_flight;
            known.at_arrival.push(in_flight);
            known.busy.retain(|ends| *ends > now);
            let ended = load.clone();
            // The count is reduced before the response is sent, because an instance that gets the response may call
            // again at once.
            let ends = Arc::new(move || ended.lock().unwrap().in_flight -= 1);
            if refuses && in_flight > slots {
                known.refused += 1;
                return Act::Then(Duration::ZERO, ends, Box::new(Act::status(503)));
            }
            known.busy.sort();
            let begins = match known.busy.len().checked_sub(slots) {
                Some(queued) => known.busy[queued],
                None => now,
            };
            known.busy.push(begins + takes);
            let wait = begins + takes - now;
            Act::Then(wait, ends, Box::new(Act::Ok(json!({}))))
        });
        let remote = remote.await;
        Self { remote, seen }
    }

    /// Returns the average number of calls in flight, without the first `skip` calls, from which the limit has grown.
    fn usual(&self, skip: usize) -> f64 {
        let seen = self.seen.lock().unwrap();
        let later = &seen.at_arrival[skip..];
        later.iter().sum::<usize>() as f64 / later.len() as f64
    }
}

async fn register(api: &Api, url: &str, fields: Value) {
    let mut spec = json!({ "endpoints": [{ "url": url }], "adaptive": {},
        "retry": { "initial": "10ms", "max": "100ms" } });
    let fields = fields.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(fields);
    let put = api.put("/v1/agents/payments", &spec).await;
    assert!(put.status < 300, "{put:?}");
}

/// Returns a task with `count` steps that are ready at once.
fn charges(count: usize) -> Value {
    let step = |at| json!({ "name": format!("charge{at}"), "agent": "payments", "after": [], "complete_within": "10m" });
    json!({ "steps": (0..count).map(step).collect::<Vec<_>>() })
}

async fn submit(api: &Api, tasks: usize, steps: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..tasks {
        ids.push(api.submit(&charges(steps)).await);
    }
    ids
}

/// Returns the field `adaptive` of the agent's only endpoint.
async fn adaptive(api: &Api) -> Value {
    let agent = api.get("/v1/agents/payments").await.expect(200);
    agent["endpoints"][0]["adaptive"].clone()
}

#[tokio::test]
async fn calls_settle_near_what_a_service_takes_that_queues_them() {
    for setup in setups().await {
        let service = Service::start(5, Duration::from_millis(60), false).await;
        let provost = setup.start().await;
        let api = provost.api();
        register(api, &service.remote.url(), json!({})).await;
        let ids = submit(api, 6, 100).await;
        all_processed(api, &ids).await;
        assert_eq!(service.remote.count(), 600, "a call failed");
        let usual = service.usual(200);
        assert!((3.0..=10.0).contains(&usual), "{usual} in flight");
        let most = service.seen.lock().unwrap().most;
        assert!(most <= 24, "{most} in flight");
        let limit = adaptive(api).await;
        assert_eq!((&limit["least"], &limit["most"]), (&json!(2), &json!(64)));
        assert!(limit["lowest_latency"].is_string(), "{limit}");
    }
}

#[tokio::test]
async fn calls_settle_at_what_a_service_takes_that_refuses_others_and_all_say_why() {
    for setup in setups().await {
        let service = Service::start(6, Duration::from_millis(60), true).await;
        let provost = setup.start().await;
        let api = provost.api();
        register(api, &service.remote.url(), json!({})).await;
        let ids = submit(api, 6, 100).await;
        let last = &ids[5];
        let waits = async || {
            let task = api.task(last).await;
            step(&task, "charge99")["blocked_by"].clone()
        };
        let says_why = async || {
            let blocked = waits().await;
            let why = blocked["adaptive"]["message"].as_str().unwrap_or_default();
            why.contains("503 Service Unavailable")
        };
        until(true, says_why).await;
        let blocked = waits().await;
        assert_eq!(blocked["reason"], "capacity");
        assert!(blocked["adaptive"]["limit"].as_u64().unwrap() < 64);
        assert_eq!(blocked["adaptive"]["most"], 64);
        let agent_says_why = async || {
            let why = adaptive(api).await["reason"].clone();
            why.as_str()
                .is_some_and(|why| why.contains("503 Service Unavailable"))
        };
        until(true, agent_says_why).await;
        all_processed(api, &ids).await;
        let usual = service.usual(200);
        assert!((3.0..=7.0).contains(&usual), "{usual} in flight");
        let refused = service.seen.lock().unwrap().refused;
        assert_eq!(service.remote.count(), 600 + refused);
        assert!(refused < 120, "{refused} of 600 refused");
        let limit = adaptive(api).await;
        let metric = format!(
            r#"provost_endpoint_limit{{agent="payments",endpoint="{}"}}"#,
            service.remote.url()
        );
        let shown = provost.metric(&metric).await;
        assert_eq!(shown, limit["limit"].as_f64().unwrap());
        // Without `adaptive` the agent has no such limit, and shows none.
        register(api, &service.remote.url(), json!({ "adaptive": null })).await;
        assert_eq!(provost.metric(&metric).await, 0.0);
        let agent = api.get("/v1/agents/payments").await.expect(200);
        assert!(agent.get("endpoints").is_none());
    }
}

#[tokio::test]
async fn an_instance_that_starts_begins_with_the_least() {
    for setup in setups().await {
        let gate = Gate::closed();
        let held = gate.clone();
        let remote = Remote::with(move |_| held.then(json!({}))).await;
        let mut provost = setup.start().await;
        register(
            provost.api(),
            &remote.url(),
            json!({ "adaptive": { "least": 3 } }),
        )
        .await;
        let mut made = 0;
        let mut ids = Vec::new();
        for _ in 0..2 {
            ids.extend(submit_charges(provost.api(), 60).await);
            remote.requests(made + 3).await;
            let blocked = async || {
                let agent = provost.get("/v1/agents/payments").await.expect(200);
                let task = provost.task(ids.last().unwrap()).await;
                let blocked = &step(&task, "charge")["blocked_by"];
                (agent["in_flight"].clone(), blocked["adaptive"].clone())
            };
            let least = json!({ "limit": 3, "most": 64, "message": null });
            until((json!(3), least), blocked).await;
            assert_eq!(remote.count(), made + 3);
            // A round has at most this number of calls.
            gate.let_through(60);
            remote.requests(made + 60).await;
            let has_grown = async || adaptive(provost.api()).await["limit"].as_u64() > Some(3);
            until(true, has_grown).await;
            provost.kill().await;
            made = remote.count();
            provost.restart().await;
        }
        gate.open();
        all_processed(provost.api(), &ids).await;
    }
}

#[tokio::test]
async fn one_that_refuses_everything_gets_the_least_and_more_when_it_is_well() {
    let well = Arc::new(AtomicBool::new(true));
    let is_well = well.clone();
    let remote = Remote::with(move |_| match is_well.load(Ordering::SeqCst) {
        true => Act::After(Duration::from_millis(20), json!({})),
        false => Act::status(429),
    })
    .await;
    let provost = Provost::start().await;
    let api = provost.api();
    register(api, &remote.url(), json!({})).await;
    let limit = async || adaptive(api).await["limit"].as_u64().unwrap();
    // On a slow machine the limit grows more slowly than this number of tasks ends.
    let grows = async || {
        until(true, async || {
            let ids = submit(api, 2, 100).await;
            all_processed(api, &ids).await;
            limit().await > 8
        })
        .await;
    };
    grows().await;
    well.store(false, Ordering::SeqCst);
    let ids = submit(api, 2, 100).await;
    until(2, limit).await;
    let reason = adaptive(api).await["reason"].clone();
    assert!(reason.as_str().unwrap().contains("429"), "{reason}");
    well.store(true, Ordering::SeqCst);
    grows().await;
    all_processed(api, &ids).await;
}

#[tokio::test]
async fn what_fails_at_once_says_nothing_of_room() {
    let fails = Arc::new(AtomicBool::new(true));
    let is_failing = fails.clone();
    let remote = Remote::with(move |seen| match is_failing.load(Ordering::SeqCst) {
        true if seen.path == "/wrong" => Act::status(400),
        true => Act::status(500),
        false => Act::Ok(json!({})),
    })
    .await;
    let provost = Provost::start().await;
    let api = provost.api();
    register(api, &remote.url(), json!({ "adaptive": { "least": 4 } })).await;
    for _ in 0..40 {
        let wrong =
            json!({ "name": "charge", "agent": "payments", "request": { "path": "/wrong" } });
        let task = api.run(&json!({ "steps": [wrong] })).await;
        assert_eq!(task["state"], "error");
    }
    let ids = submit_charges(api, 20).await;
    remote.requests(150).await;
    let limit = adaptive(api).await;
    let nothing = json!({ "limit": 4, "least": 4, "most": 64, "latency": null,
        "lowest_latency": null, "reason": null });
    assert_eq!(limit, nothing);
    fails.store(false, Ordering::SeqCst);
    all_processed(api, &ids).await;
}

/// The shared slots of all instances limit the calls that they have in flight together, however high the limit of each
/// is.
#[tokio::test]
async fn three_instances_adapt_and_never_have_more_than_the_most() {
    let url = new_database().await;
    let start = || Provost::setup().database_url(&url).start();
    let service = Service::start(50, Duration::from_millis(40), false).await;
    let (one, two, three) = (start().await, start().await, start().await);
    register(
        one.api(),
        &service.remote.url(),
        json!({ "max_in_flight": 9 }),
    )
    .await;
    let instances = [&one, &two, &three];
    for instance in instances {
        let knows = async || instance.get("/v1/agents/payments").await.status;
        until(200, knows).await;
    }
    let mut ids = Vec::new();
    for _ in 0..3 {
        for instance in instances {
            ids.extend(submit(instance.api(), 1, 100).await);
        }
    }
    let limits = async || {
        let mut sum = 0;
        for instance in instances {
            sum += adaptive(instance.api()).await["limit"].as_u64().unwrap();
        }
        sum
    };
    until(true, async || limits().await >= 9).await;
    all_processed(one.api(), &ids).await;
    assert_eq!(service.remote.count(), 900);
    assert_eq!(service.seen.lock().unwrap().most, 9);
}

#[tokio::test]
async fn three_instances_share_a_service_that_refuses_what_it_has_no_room_for() {
    let url = new_database().await;
    let start = || Provost::setup().database_url(&url).start();
    let service = Service::start(9, Duration::from_millis(60), true).await;
    let instances = [start().await, start().await, start().await];
    register(instances[0].api(), &service.remote.url(), json!({})).await;
    for instance in &instances {
        let knows = async || instance.get("/v1/agents/payments").await.status;
        until(200, knows).await;
    }
    let mut ids = Vec::new();
    for _ in 0..3 {
        for instance in &instances {
            ids.extend(submit(instance.api(), 1, 100).await);
        }
    }
    all_processed(instances[0].api(), &ids).await;
    let usual = service.usual(300);
    assert!((4.0..=13.0).contains(&usual), "{usual} in flight");
    let refused = service.seen.lock().unwrap().refused;
    assert!(refused < 300, "{refused} of 900 refused");
}

#[tokio::test]
async fn a_specification_that_cannot_hold_is_refused_where_it_is_wrong() {
    let provost = Provost::start().await;
    let endpoints = json!([{ "url": "http://127.0.0.1:1", "max_in_flight": 8 }]);
    let queue = json!([{ "url": "amqp://broker/charges" }]);
    for (spec, pointer) in [
        (json!({ "adaptive": { "least": 0 } }), "/adaptive/least"),
        (json!({ "adaptive": { "least": 9 } }), "/adaptive/least"),
        (json!({ "adaptive": { "least": 1.5 } }), "/adaptive/least"),
        (
            json!({ "adaptive": { "least": 4 }, "max_in_flight": 3 }),
            "/adaptive/least",
        ),
        (
            json!({ "adaptive": {}, "max_in_flight": 1 }),
            "/adaptive/least",
        ),
        (json!({ "adaptive": { "most": 8 } }), "/adaptive/most"),
        (
            json!({ "adaptive": { "slow_after": "0s" } }),
            "/adaptive/slow_after",
        ),
        (
            json!({ "adaptive": { "slow_after": "soon" } }),
            "/adaptive/slow_after",
        ),
        (json!({ "adaptive": true }), "/adaptive"),
        (json!({ "adaptive": {}, "endpoints": queue }), "/adaptive"),
        (
            json!({ "adaptive": {}, "mode": "pull", "endpoints": null }),
            "/adaptive",
        ),
    ] {
        let mut whole = json!({ "endpoints": endpoints });
        let fields = spec.as_object().unwrap().clone();
        whole.as_object_mut().unwrap().extend(fields);
        let put = provost.put("/v1/agents/payments", &whole).await;
        assert_eq!(put.expect_faults(), [pointer], "{spec}");
    }
    let all = json!({ "endpoints": endpoints, "adaptive": { "least": 8, "slow_after": "2s" } });
    let put = provost.put("/v1/agents/payments", &all).await.expect(201);
    assert_eq!(put["spec"]["adaptive"], all["adaptive"]);
    assert_eq!(put["endpoints"][0]["adaptive"]["limit"], 8);
}
