//! A page of the database cannot be read: one alert says what to do, and the service continues.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::harness::{Database, Provost, Remote, one_step};

const PAGE: usize = 8192;
/// The first byte of a page with rows of a table without rowid.
const LEAF: u8 = 0x0a;

/// Damages the pages with rows that contain this text, in a database that no process uses.
pub fn damage(path: &Path, mark: &[u8]) {
    let database = Database::open(path);
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)");
    drop(database);
    let mut bytes = fs::read(path).unwrap();
    for page in bytes.chunks_mut(PAGE) {
        if page[0] == LEAF && page.windows(mark.len()).any(|found| found == mark) {
            page.fill(0xa5);
        }
    }
    fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn a_page_that_cannot_be_read_is_told_of_once_and_the_rest_goes_on() {
    let (ops, remote) = (Remote::quick().await, Remote::quick().await);
    let config = format!(
        "[[alert_webhooks]]\nname = \"ops\"\nurl = \"{}/ops\"\n",
        ops.url()
    );
    let mut provost = Provost::setup().config(&config).start().await;
    let mut ids = Vec::new();
    // The submissions are so large that the pages of the first one are not those to which the next submissions are
    // written.
    for number in 0..40 {
        let mut submission = one_step(&remote.url(), "/work");
        submission["input"] =
            json!({ "mark": format!("mark-{number}-"), "more": "x".repeat(1500) });
        ids.push(provost.submit(&submission).await);
    }
    for id in &ids {
        provost.settled(id).await;
    }
    provost.terminate();
    assert!(provost.ended().await.success());
    damage(&provost.database(), b"mark-3-");

    provost.restart().await;
    provost.get("/readyz").await.expect(200);
    let mut unread = 0;
    for id in ids.iter().take(10).chain(&ids[..10]) {
        let read = provost.get(&format!("/v1/tasks/{id}")).await;
        if read.status != 200 {
            read.expect_problem(500, "unreadable-record");
            unread += 1;
        }
    }
    assert!(unread >= 2, "no task was in the damaged page");
    let ready = provost.get("/readyz").await;
    let why = ready.expect_problem(503, "store-unavailable")["detail"].to_string();
    for remedy in ["cannot be read", "restore a backup", ".recover"] {
        assert!(why.contains(remedy), "{why}");
    }
    let metrics = provost.get("/metrics").await.body.to_string();
    let shown = r#"provost_store_fault{fault=\"unreadable\"} 1"#;
    assert!(metrics.contains(shown), "{metrics}");
    let task = provost.run(&one_step(&remote.url(), "/work")).await;
    assert_eq!(task["state"], "processed");
    provost.task(&ids[39]).await;
    let told = ops.requests(1).await.remove(0);
    let body: Value = serde_json::from_str(&told.raw).unwrap();
    assert_eq!(body["data"]["alert"]["kind"], "store.unreadable");
    assert_eq!(ops.count(), 1, "one alert, however often it is met");
    let said = provost.log().matches("the store is not ready").count();
    assert_eq!(said, 1);
}

#[tokio::test]
async fn a_start_that_ends_on_a_damaged_file_says_what_to_do() {
    let folder = tempfile::TempDir::new().unwrap();
    let database = folder.path().join("provost.db");
    fs::write(&database, vec![0xa5; 2 * PAGE]).unwrap();
    let (code, said) = Provost::setup().database(&database).refused().await;
    assert_eq!(code, Some(1), "{said}");
    for remedy in [
        "is damaged",
        "restore a backup",
        ".recover",
        "docs/deploy.md",
    ] {
        assert!(said.contains(remedy), "{said}");
    }
}
