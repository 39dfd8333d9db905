//! The examples of docs/command-line.md run against a server, each on a task of its own that it fits, and each ends as it says.

use std::{path::Path, time::Duration};

use serde_json::{Value, json};

use super::Person;
use crate::harness::{Act, Provost, Remote, until};

/// Examples that do not end by themselves, or change the database of another machine. The tests of `serve`, `demo`, `bench`,
/// `events` and `migrate` run those commands.
const LEFT_OUT: [&str; 6] = [
    "provost serve",
    "provost demo",
    "provost bench",
    "provost events --follow",
    "provost migrate\n",
    "provost migrate --database-url",
];

/// Examples whose exit code is not 0, with the reason.
const OTHER_ENDS: [(&str, i32); 6] = [
    // The task is in error.
    ("provost task order-1001 --follow", 2),
    ("provost submit order --input '{", 2),
    // The task is undone.
    ("provost undo order-1001 --wait", 3),
    // The files have another description than version 14.
    ("provost diff definitions/", 2),
    // The service of the test has neither an idempotency key nor a probe.
    ("provost agent check payments", 1),
    // The server uses the database.
    ("provost purge --shrink", 1),
];

/// Splits a line as a shell does, as far as examples need it, and leaves out what is for the shell.
fn words(line: &str) -> Vec<String> {
    let line = line.split([';', '|', '>']).next().unwrap_or_default();
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// The key of a task in the examples.
const KEY: &str = "order-1001";

/// Returns a task that an example is for, and whether it is paused.
fn task_for(example: &str) -> (Value, &'static str) {
    let waits = json!({ "name": "charge", "wait": { "for": "1h" } });
    let command = example.split(' ').nth(1).unwrap_or_default();
    match command {
        "signal" => {
            let paid = json!({ "name": "paid", "signal": { "within": "1h" } });
            (json!({ "steps": [paid] }), "processing")
        }
        "ask" => {
            let ask = json!({ "title": "Refund?", "of": ["ada"] });
            let step = json!({ "name": "approval", "signal": { "within": "1h", "ask": ask } });
            (json!({ "steps": [step] }), "processing")
        }
        "skip" => {
            let notify =
                json!({ "name": "notify", "agent": "payments", "request": { "path": "/charges" } });
            (json!({ "steps": [notify] }), "error")
        }
        "cancel" if example.contains(" charge") => {
            let hangs =
                json!({ "name": "charge", "agent": "payments", "request": { "path": "/hang" } });
            (json!({ "steps": [hangs] }), "processing")
        }
        "pause" => (json!({ "steps": [waits] }), "processing"),
        "resume" => (json!({ "steps": [waits] }), "paused"),
        "start" => {
            let start = jiff::Timestamp::now() + Duration::from_secs(86_400);
            let start = start.to_string();
            (json!({ "steps": [waits], "start_at": start }), "pending")
        }
        "migrate" => {
            let old = json!({ "workflow": "order", "workflow_version": 13 });
            (old, "error")
        }
        _ => (json!({ "workflow": "order" }), "error"),
    }
}

/// Submits a task that an example is for, and waits until it is in the state that the example needs.
async fn prepare(provost: &Provost, example: &str, key: &str) {
    let (mut submission, state) = task_for(example);
    submission["key"] = json!(key);
    let id = provost.submit(&submission).await;
    if state == "paused" {
        let pause = format!("/v1/tasks/{id}/pause");
        assert_eq!(provost.post(&pause, &json!({})).await.status, 200);
    }
    let path = format!("/v1/tasks/{id}");
    let is_in_state = async || {
        let task = provost.get(&path).await.expect(200);
        let has_begun = state != "processing" || task["steps"][0]["state"] == "processing";
        task["state"] == state && has_begun
    };
    until(true, is_in_state).await;
}

fn files(person: &Person, workflow: &Value) {
    person.file("task.yaml", "workflow: order\ninput: { amount: 5 }\n");
    person.file("order.yaml", &workflow.to_string());
    person.file("workflows/order.json", &workflow.to_string());
    person.file("definitions/workflows/order.json", &workflow.to_string());
    person.file("charge.json", r#"{ "request": { "path": "/charges" } }"#);
    let cases = "services: { charge: { body: {} }, notify: { body: {} } }\ncases:\n  - name: works\n    \
        expect: { state: processed }\n";
    person.file("order.cases.yaml", cases);
}

/// Returns the arguments of an example, with the names that the server of the test has.
fn arguments_of(example: &str, cause: &str, job: &str, database: &Path) -> Vec<String> {
    let database = format!("sqlite://{}", database.display());
    let replaced = [
        ("5f1d0a7c93b2e846", cause),
        ("0197a1b2-0000-7000-8000-000000000001", job),
        ("/usr/local/share/man/man1", "man1"),
        (" --config /etc/provost/provost.toml", ""),
        ("/backup/provost-$(date +%F).db", "today.db"),
        ("sqlite:///var/lib/provost/provost.db", &database),
        ("workflows/*.json", "workflows/order.json"),
        ("pass show provost", "echo 0123456789abcdef"),
    ];
    let line = replaced
        .iter()
        .fold(example.to_owned(), |line, (from, to)| {
            line.replace(from, to)
        });
    let mut arguments = words(&line).split_off(1);
    let has = |arguments: &[String], wanted: &[&str]| {
        arguments.iter().any(|word| wanted.contains(&word.as_str()))
    };
    let is_bulk = has(&arguments, &["--cause", "--filter"]);
    if is_bulk && arguments[0] != "tasks" && !has(&arguments, &["--yes"]) {
        arguments.push("--yes".to_owned());
    }
    // The server of the context need not exist.
    if arguments[0] == "login" {
        arguments.push("--offline".to_owned());
    }
    arguments
}

#[tokio::test]
async fn every_example_of_the_page_does_what_it_says() {
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/charges" => Act::answer(422, &[], r#"{"error":"no_currency"}"#),
        "/hang" => Act::Hang,
        _ => Act::Ok(json!({})),
    })
    .await;
    let provost = Provost::start().await;
    provost.register("payments", &remote.url(), 20).await;
    let workflow = json!({ "steps": [
        { "name": "charge", "agent": "payments", "request": { "path": "/charges" } },
        { "name": "notify", "after": ["charge"], "agent": "payments", "request": { "path": "/mails" } }] });
    for version in 1..=14 {
        let mut workflow = workflow.clone();
        workflow["description"] = json!(format!("version {version}"));
        let put = provost.put("/v1/workflows/order", &workflow).await;
        assert_eq!(put.status, 201, "{put:?}");
    }
    let import = provost.put("/v1/workflows/import-test", &workflow).await;
    assert_eq!(import.status, 201, "{import:?}");
    let schedule = json!({ "every": "24h", "workflow": "order" });
    let put = provost.put("/v1/schedules/nightly", &schedule).await;
    assert_eq!(put.status, 201, "{put:?}");
    let person = Person::of(&provost);
    files(&person, &workflow);
    for key in [KEY, "order-1002"] {
        prepare(&provost, "provost task", key).await;
    }
    let cause = person.done(&["failures", "-o", "name"]).await;
    let slow = [
        "pause",
        "--filter",
        "state=error",
        "--rate",
        "1/h",
        "--detach",
        "--yes",
        "-o",
        "name",
    ];
    let database = provost.database();

    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/command-line.md");
    let page = std::fs::read_to_string(page).unwrap();
    let examples = page.lines().filter_map(|line| line.strip_prefix("    "));
    let examples =
        examples.filter(|line| line.starts_with("provost ") && !line.ends_with("[OPTIONS]"));
    let left_out = |line: &&str| {
        LEFT_OUT
            .iter()
            .any(|begin| format!("{line}\n").starts_with(begin))
    };
    let (mut count, mut wrong) = (0, Vec::new());
    for example in examples.filter(|line| !left_out(line)) {
        let key = format!("order-{}", 2000 + count);
        let on_task = example.replace(KEY, &key);
        if on_task != example {
            prepare(&provost, example, &key).await;
        }
        let job = match example.contains("bulk stop") {
            true => person.done(&slow).await,
            false => String::new(),
        };
        // The input of submissions has the name of a workflow that another example tests.
        let order = match example.starts_with("provost test") {
            true => workflow.to_string(),
            false => r#"{ "amount": 5 }"#.to_owned(),
        };
        person.file("order.json", &order);
        let arguments = arguments_of(&on_task, cause.trim(), job.trim(), &database);
        let mut command = person.command();
        command.env(
            "PROVOST_DATABASE_URL",
            format!("sqlite://{}", database.display()),
        );
        command.env("PROVOST_LISTEN", provost.address());
        let ran = super::ran(command.args(&arguments)).await;
        let other = OTHER_ENDS
            .iter()
            .find(|(begin, _)| example.starts_with(begin));
        let expected = other.map_or(0, |(_, code)| *code);
        if ran.code != expected {
            wrong.push(format!("{example}: expected {expected}: {ran:?}"));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 80, "{count}");
}
