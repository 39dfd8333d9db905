//! The log lines for operators, as JSON.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::harness::{Act, Provost, Remote, one_step};

const IN_ERROR: &str = "a step is in error";

/// Returns the lines with this message about this task, of which there is at least one.
async fn lines(provost: &Provost, task: &str) -> Vec<Value> {
    let begins = format!("\"message\":\"{IN_ERROR}\",\"task\":\"{task}\"");
    provost.says(&begins).await;
    let log = provost.log();
    let lines = log.lines().filter(|line| line.contains(&begins));
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn every_step_that_comes_to_be_in_error_leaves_one_line() {
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/refused" => Act::answer(402, &[], "no money"),
        "/silent" => Act::Hang,
        "/fails" => Act::status(500),
        _ => Act::Ok(json!(1)),
    })
    .await;
    let provost = Provost::start().await;
    let url = remote.url();
    let workflow = |request: Value| {
        json!({ "steps": [{ "name": "only", "url": url, "request": request,
                            "complete_within": "300ms", "max_failures": 0 }] })
    };
    let causes = [
        (
            "refused",
            json!({ "path": "/refused" }),
            "permanent",
            json!(402),
        ),
        (
            "render",
            json!({ "path": "/{{ input.none }}" }),
            "permanent",
            Value::Null,
        ),
        (
            "silent",
            json!({ "path": "/silent" }),
            "exhausted",
            Value::Null,
        ),
        (
            "fails",
            json!({ "path": "/fails" }),
            "exhausted",
            json!(500),
        ),
    ];
    for (name, request, kind, status) in &causes {
        let registered = provost.put(&format!("/v1/workflows/{name}"), &workflow(request.clone()));
        registered.await.expect(201);
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let submission = json!({ "workflow": name, "key": format!("key-{name}"), "input": {} });
        let submitted = provost
            .post("/v1/tasks", &submission)
            .header("traceparent", &format!("00-{trace}-b7ad6b7169203331-01"));
        let id = crate::harness::id_of(&submitted.await.expect(202));
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "error");

        let own = lines(&provost, &id).await;
        assert_eq!(own.len(), 1, "{name}: {own:#?}");
        let line = &own[0];
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["key"], format!("key-{name}"));
        assert_eq!(line["workflow"], *name);
        assert_eq!(line["step"], "only");
        assert_eq!(line["attempt"], task["steps"][0]["attempt"], "a number");
        assert_eq!(line["kind"], *kind);
        assert_eq!(line["status"], *status);
        assert_eq!(line["trace_id"], trace);
        assert_eq!(line["reason"], task["steps"][0]["error"]["message"]);
    }
}

#[tokio::test]
async fn a_line_on_a_message_that_was_not_taken_has_its_text_and_the_id_of_the_message() {
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/replies" => Act::status(503),
        _ => Act::Ok(json!(1)),
    })
    .await;
    let provost = Provost::start().await;
    let mut submission = one_step(&remote.url(), "/work");
    submission["reply_to"] = json!({ "url": format!("{}/replies", remote.url()) });
    provost.run(&submission).await;
    let text = "could not deliver a message; it will be retried";
    provost.says(text).await;
    let log = provost.log();
    let line = log.lines().find(|line| line.contains(text)).unwrap();
    // If a name comes twice in an object, readers use the last one.
    assert_eq!(line.matches("\"message\":").count(), 1, "{line}");
    let line: Value = serde_json::from_str(line).unwrap();
    let messages = provost.get("/v1/messages").await.expect(200);
    assert_eq!(line["message_id"], messages["items"][0]["id"]);
}

#[tokio::test]
async fn every_metric_says_what_it_counts() {
    let remote = Remote::script([Act::status(402)]).await;
    let provost = Provost::start().await;
    provost.register("payments", &remote.url(), 1).await;
    provost.run(&one_step(&remote.url(), "/work")).await;
    provost.run(&one_step(&remote.url(), "/work")).await;
    let text = provost.get("/metrics").await.expect(200);
    let text = text.as_str().unwrap();
    assert!(text.contains("provost_build_info{version=\""), "{text}");
    let described = |name: &str| {
        ["_bucket", "_sum", "_count", ""].iter().any(|suffix| {
            let family = name.strip_suffix(suffix);
            family.is_some_and(|family| text.contains(&format!("# HELP {family} ")))
        })
    };
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(described(name), "{line}");
    }
}

#[tokio::test]
async fn a_request_is_known_by_its_id_in_the_answer_the_problem_and_the_log() {
    let provost = Provost::setup().set("LOG", "debug").start().await;
    let own = "order-7/a.b:c";
    let refused = provost.get("/v1/nothing").header("x-request-id", own).await;
    assert_eq!(refused.header("x-request-id"), Some(own));
    let problem = refused.expect_problem(404, "not-found");
    assert_eq!(problem["request_id"], own);
    provost.says(own).await;
    let log = provost.log();
    let line = log.lines().find(|line| line.contains(own)).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["message"], "answered", "{line}");
    assert_eq!(line["span"]["request_id"], own, "{line}");

    let mut seen = HashSet::new();
    let long = "x".repeat(129);
    for harmful in ["", "a b", "x\" level=\"ERROR", "{}", "a\tb", &long] {
        let asked = provost.get("/v1/tasks?nonsense=1");
        let asked = asked.header("x-request-id", harmful).await;
        let problem = asked.expect_problem(400, "invalid-query");
        let id = problem["request_id"].as_str().unwrap().to_owned();
        assert_eq!(id.len(), 36, "{harmful:?} became {id}");
        assert!(seen.insert(id), "an id came twice");
    }
    let tag = provost.get("/openapi.json").await;
    let known = provost.get("/openapi.json");
    let known = known.header("if-none-match", tag.header("etag").unwrap());
    let mut answers = vec![known.await];
    for path in ["/livez", "/v1/tasks", "/metrics", "/docs"] {
        answers.push(provost.get(path).await);
    }
    for answer in answers {
        let id = answer.header("x-request-id").expect("an id").to_owned();
        assert!(seen.insert(id), "an id came twice");
    }
}

#[tokio::test]
async fn the_time_of_a_pause_is_a_time_in_the_log_and_not_the_form_that_programs_have() {
    let provost = Provost::start().await;
    provost.register("payments", "http://127.0.0.1:1", 1).await;
    let until = "2126-02-03T04:05:06Z";
    let refused = provost.post("/v1/agents/payments/pause", &json!({ "until": until }));
    assert_eq!(refused.await.status, 422, "pauses are shorter than that");
    let answer = provost.post("/v1/agents/payments/pause", &json!({ "for": "1h" }));
    let paused = answer.await.expect(200);
    let says = "\"message\":\"an agent is paused\"";
    provost.says(says).await;
    let log = provost.log();
    let line = log.lines().find(|line| line.contains(says)).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["until"], paused["pause"]["until"], "{line} {paused:#}");

    let forever = provost.post("/v1/agents/payments/pause", &json!({ "reason": "release" }));
    forever.await.expect(200);
    provost.says("\"reason\":\"release\"").await;
    assert!(!provost.log().contains("Some("), "{}", provost.log());
}
