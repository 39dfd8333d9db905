//! The submitter of a refused message gets the refusal in the queue that the message names for replies.

use std::time::Duration;

use futures::StreamExt;
use lapin::{
    BasicProperties,
    options::{BasicConsumeOptions, BasicPublishOptions},
    types::{AMQPValue, FieldTable},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::harness::{Broker, PATIENCE, Provost, Remote, Setup, messages, one_step, until};

fn reading(setup: Setup, url: &str) -> Setup {
    setup
        .set("BROKER__URL", url)
        .set("INTAKE", r#"[{name="shop",queue="orders"}]"#)
        .set("COURIER__RETRY_INITIAL", "20ms")
        .set("COURIER__RETRY_MAX", "200ms")
}

fn named(id: &str, reply_to: &str) -> BasicProperties {
    BasicProperties::default()
        .with_message_id(id.into())
        .with_correlation_id(format!("c-{id}").as_str().into())
        .with_reply_to(reply_to.into())
}

#[tokio::test]
async fn the_submitter_of_a_refused_message_gets_the_problem() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    client.declare("orders").await;
    client.declare("shop.replies").await;
    let service = Remote::quick().await;
    let _provost = reading(Provost::setup(), &rabbit.url()).start().await;
    let good = one_step(&service.url(), "/charge").to_string();
    let many: Vec<_> = (0..400)
        .map(|at| json!({ "name": format!("s{at}"), "ürl": 1 }))
        .collect();
    let many = json!({ "steps": many }).to_string();
    let mut ids = Vec::new();
    for (id, body, slug) in [
        ("m-1", "{\"steps\": [", "malformed-json"),
        ("m-2", "{\"steps\": []}", "invalid"),
        // The message is delivered again.
        ("m-2", "{\"steps\": []}", "invalid"),
        ("m-3", &good, ""),
        ("m-3", "{\"steps\": 7}", "invalid"),
        ("m-4", &many, "invalid"),
    ] {
        client
            .publish("orders", body.as_bytes(), named(id, "shop.replies"))
            .await;
        let told = client.take("shop.replies").await;
        assert_eq!(told.correlation_id(), format!("c-{id}"));
        if slug.is_empty() {
            assert_eq!(told.body["type"], "task.processed");
            continue;
        }
        assert_eq!(
            told.properties.kind().as_ref().unwrap().as_str(),
            "submission.refused"
        );
        let content_type = told.properties.content_type().as_ref().unwrap();
        assert_eq!(content_type.as_str(), "application/problem+json");
        assert_eq!(told.body["type"], format!("/problems/{slug}"), "{told:?}");
        assert_eq!(told.body["detail"], told.headers["provost-problem-detail"]);
        assert_eq!(told.headers["provost-problem-type"], slug);
        assert_eq!(told.headers["provost-message-id"], id);
        assert_eq!(told.headers["provost-intake"], "shop");
        assert_eq!(told.properties.delivery_mode(), &Some(2));
        // The refusal names no queue for replies, so it gets none.
        assert!(told.properties.reply_to().is_none());
        assert_eq!(client.take("orders.dead").await.message_id(), id);
        ids.push(told.message_id());
    }
    assert_eq!(ids[1], ids[2]);
    ids.dedup();
    assert_eq!(ids.len(), 4, "{ids:?}");
    until(Some(0), || client.depth("orders")).await;
}

#[tokio::test]
async fn a_queue_that_takes_no_refusal_does_not_hold_up_the_intake() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    client.declare("orders").await;
    let full = [
        ("x-max-length", AMQPValue::LongInt(1)),
        ("x-overflow", AMQPValue::LongString("reject-publish".into())),
    ];
    client.declare_with("full", &full).await;
    client
        .publish("full", b"x", BasicProperties::default())
        .await;
    let service = Remote::quick().await;
    let provost = reading(Provost::setup(), &rabbit.url())
        .set("INTAKE", r#"[{name="shop",queue="orders",prefetch=1}]"#)
        .start()
        .await;
    // The intake itself is a queue too: its refusal is delivered to it once, and names no queue for another refusal.
    for queue in ["none", "full", "a\u{7}b", "orders"] {
        client.publish("orders", b"{", named(queue, queue)).await;
        assert_eq!(client.take("orders.dead").await.message_id(), queue);
    }
    let returned = client.take("orders.dead").await;
    assert_eq!(
        returned.properties.kind().as_ref().unwrap().as_str(),
        "submission.refused"
    );
    client
        .submit("orders", "good", &one_step(&service.url(), "/charge"))
        .await;
    until(1, || async { service.count() }).await;
    until(Some(0), || client.depth("orders")).await;
    assert_eq!(client.depth("none").await, None);
    provost.says("could not tell the sender").await;
    provost.says("reached no queue").await;
    let refused = r#"provost_intake_messages_total{intake="shop",result="refused"}"#;
    assert_eq!(provost.metric(refused).await, 5.0);
}

#[tokio::test]
async fn a_refused_message_cannot_have_provost_write_to_any_queue() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    for queue in ["orders", "shop.replies", "foreign"] {
        client.declare(queue).await;
    }
    let _provost = reading(Provost::setup(), &rabbit.url())
        .set("BROKER__REPLY_QUEUES", r#"["shop.*"]"#)
        .start()
        .await;
    client
        .publish("orders", b"{", named("m-1", "foreign"))
        .await;
    client
        .publish("orders", b"{", named("m-2", "shop.replies"))
        .await;
    client.take("shop.replies").await;
    until(Some(2), || client.depth("orders.dead")).await;
    until(Some(0), || client.depth("orders")).await;
    assert_eq!(client.depth("foreign").await, Some(0));
}

/// RabbitMQ's pseudo-queue for replies, which most clients of remote procedure calls use.
#[tokio::test]
async fn direct_replies_reach_the_submitter_once() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    client.declare("orders").await;
    let service = Remote::quick().await;
    let provost = reading(Provost::setup(), &rabbit.url())
        .set("BROKER__REPLY_QUEUES", r#"["amq.rabbitmq.reply-to.*"]"#)
        .start()
        .await;
    let options = BasicConsumeOptions {
        no_ack: true,
        ..BasicConsumeOptions::default()
    };
    let pseudo = "amq.rabbitmq.reply-to";
    let consumer =
        client
            .channel
            .basic_consume(pseudo.into(), "".into(), options, FieldTable::default());
    let mut replies = consumer.await.unwrap();
    let good = one_step(&service.url(), "/charge").to_string();
    for (id, body, wanted) in [
        ("bad", "{", "/problems/malformed-json"),
        ("good", &good, "task.processed"),
        ("worse", "[", "/problems/malformed-json"),
    ] {
        let options = BasicPublishOptions::default();
        let published = client.channel.basic_publish(
            "".into(),
            "orders".into(),
            options,
            body.as_bytes(),
            named(id, pseudo),
        );
        published.await.unwrap().await.unwrap();
        let reply = timeout(PATIENCE, replies.next()).await.unwrap();
        let reply = reply.unwrap().unwrap();
        let id = format!("c-{id}");
        assert_eq!(
            reply.properties.correlation_id().as_ref().unwrap().as_str(),
            id
        );
        let body: Value = serde_json::from_slice(&reply.data).unwrap();
        assert_eq!(body["type"], wanted);
    }
    until(0, || async { messages(&provost, "").await.len() }).await;
    // No second one follows.
    let more = timeout(Duration::from_millis(500), replies.next()).await;
    assert!(more.is_err(), "{more:?}");
}

/// RabbitMQ closes the connection that publishes to such a name.
#[tokio::test]
async fn a_forged_direct_reply_is_refused_and_breaks_no_connection() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    client.declare("orders").await;
    client.declare("shop.replies").await;
    let service = Remote::quick().await;
    let provost = reading(Provost::setup(), &rabbit.url()).start().await;
    // The name is in base64, with an integer instead of the id of a process.
    let forged = "amq.rabbitmq.reply-to.g2EB.6T7hUwTpkGBxGD0Ca2DmNQ==";
    let good = one_step(&service.url(), "/charge").to_string();
    for (id, body, slug) in [("m-1", "{", "malformed-json"), ("m-2", &*good, "invalid")] {
        client
            .publish("orders", body.as_bytes(), named(id, forged))
            .await;
        let dead = client.take("orders.dead").await;
        assert_eq!(dead.headers["provost-problem-type"], slug);
    }
    let mut task = one_step(&service.url(), "/charge");
    task["reply_to"] = json!({ "queue": forged });
    let refused = provost.post("/v1/tasks", &task).await;
    let refused = refused.expect_problem(422, "invalid").to_string();
    assert!(refused.contains("a direct reply of RabbitMQ"), "{refused}");
    client
        .publish("orders", good.as_bytes(), named("m-3", "shop.replies"))
        .await;
    assert_eq!(client.take("shop.replies").await.correlation_id(), "c-m-3");
    until(Some(0), || client.depth("orders")).await;
    assert!(
        !provost.log().contains("INTERNAL_ERROR"),
        "{}",
        provost.log()
    );
}
