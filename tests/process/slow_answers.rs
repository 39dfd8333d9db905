//! Remote services that take too long: the call is dropped at complete-by, the supervisor counts the failure, and a
//! later response changes nothing.

use serde_json::{Value, json};

use crate::harness::{Act, Gate, Provost, Remote, kinds, one_step, step};

/// Returns a task of one step with a short complete-by that is still enough for a busy machine.
fn urgent(remote: &Remote) -> Value {
    let mut task = one_step(&remote.url(), "/work");
    task["steps"][0]["complete_within"] = json!("1s");
    task
}

#[tokio::test]
async fn a_service_that_hangs_is_given_up_at_complete_by_and_the_step_recovered() {
    let remote = Remote::script([Act::Hang, Act::Ok(json!("done"))]).await;
    let provost = Provost::start().await;
    let task = provost.run(&urgent(&remote)).await;
    let only = step(&task, "only");
    assert_eq!(task["state"], "processed");
    assert_eq!(only["failure_count"], 1);
    assert_eq!(only["attempt"], 2);
    assert_eq!(only["output"], "done");
    let seen = remote.ledger();
    assert_eq!([seen[0].attempt(), seen[1].attempt()], [1, 2]);
    assert_eq!(seen[0].key(), seen[1].key());
    let history = provost.history(task["id"].as_str().unwrap()).await;
    assert_eq!(
        kinds(&history),
        [
            "task.accepted",
            "step.ready",
            "step.claimed",
            "task.processing",
            "step.expired",
            "step.claimed",
            "step.processed",
            "task.processed"
        ]
    );
    let by = history[4]["by"].as_str().unwrap();
    assert!(by.starts_with("supervisor:"), "{by}");
}

#[tokio::test]
async fn a_service_that_drips_one_byte_a_second_is_given_up_at_complete_by() {
    let remote = Remote::script([Act::Drip, Act::Ok(json!("done"))]).await;
    let provost = Provost::start().await;
    let task = provost.run(&urgent(&remote)).await;
    assert_eq!(step(&task, "only")["failure_count"], 1);
    assert_eq!(step(&task, "only")["output"], "done");
    assert_eq!(remote.count(), 2);
}

#[tokio::test]
async fn an_answer_after_complete_by_changes_nothing() {
    let (late, in_time) = (Gate::closed(), Gate::closed());
    let remote = Remote::script([late.then(json!("late")), in_time.then(json!("in time"))]).await;
    let provost = Provost::start().await;
    let mut submission = urgent(&remote);
    // The second attempt must last longer than the remaining test, and not only the first one longer than its limit.
    submission["steps"][0]["complete_within"] = json!("2s");
    let id = provost.submit(&submission).await;
    let seen = remote.requests(2).await;
    assert_eq!([seen[0].attempt(), seen[1].attempt()], [1, 2]);
    let before = provost.task(&id).await;
    assert_eq!(step(&before, "only")["state"], "processing");
    late.open();
    in_time.open();
    let task = provost.settled(&id).await;
    assert_eq!(step(&task, "only")["output"], "in time");
    assert_eq!(step(&task, "only")["failure_count"], 1);
    let history = provost.history(&id).await;
    let processed = kinds(&history)
        .into_iter()
        .filter(|kind| *kind == "step.processed");
    assert_eq!(processed.count(), 1);
    assert_eq!(remote.count(), 2);
}

#[tokio::test]
async fn a_service_that_answers_twice_is_heard_once() {
    // The connection has a second, unread response when the next request is about to be sent on it.
    let one = |body: &str| {
        format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let twice = one("\"first\"") + &one("\"second\"");
    let remote = Remote::script([Act::Raw(twice), Act::Ok(json!("third"))]).await;
    let provost = Provost::start().await;
    let first = provost.run(&one_step(&remote.url(), "/work")).await;
    let next = provost.run(&one_step(&remote.url(), "/work")).await;
    assert_eq!(step(&first, "only")["output"], "first");
    assert_eq!(step(&next, "only")["output"], "third");
    assert_eq!(remote.count(), 2);
}

#[tokio::test]
async fn a_task_past_its_own_complete_by_ends_in_error_whatever_its_steps_may_take() {
    let remote = Remote::script([Act::Hang]).await;
    let provost = Provost::start().await;
    let mut submission = one_step(&remote.url(), "/work");
    submission["complete_within"] = json!("300ms");
    let task = provost.run(&submission).await;
    assert_eq!(task["state"], "error");
    assert_eq!(task["error"]["kind"], "deadline");
    assert_eq!(task["error"]["step"], "only");
    assert_eq!(remote.count(), 1);
}
