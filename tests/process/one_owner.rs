//! Only one process owns a database, and only one that understands its schema.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Database, Gate, PATIENCE, Provost, Remote, one_step, step};

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

/// Starts a second process on the file by this name, which must refuse to start.
async fn assert_refused(name: &Path, because: &str) {
    let (code, said) = Provost::setup().database(name).refused().await;
    assert!(code.is_some_and(|code| code != 0), "{name:?}: {code:?}");
    assert!(said.contains(&name.display().to_string()), "{said}");
    assert!(said.contains(because), "{said}");
}

#[tokio::test]
async fn no_other_name_of_the_file_lets_a_second_process_in() {
    let remote = Remote::quick().await;
    let mut provost = Provost::start().await;
    let folder = TempDir::new().unwrap();
    let name = |name: &str| folder.path().join(name);
    let database = provost.database();
    symlink(&database, name("link.db")).unwrap();
    symlink("link.db", name("link-to-link.db")).unwrap();
    symlink(database.parent().unwrap(), name("folder")).unwrap();
    for other in ["link.db", "link-to-link.db", "folder/provost.db"] {
        assert_refused(&name(other), "in use by another process").await;
    }
    let hard = database.with_file_name("hard.db");
    fs::hard_link(&database, &hard).unwrap();
    assert_refused(&hard, "in use by another process").await;
    let id = provost.submit(&one_step(&remote.url(), "/work")).await;
    assert_eq!(provost.settled(&id).await["state"], "processed");

    // No process has the file open now. Its newest changes can be found by one of its names only.
    provost.kill().await;
    for two_names in [&hard, &database] {
        assert_refused(two_names, "hard links").await;
    }
    fs::remove_file(&hard).unwrap();
    provost
        .restart_with(|setup| setup.database(&name("link-to-link.db")))
        .await;
    assert_eq!(provost.settled(&id).await["state"], "processed");
    assert_refused(&database, "in use by another process").await;
}

/// A bind mount, which is unmounted when dropped.
struct Mount<'p>(&'p Path);

impl<'p> Mount<'p> {
    fn bind(what: &Path, at: &'p Path) -> Self {
        let mut mount = Command::new("mount");
        let mounted = mount.arg("--bind").arg(what).arg(at).output();
        assert!(
            mounted.as_ref().is_ok_and(|output| output.status.success()),
            "this test needs to mount, and so to run as root with CAP_SYS_ADMIN; elsewhere run it as \
             `unshare -rm cargo nextest run one_owner`. mount said: {mounted:?}"
        );
        Self(at)
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[tokio::test]
async fn a_mount_lets_no_second_process_in_and_one_of_the_file_alone_is_refused() {
    let remote = Remote::quick().await;
    let mut provost = Provost::start().await;
    let id = provost.submit(&one_step(&remote.url(), "/work")).await;
    let folders = TempDir::new().unwrap();
    let (folder, file) = (folders.path().join("data"), folders.path().join("p.db"));
    fs::create_dir(&folder).unwrap();
    fs::write(&file, "").unwrap();
    let database = provost.database();
    let _folder = Mount::bind(database.parent().unwrap(), &folder);
    let _file = Mount::bind(&database, &file);
    for other in [&folder.join("provost.db"), &file] {
        assert_refused(other, "in use by another process").await;
    }
    provost.kill().await;
    // The newest changes are in a file beside the other name.
    assert_refused(&file, "mount the folder").await;
    provost
        .restart_with(|setup| setup.database(&folder.join("provost.db")))
        .await;
    assert_eq!(provost.settled(&id).await["state"], "processed");
}

#[tokio::test]
async fn of_two_that_start_at_once_on_a_file_that_is_not_there_yet_one_runs() {
    let folder = TempDir::new().unwrap();
    symlink("provost.db", folder.path().join("link.db")).unwrap();
    for name in ["provost.db", "link.db"] {
        let path = folder.path().join(name);
        let mut starts = [0, 1, 2].map(|n| {
            let path = match n {
                1 => folder.path().join("link.db"),
                _ => path.clone(),
            };
            Provost::setup().database(&path).launch()
        });
        let ended = Instant::now() + PATIENCE;
        loop {
            let mut gone = 0;
            for start in &mut starts {
                gone += usize::from(start.has_ended());
            }
            if gone == 2 {
                break;
            }
            assert!(gone < 3 && Instant::now() < ended, "{gone} have ended");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for start in &mut starts {
            if !start.has_ended() {
                start.ready().await;
                assert_eq!(start.get("/readyz").await.status, 200);
                start.kill().await;
            }
        }
        for suffix in ["", "-wal", "-shm", ".reserve"] {
            let _ = fs::remove_file(folder.path().join(format!("provost.db{suffix}")));
        }
    }
}

#[tokio::test]
async fn a_database_of_a_newer_schema_is_refused_and_left_alone() {
    let mut provost = Provost::start().await;
    provost.terminate();
    assert!(provost.ended().await.success());
    let database = Database::open(&provost.database());
    database.execute(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES (9999, 'from the future', 1, x'00', 0)",
    );
    drop(database);
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
