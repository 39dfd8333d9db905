//! Alerts that reach people: pushed to webhooks when they are raised, and when they close.

use serde_json::{Value, json};

use crate::{
    cluster,
    harness::{Act, Provost, Remote, Setup, one_step, until_messages, verify},
};

const SECRET: &str = "whsec_bmV3IHNlY3JldCBvZiB0aGUgc2hvcCwgMzIgYnl0ZXM=";

fn setup(ops: &Remote, chat: &Remote) -> Setup {
    let config = format!(
        "public_url = \"https://provost.example/\"\n\
         console_url = \"https://ops.example/\"\n\
         [[alert_webhooks]]\nname = \"ops\"\nurl = \"{}/ops\"\nsecrets = [\"{SECRET}\"]\n\
         [[alert_webhooks]]\nname = \"chat\"\nurl = \"{}/T1/verysecret\"\nformat = \"slack\"\n",
        ops.url(),
        chat.url(),
    );
    Provost::setup()
        .set("COURIER__RETRY_INITIAL", "20ms")
        .set("COURIER__RETRY_MAX", "200ms")
        .config(&config)
}

async fn databases(setup: Setup) -> [Setup; 2] {
    let url = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    [setup.clone(), setup.database_url(&url)]
}

#[tokio::test]
async fn people_are_told_that_a_task_needs_them_and_programs_that_it_no_longer_does() {
    for database in [0, 1] {
        let (ops, chat) = (Remote::quick().await, Remote::quick().await);
        let service = Remote::script([Act::status(402), Act::status(200)]).await;
        let setups = databases(setup(&ops, &chat)).await;
        let provost = setups[database].clone().start().await;
        let mut submission = one_step(&service.url(), "/");
        submission["key"] = json!("order <1>");
        let task = provost.run(&submission).await;
        assert_eq!(task["state"], "error");
        let id = task["id"].as_str().unwrap();

        let raised = ops.requests(1).await.remove(0);
        assert!(verify(&raised, SECRET), "{raised:?}");
        assert_eq!(raised.path, "/ops");
        assert_eq!(raised.body["type"], "alert.raised");
        let alert = &raised.body["data"]["alert"];
        assert_eq!(
            (&alert["kind"], &alert["state"]),
            (&json!("task.error"), &json!("open"))
        );
        assert_eq!(
            (&alert["task"], &alert["step"]),
            (&json!(id), &json!("only"))
        );
        let link = format!("https://provost.example/v1/tasks/{id}");
        assert_eq!(raised.body["data"]["link"], link);
        let shown = provost.get("/v1/alerts?state=open").await.expect(200);
        assert_eq!(shown["items"][0]["id"], alert["id"]);

        let told = chat.requests(1).await.remove(0);
        assert_eq!(told.path, "/T1/verysecret");
        assert_eq!(told.header("content-type"), "application/json");
        let text = told.body["text"].as_str().unwrap();
        for words in [
            "order &lt;1&gt;",
            "402",
            &format!("<https://ops.example/v1/tasks/{id}|"),
        ] {
            assert!(text.contains(words), "{words} in {text}");
        }

        provost
            .command(&format!("/v1/tasks/{id}/retry"))
            .await
            .expect(200);
        let closed = ops.requests(2).await.remove(1);
        assert_eq!(closed.body["type"], "alert.closed");
        assert_eq!(closed.body["data"]["alert"]["id"], alert["id"]);
        assert_eq!(provost.settled(id).await["state"], "processed");
        assert_eq!((ops.count(), chat.count()), (2, 1));
        assert!(!provost.log().contains("verysecret") && !provost.log().contains("whsec_"));
    }
}

#[tokio::test]
async fn messages_that_cannot_be_delivered_are_told_once_for_a_receiver() {
    let (ops, chat) = (
        Remote::quick().await,
        Remote::script([Act::status(410)]).await,
    );
    let service = Remote::quick().await;
    let shop = Remote::script([Act::status(410)]).await;
    let provost = setup(&ops, &chat).start().await;
    let mut submission = one_step(&service.url(), "/");
    submission["reply_to"] = json!({ "url": shop.url() });
    for _ in 0..3 {
        provost.run(&submission).await;
    }
    // One alert is about the shop. The chat refuses that alert, so a second alert is about the chat.
    let seen = ops.requests(2).await;
    let receivers: Vec<&Value> = seen
        .iter()
        .map(|seen| &seen.body["data"]["alert"]["receiver"])
        .collect();
    let origin = json!(shop.url());
    assert_eq!(receivers, [&origin, &json!("alerts:chat")]);
    shop.requests(3).await;
    let link = seen[0].body["data"]["link"].as_str().unwrap();
    assert!(
        link.starts_with("https://provost.example/v1/messages?state=dead&receiver=http"),
        "{link}"
    );
    let dead = until_messages(&provost, "dead", 4).await;
    assert!(!json!(dead).to_string().contains("verysecret"));
    assert_eq!(chat.count(), 1, "a webhook is not told of itself");
}

#[tokio::test]
async fn a_webhook_that_is_away_is_told_later() {
    let chat = Remote::quick().await;
    let ops = Remote::script([Act::status(503), Act::status(503), Act::status(200)]).await;
    let service = Remote::script([Act::status(402)]).await;
    let provost = setup(&ops, &chat).start().await;
    provost.run(&one_step(&service.url(), "/")).await;
    let seen = ops.requests(3).await;
    assert_eq!(seen[0].raw, seen[2].raw);
    assert_eq!(seen[0].header("webhook-id"), seen[2].header("webhook-id"));
}
