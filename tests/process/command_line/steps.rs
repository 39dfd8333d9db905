//! Steps that wait for a signal or for people, and tasks that move to another version.

use serde_json::json;

use super::{Person, ran};
use crate::harness::{Provost, Remote};

const CONFIG: &str = r#"
[[tokens]]
name = "boss"
token = "boss-0123456789abcdef"
role = "admin"
[[alert_webhooks]]
name = "mailer"
url = "http://127.0.0.1:1/mailer"
"#;

#[tokio::test]
async fn an_administrator_answers_a_question_for_each_person() {
    let provost = Provost::setup().config(CONFIG).start().await;
    let person = Person::of(&provost);
    let as_boss = async |arguments: &[&str]| {
        let mut command = person.command();
        ran(command
            .args(arguments)
            .env("PROVOST_TOKEN", "boss-0123456789abcdef"))
        .await
    };
    let ask = json!({ "title": "Refund?", "of": ["ada", "bob"], "approvals": 2,
        "fields": [{ "name": "amount", "type": "number", "required": true }] });
    let task = json!({ "key": "refund-1", "steps": [{ "name": "approval", "signal": { "within": "1h", "ask": ask } }] });
    let file = person.file("task.json", &task.to_string());
    let submitted = as_boss(&["submit", "--file", &file]).await;
    assert_eq!(submitted.code, 0, "{submitted:?}");
    let list = as_boss(&["ask", "list"]).await;
    assert!(
        list.out.contains("ada, bob") && list.out.contains("Refund?"),
        "{list:?}"
    );
    let shown = as_boss(&["task", "refund-1"]).await;
    assert!(shown.out.contains("asks: Refund?"), "{shown:?}");
    let nobody = as_boss(&["ask", "answer", "refund-1", "approve", "--person", "eve"]).await;
    assert_eq!(nobody.code, 5, "{nobody:?}");
    for name in ["ada", "bob"] {
        let arguments = [
            "ask",
            "answer",
            "refund-1",
            "approve",
            "--person",
            name,
            "--field",
            "amount=99.5",
            "--comment",
            "fine",
        ];
        let answered = as_boss(&arguments).await;
        assert_eq!(answered.code, 0, "{answered:?}");
    }
    let followed = as_boss(&["task", "refund-1", "--follow"]).await;
    assert_eq!(followed.code, 0, "{followed:?}");
    let task = as_boss(&["task", "refund-1", "-o", "json"]).await;
    let task: serde_json::Value = serde_json::from_str(&task.out).unwrap();
    assert_eq!(
        task["steps"][0]["output"]["fields"]["amount"], 99.5,
        "{task:#}"
    );
}

#[tokio::test]
async fn the_server_of_a_link_gets_the_token_of_no_other_server() {
    let provost = Provost::start().await;
    let person = Person::of(&provost);
    let elsewhere = Remote::quick().await;
    let link = format!("{}/v1/asks/AZc0bXx", elsewhere.url());
    let mut command = person.command();
    command
        .args(["ask", "answer", &link, "approve"])
        .env("PROVOST_TOKEN", "boss-0123456789abcdef");
    let answered = ran(&mut command).await;
    assert_eq!(answered.code, 0, "{answered:?}");
    let asked = elsewhere.requests(1).await;
    assert_eq!(asked[0].path, "/v1/asks/AZc0bXx");
    assert_eq!(asked[0].headers.get("authorization"), None, "{asked:?}");
}

#[tokio::test]
async fn a_signal_is_sent_and_a_task_moves_to_another_version() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let person = Person::of(&provost);
    let signal = json!({ "name": "paid", "signal": { "within": "1h" } });
    let call = json!({ "name": "ship", "after": ["paid"], "url": remote.url(), "request": { "path": "/ship" } });
    person.file("order.json", &json!({ "steps": [signal] }).to_string());
    person.done(&["apply", "order.json"]).await;
    person.done(&["submit", "order", "--key", "order-1"]).await;
    person.file(
        "order.json",
        &json!({ "steps": [signal, call] }).to_string(),
    );
    person.done(&["apply", "order.json"]).await;
    let without = person.run(&["migrate", "order-1"]).await;
    assert_eq!(without.code, 1, "{without:?}");
    let dry = person
        .done(&["migrate", "order-1", "--to", "latest", "--dry-run"])
        .await;
    assert!(dry.contains("ship") && dry.contains("added"), "{dry}");
    person.done(&["migrate", "order-1", "--to", "2"]).await;
    person
        .done(&["signal", "order-1", "paid", r#"{ "amount": 5 }"#])
        .await;
    person.done(&["task", "order-1", "--follow"]).await;
    let task = person.json(&["task", "order-1"]).await;
    assert_eq!(task["steps"][0]["output"], json!({ "amount": 5 }));
    assert_eq!(
        (&task["workflow_version"], &task["steps"][1]["state"]),
        (&json!(2), &json!("processed"))
    );

    // Without a task it is the command that migrates a database, as before.
    let migrated = person
        .run(&["migrate", "--database-url", "sqlite://new.db"])
        .await;
    assert_eq!(migrated.code, 0, "{migrated:?}");
    assert!(person.folder.path().join("new.db").exists());
    // A server has no part in that, and its options are a slip.
    std::fs::remove_file(person.folder.path().join("new.db")).unwrap();
    let of_server = [
        "migrate",
        "--server",
        "http://127.0.0.1:1",
        "--database-url",
        "sqlite://new.db",
    ];
    let refused = person.run(&of_server).await;
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(!person.folder.path().join("new.db").exists());
}
