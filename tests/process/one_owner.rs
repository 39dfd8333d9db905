//! One process owns a database, and only one that understands it.

use serde_json::json;

use crate::harness::{Database, Gate, Provost, Remote, one_step, step};

#[tokio::test]
async fn a_second_process_on_the_same_database_is_refused_and_the_first_goes_on() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let provost = Provost::start().await;
    let id = provost.submit(&one_step(&remote.url(), "/work")).await;
    remote.requests(1).await;
    let (code, said) = Provost::setup()
        .database(&provost.database())
        .refused()
        .await;
    assert!(code.is_some_and(|code| code != 0), "{code:?}");
    assert!(
        said.contains(&provost.database().display().to_string()),
        "{said}"
    );
    assert!(said.contains("in use by another process"), "{said}");
    gate.open();
    let task = provost.settled(&id).await;
    assert_eq!(step(&task, "only")["output"], "done");
    assert_eq!(step(&task, "only")["attempt"], 1);
    assert_eq!(remote.count(), 1);
}

#[tokio::test]
async fn a_database_of_a_newer_schema_is_refused_and_left_alone() {
    let mut provost = Provost::start().await;
    provost.terminate();
    assert!(provost.ended().await.success());
    let mut database = Database::open(&provost.database()).await;
    database
        .execute(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES (9999, 'from the future', 1, x'00', 0)",
        )
        .await;
    database.close().await;
    let before = std::fs::read(provost.database()).unwrap();
    let (code, said) = Provost::setup()
        .database(&provost.database())
        .refused()
        .await;
    assert!(code.is_some_and(|code| code != 0), "{code:?}");
    assert!(
        said.contains(&provost.database().display().to_string()),
        "{said}"
    );
    assert!(said.contains("newer version of provost"), "{said}");
    assert!(said.contains("9999"), "{said}");
    assert!(before == std::fs::read(provost.database()).unwrap());
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let folder = tempfile::TempDir::new().unwrap();
    let letter = folder.path().join("letter.txt");
    std::fs::write(&letter, "dear database, ".repeat(1000)).unwrap();
    let (code, said) = Provost::setup().database(&letter).refused().await;
    assert!(code.is_some_and(|code| code != 0), "{code:?}");
    assert!(said.contains("letter.txt"), "{said}");
    assert_eq!(
        std::fs::read_to_string(&letter).unwrap(),
        "dear database, ".repeat(1000)
    );
}
