//! Steps that await a signal.

use serde_json::{Value, json};

use crate::harness::{
    Act, Answer, Api, Provost, Remote, alerts, all_processed, kinds, new_database, setups, step,
    until,
};

async fn remote() -> Remote {
    Remote::with(|_| Act::Ok(json!({}))).await
}

/// Registers a workflow with a signal between two calls.
async fn register(api: &Api, url: &str, signal: Value) {
    let workflow = json!({ "steps": [
        { "name": "first", "url": url },
        { "name": "approval", "signal": signal },
        { "name": "last", "url": url, "request": { "body": "{{ steps.approval.output }}" } },
    ] });
    let put = api.put("/v1/workflows/order", &workflow).await;
    assert!(put.status < 300, "{put:?}");
}

fn order(key: &str) -> Value {
    json!({ "workflow": "order", "key": key })
}

async fn awaited(api: &Api, id: &str) {
    until(json!("signal"), async || {
        step(&api.task(id).await, "approval")["blocked_by"]["reason"].clone()
    })
    .await;
}

async fn signal(api: &Api, id: &str, payload: &Value) -> Answer {
    api.post(&format!("/v1/tasks/{id}/signals/approval"), payload)
        .await
}

#[tokio::test]
async fn a_signal_by_id_or_by_key_becomes_the_output() {
    for setup in setups().await {
        let remote = remote().await;
        let mut provost = setup.start().await;
        register(provost.api(), &remote.url(), json!({ "within": "30d" })).await;
        for key in ["order-1", "order/2 ä"] {
            let id = provost.submit(&order(key)).await;
            let api = provost.api();
            awaited(api, &id).await;
            let yes = json!({ "approved": true, "by": key });
            let by_key = match key {
                "order-1" => "order-1",
                _ => "order%2F2%20%C3%A4",
            };
            let path = format!("/v1/signals/order/{by_key}/approval");
            let answer = api.post(&path, &yes).await.expect(200);
            assert_eq!(step(&answer, "approval")["output"], yes);
            let task = api.settled(&id).await;
            assert_eq!(task["state"], "processed", "{task}");
            assert_eq!(remote.ledger().last().unwrap().body, yes);
            // The same signal is sent again, by both addresses, also after the end and after a restart.
            for again in [&path, &format!("/v1/tasks/{id}/signals/approval")] {
                let same = json!({ "by": key, "approved": true });
                let answer = api.post(again, &same).await.expect(200);
                assert_eq!(answer["version"], task["version"]);
                let other = api.post(again, &json!({ "approved": false })).await;
                let problem = other.expect_problem(409, "wrong-step-state");
                let detail = problem["detail"].as_str().unwrap();
                assert!(detail.contains("another signal"), "{detail}");
            }
            provost.kill().await;
            provost.restart().await;
            signal(provost.api(), &id, &yes).await.expect(200);
            let other = signal(provost.api(), &id, &json!(1)).await;
            other.expect_problem(409, "wrong-step-state");
            let history = provost.history(&id).await;
            let began = kinds(&history).into_iter();
            assert_eq!(began.filter(|kind| *kind == "step.began").count(), 1);
        }
    }
}

#[tokio::test]
async fn a_signal_that_comes_early_outlives_a_crash() {
    for setup in setups().await {
        let gate = crate::harness::Gate::closed();
        let first = gate.clone();
        let remote = Remote::with(move |_| first.then(json!("done"))).await;
        let mut provost = setup.start().await;
        register(provost.api(), &remote.url(), json!({ "within": "30d" })).await;
        let id = provost.submit(&order("early")).await;
        remote.requests(1).await;
        signal(provost.api(), &id, &json!("early"))
            .await
            .expect(200);
        let history = provost.history(&id).await;
        assert!(kinds(&history).contains(&"step.signalled"), "{history:?}");
        provost.kill().await;
        provost.restart().await;
        signal(provost.api(), &id, &json!("early"))
            .await
            .expect(200);
        let other = signal(provost.api(), &id, &json!("other")).await;
        other.expect_problem(409, "wrong-step-state");
        gate.open();
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task}");
        assert_eq!(step(&task, "approval")["output"], "early");
    }
}

#[tokio::test]
async fn without_a_signal_the_task_goes_the_way_of_its_policy() {
    for setup in setups().await {
        let remote = remote().await;
        let mut provost = setup.start().await;
        for (policy, state) in [
            ("error", "error"),
            ("skip", "processed"),
            ("undo", "undone"),
        ] {
            let rule = json!({ "within": "1s", "on_timeout": policy });
            register(provost.api(), &remote.url(), rule).await;
            let id = provost.submit(&order(policy)).await;
            awaited(provost.api(), &id).await;
            provost.kill().await;
            provost.restart().await;
            let api = provost.api();
            let task = api.settled(&id).await;
            assert_eq!(task["state"], state, "{task}");
            if policy == "error" {
                let message = task["error"]["message"].as_str().unwrap();
                assert!(message.contains("no signal came within 1s"), "{message}");
                let late = signal(api, &id, &json!(1)).await;
                late.expect_problem(409, "wrong-step-state");
                let path = format!("/v1/tasks/{id}/steps/approval/resolve");
                api.post(&path, &json!({ "output": "by phone" }))
                    .await
                    .expect(200);
                assert_eq!(api.settled(&id).await["state"], "processed");
            } else if policy == "undo" {
                signal(api, &id, &json!(1))
                    .await
                    .expect_problem(409, "task-ended");
            }
        }
    }
}

#[tokio::test]
async fn the_undo_of_a_paused_task_whose_signal_did_not_come_waits_for_the_resumption() {
    for setup in setups().await {
        let remote = remote().await;
        let mut provost = setup.start().await;
        let signal =
            json!({ "name": "approval", "signal": { "within": "1s", "on_timeout": "undo" } });
        let undo = json!({ "request": { "path": "/undo" } });
        let booked = json!({ "name": "book", "url": remote.url(), "undo": undo });
        let next = json!({ "name": "next", "url": remote.url() });
        for (steps, ends) in [
            (json!([signal]), &["task.undoing", "task.undone"][..]),
            (json!([signal, next]), &["task.undoing", "task.undone"]),
            (
                json!([booked, signal, next]),
                &["task.undoing", "task.undone"],
            ),
        ] {
            let id = provost.submit(&json!({ "steps": steps })).await;
            awaited(provost.api(), &id).await;
            let made = remote.count();
            let pause = format!("/v1/tasks/{id}/pause");
            provost.api().command(&pause).await.expect(200);
            until(json!("error"), async || {
                step(&provost.api().task(&id).await, "approval")["state"].clone()
            })
            .await;
            // The wait is on record.
            provost.kill().await;
            provost.restart().await;
            let api = provost.api();
            let task = api.task(&id).await;
            assert_eq!(task["state"], "paused", "{task}");
            assert_eq!(step(&task, "approval")["error"]["undo_on_resume"], true);
            assert_eq!(task["undo"], Value::Null, "{task}");
            assert_eq!(remote.count(), made);
            let resume = format!("/v1/tasks/{id}/resume");
            api.command(&resume).await.expect(200);
            let task = api.settled(&id).await;
            assert_eq!(task["state"], "undone", "{task}");
            assert_eq!(task["undo"]["error"]["step"], "approval", "{task}");
            let history = api.history(&id).await;
            let of_task = kinds(&history).into_iter();
            let of_task: Vec<_> = of_task.filter(|kind| kind.starts_with("task.")).collect();
            let paused = of_task.iter().position(|kind| *kind == "task.paused");
            let rest = &of_task[paused.unwrap() + 1..];
            assert_eq!(rest[0], "task.resumed", "{of_task:?}");
            assert_eq!(&rest[1..], ends, "{of_task:?}");
        }
    }
}

/// Each instance has a cache of its own.
#[tokio::test]
async fn of_signals_that_come_to_three_instances_at_once_one_counts() {
    let remote = remote().await;
    let url = new_database().await;
    let on = || Provost::setup().database_url(&url);
    let (a, b, c) = tokio::join!(on().start(), on().start(), on().start());
    let apis = [a.api(), b.api(), c.api()];
    register(a.api(), &remote.url(), json!({ "within": "30d" })).await;
    let mut ids = Vec::new();
    for round in 0..10 {
        let id = apis[round % 3]
            .submit(&order(&format!("order-{round}")))
            .await;
        for api in apis {
            awaited(api, &id).await;
        }
        let same = round % 2 == 0;
        let sent = (0..3).map(|at| {
            let payload = if same { json!("same") } else { json!(at) };
            let id = id.clone();
            async move { (payload.clone(), signal(apis[at], &id, &payload).await) }
        });
        let answers = futures::future::join_all(sent).await;
        let task = a.settled(&id).await;
        let output = &step(&task, "approval")["output"];
        for (payload, answer) in answers {
            let expected = if payload == *output { 200 } else { 409 };
            assert_eq!(answer.status, expected, "{payload} {output}: {answer:?}");
        }
        ids.push(id);
    }
    all_processed(c.api(), &ids).await;
    assert_eq!(remote.count(), 2 * ids.len());
}

#[tokio::test]
async fn whom_a_signal_is_for_must_be_clear() {
    for setup in setups().await {
        let remote = remote().await;
        let provost = setup.start().await;
        let api = provost.api();
        register(api, &remote.url(), json!({ "within": "30d" })).await;
        let to = |key: &str, step: &str| format!("/v1/signals/order/{key}/{step}");
        let nobody = api.post(&to("nobody", "approval"), &json!(1)).await;
        nobody.expect_problem(404, "no-such-task");
        // These tasks belong to another workflow or have ended, and do not count.
        let other = json!({ "key": "busy", "steps": [{ "name": "approval", "signal": { "within": "1d" } }] });
        api.submit(&other).await;
        let mut ended = Vec::new();
        for _ in 0..120 {
            ended.push(api.submit(&order("busy")).await);
        }
        for id in &ended {
            awaited(api, id).await;
            api.post(&format!("/v1/tasks/{id}/cancel"), &json!({}))
                .await
                .expect(200);
        }
        let late = api.post(&to("busy", "approval"), &json!(1)).await;
        late.expect_problem(409, "task-ended");
        let id = api.submit(&order("busy")).await;
        awaited(api, &id).await;
        let step = api.post(&to("busy", "aproval"), &json!(1)).await;
        step.expect_problem(404, "no-such-step");
        let call = api.post(&to("busy", "last"), &json!(1)).await;
        let problem = call.expect_problem(409, "wrong-step-state");
        assert!(
            problem["detail"]
                .as_str()
                .unwrap()
                .contains("awaits no signal"),
            "{problem}"
        );
        let second = api.submit(&order("busy")).await;
        let both = api.post(&to("busy", "approval"), &json!(1)).await;
        let problem = both.expect_problem(409, "ambiguous-key");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(&id) && detail.contains(&second), "{detail}");
        signal(api, &id, &json!(1)).await.expect(200);
        api.settled(&id).await;
        awaited(api, &second).await;
        api.post(&to("busy", "approval"), &json!(2))
            .await
            .expect(200);
        assert_eq!(api.settled(&second).await["state"], "processed");
        // A key may be used for one payload only.
        let third = api.submit(&order("third")).await;
        let path = format!("/v1/tasks/{third}/signals/approval");
        for (payload, status) in [(json!(1), 200), (json!(1), 200), (json!(2), 422)] {
            let sent = api
                .post(&path, &payload)
                .header("idempotency-key", "k-1")
                .await;
            assert_eq!(sent.status, status, "{sent:?}");
        }
    }
}

#[tokio::test]
async fn a_signal_is_as_long_as_an_output_may_be() {
    let remote = remote().await;
    let setup = Provost::setup().set("LIMITS__MAX_OUTPUT", "1KiB");
    let provost = setup.start().await;
    register(provost.api(), &remote.url(), json!({ "within": "30d" })).await;
    let id = provost.submit(&order("long")).await;
    let long = signal(provost.api(), &id, &json!("x".repeat(2000))).await;
    long.expect_problem(413, "body-too-large");
    signal(provost.api(), &id, &json!("x".repeat(1000)))
        .await
        .expect(200);
    assert_eq!(provost.settled(&id).await["state"], "processed");
}

/// Returns a signal that must match a schema and a condition.
fn checked() -> Value {
    json!({
        "within": "30d",
        "schema": { "type": "object", "required": ["approved"], "properties": { "approved": { "type": "boolean" } } },
        "match": "signal.order == task.key and signal.by == steps.first.output.by",
    })
}

#[tokio::test]
async fn a_signal_that_is_not_the_awaited_one_changes_nothing() {
    for setup in setups().await {
        let remote = Remote::with(|_| Act::Ok(json!({ "by": "ada" }))).await;
        let mut provost = setup.start().await;
        register(provost.api(), &remote.url(), checked()).await;
        let id = provost.submit(&order("o-1")).await;
        awaited(provost.api(), &id).await;
        let before = provost.task(&id).await["version"].clone();
        for round in 0..2 {
            let api = provost.api();
            for path in [
                format!("/v1/tasks/{id}/signals/approval"),
                "/v1/signals/order/o-1/approval".to_owned(),
            ] {
                let send = async |payload: Value| api.post(&path, &payload).await;
                assert_eq!(
                    send(json!({ "approved": 1 })).await.expect_faults(),
                    ["/approved"]
                );
                assert_eq!(send(json!({})).await.expect_faults(), ["/approved"]);
                assert_eq!(api.command(&path).await.expect_faults(), [""]);
                for other in [
                    json!({ "approved": true, "order": "o-2", "by": "ada" }),
                    json!({ "approved": true, "order": "o-1", "by": "eve" }),
                    json!({ "approved": true }),
                ] {
                    let problem = send(other).await.expect_problem(422, "signal-mismatch");
                    let detail = problem["detail"].as_str().unwrap();
                    assert!(detail.contains("`match`"), "{detail}");
                }
            }
            let task = api.task(&id).await;
            assert_eq!(task["version"], before, "{task}");
            if round == 0 {
                provost.kill().await;
                provost.restart().await;
            }
        }
        let right = json!({ "approved": true, "order": "o-1", "by": "ada" });
        signal(provost.api(), &id, &right).await.expect(200);
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed");
        assert_eq!(step(&task, "approval")["output"], right);
        // The conditions do not apply to an operator.
        let id = provost.submit(&order("o-3")).await;
        awaited(provost.api(), &id).await;
        let path = format!("/v1/tasks/{id}/steps/approval/resolve");
        let resolved = provost.post(&path, &json!({ "output": 7 })).await;
        resolved.expect(200);
        assert_eq!(provost.settled(&id).await["state"], "processed");
    }
}

#[tokio::test]
async fn an_early_signal_that_turns_out_to_be_another_one_is_dropped() {
    for setup in setups().await {
        let gate = crate::harness::Gate::closed();
        let first = gate.clone();
        let remote = Remote::with(move |_| first.then(json!({ "by": "ada" }))).await;
        let mut provost = setup.start().await;
        register(provost.api(), &remote.url(), checked()).await;
        let mut ids = Vec::new();
        for by in ["ada", "eve"] {
            let id = provost.submit(&order(by)).await;
            remote.requests(ids.len() + 1).await;
            let wrong = signal(provost.api(), &id, &json!({ "by": by })).await;
            assert_eq!(wrong.expect_faults(), ["/approved"]);
            let early = json!({ "approved": true, "order": by, "by": by });
            signal(provost.api(), &id, &early).await.expect(200);
            ids.push(id);
        }
        provost.kill().await;
        provost.restart().await;
        gate.open();
        let [ada, eve] = &ids[..] else { panic!() };
        assert_eq!(provost.settled(ada).await["state"], "processed");
        awaited(provost.api(), eve).await;
        let history = provost.history(eve).await;
        let dropped = history
            .iter()
            .find(|event| event["type"] == "step.signal_dropped");
        let reason = dropped.unwrap()["reason"].as_str().unwrap();
        assert!(reason.contains("`match` is false"), "{reason}");
        let right = json!({ "approved": false, "order": "eve", "by": "ada" });
        signal(provost.api(), eve, &right).await.expect(200);
        assert_eq!(provost.settled(eve).await["state"], "processed");
    }
}

#[tokio::test]
async fn what_a_signal_must_match_is_checked_with_the_definition() {
    let remote = remote().await;
    let provost = Provost::start().await;
    for (field, value, fault) in [
        ("match", json!("signal.order = 1"), ""),
        ("match", json!("steps.last.output == signal"), ""),
        ("match", json!("signl.order == 1"), ""),
        ("schema", json!({ "type": "strng" }), "/type"),
        ("schema", json!(7), ""),
    ] {
        let mut rule = json!({ "within": "1d" });
        rule[field] = value;
        let body = json!({ "steps": [
            { "name": "approval", "signal": rule },
            { "name": "last", "url": remote.url() },
        ] });
        let faults = provost
            .put("/v1/workflows/order", &body)
            .await
            .expect_faults();
        assert_eq!(faults, [format!("/steps/0/signal/{field}{fault}")]);
    }
}

#[tokio::test]
async fn signals_that_time_out_have_one_alert() {
    for setup in setups().await {
        let remote = remote().await;
        let provost = setup.start().await;
        let api = provost.api();
        register(api, &remote.url(), json!({ "within": "1s" })).await;
        let submissions = (0..30).map(async |at| api.submit(&order(&format!("o-{at}"))).await);
        let ids = futures::future::join_all(submissions).await;
        for id in &ids {
            assert_eq!(api.settled(id).await["state"], "error");
        }
        let [alert] = &alerts(&provost, "open").await[..] else {
            panic!("{:#?}", alerts(&provost, "open").await)
        };
        assert_eq!(alert["count"], 30);
        assert_eq!(alert["agent"], Value::Null);
        let cause = "workflow order, step approval: no signal came in time";
        assert_eq!(alert["cause"], cause);
        let all = json!({ "state": "error", "reason": "by phone" });
        api.bulk("skip", &all).await;
        for id in &ids {
            assert_eq!(api.settled(id).await["state"], "processed");
        }
        until(0, async || alerts(&provost, "open").await.len()).await;
    }
}
