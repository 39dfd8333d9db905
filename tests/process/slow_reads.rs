//! Slow reads on PostgreSQL delay neither the work on tasks nor the database.

use std::{future::IntoFuture, time::Duration};

use serde_json::json;
use sqlx::{Connection, PgConnection};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    cluster,
    harness::{Act, Api, PATIENCE, Provost, Remote},
};

/// The number of read connections of the instance.
const READERS: i64 = 2;

/// A read that takes its largest time while [`Labels`] are slow.
const STALLED: &str = "/v1/tasks?label=customer:acme";

/// The labels of all tasks. They are read only for a filter of a caller, and are not written for tasks without labels.
struct Labels(PgConnection);

impl Labels {
    /// Makes each read of the labels sleep first. A lock would end the reads too soon.
    async fn slow(url: &str) -> Self {
        let mut database = PgConnection::connect(url).await.unwrap();
        for statement in [
            "ALTER TABLE task_labels RENAME TO kept_labels",
            "CREATE VIEW task_labels AS SELECT * FROM kept_labels WHERE (SELECT pg_sleep(600)) IS NOT NULL",
        ] {
            sqlx::query(statement).execute(&mut database).await.unwrap();
        }
        Self(database)
    }

    /// Returns the number of statements in the server that read the labels.
    async fn waiting(&mut self) -> i64 {
        const WAITING: &str = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event = 'PgSleep'";
        let asked = sqlx::query_scalar(WAITING).fetch_one(&mut self.0).await;
        asked.unwrap()
    }

    /// Waits until this number of statements read the labels.
    async fn awaited_by(&mut self, statements: i64) {
        let mut last = -1;
        let so_many = async {
            while last != statements {
                last = self.waiting().await;
                sleep(Duration::from_millis(10)).await;
            }
        };
        let came = timeout(PATIENCE, so_many).await;
        assert!(came.is_ok(), "{last} statements wait, not {statements}");
    }
}

/// Starts callers that use all read connections. They no longer block anything once one of their reads is done.
async fn stall(api: &Api, labels: &mut Labels) -> JoinSet<u16> {
    let mut stalled = JoinSet::new();
    for _ in 0..READERS * 2 {
        let api = api.clone();
        stalled.spawn(async move { api.get(STALLED).await.status });
    }
    labels.awaited_by(READERS).await;
    stalled
}

async fn on_a_new_database() -> (Provost, String) {
    let url = tokio::task::spawn_blocking(cluster::new_database).await;
    let url = url.unwrap();
    let setup = Provost::setup()
        .database_url(&url)
        .set("POSTGRES__MAX_CONNECTIONS", &READERS.to_string());
    (setup.start().await, url)
}

#[tokio::test]
async fn recovery_goes_on_while_callers_hold_every_reader() {
    let remote = Remote::script([Act::Hang, Act::Ok(json!("the answer"))]).await;
    let (provost, url) = on_a_new_database().await;
    let mut labels = Labels::slow(&url).await;
    let mut stalled = stall(&provost, &mut labels).await;
    let step = json!({ "name": "only", "url": remote.url(), "complete_within": "300ms" });
    provost.submit(&json!({ "steps": [step] })).await;
    tokio::select! {
        seen = remote.requests(2) => assert_eq!(seen[1].attempt(), 2),
        _ = async {
            // The callers that found no read connection are refused before.
            for _ in 0..READERS + 1 {
                stalled.join_next().await;
            }
        } => panic!("the step was not recovered before the readers were free again"),
    }
}

#[tokio::test]
async fn a_read_that_takes_too_long_is_ended_in_the_database() {
    let (provost, url) = on_a_new_database().await;
    ends_slow_reads(&provost, &url).await;
}

#[tokio::test]
async fn callers_who_hang_up_and_ask_again_have_no_more_read_at_once_than_there_are_readers() {
    let (provost, url) = on_a_new_database().await;
    let mut labels = Labels::slow(&url).await;
    stall(&provost, &mut labels).await.abort_all();
    let mut again = stall(&provost, &mut labels).await;
    let mut most = 0;
    while again.try_join_next().is_none() {
        most = most.max(labels.waiting().await);
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(most, READERS);
}

/// Checks that the caller of a slow read gets a problem, and that its statement in the server ends.
pub async fn ends_slow_reads(provost: &Api, url: &str) {
    let mut labels = Labels::slow(url).await;
    let waits = tokio::spawn(provost.get(STALLED).into_future());
    // Another caller closes its connection before.
    let hangs_up = tokio::spawn(provost.get(STALLED).into_future());
    labels.awaited_by(2).await;
    hangs_up.abort();
    let answer = waits.await.unwrap();
    assert!(answer.header("retry-after").is_some(), "{answer:?}");
    let problem = answer.expect_problem(503, "store-unavailable");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("exceeded its time limit"), "{detail}");
    labels.awaited_by(0).await;
}
