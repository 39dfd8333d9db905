//! Limits and fairness by keys of the tasks (`limits`, `fairness`), and the order within one queue.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};

use crate::harness::{
    Act, Api, Database, Gate, Provost, Remote, all_processed, new_database, setups, step, until,
};

const BY_CUSTOMER: &str = "{{ task.labels.customer }}";

/// Returns a task of a customer with `steps` steps that are ready at once.
fn task_of(customer: &str, steps: usize) -> Value {
    let step = |at| {
        json!({ "name": format!("charge{at}"), "agent": "payments", "after": [], "complete_within": "10m",
                "request": { "body": { "customer": BY_CUSTOMER } } })
    };
    json!({ "labels": { "customer": customer }, "steps": (0..steps).map(step).collect::<Vec<_>>() })
}

async fn register(api: &Api, url: &str, more: Value) {
    let mut spec = json!({ "endpoints": [{ "url": url, "max_in_flight": 30 }] });
    for (name, value) in more.as_object().unwrap() {
        spec[name] = value.clone();
    }
    let put = api.put("/v1/agents/payments", &spec).await;
    assert!(put.status < 300, "{put:?}");
}

/// A service that counts the calls that it has at once for each customer.
pub struct Counting {
    pub remote: Remote,
    most: Arc<Mutex<HashMap<String, (u32, u32)>>>,
}

impl Counting {
    pub async fn start(takes: Duration) -> Self {
        let counts: Arc<Mutex<HashMap<String, (u32, u32)>>> = Arc::default();
        let seen = counts.clone();
        let remote = Remote::with(move |call| {
            let customer = call.body["customer"].as_str().unwrap_or("").to_owned();
            let mut counts = seen.lock().unwrap();
            let count = counts.entry(customer.clone()).or_default();
            count.0 += 1;
            count.1 = count.1.max(count.0);
            let seen = seen.clone();
            let ends = Arc::new(move || {
                seen.lock().unwrap().get_mut(&customer).unwrap().0 -= 1;
            });
            Act::Then(takes, ends, Box::new(Act::Ok(json!({}))))
        });
        let remote = remote.await;
        Self {
            remote,
            most: counts,
        }
    }

    pub fn most(&self, customer: &str) -> u32 {
        self.most
            .lock()
            .unwrap()
            .get(customer)
            .map_or(0, |count| count.1)
    }
}

#[tokio::test]
async fn no_more_steps_of_a_key_run_than_its_limit() {
    for setup in setups().await {
        let service = Counting::start(Duration::from_millis(20)).await;
        let provost = setup.start().await;
        let limits = json!({ "limits": [{ "by": BY_CUSTOMER, "max_in_flight": 2 }] });
        register(provost.api(), &service.remote.url(), limits).await;
        let mut ids = Vec::new();
        for customer in ["a", "b", "c", "a"] {
            ids.push(provost.submit(&task_of(customer, 20)).await);
        }
        let unlabelled = json!({ "steps": [{ "name": "one", "agent": "payments" }] });
        ids.push(provost.submit(&unlabelled).await);
        all_processed(provost.api(), &ids).await;
        for customer in ["a", "b", "c"] {
            assert_eq!(service.most(customer), 2, "{customer}");
        }
        assert_eq!(service.remote.count(), 81);
    }
}

/// Three instances share the limit, of which two start later and two are killed. The service counts the calls.
#[tokio::test]
async fn a_limit_of_a_key_holds_over_instances_that_come_and_go() {
    let url = new_database().await;
    let start = || {
        let setup = Provost::setup().database_url(&url);
        setup.set("INSTANCE__LEASE", "2s").start()
    };
    let service = Counting::start(Duration::from_millis(30)).await;
    let mut one = start().await;
    let limits = json!({ "limits": [{ "by": BY_CUSTOMER, "max_in_flight": 3 }] });
    register(one.api(), &service.remote.url(), limits).await;
    let (two, mut three) = (start().await, start().await);
    let mut ids = Vec::new();
    for _ in 0..3 {
        for (provost, customer) in [(&one, "a"), (&two, "a"), (&three, "a"), (&two, "b")] {
            ids.push(provost.submit(&task_of(customer, 30)).await);
        }
    }
    service.remote.requests(100).await;
    one.kill().await;
    service.remote.requests(200).await;
    three.kill().await;
    all_processed(two.api(), &ids).await;
    assert_eq!((service.most("a"), service.most("b")), (3, 3));
    // Only the calls that were in flight when their instance was killed were made again.
    assert!(service.remote.count() <= 360 + 12);
}

#[tokio::test]
async fn a_step_says_which_limit_it_waits_for() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = Remote::script([gate.then(json!("done"))]).await;
        let provost = setup.start().await;
        let limits = json!({ "limits": [{ "by": BY_CUSTOMER, "max_in_flight": 1 }] });
        register(provost.api(), &remote.url(), limits).await;
        let id = provost.submit(&task_of("acme", 3)).await;
        remote.requests(1).await;
        let waits = || async {
            let task = provost.task(&id).await;
            step(&task, "charge2")["blocked_by"].clone()
        };
        let limited = json!({ "reason": "key_limit", "agent": "payments", "workflow": null, "key": "acme", "by": BY_CUSTOMER,
                              "max_in_flight": 1, "rate": null });
        until(limited, waits).await;
        let agent = provost.get("/v1/agents/payments").await.expect(200);
        let lanes =
            json!([{ "keys": ["acme"], "queued": 2, "queued_is_at_least": false, "running": 1 }]);
        assert_eq!(agent["lanes"], lanes);
        gate.open();
        all_processed(provost.api(), &[id]).await;
        let agent = provost.get("/v1/agents/payments").await.expect(200);
        assert_eq!(agent["lanes"], json!([]));
    }
}

#[tokio::test]
async fn so_many_steps_of_a_key_begin_in_a_time() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let provost = setup.start().await;
        let limits = json!({ "limits": [{ "by": BY_CUSTOMER, "rate": "20/s", "burst": 2 }] });
        register(provost.api(), &remote.url(), limits).await;
        let ids = [
            provost.submit(&task_of("a", 25)).await,
            provost.submit(&task_of("b", 5)).await,
        ];
        all_processed(provost.api(), &ids).await;
        let of = |customer| {
            let calls = remote.ledger().into_iter();
            let calls = calls.filter(move |seen| seen.body["customer"] == customer);
            calls.map(|seen| seen.at).collect::<Vec<_>>()
        };
        let times = of("a");
        // Two calls begin at once, and 23 at 20 a second. Calls that a busy machine delays may come together.
        let took = times.last().unwrap().duration_since(times[0]);
        assert!(took >= Duration::from_millis(900), "{took:?}");
        assert_eq!((times.len(), of("b").len()), (25, 5));
        assert!(of("b")[4] < times[24], "b waits for a");
    }
}

#[tokio::test]
async fn a_rate_that_is_raised_holds_at_once() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let provost = setup.start().await;
        let limit =
            |rate: &str| json!({ "limits": [{ "by": BY_CUSTOMER, "rate": rate, "burst": 1 }] });
        register(provost.api(), &remote.url(), limit("1/h")).await;
        let id = provost.submit(&task_of("a", 4)).await;
        remote.requests(1).await;
        register(provost.api(), &remote.url(), limit("50/s")).await;
        all_processed(provost.api(), &[id]).await;
        // The used part of the limit does not count once the agent is registered again.
        register(provost.api(), &remote.url(), limit("1/h")).await;
        provost.delete("/v1/agents/payments").await.expect(204);
        register(provost.api(), &remote.url(), limit("1/h")).await;
        let id = provost.submit(&task_of("a", 1)).await;
        all_processed(provost.api(), &[id]).await;
    }
}

/// Returns the customers in the order in which their calls arrived.
fn order(remote: &Remote) -> Vec<String> {
    let calls = remote.ledger().into_iter();
    let customers = calls.map(|seen| seen.body["customer"].as_str().unwrap_or("").to_owned());
    customers.collect()
}

#[tokio::test]
async fn ten_tasks_of_one_customer_wait_for_no_more_than_their_share_of_anothers_thousand() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = Remote::script([gate.then(json!("done"))]).await;
        let provost = setup.start().await;
        let fair = json!({ "endpoints": [{ "url": remote.url(), "max_in_flight": 1 }],
                           "fairness": { "by": BY_CUSTOMER, "weights": { "heavy": 3 } } });
        register(provost.api(), &remote.url(), fair).await;
        let mut ids = vec![provost.submit(&task_of("big", 500)).await];
        remote.requests(1).await;
        ids.push(provost.submit(&task_of("big", 500)).await);
        for _ in 0..5 {
            ids.push(provost.submit(&task_of("small", 2)).await);
        }
        ids.push(provost.submit(&task_of("heavy", 30)).await);
        gate.open();
        all_processed(provost.api(), &ids[2..]).await;
        let order = order(&remote);
        let place = |customer: &str, number: usize| {
            let mut places = order.iter().enumerate().filter(|(_, of)| *of == customer);
            places.nth(number).unwrap().0
        };
        // A round of five calls has one of `big`, one of `small` and three of `heavy`.
        assert!(place("small", 9) <= 2 + 10 * 5, "{order:?}");
        assert!(place("heavy", 29) <= 2 + 10 * 5, "{order:?}");
        assert!(place("big", 9) <= 2 + 11 * 5, "{order:?}");
    }
}

/// The heavy customer may have as many steps in its turn as slots are free.
#[tokio::test]
async fn a_weight_leaves_the_others_their_turns() {
    for setup in setups().await {
        let provost = setup.start().await;
        let fairness = json!({ "by": BY_CUSTOMER, "weights": { "heavy": 3 } });
        let spec = json!({ "mode": "pull", "fairness": fairness });
        provost.put("/v1/agents/payments", &spec).await.expect(201);
        for (customer, tasks) in [("heavy", 60), ("other", 30), ("small", 5)] {
            let task = task_of(customer, 1);
            let submitted = (0..tasks).map(|_| provost.submit(&task));
            futures::future::join_all(submitted).await;
        }
        let mut order = Vec::new();
        let ask = json!({ "worker": "w", "max": 3, "wait": "1s" });
        while order.len() < 45 {
            let path = "/v1/agents/payments/claim";
            let claimed = provost.post(path, &ask).await.expect(200);
            for work in claimed["steps"].as_array().unwrap() {
                let customer = work["request"]["body"]["customer"].as_str().unwrap();
                order.push(customer.to_owned());
            }
        }
        let last = order.iter().rposition(|customer| customer == "small");
        assert_eq!(
            order.iter().filter(|of| *of == "small").count(),
            5,
            "{order:?}"
        );
        assert!(last.is_some_and(|last| last < 32), "{order:?}");
        let heavy = order[..25].iter().filter(|of| *of == "heavy").count();
        assert!((12..=18).contains(&heavy), "{order:?}");
    }
}

/// Checks that steps that are queued when a rule comes, changes and goes are all done, and are limited by it during
/// that time.
#[tokio::test]
async fn a_rule_that_comes_while_steps_are_queued_holds_for_them() {
    for setup in setups().await {
        let service = Counting::start(Duration::from_millis(10)).await;
        let provost = setup.start().await;
        let closed = Remote::script([Act::Hang]).await;
        let one = json!({ "endpoints": [{ "url": closed.url(), "max_in_flight": 1 }] });
        register(provost.api(), &closed.url(), one).await;
        let mut ids = Vec::new();
        for customer in ["a", "b", "a", "b"] {
            ids.push(provost.submit(&task_of(customer, 100)).await);
        }
        closed.requests(1).await;
        let limit = |by: &str| json!({ "limits": [{ "by": by, "max_in_flight": 2 }] });
        register(provost.api(), &service.remote.url(), limit(BY_CUSTOMER)).await;
        service.remote.requests(60).await;
        register(provost.api(), &service.remote.url(), limit("{{ task.id }}")).await;
        service.remote.requests(120).await;
        assert!(service.most("a") <= 6 && service.most("b") <= 6);
        register(provost.api(), &service.remote.url(), json!({})).await;
        service.remote.requests(399).await;
        assert_eq!(service.remote.count(), 399);
        drop(closed);
    }
}

/// The poll of an operation belongs to a running step, so a limit of one must not prevent it.
#[tokio::test]
async fn an_operation_is_polled_although_its_key_has_no_room() {
    for setup in setups().await {
        let remote = Remote::with(|seen| match seen.method.as_str() {
            "GET" => Act::Ok(json!({ "status": "done" })),
            _ => Act::answer(202, &[("location", "/operations/7")], "{}"),
        });
        let remote = remote.await;
        let provost = setup.start().await;
        let limits = json!({ "limits": [{ "by": BY_CUSTOMER, "max_in_flight": 1 }] });
        register(provost.api(), &remote.url(), limits).await;
        let one = |name: &str| {
            json!({ "name": name, "agent": "payments", "after": [],
                    "complete_within": "1h", "reply": { "poll": { "until": "response.body.status == 'done'", "every": "1s" } } })
        };
        let task =
            json!({ "labels": { "customer": "acme" }, "steps": [one("a"), one("b"), one("c")] });
        let id = provost.submit(&task).await;
        all_processed(provost.api(), &[id]).await;
    }
}

/// A worker gets no more steps of a key than its limit.
#[tokio::test]
async fn limits_of_keys_hold_for_agents_that_are_pulled() {
    for setup in setups().await {
        let provost = setup.start().await;
        let spec = json!({ "mode": "pull", "limits": [{ "by": BY_CUSTOMER, "max_in_flight": 2 }] });
        let put = provost.put("/v1/agents/render", &spec).await;
        assert!(put.status < 300, "{put:?}");
        for customer in ["a", "b"] {
            let steps: Vec<_> = (0..5)
                .map(|at| json!({ "name": format!("s{at}"), "agent": "render", "after": [] }))
                .collect();
            let task = json!({ "labels": { "customer": customer }, "steps": steps });
            provost.submit(&task).await;
        }
        let ask = json!({ "worker": "w-1", "max": 10, "wait": "2s" });
        let fetched = provost
            .post("/v1/agents/render/claim", &ask)
            .await
            .expect(200);
        assert_eq!(fetched["steps"].as_array().unwrap().len(), 4, "{fetched}");
    }
}

#[tokio::test]
async fn within_a_priority_the_task_with_the_least_time_left_goes_first() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = Remote::script([gate.then(json!("done"))]).await;
        let provost = setup.start().await;
        provost.register("payments", &remote.url(), 1).await;
        let mut ids = vec![provost.submit(&task_of("first", 1)).await];
        remote.requests(1).await;
        for (customer, within, priority) in [
            ("never", None, 0),
            ("day", Some("24h"), 0),
            ("soon", Some("20m"), 0),
            ("sooner", Some("10m"), 0),
            ("important", None, 1),
        ] {
            let mut task = task_of(customer, 1);
            task["priority"] = json!(priority);
            if let Some(within) = within {
                task["complete_within"] = json!(within);
            }
            ids.push(provost.submit(&task).await);
        }
        gate.open();
        all_processed(provost.api(), &ids).await;
        let expected = ["first", "important", "sooner", "soon", "never", "day"];
        assert_eq!(order(&remote), expected);
    }
}

/// A task that has waited for longer than one priority is worth goes before a task that is more important by one.
#[tokio::test]
async fn a_task_that_has_waited_for_long_goes_before_a_more_important_one() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let mut provost = Provost::start().await;
    let nobody = "http://127.0.0.1:9";
    provost.register("payments", nobody, 1).await;
    provost
        .post("/v1/agents/payments/pause", &json!({}))
        .await
        .expect(200);
    let mut ids = Vec::new();
    for (customer, priority) in [("old", 0), ("older", -1), ("oldest", 1)] {
        let mut task = task_of(customer, 1);
        task["priority"] = json!(priority);
        ids.push(provost.submit(&task).await);
    }
    provost.terminate();
    assert!(provost.ended().await.success());
    let database = Database::open(&provost.database());
    database.execute("UPDATE steps SET turn = turn - 61 * 60000");
    drop(database);
    provost.restart().await;
    provost.register("payments", &remote.url(), 1).await;
    for (customer, priority) in [("new", 1), ("newest", 2)] {
        let mut task = task_of(customer, 1);
        task["priority"] = json!(priority);
        ids.push(provost.submit(&task).await);
    }
    provost
        .post("/v1/agents/payments/resume", &json!({}))
        .await
        .expect(200);
    gate.open();
    all_processed(provost.api(), &ids).await;
    assert_eq!(order(&remote), ["oldest", "newest", "old", "new", "older"]);
}

#[tokio::test]
async fn faults_of_limits_and_fairness_are_named() {
    let provost = Provost::start().await;
    for (more, pointer) in [
        (
            json!({ "limits": [{ "max_in_flight": 1 }] }),
            "/limits/0/by",
        ),
        (
            json!({ "limits": [{ "by": "customer", "max_in_flight": 1 }] }),
            "/limits/0/by",
        ),
        (
            json!({ "limits": [{ "by": "{{ steps.a.output }}", "rate": "1/s" }] }),
            "/limits/0/by",
        ),
        (
            json!({ "limits": [{ "by": "{{ task.labels.x", "rate": "1/s" }] }),
            "/limits/0/by",
        ),
        (json!({ "limits": [{ "by": BY_CUSTOMER }] }), "/limits/0"),
        (
            json!({ "limits": [{ "by": BY_CUSTOMER, "rate": "often" }] }),
            "/limits/0/rate",
        ),
        (
            json!({ "limits": [{ "by": BY_CUSTOMER, "max_in_flight": 0 }] }),
            "/limits/0/max_in_flight",
        ),
        (
            json!({ "limits": [{ "by": BY_CUSTOMER, "max": 1 }] }),
            "/limits/0/max",
        ),
        (json!({ "limits": {} }), "/limits"),
        (json!({ "fairness": {} }), "/fairness/by"),
        (
            json!({ "fairness": { "by": BY_CUSTOMER, "weights": { "a/b": 101 } } }),
            "/fairness/weights/a~1b",
        ),
        (
            json!({ "fairness": { "by": BY_CUSTOMER, "weights": { "a": "x" } } }),
            "/fairness/weights/a",
        ),
    ] {
        let mut spec = json!({ "endpoints": [{ "url": "http://10.0.0.5" }] });
        for (name, value) in more.as_object().unwrap() {
            spec[name] = value.clone();
        }
        let refused = provost.put("/v1/agents/payments", &spec).await.expect(422);
        assert_eq!(refused["errors"][0]["pointer"], pointer, "{more} {refused}");
    }
}
