//! The largest number of calls of an agent in flight (`max_in_flight`), for all instances together.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};

use crate::harness::{Act, Api, Gate, Provost, Remote, new_database, setups, until};

/// A service that takes a while for each call, and counts how many calls it has at once.
struct Counting {
    remote: Remote,
    most: Arc<AtomicUsize>,
}

impl Counting {
    async fn start(takes: Duration) -> Self {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let peak = most.clone();
        let remote = Remote::with(move |_| {
            let in_flight = now.fetch_add(1, Ordering::SeqCst) + 1;
            peak.fetch_max(in_flight, Ordering::SeqCst);
            let now = now.clone();
            // The count is reduced before the response is sent, because an instance that gets the response may call
            // again at once.
            let ends = Arc::new(move || {
                now.fetch_sub(1, Ordering::SeqCst);
            });
            Act::Then(takes, ends, Box::new(Act::Ok(json!({}))))
        });
        let remote = remote.await;
        Self { remote, most }
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    async fn register(&self, api: &Api, max_in_flight: Option<u32>) {
        let mut spec = json!({ "endpoints": [{ "url": self.remote.url() }] });
        if let Some(most) = max_in_flight {
            spec["max_in_flight"] = json!(most);
        }
        let put = api.put("/v1/agents/payments", &spec).await;
        assert!(put.status < 300, "{put:?}");
    }
}

/// Returns a task with `count` steps that are ready at once.
fn charges(count: usize) -> Value {
    let step = |at| json!({ "name": format!("charge{at}"), "agent": "payments", "after": [], "complete_within": "10m" });
    json!({ "steps": (0..count).map(step).collect::<Vec<_>>() })
}

/// Returns the number of slots that each instance holds.
async fn held(api: &Api) -> Vec<u64> {
    let agent = api.get("/v1/agents/payments").await.expect(200);
    let slots = agent["slots"].as_array().unwrap().iter();
    slots.map(|held| held["slots"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn no_more_calls_are_in_flight_than_the_agent_takes() {
    for setup in setups().await {
        let service = Counting::start(Duration::from_millis(30)).await;
        let provost = setup.start().await;
        service.register(provost.api(), Some(3)).await;
        let id = provost.submit(&charges(40)).await;
        assert_eq!(provost.settled(&id).await["state"], "processed");
        assert_eq!(service.most(), 3);
        let agent = provost.get("/v1/agents/payments").await.expect(200);
        assert_eq!(agent["capacity"], 3);
        // The limit becomes lower, and is then removed.
        service.most.store(0, Ordering::SeqCst);
        service.register(provost.api(), Some(1)).await;
        let id = provost.submit(&charges(10)).await;
        assert_eq!(provost.settled(&id).await["state"], "processed");
        assert_eq!(service.most(), 1);
        service.register(provost.api(), None).await;
        let id = provost.submit(&charges(40)).await;
        assert_eq!(provost.settled(&id).await["state"], "processed");
        assert!(service.most() > 3);
    }
}

/// The service is so fast that further steps are claimed before a slot is free.
#[tokio::test]
async fn no_more_calls_are_in_flight_of_a_fast_service_than_the_agent_takes() {
    for setup in setups().await {
        let service = Counting::start(Duration::from_millis(1)).await;
        let provost = setup.start().await;
        for most in [8, 1] {
            service.most.store(0, Ordering::SeqCst);
            service.register(provost.api(), Some(most)).await;
            let before = service.remote.count();
            let ids = [
                provost.submit(&charges(200)).await,
                provost.submit(&charges(200)).await,
            ];
            for id in &ids {
                assert_eq!(provost.settled(id).await["state"], "processed");
            }
            assert_eq!(service.most(), most as usize);
            assert_eq!(service.remote.count() - before, 400);
        }
    }
}

/// Steps were claimed ahead, for slots that would be free in a moment, and then the service hangs. They are queued
/// again; none of them is called, and none counts as failed.
#[tokio::test]
async fn steps_that_were_claimed_ahead_are_queued_again_when_the_service_hangs() {
    for setup in setups().await {
        let gate = Gate::closed();
        let held = gate.clone();
        let remote = Remote::with(move |_| held.then(json!({}))).await;
        let provost = setup.start().await;
        provost.register("payments", &remote.url(), 8).await;
        let mut ids = Vec::new();
        let mut let_through = 0;
        // The number of steps that are claimed ahead depends on the speed of this machine.
        let released = r#"provost_events_total{type="step.released"}"#;
        while provost.metric(released).await == 0.0 {
            assert!(ids.len() < 50, "no step was ever claimed ahead");
            ids.push(provost.submit(&charges(400)).await);
            gate.let_through(300);
            let_through += 300;
            remote.requests(let_through + 8).await;
            // No instance holds the steps that were claimed ahead any more.
            until(8, || async {
                let instances = provost.get("/v1/instances").await.expect(200);
                instances["items"][0]["in_flight"].as_u64().unwrap()
            })
            .await;
        }
        assert_eq!(remote.count(), let_through + 8, "none of them was called");
        gate.open();
        for id in &ids {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
        assert_eq!(remote.count(), 400 * ids.len());
        let mut reasons = Vec::new();
        for id in &ids {
            let mut cursor = String::new();
            loop {
                let page = format!("/v1/tasks/{id}/history?limit=500{cursor}");
                let page = provost.get(&page).await.expect(200);
                let entries = page["items"].as_array().unwrap().iter();
                let released = entries.filter(|entry| entry["type"] == "step.released");
                reasons.extend(released.map(|entry| entry["reason"].clone()));
                match page["next_cursor"].as_str() {
                    Some(next) => cursor = format!("&cursor={next}"),
                    None => break,
                }
            }
            let task = provost.task(id).await;
            let steps = task["steps"].as_array().unwrap();
            assert!(
                steps.iter().all(|step| step["failure_count"] == 0),
                "{task}"
            );
        }
        let reason = "no slot of its agent was freed for its call; it is queued again";
        assert!(
            !reasons.is_empty() && reasons.iter().all(|found| found == reason),
            "{reasons:?}"
        );
    }
}

#[tokio::test]
async fn a_step_beyond_the_limit_waits_for_capacity() {
    for setup in setups().await {
        let gate = Gate::closed();
        let held = gate.clone();
        let remote = Remote::with(move |_| held.then(json!({}))).await;
        let provost = setup.start().await;
        let spec = json!({ "endpoints": [{ "url": remote.url() }], "max_in_flight": 2 });
        provost.put("/v1/agents/payments", &spec).await.expect(201);
        let id = provost.submit(&charges(3)).await;
        remote.requests(2).await;
        let reason = || async {
            let task = provost.task(&id).await;
            let steps = task["steps"].as_array().unwrap().iter();
            let blocked = steps.filter_map(|step| step["blocked_by"]["reason"].as_str());
            blocked.collect::<Vec<_>>().join(", ")
        };
        until("capacity".to_owned(), reason).await;
        gate.open();
        assert_eq!(provost.settled(&id).await["state"], "processed");
    }
}

/// Instances start and are killed while the service counts.
#[tokio::test]
async fn all_instances_together_have_no_more_in_flight_while_they_come_and_go() {
    let url = new_database().await;
    let start = || {
        let setup = Provost::setup().database_url(&url);
        setup.set("INSTANCE__LEASE", "2s").start()
    };
    let service = Counting::start(Duration::from_millis(100)).await;
    let mut one = start().await;
    service.register(one.api(), Some(6)).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(one.submit(&charges(100)).await);
    }
    service.remote.requests(6).await;
    assert_eq!(held(one.api()).await, [6]);
    let two = start().await;
    ids.push(two.submit(&charges(100)).await);
    until(vec![3, 3], || held(two.api())).await;
    let mut three = start().await;
    ids.push(three.submit(&charges(100)).await);
    until(vec![2, 2, 2], || held(two.api())).await;
    one.kill().await;
    // The slots of the killed instance are free once its lease has expired.
    until(vec![3, 3], || held(two.api())).await;
    three.kill().await;
    for id in &ids {
        assert_eq!(two.settled(id).await["state"], "processed");
    }
    assert_eq!(service.most(), 6);
    // No instance needs a slot.
    until(Vec::<u64>::new(), || held(two.api())).await;
}

/// Two instances share one slot, and the steps of both are done.
#[tokio::test]
async fn fewer_slots_than_instances_keep_nobody_from_being_served() {
    let url = new_database().await;
    let start = || Provost::setup().database_url(&url).start();
    let service = Counting::start(Duration::from_millis(20)).await;
    let (one, two) = (start().await, start().await);
    service.register(one.api(), Some(1)).await;
    until(200, || async {
        two.get("/v1/agents/payments").await.status
    })
    .await;
    let mut ids = Vec::new();
    for _ in 0..10 {
        for provost in [&one, &two] {
            ids.push(provost.submit(&charges(3)).await);
        }
    }
    for id in &ids {
        assert_eq!(one.settled(id).await["state"], "processed");
    }
    assert_eq!(service.most(), 1);
    assert_eq!(service.remote.count(), 60);
}

/// A process that was suspended for longer than its lease holds no slots when it continues: other instances have them.
#[tokio::test]
async fn a_process_that_slept_through_its_lease_holds_no_slots() {
    let url = new_database().await;
    let start = || {
        let setup = Provost::setup().database_url(&url);
        setup.set("INSTANCE__LEASE", "2s").start()
    };
    let service = Counting::start(Duration::from_millis(100)).await;
    let (one, two) = (start().await, start().await);
    service.register(one.api(), Some(4)).await;
    until(200, || async {
        two.get("/v1/agents/payments").await.status
    })
    .await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        for provost in [&one, &two] {
            ids.push(provost.submit(&charges(60)).await);
        }
    }
    until(vec![2, 2], || held(two.api())).await;
    one.suspend();
    until(vec![4], || held(two.api())).await;
    one.resume();
    for id in &ids {
        assert_eq!(two.settled(id).await["state"], "processed");
    }
    assert_eq!(service.most(), 4);
}

#[tokio::test]
async fn a_limit_out_of_range_is_refused() {
    let provost = Provost::start().await;
    for (most, pointer) in [(json!(0), "/max_in_flight"), (json!("5"), "/max_in_flight")] {
        let spec = json!({ "endpoints": [{ "url": "http://10.0.0.5" }], "max_in_flight": most });
        let refused = provost.put("/v1/agents/payments", &spec).await.expect(422);
        assert_eq!(refused["errors"][0]["pointer"], pointer, "{refused}");
    }
    let pulled = json!({ "mode": "pull", "max_in_flight": 3 });
    let refused = provost.put("/v1/agents/payments", &pulled).await;
    assert_eq!(refused.status, 422, "{refused:?}");
}
