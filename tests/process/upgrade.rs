//! From one version of the schema to the next, while others run.

use std::{fs, path::PathBuf};

use serde_json::json;
use sqlx::{Connection, PgConnection, migrate::Migrator};
use tempfile::TempDir;

use crate::{
    cluster,
    harness::{Provost, Remote, pipeline, sql},
};

async fn new_database() -> String {
    tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap()
}

fn migrations() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/postgres");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    files
}

/// The schema as the version before this one left it; at least there is one.
async fn previous_schema(url: &str) {
    let all = migrations();
    let folder = TempDir::new().unwrap();
    for file in &all[..(all.len() - 1).max(1)] {
        fs::copy(file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    let mut connection = PgConnection::connect(url).await.unwrap();
    Migrator::new(folder.path())
        .await
        .unwrap()
        .run(&mut connection)
        .await
        .unwrap();
}

/// A task in the words of the first schema, whose one step is pending, or done.
fn task(id: &str, remote: &str, done: bool) -> String {
    let (state, step, ended, due, output) = match done {
        true => ("processed", "processed", "2", "NULL", "'\"then\"'"),
        false => ("pending", "pending", "NULL", "1", "NULL"),
    };
    let steps = json!([{ "name": "only", "url": remote, "request": { "path": "/only" } }]);
    format!(
        r#"INSERT INTO tasks (id, labels, priority, created_at, version, state, paused, ended_at)
               VALUES ('{id}', '{{}}', 0, 1, 1, '{state}', false, {ended});
           INSERT INTO task_details (task_id, steps, input) VALUES ('{id}', '{steps}', 'null');
           INSERT INTO steps (task_id, idx, name, agent, priority, state, attempt, failure_count, extended,
                              ready_at, due_at, queued, started_at, ended_at, output)
               VALUES ('{id}', 0, 'only', '{remote}', 0, '{step}', 0, 0, 0, {due}, {due}, 1, {ended}, {ended}, {output});
           INSERT INTO history (task_id, version, at, events)
               VALUES ('{id}', 1, 1, '[{{"type":"task.accepted","by":"submitter","to":"pending"}}]');"#
    )
}

#[tokio::test]
async fn what_the_previous_version_left_goes_on_in_this_one() {
    let url = new_database().await;
    let remote = Remote::quick().await;
    previous_schema(&url).await;
    let (pending, done) = (
        "01900000-0000-7000-8000-000000000001",
        "01900000-0000-7000-8000-000000000002",
    );
    sql(&url, &task(pending, &remote.url(), false));
    sql(&url, &task(done, &remote.url(), true));
    let setup = Provost::setup()
        .database_url(&url)
        .set("RETENTION__KEEP", "forever");
    // All at once: one of them brings the schema up to date.
    let (a, b, c) = tokio::join!(setup.clone().start(), setup.clone().start(), setup.start());
    assert_eq!(a.settled(pending).await["state"], "processed");
    let task = b.settled(done).await;
    assert_eq!(task["steps"][0]["output"], "then", "{task:#}");
    assert_eq!(remote.count(), 1);
    c.run(&pipeline(&remote.url(), &["one"])).await;
}

#[tokio::test]
async fn an_instance_goes_on_after_a_newer_version_migrated_and_cannot_be_started_again() {
    let url = new_database().await;
    let remote = Remote::quick().await;
    let mut provost = Provost::setup().database_url(&url).start().await;
    let before = provost.run(&pipeline(&remote.url(), &["one", "two"])).await;
    // What a migration may do while older instances run: add what has a default.
    let tables = sql(
        &url,
        "SELECT string_agg(format('ALTER TABLE %I ADD COLUMN of_the_future bigint NOT NULL DEFAULT 7', relname), ';')
         FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> '_sqlx_migrations'",
    );
    sql(
        &url,
        &format!(
            "BEGIN; {tables}; CREATE TABLE later (id bigint);
             INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                 VALUES (9999, 'of the future', true, '', 0); COMMIT"
        ),
    );
    let after = provost.run(&pipeline(&remote.url(), &["one", "two"])).await;
    assert_eq!(after["state"], "processed", "{after:#}");
    let old = provost.task(before["id"].as_str().unwrap()).await;
    assert_eq!(old["state"], "processed");
    provost.register("later", &remote.url(), 1).await;
    assert_eq!(provost.get("/readyz").await.status, 200);

    provost.terminate();
    assert!(provost.ended().await.success());
    for migrate in ["true", "false"] {
        let setup = Provost::setup()
            .database_url(&url)
            .set("POSTGRES__MIGRATE", migrate);
        let (code, said) = setup.refused().await;
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.contains("newer version of provost") && said.contains("9999"),
            "{said}"
        );
    }
}
