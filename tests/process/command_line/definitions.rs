//! Definitions in files are applied, compared, shown and exported, with both databases.

use serde_json::json;

use super::Person;
use crate::harness::setups;

const AGENT: &str = r#"{ "endpoints": [{ "url": "http://127.0.0.1:9" }] }"#;
const WORKFLOW: &str = "description: An order\ncomplete_within: 90m\nsteps:\n  - name: charge\n    agent: payments\n    request: { path: /charges }\n";
const SCHEDULE: &str = r#"{ "every": "24h", "workflow": "order", "input": { "amount": 5 } }"#;

fn folder(person: &Person) -> String {
    person.file("defs/agents/payments.json", AGENT);
    person.file("defs/workflows/order.yaml", WORKFLOW);
    person.file("defs/order.cases.yaml", "cases: []\n");
    person.file("defs/schedules/nightly.json", SCHEDULE);
    person
        .folder
        .path()
        .join("defs")
        .to_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn a_definition_on_standard_input_is_applied_and_its_faults_are_located() {
    let setup = setups().await.into_iter().next().unwrap();
    let provost = setup.start().await;
    let person = Person::of(&provost);
    let agent = r#"{ "name": "payments", "endpoints": [{ "url": "http://127.0.0.1:9" }] }"#;
    let workflow = format!("name: order\n{WORKFLOW}");
    for (text, kind) in [(agent, "agent payments"), (&workflow, "workflow order")] {
        let differs = person.run_with(&["diff", "-"], text).await;
        assert_eq!(differs.code, 2, "{differs:?}");
        let applied = person.run_with(&["apply", "-"], text).await;
        assert_eq!(applied.code, 0, "{applied:?}");
        let same = person.run_with(&["diff", "-"], text).await;
        assert!(
            same.out.contains(&format!("{kind} is the same")),
            "{same:?}"
        );
    }
    for (text, fault) in [
        (WORKFLOW, "standard input:1:1: has no member \"name\""),
        ("{\n\"a\": 1,\n}", "standard input:3:1: is not JSON"),
        (
            &workflow.replace("agent: payments", "agent: 7"),
            "standard input:6:5: /steps/0/agent",
        ),
    ] {
        let refused = person.run_with(&["apply", "-"], text).await;
        assert_ne!(refused.code, 0, "{refused:?}");
        assert!(refused.err.contains(fault), "{refused:?}");
    }
}

#[tokio::test]
async fn a_folder_is_applied_once_and_then_differs_in_nothing() {
    for setup in setups().await {
        let provost = setup.start().await;
        let person = Person::of(&provost);
        let folder = folder(&person);
        let differs = person.run(&["diff", &folder]).await;
        assert_eq!(differs.code, 2, "{differs:?}");
        let asked = person.run(&["apply", &folder]).await;
        assert_eq!(asked.code, 1, "{asked:?}");
        assert!(
            asked.err.contains("3 definitions would be changed"),
            "{asked:?}"
        );
        let dry = person.done(&["apply", &folder, "--dry-run"]).await;
        assert_eq!(
            dry.lines().filter(|line| line.ends_with("is new")).count(),
            3,
            "{dry}"
        );
        assert_eq!(provost.get("/v1/agents/payments").await.status, 404);
        person.done(&["apply", &folder, "--yes"]).await;
        let same = person.done(&["diff", &folder]).await;
        assert_eq!(
            same.lines()
                .filter(|line| line.ends_with("is the same"))
                .count(),
            3,
            "{same}"
        );
        let again = person.json(&["apply", &folder, "--yes"]).await;
        let changes: Vec<_> = again["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| &item["change"])
            .collect();
        assert_eq!(changes, [&json!("same"); 3]);
        assert_eq!(
            provost.get("/v1/workflows/order").await.expect(200)["version"],
            1
        );

        person.file(
            "defs/workflows/order.yaml",
            &WORKFLOW.replace("/charges", "/payments"),
        );
        let changed = person.run(&["diff", &folder]).await;
        assert_eq!(changed.code, 2, "{changed:?}");
        for line in [
            "- steps.charge.request.path: \"/charges\"",
            "+ steps.charge.request.path: \"/payments\"",
        ] {
            assert!(changed.out.contains(line), "{}", changed.out);
        }
        // One definition changes without a question.
        person.done(&["apply", &folder]).await;
        assert_eq!(
            provost.get("/v1/workflows/order").await.expect(200)["version"],
            2
        );
        person
            .done(&[
                "workflow",
                "promote",
                "order",
                "1",
                "--reason",
                "it was right",
            ])
            .await;
        let stays = person.done(&["diff", &folder]).await;
        assert!(
            stays.contains("is the same; version 1 is the active one"),
            "{stays}"
        );
        let activates = ["apply", &folder, "--activate", "--dry-run"];
        let dry = person.done(&activates).await;
        assert!(dry.contains("version 2 becomes the active one"), "{dry}");
        let json = person.json(&activates).await;
        let items = json["items"].as_array().unwrap();
        let order = items.iter().find(|item| item["name"] == "order").unwrap();
        assert_eq!(
            (&order["active_version"], &order["activates"]),
            (&json!(1), &json!(true))
        );
        let applied = person.done(&["apply", &folder, "--activate"]).await;
        assert!(
            applied.contains("version 2 becomes the active one"),
            "{applied}"
        );
        assert_eq!(
            provost.get("/v1/workflows/order").await.expect(200)["active_version"],
            2
        );

        // An export has everything that the server has.
        person.done(&["export", "exported", "--yaml"]).await;
        let exported = person.done(&["diff", "exported"]).await;
        assert_eq!(
            exported
                .lines()
                .filter(|line| line.ends_with("is the same"))
                .count(),
            3,
            "{exported}"
        );
        let got = person
            .done(&["get", "workflow", "order", "--version", "1"])
            .await;
        let got: serde_json::Value = serde_json::from_str(&got).unwrap();
        assert_eq!(got["steps"][0]["request"]["path"], "/charges");

        // Nothing is deleted unless it is asked for.
        std::fs::remove_file(format!("{folder}/schedules/nightly.json")).unwrap();
        person.done(&["apply", &folder]).await;
        assert_eq!(provost.get("/v1/schedules/nightly").await.status, 200);
        let dry = ["apply", &folder, "--prune", "--dry-run"];
        let dry = person.json(&dry).await;
        let deleted = dry["items"].as_array().unwrap().last().unwrap();
        assert_eq!(
            (&deleted["name"], &deleted["change"]),
            (&json!("nightly"), &json!("deleted"))
        );
        let pruned = person.run(&["apply", &folder, "--prune"]).await;
        assert_eq!(pruned.code, 1, "{pruned:?}");
        person.done(&["apply", &folder, "--prune", "--yes"]).await;
        assert_eq!(provost.get("/v1/schedules/nightly").await.status, 404);
        assert_eq!(provost.get("/v1/agents/payments").await.status, 200);
    }
}

#[tokio::test]
async fn nothing_is_applied_if_a_definition_would_be_refused() {
    let provost = crate::harness::Provost::start().await;
    let person = Person::of(&provost);
    let folder = folder(&person);
    person.file(
        "defs/agents/wrong.json",
        "{\n  \"endpoints\": [{ \"url\": 7 }]\n}",
    );
    person.file(
        "defs/schedules/wrong.json",
        "{ \"every\": \"often\",\n  \"workflow\": \"order\" }",
    );
    person.file(
        "defs/workflows/wrong.yaml",
        "steps:\n  - name: charge\n    agent: nobody\n    request: { path: / }\n",
    );
    for command in [
        &["apply", &folder, "--yes"][..],
        &["apply", &folder, "--dry-run"],
        &["diff", &folder],
    ] {
        let refused = person.run(command).await;
        assert_eq!(refused.code, 5, "{command:?}: {refused:?}");
        for fault in [
            "agents/wrong.json:2:",
            "schedules/wrong.json:1:",
            "workflows/wrong.yaml:3:5",
        ] {
            assert!(refused.err.contains(fault), "{fault}: {refused:?}");
        }
        assert!(!refused.err.contains("payments"), "{refused:?}");
    }
    assert_eq!(provost.get("/v1/agents/payments").await.status, 404);
}

#[tokio::test]
async fn names_of_definitions_have_every_form() {
    let provost = crate::harness::Provost::start().await;
    let person = Person::of(&provost);
    let folder = folder(&person);
    person.done(&["apply", &folder, "--yes"]).await;
    assert_eq!(person.done(&["get", "workflows"]).await, "order\n");
    let listed = person.json(&["get", "agents"]).await;
    assert_eq!(listed, provost.get("/v1/agents").await.expect(200));
    let lines = person.done(&["get", "schedules", "-o", "jsonl"]).await;
    assert!(lines.starts_with("{\"name\":\"nightly\""), "{lines}");
}

#[tokio::test]
async fn a_refused_file_is_named_with_line_and_column() {
    let provost = crate::harness::Provost::start().await;
    let person = Person::of(&provost);
    let file = person.file(
        "order.yaml",
        "steps:\n  - name: charge\n    agent: nobody\n    request: { path: /charges }\n",
    );
    let ran = person.run(&["apply", &file]).await;
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(
        ran.err.contains(&format!("{file}:3:5: /steps/0/agent")),
        "{ran:?}"
    );
    let broken = person.file("broken.json", "{\n  \"steps\": [,]\n}");
    let ran = person.run(&["apply", &broken]).await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(
        ran.err.contains(&format!("{broken}:2:13: is not JSON")),
        "{ran:?}"
    );
    let task = person.file(
        "task.json",
        "{ \"steps\": [\n  { \"name\": \"a\", \"url\": 7 }] }",
    );
    let ran = person.run(&["submit", "--file", &task]).await;
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(
        ran.err.contains(&format!("{task}:2:18: /steps/0/url")),
        "{ran:?}"
    );
}
