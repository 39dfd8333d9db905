//! Answers that no second try would better (P12), and answers that are odd but good.

use serde_json::{Value, json};

use crate::harness::{Act, Provost, Remote, one_step, step};

/// Runs one step against this answer, and gives the task and how often it was asked for.
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
