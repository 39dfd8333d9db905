//! The receivers of the links with which people decide, and the messages that contain the links.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Api, Call, Database, Gate, Provost, Remote, Seen, id_of, new_database, sql};

const BOSS: &str = "Bearer boss-0123456789abcdef";
const SHOP: &str = "Bearer shop-0123456789abcdef";
const FORM: &str = "application/x-www-form-urlencoded";

fn config(remote: &Remote) -> String {
    let url = remote.url();
    format!(
        r#"
[[tokens]]
name = "boss"
token = "boss-0123456789abcdef"
role = "admin"
[[tokens]]
name = "shop"
token = "shop-0123456789abcdef"
role = "submit"
[[alert_webhooks]]
name = "mailer"
url = "{url}/mailer"
"#
    )
}

fn refund(send_to: &Value) -> Value {
    json!({ "steps": [{ "name": "approval", "signal": { "within": "1h", "ask": {
        "title": "Refund?", "of": ["ada", "bob"], "approvals": 2, "send_to": send_to } } }] })
}

async fn register(api: &Api, send_to: &Value) -> crate::harness::Answer {
    let put = api.put("/v1/workflows/refund", &refund(send_to));
    put.header("authorization", BOSS).await
}

fn people(seen: &Seen) -> Vec<Option<String>> {
    let people = seen.body["data"]["ask"]["people"].as_array().unwrap();
    let link = |person: &Value| person["link"].as_str().map(str::to_owned);
    people.iter().map(link).collect()
}

/// Waits until there are `count` requests of one path, and returns them.
async fn at(remote: &Remote, path: &'static str, count: usize) -> Vec<Seen> {
    let mut seen = remote.paths(path, count).await;
    seen.retain(|seen| seen.path == path);
    seen
}

fn path(link: &str) -> &str {
    &link[link.find("/v1/asks/").unwrap()..]
}

/// Returns the bodies of the stored messages that are not delivered yet.
fn outbox(provost: &Provost, url: Option<&str>) -> String {
    match url {
        Some(url) => sql(url, "SELECT string_agg(body, ' ') FROM messages"),
        None => {
            drop(Database::copy_of(&provost.database()));
            let mut bytes = Vec::new();
            for suffix in ["", "-wal"] {
                let file = format!("{}{suffix}", provost.database().display());
                bytes.extend(std::fs::read(file).unwrap_or_default());
            }
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }
}

#[tokio::test]
async fn a_submitter_approves_in_nobodys_name_and_no_link_stands_in_the_database() {
    let url = new_database().await;
    for url in [None, Some(url.as_str())] {
        let gate = Gate::closed();
        let held = gate.clone();
        let remote = Remote::with(move |seen| match seen.path.as_str() {
            "/mailer" => held.then(json!({})),
            _ => crate::harness::Act::Ok(json!({})),
        })
        .await;
        let mut setup = Provost::setup().config(&config(&remote));
        if let Some(url) = url {
            setup = setup.database_url(url);
        }
        let provost = setup.start().await;
        let api = provost.api();
        register(api, &Value::Null).await.expect(201);
        let events = [
            "task.accepted",
            "step.asked",
            "step.processed",
            "task.processed",
        ];
        let submission = json!({ "workflow": "refund",
            "reply_to": { "url": format!("{}/reply", remote.url()), "events": events } });
        let submitted = api
            .post("/v1/tasks", &submission)
            .header("authorization", SHOP);
        let id = id_of(&submitted.await.expect(202));
        // The task's own address gets the event of the ask, without the links.
        let replies = at(&remote, "/reply", 2).await;
        let asked = replies
            .iter()
            .find(|seen| seen.body["type"] == "step.asked")
            .unwrap();
        assert_eq!(people(asked), [None, None]);
        at(&remote, "/mailer", 1).await;
        let stored = outbox(&provost, url);
        assert!(stored.contains("/v1/asks/"), "{stored}");
        // The submitter does not get the links by any request either.
        let as_shop = |call: Call| call.header("authorization", SHOP);
        for read in [
            format!("/v1/tasks/{id}"),
            format!("/v1/tasks/{id}/history"),
            format!("/v1/tasks/{id}/graph"),
            format!("/v1/tasks/{id}/steps"),
            "/v1/tasks".to_owned(),
            "/v1/asks?open=true".to_owned(),
            "/v1/messages".to_owned(),
            format!("/v1/messages?task={id}"),
        ] {
            let answer = as_shop(api.get(&read)).await;
            assert!(
                !answer.body.to_string().contains("/v1/asks/"),
                "{read}: {answer:?}"
            );
        }
        // A clone is a task of the workflow too, whatever its own address is.
        let own = json!({ "reply_to": { "url": format!("{}/clone", remote.url()), "events": ["step.asked"] } });
        let clone = as_shop(api.post(&format!("/v1/tasks/{id}/clone"), &own));
        clone.await.expect(202);
        assert_eq!(people(&at(&remote, "/clone", 1).await[0]), [None, None]);
        gate.open();
        let sent = at(&remote, "/mailer", 1).await;
        let links: Vec<_> = people(&sent[0]).into_iter().map(Option::unwrap).collect();
        for link in &links {
            let token = path(link).strip_prefix("/v1/asks/").unwrap();
            assert!(!stored.contains(token), "{token} stands in the database");
            let decided = api
                .call(Method::POST, path(link))
                .text(FORM, "choice=approve");
            assert_eq!(decided.await.status, 200);
        }
        let task = api.get(&format!("/v1/tasks/{id}?wait=30s"));
        let task = task.header("authorization", BOSS).await.expect(200);
        assert_eq!(task["state"], "processed", "{task:#}");
    }
}

#[tokio::test]
async fn a_definition_names_receivers_that_are_configured_or_reply_to() {
    let remote = Remote::quick().await;
    let provost = Provost::setup().config(&config(&remote)).start().await;
    let api = provost.api();
    let refused = register(api, &json!(["mialer"])).await;
    let problem = refused.expect_problem(422, "invalid");
    let fault = problem["errors"][0].to_string();
    assert!(
        fault.contains("/send_to") && fault.contains("did you mean \\\"mailer\\\""),
        "{fault}"
    );
    register(api, &json!(["reply_to"])).await.expect(201);
    let submission = json!({ "workflow": "refund", "reply_to": { "url": format!("{}/reply", remote.url()), "events": ["step.asked"] } });
    let submitted = api
        .post("/v1/tasks", &submission)
        .header("authorization", SHOP);
    submitted.await.expect(202);
    let reply = at(&remote, "/reply", 1).await;
    let link = people(&reply[0])[0].clone().unwrap();
    assert_eq!(api.get(path(&link)).await.status, 200);
    let mail = at(&remote, "/mailer", 1).await;
    assert_eq!(people(&mail[0]), [None, None]);
}
