//! The limits of a workflow for the steps of its tasks with each key: how many run at once and how often one begins,
//! whichever agents they call (`max_in_flight` and `rate` in the `limits` of a workflow).

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    harness::{Act, Api, Gate, Provost, Remote, all_processed, new_database, setups, step, until},
    lanes::Counting,
};

const BY_CUSTOMER: &str = "{{ task.labels.customer }}";
const AGENTS: [&str; 2] = ["crm", "mail"];

/// Registers two agents that call one service, which counts the calls.
async fn register_agents(api: &Api, url: &str, more: Value) {
    for agent in AGENTS {
        let mut spec = json!({ "endpoints": [{ "url": url, "max_in_flight": 30 }] });
        for (name, value) in more.as_object().unwrap() {
            spec[name] = value.clone();
        }
        let put = api.put(&format!("/v1/agents/{agent}"), &spec).await;
        assert!(put.status < 300, "{put:?}");
    }
}

/// Returns `count` steps that are ready at once, half of them at each agent.
fn steps(count: usize) -> Value {
    let step = |at: usize| {
        json!({ "name": format!("s{at}"), "agent": AGENTS[at % 2], "after": [], "complete_within": "10m",
                "request": { "body": { "customer": BY_CUSTOMER } } })
    };
    (0..count).map(step).collect()
}

async fn register(api: &Api, limit: Value, steps: Value) {
    let mut whole = json!({ "by": BY_CUSTOMER });
    for (name, value) in limit.as_object().unwrap() {
        whole[name] = value.clone();
    }
    let workflow = json!({ "limits": [whole], "steps": steps });
    let put = api.put("/v1/workflows/sync", &workflow).await;
    assert!(put.status < 300, "{put:?}");
}

fn one_of(customer: &str) -> Value {
    json!({ "workflow": "sync", "labels": { "customer": customer } })
}

#[tokio::test]
async fn no_more_steps_of_a_key_run_over_all_agents_and_versions_than_the_limit_of_the_workflow() {
    for setup in setups().await {
        let service = Counting::start(Duration::from_millis(20)).await;
        let provost = setup.start().await;
        register_agents(provost.api(), &service.remote.url(), json!({})).await;
        register(provost.api(), json!({ "max_in_flight": 3 }), steps(20)).await;
        let mut ids = Vec::new();
        for customer in ["a", "b", "a"] {
            ids.push(provost.submit(&one_of(customer)).await);
        }
        // This is another version with the same limit.
        register(provost.api(), json!({ "max_in_flight": 3 }), steps(21)).await;
        for customer in ["a", "b"] {
            ids.push(provost.submit(&one_of(customer)).await);
        }
        all_processed(provost.api(), &ids).await;
        for customer in ["a", "b"] {
            assert_eq!(service.most(customer), 3, "{customer}");
        }
        assert_eq!(service.remote.count(), 3 * 20 + 2 * 21);
    }
}

/// The limits are those of the task's own version: a limit that is lowered does not apply to tasks that were submitted
/// before.
#[tokio::test]
async fn a_task_keeps_the_limit_that_it_was_submitted_with() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = Remote::with({
            let gate = gate.clone();
            move |_| gate.then(json!("done"))
        });
        let remote = remote.await;
        let provost = setup.start().await;
        register_agents(provost.api(), &remote.url(), json!({})).await;
        register(provost.api(), json!({ "max_in_flight": 2 }), steps(4)).await;
        let old = provost.submit(&one_of("a")).await;
        remote.requests(2).await;
        register(provost.api(), json!({ "max_in_flight": 5 }), steps(4)).await;
        let new = provost.submit(&one_of("a")).await;
        remote.requests(5).await;
        let limit_of = |task: Value| {
            let steps = task["steps"].as_array().unwrap().iter();
            let mut waits = steps.filter(|step| step["state"] == "pending");
            waits.next().unwrap()["blocked_by"]["max_in_flight"].clone()
        };
        let waits = || async {
            let (old, new) = (provost.task(&old).await, provost.task(&new).await);
            json!([limit_of(old), limit_of(new)])
        };
        until(json!([2, 5]), waits).await;
        assert_eq!(remote.count(), 5);
        gate.open();
        all_processed(provost.api(), &[old, new]).await;
    }
}

/// Three instances share the limit, of which two start later and two are killed. The service counts the calls of both
/// agents.
#[tokio::test]
async fn a_limit_of_a_workflow_holds_over_instances_that_come_and_go() {
    let url = new_database().await;
    let start = || {
        let setup = Provost::setup().database_url(&url);
        setup.set("INSTANCE__LEASE", "2s").start()
    };
    let service = Counting::start(Duration::from_millis(30)).await;
    let mut one = start().await;
    register_agents(one.api(), &service.remote.url(), json!({})).await;
    register(one.api(), json!({ "max_in_flight": 3 }), steps(30)).await;
    let (two, mut three) = (start().await, start().await);
    let mut ids = Vec::new();
    for _ in 0..3 {
        for (provost, customer) in [(&one, "a"), (&two, "a"), (&three, "a"), (&two, "b")] {
            ids.push(provost.submit(&one_of(customer)).await);
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

/// A step whose reply comes later counts until the reply has come, whatever is killed before.
#[tokio::test]
async fn a_step_whose_reply_is_awaited_counts_also_after_a_kill() {
    for setup in setups().await {
        let remote = Remote::with(|_| Act::status(202)).await;
        let mut provost = setup.start().await;
        register_agents(provost.api(), &remote.url(), json!({})).await;
        let mut slow = steps(5);
        for step in slow.as_array_mut().unwrap() {
            step["reply"] = json!("callback");
        }
        register(provost.api(), json!({ "max_in_flight": 2 }), slow).await;
        let id = provost.submit(&one_of("a")).await;
        let calls_of = |customer: &str| {
            let mut calls = remote.ledger();
            calls.retain(|seen| seen.body["customer"] == customer);
            calls
        };
        for round in 0..5 {
            let awaited = || async {
                let task = provost.task(&id).await;
                let steps = task["steps"].as_array().unwrap().iter();
                let awaited = steps.filter(|step| !step["awaited_reply"].is_null());
                awaited.count()
            };
            until(2.min(5 - round), awaited).await;
            provost.kill().await;
            provost.restart().await;
            // The instance claims as many steps as it may.
            let other = format!("b{round}");
            provost.submit(&one_of(&other)).await;
            until(2, || async { calls_of(&other).len() }).await;
            let calls = calls_of("a");
            assert_eq!(calls.len(), 5.min(round + 2));
            let address = calls[round].header("provost-reply-to");
            let path = &address[address.find("/v1/replies/").unwrap()..];
            let reply = provost.post(path, &json!({ "output": 1 })).await;
            assert!(reply.status < 300, "{reply:?}");
        }
        all_processed(provost.api(), &[id]).await;
    }
}

#[tokio::test]
async fn so_many_steps_of_a_key_begin_in_a_time_over_all_agents() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let provost = setup.start().await;
        register_agents(provost.api(), &remote.url(), json!({})).await;
        let limit = json!({ "rate": "20/s", "burst": 2 });
        register(provost.api(), limit, steps(13)).await;
        let mut ids = vec![provost.submit(&one_of("a")).await];
        ids.push(provost.submit(&one_of("a")).await);
        all_processed(provost.api(), &ids).await;
        let calls = remote.ledger();
        // Two calls begin at once, and 24 at 20 a second.
        let took = calls[25].at.duration_since(calls[0].at);
        assert!(took >= Duration::from_millis(1000), "{took:?}");
        assert_eq!(calls.len(), 26);
    }
}

/// Two instances begin steps of one key at different agents, and share one token bucket.
#[tokio::test]
async fn the_rate_of_a_workflow_is_one_for_all_instances() {
    let url = new_database().await;
    let start = || Provost::setup().database_url(&url).start();
    let remote = Remote::quick().await;
    let (one, two) = (start().await, start().await);
    register_agents(one.api(), &remote.url(), json!({})).await;
    let limit = json!({ "rate": "20/s", "burst": 1 });
    register(one.api(), limit, steps(10)).await;
    let mut ids = Vec::new();
    for provost in [&one, &two, &one] {
        ids.push(provost.submit(&one_of("a")).await);
    }
    all_processed(two.api(), &ids).await;
    let calls = remote.ledger();
    let took = calls[29].at.duration_since(calls[0].at);
    // One call begins at once, and 29 at 20 a second. Calls that a busy machine delays may come together.
    assert!(took >= Duration::from_millis(1400), "{took:?}");
    assert_eq!(calls.len(), 30);
}

#[tokio::test]
async fn a_step_says_which_limit_of_its_workflow_it_waits_for() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = Remote::script([gate.then(json!("done"))]).await;
        let provost = setup.start().await;
        register_agents(provost.api(), &remote.url(), json!({})).await;
        register(provost.api(), json!({ "max_in_flight": 1 }), steps(3)).await;
        let id = provost.submit(&one_of("acme")).await;
        remote.requests(1).await;
        let waits = || async {
            let task = provost.task(&id).await;
            let waits = task["steps"].as_array().unwrap().iter();
            let waits = waits.filter(|step| step["state"] == "pending");
            waits
                .map(|step| step["blocked_by"].clone())
                .collect::<Value>()
        };
        let limited = |agent: String| {
            json!({ "reason": "key_limit", "agent": agent, "workflow": "sync", "key": "acme", "by": BY_CUSTOMER,
                    "max_in_flight": 1, "rate": null })
        };
        let task = provost.task(&id).await;
        let steps = task["steps"].as_array().unwrap().iter();
        let pending = steps.filter(|step| step["state"] == "pending");
        let agents = pending.map(|step| step["agent"].as_str().unwrap().to_owned());
        let mut agents: Vec<_> = agents.collect();
        let expected: Value = agents.iter().cloned().map(limited).collect();
        assert_eq!(expected.as_array().unwrap().len(), 2);
        until(expected, waits).await;
        agents.dedup();
        let shown = async || {
            let mut queued = 0;
            for name in &agents {
                let agent = provost.get(&format!("/v1/agents/{name}")).await.expect(200);
                for of in agent["limited_by_workflows"]
                    .as_array()
                    .into_iter()
                    .flatten()
                {
                    assert_eq!(of["workflow"], "sync");
                    queued += of["queued"].as_u64().unwrap();
                }
            }
            queued
        };
        assert_eq!(shown().await, 2);
        gate.open();
        all_processed(provost.api(), &[id]).await;
        assert_eq!(shown().await, 0);
    }
}

/// One entry may limit tasks and steps, and the limits of the agent apply as well.
#[tokio::test]
async fn limits_of_tasks_steps_and_agents_hold_at_once() {
    for setup in setups().await {
        let service = Counting::start(Duration::from_millis(20)).await;
        let provost = setup.start().await;
        let of_agent = json!({ "limits": [{ "by": BY_CUSTOMER, "max_in_flight": 2 }] });
        register_agents(provost.api(), &service.remote.url(), of_agent).await;
        let limit = json!({ "max_in_flight": 3, "rate": "500/s", "burst": 50, "max_running": 1 });
        register(provost.api(), limit, steps(12)).await;
        let mut ids = Vec::new();
        for customer in ["a", "b", "a"] {
            ids.push(provost.submit(&one_of(customer)).await);
        }
        // Steps of other workflows count only for the agents.
        let alone = json!({ "labels": { "customer": "a" }, "steps": steps(12) });
        let second = provost.task(&ids[2]).await;
        assert_eq!(step(&second, "s0")["blocked_by"]["reason"], "task_limit");
        all_processed(provost.api(), &ids).await;
        assert!(service.most("a") <= 3 && service.most("b") <= 3);
        ids.push(provost.submit(&alone).await);
        ids.push(provost.submit(&one_of("a")).await);
        all_processed(provost.api(), &ids).await;
        assert!(service.most("a") <= 4, "two at each agent");
    }
}

/// A task of a thousand keys must not delay steps without limits by more than their share.
#[tokio::test]
async fn steps_without_limits_go_on_beside_however_many_keys() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = Remote::script([gate.then(json!("done"))]).await;
        let provost = setup.start().await;
        let few = json!({ "endpoints": [{ "url": remote.url(), "max_in_flight": 1 }] });
        register_agents(provost.api(), &remote.url(), few).await;
        let one = json!([{ "name": "one", "agent": "crm", "complete_within": "10m",
                           "request": { "body": { "customer": BY_CUSTOMER } } }]);
        register(provost.api(), json!({ "max_in_flight": 1 }), one).await;
        let mut ids = vec![provost.submit(&one_of("first")).await];
        remote.requests(1).await;
        for number in 0..300 {
            ids.push(provost.submit(&one_of(&format!("k{number}"))).await);
        }
        let plain: Vec<_> = (0..20)
            .map(|at| {
                json!({ "name": format!("p{at}"), "agent": "crm", "after": [], "complete_within": "10m",
                               "request": { "body": { "customer": "plain" } } })
            })
            .collect();
        let plain = provost.submit(&json!({ "steps": plain })).await;
        gate.open();
        all_processed(provost.api(), &[plain]).await;
        let calls = remote.ledger();
        let last = calls
            .iter()
            .rposition(|seen| seen.body["customer"] == "plain");
        assert!(last.unwrap() < 100, "{last:?}");
        all_processed(provost.api(), &ids).await;
    }
}

/// An undo counts like any other step, and so does a retry; the poll of an operation does not.
#[tokio::test]
async fn undos_and_retries_are_limited_and_polls_are_not() {
    for setup in setups().await {
        let service = Counting::start(Duration::from_millis(20)).await;
        let provost = setup.start().await;
        register_agents(provost.api(), &service.remote.url(), json!({})).await;
        let mut undone = steps(8);
        for step in undone.as_array_mut().unwrap() {
            step["undo"] = json!({ "request": { "body": { "customer": BY_CUSTOMER } } });
        }
        let all: Vec<_> = (0..8).map(|at| format!("s{at}")).collect();
        let last =
            json!({ "name": "last", "agent": "refuses", "after": all, "on_permanent": "undo" });
        undone.as_array_mut().unwrap().push(last);
        let refuses = Remote::with(|_| Act::answer(400, &[], "{}")).await;
        let spec = json!({ "endpoints": [{ "url": refuses.url() }] });
        let put = provost.put("/v1/agents/refuses", &spec).await;
        assert!(put.status < 300, "{put:?}");
        register(provost.api(), json!({ "max_in_flight": 2 }), undone).await;
        let id = provost.submit(&one_of("a")).await;
        assert_eq!(provost.settled(&id).await["state"], "undone");
        assert_eq!(service.remote.count(), 16);
        assert_eq!(service.most("a"), 2);

        let remote = Remote::with({
            let tried = std::sync::atomic::AtomicBool::new(false);
            move |seen| match seen.method.as_str() {
                "GET" => Act::Ok(json!({ "status": "done" })),
                _ if !tried.swap(true, std::sync::atomic::Ordering::Relaxed) => {
                    Act::answer(503, &[], "{}")
                }
                _ => Act::answer(202, &[("location", "/operations/7")], "{}"),
            }
        });
        let remote = remote.await;
        register_agents(provost.api(), &remote.url(), json!({})).await;
        let mut polled = steps(3);
        for step in polled.as_array_mut().unwrap() {
            step["reply"] =
                json!({ "poll": { "until": "response.body.status == 'done'", "every": "1s" } });
        }
        register(provost.api(), json!({ "max_in_flight": 1 }), polled).await;
        let id = provost.submit(&one_of("a")).await;
        all_processed(provost.api(), &[id]).await;
    }
}

#[tokio::test]
async fn workers_get_no_more_steps_than_the_limit_of_the_workflow() {
    for setup in setups().await {
        let provost = setup.start().await;
        for agent in AGENTS {
            let put = provost.put(&format!("/v1/agents/{agent}"), &json!({ "mode": "pull" }));
            assert!(put.await.status < 300);
        }
        register(provost.api(), json!({ "max_in_flight": 3 }), steps(10)).await;
        provost.submit(&one_of("a")).await;
        let mut fetched = 0;
        for agent in AGENTS {
            let ask = json!({ "worker": "w-1", "max": 2, "wait": "2s" });
            let path = format!("/v1/agents/{agent}/claim");
            let steps = provost.post(&path, &ask).await.expect(200);
            fetched += steps["steps"].as_array().unwrap().len();
        }
        assert_eq!(fetched, 3);
    }
}

#[tokio::test]
async fn faults_of_limits_on_steps_are_named() {
    let provost = Provost::start().await;
    let by = |more: Value| {
        let mut limit = json!({ "by": BY_CUSTOMER });
        for (name, value) in more.as_object().unwrap() {
            limit[name] = value.clone();
        }
        limit
    };
    for (limits, pointer) in [
        (
            json!([by(json!({ "max_in_flight": 0 }))]),
            "/limits/0/max_in_flight",
        ),
        (
            json!([by(json!({ "max_in_flight": 10_001 }))]),
            "/limits/0/max_in_flight",
        ),
        (json!([by(json!({ "rate": "often" }))]), "/limits/0/rate"),
        (json!([by(json!({ "rate": "0/s" }))]), "/limits/0/rate"),
        (json!([by(json!({ "burst": 3 }))]), "/limits/0/rate"),
        (
            json!([by(json!({ "rate": "1/s", "burst": 0 }))]),
            "/limits/0/burst",
        ),
        (
            json!([by(json!({ "rate": "1/s", "on_conflict": "wait" }))]),
            "/limits/0/on_conflict",
        ),
        (
            json!([
                by(json!({ "max_in_flight": 1 })),
                by(json!({ "rate": "1/s" }))
            ]),
            "/limits/1/by",
        ),
        (
            json!([by(json!({ "max_in_flights": 1 }))]),
            "/limits/0/max_in_flights",
        ),
        (json!([{ "max_in_flight": 1 }]), "/limits/0/by"),
        (
            json!([{ "by": "{{ steps.a.output }}", "max_in_flight": 1 }]),
            "/limits/0/by",
        ),
    ] {
        let workflow =
            json!({ "limits": limits, "steps": [{ "name": "a", "url": "http://10.0.0.5" }] });
        for refused in [
            provost.put("/v1/workflows/sync", &workflow).await,
            provost.post("/v1/workflows/sync/validate", &workflow).await,
        ] {
            let refused = refused.expect(422);
            assert_eq!(
                refused["errors"][0]["pointer"], pointer,
                "{limits} {refused}"
            );
        }
    }
}
