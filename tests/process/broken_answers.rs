//! Responses that a retry would not improve, and responses that are unusual but valid.

use serde_json::{Value, json};

use crate::harness::{Act, Provost, Remote, one_step, step};

/// Runs one step with this response, and returns the task and the number of requests.
async fn run(act: Act) -> (Value, usize) {
    let remote = Remote::script([act]).await;
    let provost = Provost::start().await;
    let task = provost.run(&one_step(&remote.url(), "/work")).await;
    (task, remote.count())
}

#[tokio::test]
async fn a_body_of_10_mib_is_a_permanent_error_that_names_the_limit() {
    let (task, requests) = run(Act::Flood).await;
    assert_eq!(task["state"], "error");
    let error = &step(&task, "only")["error"];
    assert_eq!(error["kind"], "permanent");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("262144 bytes"), "{message}");
    assert!(message.contains("max_output"), "{message}");
    assert_eq!(requests, 1);
}

#[tokio::test]
async fn an_answer_that_is_no_json_is_text() {
    let text = Act::answer(200, &[("content-type", "text/plain")], "thank \"you\"");
    let (task, _) = run(text).await;
    assert_eq!(task["state"], "processed");
    assert_eq!(step(&task, "only")["output"], "thank \"you\"");
}

#[tokio::test]
async fn an_answer_that_says_json_and_is_none_is_a_permanent_error() {
    let lie = Act::answer(200, &[("content-type", "application/json")], "<html>");
    let (task, requests) = run(lie).await;
    let error = &step(&task, "only")["error"];
    assert_eq!(error["kind"], "permanent");
    assert_eq!(error["body"], "<html>");
    assert_eq!(requests, 1);
}

#[tokio::test]
async fn interim_answers_without_end_break_the_call_off_with_a_clear_fault() {
    let remote = Remote::script([Act::Interim, Act::Ok(json!("done"))]).await;
    let provost = Provost::start().await;
    let mut submission = one_step(&remote.url(), "/work");
    submission["steps"][0]["complete_within"] = json!("1h");
    let task = provost.run(&submission).await;
    assert_eq!(task["state"], "processed");
    let fault = &step(&task, "only")["last_fault"];
    assert_eq!(fault["kind"], "transient", "{task:#}");
    let message = fault["message"].as_str().unwrap();
    assert!(message.contains("interim responses (1xx)"), "{message}");
    assert_eq!(fault["outcome"], "unknown", "{task:#}");
}

#[tokio::test]
async fn some_interim_answers_before_the_answer_do_no_harm() {
    let interim = "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
    let answer = format!(
        "{}HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n7",
        interim.repeat(20)
    );
    let (task, requests) = run(Act::Raw(answer)).await;
    assert_eq!(step(&task, "only")["output"], 7, "{task:#}");
    assert_eq!(requests, 1);
}

#[tokio::test]
async fn a_receiver_that_sends_interim_answers_without_end_is_tried_again() {
    let service = Remote::quick().await;
    let shop = Remote::script([Act::Interim, Act::status(204)]).await;
    let setup = Provost::setup().set("COURIER__RETRY_INITIAL", "20ms");
    // The timeout is longer than the test, so it does not end the flood.
    let provost = setup.set("COURIER__TIMEOUT", "60s").start().await;
    let mut submission = one_step(&service.url(), "/work");
    submission["reply_to"] = json!({ "url": shop.url() });
    provost.run(&submission).await;
    shop.requests(2).await;
}

#[tokio::test]
async fn an_answer_that_is_nested_too_deeply_is_a_permanent_error() {
    let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let (task, _) = run(Act::answer(200, &[], &nested(100))).await;
    assert_eq!(task["state"], "processed");
    let (task, requests) = run(Act::answer(200, &[], &nested(101))).await;
    let error = &step(&task, "only")["error"];
    assert_eq!(error["kind"], "permanent");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("deeper than 100 levels"), "{message}");
    assert_eq!(requests, 1);
}

#[tokio::test]
async fn a_head_that_is_too_large_breaks_the_call_off_with_a_clear_fault() {
    let many = "x-many: 1\r\n".repeat(200);
    let long = format!("x-long: {}\r\n", "x".repeat(1 << 20));
    for headers in [many, long] {
        let head = format!("HTTP/1.1 200 OK\r\n{headers}content-length: 1\r\n\r\n7");
        let remote = Remote::script([Act::Raw(head), Act::Ok(json!("done"))]).await;
        let provost = Provost::start().await;
        let task = provost.run(&one_step(&remote.url(), "/work")).await;
        let message = step(&task, "only")["last_fault"]["message"].as_str();
        let message = message.unwrap_or_default();
        assert!(message.contains("head is too large"), "{message}");
    }
}

#[tokio::test]
async fn large_answers_over_one_connection_are_whole() {
    let large = "x".repeat(250_000);
    let answers = (0..8).map(|_| Act::Ok(json!(large)));
    let remote = Remote::script(answers).await;
    let provost = Provost::start().await;
    for _ in 0..8 {
        let task = provost.run(&one_step(&remote.url(), "/work")).await;
        assert_eq!(step(&task, "only")["output"], large.as_str());
        assert_eq!(step(&task, "only")["last_fault"], Value::Null);
    }
}

#[tokio::test]
async fn a_redirect_is_a_permanent_error_and_never_followed() {
    let elsewhere = Remote::quick().await;
    let to = format!("{}/work", elsewhere.url());
    let (task, requests) = run(Act::answer(302, &[("location", &to)], "")).await;
    let error = &step(&task, "only")["error"];
    assert_eq!(error["kind"], "permanent");
    assert_eq!(error["status"], 302);
    assert!(error["message"].as_str().unwrap().contains(&to), "{error}");
    assert_eq!(requests, 1);
    assert_eq!(elsewhere.count(), 0);
}

#[tokio::test]
async fn a_refusal_for_good_is_not_asked_for_again() {
    let (task, requests) = run(Act::answer(404, &[], "no such thing")).await;
    let error = &step(&task, "only")["error"];
    assert_eq!(error["kind"], "permanent");
    assert_eq!(error["status"], 404);
    assert_eq!(error["body"], "no such thing");
    assert_eq!(requests, 1);
}

#[tokio::test]
async fn a_permanent_error_stops_what_follows_unless_the_step_may_be_skipped() {
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/gift" => Act::status(410),
        path => Act::Ok(json!(path)),
    })
    .await;
    let provost = Provost::start().await;
    let mut task = crate::harness::pipeline(&remote.url(), &["gift", "ship"]);
    let stopped = provost.run(&task).await;
    assert_eq!(stopped["state"], "error");
    assert_eq!(stopped["error"]["step"], "gift");
    let ship = step(&stopped, "ship");
    assert_eq!(ship["state"], "waiting");
    assert_eq!(
        ship["blocked_by"],
        json!({ "reason": "steps", "steps": ["gift"] })
    );
    task["steps"][0]["on_permanent"] = json!("skip");
    let went_on = provost.run(&task).await;
    assert_eq!(went_on["state"], "processed");
    assert_eq!(step(&went_on, "gift")["state"], "skipped");
    assert_eq!(step(&went_on, "ship")["state"], "processed");
}
