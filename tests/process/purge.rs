//! `provost purge`: it deletes some tasks and never others, and does not disturb a running service.

use std::{
    path::Path,
    process::{Output, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{process::Child, time::timeout};

use crate::{
    cluster,
    damaged::damage,
    harness::{Act, Database, PATIENCE, Provost, Remote, binary, one_step, until},
};

/// Runs `provost purge` with these arguments, in a folder without settings.
async fn purge(url: &str, arguments: &[&str]) -> Output {
    let folder = TempDir::new().unwrap();
    purge_in(folder.path(), url, arguments).await
}

async fn purge_in(folder: &Path, url: &str, arguments: &[&str]) -> Output {
    let purge = binary()
        .arg("purge")
        .args(arguments)
        .args(["--database-url", url])
        .current_dir(folder)
        .kill_on_drop(true)
        .output();
    timeout(PATIENCE, purge).await.unwrap().unwrap()
}

fn said(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the output of a purge that failed.
fn refused(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn url_of(provost: &Provost) -> String {
    format!("sqlite://{}", provost.database().display())
}

async fn workflow(provost: &Provost, name: &str, url: &str) -> Value {
    let steps =
        json!({ "steps": [{ "name": "work", "url": url, "request": { "path": "/work" } }] });
    let put = provost.put(&format!("/v1/workflows/{name}"), &steps).await;
    put.expect(201);
    json!({ "workflow": name })
}

/// One task in each of the states that `purge` may meet, and one of the workflow `ship`.
struct Tasks {
    processed: String,
    shipped: String,
    cancelled: String,
    failed: String,
}

async fn tasks(provost: &Provost, remote: &Remote) -> Tasks {
    let work = one_step(&remote.url(), "/work");
    let processed = provost.submit(&work).await;
    provost.settled(&processed).await;
    let ship = workflow(provost, "ship", &remote.url()).await;
    let shipped = provost.submit(&ship).await;
    provost.settled(&shipped).await;
    let failing = one_step(&remote.url(), "/fail");
    let failed = provost.submit(&failing).await;
    provost.settled(&failed).await;
    let cancelled = provost.submit(&failing).await;
    provost.settled(&cancelled).await;
    let cancel = provost.command(&format!("/v1/tasks/{cancelled}/cancel"));
    cancel.await.expect(200);
    Tasks {
        processed,
        shipped,
        cancelled,
        failed,
    }
}

async fn service() -> (Provost, Remote) {
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/fail" => Act::status(402),
        _ => Act::Ok(json!("done")),
    });
    let remote = remote.await;
    (Provost::start().await, remote)
}

async fn stop(provost: &mut Provost) {
    provost.terminate();
    provost.ended().await;
}

#[tokio::test]
async fn a_dry_run_says_what_would_be_deleted_and_deletes_nothing() {
    let (mut provost, remote) = service().await;
    let of = tasks(&provost, &remote).await;
    let url = url_of(&provost);
    let dry = ["--older-than", "0s", "--dry-run"];
    let beside = said(&purge(&url, &dry).await);
    stop(&mut provost).await;
    let alone = said(&purge(&url, &dry).await);
    assert_eq!(alone, beside, "whether a service runs or not");
    for line in [
        "would delete 3 ended tasks\n",
        "1 processed of workflow ship\n",
        "1 processed without a workflow\n",
        "1 cancelled without a workflow\n",
    ] {
        assert!(alone.contains(line), "{alone}");
    }
    assert_eq!(alone.lines().count(), 4, "{alone}");
    let none = said(&purge(&url, &["--older-than", "1d", "--dry-run"]).await);
    assert_eq!(none, "would delete 0 ended tasks\n");
    provost.restart().await;
    for id in [of.processed, of.shipped, of.cancelled, of.failed] {
        assert!(provost.is_there(&id).await);
    }
}

#[tokio::test]
async fn what_ended_is_deleted_while_the_service_is_down_and_what_may_go_on_is_kept() {
    let (mut provost, remote) = service().await;
    let of = tasks(&provost, &remote).await;
    stop(&mut provost).await;
    let url = url_of(&provost);
    let deleted = said(&purge(&url, &["--older-than", "0s"]).await);
    assert_eq!(deleted, "deleted 3 ended tasks and 0 dead letters\n");
    let again = said(&purge(&url, &["--older-than", "0s"]).await);
    assert_eq!(again, "deleted 0 ended tasks and 0 dead letters\n");
    provost.restart().await;
    for id in [of.processed, of.shipped, of.cancelled] {
        assert!(!provost.is_there(&id).await);
    }
    // The task waits for an operator, who can still continue it.
    let retry = provost.command(&format!("/v1/tasks/{}/steps/run/retry", of.failed));
    assert!([200, 404].contains(&retry.await.status));
    assert!(provost.is_there(&of.failed).await);
}

#[tokio::test]
async fn only_what_is_named_is_deleted() {
    let (provost, remote) = service().await;
    let of = tasks(&provost, &remote).await;
    let url = url_of(&provost);
    let states = [
        "--older-than",
        "0s",
        "--state",
        "cancelled",
        "--state",
        "undone",
    ];
    said(&purge(&url, &states).await);
    assert!(!provost.is_there(&of.cancelled).await);
    assert!(provost.is_there(&of.processed).await && provost.is_there(&of.shipped).await);
    let workflows = ["--older-than", "0s", "--workflow", "ship"];
    said(&purge(&url, &workflows).await);
    assert!(!provost.is_there(&of.shipped).await);
    assert!(provost.is_there(&of.processed).await);
}

#[tokio::test]
async fn a_workflow_that_the_settings_keep_for_longer_is_deleted_only_where_it_is_named() {
    let (provost, remote) = service().await;
    let of = tasks(&provost, &remote).await;
    let url = url_of(&provost);
    let folder = TempDir::new().unwrap();
    let settings = "[retention.workflows.ship]\nkeep = \"365d\"\ncancelled = \"0s\"\n";
    std::fs::write(folder.path().join("provost.toml"), settings).unwrap();
    // The purge uses the settings, which keep most tasks for a month.
    let none = said(&purge_in(folder.path(), &url, &[]).await);
    assert_eq!(none, "deleted 0 ended tasks and 0 dead letters\n");
    said(&purge_in(folder.path(), &url, &["--older-than", "0s"]).await);
    assert!(!provost.is_there(&of.processed).await);
    assert!(provost.is_there(&of.shipped).await);
    let named = ["--older-than", "0s", "--workflow", "ship"];
    said(&purge_in(folder.path(), &url, &named).await);
    assert!(!provost.is_there(&of.shipped).await);
}

#[tokio::test]
async fn what_is_asked_for_wrongly_deletes_nothing_and_says_what_is_right() {
    let (provost, remote) = service().await;
    let of = tasks(&provost, &remote).await;
    let url = url_of(&provost);
    for (arguments, words) in [
        (&["--older-than", "7"][..], "a duration such as"),
        (&["--older-than=-1d"], "a duration such as"),
        (&["--older-than", "1y"], "a duration such as"),
        (
            &["--older-than", "0s", "--state", "error"],
            "processed, undone or cancelled",
        ),
        (&["--older-than", "0s", "--shrink"], "stop the service"),
        (
            &["--older-than", "0s", "--shrink", "--dry-run"],
            "cannot be used with",
        ),
    ] {
        let refusal = refused(&purge(&url, arguments).await);
        assert!(refusal.contains(words), "{arguments:?}: {refusal}");
    }
    let typo = refused(&purge(&url, &["--older-than", "0s", "--workflow", "shop"]).await);
    assert!(typo.contains("workflow \"shop\" does not exist"), "{typo}");
    let missing = provost.database().with_file_name("missing.db");
    let elsewhere = format!("sqlite://{}", missing.display());
    let refusal = refused(&purge(&elsewhere, &["--older-than", "0s"]).await);
    assert!(refusal.contains("the file does not exist"), "{refusal}");
    assert!(!missing.exists(), "and none is made");
    for id in [of.processed, of.shipped, of.cancelled, of.failed] {
        assert!(provost.is_there(&id).await);
    }
}

#[tokio::test]
async fn a_service_of_another_version_is_not_written_under() {
    let (provost, remote) = service().await;
    let of = tasks(&provost, &remote).await;
    let database = Database::open(&provost.database());
    let newer = "UPDATE _sqlx_migrations SET version = 999 WHERE version = (SELECT max(version) FROM _sqlx_migrations)";
    database.execute(newer);
    let refusal = refused(&purge(&url_of(&provost), &["--older-than", "0s"]).await);
    assert!(refusal.contains("another version"), "{refusal}");
    assert!(provost.is_there(&of.processed).await);
    drop(database);
}

/// Runs a purge in a shell that redirects its output.
async fn shell(url: &str, script: &str) -> Output {
    let folder = TempDir::new().unwrap();
    let purge = binary();
    let program = purge.as_std().get_program().to_owned();
    let mut shell = tokio::process::Command::new("bash");
    let script = format!("set -o pipefail; {script}");
    let shell = shell
        .args(["-c", &script])
        .env("PROVOST", program)
        .env("URL", url);
    let output = shell.current_dir(folder.path()).kill_on_drop(true).output();
    timeout(PATIENCE, output).await.unwrap().unwrap()
}

#[tokio::test]
async fn who_does_not_listen_to_the_end_does_not_stop_it() {
    let (mut provost, remote) = service().await;
    let of = tasks(&provost, &remote).await;
    stop(&mut provost).await;
    let url = url_of(&provost);
    let command = "\"$PROVOST\" purge --older-than 0s --database-url \"$URL\"";
    let full = shell(&url, &format!("{command} --dry-run >/dev/full")).await;
    assert_eq!(full.status.code(), Some(1));
    assert!(refused(&full).contains("cannot write to standard output"));
    // The reader of the output closes it before anything is written.
    let gone = shell(&url, &format!("{command} --shrink > >(exec <&-; sleep 0)")).await;
    said(&gone);
    provost.restart().await;
    assert!(!provost.is_there(&of.processed).await);
}

/// Submits `count` tasks, and waits until they have ended.
async fn many(provost: &Provost, remote: &Remote, count: usize) -> Vec<String> {
    let work = one_step(&remote.url(), "/work");
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(provost.submit(&work).await);
    }
    for id in &ids {
        provost.settled(id).await;
    }
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_a_service_under_load_nothing_is_lost_and_nobody_is_turned_away() {
    let (provost, remote) = service().await;
    let old = many(&provost, &remote, 300).await;
    let url = url_of(&provost);
    let purging = tokio::spawn(async move { said(&purge(&url, &["--older-than", "0s"]).await) });
    let mut new = Vec::new();
    let work = one_step(&remote.url(), "/work");
    while !purging.is_finished() {
        new.push(provost.submit(&work).await);
    }
    purging.await.unwrap();
    for id in &old {
        assert!(!provost.is_there(id).await, "{id}");
    }
    // A task that ended during the purge may have been old enough.
    for id in &new {
        let task = provost.get(&format!("/v1/tasks/{id}?wait=30s")).await;
        assert!([200, 404].contains(&task.status), "{id}");
    }
    assert_eq!(
        remote.count(),
        old.len() + new.len(),
        "each was called once"
    );
    provost.get("/readyz").await.expect(200);
    assert!(!provost.log().contains("WARN"), "{}", provost.log());
}

async fn left(provost: &Provost) -> usize {
    let tasks = provost.get("/v1/tasks?limit=500").await.expect(200);
    tasks["items"].as_array().unwrap().len()
}

/// Starts a purge while the service runs, and returns when it has deleted some of its tasks, but not all. It is slow
/// while a service runs.
async fn half_way(provost: &Provost) -> Child {
    let all = left(provost).await;
    let purge = binary()
        .args(["purge", "--older-than", "0s", "--database-url"])
        .arg(url_of(provost))
        .current_dir(provost.database().parent().unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    until(true, || async { left(provost).await < all }).await;
    purge
}

#[tokio::test]
async fn one_that_is_killed_leaves_a_sound_database_and_the_next_goes_on() {
    let (mut provost, remote) = service().await;
    many(&provost, &remote, 200).await;
    let url = url_of(&provost);
    let mut killed = half_way(&provost).await;
    killed.kill().await.unwrap();
    let kept = left(&provost).await;
    provost.get("/readyz").await.expect(200);
    assert_eq!(
        provost.run(&one_step(&remote.url(), "/work")).await["state"],
        "processed"
    );
    stop(&mut provost).await;
    let deleted = said(&purge(&url, &["--older-than", "0s"]).await);
    assert_eq!(
        deleted,
        format!("deleted {} ended tasks and 0 dead letters\n", kept + 1)
    );
    let database = Database::open(&provost.database());
    assert_eq!(database.check(), "ok");
    drop(database);
}

#[tokio::test]
async fn an_interrupted_one_says_so() {
    let (provost, remote) = service().await;
    many(&provost, &remote, 200).await;
    let purge = half_way(&provost).await;
    let process = rustix::process::Pid::from_raw(purge.id().unwrap() as i32).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    let output = timeout(PATIENCE, purge.wait_with_output())
        .await
        .unwrap()
        .unwrap();
    assert!(refused(&output).contains("interrupted"), "{output:?}");
    let deleted = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        deleted.contains(&format!(
            "deleted {} ended tasks",
            200 - left(&provost).await
        )),
        "{deleted}"
    );
}

#[tokio::test]
async fn what_is_damaged_keeps_no_other_and_is_told_by_the_exit_code() {
    let (mut provost, remote) = service().await;
    let mut ids = Vec::new();
    for number in 0..40 {
        let mut work = one_step(&remote.url(), "/work");
        work["input"] = json!({ "mark": format!("mark-{number}-"), "more": "x".repeat(1500) });
        ids.push(provost.submit(&work).await);
    }
    for id in &ids {
        provost.settled(id).await;
    }
    stop(&mut provost).await;
    damage(&provost.database(), b"mark-3-");
    let output = purge(&url_of(&provost), &["--older-than", "0s"]).await;
    let refusal = refused(&output);
    assert!(refusal.contains("cannot be deleted"), "{refusal}");
    let deleted = String::from_utf8_lossy(&output.stdout).into_owned();
    let deleted = deleted
        .split(' ')
        .nth(1)
        .and_then(|count| count.parse::<usize>().ok());
    assert!(
        deleted.is_some_and(|deleted| (25..40).contains(&deleted)),
        "{output:?}"
    );
}

#[tokio::test]
async fn the_file_is_made_small_while_the_service_is_down() {
    let (mut provost, remote) = service().await;
    let mut work = one_step(&remote.url(), "/work");
    work["input"] = json!({ "text": "x".repeat(200 << 10) });
    for _ in 0..20 {
        provost.run(&work).await;
    }
    let failed = provost.run(&one_step(&remote.url(), "/fail")).await;
    stop(&mut provost).await;
    let url = url_of(&provost);
    let shrunk = said(&purge(&url, &["--older-than", "0s", "--shrink"]).await);
    let (deleted, sizes) = shrunk.split_once('\n').unwrap();
    assert_eq!(deleted, "deleted 20 ended tasks and 0 dead letters");
    let bytes = std::fs::metadata(provost.database()).unwrap().len();
    assert!(bytes < 1 << 20, "{bytes}");
    assert!(sizes.contains(&format!("{bytes} bytes")), "{sizes}");
    provost.restart().await;
    assert!(provost.is_there(failed["id"].as_str().unwrap()).await);
    assert_eq!(provost.run(&work).await["state"], "processed");
}

#[tokio::test]
async fn on_postgres_it_works_beside_instances_and_without_them() {
    let url = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    let remote = Remote::quick().await;
    let mut provost = Provost::setup().database_url(&url).start().await;
    let ids = many(&provost, &remote, 30).await;
    let dry = said(&purge(&url, &["--older-than", "0s", "--dry-run"]).await);
    assert!(dry.starts_with("would delete 30 ended tasks\n"), "{dry}");
    let shrink = refused(&purge(&url, &["--older-than", "0s", "--shrink"]).await);
    assert!(shrink.contains("PostgreSQL"), "{shrink}");
    let deleted = said(&purge(&url, &["--older-than", "0s"]).await);
    assert_eq!(deleted, "deleted 30 ended tasks and 0 dead letters\n");
    provost.until_deleted(&ids).await;
    many(&provost, &remote, 2).await;
    stop(&mut provost).await;
    let deleted = said(&purge(&url, &["--older-than", "0s"]).await);
    assert_eq!(deleted, "deleted 2 ended tasks and 0 dead letters\n");
}
