//! A fault of the service itself may cost only the command that met it. A debug build panics if a task's key says so,
//! see `src/planted.rs`.

use serde_json::{Value, json};

use crate::{
    cluster,
    harness::{Act, PATIENCE, Provost, Remote, Setup, kinds, pipeline, sql, step},
};

fn armed() -> Setup {
    Provost::setup().environment("PLANTED_PANICS", "1")
}

async fn new_database() -> String {
    let made = tokio::task::spawn_blocking(cluster::new_database);
    made.await.unwrap()
}

/// Returns a pipeline of two steps whose task makes the service panic at this point of the code.
fn at(place: &str, url: &str) -> Value {
    let mut submission = pipeline(url, &["one", "two"]);
    submission["key"] = json!(format!("panics at {place}"));
    submission
}

/// Returns the one alert of the task, once it exists.
async fn alert(provost: &Provost, task: &str) -> Value {
    let seek = async {
        loop {
            let page = provost.get(&format!("/v1/alerts?task={task}")).await;
            let alerts = page.expect(200)["items"].as_array().unwrap().clone();
            if let [alert] = alerts.as_slice() {
                return alert.clone();
            }
            assert!(alerts.is_empty(), "{alerts:#?}");
        }
    };
    let found = tokio::time::timeout(PATIENCE, seek).await;
    found.expect("no alert names the task")
}

/// Checks that other tasks are processed as usual, and that the process runs.
async fn goes_on(provost: &Provost, remote: &Remote) {
    let other = pipeline(&remote.url(), &["one", "two"]);
    assert_eq!(provost.run(&other).await["state"], "processed");
    assert_eq!(provost.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn an_operator_s_command_that_panics_is_refused_alone() {
    let remote = Remote::script([Act::status(400), Act::Ok(json!(1))]).await;
    for place in ["retry", "collect"] {
        let provost = armed().start().await;
        let remote = match place {
            "retry" => remote.clone(),
            _ => Remote::quick().await,
        };
        let id = match place {
            "retry" => {
                let id = provost.submit(&at(place, &remote.url())).await;
                assert_eq!(provost.settled(&id).await["state"], "error");
                id
            }
            // Nothing of the task can be saved, so its submission is refused.
            _ => {
                let refused = provost.post("/v1/tasks", &at(place, &remote.url())).await;
                refused.expect_problem(500, "internal");
                goes_on(&provost, &remote).await;
                continue;
            }
        };
        let asked = provost.command(&format!("/v1/tasks/{id}/steps/one/retry"));
        let problem = asked.await.expect_problem(500, "internal");
        assert!(
            problem["detail"].as_str().unwrap().contains("report it"),
            "{problem:#}"
        );
        assert_eq!(provost.task(&id).await["state"], "error");
        goes_on(&provost, &remote).await;
        // The step in error has an alert already, so there is no second one.
        assert_eq!(alert(&provost, &id).await["kind"], "task.error");
        assert_eq!(
            kinds(&provost.history(&id).await).last(),
            Some(&"task.fault")
        );
    }
}

#[tokio::test]
async fn a_command_that_panics_takes_none_of_its_batch_along() {
    let remote = Remote::with(|seen| Act::Ok(json!({ "path": seen.path }))).await;
    let provost = armed().start().await;
    let bad = at("submit", &remote.url());
    let good = pipeline(&remote.url(), &["one", "two"]);
    let all = (0..60).map(|number| {
        let submission = if number % 3 == 0 { &bad } else { &good };
        provost.post("/v1/tasks", submission).into_future()
    });
    use std::future::IntoFuture;
    let answers = futures::future::join_all(all).await;
    for (number, answer) in answers.into_iter().enumerate() {
        if number % 3 == 0 {
            answer.expect_problem(500, "internal");
        } else {
            let id = answer.expect(202)["id"].as_str().unwrap().to_owned();
            assert_eq!(provost.settled(&id).await["state"], "processed");
        }
    }
}

#[tokio::test]
async fn a_step_whose_claim_panics_is_left_in_line_with_an_alert_and_holds_up_nobody() {
    let remote = Remote::quick().await;
    let provost = armed().set("SCHEDULER__POLL", "50ms").start().await;
    // The agent has one slot, and the first step of the queue would take it again and again.
    provost.register("narrow", &remote.url(), 1).await;
    let narrow =
        |key: Value| json!({ "key": key, "steps": [{ "name": "only", "agent": "narrow" }] });
    let stuck = provost.submit(&narrow(json!("panics at claim"))).await;
    let alert = alert(&provost, &stuck).await;
    assert_eq!(alert["kind"], "task.fault", "{alert:#}");
    let message = alert["message"].as_str().unwrap();
    assert!(
        message.contains(&stuck) && message.contains("claim"),
        "{message}"
    );
    for _ in 0..20 {
        let task = provost.run(&narrow(Value::Null)).await;
        assert_eq!(task["state"], "processed");
    }
    assert_eq!(
        step(&provost.task(&stuck).await, "only")["state"],
        "pending"
    );
    let panics = provost.log().matches("panicked while it decided").count();
    assert!(panics < 5, "it panicked {panics} times");
    assert_eq!(
        kinds(&provost.history(&stuck).await)
            .iter()
            .filter(|kind| **kind == "task.fault")
            .count(),
        1
    );
}

#[tokio::test]
async fn an_attempt_that_cannot_be_expired_does_not_keep_others_from_being_recovered() {
    let remote = Remote::with(|seen| match (seen.attempt(), seen.body["hang"].as_bool()) {
        (1, Some(true)) => Act::Hang,
        _ => Act::Ok(json!(1)),
    })
    .await;
    let provost = armed().set("SUPERVISOR__BATCH", "1").start().await;
    let hanging = |key: Value| {
        json!({ "key": key, "input": { "hang": true }, "steps": [
            { "name": "only", "url": remote.url(), "complete_within": "200ms" }] })
    };
    let mut stuck = Vec::new();
    for _ in 0..3 {
        stuck.push(provost.submit(&hanging(json!("panics at expire"))).await);
    }
    for id in &stuck {
        assert_eq!(alert(&provost, id).await["kind"], "task.fault");
    }
    let task = provost.run(&hanging(Value::Null)).await;
    assert_eq!(task["state"], "processed");
    assert_eq!(step(&task, "only")["attempt"], 2);
}

#[tokio::test]
async fn a_panic_during_a_call_or_a_save_costs_its_task_alone() {
    let remote = Remote::quick().await;
    let provost = armed().start().await;
    provost.register("narrow", &remote.url(), 1).await;
    let mut call = at("call", &remote.url());
    call["steps"] = json!([{ "name": "only", "agent": "narrow", "max_failures": 0 }]);
    let task = provost.run(&call).await;
    assert_eq!(task["state"], "error", "{task:#}");
    // The slot is free again.
    let next = json!({ "steps": [{ "name": "only", "agent": "narrow" }] });
    assert_eq!(provost.run(&next).await["state"], "processed");
    let saved = provost.post("/v1/tasks", &at("save", &remote.url())).await;
    saved.expect_problem(500, "internal");
    goes_on(&provost, &remote).await;
}

/// A gives commands for undo steps that its cached task does not have yet.
#[tokio::test]
async fn an_undo_begun_at_one_instance_is_retried_and_claimed_at_another_that_knows_nothing_of_it()
{
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/two" => Act::status(400),
        "/undo" if seen.attempt() == 1 => Act::status(400),
        _ => Act::Ok(json!({ "path": seen.path })),
    })
    .await;
    let url = new_database().await;
    let on = || {
        Provost::setup()
            .database_url(&url)
            .set("SCHEDULER__POLL", "50ms")
    };
    let (a, b) = tokio::join!(on().start(), on().start());
    let submission = json!({ "steps": [
        { "name": "one", "url": remote.url(), "request": { "path": "/one" },
          "undo": { "request": { "path": "/undo" } } },
        { "name": "two", "url": remote.url(), "request": { "path": "/two" } },
    ] });
    let id = a.submit(&submission).await;
    assert_eq!(
        a.settled(&id).await["state"],
        "error",
        "A has it in its cache"
    );
    b.command(&format!("/v1/tasks/{id}/undo")).await.expect(200);
    let failed = b.settled(&id).await;
    assert_eq!(step(&failed, "one.undo")["state"], "error", "{failed:#}");
    // A's cached task has no such step.
    let retried = a
        .command(&format!("/v1/tasks/{id}/steps/one.undo/retry"))
        .await;
    retried.expect(200);
    assert_eq!(a.settled(&id).await["state"], "undone");
    assert_eq!(a.get("/readyz").await.status, 200);
    assert_eq!(sql(&url, "SELECT count(*) FROM instances"), "2");
}
