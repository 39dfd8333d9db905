//! The database file gets smaller when ended tasks are deleted, without a pause of the service.

use std::{fs, path::Path, time::Duration};

use futures::future::join_all;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::harness::{
    Act, Database, Provost, Remote, Setup, SmallDisk, binary, id_of, one_step, until,
};

const MIB: u64 = 1 << 20;
const PAGE: usize = 8192;
/// The size in bytes above which a file with more free space returns it.
const BEGINS_ABOVE: i64 = 36 << 20;
const BEGINS: &str = "returning free space of the database file to the disk";
const ENDS: &str = "returned free space of the database file to the disk";

/// Returns a submission of some hundred KiB: many of them make a large file.
fn large(remote: &Remote, card: &str) -> Value {
    let mut submission = one_step(&remote.url(), "/work");
    submission["input"] = json!({ "card": card, "text": "x".repeat(250 << 10) });
    submission
}

/// Returns a service that refuses some calls. Their tasks wait for an operator, and are never deleted.
async fn remote() -> Remote {
    Remote::with(|seen| match seen.body["card"].as_str() {
        Some("declined") => Act::status(402),
        _ => Act::Ok(json!("done")),
    })
    .await
}

/// Runs `count` tasks, of which one in twenty fails. Returns the failed ones.
async fn fill(provost: &Provost, remote: &Remote, count: usize) -> Vec<String> {
    let (well, failing) = (large(remote, "good"), large(remote, "declined"));
    let mut failed = Vec::new();
    for _ in 0..count / 20 {
        failed.push(id_of(&provost.run(&failing).await));
        join_all((0..19).map(|_| provost.run(&well))).await;
    }
    failed
}

/// Runs `count` tasks, ten at once, each until it is deleted.
async fn pass(provost: &Provost, remote: &Remote, count: usize) {
    let submission = large(remote, "good");
    let mut left = count;
    while left > 0 {
        let turn = left.min(10);
        let passed = (0..turn).map(|_| async {
            let id = provost.submit(&submission).await;
            let path = format!("/v1/tasks/{id}");
            until(404, || async { provost.get(&path).await.status }).await;
        });
        join_all(passed).await;
        left -= turn;
    }
}

fn at_once(setup: Setup) -> Setup {
    let setup = setup.set("RETENTION__KEEP", "0s");
    setup.set("RETENTION__INTERVAL", "10ms")
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

async fn until_smaller(path: &Path, than: u64) {
    until(true, || async { length(path) < than }).await;
}

/// Stops the service, and writes `-wal` back: the file is then as long as its content.
async fn stop(provost: &mut Provost) {
    provost.terminate();
    assert!(provost.ended().await.success());
    let database = Database::open(&provost.database());
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)");
    drop(database);
}

#[tokio::test]
async fn the_file_gets_smaller_after_a_purge_whatever_kills_the_service_meanwhile() {
    let seed = std::env::var("PROVOST_TEST_SEED")
        .map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("PROVOST_TEST_SEED={seed} replays the kill points");
    let mut random = StdRng::seed_from_u64(seed);
    let remote = remote().await;
    let mut provost = Provost::start().await;
    let failed = fill(&provost, &remote, 220).await;
    assert!(!provost.log().contains(BEGINS), "{}", provost.log());
    stop(&mut provost).await;
    let path = provost.database();
    let before = length(&path);
    assert!(before > 50 * MIB, "{before}");
    // All tasks are deleted at once. In portions, the last deletion might free too little space to return it.
    let purge = ["purge", "--older-than", "0s", "--database-url"];
    let purge = binary()
        .args(purge)
        .arg(format!("sqlite://{}", path.display()))
        .output();
    assert!(purge.await.unwrap().status.success());
    let folder = TempDir::new().unwrap();
    let purged = folder.path().join("purged.db");
    let database = Database::open(&path);
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)");
    drop(database);
    fs::copy(&path, &purged).unwrap();
    provost.restart_with(at_once).await;
    let mut kills = 0;
    while kills < 3 {
        provost.says(BEGINS).await;
        // The sleep chooses a random moment for the kill, which is the fault of this test. It waits for nothing.
        sleep(Duration::from_millis(random.random_range(0..500))).await;
        provost.kill().await;
        let killed = Database::copy_of(&path);
        assert_eq!(killed.check(), "ok");
        let free = killed.number("PRAGMA freelist_count") * PAGE as i64;
        drop(killed);
        if free > BEGINS_ABOVE {
            kills += 1;
        } else {
            // The work was nearly done at the kill, so that the rest is not worth another run.
            fs::copy(&purged, &path).unwrap();
            for suffix in ["-wal", "-shm"] {
                drop(fs::remove_file(format!("{}{suffix}", path.display())));
            }
        }
        provost.restart().await;
    }
    until_smaller(&path, 24 * MIB).await;
    pass(&provost, &remote, 1).await;
    provost.says(ENDS).await;
    let bytes = provost.metric("provost_database_bytes").await;
    let free = provost.metric("provost_database_free_bytes").await;
    assert!(bytes < 25e6 && free < 18e6 && free > 8e6, "{bytes} {free}");

    // Tasks that come and go from now on use the remaining free space.
    let said = provost.log().matches(BEGINS).count();
    let kept = length(&path);
    pass(&provost, &remote, 60).await;
    assert_eq!(provost.log().matches(BEGINS).count(), said);
    assert!(length(&path) >= kept, "it shrank");

    for id in &failed {
        let task = provost.task(id).await;
        assert_eq!(
            (&task["state"], &task["input"]["card"]),
            (&json!("error"), &json!("declined"))
        );
    }
    stop(&mut provost).await;
    let database = Database::open(&path);
    assert_eq!(database.check(), "ok");
    drop(database);
}

#[tokio::test]
async fn a_file_of_an_older_version_says_once_how_it_is_made_smaller() {
    let remote = remote().await;
    let mut provost = Provost::start().await;
    fill(&provost, &remote, 200).await;
    stop(&mut provost).await;
    let path = provost.database();
    let database = Database::open(&path);
    database.execute("PRAGMA auto_vacuum = none");
    database.execute("VACUUM");
    assert_eq!(database.number("PRAGMA auto_vacuum"), 0);
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)");
    drop(database);
    let before = length(&path);
    provost.restart_with(at_once).await;
    let remedy = "provost purge --shrink";
    provost.says(remedy).await;
    pass(&provost, &remote, 20).await;
    assert_eq!(provost.log().matches(remedy).count(), 1);
    assert!(!provost.log().contains(BEGINS), "{}", provost.log());
    assert!(length(&path) >= before);
}

#[tokio::test]
async fn on_a_full_disk_the_space_of_deleted_tasks_becomes_room_for_others() {
    let disk = SmallDisk::mount(64);
    let path = disk.path().join("provost.db");
    let remote = remote().await;
    let mut provost = Provost::setup().database(&path).start().await;
    fill(&provost, &remote, 100).await;
    stop(&mut provost).await;
    assert!(length(&path) > 24 * MIB);
    let ballast = disk.ballast("ballast");
    let taken = length(&ballast);
    provost.restart_with(at_once).await;
    until_smaller(&path, 20 * MIB).await;
    until(true, || async {
        provost.get("/readyz").await.status == 200
    })
    .await;
    pass(&provost, &remote, 1).await;
    assert_eq!(length(&ballast), taken);
    let log = provost.log();
    assert!(!log.contains("could not save a batch"), "{log}");
    let others = length(&disk.ballast("others"));
    assert!(others > 4 * MIB, "{others}");
}

#[tokio::test]
async fn a_read_that_takes_long_holds_up_the_file_and_nothing_else() {
    let disk = SmallDisk::mount(512);
    let path = disk.path().join("provost.db");
    let remote = remote().await;
    let mut provost = Provost::setup().database(&path).start().await;
    fill(&provost, &remote, 200).await;
    stop(&mut provost).await;
    provost.restart().await;
    let read = Database::open(&path);
    read.execute("BEGIN");
    let tasks = read.number("SELECT count(*) FROM tasks");
    assert_eq!(tasks, 200);
    stop(&mut provost).await;
    provost.restart_with(at_once).await;
    provost.says(BEGINS).await;
    pass(&provost, &remote, 1).await;
    assert_eq!(read.number("SELECT count(*) FROM tasks"), tasks);
    assert!(length(&path) > 40 * MIB);
    read.execute("COMMIT");
    drop(read);
    until_smaller(&path, 24 * MIB).await;
}

/// Damages a page that says to which other page each page belongs. Only the return of space uses it.
fn damage_last_map(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let (first, every) = (2, PAGE / 5 + 1);
    let pages = bytes.len() / PAGE;
    let last = (first..=pages).step_by(every).last().unwrap();
    bytes[(last - 1) * PAGE..last * PAGE].fill(1);
    fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn a_damaged_page_ends_the_giving_back_and_nothing_else() {
    let remote = remote().await;
    let mut provost = Provost::start().await;
    fill(&provost, &remote, 200).await;
    // The last pages of the file stay in use, so that their part of the map is not written again before it is read.
    provost.run(&large(&remote, "declined")).await;
    stop(&mut provost).await;
    let path = provost.database();
    damage_last_map(&path);
    provost.restart_with(at_once).await;
    let warning = "could not return free space of the database file to the disk";
    provost.says(warning).await;
    pass(&provost, &remote, 40).await;
    let log = provost.log();
    assert_eq!(log.matches(warning).count(), 1, "{log}");
    let ready = provost.get("/readyz").await;
    ready.expect_problem(503, "store-unavailable");
}
