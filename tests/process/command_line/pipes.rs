//! Commands in pipes, as scripts use them, with both databases: data on standard output and nothing else.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};

use super::Person;
use crate::harness::{Act, Provost, Remote, one_step, setups, until};

/// A service that refuses until it is repaired.
struct Repairable {
    remote: Remote,
    works: Arc<AtomicBool>,
}

async fn repairable() -> Repairable {
    let works = Arc::new(AtomicBool::new(false));
    let seen = works.clone();
    let remote = Remote::with(move |_| match seen.load(Ordering::Relaxed) {
        true => Act::Ok(json!({ "id": "c-1" })),
        false => Act::answer(422, &[], r#"{"error":"no_currency"}"#),
    })
    .await;
    Repairable { remote, works }
}

async fn failed(provost: &Provost, service: &Repairable, key: &str) -> String {
    let mut submission = one_step(&service.remote.url(), "/charge");
    submission["key"] = json!(key);
    let task = provost.run(&submission).await;
    assert_eq!(task["state"], "error", "{task:#}");
    task["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_failed_task_is_found_explained_and_retried_on_both_databases() {
    for setup in setups().await {
        let provost = setup.start().await;
        let service = repairable().await;
        let id = failed(&provost, &service, "order-1").await;
        let person = Person::of(&provost);
        let status = person.done(&["status"]).await;
        assert!(status.starts_with("1 cause needs you"), "{status}");
        let task = person.done(&["task", "order-1"]).await;
        let begin = format!("order-1 ({id}) is in error: step only failed");
        assert!(task.starts_with(&begin), "{task}");
        for expected in [
            "POST http://",
            "/charge -> 422",
            "no_currency",
            "provost retry order-1",
            "provost skip order-1 only",
        ] {
            assert!(task.contains(expected), "{expected}: {task}");
        }
        assert_eq!(task.matches("  provost ").count(), 3, "{task}");
        service.works.store(true, Ordering::Relaxed);
        let retried = person
            .run(&["retry", "order-1", "--reason", "repaired", "--wait"])
            .await;
        assert_eq!(retried.code, 0, "{retried:?}");
        assert!(retried.out.contains("is processed"), "{retried:?}");
        let history = provost.history(&id).await;
        assert!(
            history.iter().any(|entry| entry["reason"] == "repaired"),
            "{history:#?}"
        );
        let shown = person.done(&["task", "order-1", "--history"]).await;
        assert!(shown.contains("repaired"), "{shown}");
    }
}

#[tokio::test]
async fn what_programs_get_is_what_the_api_responds() {
    let provost = Provost::start().await;
    let service = repairable().await;
    let id = failed(&provost, &service, "order-1").await;
    failed(&provost, &service, "order-2").await;
    let person = Person::of(&provost);
    for (arguments, path) in [
        (vec!["task", "order-1"], format!("/v1/tasks/{id}")),
        (vec!["tasks"], "/v1/tasks".to_owned()),
        (
            vec!["tasks", "--state", "error", "--key", "order-1"],
            "/v1/tasks?state=error&key=order-1".to_owned(),
        ),
        (
            vec!["task", &id, "--history"],
            format!("/v1/tasks/{id}/history"),
        ),
        (vec!["agent", "list"], "/v1/agents".to_owned()),
        (vec!["workflow", "list"], "/v1/workflows".to_owned()),
        (vec!["schedule", "list"], "/v1/schedules".to_owned()),
        (vec!["message", "list"], "/v1/messages".to_owned()),
        (vec!["bulk", "list"], "/v1/bulk".to_owned()),
        (vec!["ask", "list"], "/v1/asks".to_owned()),
        (vec!["changes"], "/v1/changes".to_owned()),
    ] {
        let shown = person.json(&arguments).await;
        assert_eq!(shown, provost.get(&path).await.expect(200), "{arguments:?}");
    }
    let tasks = provost.get("/v1/tasks").await.expect(200);
    let lines = person.done(&["tasks", "-o", "jsonl"]).await;
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(Value::from(lines), tasks["items"]);
    let names = person.done(&["tasks", "-o", "name"]).await;
    assert_eq!(names.lines().count(), 2);
    assert!(names.lines().any(|line| line == id), "{names}");
    let again = json!({ "key": "order-3", "steps": [{ "name": "other", "url": service.remote.url(), "request": { "path": "/charge" } }] });
    provost.run(&again).await;
    let causes = provost.get("/v1/failures").await.expect(200);
    let causes = causes["items"].as_array().unwrap().iter();
    let causes: Vec<_> = causes
        .map(|cause| cause["fingerprint"].as_str().unwrap())
        .collect();
    assert_eq!(causes.len(), 2);
    let names = person.done(&["status", "-o", "name"]).await;
    assert_eq!(names.lines().collect::<Vec<_>>(), causes);
    let yaml = person.done(&["task", &id, "-o", "yaml"]).await;
    assert!(yaml.contains("\nkey: order-1\nworkflow: null\n"), "{yaml}");
    // One item a page, several pages: one list.
    let tasks = provost.get("/v1/tasks?limit=2").await.expect(200);
    let both = person.json(&["tasks", "--limit", "2"]).await;
    assert_eq!(both["items"], tasks["items"]);
}

#[tokio::test]
async fn the_id_of_a_submission_is_printed_before_the_wait() {
    let gate = crate::harness::Gate::closed();
    let passage = gate.clone();
    let remote = Remote::with(move |_| passage.then(json!({}))).await;
    let provost = Provost::start().await;
    let person = Person::of(&provost);
    let submission = person.file("task.json", &one_step(&remote.url(), "/work").to_string());
    let mut terminal = person.terminal(&[
        "submit",
        "--file",
        &submission,
        "--key",
        "order-1",
        "--wait",
    ]);
    let id = || async {
        let tasks = provost.get("/v1/tasks?key=order-1").await.expect(200);
        tasks["items"][0]["id"].as_str().map(str::to_owned)
    };
    until(true, || async { id().await.is_some() }).await;
    terminal.shows(&id().await.unwrap()).await;
    gate.open();
    let (code, text) = terminal.end().await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("processed"), "{text}");
    let again = person
        .done(&["submit", "--file", &submission, "--idempotency-key", "once"])
        .await;
    assert_eq!(
        again,
        person
            .done(&["submit", "--file", &submission, "--idempotency-key", "once"])
            .await
    );
}

#[tokio::test]
async fn events_are_followed_as_they_happen() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let person = Person::of(&provost);
    let mut terminal = person.terminal(&[
        "events",
        "--follow",
        "--types",
        "task.processed,agent.*",
        "-o",
        "name",
    ]);
    // The stream begins with what happens from then on: agents are paused until it shows one of these.
    provost.register("payments", &remote.url(), 5).await;
    let shows = async {
        terminal.shows("-").await;
    };
    let pauses = async {
        loop {
            person.done(&["agent", "pause", "payments"]).await;
            person.done(&["agent", "resume", "payments"]).await;
        }
    };
    tokio::select! {
        () = shows => {}
        () = pauses => {}
    }
    let since = person
        .json(&["events", "--since", "1h", "--types", "agent.*"])
        .await;
    let kinds: Vec<_> = since["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["type"])
        .collect();
    assert!(kinds.contains(&&json!("agent.paused")), "{kinds:?}");
}

#[tokio::test]
async fn a_reader_that_leaves_ends_the_command_in_silence() {
    let provost = Provost::start().await;
    let person = Person::of(&provost);
    let mut shell = tokio::process::Command::new("sh");
    let program = person.command();
    let program = program.as_std().get_program().to_owned();
    shell
        .arg("-c")
        .arg("\"$0\" tasks -o json | true; \"$0\" status | head -1")
        .arg(program);
    shell.env("PROVOST_URL", format!("http://{}", provost.address()));
    let ran = super::ran(&mut shell).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    assert_eq!(ran.out, "Nothing needs you.\n");
}

#[tokio::test]
async fn an_answer_that_the_question_does_not_take_is_refused_with_the_reason_and_without_the_link()
{
    let provost = Provost::start().await;
    let ask = json!({ "name": "approval", "signal": { "within": "1h", "ask": { "title": "Refund?", "of": ["ada", "bob"],
        "approvals": 2 } } });
    let task = json!({ "key": "refund-1", "steps": [ask] });
    provost.post("/v1/tasks", &task).await.expect(202);
    let open = async || {
        let asks = provost.get("/v1/asks?open=true").await.expect(200);
        asks["items"].as_array().unwrap().len()
    };
    until(1, open).await;
    let asks = provost.get("/v1/asks").await.expect(200);
    let link = asks["items"][0]["people"][0]["link"].as_str().unwrap();
    let token = link.rsplit('/').next().unwrap();
    let person = Person::of(&provost);
    let answer = async |ask: &str, choice: &str| {
        let person_of_task = ["--person", "ada"];
        let arguments = [&["ask", "answer", ask, choice][..], &person_of_task].concat();
        person.run(&arguments).await
    };
    let wrong = answer("refund-1", "perhaps").await;
    assert_eq!(wrong.code, 5, "{wrong:?}");
    assert!(
        wrong.err.contains("choice: ") && wrong.err.contains("approve"),
        "{wrong:?}"
    );
    assert!(!wrong.err.contains(token), "{wrong:?}");
    let server = format!("http://{}", provost.address());
    let elsewhere = "http://provost.example/v1/asks/unknown";
    let unknown = ["ask", "answer", elsewhere, "approve", "--server", &server];
    let unknown = person.run(&unknown).await;
    assert_eq!(unknown.code, 5, "{unknown:?}");
    assert!(
        unknown.err.contains("This link is not known"),
        "{unknown:?}"
    );
    let approve = ["ask", "answer", link, "approve", "--comment", "fine"];
    let decision = person.json(&approve).await;
    assert_eq!(decision, json!({ "choice": "approve", "comment": "fine" }));
    let again = [&approve[..], &["-o", "name"]].concat();
    let again = person.done(&again).await;
    assert_eq!(again, "approve\n");
    let other = answer(link, "reject").await;
    assert_eq!(other.code, 5, "{other:?}");
    assert!(other.err.contains("the first decision counts"), "{other:?}");
}

#[tokio::test]
async fn a_list_without_items_says_so_beside_the_data() {
    let provost = Provost::start().await;
    let person = Person::of(&provost);
    for list in [
        "tasks",
        "changes",
        "agent list",
        "workflow list",
        "schedule list",
        "ask list",
        "message list",
        "bulk list",
        "context list",
        "events",
    ] {
        let arguments: Vec<_> = list.split(' ').collect();
        let shown = person.run(&arguments).await;
        assert_eq!((shown.code, &*shown.out), (0, ""), "{list}: {shown:?}");
        assert!(shown.err.starts_with("no "), "{list}: {shown:?}");
    }
}
