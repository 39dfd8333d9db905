//! The exit codes: 0 done, 1 usage or transport, 2 failed, 3 undone, 4 still running, 5 refused.

use serde_json::json;
use tokio::{io::AsyncReadExt, net::TcpListener};

use super::Person;
use crate::harness::{Act, Gate, Provost, Remote};

#[tokio::test]
async fn each_end_has_its_exit_code() {
    let gate = Gate::closed();
    let passage = gate.clone();
    let remote = Remote::with(move |seen| match seen.path.as_str() {
        "/refuse" => Act::status(422),
        "/hang" => passage.then(json!({})),
        _ => Act::Ok(json!({})),
    })
    .await;
    let provost = Provost::start().await;
    let person = Person::of(&provost);
    let submission = |key: &str, path: &str, on_permanent: &str| {
        let undo = json!({ "request": { "method": "DELETE", "path": "/undo" } });
        let step = |name: &str, path: &str| json!({ "name": name, "url": remote.url(), "request": { "path": path }, "undo": undo });
        let mut second = step("second", path);
        second["after"] = json!(["first"]);
        let task = json!({ "key": key, "on_permanent": on_permanent, "steps": [step("first", "/work"), second] });
        person.file(&format!("{key}.json"), &task.to_string())
    };
    let submit = async |file: &str| {
        person
            .run(&["submit", "--file", file, "--wait", "--timeout", "20s"])
            .await
    };
    let done = submit(&submission("done", "/work", "error")).await;
    assert_eq!(done.code, 0, "{done:?}");
    let failed = submit(&submission("failed", "/refuse", "error")).await;
    assert_eq!(failed.code, 2, "{failed:?}");
    let undone = submit(&submission("undone", "/refuse", "undo")).await;
    assert_eq!(undone.code, 3, "{undone:?}");
    let hangs = submission("hangs", "/hang", "error");
    let running = person
        .run(&["submit", "--file", &hangs, "--wait", "--timeout", "50ms"])
        .await;
    assert_eq!(running.code, 4, "{running:?}");
    let running = person
        .run(&["task", "hangs", "--follow", "--timeout", "50ms"])
        .await;
    assert_eq!(running.code, 4, "{running:?}");
    let refused = person.run(&["retry", "done"]).await;
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(
        refused.out.is_empty()
            && refused.err.contains("\n  what to do: provost clone TASK ")
            && refused.err.contains("/problems/task-ended"),
        "{refused:?}"
    );
    // A job is done when every task has got the command; with --wait what comes of that counts.
    let retry = ["retry", "--filter", "key=failed", "--yes"];
    let again = person.run(&retry).await;
    assert_eq!(again.code, 0, "{again:?}");
    let again = person.run(&[&retry[..], &["--wait"]].concat()).await;
    assert_eq!(again.code, 2, "{again:?}");
    let history = person.done(&["task", "failed", "--history"]).await;
    let followed = person.run(&["task", "failed", "--follow"]).await;
    assert_eq!(followed.code, 2, "{followed:?}");
    let ends = |text: &str| text.matches("task.error").count();
    assert_eq!(ends(&followed.out), ends(&history), "{followed:?}");
    person.run(&["undo", "failed", "--wait"]).await;
    let followed = person.run(&["task", "failed", "--follow"]).await;
    assert_eq!(followed.code, 3, "{followed:?}");
    assert!(followed.out.contains("task.undone"), "{followed:?}");
    let cause = ["retry", "--cause", "ffffffffffffffff", "--yes"];
    let unknown = person.run(&cause).await;
    assert_eq!(unknown.code, 5, "{unknown:?}");
    assert!(
        unknown.err.contains("no step has failed for cause"),
        "{unknown:?}"
    );
    let unknown = person.run(&["task", "nobody"]).await;
    assert_eq!(unknown.code, 5, "{unknown:?}");
    for wrong in [
        &["stauts"][..],
        &[],
        &["agent"],
        &["completions", "cmd"],
        &["retry"],
        &["retry", "done", "--cause", "5f1d"],
        &["migrate", "--dry-run"],
        &["migrate", "--yes"],
        &["migrate", "--from-version", "3"],
        &["tasks", "--limit", "none"],
        &["tasks", "--worflow", "order"],
        &["submit", "order", "--input", "not JSON"],
        &["agent", "pause"],
        &["tasks", "--state", "bad"],
        &["tasks", "--cause", "zzz"],
        &["tasks", "--bulk", "order-1"],
        &["events", "--after", "garbage"],
        &["agent", "pause", "payments", "--for", "abc"],
        &["submit", "order", "--start-at", "tomorrow"],
        &["submit", "order", "--priority", "101"],
        &["retry", "--filter", "state=bad", "--yes"],
        &["schedule", "trigger", "nightly", "--overlap", "maybe"],
        &["--server", "http://127.0.0.1:1", "stauts"],
    ] {
        let usage = person.run(wrong).await;
        assert_eq!(usage.code, 1, "{wrong:?}: {usage:?}");
        assert!(usage.out.is_empty() && !usage.err.is_empty(), "{usage:?}");
    }
    let away = person
        .run(&["status", "--server", "http://127.0.0.1:1"])
        .await;
    assert_eq!(away.code, 1, "{away:?}");
    let url = format!("http://{}", provost.address());
    let before = ["--server", &url, "status", "-o", "json"];
    assert_eq!(person.run(&before).await.code, 0);
    let url_with_user = format!("http://ada:0123@{}", provost.address());
    let with_user = person.run(&["status", "--server", &url_with_user]).await;
    assert_eq!(with_user.code, 1, "{with_user:?}");
    gate.open();
    let followed = person.run(&["task", "hangs", "--follow"]).await;
    assert_eq!(followed.code, 0, "{followed:?}");
    assert!(followed.out.contains("task.processed"), "{followed:?}");
}

/// A server that accepts connections and says nothing holds nobody for longer than `--timeout` and some seconds.
#[tokio::test]
async fn a_silent_server_ends_a_command_that_waits() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let person = Person::without_server();
    let task = "0197a1b2-0000-7000-8000-000000000001";
    for waits in [
        &["task", task, "--follow", "--timeout", "1s"][..],
        &["submit", "order", "--wait", "--timeout", "1s"],
        &["retry", task, "--wait", "--timeout", "1s"],
    ] {
        let ended = person.run(&[waits, &["--server", &url]].concat()).await;
        assert_eq!(ended.code, 1, "{waits:?}: {ended:?}");
        assert!(
            ended.err.contains("no response from"),
            "{waits:?}: {ended:?}"
        );
    }
}

/// A server that takes a submission and says nothing, or ends the connection, may have made the task.
#[tokio::test]
async fn a_submission_whose_response_is_lost_says_how_it_is_repeated() {
    let person = Person::without_server();
    let lost = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", lost.local_addr().unwrap());
    let ends = tokio::spawn(async move {
        let (mut connection, _) = lost.accept().await.unwrap();
        // The request has come.
        let _ = connection.read(&mut [0; 4096]).await;
    });
    let submitted = person.run(&["submit", "order", "--server", &url]).await;
    ends.await.unwrap();
    assert_eq!(submitted.code, 1, "{submitted:?}");
    assert!(
        submitted
            .err
            .contains("the task may have been submitted all the same")
            && submitted.err.contains("--idempotency-key "),
        "{submitted:?}"
    );
    let absent = person
        .run(&["submit", "order", "--server", "http://127.0.0.1:1"])
        .await;
    assert!(!absent.err.contains("all the same"), "{absent:?}");
}

/// A plan has no name, and a cause that nobody knows is refused before anything is.
#[tokio::test]
async fn a_dry_run_prints_no_names_and_an_unknown_cause_is_refused() {
    let provost = Provost::start().await;
    let person = Person::of(&provost);
    let dry = ["retry", "--all", "--dry-run", "-o", "name"];
    let named = person.run(&dry).await;
    assert_eq!((named.code, named.out.as_str()), (0, ""), "{named:?}");
    for asks in [&["--dry-run"][..], &["--yes"]] {
        let unknown = [&["retry", "--cause", "0000000000000000"], asks].concat();
        let refused = person.run(&unknown).await;
        assert_eq!(refused.code, 5, "{refused:?}");
    }
}

#[tokio::test]
async fn commands_that_are_not_clients_keep_their_exit_code_for_wrong_arguments() {
    let person = Person::without_server();
    for wrong in [
        &["serve", "--nothing"][..],
        &["agent", "check"],
        &["migrate", "--nothing"],
    ] {
        let ran = person.run(wrong).await;
        assert_eq!(ran.code, 2, "{wrong:?}: {ran:?}");
    }
    for (command, expected) in [("version", "provost 0."), ("help", "Usage: provost")] {
        let ran = person.run(&[command]).await;
        assert!(ran.code == 0 && ran.out.contains(expected), "{ran:?}");
    }
}
