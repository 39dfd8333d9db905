//! Polling: a service says where its reply will be, and Provost requests it there until it is.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};

use crate::harness::{Act, Provost, Remote, Seen, kinds, setups, step};

fn polls(url: &str) -> Value {
    json!({ "steps": [{ "name": "print", "url": url, "request": { "path": "/jobs", "headers": { "x-tenant": "acme" } },
        "complete_within": "1h",
        "reply": { "poll": { "until": "response.body.status == 'done'", "every": "1s",
            "failed": "response.body.status == 'failed'", "output": "response.body.pages" } } }] })
}

fn promise(header: &'static str, address: &str) -> Act {
    Act::answer(202, &[(header, address)], "")
}

fn running() -> Act {
    Act::Ok(json!({ "status": "running" }))
}

fn done() -> Act {
    Act::Ok(json!({ "status": "done", "pages": 3 }))
}

/// Returns a service that gives this response to the first poll, and the reply to all others.
async fn printer(first: Act) -> Remote {
    let polls = AtomicUsize::new(0);
    Remote::with(
        move |seen| match (seen.method.as_str(), polls.load(Ordering::SeqCst)) {
            ("POST", _) => promise("location", "/jobs/7?sig=secret"),
            (_, 0) => {
                polls.fetch_add(1, Ordering::SeqCst);
                first.clone()
            }
            _ => done(),
        },
    )
    .await
}

fn paths(seen: &[Seen]) -> Vec<String> {
    seen.iter()
        .map(|seen| format!("{} {}", seen.method, seen.path))
        .collect()
}

#[tokio::test]
async fn a_service_is_polled_at_the_address_that_it_named_until_the_reply_is_there() {
    for setup in setups().await {
        let remote = printer(running()).await;
        let provost = setup.start().await;
        let id = provost.submit(&polls(&remote.url())).await;
        provost.events(&id).await.until("step.deferred").await;
        let task = provost.task(&id).await;
        let poll = &step(&task, "print")["awaited_reply"]["poll"];
        assert_eq!(
            poll["url"],
            format!("{}/jobs/7?***", remote.url()),
            "{task:#}"
        );
        assert!(poll["next_at"].is_string());
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed");
        let print = step(&task, "print");
        assert_eq!(
            (&print["output"], &print["attempt"]),
            (&json!(3), &json!(1))
        );
        let seen = remote.ledger();
        assert_eq!(
            paths(&seen),
            [
                "POST /jobs",
                "GET /jobs/7?sig=secret",
                "GET /jobs/7?sig=secret"
            ]
        );
        assert_eq!(seen[1].header("x-tenant"), "acme");
        assert!(!seen[1].headers.contains_key("idempotency-key"));
        assert!(!seen[1].headers.contains_key("provost-reply-to"));
        assert!(seen[2].at - seen[1].at >= Duration::from_millis(900));
        let history = provost.history(&id).await;
        let deferred = kinds(&history)
            .iter()
            .filter(|k| **k == "step.deferred")
            .count();
        assert_eq!(deferred, 1, "polls are not in the history: {history:#?}");
    }
}

#[tokio::test]
async fn a_crash_between_polls_or_during_one_goes_on_polling() {
    for setup in setups().await {
        let remote = printer(Act::Hang).await;
        let mut provost = setup.start().await;
        let id = provost.submit(&polls(&remote.url())).await;
        remote.requests(2).await;
        provost.kill().await;
        provost.restart().await;
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed");
        let print = step(&task, "print");
        assert_eq!(
            (&print["attempt"], &print["failure_count"]),
            (&json!(1), &json!(0))
        );
        let posts = remote
            .ledger()
            .iter()
            .filter(|seen| seen.method == "POST")
            .count();
        assert_eq!(posts, 1, "the service is not called again");
    }
}

#[tokio::test]
async fn a_poll_that_meets_a_fault_is_made_again_when_the_service_wants_it() {
    let busy = Act::answer(503, &[("retry-after", "2")], "");
    let remote = printer(busy).await;
    let provost = Provost::start().await;
    let task = provost.run(&polls(&remote.url())).await;
    let print = step(&task, "print");
    assert_eq!(
        (&print["output"], &print["failure_count"]),
        (&json!(3), &json!(0))
    );
    let seen = remote.ledger();
    assert!(seen[2].at - seen[1].at >= Duration::from_secs(2));
}

#[tokio::test]
async fn a_failure_ends_the_step_and_a_poll_that_is_refused_leaves_the_outcome_unknown() {
    let failed = Act::Ok(json!({ "status": "failed", "why": "paper" }));
    let remote = printer(failed).await;
    let provost = Provost::start().await;
    let task = provost.run(&polls(&remote.url())).await;
    let error = &step(&task, "print")["error"];
    assert_eq!(error["kind"], "permanent", "{task:#}");
    assert!(error["body"].as_str().unwrap().contains("paper"));
    assert_eq!(step(&task, "print")["outcome"], Value::Null);

    let remote = printer(Act::status(404)).await;
    let task = provost.run(&polls(&remote.url())).await;
    let print = step(&task, "print");
    let message = print["error"]["message"].as_str().unwrap();
    assert!(message.contains("could not be polled"), "{message}");
    assert_eq!(print["outcome"], "unknown");
}

#[tokio::test]
async fn a_get_is_repeated_until_its_condition_holds() {
    let remote = Remote::script([running(), done()]).await;
    let provost = Provost::start().await;
    let mut submission = polls(&remote.url());
    submission["steps"][0]["request"] = json!({ "method": "GET", "path": "/status" });
    let task = provost.run(&submission).await;
    assert_eq!(step(&task, "print")["output"], json!(3));
    assert_eq!(paths(&remote.ledger()), ["GET /status", "GET /status"]);
}

#[tokio::test]
async fn only_the_origin_that_was_called_is_polled() {
    let elsewhere = Arc::new(Remote::quick().await);
    let provost = Provost::start().await;
    for (header, address, why) in [
        (
            "location",
            format!("{}/jobs/7", elsewhere.url()),
            "another origin",
        ),
        (
            "operation-location",
            "//localhost:1/x".to_owned(),
            "another origin",
        ),
        ("location", "http://[".to_owned(), "not a URL"),
        (
            "location",
            format!("/jobs/{}", "7".repeat(3000)),
            "longer than 2000 bytes",
        ),
        ("x-location", "/jobs/7".to_owned(), "named no address"),
    ] {
        let remote = Remote::script([promise(header, &address)]).await;
        let task = provost.run(&polls(&remote.url())).await;
        let print = step(&task, "print");
        let message = print["error"]["message"].as_str().unwrap();
        assert!(message.contains(why), "{message}");
        assert_eq!(print["outcome"], "unknown");
    }
    assert_eq!(elsewhere.count(), 0);
}

#[tokio::test]
async fn a_303_leads_to_the_result_once_and_to_no_other_origin() {
    let provost = Provost::start().await;
    let elsewhere = Remote::quick().await;
    let service = |to: String, result: Act| {
        Remote::with(
            move |seen| match (seen.method.as_str(), seen.path.as_str()) {
                ("POST", _) => promise("location", "/jobs/7"),
                (_, "/jobs/7") => Act::answer(303, &[("location", &to)], ""),
                _ => result.clone(),
            },
        )
    };
    let remote = service("/results/7".to_owned(), Act::Ok(json!([1, 2]))).await;
    let task = provost.run(&polls(&remote.url())).await;
    assert_eq!(step(&task, "print")["output"], json!([1, 2]), "{task:#}");
    let seen = remote.ledger();
    assert_eq!(
        paths(&seen),
        ["POST /jobs", "GET /jobs/7", "GET /results/7"]
    );
    assert_eq!(seen[2].header("x-tenant"), "acme");

    let again = Act::answer(303, &[("location", "/results/8")], "");
    for (to, result, why) in [
        (format!("{}/x", elsewhere.url()), done(), "another origin"),
        ("/results/7".to_owned(), again, "never follows redirects"),
        (
            "/results/7".to_owned(),
            Act::status(404),
            "could not be fetched",
        ),
    ] {
        let remote = service(to, result).await;
        let task = provost.run(&polls(&remote.url())).await;
        let print = step(&task, "print");
        let message = print["error"]["message"].as_str().unwrap();
        assert!(message.contains(why), "{message}");
        assert_eq!(print["outcome"], "unknown");
    }
    assert_eq!(elsewhere.count(), 0);
}

#[tokio::test]
async fn a_result_that_cannot_be_fetched_for_now_is_fetched_later() {
    let results = AtomicUsize::new(0);
    let remote = Remote::with(
        move |seen| match (seen.method.as_str(), seen.path.as_str()) {
            ("POST", _) => promise("location", "/jobs/7"),
            (_, "/jobs/7") => Act::answer(303, &[("location", "/results/7")], ""),
            _ if results.fetch_add(1, Ordering::SeqCst) == 0 => Act::status(503),
            _ => Act::Ok(json!(3)),
        },
    )
    .await;
    let provost = Provost::start().await;
    let task = provost.run(&polls(&remote.url())).await;
    let print = step(&task, "print");
    assert_eq!(
        (&print["output"], &print["failure_count"]),
        (&json!(3), &json!(0))
    );
}

#[tokio::test]
async fn a_response_at_once_needs_no_poll() {
    let remote = Remote::script([done()]).await;
    let provost = Provost::start().await;
    let task = provost.run(&polls(&remote.url())).await;
    assert_eq!(
        step(&task, "print")["output"],
        json!({ "status": "done", "pages": 3 })
    );
    assert_eq!(remote.count(), 1);
}

#[tokio::test]
async fn an_undo_waits_for_the_reply_or_drops_it() {
    for on_undo in ["wait", "drop"] {
        let remote = printer(running()).await;
        let provost = Provost::start().await;
        let mut submission = polls(&remote.url());
        submission["steps"][0]["on_undo"] = json!(on_undo);
        submission["steps"][0]["undo"] =
            json!({ "request": { "method": "DELETE", "path": "/undo" } });
        let id = provost.submit(&submission).await;
        provost.events(&id).await.until("step.deferred").await;
        provost
            .command(&format!("/v1/tasks/{id}/undo"))
            .await
            .expect(200);
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        let history = provost.history(&id).await;
        let processed = kinds(&history)
            .iter()
            .filter(|k| **k == "step.processed")
            .count();
        assert_eq!(
            processed,
            if on_undo == "wait" { 2 } else { 1 },
            "{history:#?}"
        );
    }
}

#[tokio::test]
async fn faults_of_a_rule_are_refused_by_name() {
    let provost = Provost::start().await;
    for (reply, pointer) in [
        (json!({}), "/steps/0/reply/poll"),
        (json!({ "poll": null }), "/steps/0/reply/poll"),
        (json!({ "poll": {} }), "/steps/0/reply/poll/until"),
        (
            json!({ "poll": { "until": null } }),
            "/steps/0/reply/poll/until",
        ),
        (
            json!({ "poll": { "until": "respons.body" } }),
            "/steps/0/reply/poll/until",
        ),
        (
            json!({ "poll": { "until": "true", "every": "10ms" } }),
            "/steps/0/reply/poll/every",
        ),
        (
            json!({ "poll": { "until": "true", "evry": "1s" } }),
            "/steps/0/reply/poll/evry",
        ),
        (json!("later"), "/steps/0/reply"),
    ] {
        let mut submission = polls("http://127.0.0.1:1");
        submission["steps"][0]["reply"] = reply;
        let faults = provost.post("/v1/tasks", &submission).await.expect_faults();
        assert_eq!(faults, [pointer]);
    }
    let mut submission = polls("http://127.0.0.1:1");
    submission["steps"][0]["reply"] = json!("poll");
    let refused = provost.post("/v1/tasks", &submission).await;
    let detail = refused.expect_problem(422, "invalid")["detail"].clone();
    let all = r#"must be "response" or "callback" or { "poll": … }, not "poll""#;
    assert!(detail.as_str().unwrap().ends_with(all), "{detail}");
    let mut submission = polls("http://127.0.0.1:1");
    submission["steps"][0]["heartbeat_within"] = json!("5s");
    let faults = provost.post("/v1/tasks", &submission).await.expect_faults();
    assert_eq!(faults, ["/steps/0/heartbeat_within"]);
    for (on_undo, reply) in [
        ("wait", submission["steps"][0]["reply"].clone()),
        ("drop", json!("callback")),
    ] {
        let mut submission = polls("http://127.0.0.1:1");
        submission["steps"][0]["on_undo"] = json!(on_undo);
        submission["steps"][0]["reply"] = reply;
        submission["steps"][0]["cancel"] = json!({});
        let faults = provost.post("/v1/tasks", &submission).await.expect_faults();
        assert_eq!(faults, ["/steps/0/cancel"]);
    }
}

#[tokio::test]
async fn an_undo_that_drops_a_reply_has_the_operation_cancelled_before_it_is_undone() {
    for setup in setups().await {
        let remote = Remote::with(|seen| match (seen.method.as_str(), seen.path.as_str()) {
            ("POST", _) => promise("location", "/jobs/7"),
            ("DELETE", "/jobs/7") => Act::status(204),
            _ => running(),
        })
        .await;
        let provost = setup.start().await;
        let mut submission = polls(&remote.url());
        submission["steps"][0]["on_undo"] = json!("drop");
        submission["steps"][0]["cancel"] = json!({});
        submission["steps"][0]["undo"] =
            json!({ "request": { "method": "DELETE", "path": "/undo" } });
        let id = provost.submit(&submission).await;
        provost.events(&id).await.until("step.deferred").await;
        provost
            .command(&format!("/v1/tasks/{id}/undo"))
            .await
            .expect(200);
        assert_eq!(provost.settled(&id).await["state"], "undone");
        let seen = remote.ledger();
        let deletes: Vec<_> = seen.iter().filter(|seen| seen.method == "DELETE").collect();
        let paths: Vec<_> = deletes.iter().map(|seen| seen.path.as_str()).collect();
        assert_eq!(paths, ["/jobs/7", "/undo"]);
        assert_eq!(deletes[0].header("provost-cancels"), seen[0].key());
    }
}

/// Returns a task that is being undone, once its service has promised the reply to the undo; and the request of that
/// undo.
async fn undoing(provost: &Provost, remote: &Remote, reply: Value) -> (String, Seen) {
    let mut submission = json!({ "on_permanent": "undo", "steps": [
        { "name": "print", "url": remote.url(), "request": { "path": "/print" },
          "undo": { "request": { "path": "/jobs" }, "complete_within": "1h" } },
        { "name": "refused", "url": remote.url(), "request": { "path": "/refused" } },
    ] });
    let undo = submission["steps"][0]["undo"].as_object_mut().unwrap();
    undo.extend(reply.as_object().unwrap().clone());
    let id = provost.submit(&submission).await;
    provost.events(&id).await.until("step.deferred").await;
    let mut ledger = remote.ledger().into_iter();
    let sent = ledger.rfind(|seen| seen.path == "/jobs");
    (id, sent.expect("the undo was sent"))
}

#[tokio::test]
async fn an_undo_may_have_its_reply_later_and_may_be_polled() {
    for setup in setups().await {
        let poll = json!({ "reply": { "poll": { "until": "response.body.status == 'done'", "every": "1s",
            "output": "response.body.pages" } } });
        let remote = Remote::with(|seen| match (seen.method.as_str(), seen.path.as_str()) {
            (_, "/print") => Act::Ok(json!({})),
            (_, "/refused") => Act::status(402),
            ("POST", _) => promise("location", "/jobs/7"),
            _ => done(),
        })
        .await;
        let provost = setup.start().await;
        let (id, _) = undoing(&provost, &remote, poll).await;
        assert_eq!(provost.settled(&id).await["state"], "undone");
        assert_eq!(step(&provost.task(&id).await, "print.undo")["output"], 3);

        let callback = json!({ "reply": "callback", "heartbeat_within": "30s" });
        let (id, sent) = undoing(&provost, &remote, callback).await;
        let task = provost.task(&id).await;
        let awaited = &step(&task, "print.undo")["awaited_reply"];
        assert!(awaited["silent_at"].is_string(), "{awaited:#}");
        let address = sent.header("provost-reply-to");
        let path = &address[address.find("/v1/replies/").unwrap()..];
        provost
            .post(path, &json!({ "output": null }))
            .await
            .expect(204);
        assert_eq!(provost.settled(&id).await["state"], "undone");
    }
}

#[tokio::test]
async fn an_operation_that_is_gone_does_not_mean_that_there_is_nothing_left_to_undo() {
    let remote = Remote::with(|seen| match (seen.method.as_str(), seen.path.as_str()) {
        (_, "/print") => Act::Ok(json!({})),
        (_, "/refused") => Act::status(402),
        ("DELETE", "/jobs") => promise("location", "/jobs/7"),
        _ => Act::status(404),
    })
    .await;
    let provost = Provost::start().await;
    // As a response to the DELETE itself, 404 would mean that it is done.
    let poll = json!({ "request": { "method": "DELETE", "path": "/jobs" },
        "reply": { "poll": { "until": "response.body.done", "every": "1s" } } });
    let (id, _) = undoing(&provost, &remote, poll).await;
    let task = provost.settled(&id).await;
    assert_eq!(task["state"], "error", "{task:#}");
    let undo = step(&task, "print.undo");
    let message = undo["error"]["message"].as_str().unwrap();
    assert!(message.contains("could not be polled"), "{message}");
}
