//! The requests that are sent, seen by a server of prepared responses.

use std::time::Duration;

use super::stub::Stub;
use crate::{
    find_task::{self, Purpose},
    operations::{FOLLOW_TASK, GET_TASK, LIST_TASKS, RETRY_STEP},
    outcome::{ClientError, Outcome},
    stream::FollowedStream,
    wait,
};

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
async fn a_wait_ends_when_its_time_is_over() {
    let stub = Stub::with(vec![(200, r#"{"id":"a","state":"paused"}"#)]).await;
    let waited = wait::until_rest(&stub.session.api, "a", Some(Duration::ZERO)).await;
    assert_eq!(waited.unwrap().1, Outcome::Running);
}

#[tokio::test]
async fn a_key_is_looked_up_and_an_id_is_not() {
    let stub = Stub::with(vec![(
        200,
        r#"{"items":[{"id":"0197","state":"error"}],"next_cursor":null}"#,
    )])
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
    assert_eq!(
        stub.lines(),
        ["GET /v1/tasks?key=order-1&limit=20 HTTP/1.1"]
    );
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
    assert!(matches!(
        events.next().await,
        Err(ClientError::NoResponse { .. })
    ));
}
