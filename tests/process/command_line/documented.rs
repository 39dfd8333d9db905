//! The examples of docs/command-line.md run against a server: none is a wrong argument, and none gets no response.

use serde_json::json;

use super::Person;
use crate::harness::{Act, Provost, Remote};

/// Examples that do not end by themselves, are for another machine, or are tested elsewhere.
const LEFT_OUT: [&str; 14] = [
    "provost serve",
    "provost demo",
    "provost bench",
    "provost test ",
    "provost validate ",
    "provost login",
    "provost context",
    "provost agent check",
    "provost events --follow",
    "provost migrate\n",
    "provost migrate --database-url",
    "provost check-config",
    "provost backup",
    "provost purge",
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

#[tokio::test]
async fn every_example_of_the_page_runs() {
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/charges" => Act::answer(422, &[], r#"{"error":"no_currency"}"#),
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
    let schedule = json!({ "every": "24h", "workflow": "order" });
    assert_eq!(
        provost.put("/v1/schedules/nightly", &schedule).await.status,
        201
    );
    for key in ["order-1001", "order-1002"] {
        let task = provost
            .run(&json!({ "workflow": "order", "key": key }))
            .await;
        assert_eq!(task["state"], "error", "{task:#}");
    }
    let person = Person::of(&provost);
    let cause = person
        .done(&["failures", "-o", "name"])
        .await
        .trim()
        .to_owned();
    person.file("order.json", r#"{ "amount": 5 }"#);
    person.file("task.yaml", "workflow: order\ninput: { amount: 5 }\n");
    person.file("order.yaml", &workflow.to_string());
    person.file("definitions/workflows/order.json", &workflow.to_string());

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
    let mut count = 0;
    for example in examples.filter(|line| !left_out(line)) {
        let line = example.replace("5f1d0a7c93b2e846", &cause);
        let line = line.replace("/usr/local/share/man/man1", "man1");
        let line = line.replace(" --config /etc/provost/provost.toml", "");
        let mut arguments = words(&line).split_off(1);
        let asks = arguments
            .iter()
            .any(|word| word == "--cause" || word == "--filter")
            && arguments[0] != "tasks";
        if asks && !arguments.iter().any(|word| word == "--yes") {
            arguments.push("--yes".to_owned());
        }
        if arguments
            .iter()
            .any(|word| word == "--wait" || word == "--follow")
        {
            arguments.retain(|word| word != "--timeout" && word != "5m");
            arguments.extend(["--timeout".to_owned(), "2s".to_owned()]);
        }
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let ran = person.run(&arguments).await;
        // A task may be in a state that refuses the command, or need a person after it.
        let is_answered =
            matches!(ran.code, 0 | 2..=5) || (arguments[0] == "doctor" && ran.code == 1);
        assert!(is_answered, "{example}: {ran:?}");
        count += 1;
    }
    assert!(count > 50, "{count}");
}
