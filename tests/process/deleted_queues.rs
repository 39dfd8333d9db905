//! Queues that are deleted while they are read, and a queue of a separate broker.

use lapin::{BasicProperties, options::QueueDeleteOptions};
use serde_json::{Value, json};

use crate::harness::{Broker, Provost, Rabbit, Remote, alerts, one_step, until};

const UP: &str = r#"provost_broker_up{broker="broker"}"#;

#[tokio::test]
async fn a_queue_that_is_deleted_while_it_is_read_is_declared_and_read_again() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    let service = Remote::quick().await;
    let provost = Provost::setup()
        .set("BROKER__URL", &rabbit.url())
        .set("INTAKE", r#"[{name="shop",queue="orders"}]"#)
        .start()
        .await;
    client.declare("charges").await;
    // Provost is ready before it has declared the queues that it reads.
    until(true, || async { client.depth("orders").await.is_some() }).await;
    let agent = json!({ "endpoints": [{ "url": "amqp://broker/charges" }] });
    provost.put("/v1/agents/pay", &agent).await.expect(201);
    let charge = json!({ "steps": [{ "name": "charge", "agent": "pay" }] });
    let delete = async |queue: &str| {
        let options = QueueDeleteOptions::default();
        client
            .channel
            .queue_delete(queue.into(), options)
            .await
            .unwrap();
    };
    let mut replies = None;
    for round in 0..3 {
        client
            .submit(
                "orders",
                &format!("m-{round}"),
                &one_step(&service.url(), "/a"),
            )
            .await;
        until(round + 1, || async { service.count() }).await;
        let id = provost.submit(&charge).await;
        let request = client.take("charges").await;
        let queue = request.properties.reply_to().as_ref().unwrap().to_string();
        let reply = BasicProperties::default()
            .with_correlation_id(request.correlation_id().as_str().into());
        client.publish(&queue, br#"{"output":1}"#, reply).await;
        assert_eq!(provost.settled(&id).await["state"], "processed");
        delete("orders").await;
        delete(&queue).await;
        // Both are declared again.
        until(true, || async { client.depth("orders").await.is_some() }).await;
        until(true, || async { client.depth(&queue).await.is_some() }).await;
        replies = Some(queue);
    }
    provost.says("the queue may have been deleted").await;
    until(1.0, || provost.metric(UP)).await;
    // A missing queue is no alert if it is declared again at once.
    assert_eq!(alerts(&provost, "open").await, Vec::<Value>::new());
    assert!(replies.unwrap().starts_with("provost.replies."));
}

#[tokio::test]
async fn an_intake_may_have_a_broker_of_its_own() {
    let mut own = Rabbit::start().await;
    let client = own.client().await;
    client.declare("private").await;
    let service = Remote::quick().await;
    let intake = format!(r#"[{{name="eu",queue="orders",url="{}"}}]"#, own.url());
    let provost = Provost::setup().set("INTAKE", &intake).start().await;
    until(true, || async { client.depth("orders").await.is_some() }).await;
    let named = |id: &str| {
        BasicProperties::default()
            .with_message_id(id.into())
            .with_correlation_id(id.into())
            .with_reply_to("private".into())
    };
    // Replies, dead letters and refusals go to the broker that the message came from.
    let good = one_step(&service.url(), "/charge").to_string();
    client
        .publish("orders", good.as_bytes(), named("m-1"))
        .await;
    let reply = client.take("private").await;
    assert_eq!(
        (reply.correlation_id(), &reply.body["type"]),
        ("m-1".into(), &json!("task.processed"))
    );
    client.publish("orders", b"{", named("m-2")).await;
    let refusal = client.take("private").await;
    assert_eq!(refusal.correlation_id(), "m-2");
    assert_eq!(refusal.headers["provost-problem-type"], "malformed-json");
    assert_eq!(client.take("orders.dead").await.message_id(), "m-2");
    let up = r#"provost_broker_up{broker="eu"}"#;
    assert_eq!(provost.metric(up).await, 1.0);
    // A task cannot name queues of this broker: only [broker] has queues for tasks.
    let mut task = one_step(&service.url(), "/charge");
    task["reply_to"] = json!({ "queue": "private" });
    provost
        .post("/v1/tasks", &task)
        .await
        .expect_problem(422, "invalid");
    own.kill().await;
    until(0.0, || provost.metric(up)).await;
    until(1, || async { alerts(&provost, "open").await.len() }).await;
    assert_eq!(alerts(&provost, "open").await[0]["receiver"], "broker:eu");
    own.start_again().await;
    until(1.0, || provost.metric(up)).await;
    until(0, || async { alerts(&provost, "open").await.len() }).await;
    let client = own.client().await;
    client
        .submit("orders", "m-3", &one_step(&service.url(), "/charge"))
        .await;
    until(2, || async { service.count() }).await;
}
