//! Upgrades from one version of the schema to the next, while instances run.

use std::{fs, path::PathBuf, time::Instant};

use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, migrate::Migrator, raw_sql};
use tempfile::TempDir;

use crate::{
    cluster,
    harness::{PATIENCE, Provost, Remote, binary, pipeline, sql},
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

/// Creates the schema of the version before this one, or the first one.
async fn previous_schema(url: &str) {
    schema_of(url, (migrations().len() - 1).max(1)).await;
}

/// Creates the schema that the first `first` migrations make.
async fn schema_of(url: &str, first: usize) {
    let folder = TempDir::new().unwrap();
    for file in &migrations()[..first] {
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

/// Inserts a task in the form of the first schema. Its one step is pending, or done.
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
    // All start at the same time, and one of them migrates the schema.
    let (a, b, c) = tokio::join!(setup.clone().start(), setup.clone().start(), setup.start());
    assert_eq!(a.settled(pending).await["state"], "processed");
    let task = b.settled(done).await;
    assert_eq!(task["steps"][0]["output"], "then", "{task:#}");
    assert_eq!(remote.count(), 1);
    c.run(&pipeline(&remote.url(), &["one"])).await;
}

/// Runs the statements in one transaction as a migration does, which locks one table after the other while an instance
/// uses them in its own order.
async fn give_way_until_done(url: &str, statements: String) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let mut transaction = connection.begin().await.unwrap();
        transaction
            .execute("SET LOCAL lock_timeout = '500ms'")
            .await
            .unwrap();
        match transaction
            .execute(raw_sql(AssertSqlSafe(statements.clone())))
            .await
        {
            Ok(_) => return transaction.commit().await.unwrap(),
            Err(error) => {
                let code = error.as_database_error().and_then(|error| error.code());
                assert_eq!(code.as_deref(), Some("55P03"), "{error}");
            }
        }
    }
    panic!("the tables were never free");
}

#[tokio::test]
async fn a_migration_gives_way_to_sessions_that_use_the_tables() {
    let url = new_database().await;
    schema_of(&url, 1).await;
    let tables = "SELECT string_agg(format('%I', relname), ', ') FROM pg_class
         WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> '_sqlx_migrations'";
    let tables = sql(&url, tables);
    // A backup locks the tables in this mode.
    let mut backup = PgConnection::connect(&url).await.unwrap();
    let mut reads = backup.begin().await.unwrap();
    let lock = format!("LOCK TABLE {tables} IN ACCESS SHARE MODE");
    reads.execute(raw_sql(AssertSqlSafe(lock))).await.unwrap();
    let mut provost = Provost::setup().database_url(&url).launch();
    provost.says("while other sessions use its tables").await;
    // Other sessions can use the tables during the wait.
    let remote = Remote::quick().await;
    let pending = "01900000-0000-7000-8000-000000000001";
    sql(&url, &task(pending, &remote.url(), false));
    let migrated = binary().args(["migrate", "--database-url", &url]).output();
    let (migrated, ()) = tokio::join!(migrated, async {
        reads.commit().await.unwrap();
        provost.ready().await;
    });
    let migrated = migrated.unwrap();
    assert!(migrated.status.success(), "{migrated:?}");
    assert_eq!(provost.settled(pending).await["state"], "processed");
}

#[tokio::test]
async fn an_instance_goes_on_after_a_newer_version_migrated_and_cannot_be_started_again() {
    let url = new_database().await;
    let remote = Remote::quick().await;
    let mut provost = Provost::setup().database_url(&url).start().await;
    let before = provost.run(&pipeline(&remote.url(), &["one", "two"])).await;
    // The statements are what a migration may do while older instances run: they add columns with a default.
    let tables = sql(
        &url,
        "SELECT string_agg(format('ALTER TABLE %I ADD COLUMN of_the_future bigint NOT NULL DEFAULT 7', relname), ';')
         FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> '_sqlx_migrations'",
    );
    give_way_until_done(
        &url,
        format!(
            "{tables}; CREATE TABLE later (id bigint);
             INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                 VALUES (9999, 'of the future', true, '', 0)"
        ),
    )
    .await;
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
