//! Nothing reads the log: the pipe is full, and the service continues.

use std::sync::Arc;

use futures::future::join_all;
use serde_json::Value;
use tokio::sync::Notify;

use crate::harness::{PATIENCE, Provost, Remote, pipeline};

const DROPPED: &str = "provost_log_lines_dropped_total";

#[tokio::test]
async fn a_log_that_nobody_reads_stops_nothing_and_says_later_what_it_lost() {
    let read_again = Arc::new(Notify::new());
    let remote = Remote::quick().await;
    let setup = Provost::setup().set("LOG", "trace").unread(&read_again);
    let mut provost = setup.start().await;
    let until_lines_are_lost = async {
        while provost.metric(DROPPED).await == 0.0 {
            let submission = pipeline(&remote.url(), &["a", "b"]);
            let ids = join_all((0..32).map(|_| provost.submit(&submission))).await;
            for id in ids {
                assert_eq!(provost.settled(&id).await["state"], "processed");
            }
        }
    };
    let lost = tokio::time::timeout(PATIENCE, until_lines_are_lost).await;
    lost.expect("the service stands still, or its log has room for everything");
    let id = provost.submit(&pipeline(&remote.url(), &["a"])).await;
    assert_eq!(provost.settled(&id).await["state"], "processed");
    assert_eq!(provost.get("/livez").await.status, 200);

    read_again.notify_one();
    provost.says("log lines were dropped").await;
    provost.terminate();
    assert_eq!(provost.ended().await.code(), Some(0));
    let log = provost.log();
    for line in log.lines() {
        let event: Result<Value, _> = serde_json::from_str(line);
        assert!(event.is_ok(), "a line is cut: {line}");
    }
}
