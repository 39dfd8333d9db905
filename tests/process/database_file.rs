//! The database file is moved, deleted or replaced while the service runs: the service reports it, accepts nothing into
//! a file that is gone, and never writes to another file.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::harness::{
    Database, Gate, PATIENCE, Provost, Remote, Seen, binary, one_step, step, until, verify,
};

const SECRET: &str = "whsec_bmV3IHNlY3JldCBvZiB0aGUgc2hvcCwgMzIgYnl0ZXM=";

fn beside(database: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", database.display()))
}

async fn is_ready(provost: &Provost) -> bool {
    provost.get("/readyz").await.status == 200
}

/// Checks that the next submission is refused, without a check of the file before it.
async fn assert_refused_at_once(provost: &Provost, remote: &Remote) {
    let refused = provost
        .post("/v1/tasks", &one_step(&remote.url(), "/work"))
        .await;
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    refused.expect_problem(503, "store-unavailable");
    let ready = provost.get("/readyz").await;
    ready.expect_problem(503, "store-unavailable");
    assert_eq!(provost.get("/livez").await.status, 200);
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn the_files_are_for_their_owner_alone_and_the_log_names_those_that_are_not() {
    let mut provost = Provost::start().await;
    let database = provost.database();
    for suffix in ["", "-wal", "-shm", ".lock", ".reserve"] {
        assert_eq!(mode(&beside(&database, suffix)), 0o600, "{suffix}");
    }
    let others = fs::Permissions::from_mode(0o644);
    fs::set_permissions(&database, others).unwrap();
    let copy = beside(&database, ".copy");
    let url = format!("sqlite://{}", database.display());
    let mut backup = binary();
    backup.arg("backup").arg("--to").arg(&copy);
    let output = backup.arg("--database-url").arg(url).output().await;
    assert!(output.unwrap().status.success());
    assert_eq!(mode(&copy), 0o640);
    provost.terminate();
    assert!(provost.ended().await.success());
    provost.restart().await;
    provost
        .says("other users of this machine can read a file of the database")
        .await;
}

#[tokio::test]
async fn nothing_is_accepted_into_a_file_that_was_deleted_and_people_are_told() {
    let (ops, remote) = (Remote::quick().await, Remote::quick().await);
    let config = format!(
        "[[alert_webhooks]]\nname = \"ops\"\nurl = \"{}/ops\"\nsecrets = [\"{SECRET}\"]\n",
        ops.url()
    );
    let provost = Provost::setup().config(&config).start().await;
    provost.run(&one_step(&remote.url(), "/work")).await;
    fs::remove_file(provost.database()).unwrap();
    assert_refused_at_once(&provost, &remote).await;
    let why = provost.get("/readyz").await.body["detail"].to_string();
    assert!(why.contains("provost.db"), "{why}");
    provost.says("provost.db is gone").await;
    let told = ops.requests(1).await.remove(0);
    assert!(verify(&told, SECRET), "{told:?}");
    let body: Value = serde_json::from_str(&told.raw).unwrap();
    assert_eq!(body["type"], "alert.raised");
    assert_eq!(body["data"]["alert"]["kind"], "store.missing");
    let metrics = provost.get("/metrics").await.body.to_string();
    let shown = r#"provost_store_fault{fault=\"missing\"} 1"#;
    assert!(metrics.contains(shown), "{metrics}");
    assert!(!provost.database().exists(), "it made a new one");
}

#[tokio::test]
async fn an_idle_service_notices_within_seconds_that_its_file_is_gone() {
    let provost = Provost::start().await;
    // A request would make the service check the file, so the test sends none.
    fs::remove_file(provost.database()).unwrap();
    provost.says("provost.db is gone").await;
}

#[tokio::test]
async fn a_file_that_comes_back_is_gone_on_with() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let mut provost = Provost::start().await;
    let id = provost.submit(&one_step(&remote.url(), "/work")).await;
    remote.requests(1).await;
    let aside = beside(&provost.database(), ".aside");
    fs::rename(provost.database(), &aside).unwrap();
    assert_refused_at_once(&provost, &remote).await;
    // The service responds while nothing can be recorded, and its response is kept until it can be.
    gate.open();
    fs::rename(&aside, provost.database()).unwrap();
    until(true, || is_ready(&provost)).await;
    let task = provost.settled(&id).await;
    assert_eq!(step(&task, "only")["output"], "done");
    assert_eq!(step(&task, "only")["attempt"], 1, "{task:#}");
    let later = provost.submit(&one_step(&remote.url(), "/work")).await;
    provost.kill().await;
    provost.restart().await;
    assert_eq!(provost.settled(&id).await["state"], "processed");
    assert_eq!(provost.settled(&later).await["state"], "processed");
}

#[tokio::test]
async fn another_file_in_its_place_is_never_written_to_and_used_after_a_restart() {
    let remote = Remote::quick().await;
    let mut other = Provost::start().await;
    let of_other = other.run(&one_step(&remote.url(), "/work")).await;
    other.terminate();
    assert!(other.ended().await.success());
    // The checkpoint writes everything into the one file that is copied below.
    let file = Database::open(&other.database());
    file.execute("PRAGMA wal_checkpoint(TRUNCATE)");
    drop(file);

    let mut provost = Provost::start().await;
    provost.run(&one_step(&remote.url(), "/work")).await;
    let database = provost.database();
    // An operator restores a backup, and believes that the service is stopped.
    let restored = beside(&database, ".restored");
    fs::copy(other.database(), &restored).unwrap();
    fs::rename(&restored, &database).unwrap();
    let before = fs::read(&database).unwrap();
    assert_refused_at_once(&provost, &remote).await;
    provost.says("is not the file that provost opened").await;
    for path in ["/v1/tasks", "/v1/alerts"] {
        provost.get(path).await;
    }
    assert!(fs::read(&database).unwrap() == before, "it was written to");
    // At its end, SQLite writes back and removes the files that it finds by name, and these must not be touched either.
    let wal = beside(&database, "-wal");
    fs::remove_file(&wal).unwrap();
    fs::write(&wal, "of the other").unwrap();
    provost.terminate();
    provost.ended().await;
    assert!(fs::read(&database).unwrap() == before, "it was written to");
    assert_eq!(fs::read_to_string(&wal).unwrap(), "of the other");
    fs::remove_file(&wal).unwrap();
    provost.restart().await;
    let id = of_other["id"].as_str().unwrap();
    assert_eq!(provost.task(id).await["state"], "processed");
    assert!(is_ready(&provost).await);
}

#[tokio::test]
async fn nothing_is_lost_with_files_that_belong_to_the_database_and_were_deleted() {
    let remote = Remote::quick().await;
    for (suffix, end) in [("-wal", "kill"), ("-wal", "stop"), ("-shm", "stop")] {
        let mut provost = Provost::setup().set("SHUTDOWN_GRACE", "1s").start().await;
        let mut accepted = Vec::new();
        for _ in 0..20 {
            accepted.push(provost.submit(&one_step(&remote.url(), "/work")).await);
        }
        fs::remove_file(beside(&provost.database(), suffix)).unwrap();
        if end == "kill" {
            assert_refused_at_once(&provost, &remote).await;
            let why = provost.get("/readyz").await.body["detail"].to_string();
            assert!(why.contains("restart the service"), "{why}");
            assert!(!why.contains("backup"), "{why}");
            provost
                .says("all accepted data is in the database file itself")
                .await;
            provost.kill().await;
        } else {
            // The file was not checked before the stop.
            provost.terminate();
            assert!(provost.ended().await.success());
        }
        provost.restart().await;
        for id in &accepted {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
    }
}

#[tokio::test]
async fn nothing_is_accepted_into_a_wal_that_was_cut() {
    let remote = Remote::quick().await;
    for part in [0, 2] {
        let (ops, mut provost) = (Remote::quick().await, Provost::setup());
        let config = format!(
            "[[alert_webhooks]]\nname = \"ops\"\nurl = \"{}/ops\"\n",
            ops.url()
        );
        provost = provost.config(&config);
        let provost = &mut provost.start().await;
        for _ in 0..20 {
            provost.run(&one_step(&remote.url(), "/work")).await;
        }
        let (database, wal) = (provost.database(), beside(&provost.database(), "-wal"));
        let file = fs::OpenOptions::new().write(true).open(&wal).unwrap();
        let length = file.metadata().unwrap().len();
        let left = length.checked_div(part).unwrap_or(0);
        file.set_len(left).unwrap();
        let before = fs::read(&database).unwrap();
        for _ in 0..5 {
            assert_refused_at_once(provost, &remote).await;
        }
        let why = provost.get("/readyz").await.body["detail"].to_string();
        for word in ["provost.db-wal is shorter", "restore a backup"] {
            assert!(why.contains(word), "{why}");
        }
        // A read may have used the missing part before. Then it has an alert of its own, which may be the first.
        let kind = |told: &Seen| {
            let body: Value = serde_json::from_str(&told.raw).unwrap();
            body["data"]["alert"]["kind"].clone()
        };
        let mut told = ops.requests(1).await;
        while !told.iter().any(|told| kind(told) == "store.cut") {
            told = ops.requests(told.len() + 1).await;
        }
        let metrics = provost.get("/metrics").await.body.to_string();
        let shown = r#"provost_store_fault{fault=\"cut\"} 1"#;
        assert!(metrics.contains(shown), "{metrics}");
        provost.terminate();
        provost.ended().await;
        assert_eq!(fs::metadata(&wal).unwrap().len(), left, "it was written to");
        assert!(fs::read(&database).unwrap() == before, "it was written to");
    }
}

#[tokio::test]
async fn a_database_that_was_deleted_is_saved_by_the_process_that_has_it_open() {
    let remote = Remote::quick().await;
    let mut provost = Provost::setup().set("SHUTDOWN_GRACE", "1s").start().await;
    let mut accepted = Vec::new();
    for _ in 0..20 {
        accepted.push(provost.submit(&one_step(&remote.url(), "/work")).await);
    }
    let database = provost.database();
    fs::remove_file(&database).unwrap();
    assert_refused_at_once(&provost, &remote).await;
    provost.says("is in a copy of the database").await;
    let why = provost.get("/readyz").await.body["detail"].to_string();
    assert!(why.contains("provost.db.rescued"), "{why}");
    provost.terminate();
    provost.ended().await;
    let (code, said) = Provost::setup().database(&database).refused().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("provost.db.rescued"), "{said}");
    assert!(!database.exists(), "it made a new one");
    fs::rename(beside(&database, ".rescued"), &database).unwrap();
    provost.restart().await;
    for id in &accepted {
        assert_eq!(provost.settled(id).await["state"], "processed");
    }
}

#[tokio::test]
async fn a_database_that_is_deleted_right_before_the_stop_is_saved_too() {
    let remote = Remote::quick().await;
    let mut provost = Provost::setup().set("SHUTDOWN_GRACE", "1s").start().await;
    let id = provost.submit(&one_step(&remote.url(), "/work")).await;
    let database = provost.database();
    fs::remove_file(&database).unwrap();
    provost.terminate();
    provost.ended().await;
    fs::rename(beside(&database, ".rescued"), &database).unwrap();
    provost.restart().await;
    assert_eq!(provost.settled(&id).await["state"], "processed");
}

/// The copy takes so long that the stop comes during it.
#[tokio::test]
async fn a_stop_while_a_deleted_database_is_saved_lets_that_end() {
    let remote = Remote::quick().await;
    let mut provost = Provost::setup().set("SHUTDOWN_GRACE", "1s").start().await;
    let mut submission = one_step(&remote.url(), "/work");
    submission["input"] = json!("x".repeat(900_000));
    let mut ids = Vec::new();
    for _ in 0..60 {
        ids.push(provost.submit(&submission).await);
    }
    let database = provost.database();
    fs::remove_file(&database).unwrap();
    let (partial, whole) = (
        beside(&database, ".rescued.partial"),
        beside(&database, ".rescued"),
    );
    let begun = async {
        while !partial.exists() && !whole.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, begun).await.unwrap();
    provost.terminate();
    provost.ended().await;
    fs::rename(whole, &database).unwrap();
    provost.restart().await;
    for id in &ids {
        assert_eq!(provost.settled(id).await["state"], "processed");
    }
}

#[tokio::test]
async fn no_new_database_is_made_beside_what_is_left_of_another() {
    let folder = tempfile::TempDir::new().unwrap();
    let database = folder.path().join("provost.db");
    for (left, of) in [("-wal", None), (".reserve", None), ("-wal", Some(""))] {
        let left = beside(&database, left);
        fs::write(&left, "left").unwrap();
        if let Some(of) = of {
            fs::write(&database, of).unwrap();
        }
        let (code, said) = Provost::setup().database(&database).refused().await;
        assert_eq!(code, Some(1), "{said}");
        for word in [
            left.to_str().unwrap(),
            "Restore a backup",
            "start with an empty database",
        ] {
            assert!(said.contains(word), "{said}");
        }
        assert_eq!(fs::read_to_string(&left).unwrap(), "left");
        let length = fs::metadata(&database).map(|found| found.len()).ok();
        assert_eq!(length, of.map(|_| 0), "it made a new one");
        fs::remove_file(&left).unwrap();
    }
    // A first start that was killed has left this file.
    fs::write(beside(&database, ".lock"), "process 1").unwrap();
    let provost = Provost::setup().database(&database).start().await;
    assert!(is_ready(&provost).await);
}
