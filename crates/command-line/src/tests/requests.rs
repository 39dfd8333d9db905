//! The requests that are sent, seen by a server of prepared responses.

use std::time::Duration;

use super::stub::Stub;
use crate::{
    bulk, events,
    find_task::{self, Purpose},
    operations::{FOLLOW_TASK, GET_TASK, LIST_TASKS, RETRY_STEP},
    outcome::{ClientError, Outcome},
    shapes::{BulkJobJson, TaskJson},
    stream::FollowedStream,
    wait,
};

/// The response of a server that has just begun.
const STARTING: &str =
    r#"{"title":"Service unavailable","status":503,"detail":"the service is starting"}"#;

#[tokio::test]
async fn pages_are_read_until_there_are_enough_items() {
    let stub = Stub::with(vec![
        (200, r#"{"items":[1,2],"next_cursor":"c1"}"#),
        (
            200,
            r#"{"items":[3],"next_cursor":"c2","examined_back_to":"x"}"#,
        ),
    ])
    .await;
    let query = [("state", "error".to_owned())];
    let listing = stub
        .session
        .api
        .list(&LIST_TASKS, &[], &query, 3)
        .await
        .unwrap();
    assert_eq!(
        listing.page,
        r#"{"items":[1,2,3],"next_cursor":"c2","examined_back_to":"x"}"#
    );
    assert_eq!(
        stub.lines(),
        [
            "GET /v1/tasks?state=error&limit=3 HTTP/1.1",
            "GET /v1/tasks?state=error&limit=1&cursor=c1 HTTP/1.1"
        ]
    );
    assert!(
        stub.requests()
            .iter()
            .all(|request| request.contains("authorization: Bearer secret"))
    );
}

#[tokio::test]
async fn a_wait_survives_a_restart_of_the_server() {
    let stub = Stub::with(vec![
        (200, r#"{"id":"a","state":"processing"}"#),
        (0, ""),
        (503, STARTING),
        (502, "<html>Bad gateway</html>"),
        (200, r#"{"id":"a","state":"processed"}"#),
    ])
    .await;
    let (found, outcome) = wait::until_rest(&stub.session.api, "a", None)
        .await
        .unwrap();
    assert_eq!(
        (found.task.state.as_str(), outcome),
        ("processed", Outcome::Done)
    );
}

#[tokio::test]
async fn a_look_at_a_task_survives_a_restart_of_the_server() {
    let stub = Stub::with(vec![
        (0, ""),
        (503, STARTING),
        (200, r#"{"id":"a","state":"undone"}"#),
    ])
    .await;
    let looked = wait::look(&stub.session.api, "a").await;
    assert_eq!(looked.unwrap().1, Outcome::Undone);
}

#[tokio::test]
async fn a_bulk_job_is_followed_through_a_restart_of_the_server() {
    let stub = Stub::with(vec![
        (200, r#"{"id":"j","state":"running"}"#),
        (0, ""),
        (503, STARTING),
        (200, r#"{"id":"j","state":"ended","accepted":2}"#),
    ])
    .await;
    let job = BulkJobJson {
        id: "j".to_owned(),
        ..BulkJobJson::default()
    };
    let followed = bulk::follow(&stub.session, job, None).await;
    assert_eq!(followed.unwrap(), Outcome::Done);
    assert_eq!(stub.lines().len(), 3);
}

#[tokio::test]
async fn a_stream_of_events_begins_again_where_the_first_one_began() {
    let refused = r#"{"title":"Forbidden","status":403}"#;
    let stub = Stub::with(vec![
        (200, r#"{"items":[],"position":"1-2-3-0","has_more":false}"#),
        (200, ": no event yet\n\n"),
        (503, STARTING),
        (403, refused),
    ])
    .await;
    let query = vec![("after", "newest".to_owned())];
    let ended = events::follow(&stub.session, query).await.unwrap_err();
    assert!(ended.problem(403).is_some(), "{ended}");
    let again = "GET /v1/events?after=1-2-3-0 HTTP/1.1";
    assert_eq!(
        stub.lines(),
        ["GET /v1/events?after=newest HTTP/1.1", again, again, again]
    );
}

#[tokio::test]
async fn a_wait_ends_when_its_time_is_over() {
    let stub = Stub::with(vec![(200, r#"{"id":"a","state":"paused"}"#)]).await;
    let waited = wait::until_rest(&stub.session.api, "a", Some(Duration::ZERO)).await;
    assert_eq!(waited.unwrap().1, Outcome::Running);
}

#[tokio::test]
async fn a_key_is_looked_up_and_so_is_an_id_that_no_task_has() {
    let found = r#"{"items":[{"id":"0197","state":"error"}],"next_cursor":null}"#;
    let unknown = r#"{"title":"Not found","status":404}"#;
    let stub = Stub::with(vec![
        (200, found),
        (200, r#"{"id":"01a22524-8d31-7780-9fe5-4eca000e753d"}"#),
        (404, unknown),
        (200, found),
        (200, r#"{"id":"0197"}"#),
        (404, unknown),
        (200, r#"{"items":[],"next_cursor":null}"#),
    ])
    .await;
    let api = &stub.session.api;
    assert_eq!(
        find_task::find_id(api, "order-1", Purpose::Command)
            .await
            .unwrap(),
        "0197"
    );
    let id = "01a22524-8d31-7780-9fe5-4eca000e753d";
    assert_eq!(
        find_task::find_id(api, id, Purpose::Command).await.unwrap(),
        id
    );
    // The key of a task may be a UUID, too.
    let key = "9b2e41d0-6a3c-4f6e-8d1b-2f5c7a9e0b34";
    let find = async || find_task::find_id(api, key, Purpose::Command).await;
    assert_eq!(find().await.unwrap(), "0197");
    assert!(find().await.unwrap_err().problem(404).is_some());
    assert_eq!(
        stub.lines()[2..5],
        [
            format!("GET /v1/tasks/{key} HTTP/1.1"),
            format!("GET /v1/tasks?key={key}&limit=20 HTTP/1.1"),
            "GET /v1/tasks/0197 HTTP/1.1".to_owned(),
        ]
    );
}

#[tokio::test]
async fn a_command_for_a_task_names_it_by_its_key_only_if_no_other_task_has_it() {
    let stub = Stub::with(vec![
        (200, r#"{"items":[{"id":"a"}],"next_cursor":null}"#),
        (
            200,
            r#"{"items":[{"id":"b"},{"id":"a"}],"next_cursor":"c"}"#,
        ),
    ])
    .await;
    let api = &stub.session.api;
    let task = |key: &str| TaskJson {
        id: "a".to_owned(),
        key: Some(key.to_owned()),
        ..TaskJson::default()
    };
    let name = async |key| find_task::name_in_commands(api, &task(key)).await.unwrap();
    assert_eq!(name("order-1").await, "order-1");
    assert_eq!(name("order-1").await, "a");
    assert_eq!(name("-n").await, "a");
    assert_eq!(stub.lines().len(), 2);
}

#[tokio::test]
async fn a_problem_is_a_refusal_and_anything_else_is_no_provost() {
    let problem = r#"{"type":"/problems/task-ended","title":"Task has ended","status":409,"detail":"it has ended"}"#;
    let stub = Stub::with(vec![
        (409, problem),
        (502, "<html>Bad gateway</html>"),
        (200, "no JSON"),
    ])
    .await;
    let api = &stub.session.api;
    let body = serde_json::json!({ "reason": "again" });
    let refused = api
        .request(&RETRY_STEP, &["a", "b"])
        .body(&body)
        .send()
        .await
        .unwrap_err();
    assert_eq!(refused.problem(409).unwrap().title, "Task has ended");
    assert!(
        stub.requests()[0].ends_with("\r\n\r\n{\"reason\":\"again\"}"),
        "{:?}",
        stub.requests()
    );
    for _ in 0..2 {
        let sent = api.request(&GET_TASK, &["a"]).send().await;
        let other = sent
            .and_then(|response| response.read::<crate::shapes::TaskJson>().map(drop))
            .unwrap_err();
        assert!(matches!(other, ClientError::Unreadable { .. }), "{other}");
    }
}

#[tokio::test]
async fn a_stream_goes_on_after_the_last_event_when_the_connection_is_lost() {
    let stub = Stub::with(vec![
        (200, "id: 1.0\ndata: {\"a\":1}\n\n"),
        (0, ""),
        (200, "id: 2.0\ndata: {\"a\":2}\n\n"),
    ])
    .await;
    let mut events = FollowedStream::new(&stub.session.api, &FOLLOW_TASK, &["a"], &[]);
    assert_eq!(events.next().await.unwrap().unwrap().id, "1.0");
    assert_eq!(events.next().await.unwrap(), None);
    assert_eq!(events.next().await.unwrap().unwrap().data, "{\"a\":2}");
    assert!(
        stub.requests()[1].contains("last-event-id: 1.0"),
        "{:?}",
        stub.requests()
    );
}

#[tokio::test]
async fn a_stream_of_a_server_that_never_responded_is_an_error() {
    let stub = Stub::with(vec![(0, "")]).await;
    let mut events = FollowedStream::new(&stub.session.api, &FOLLOW_TASK, &["a"], &[]);
    let error = events.next().await.unwrap_err();
    assert!(
        matches!(error, ClientError::BrokenResponse { .. }),
        "{error}"
    );
    assert!(
        error.to_string().contains("closed the connection"),
        "{error}"
    );
}
