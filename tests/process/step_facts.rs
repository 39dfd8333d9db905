//! Expressions that read what happened to a step: fallbacks, errors in undos, and the items of a list.

use serde_json::{Value, json};

use crate::harness::{Act, Provost, Remote, Seen, id_of, step};

/// A service that refuses what is sent to `/primary` with this status and body.
async fn refusing(status: u16, body: &'static str) -> Remote {
    Remote::with(move |seen: &Seen| match seen.path.as_str() {
        "/primary" => Act::answer(status, &[("content-type", "application/json")], body),
        path => Act::Ok(json!({ "path": path })),
    })
    .await
}

fn with_fallback(url: &str) -> Value {
    json!({ "steps": [
        { "name": "primary", "url": url, "request": { "path": "/primary" }, "on_permanent": "skip" },
        { "name": "fallback", "url": url, "when": "steps.primary is failed and steps.primary.error.status == 404",
          "request": { "path": "/fallback", "body": {
            "state": "{{ steps.primary.state }}", "error": "{{ steps.primary.error }}",
            "attempts": "{{ steps.primary.attempts }}" } } },
    ] })
}

#[tokio::test]
async fn a_fallback_runs_after_the_status_that_it_is_for_and_reads_the_error() {
    let remote = refusing(404, r#"{"code":"no_such_card"}"#).await;
    let mut provost = Provost::start().await;
    let task = provost.run(&with_fallback(&remote.url())).await;
    assert_eq!(task["state"], "processed", "{task:#}");
    let sent = &remote.paths("/fallback", 1).await[1].body;
    assert_eq!(sent["state"], "skipped");
    assert_eq!(sent["attempts"], 1);
    assert_eq!(sent["error"]["status"], 404);
    assert_eq!(sent["error"]["kind"], "permanent");
    assert_eq!(sent["error"]["body"], r#"{"code":"no_such_card"}"#);
    // The record has the error, also after the process was killed.
    provost.kill().await;
    provost.restart().await;
    let task = provost.get(&format!("/v1/tasks/{}", id_of(&task))).await;
    let primary = step(&task.expect(200), "primary").clone();
    assert_eq!(primary["state"], "skipped");
    assert_eq!(primary["error"]["status"], 404, "{primary:#}");
}

#[tokio::test]
async fn no_fallback_runs_after_another_status_or_after_a_success_without_output() {
    for (status, state) in [(422, "skipped"), (204, "processed")] {
        let remote = refusing(status, "").await;
        let provost = Provost::start().await;
        let task = provost.run(&with_fallback(&remote.url())).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(step(&task, "primary")["state"], state);
        assert_eq!(step(&task, "fallback")["state"], "skipped");
        assert_eq!(remote.count(), 1);
    }
}

#[tokio::test]
async fn an_undo_is_told_for_which_error_the_task_is_undone() {
    let remote = refusing(402, r#"{"code":"card_declined"}"#).await;
    let url = remote.url();
    let provost = Provost::start().await;
    let task = provost
        .run(&json!({ "steps": [
            { "name": "reserve", "url": url, "request": { "path": "/reserve" },
              "undo": { "request": { "path": "/release", "body": {
                "because": "{{ task.error.step ~ ': ' ~ task.error.status }}", "said": "{{ task.error.body }}",
                "state": "{{ task.state }}", "since": "{{ task.started_at }}" } } } },
            { "name": "charge", "url": url, "request": { "path": "/primary" }, "on_permanent": "undo" },
        ] }))
        .await;
    assert_eq!(task["state"], "undone", "{task:#}");
    let sent = &remote.paths("/release", 1).await[2].body;
    assert_eq!(sent["because"], "charge: 402");
    assert_eq!(sent["said"], r#"{"code":"card_declined"}"#);
    assert_eq!(sent["state"], "undoing");
    assert_eq!(sent["since"], step(&task, "reserve")["started_at"]);
}

#[tokio::test]
async fn the_items_of_a_list_say_which_of_them_failed() {
    let remote = Remote::with(|seen: &Seen| match seen.path.as_str() {
        "/item/2" => Act::status(410),
        path => Act::Ok(json!({ "path": path })),
    })
    .await;
    let url = remote.url();
    let provost = Provost::start().await;
    let task = provost
        .run(&json!({ "steps": [
            { "name": "all", "url": url, "for_each": [1, 2, 3], "on_item_error": "skip",
              "request": { "path": "/item/{{ item }}" } },
            { "name": "report", "url": url, "request": { "path": "/report", "body": {
                "failed": "{{ steps.all.items | select('failed') | length }}",
                "status": "{{ steps.all.items[1].error.status }}",
                "states": "{{ steps.all.items | map(attribute='state') | list }}" } } },
        ] }))
        .await;
    assert_eq!(task["state"], "processed", "{task:#}");
    let sent = &remote.paths("/report", 1).await[3].body;
    assert_eq!(sent["failed"], 1);
    assert_eq!(sent["status"], 410);
    assert_eq!(sent["states"], json!(["processed", "skipped", "processed"]));
}

#[tokio::test]
async fn a_step_keeps_the_headers_that_it_names_for_a_created_resource_without_a_body() {
    let remote = Remote::with(|seen: &Seen| match seen.path.as_str() {
        "/orders" => Act::answer(
            201,
            &[
                ("Location", "/orders/41"),
                ("ETag", "\"v1\""),
                ("Server", "not named"),
            ],
            "",
        ),
        path => Act::Ok(json!({ "path": path })),
    })
    .await;
    let url = remote.url();
    let mut provost = Provost::start().await;
    let task = provost
        .run(&json!({ "steps": [
            { "name": "create", "url": url, "request": { "path": "/orders" }, "keep_headers": ["location", "etag", "link"],
              "undo": { "request": { "method": "DELETE", "path": "/undo", "body": "{{ steps.create.headers.location }}" } } },
            { "name": "confirm", "url": url, "request": { "path": "/confirm", "body": {
                "status": "{{ steps.create.status }}", "at": "{{ steps.create.headers.location }}",
                "etag": "{{ steps.create.headers.etag }}", "all": "{{ steps.create.headers | list }}" } } },
        ] }))
        .await;
    assert_eq!(task["state"], "processed", "{task:#}");
    let sent = &remote.paths("/confirm", 1).await[1].body;
    assert_eq!(sent["status"], 201);
    assert_eq!(sent["at"], "/orders/41");
    assert_eq!(sent["etag"], "\"v1\"");
    assert_eq!(sent["all"], json!(["etag", "location"]));
    assert_eq!(
        step(&task, "create")["response"]["headers"]["location"],
        "/orders/41"
    );
    // The record has them after the process was killed, for the undo.
    provost.kill().await;
    provost.restart().await;
    let undo = format!("/v1/tasks/{}/undo", id_of(&task));
    provost.post(&undo, &json!({})).await.expect(200);
    let seen = remote.paths("/undo", 1).await;
    assert_eq!(seen.last().unwrap().body, "/orders/41");
}
