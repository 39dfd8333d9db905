//! The history of a task says that a step was queued because a secret was missing, and at which instance.

use serde_json::{Value, json};

use crate::{
    harness::{Gate, Provost, Remote, new_database, setups, step, until},
    secrets::{SecretFiles, one_step_of, secret, spec},
};

/// Returns the claim of the only step.
async fn claim_of(provost: &Provost, id: &str) -> Value {
    let history = provost.history(id).await;
    let mut events = history.into_iter();
    let claim = events.find(|event| event["type"] == "step.claimed");
    claim.expect("it was not claimed")
}

async fn until_blocked(provost: &Provost, id: &str, fault: &str) {
    until(true, || async {
        let task = provost.task(id).await;
        let blocked = &step(&task, "only")["blocked_by"];
        let message = blocked["message"].as_str().unwrap_or_default();
        blocked["reason"] == "secret" && message.contains(fault)
    })
    .await;
}

#[tokio::test]
async fn the_claim_says_until_when_and_why_the_agent_was_not_called() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let files = SecretFiles::new().name("token", &[remote.url()]);
        let setup = setup.config(&files.config).set("INSTANCE_ID", "machine-1");
        let provost = setup.start().await;
        let bearer = json!({ "auth": { "bearer": secret("token") } });
        let put = provost.put("/v1/agents/payments", &spec(&remote.url(), bearer));
        put.await.expect(201);
        let id = provost.submit(&one_step_of("payments", "/x")).await;
        until_blocked(&provost, &id, "its file does not exist").await;
        files.put("token", "\n");
        until_blocked(&provost, &id, "it is empty").await;
        let late = provost.submit(&one_step_of("payments", "/x")).await;
        until_blocked(&provost, &late, "it is empty").await;
        files.put("token", "the-token-of-payments\n");
        for id in [id, late] {
            assert_eq!(provost.settled(&id).await["state"], "processed");
            let claim = claim_of(&provost, &id).await;
            let reason = claim["reason"].as_str().expect("its claim has no reason");
            let words = reason.strip_prefix("instance machine-1 did not call its agent until ");
            let (time, why) = words.expect(reason).split_once(": ").unwrap();
            assert_eq!(why, "the secret `token` cannot be used: it is empty");
            let times = ["ready_at", "at"].map(|time| claim[time].as_str().unwrap());
            let [ready_at, claimed_at] = times;
            assert!(ready_at < time && time <= claimed_at, "{claim}");
        }

        // A later step has not waited for the secret.
        let id = provost.submit(&one_step_of("payments", "/x")).await;
        provost.settled(&id).await;
        assert_eq!(claim_of(&provost, &id).await["reason"], Value::Null);
    }
}

#[tokio::test]
async fn each_instance_says_it_of_the_steps_that_it_claims() {
    let gate = Gate::closed();
    let held = gate.clone();
    let remote = Remote::with(move |_| held.then(json!({}))).await;
    let url = new_database().await;
    let files = [(); 2].map(|()| SecretFiles::new().name("token", &[remote.url()]));
    let [one, two] = ["machine-1", "machine-2"].map(|id| {
        let setup = Provost::setup().set("SCHEDULER__POLL", "100ms");
        setup.database_url(&url).set("INSTANCE_ID", id)
    });
    let one = one.config(&files[0].config).start().await;
    let two = two.config(&files[1].config).start().await;
    let mut agent = spec(
        &remote.url(),
        json!({ "auth": { "bearer": secret("token") } }),
    );
    // The first call of an instance takes its only slot.
    agent["endpoints"][0]["max_in_flight"] = json!(1);
    let put = one.put("/v1/agents/payments", &agent);
    put.await.expect(201);
    let mut ids = Vec::new();
    for provost in [&one, &two, &one, &two] {
        let id = provost.submit(&one_step_of("payments", "/x")).await;
        until_blocked(provost, &id, "its file does not exist").await;
        ids.push(id);
    }
    files[0].put("token", "the-token-of-payments");
    remote.requests(1).await;
    files[1].put("token", "the-token-of-payments");
    remote.requests(2).await;
    gate.open();
    let mut machines = Vec::new();
    for id in &ids {
        assert_eq!(one.settled(id).await["state"], "processed");
        let claim = claim_of(&one, id).await;
        let by = claim["by"].as_str().unwrap();
        let machine = by.strip_prefix("scheduler:").expect(by).to_owned();
        let expected = format!("instance {machine} did not call its agent until ");
        assert!(
            claim["reason"].as_str().is_some_and(|reason| {
                reason.starts_with(&expected) && reason.ends_with(": its file does not exist")
            }),
            "{claim}"
        );
        machines.push(machine);
    }
    machines.sort();
    machines.dedup();
    assert_eq!(machines, ["machine-1", "machine-2"]);
}
