//! Alerts: raised when a step needs an operator, closed when its cause is resolved.

use serde_json::{Value, json};

use crate::harness::{Act, Provost, Remote, pipeline, step};

async fn alerts(provost: &Provost, state: &str) -> Vec<Value> {
    let page = provost.get(&format!("/v1/alerts?state={state}")).await;
    page.expect(200)["items"].as_array().unwrap().clone()
}

/// Returns a service that declines one card, and accepts all others.
async fn cashier() -> Remote {
    Remote::with(|seen| match seen.body["card"].as_str() {
        Some("tok_declined") if seen.path == "/charge" => Act::answer(402, &[], "card declined"),
        _ => Act::Ok(json!({ "charged": seen.body["card"] })),
    })
    .await
}

#[tokio::test]
async fn a_body_that_an_operator_gives_needs_no_rendering() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let steps = json!([{ "name": "charge", "url": remote.url(),
        "request": { "path": "/work", "body": { "card": "{{ input.card }}" } },
        "undo": { "request": { "path": "/undo", "body": "{{ request.body.card }}" } } },
        { "name": "never", "url": remote.url(), "request": { "path": "/{{ input.nowhere }}" } }]);
    let task = provost.run(&json!({ "steps": steps, "input": {} })).await;
    let error = &step(&task, "charge")["error"];
    assert!(
        error["message"].as_str().unwrap().contains("input.card"),
        "{error}"
    );
    assert_eq!(remote.count(), 0);

    let id = task["id"].as_str().unwrap();
    let retry = json!({ "input": { "card": "tok_visa" } });
    let retried = provost.post(&format!("/v1/tasks/{id}/steps/charge/retry"), &retry);
    retried.await.expect(200);
    let task = provost.settled(id).await;
    assert_eq!(step(&task, "charge")["state"], "processed", "{task:#}");
    assert_eq!(remote.ledger()[0].body, json!({ "card": "tok_visa" }));
    // The expressions of the undo see the request that was sent.
    provost
        .command(&format!("/v1/tasks/{id}/undo"))
        .await
        .expect(200);
    assert_eq!(provost.settled(id).await["state"], "undone");
    assert_eq!(remote.ledger()[1].body, "tok_visa");
}

#[tokio::test]
async fn a_declined_card_waits_for_an_operator_who_mends_it_with_a_changed_input() {
    let remote = cashier().await;
    let provost = Provost::start().await;
    let mut submission = pipeline(&remote.url(), &["charge", "ship"]);
    submission["input"] = json!({ "card": "tok_declined" });
    let task = provost.run(&submission).await;
    assert_eq!(task["state"], "error");
    assert_eq!(task["error"]["status"], 402);
    assert_eq!(task["error"]["body"], "card declined");
    let open = alerts(&provost, "open").await;
    assert_eq!(open.len(), 1);
    assert_eq!(open[0]["step"], "charge");
    let message = open[0]["message"].as_str().unwrap();
    assert!(message.contains("402"), "{message}");

    let id = task["id"].as_str().unwrap();
    let retry = json!({ "input": { "card": "tok_visa" }, "reason": "another card" });
    let retried = provost.post(&format!("/v1/tasks/{id}/steps/charge/retry"), &retry);
    let retried = retried.header("provost-actor", "ada").await.expect(200);
    assert_eq!(step(&retried, "charge")["failure_count"], 0);
    let retried = provost.settled(id).await;
    assert_eq!(retried["state"], "processed");
    assert_eq!(
        step(&retried, "charge")["output"],
        json!({ "charged": "tok_visa" })
    );
    // Only the request of the retried step has changed.
    assert_eq!(retried["input"], json!({ "card": "tok_declined" }));
    let seen = remote.ledger();
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[0].key(), seen[1].key());
    assert_eq!([seen[0].attempt(), seen[1].attempt()], [1, 2]);

    assert_eq!(alerts(&provost, "open").await, Vec::<Value>::new());
    let closed = alerts(&provost, "closed").await;
    assert_eq!(closed[0]["id"], open[0]["id"]);
    assert!(closed[0]["closed_at"].is_string(), "{closed:#?}");
    let history = provost.history(id).await;
    let entry = history.iter().find(|entry| entry["type"] == "step.retried");
    let entry = entry.expect("the retry is in the history");
    assert_eq!(entry["by"], "operator:ada");
    assert!(
        entry["reason"]
            .as_str()
            .unwrap()
            .starts_with("another card")
    );
}

#[tokio::test]
async fn an_acknowledged_alert_stays_until_it_is_mended() {
    let remote = cashier().await;
    let provost = Provost::start().await;
    let mut submission = pipeline(&remote.url(), &["charge"]);
    submission["input"] = json!({ "card": "tok_declined" });
    let task = provost.run(&submission).await;
    let open = alerts(&provost, "open").await;
    let path = format!("/v1/alerts/{}/acknowledge", open[0]["id"].as_str().unwrap());
    let known = provost.command(&path).header("provost-actor", "ada").await;
    let known = known.expect(200);
    assert_eq!(known["state"], "acknowledged");
    assert_eq!(known["acknowledged_by"], "ada");
    // The first operator to acknowledge is recorded.
    let again = provost.command(&path).header("provost-actor", "bob").await;
    assert_eq!(again.expect(200)["acknowledged_by"], "ada");
    assert_eq!(alerts(&provost, "acknowledged").await.len(), 1);

    // The step fails again, and there is still only one alert.
    let id = task["id"].as_str().unwrap();
    provost
        .command(&format!("/v1/tasks/{id}/retry"))
        .await
        .expect(200);
    assert_eq!(provost.settled(id).await["state"], "error");
    let unclosed =
        alerts(&provost, "open").await.len() + alerts(&provost, "acknowledged").await.len();
    assert_eq!(unclosed, 1);
    provost
        .command(&format!("/v1/tasks/{id}/cancel"))
        .await
        .expect(200);
    assert!(alerts(&provost, "open").await.is_empty());
    assert!(alerts(&provost, "acknowledged").await.is_empty());
}

#[tokio::test]
async fn an_alert_that_is_not_there_is_404() {
    let provost = Provost::start().await;
    let unknown = "/v1/alerts/019c7a5e-0000-7000-8000-000000000000/acknowledge";
    provost
        .command(unknown)
        .await
        .expect_problem(404, "no-such-alert");
}
