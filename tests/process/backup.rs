//! `provost backup`: a copy that is taken under load is as good as the database at that time.

use std::{
    collections::{BTreeSet, HashSet},
    path::Path,
    process::{Output, Stdio},
    sync::{Arc, Mutex},
};

use serde_json::json;
use tempfile::TempDir;
use tokio::{task::JoinSet, time::timeout};

use crate::harness::{
    Act, Api, Database, Gate, PATIENCE, Provost, Remote, binary, one_step, pipeline, step,
};

const SUBMITTERS: usize = 6;
const STEPS: [&str; 3] = ["reserve", "charge", "ship"];

async fn backup(database: &Path, to: &Path) -> Output {
    let backup = binary()
        .arg("backup")
        .arg("--to")
        .arg(to)
        .arg("--database-url")
        .arg(format!("sqlite://{}", database.display()))
        .current_dir(to.parent().unwrap())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    timeout(PATIENCE, backup).await.unwrap().unwrap()
}

/// Returns the output of a backup that has written the copy.
pub async fn copied(database: &Path, to: &Path) -> String {
    let output = backup(database, to).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Submits one task after another until the service has ended.
async fn submit_without_end(api: Api, url: String, accepted: Arc<Mutex<Vec<String>>>) {
    let submission = pipeline(&url, &STEPS);
    while let Ok(answer) = api.post("/v1/tasks", &submission).attempt().await {
        let id = answer.expect(202)["id"].as_str().unwrap().to_owned();
        accepted.lock().unwrap().push(id.clone());
        let end = format!("/v1/tasks/{id}?wait=30s");
        let _ = api.get(&end).attempt().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_taken_under_load_holds_all_that_was_accepted_and_goes_on_from_there() {
    let gate = Gate::closed();
    let held = gate.clone();
    let remote = Remote::with(move |seen| match seen.path.as_str() {
        "/hold" => held.then(json!("held")),
        path => Act::Ok(json!({ "path": path })),
    })
    .await;
    let mut provost = Provost::start().await;
    // This task is running in the copy, whatever the state of the others is.
    let slow = provost.submit(&one_step(&remote.url(), "/hold")).await;
    let accepted = Arc::new(Mutex::new(vec![slow.clone()]));
    let mut load = JoinSet::new();
    for _ in 0..SUBMITTERS {
        let (api, url) = (provost.api().clone(), remote.url());
        load.spawn(submit_without_end(api, url, Arc::clone(&accepted)));
    }
    remote.requests(200).await;
    let before = accepted.lock().unwrap().clone();
    let folder = TempDir::new().unwrap();
    let copy = folder.path().join("copy.db");
    let said = copied(&provost.database(), &copy).await;
    let bytes = std::fs::metadata(&copy).unwrap().len();
    assert!(said.contains(&format!(" {bytes} bytes")), "{said}");
    // The service is not affected: its load continues.
    remote.requests(remote.count() + 50).await;
    provost.kill().await;
    load.join_all().await;
    let made = remote.count();

    let database = Database::copy_of(&copy);
    let (steps, tasks) = (database.steps(), database.tasks());
    let tasks: BTreeSet<&str> = tasks.iter().map(String::as_str).collect();
    assert!(said.contains(&format!(" {} tasks,", tasks.len())), "{said}");
    let recorded: HashSet<(&str, &str)> = steps
        .iter()
        .filter(|step| step.state == "processed")
        .map(|step| (step.task.as_str(), step.name.as_str()))
        .collect();
    assert!(!recorded.is_empty());
    assert!(!recorded.contains(&(slow.as_str(), "only")));

    gate.open();
    let restored = Provost::setup().database(&copy).start().await;
    for id in &before {
        assert!(tasks.contains(id.as_str()), "{id} was accepted before");
    }
    for id in &tasks {
        let task = restored.settled(id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
    }
    assert_eq!(step(&restored.task(&slow).await, "only")["output"], "held");
    let ledger = remote.ledger();
    let again = ledger[made..].iter().map(|seen| {
        let call = (seen.header("provost-task"), seen.header("provost-step"));
        assert!(!recorded.contains(&call), "called again: {seen:?}");
    });
    assert!(again.count() > 0, "the copy had nothing left to do");
}

#[tokio::test]
async fn a_database_that_was_left_by_a_crash_is_copied_whole_and_never_over_another() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let mut provost = Provost::start().await;
    let id = provost.submit(&one_step(&remote.url(), "/work")).await;
    remote.requests(1).await;
    provost.kill().await;
    let folder = TempDir::new().unwrap();
    let copy = folder.path().join("copy.db");
    copied(&provost.database(), &copy).await;
    let written = std::fs::read(&copy).unwrap();

    let refused = backup(&provost.database(), &copy).await;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1));
    assert!(said.contains("overwrites nothing"), "{said}");
    assert_eq!(std::fs::read(&copy).unwrap(), written);

    gate.open();
    let restored = Provost::setup().database(&copy).start().await;
    assert_eq!(restored.settled(&id).await["state"], "processed");
    // The original is not affected.
    provost.restart().await;
    assert_eq!(provost.settled(&id).await["state"], "processed");
}
