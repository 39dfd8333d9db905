//! Commands in a pseudo-terminal, as people use them: questions, colours, progress and the width of the terminal.

use serde_json::json;

use super::{Person, Terminal};
use crate::harness::{Act, Provost, Remote, one_step};

async fn with_failed_tasks(count: usize) -> (Provost, Person, String, Remote) {
    let remote = Remote::with(|_| Act::answer(422, &[], r#"{"error":"no_currency"}"#)).await;
    let provost = Provost::start().await;
    for number in 0..count {
        let mut submission = one_step(&remote.url(), "/charge");
        submission["key"] = json!(format!("order-{number}"));
        provost.run(&submission).await;
    }
    let person = Person::of(&provost);
    let cause = person
        .done(&["failures", "-o", "name"])
        .await
        .trim()
        .to_owned();
    (provost, person, cause, remote)
}

async fn answered(mut terminal: Terminal, answer: &str) -> (i32, String) {
    terminal.shows("Do you want to do this? [y/N]").await;
    terminal.types(answer).await;
    terminal.end().await
}

#[tokio::test]
async fn a_person_is_asked_before_more_than_one_task_changes() {
    let (provost, person, cause, _remote) = with_failed_tasks(2).await;
    for no in ["n\n", "\n", "yess\n"] {
        let (code, text) = answered(person.terminal(&["retry", "--cause", &cause]), no).await;
        assert_eq!(code, 5, "{text}");
        assert!(
            text.contains("nothing was changed") && text.contains("2 tasks would accept it"),
            "{text}"
        );
    }
    let jobs = provost.get("/v1/bulk").await.expect(200);
    assert_eq!(jobs["items"], json!([]));
    let (code, text) = answered(person.terminal(&["retry", "--cause", &cause]), "y\n").await;
    assert_eq!(code, 0, "{text}");
    let said = "it has processed 2 of 2 tasks; 2 accepted the command, and none refused it";
    assert!(text.contains(said), "{text}");
}

#[tokio::test]
async fn without_a_terminal_nobody_is_asked_and_nothing_changes() {
    let (provost, person, cause, _remote) = with_failed_tasks(2).await;
    let ran = person.run(&["retry", "--cause", &cause]).await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains("give --yes"), "{ran:?}");
    let jobs = provost.get("/v1/bulk").await.expect(200);
    assert_eq!(jobs["items"], json!([]));
    let dry = person
        .json(&["retry", "--cause", &cause, "--dry-run"])
        .await;
    assert_eq!(
        (&dry["accepted"], &dry["dry_run"]),
        (&json!(2), &json!(true))
    );
    let job = person.json(&["retry", "--cause", &cause, "--yes"]).await;
    assert_eq!(job["accepted"], 2, "{job:#}");
}

#[tokio::test]
async fn no_task_means_no_job_and_a_job_without_a_follower_is_a_sentence() {
    let (provost, person, cause, _remote) = with_failed_tasks(2).await;
    let none = ["retry", "--filter", "workflow=nope", "--yes"];
    let said = person.run(&none).await;
    assert_eq!((said.code, said.out.as_str()), (0, ""), "{said:?}");
    assert!(said.err.contains("no task matches"), "{said:?}");
    let data = person.json(&none).await;
    assert_eq!(
        (&data["matched"], &data["dry_run"]),
        (&json!(0), &json!(true))
    );
    let jobs = provost.get("/v1/bulk").await.expect(200);
    assert_eq!(jobs["items"], json!([]));
    // A filter that is wrong is one fault: it is not missing as well.
    let wrong = json!({ "cause": "xyz" });
    let wrong = provost.post("/v1/tasks/retry", &wrong).await;
    let faults = wrong.expect(422)["errors"].clone();
    assert_eq!(faults.as_array().unwrap().len(), 1, "{faults:#}");
    let other = [
        "resolve", "--cause", &cause, "--step", "other", "--result", "1",
    ];
    let refused = person.run(&[&other[..], &["--dry-run"]].concat()).await;
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.out.contains("2 tasks refuse it: "), "{refused:?}");
    let one = person.run(&["resume", "order-0", "--dry-run"]).await;
    assert_eq!(one.code, 5, "{one:?}");
    assert!(one.out.contains("the task would refuse it"), "{one:?}");
    let detached = ["retry", "--cause", &cause, "--yes", "--detach"];
    let detached = person.done(&detached).await;
    assert!(
        detached.starts_with("the bulk job ") && detached.contains("provost bulk show "),
        "{detached}"
    );
}

#[tokio::test]
async fn a_terminal_has_colours_and_lines_that_are_not_wider_than_it() {
    let (_provost, person, _, _remote) = with_failed_tasks(1).await;
    let (code, text) = person.terminal(&["tasks"]).end().await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("\u{1b}[31merror\u{1b}[0m"), "{text:?}");
    let (_, plain) = person
        .terminal_with(&["tasks"], |command| command.env("NO_COLOR", "1"))
        .end()
        .await;
    assert!(!plain.contains('\u{1b}'), "{plain:?}");
    let table = plain.lines().filter(|line| !line.contains("no room here"));
    for line in table {
        assert!(line.chars().count() <= 60, "{line}");
    }
    // The key names the task as well as its id, which has no room, and the reason matters more.
    assert!(
        plain.contains("order-0") && plain.contains("only: "),
        "{plain}"
    );
    assert!(
        plain.contains("the columns ID") || plain.contains("the column ID"),
        "{plain}"
    );
    let (_, dumb) = person
        .terminal_with(&["tasks"], |command| command.env("TERM", "dumb"))
        .end()
        .await;
    assert!(!dumb.contains('\u{1b}'), "{dumb:?}");
    let piped = person.done(&["tasks"]).await;
    assert!(!piped.contains('\u{1b}') && !piped.contains('…'), "{piped}");
    let colored = person.done(&["tasks", "--color", "always"]).await;
    assert!(colored.contains("\u{1b}[31merror"), "{colored:?}");
    let utc = person.done(&["tasks", "--utc"]).await;
    assert!(utc.contains("Z  "), "{utc}");
}

#[tokio::test]
async fn many_tasks_are_paused_resumed_and_resolved() {
    let (provost, person, cause, _remote) = with_failed_tasks(2).await;
    let resolved = person
        .json(&[
            "resolve",
            "--cause",
            &cause,
            "--step",
            "only",
            "--result",
            r#"{"id":"by hand"}"#,
            "--yes",
        ])
        .await;
    assert_eq!(resolved["accepted"], 2, "{resolved:#}");
    let task = person.json(&["task", "order-0"]).await;
    assert_eq!(
        task["steps"][0]["output"],
        json!({ "id": "by hand" }),
        "{task:#}"
    );
    let later =
        json!({ "labels": { "team": "a" }, "steps": [{ "name": "a", "wait": { "for": "1h" } }] });
    for _ in 0..2 {
        provost.submit(&later).await;
    }
    for (command, paused) in [("pause", 2), ("resume", 0)] {
        let job = person
            .json(&[command, "--filter", "label=team:a", "--yes"])
            .await;
        assert_eq!(job["accepted"], 2, "{job:#}");
        let tasks = [
            "tasks", "--label", "team=a", "--state", "paused", "-o", "name",
        ];
        let tasks = person.done(&tasks).await;
        assert_eq!(tasks.lines().count(), paused, "{command}: {tasks}");
    }
}
