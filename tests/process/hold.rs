//! A restored copy does not begin to make calls or to send messages by accident.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};

use crate::{
    cluster,
    harness::{
        Act, Gate, Provost, Remote, Setup, alerts, all_processed, one_step, setups, step,
        submit_charges, until,
    },
};

/// Returns a setup in which each loop looks often: the hold must prevent actions although they look.
fn setup() -> Setup {
    ["SCHEDULER__POLL", "SUPERVISOR__INTERVAL", "COURIER__POLL"]
        .into_iter()
        .fold(Provost::setup(), |setup, poll| setup.set(poll, "20ms"))
}

async fn held_gauge(provost: &Provost) -> bool {
    let text = provost.get("/metrics").await.expect(200);
    text.as_str().unwrap().contains("provost_held 1\n")
}

fn blocked(task: &Value) -> &Value {
    &step(task, "only")["blocked_by"]
}

#[tokio::test]
async fn a_held_instance_accepts_and_answers_and_calls_nobody_until_it_is_released() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let receiver = Remote::quick().await;
    let mut provost = setup().start().await;
    let mut submission = one_step(&remote.url(), "/work");
    submission["reply_to"] = json!({ "url": receiver.url() });
    let before = provost.submit(&submission).await;
    remote.requests(1).await;
    provost.kill().await;

    // The process behaves like one on the copy of another machine's database.
    provost.restart_with(|setup| setup.argument("--hold")).await;
    provost.says("POST /v1/hold/release").await;
    gate.open();
    let ready = provost.get("/readyz").await.expect(200);
    assert_eq!(ready["status"], "held");
    let hold = provost.get("/v1/hold").await.expect(200);
    assert_eq!(hold["held"], true);
    assert!(held_gauge(&provost).await);
    let mut accepted = Vec::new();
    for _ in 0..20 {
        let task = provost.post("/v1/tasks", &submission).await.expect(202);
        assert_eq!(blocked(&task), &json!({ "reason": "held" }));
        accepted.push(task["id"].as_str().unwrap().to_owned());
    }
    let old = provost.task(&before).await;
    assert_eq!(blocked(&old), &json!({ "reason": "held" }));
    // An operator may read and give commands during the hold. This command makes a message.
    let cancelled = accepted.pop().unwrap();
    let command = format!("/v1/tasks/{cancelled}/cancel");
    provost.command(&command).await.expect(200);
    let pending = provost.get("/v1/messages?state=pending").await.expect(200);
    assert_eq!(pending["items"].as_array().unwrap().len(), 1);
    for _ in 0..50 {
        provost.get("/readyz").await.expect(200);
    }
    assert_eq!(remote.count(), 1, "the call of before");
    assert_eq!(receiver.count(), 0);

    let released = provost.command("/v1/hold/release").await.expect(200);
    assert_eq!(
        (&released["held"], &released["released"]),
        (&json!(false), &json!(true))
    );
    accepted.push(before);
    for id in &accepted {
        assert_eq!(provost.settled(id).await["state"], "processed");
    }
    assert_eq!(remote.count(), 1 + accepted.len());
    receiver.requests(accepted.len() + 1).await;
    let again = provost.command("/v1/hold/release").await.expect(200);
    assert_eq!(again["released"], false);
    assert_eq!(again["instance"], hold["instance"]);
    let ready = provost.get("/readyz").await.expect(200);
    assert_eq!(ready["status"], "ready");
    assert!(!held_gauge(&provost).await);
}

#[tokio::test]
async fn a_held_instance_does_not_supervise_and_recovers_nothing() {
    let url = tokio::task::spawn_blocking(cluster::new_database).await;
    let on = || {
        let setup = setup().set("INSTANCE__LEASE", "1s");
        setup.database_url(url.as_ref().unwrap())
    };
    let remote = Remote::script([Act::Hang, Act::Ok(json!("done"))]).await;
    let mut lost = on().argument("--instance-id=lost").start().await;
    let id = lost.submit(&one_step(&remote.url(), "/work")).await;
    remote.requests(1).await;
    lost.kill().await;
    let held = on()
        .set("HOLD", "true")
        .set("INSTANCE_ID", "held")
        .start()
        .await;
    let of = async |name: &str, field: &str| {
        let page = held.get("/v1/instances").await.expect(200);
        let instances = page["items"].as_array().unwrap().iter();
        let mut instances = instances.filter(|instance| instance["id"] == name);
        instances.next().unwrap()[field].clone()
    };
    until(json!(false), || of("lost", "alive")).await;
    // The time is longer than the lease of a supervisor, measured by the renewals of the instance's own lease.
    let lease = of("held", "lease_until").await;
    until(true, || async {
        of("held", "lease_until").await.as_str() > lease.as_str()
    })
    .await;
    assert_eq!(of("held", "supervising").await, false);
    let task = held.task(&id).await;
    assert_eq!(step(&task, "only")["locked_by"], "lost");
    held.command("/v1/hold/release").await.expect(200);
    let task = held.settled(&id).await;
    assert_eq!(task["state"], "processed");
    assert_eq!(step(&task, "only")["attempt"], 2);
}

/// The canary of a breaker is due while its instance is held: no call finds out whether the service works again.
#[tokio::test]
async fn a_held_instance_makes_no_canaries() {
    for setup in setups().await {
        let sick = Arc::new(AtomicBool::new(true));
        let is_sick = sick.clone();
        let remote = Remote::with(move |_| match is_sick.load(Ordering::SeqCst) {
            true => Act::status(503),
            false => Act::Ok(json!({})),
        })
        .await;
        let mut provost = setup.start().await;
        let breaker = json!({ "min_calls": 4, "window": "10m", "open_for": "100ms" });
        let spec = json!({ "endpoints": [{ "url": remote.url() }], "breaker": breaker,
            "retry": { "initial": "10ms", "max": "50ms" } });
        let path = "/v1/agents/payments";
        provost.put(path, &spec).await.expect(201);
        let ids = submit_charges(provost.api(), 8).await;
        until(1, async || alerts(&provost, "open").await.len()).await;
        provost.kill().await;
        let made = remote.count();
        sick.store(false, Ordering::SeqCst);

        provost
            .restart_with(|setup| setup.set("HOLD", "true"))
            .await;
        let breaker = async || provost.get(path).await.expect(200)["breakers"][0].clone();
        let held = breaker().await;
        assert_ne!(held["state"], "closed");
        let due: jiff::Timestamp = held["until"].as_str().unwrap().parse().unwrap();
        // The breaker is examined every second while its canary is due.
        let due = due.max(jiff::Timestamp::now()) + std::time::Duration::from_secs(1);
        while jiff::Timestamp::now() < due {
            assert_eq!(breaker().await, held);
        }
        // The process may have been killed during the call of a canary, whose step is then still processing.
        let mut blocked = Vec::new();
        for id in &ids {
            let task = provost.task(id).await;
            let charge = step(&task, "charge");
            if charge["state"] == "pending" {
                assert_eq!(charge["blocked_by"], json!({ "reason": "held" }));
                // On a slow machine the step may have failed once before the breaker opened.
                blocked.push((id, charge["failure_count"].clone()));
            }
        }
        assert!(!blocked.is_empty());
        assert_eq!(alerts(&provost, "open").await.len(), 1);
        assert_eq!(remote.count(), made, "it was called");

        provost.command("/v1/hold/release").await.expect(200);
        all_processed(provost.api(), &ids).await;
        until(json!("closed"), async || breaker().await["state"].clone()).await;
        until(0, async || alerts(&provost, "open").await.len()).await;
        for (id, failures) in blocked {
            let task = provost.task(id).await;
            assert_eq!(step(&task, "charge")["failure_count"], failures, "{task:#}");
        }
    }
}
