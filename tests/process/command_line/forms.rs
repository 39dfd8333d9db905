//! The forms of the output: `-o` of commands that follow, of files and of pictures; and which server a command asks.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::Person;
use crate::harness::{Provost, Remote, one_step};

/// A folder with an agent and a workflow of one step.
fn definitions(person: &Person) -> String {
    let folder = person.folder.path().join("definitions");
    std::fs::create_dir(&folder).unwrap();
    let file = |name: &str, definition: Value| {
        std::fs::write(folder.join(name), definition.to_string()).unwrap();
    };
    file(
        "payments.json",
        json!({ "endpoints": [{ "url": "http://127.0.0.1:1" }] }),
    );
    let step = json!({ "name": "charge", "agent": "payments", "request": { "path": "/" } });
    file("order.json", json!({ "steps": [step] }));
    folder.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_task_is_followed_in_every_form() {
    let provost = Provost::start().await;
    let service = Remote::quick().await;
    let mut task = one_step(&service.url(), "/charge");
    task["key"] = json!("order-1");
    provost.run(&task).await;
    let person = Person::of(&provost);
    let follow = async |form: &str| {
        let arguments = ["task", "order-1", "--follow", "-o", form];
        person.done(&arguments).await
    };
    let lines = follow("jsonl").await;
    let entries: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(entries[0]["type"], "task.accepted");
    let names: String = entries
        .iter()
        .map(|entry| format!("{}\n", entry["seq"].as_str().unwrap()))
        .collect();
    assert_eq!(follow("name").await, names);
    let documents = follow("yaml").await;
    assert_eq!(documents.matches("---\n").count(), entries.len());
    assert!(documents.contains("type: task.accepted\n"), "{documents}");
}

#[tokio::test]
async fn definitions_are_compared_applied_and_exported_in_every_form() {
    let provost = Provost::start().await;
    let person = Person::of(&provost);
    let folder = definitions(&person);
    let compared = person.run(&["diff", &folder, "-o", "jsonl"]).await;
    assert_eq!(compared.code, 2, "{compared:?}");
    let items: Vec<Value> = compared
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |at: usize| format!("{}/{}", items[at]["kind"], items[at]["name"]);
    assert_eq!(items.len(), 2);
    assert_eq!(of(1), r#""workflow"/"order""#);
    let applied = person
        .done(&["apply", &folder, "--yes", "-o", "name"])
        .await;
    assert_eq!(applied, "agent/payments\nworkflow/order\n");
    let again = person.done(&["apply", &folder, "-o", "name"]).await;
    assert_eq!(again, "");
    let to = person.folder.path().join("exported");
    let to = to.to_str().unwrap();
    let exported = person.json(&["export", to]).await;
    let files = exported["items"].as_array().unwrap();
    assert_eq!(files[1]["kind"], "workflow");
    assert_eq!(files[1]["name"], "order");
    let file = files[1]["file"].as_str().unwrap();
    assert!(std::fs::exists(file).unwrap(), "{file}");
    let picture = person
        .run(&["workflow", "graph", "order", "-o", "json"])
        .await;
    assert_eq!((picture.code, &*picture.out), (1, ""), "{picture:?}");
    assert!(picture.err.contains("--format"), "{picture:?}");
}

#[tokio::test]
async fn a_link_names_its_server_and_a_broken_file_of_contexts_stops_only_who_needs_it() {
    let provost = Provost::start().await;
    let ask = json!({ "name": "approval", "signal": { "within": "1h", "ask": { "title": "Refund?", "of": ["ada"] } } });
    let task = json!({ "key": "refund-1", "steps": [ask] });
    provost.post("/v1/tasks", &task).await.expect(202);
    let person = Person::without_server();
    let url = format!("http://{}", provost.address());
    let login = ["login", "dev", "--url", &url, "--no-token"];
    person.done(&login).await;
    let asks = person.json(&["ask", "list"]).await;
    let link = asks["items"][0]["people"][0]["link"].as_str().unwrap();
    std::fs::write(person.folder.path().join("contexts.toml"), "[broken").unwrap();
    let status = person.run(&["status"]).await;
    assert_eq!(status.code, 1, "{status:?}");
    assert!(status.err.contains("contexts.toml"), "{status:?}");
    person.done(&["status", "--server", &url]).await;
    let answered = person.run(&["ask", "answer", link, "approve"]).await;
    assert_eq!(answered.code, 0, "{answered:?}");
    let followed = ["task", "refund-1", "--follow", "--server", &url];
    person.done(&followed).await;
}

#[tokio::test]
async fn a_task_that_starts_later_says_when_and_how_to_start_it_now() {
    let provost = Provost::start().await;
    let mut task = one_step("http://127.0.0.1:1", "/charge");
    task["key"] = json!("order-1");
    let start = (Timestamp::now() + SignedDuration::from_hours(72)).to_string();
    task["start_at"] = json!(start);
    provost.post("/v1/tasks", &task).await.expect(202);
    let day = &start[..10];
    let person = Person::of(&provost);
    let shown = person.done(&["task", "order-1", "--utc"]).await;
    let sentence = format!("is pending: it starts {day}");
    assert!(shown.contains(&sentence), "{shown}");
    assert!(shown.contains("provost start order-1"), "{shown}");
}
