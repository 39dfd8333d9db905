//! Conditional and repeated requests, and waits: `Idempotency-Key`, `If-Match`, `Prefer: wait`, `?wait=`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Act, Gate, Provost, Remote, id_of, one_step, pipeline, step};

#[tokio::test]
async fn a_repeated_submission_makes_one_task_and_another_body_under_its_key_is_refused() {
    let remote = Remote::quick().await;
    let mut provost = Provost::start().await;
    let mut submission = one_step(&remote.url(), "/work");
    let send = |provost: &Provost, submission: &Value| {
        let sent = provost.post("/v1/tasks", submission);
        sent.header("idempotency-key", "order-1")
    };
    let first = send(&provost, &submission).await;
    let location = first.header("location").unwrap().to_owned();
    let first = first.expect(202);
    assert_eq!(
        location,
        format!("/v1/tasks/{}", first["id"].as_str().unwrap())
    );
    let again = send(&provost, &submission).await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.header("location"), Some(location.as_str()));
    assert_eq!(again.expect(202)["id"], first["id"]);

    // The key is as durable as the task. The process is killed only after the task has ended, because the step could
    // otherwise be called again.
    provost.settled(first["id"].as_str().unwrap()).await;
    provost.kill().await;
    provost.restart().await;
    assert_eq!(
        send(&provost, &submission).await.expect(202)["id"],
        first["id"]
    );

    submission["priority"] = json!(1);
    let other = send(&provost, &submission).await;
    other.expect_problem(422, "idempotency-key-reused");
    let all = provost.get("/v1/tasks").await.expect(200);
    assert_eq!(all["items"].as_array().unwrap().len(), 1);
    assert_eq!(remote.count(), 1);
}

#[tokio::test]
async fn submissions_under_one_key_at_once_make_one_task() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let submission = one_step(&remote.url(), "/work");
    let sent = (0..20).map(|_| async {
        let sent = provost.post("/v1/tasks", &submission);
        let task = sent.header("idempotency-key", "same").await.expect(202);
        task["id"].as_str().unwrap().to_owned()
    });
    let ids = futures::future::join_all(sent).await;
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    provost.settled(&ids[0]).await;
    assert_eq!(remote.count(), 1);
}

#[tokio::test]
async fn a_repeated_command_is_carried_out_once() {
    let remote = Remote::script([Act::status(402)]).await;
    let provost = Provost::start().await;
    let task = provost.run(&one_step(&remote.url(), "/work")).await;
    let id = task["id"].as_str().unwrap();
    for replayed in [None, Some("true")] {
        let retry = provost.command(&format!("/v1/tasks/{id}/retry"));
        let answer = retry.header("idempotency-key", "once").await;
        assert_eq!(answer.header("idempotency-replayed"), replayed);
        answer.expect(200);
        provost.settled(id).await;
    }
    assert_eq!(remote.count(), 2);
}

#[tokio::test]
async fn a_command_on_a_task_that_has_changed_since_is_refused() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let provost = Provost::start().await;
    let id = provost.submit(&pipeline(&remote.url(), &["a", "b"])).await;
    let path = format!("/v1/tasks/{id}");
    remote.requests(1).await;
    let seen = provost.get(&path).await;
    let etag = seen.header("etag").unwrap().to_owned();
    let version = seen.expect(200)["version"].clone();
    assert_eq!(etag, format!("\"{version}\""));
    let paused = provost
        .command(&format!("{path}/pause"))
        .header("if-match", &etag)
        .await;
    assert_ne!(paused.header("etag"), Some(etag.as_str()));
    paused.expect(200);
    let refused = provost
        .command(&format!("{path}/cancel"))
        .header("if-match", &etag)
        .await;
    let problem = refused.expect_problem(412, "version-mismatch");
    assert_eq!(problem["version"], provost.task(&id).await["version"]);
    assert_eq!(provost.task(&id).await["state"], "paused");
    let unusable = provost
        .command(&format!("{path}/cancel"))
        .header("if-match", "7")
        .await;
    unusable.expect_problem(400, "invalid-query");
}

#[tokio::test]
async fn prefer_wait_answers_when_the_task_has_ended() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let submission = one_step(&remote.url(), "/work");
    let waited = provost
        .post("/v1/tasks", &submission)
        .header("prefer", "wait=30")
        .await;
    assert_eq!(waited.header("preference-applied"), Some("wait=30"));
    assert_eq!(waited.header("vary"), Some("prefer"));
    assert_eq!(waited.header("retry-after"), None, "it has ended");
    let task = waited.expect(200);
    assert_eq!(task["state"], "processed");
    assert_eq!(step(&task, "only")["output"], json!({ "path": "/work" }));
    assert_eq!(provost.task(task["id"].as_str().unwrap()).await, task);
}

#[tokio::test]
async fn a_wait_that_is_over_answers_with_the_task_as_it_is() {
    let remote = Remote::script([Act::Hang]).await;
    let provost = Provost::start().await;
    let submission = one_step(&remote.url(), "/work");
    let asked = Instant::now();
    let waited = provost
        .post("/v1/tasks", &submission)
        .header("prefer", "wait=1")
        .await;
    assert!(asked.elapsed() >= Duration::from_secs(1));
    let task = waited.expect(202);
    assert_eq!(task["state"], "processing");
    let asked = Instant::now();
    let path = format!("/v1/tasks/{}?wait=200ms", task["id"].as_str().unwrap());
    assert_eq!(provost.get(&path).await.expect(200)["state"], "processing");
    assert!(asked.elapsed() >= Duration::from_millis(200));
}

#[tokio::test]
async fn a_wait_ends_when_the_task_needs_an_operator() {
    let remote = Remote::script([Act::status(402)]).await;
    let provost = Provost::start().await;
    let submission = one_step(&remote.url(), "/work");
    let waited = provost
        .post("/v1/tasks", &submission)
        .header("prefer", "wait=60")
        .await;
    assert_eq!(waited.expect(200)["state"], "error");
}

#[tokio::test]
async fn a_key_is_the_callers_own_and_the_same_in_quotes() {
    let remote = Remote::quick().await;
    let tokens = "ada:submit:ada-secret-0123456789,bob:submit:bob-secret-0123456789,\
                  root:admin:root-secret-0123456789";
    let provost = Provost::setup().set("TOKENS", tokens).start().await;
    let submission = one_step(&remote.url(), "/work");
    let send = async |name: &str, key: &str| {
        let sent = provost.post("/v1/tasks", &submission);
        let bearer = format!("Bearer {name}-secret-0123456789");
        let sent = sent.header("authorization", &bearer);
        id_of(&sent.header("idempotency-key", key).await.expect(202))
    };
    let of_ada = send("ada", "order-1").await;
    assert_ne!(send("bob", "order-1").await, of_ada);
    assert_eq!(send("ada", "order-1").await, of_ada);
    assert_eq!(send("ada", "\"order-1\"").await, of_ada);

    // The same key on another path is another key.
    let command = async |deed: &str, id: &str| {
        let command = provost.command(&format!("/v1/tasks/{id}/{deed}"));
        let command = command.header("authorization", "Bearer root-secret-0123456789");
        command.header("idempotency-key", "order-1").await
    };
    let hanging = Remote::with(|_| Act::Hang).await;
    let ids = async {
        let sent = provost.post("/v1/tasks", &one_step(&hanging.url(), "/work"));
        let sent = sent.header("authorization", "Bearer root-secret-0123456789");
        id_of(&sent.await.expect(202))
    };
    let (one, other) = (ids.await, of_ada);
    assert_eq!(command("pause", &one).await.expect(200)["state"], "paused");
    assert_eq!(
        command("cancel", &one).await.expect(200)["state"],
        "cancelled"
    );
    command("cancel", &other)
        .await
        .expect_problem(409, "task-ended");
}

#[tokio::test]
async fn who_polls_is_told_when_to_ask_again_and_what_he_has_is_not_sent_again() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let provost = Provost::start().await;
    let sent = provost.post("/v1/tasks", &one_step(&remote.url(), "/work"));
    let sent = sent.await;
    assert_eq!(sent.header("retry-after"), Some("1"));
    let id = id_of(&sent.expect(202));
    let path = format!("/v1/tasks/{id}");
    remote.requests(1).await;
    let polled = provost.get(&path).await;
    assert_eq!(polled.header("retry-after"), Some("1"));
    let etag = polled.header("etag").unwrap().to_owned();
    for known in [etag.clone(), format!("\"x\", W/{etag}"), "*".to_owned()] {
        let again = provost.get(&path).header("if-none-match", &known).await;
        assert_eq!((again.status, &again.body), (304, &json!("")), "{known}");
        assert_eq!(again.header("etag"), Some(etag.as_str()));
        assert_eq!(again.header("retry-after"), Some("1"));
    }
    gate.open();
    let done = provost.settled(&id).await;
    assert_eq!(done["state"], "processed");
    let changed = provost.get(&path).header("if-none-match", &etag).await;
    assert_eq!(changed.header("retry-after"), None);
    assert_eq!(changed.expect(200), done);

    let document = provost.get("/openapi.json").await;
    let etag = document.header("etag").unwrap();
    let again = provost.get("/openapi.json").header("if-none-match", etag);
    assert_eq!(again.await.status, 304);
}

#[tokio::test]
async fn a_wait_beyond_the_limit_is_cut_to_it_and_the_answer_says_so() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let sent = provost.post("/v1/tasks", &one_step(&remote.url(), "/work"));
    let answer = sent.header("prefer", "respond-async, wait=86400").await;
    assert_eq!(answer.header("preference-applied"), Some("wait=60"));
    answer.expect(200);
}

#[tokio::test]
async fn a_body_that_is_compressed_is_refused_by_name() {
    let provost = Provost::start().await;
    let sent = |encoding| {
        let sent = provost.post("/v1/tasks", &one_step("http://127.0.0.1:9", "/work"));
        sent.header("content-encoding", encoding)
    };
    let refused = sent("gzip").await.expect_problem(415, "encoded-body");
    assert!(refused["detail"].as_str().unwrap().contains("gzip"));
    sent("identity").await.expect(202);
}
