//! Replies that come later: a service promises one with 202, and sends it to the address that came with the call.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    cluster,
    harness::{Act, Answer, Api, Gate, Provost, Remote, Seen, kinds, setups, step},
};

fn later() -> Act {
    Act::answer(202, &[("provost-async", "true")], "")
}

/// Returns a task with a step whose service replies later, and a step after it.
fn submission(url: &str, complete_within: &str) -> Value {
    json!({ "steps": [
        { "name": "slow", "url": url, "request": { "path": "/slow" }, "reply": "callback",
          "complete_within": complete_within },
        { "name": "next", "url": url,
          "request": { "path": "/next", "body": { "of": "{{ steps.slow.output.id }}" } } },
    ] })
}

/// Returns a service that promises a reply at `/slow`, and does all other work at once.
async fn promises() -> Remote {
    Remote::with(|seen| match seen.path.as_str() {
        "/slow" => Act::status(202),
        path => Act::Ok(json!({ "path": path })),
    })
    .await
}

/// Returns the path of the address for the later reply.
fn reply_path(seen: &Seen) -> String {
    let address = seen.header("provost-reply-to");
    let at = address.find("/v1/replies/").expect("an address of the API");
    address[at..].to_owned()
}

/// Submits a task, and waits until the promise is recorded. Returns the id, and the path for the reply.
async fn open(provost: &Provost, remote: &Remote, submission: &Value) -> (String, String) {
    let known = remote.count();
    let id = provost.submit(submission).await;
    provost.events(&id).await.until("step.deferred").await;
    let seen = remote.requests(known + 1).await;
    (id, reply_path(&seen[known]))
}

async fn reply(api: &Api, path: &str, body: Value) -> Answer {
    api.post(path, &body).await
}

fn done() -> Value {
    json!({ "output": { "id": 7 } })
}

#[tokio::test]
async fn a_reply_that_comes_later_is_the_output_and_the_task_goes_on() {
    for setup in setups().await {
        let remote = promises().await;
        let provost = setup.start().await;
        let (id, path) = open(&provost, &remote, &submission(&remote.url(), "1h")).await;
        let task = provost.task(&id).await;
        let slow = step(&task, "slow");
        assert_eq!(slow["state"], "processing");
        assert_eq!(slow["locked_by"], Value::Null);
        assert!(slow["awaited_reply"]["since"].is_string(), "{slow:#}");

        reply(provost.api(), &path, done()).await.expect(204);
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed");
        assert_eq!(step(&task, "slow")["output"], json!({ "id": 7 }));
        assert_eq!(step(&task, "slow")["awaited_reply"], Value::Null);
        assert_eq!(remote.ledger().last().unwrap().body, json!({ "of": 7 }));

        // The same reply is sent again, written in another way.
        let again = provost.call(reqwest::Method::POST, &path).text(
            "application/json",
            r#"{ "output": { "id" : 7 }, "error": null }"#,
        );
        again.await.expect(204);
        let other = reply(provost.api(), &path, json!({ "output": 8 })).await;
        other.expect_problem(409, "late-reply");
        let error = json!({ "error": { "message": "no" } });
        reply(provost.api(), &path, error)
            .await
            .expect_problem(409, "late-reply");
        assert_eq!(provost.metric("provost_late_replies_total").await, 2.0);
        let history = provost.history(&id).await;
        let late = kinds(&history)
            .iter()
            .filter(|k| **k == "step.late_reply")
            .count();
        assert_eq!(late, 1, "{history:#?}");
        assert_eq!(provost.task(&id).await["state"], "processed");
    }
}

#[tokio::test]
async fn without_a_reply_the_attempt_expires_and_its_token_dies() {
    for setup in setups().await {
        let remote = promises().await;
        let provost = setup.start().await;
        let id = provost.submit(&submission(&remote.url(), "1s")).await;
        let seen = remote.requests(2).await;
        let (first, second) = (reply_path(&seen[0]), reply_path(&seen[1]));
        assert_ne!(first, second, "each attempt has its own");
        assert_eq!(seen[0].key(), seen[1].key());
        reply(provost.api(), &first, done())
            .await
            .expect_problem(409, "late-reply");
        reply(provost.api(), &second, done()).await.expect(204);
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed");
        let slow = step(&task, "slow");
        assert_eq!(
            (&slow["attempt"], &slow["failure_count"]),
            (&json!(2), &json!(1))
        );
    }
}

#[tokio::test]
async fn a_reply_may_come_before_the_promise() {
    for setup in setups().await {
        let gate = Gate::closed();
        let held = Act::Gated(gate.clone(), Box::new(Act::status(202)));
        let remote = Remote::script([held, Act::Ok(json!({}))]).await;
        let provost = setup.start().await;
        let id = provost.submit(&submission(&remote.url(), "1h")).await;
        let seen = remote.requests(1).await;
        reply(provost.api(), &reply_path(&seen[0]), done())
            .await
            .expect(204);
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed");
        gate.open();
        assert_eq!(provost.task(&id).await["state"], "processed");
    }
}

#[tokio::test]
async fn a_crash_leaves_the_attempt_open_and_the_service_is_not_called_again() {
    for setup in setups().await {
        let remote = promises().await;
        let mut provost = setup.start().await;
        let (id, path) = open(&provost, &remote, &submission(&remote.url(), "1h")).await;
        provost.kill().await;
        provost.restart().await;
        let task = provost.task(&id).await;
        assert_eq!(step(&task, "slow")["attempt"], 1, "{task:#}");
        reply(provost.api(), &path, done()).await.expect(204);
        assert_eq!(provost.settled(&id).await["state"], "processed");
        assert_eq!(remote.paths("/slow", 1).await.len(), 2);
    }
}

#[tokio::test]
async fn a_reply_counts_at_every_instance() {
    let url = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    let remote = promises().await;
    let on = |url: &str| Provost::setup().database_url(url);
    let (mut a, b) = tokio::join!(on(&url).start(), on(&url).start());
    let (id, path) = open(&a, &remote, &submission(&remote.url(), "1h")).await;
    reply(b.api(), &path, done()).await.expect(204);
    assert_eq!(a.settled(&id).await["state"], "processed");
    reply(a.api(), &path, done()).await.expect(204);

    // The instance that made the call is lost.
    let (id, path) = open(&a, &remote, &submission(&remote.url(), "1h")).await;
    a.kill().await;
    reply(b.api(), &path, done()).await.expect(204);
    let task = b.settled(&id).await;
    assert_eq!(task["state"], "processed");
    assert_eq!(step(&task, "slow")["attempt"], 1);
}

#[tokio::test]
async fn a_promise_holds_no_slot() {
    let remote = promises().await;
    let provost = Provost::start().await;
    provost.register("narrow", &remote.url(), 1).await;
    let submission = json!({ "steps": [{ "name": "slow", "agent": "narrow", "reply": "callback",
        "request": { "path": "/slow" }, "complete_within": "1h" }] });
    let mut open_replies = Vec::new();
    for _ in 0..3 {
        open_replies.push(open(&provost, &remote, &submission).await);
    }
    let agent = provost.get("/v1/agents/narrow").await.expect(200);
    assert_eq!(agent["in_flight"], 0, "{agent:#}");
    for (id, path) in open_replies {
        reply(provost.api(), &path, done()).await.expect(204);
        assert_eq!(provost.settled(&id).await["state"], "processed");
    }
}

#[tokio::test]
async fn replies_that_are_awaited_can_be_limited_and_a_restart_keeps_their_count() {
    for setup in setups().await {
        let remote = promises().await;
        let mut provost = setup.set("INSTANCE_ID", "node-1").start().await;
        let spec = json!({ "endpoints": [{ "url": remote.url() }], "max_open": 2 });
        let agent = provost.put("/v1/agents/printer", &spec).await.expect(201);
        assert_eq!(agent["spec"]["max_open"], 2);
        let submission = json!({ "steps": [{ "name": "slow", "agent": "printer", "reply": "callback",
            "request": { "path": "/slow" }, "complete_within": "1h" }] });
        let first = open(&provost, &remote, &submission).await;
        let second = open(&provost, &remote, &submission).await;
        let third = provost.submit(&submission).await;
        let fourth = provost.submit(&submission).await;
        for _ in 0..2 {
            for id in [&third, &fourth] {
                let task = provost.task(id).await;
                let blocked = &step(&task, "slow")["blocked_by"];
                let expected =
                    json!({ "reason": "open_replies", "agent": "printer", "max_open": 2 });
                assert_eq!(*blocked, expected, "{task:#}");
            }
            provost.kill().await;
            provost.restart().await;
        }
        assert_eq!(remote.count(), 2);
        // Another agent has no such replies to wait for.
        open(&provost, &remote, &self::submission(&remote.url(), "1h")).await;

        reply(provost.api(), &first.1, done()).await.expect(204);
        provost.events(&third).await.until("step.deferred").await;
        let task = provost.task(&fourth).await;
        let blocked = &step(&task, "slow")["blocked_by"];
        assert_eq!(blocked["reason"], "open_replies");
        provost
            .command(&format!("/v1/tasks/{}/cancel", second.0))
            .await
            .expect(200);
        provost.events(&fourth).await.until("step.deferred").await;
        assert_eq!(remote.count(), 5);
    }
}

#[tokio::test]
async fn a_202_without_an_agreement_is_a_response_unless_it_says_so() {
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/slow" => later(),
        _ => Act::answer(202, &[], r#"{"id":1}"#),
    })
    .await;
    let provost = Provost::start().await;
    let plain = |path: &str| json!({ "steps": [{ "name": "slow", "url": remote.url(), "request": { "path": path } }] });
    let task = provost.run(&plain("/now")).await;
    assert_eq!(step(&task, "slow")["output"], json!({ "id": 1 }));
    let (id, path) = open(&provost, &remote, &plain("/slow")).await;
    reply(provost.api(), &path, done()).await.expect(204);
    assert_eq!(provost.settled(&id).await["state"], "processed");
}

#[tokio::test]
async fn errors_are_retried_or_end_the_step() {
    let remote = promises().await;
    let provost = Provost::start().await;
    let (id, path) = open(&provost, &remote, &submission(&remote.url(), "1h")).await;
    let busy = json!({ "error": { "message": "no printer is free" } });
    reply(provost.api(), &path, busy.clone()).await.expect(204);
    reply(provost.api(), &path, busy.clone()).await.expect(204);
    let seen = remote.requests(2).await;
    let task = provost.task(&id).await;
    let message = step(&task, "slow")["last_fault"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(message.contains("no printer is free"), "{message}");
    let refused = json!({ "error": { "message": "no such page", "permanent": true } });
    // The second promise may not be recorded yet.
    reply(provost.api(), &reply_path(&seen[1]), refused)
        .await
        .expect(204);
    let task = provost.settled(&id).await;
    assert_eq!(task["state"], "error");
    assert_eq!(task["error"]["kind"], "permanent");
    // The 204 to the first reply may have been lost, whatever has happened since.
    reply(provost.api(), &path, busy).await.expect(204);
    reply(provost.api(), &path, done())
        .await
        .expect_problem(409, "late-reply");
}

#[tokio::test]
async fn a_token_that_was_not_given_out_is_unknown_and_no_body_of_it_is_read() {
    let remote = promises().await;
    let provost = Provost::start().await;
    let (id, path) = open(&provost, &remote, &submission(&remote.url(), "1h")).await;
    let mut changed = path.clone();
    let last = if changed.ends_with('A') { 'B' } else { 'A' };
    changed.pop();
    changed.push(last);
    for path in [
        changed.as_str(),
        "/v1/replies/x",
        "/v1/replies/%00",
        &format!("{path}A"),
    ] {
        let answer = provost
            .call(reqwest::Method::POST, path)
            .text("text/plain", "not JSON");
        answer.await.expect_problem(404, "no-such-reply");
        let beat = provost.command(&format!("{path}/heartbeat"));
        beat.await.expect_problem(404, "no-such-reply");
    }
    for (body, pointer) in [
        (json!({}), "/output"),
        (
            json!({ "output": 1, "error": { "message": "x" } }),
            "/error",
        ),
        (json!({ "error": {} }), "/error/message"),
        (json!({ "output": 1, "outptu": 2 }), "/outptu"),
    ] {
        let faults = reply(provost.api(), &path, body).await.expect_faults();
        assert_eq!(faults, [pointer]);
    }
    let text = provost
        .call(reqwest::Method::POST, &path)
        .text("application/json", "{");
    text.await.expect_problem(400, "malformed-json");
    let large = json!({ "output": "x".repeat(300_000) });
    reply(provost.api(), &path, large)
        .await
        .expect_problem(413, "body-too-large");
    assert_eq!(provost.task(&id).await["state"], "processing");
    let token = path.rsplit('/').next().unwrap();
    for (path, status) in [(path.as_str(), 405), (&format!("{path}/x"), 404)] {
        let refused = provost.get(path).await;
        assert_eq!(refused.status, status, "{refused:?}");
        assert!(!format!("{refused:?}").contains(token), "{refused:?}");
    }
    assert!(!provost.log().contains(token), "a token is a credential");
}

#[tokio::test]
async fn a_reply_may_be_a_cloud_event() {
    let remote = promises().await;
    let provost = Provost::start().await;
    let (id, path) = open(&provost, &remote, &submission(&remote.url(), "1h")).await;
    let event = json!({ "specversion": "1.0", "id": "1", "source": "/printer", "type": "page.printed",
        "data": { "output": { "id": 7 } } });
    let sent = provost.call(reqwest::Method::POST, &path).text(
        "application/cloudevents+json; charset=utf-8",
        event.to_string(),
    );
    sent.await.expect(204);
    let task = provost.settled(&id).await;
    assert_eq!(step(&task, "slow")["output"], json!({ "id": 7 }));
    // The event is in binary mode: the body is its data.
    let (id, path) = open(&provost, &remote, &submission(&remote.url(), "1h")).await;
    let sent = provost.post(&path, &done()).header("ce-specversion", "1.0");
    sent.await.expect(204);
    assert_eq!(provost.settled(&id).await["state"], "processed");
}

#[tokio::test]
async fn heartbeats_show_progress_and_silence_is_a_failure_long_before_complete_by() {
    for setup in setups().await {
        let remote = promises().await;
        let provost = setup.start().await;
        let mut submission = submission(&remote.url(), "1h");
        submission["steps"][0]["heartbeat_within"] = json!("1s");
        let (id, path) = open(&provost, &remote, &submission).await;
        let beat = format!("{path}/heartbeat");
        let told = json!({ "progress": 0.4, "message": "4 of 10 pages", "details": { "page": 4 } });
        provost.post(&beat, &told).await.expect(204);
        let task = provost.task(&id).await;
        let awaited = &step(&task, "slow")["awaited_reply"];
        assert_eq!(awaited["progress"], 0.4, "{awaited:#}");
        assert_eq!(awaited["message"], "4 of 10 pages");
        assert_eq!(awaited["details"], json!({ "page": 4 }));
        // Many heartbeats at once are saved only now and then.
        let version = task["version"].as_u64().unwrap();
        for _ in 0..50 {
            provost.command(&beat).await.expect(204);
        }
        let now = provost.task(&id).await["version"].as_u64().unwrap();
        assert!(now <= version + 3, "{version} {now}");

        let seen = remote.requests(2).await;
        let late = provost.command(&beat).await;
        late.expect_problem(409, "late-reply");
        let history = provost.history(&id).await;
        let expired = history.iter().find(|entry| entry["type"] == "step.expired");
        let reason = expired.unwrap()["reason"].as_str().unwrap();
        assert!(reason.contains("no heartbeat within 1s"), "{reason}");
        assert!(kinds(&history).contains(&"step.progress"), "{history:#?}");
        reply(provost.api(), &reply_path(&seen[1]), done())
            .await
            .expect(204);
        assert_eq!(provost.settled(&id).await["state"], "processed");
        for (body, pointer) in [
            (json!({ "progress": 1.1 }), "/progress"),
            (json!({ "details": "x".repeat(5000) }), "/details"),
        ] {
            assert_eq!(provost.post(&beat, &body).await.expect_faults(), [pointer]);
        }
    }
}

#[tokio::test]
async fn a_service_gets_the_address_in_its_request_and_replies_with_what_it_has() {
    for setup in setups().await {
        let remote = Remote::with(|seen| match seen.attempt() {
            // It echoes what it was sent.
            1 => Act::answer(503, &[], &format!("refused: {}", seen.body)),
            _ => Act::status(202),
        })
        .await;
        let provost = setup.start().await;
        let task = json!({ "steps": [{
            "name": "slow", "url": remote.url(), "reply": "callback", "complete_within": "1h",
            "request": { "path": "/jobs?to={{ reply.url }}", "headers": { "x-coded": "{{ reply.url | b64encode }}" },
                         "body": { "callback": "{{ reply.url }}?raw=true" } },
            "failed": { "when": "output.status != 'done'", "message": "output.why" },
        }] });
        let id = provost.submit(&task).await;
        provost.events(&id).await.until("step.deferred").await;
        let seen = remote.requests(2).await;
        let callback = seen[1].body["callback"].as_str().unwrap().to_owned();
        assert_eq!(
            seen[0].body, seen[1].body,
            "the same request under the same key"
        );
        assert_ne!(
            seen[0].header("provost-reply-to"),
            seen[1].header("provost-reply-to")
        );
        let path = callback[callback.find("/v1/replies/").unwrap()..].to_owned();
        let token = path["/v1/replies/".len()..]
            .split('?')
            .next()
            .unwrap()
            .to_owned();

        // It stands in no record, in no form.
        let attempts = format!(
            "{:#}",
            provost
                .get(&format!("/v1/tasks/{id}/steps/slow/attempts/1"))
                .await
                .expect(200)
        );
        let coded = STANDARD.encode(callback.trim_end_matches("?raw=true"));
        for secret in [&token, &coded, &coded[52..80].to_owned()] {
            assert!(!attempts.contains(secret.as_str()), "{attempts}");
        }
        assert!(attempts.contains("***?raw=true"), "{attempts}");
        assert!(attempts.contains("refused: "), "{attempts}");
        for path in ["", "/steps", "/history"] {
            let shown = provost
                .get(&format!("/v1/tasks/{id}{path}"))
                .await
                .expect(200);
            assert!(!format!("{shown:#}").contains(&token), "{path}: {shown:#}");
        }

        let refused = json!({ "replies": [{ "token": token, "error": { "message": 7 } }] });
        provost.post("/v1/replies", &refused).await.expect(200);
        let own = json!({ "id": "j1", "status": "broken", "why": "no such codec", "output": 1 });
        let sent = format!("{path}&signature=abc");
        reply(provost.api(), &sent, own.clone()).await.expect(204);
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "error", "{task:#}");
        assert!(
            step(&task, "slow")["error"]["message"]
                .as_str()
                .unwrap()
                .contains("no such codec"),
            "{task:#}"
        );
        reply(provost.api(), &sent, own).await.expect(204);

        // Run again, it has another address, and the old one replies to nothing.
        provost
            .post(&format!("/v1/tasks/{id}/retry"), &json!({}))
            .await
            .expect(200);
        let seen = remote.requests(3).await;
        let again = seen[2].body["callback"].as_str().unwrap().to_owned();
        assert_ne!(again, callback);
        let old = json!({ "status": "done" });
        reply(provost.api(), &path, old.clone())
            .await
            .expect_problem(409, "late-reply");
        let again = again[again.find("/v1/replies/").unwrap()..].to_owned();
        reply(provost.api(), &again, old).await.expect(204);
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(step(&task, "slow")["output"], json!({ "status": "done" }));
    }
}
