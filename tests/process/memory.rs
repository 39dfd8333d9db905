//! The memory that large inputs take, at their limits.

use serde_json::{Value, json};

use crate::harness::{Act, Provost, Remote};

const MIB: u64 = 1024 * 1024;

/// Returns a submission of one byte less than a request may have.
fn large(url: &str) -> Value {
    let mut submission = json!({ "steps": [{ "name": "only", "agent": "narrow", "complete_within": "1h" }],
        "input": "" });
    let rest = MIB as usize - submission.to_string().len() - url.len();
    submission["input"] = json!("x".repeat(rest));
    submission
}

/// Returns the largest amount of memory that it took, beyond what it took before.
fn grown(provost: &Provost, before: Option<u64>) -> u64 {
    match (before, provost.peak_memory()) {
        (Some(before), Some(peak)) => peak - before,
        // This system does not report it.
        _ => 0,
    }
}

#[tokio::test]
async fn tasks_that_wait_are_held_within_the_bytes_that_are_set() {
    let remote = Remote::script([Act::Hang]).await;
    let setup = Provost::setup().set("STORE__CACHE_BYTES", "16MiB");
    let provost = setup.start().await;
    provost.register("narrow", &remote.url(), 1).await;
    let submission = large(&remote.url());
    provost.submit(&submission).await;
    let before = provost.peak_memory();
    for _ in 0..200 {
        provost.submit(&submission).await;
    }
    let grown = grown(&provost, before);
    assert!(grown < 100 * MIB, "200 MiB of inputs took {grown} bytes");
    let metrics = provost.get("/metrics").await.expect(200);
    let metrics = metrics.as_str().unwrap();
    let cached = metrics
        .lines()
        .find_map(|line| line.strip_prefix("provost_cache_bytes "));
    let cached: f64 = cached.unwrap().parse().unwrap();
    assert!(
        cached > MIB as f64 && cached <= 16.0 * MIB as f64,
        "{cached}"
    );
}

#[tokio::test]
async fn a_body_is_let_go_once_it_is_sent() {
    let remote = Remote::script([Act::Hang]).await;
    let setup = Provost::setup().set("STORE__CACHE_BYTES", "16MiB");
    let provost = setup.start().await;
    provost.register("narrow", &remote.url(), 1000).await;
    let submission = large(&remote.url());
    provost.submit(&submission).await;
    remote.requests(1).await;
    let before = provost.peak_memory();
    for called in 2..=150 {
        provost.submit(&submission).await;
        remote.requests(called).await;
    }
    let grown = grown(&provost, before);
    assert!(grown < 100 * MIB, "150 calls took {grown} bytes");
}

#[tokio::test]
async fn commands_on_many_large_tasks_do_not_load_them_all_at_once() {
    let remote = Remote::script([Act::Hang]).await;
    let setup = Provost::setup().set("STORE__CACHE_BYTES", "16MiB");
    let provost = setup.start().await;
    provost.register("narrow", &remote.url(), 1).await;
    let mut submission = large(&remote.url());
    let input = submission["input"].as_str().unwrap().len();
    submission["input"] = json!("x".repeat(input - 100));
    for number in 0..300 {
        submission["labels"] = json!({ "of": (number % 3).to_string() });
        provost.submit(&submission).await;
    }
    let before = provost.peak_memory();
    let bulk = async |command: &'static str, dry_run: bool| {
        let each = (0..3).map(async |of: u32| {
            let body = json!({ "labels": { "of": of.to_string() }, "dry_run": dry_run });
            provost.bulk(command, &body).await["accepted"].clone()
        });
        futures::future::join_all(each).await
    };
    // Each command is for a hundred tasks.
    assert_eq!(bulk("cancel", true).await, [100, 100, 100]);
    assert_eq!(bulk("cancel", false).await, [100, 100, 100]);
    let grown = grown(&provost, before);
    println!("300 MiB of inputs took {} MiB", grown / MIB);
    assert!(grown < 150 * MIB, "300 MiB of inputs took {grown} bytes");
}
