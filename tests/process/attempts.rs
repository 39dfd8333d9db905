//! The record of attempts: an operator reads what was sent, what came back, and what followed.

use serde_json::{Value, json};

use crate::harness::{Act, Provost, Remote, Setup, setups, step, until};

fn submission(url: &str) -> Value {
    json!({
        "key": "order-1",
        "input": { "amount": 5 },
        "steps": [{
            "name": "charge",
            "url": url,
            "request": {
                "path": "/charges?by={{ input.amount }}",
                "headers": { "x-shop": "books", "x-api-key": "a-secret-of-the-definition" },
                "body": { "amount": "{{ input.amount }}" },
            },
            "complete_within": "1h",
        }],
    })
}

async fn attempts(provost: &Provost, id: &str) -> Vec<Value> {
    let path = format!("/v1/tasks/{id}/steps/charge/attempts");
    let page = provost.get(&path).await.expect(200);
    assert_eq!(page["next_cursor"], Value::Null);
    page["items"].as_array().unwrap().clone()
}

async fn attempt(provost: &Provost, id: &str, number: u64) -> Value {
    let path = format!("/v1/tasks/{id}/steps/charge/attempts/{number}");
    let found = provost.get(&path).await.expect(200);
    assert_eq!(found["items"].as_array().unwrap().len(), 1, "{found:#}");
    found["items"][0].clone()
}

/// Returns a service that is busy at first, then refuses, and charges once an operator has retried the step.
async fn service() -> Remote {
    Remote::script([
        Act::answer(
            503,
            &[
                ("retry-after", "0"),
                ("x-request-id", "r-17"),
                ("x-other", "1"),
            ],
            "busy",
        ),
        Act::answer(
            422,
            &[("content-type", "text/plain")],
            "currency is missing",
        ),
        Act::Ok(json!({ "id": "ch_1" })),
    ])
    .await
}

async fn failed(setup: Setup, remote: &Remote) -> (Provost, String) {
    let provost = setup.set("RECORD__SUCCESSES", "none").start().await;
    let id = provost.submit(&submission(&remote.url())).await;
    let task = provost.settled(&id).await;
    assert_eq!(task["state"], "error", "{task:#}");
    (provost, id)
}

#[tokio::test]
async fn what_was_sent_and_what_came_back_is_read_by_attempt_also_after_a_restart() {
    for setup in setups().await {
        let remote = service().await;
        let (mut provost, id) = failed(setup, &remote).await;
        let listed = attempts(&provost, &id).await;
        let numbers: Vec<_> = listed.iter().map(|one| one["attempt"].clone()).collect();
        assert_eq!(numbers, [2, 1]);
        assert_eq!(listed[0]["request"]["body"]["start"], Value::Null);
        assert_eq!(listed[0]["request"]["body"]["bytes"], 12);

        let busy = attempt(&provost, &id, 1).await;
        assert_eq!(busy["result"], "transient", "{busy:#}");
        assert_eq!(busy["purpose"], "work");
        assert_eq!(busy["endpoint"], remote.url());
        assert_eq!(busy["response"]["status"], 503);
        assert_eq!(busy["response"]["body"], "busy");
        assert_eq!(busy["response"]["headers"]["x-request-id"], "r-17");
        assert_eq!(busy["response"]["headers"]["x-other"], Value::Null);
        assert_eq!(busy["error"]["status"], 503);
        assert!(busy["reason"].as_str().unwrap().starts_with("retried in"));
        let refused = attempt(&provost, &id, 2).await;
        assert_eq!(refused["result"], "permanent", "{refused:#}");
        assert_eq!(refused["response"]["body"], "currency is missing");
        assert_eq!(refused["next_at"], Value::Null);
        assert!(busy["next_at"].as_str() <= refused["claimed_at"].as_str());

        // It is what the service got.
        let seen = remote.ledger();
        let request = &refused["request"];
        assert_eq!(request["as_sent"], true);
        assert_eq!(request["method"], "POST");
        assert_eq!(request["body"]["start"], "{\"amount\":5}");
        assert_eq!(
            request["body"]["sha256"],
            "7e84cbf0f7a7c92c037058665d66152f8eb8580ab2534e52c877bccceb9cc7bf"
        );
        assert_eq!(request["url"], format!("{}/charges?by=5", remote.url()));
        assert_eq!(request["headers"]["x-shop"], "books");
        assert_eq!(request["headers"]["x-api-key"], "***");
        assert_eq!(request["headers"]["idempotency-key"], seen[1].key());
        let times = &refused["times"];
        let order = ["began_at", "sent_at", "responded_at"].map(|name| times[name].as_str());
        assert!(
            order.iter().all(Option::is_some) && order.is_sorted(),
            "{times:#}"
        );
        assert!(busy["times"]["connected_at"].is_string(), "{busy:#}");

        provost.terminate();
        provost.ended().await;
        provost.restart().await;
        assert_eq!(attempt(&provost, &id, 2).await, refused);

        // The attempt that succeeds is shown although it is not recorded.
        let retry = format!("/v1/tasks/{id}/steps/charge/retry");
        provost.command(&retry).await.expect(200);
        let task = provost.settled(&id).await;
        assert_eq!(step(&task, "charge")["output"]["id"], "ch_1");
        let listed = attempts(&provost, &id).await;
        assert_eq!(listed.len(), 3, "{listed:#?}");
        assert_eq!(listed[0]["result"], "succeeded");
        // A limit counts all of them, and pages repeat none.
        let path = format!("/v1/tasks/{id}/steps/charge/attempts?limit=1");
        let (mut cursor, mut numbers) = (String::new(), Vec::new());
        loop {
            let page = provost.get(&format!("{path}{cursor}")).await.expect(200);
            let [item] = page["items"].as_array().unwrap().as_slice() else {
                panic!("{page:#}");
            };
            numbers.push(item["attempt"].clone());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(numbers, [3, 2, 1]);
        let done = attempt(&provost, &id, 3).await;
        assert_eq!(done["request"]["as_sent"], false);
        assert_eq!(done["request"]["body"]["start"], "{\"amount\":5}");
        let problem = provost.get(&format!("/v1/tasks/{id}/steps/charge/attempts/4"));
        let problem = problem.await.expect_problem(404, "not-found");
        assert!(
            problem["detail"]
                .as_str()
                .unwrap()
                .contains("has had 3 attempts")
        );
    }
}

#[tokio::test]
async fn successes_are_recorded_if_the_settings_say_so_and_bodies_only_then() {
    let remote = Remote::script([Act::Ok(json!({ "id": "ch_1" }))]).await;
    let provost = Provost::setup()
        .set("RECORD__SUCCESSES", "all")
        .set("RECORD__BODIES", "false")
        .start()
        .await;
    let task = provost.run(&submission(&remote.url())).await;
    let id = task["id"].as_str().unwrap();
    let done = attempt(&provost, id, 1).await;
    assert_eq!(done["result"], "succeeded", "{done:#}");
    assert_eq!(done["request"]["as_sent"], true);
    assert_eq!(done["request"]["body"]["start"], Value::Null);
    assert_eq!(done["request"]["body"]["bytes"], 12);
    assert_eq!(done["response"]["status"], 200);
    assert_eq!(done["response"]["body"], Value::Null);
    assert_eq!(done["error"], Value::Null);
}

#[tokio::test]
async fn an_attempt_that_is_lost_with_its_instance_is_recorded_with_its_request() {
    for setup in setups().await {
        let remote = Remote::script([Act::Hang, Act::Ok(json!(1))]).await;
        let mut provost = setup
            .set("INSTANCE__LEASE", "1s")
            .set("RECORD__SUCCESSES", "none")
            .start()
            .await;
        let id = provost.submit(&submission(&remote.url())).await;
        remote.requests(1).await;
        let under_way = attempts(&provost, &id).await;
        assert_eq!(under_way[0]["result"], Value::Null, "{under_way:#?}");
        assert_eq!(under_way[0]["ended_at"], Value::Null);
        provost.kill().await;
        provost.restart().await;
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed");
        let lost = attempt(&provost, &id, 1).await;
        // An instance that comes back hands back what it held; another one would have found it lost.
        let results = ["lost", "released"].map(Value::from);
        assert!(results.contains(&lost["result"]), "{lost:#}");
        if lost["result"] == "lost" {
            assert_eq!(lost["request"]["as_sent"], false);
            assert_eq!(lost["request"]["body"]["start"], "{\"amount\":5}");
        }
        assert_eq!(lost["response"], Value::Null);
    }
}

#[tokio::test]
async fn of_a_call_without_a_response_the_endpoint_and_the_times_are_recorded_once_it_has_expired()
{
    for setup in setups().await {
        let remote = Remote::with(|_| Act::Hang).await;
        let provost = setup.set("RECORD__SUCCESSES", "none").start().await;
        let mut task = submission(&remote.url());
        task["steps"][0]["complete_within"] = json!("500ms");
        task["steps"][0]["max_attempts"] = json!(1);
        let id = provost.submit(&task).await;
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "error", "{task:#}");
        // The request is there at once. Its instance says a moment later what it sent, and to which endpoint.
        let expired = attempt(&provost, &id, 1).await;
        assert_eq!(expired["result"], "expired", "{expired:#}");
        until(json!(true), || async {
            attempt(&provost, &id, 1).await["request"]["as_sent"].clone()
        })
        .await;
        let expired = attempt(&provost, &id, 1).await;
        assert_eq!(expired["result"], "expired", "{expired:#}");
        assert_eq!(expired["endpoint"], remote.url(), "{expired:#}");
        assert_eq!(expired["request"]["body"]["start"], "{\"amount\":5}");
        let headers = &expired["request"]["headers"];
        assert_eq!(headers["x-api-key"], "***", "{expired:#}");
        for time in ["connected_at", "sent_at"] {
            assert!(expired["times"][time].is_string(), "{time}: {expired:#}");
        }
        assert_eq!(expired["response"], Value::Null);
    }
}
