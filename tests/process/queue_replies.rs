//! Replies to a queue: they come from the same outbox as those over HTTP, and a real RabbitMQ fails in many ways.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use lapin::types::AMQPValue;
use serde_json::{Value, json};

use crate::{
    cluster::{self, Proxy},
    harness::{
        Act, Broker, Provost, Queued, Rabbit, Remote, Setup, alerts, messages, one_step, pipeline,
        until, until_messages,
    },
};

const ALL: [&str; 3] = ["task.accepted", "step.processed", "task.processed"];

fn replying(setup: Setup, url: &str) -> Setup {
    setup
        .set("BROKER__URL", url)
        .set("COURIER__RETRY_INITIAL", "20ms")
        .set("COURIER__RETRY_MAX", "200ms")
}

fn told(mut submission: Value, queue: &str, events: &[&str]) -> Value {
    submission["reply_to"] = json!({ "queue": queue, "events": events });
    submission
}

/// Returns the kinds of events of each task, each event once, in the order of first arrival.
fn by_task(all: &[Queued]) -> BTreeMap<String, Vec<String>> {
    let mut known = HashMap::new();
    let mut tasks: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in all {
        assert_eq!(message.body["id"], message.message_id());
        match known.insert(message.message_id(), message.raw.clone()) {
            Some(before) => assert_eq!(before, message.raw, "a repetition is the same"),
            None => {
                let subject = message.body["subject"].as_str().unwrap().to_owned();
                let kind = message.body["type"].as_str().unwrap().to_owned();
                tasks.entry(subject).or_default().push(kind);
            }
        }
    }
    tasks
}

#[tokio::test]
async fn replies_to_a_queue_come_in_order_for_each_task() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    let url = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    let setups = [Provost::setup(), Provost::setup().database_url(&url)];
    for (at, setup) in setups.into_iter().enumerate() {
        let service = Remote::quick().await;
        let queue = format!("replies-{at}");
        client.declare(&queue).await;
        let provost = replying(setup, &rabbit.url()).start().await;
        for _ in 0..20 {
            let submission = told(pipeline(&service.url(), &["a", "b"]), &queue, &ALL);
            provost.submit(&submission).await;
        }
        let all = client.take_all(&queue, 80).await;
        let first = &all[0];
        let kind = first.properties.kind().as_ref().unwrap().to_string();
        assert_eq!(first.body["type"], kind);
        assert_eq!(first.headers["provost-try"], "1");
        assert_eq!(first.properties.delivery_mode(), &Some(2));
        let wanted = [
            "task.accepted",
            "step.processed",
            "step.processed",
            "task.processed",
        ];
        let tasks = by_task(&all);
        assert_eq!(tasks.len(), 20);
        assert!(tasks.values().all(|kinds| kinds == &wanted), "{tasks:?}");
        assert_eq!(client.depth(&queue).await, Some(0));
    }
}

#[tokio::test]
async fn a_reply_that_reaches_no_queue_or_a_full_one_is_retried_and_delays_no_other() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    let (service, shop) = (Remote::quick().await, Remote::quick().await);
    let full = [
        ("x-max-length", AMQPValue::LongInt(1)),
        ("x-overflow", AMQPValue::LongString("reject-publish".into())),
    ];
    client.declare_with("full", &full).await;
    client.declare("good").await;
    let provost = replying(Provost::setup(), &rabbit.url()).start().await;
    let submission = one_step(&service.url(), "/charge");
    let done = &ALL[2..];
    for _ in 0..2 {
        provost.run(&told(submission.clone(), "full", done)).await;
    }
    provost
        .run(&told(submission.clone(), "missing", done))
        .await;
    provost.run(&told(submission.clone(), "good", done)).await;
    let mut over_http = submission.clone();
    over_http["reply_to"] = json!({ "url": shop.url(), "events": done });
    provost.run(&over_http).await;
    client.take("good").await;
    shop.requests(1).await;
    let failing = until_messages(&provost, "pending", 2).await;
    let of = |url: &str| {
        let found = failing.iter().find(|message| message["url"] == url);
        found.unwrap_or_else(|| panic!("{failing:?}")).clone()
    };
    until(true, || async {
        let all = messages(&provost, "state=pending").await;
        let says = |url: &str, why: &str| {
            let message = all.iter().find(|message| message["url"] == url);
            message.is_some_and(|message| message.to_string().contains(why))
        };
        says("amqp://broker/missing", "reached no queue")
            && says("amqp://broker/full", "length limit")
    })
    .await;
    assert_eq!(of("amqp://broker/missing")["receiver"], "amqp://broker");
    client.declare("missing").await;
    assert_eq!(client.take("missing").await.body["type"], "task.processed");
    let first = client.take("full").await;
    let second = client.take("full").await;
    assert_ne!(first.message_id(), second.message_id());
    until_messages(&provost, "pending", 0).await;
}

#[tokio::test]
async fn a_reply_that_never_reaches_its_queue_is_a_dead_letter_which_an_operator_redelivers() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    let service = Remote::quick().await;
    let provost = replying(Provost::setup(), &rabbit.url())
        .set("COURIER__GIVE_UP_AFTER", "300ms")
        .start()
        .await;
    let submission = told(one_step(&service.url(), "/a"), "missing", &ALL[2..]);
    provost.run(&submission).await;
    let dead = until_messages(&provost, "dead", 1).await.remove(0);
    let open = alerts(&provost, "open").await;
    assert_eq!(
        (open.len(), &open[0]["kind"]),
        (1, &json!("message.undeliverable"))
    );
    client.declare("missing").await;
    let id = dead["id"].as_str().unwrap();
    provost
        .command(&format!("/v1/messages/{id}/redeliver"))
        .await;
    assert_eq!(client.take("missing").await.message_id(), id);
    until(0, || async { alerts(&provost, "open").await.len() }).await;
}

#[tokio::test]
async fn without_a_broker_a_queue_is_refused() {
    let service = Remote::quick().await;
    let provost = Provost::start().await;
    let submission = told(one_step(&service.url(), "/a"), "replies", &ALL);
    let refused = provost.post("/v1/tasks", &submission).await;
    let refused = refused.expect_problem(422, "invalid").to_string();
    assert!(refused.contains("broker.url"), "{refused}");
}

#[tokio::test]
async fn an_alarm_of_the_broker_delays_its_replies_and_nothing_else() {
    let rabbit = Rabbit::start().await;
    let client = rabbit.client().await;
    client.declare("replies").await;
    let service = Remote::quick().await;
    let provost = replying(Provost::setup(), &rabbit.url()).start().await;
    let submission = told(one_step(&service.url(), "/a"), "replies", &ALL[2..]);
    provost.run(&submission).await;
    client.take("replies").await;
    rabbit
        .control(&["set_vm_memory_high_watermark", "absolute", "1MB"])
        .await;
    // The first message makes the broker report that it blocks.
    for _ in 0..3 {
        assert_eq!(provost.run(&submission).await["state"], "processed");
    }
    until(true, || async {
        let all = messages(&provost, "state=pending").await;
        all.iter().any(|message| {
            let text = message.to_string();
            text.contains("blocks publishers") || text.contains("did not confirm")
        })
    })
    .await;
    rabbit
        .control(&["set_vm_memory_high_watermark", "0.6"])
        .await;
    let ids = client.take_all("replies", 3).await;
    assert_eq!(by_task(&ids).len(), 3);
}

/// Waits until the undelivered message names this reason.
async fn until_reason(provost: &Provost, reason: &str) {
    until(true, || async {
        let pending = messages(provost, "state=pending").await;
        pending
            .iter()
            .any(|message| message.to_string().contains(reason))
    })
    .await;
}

#[tokio::test]
async fn a_channel_that_the_broker_closes_and_a_confirm_that_does_not_come_are_failures_of_one_try()
{
    let rabbit = Rabbit::start().await;
    let client = rabbit.client().await;
    client.declare("replies").await;
    let service = Remote::quick().await;
    let submission = told(one_step(&service.url(), "/a"), "replies", &ALL[2..]);
    let proxy = Proxy::before(rabbit.port()).await;
    // The broker refuses by closing the channel.
    rabbit
        .control(&["set_permissions", "guest", ".*", "^$", ".*"])
        .await;
    let provost = replying(Provost::setup(), &rabbit.url_through(proxy.port()))
        .set("COURIER__TIMEOUT", "300ms")
        .start()
        .await;
    provost.run(&submission).await;
    until_reason(&provost, "ACCESS_REFUSED").await;
    rabbit
        .control(&["set_permissions", "guest", ".*", ".*", ".*"])
        .await;
    let first = client.take("replies").await;
    until_messages(&provost, "pending", 0).await;
    // The broker hangs: the message may have arrived, and is sent again under the same id.
    proxy.hang();
    provost.run(&submission).await;
    until_reason(&provost, "did not confirm").await;
    proxy.heal();
    until_messages(&provost, "pending", 0).await;
    let second = client.take("replies").await;
    assert_ne!(first.message_id(), second.message_id());
    while let Some(1..) = client.depth("replies").await {
        assert_eq!(
            client.take("replies").await.message_id(),
            second.message_id()
        );
    }
    assert!(!provost.log().contains("guest:guest"));
}

/// Publishes through a proxy that is cut while messages are in flight, to a broker that is killed.
#[tokio::test]
async fn replies_survive_cut_connections_a_killed_broker_and_a_killed_instance() {
    let mut rabbit = Rabbit::start().await;
    rabbit.client().await.declare("replies").await;
    let service = Remote::with(|_| Act::status(200)).await;
    let proxy = Proxy::before(rabbit.port()).await;
    let mut provost = replying(Provost::setup(), &rabbit.url_through(proxy.port()))
        .start()
        .await;
    let mut tasks = BTreeSet::new();
    for round in 0..6 {
        for _ in 0..25 {
            let submission = told(pipeline(&service.url(), &["a", "b"]), "replies", &ALL);
            tasks.insert(provost.submit(&submission).await);
        }
        match round {
            0 | 3 => {
                proxy.cut();
                tokio::time::sleep(Duration::from_millis(100)).await;
                proxy.heal();
            }
            1 => {
                // The messages in flight are lost without an error.
                proxy.hang();
                tokio::time::sleep(Duration::from_millis(100)).await;
                proxy.heal_for_new_ones();
                proxy.cut();
                proxy.heal();
            }
            2 => {
                rabbit.kill().await;
                rabbit.start_again().await;
            }
            4 => {
                provost.kill().await;
                provost.restart().await;
            }
            _ => {}
        }
    }
    until_messages(&provost, "pending", 0).await;
    let client = rabbit.client().await;
    let depth = client.depth("replies").await.unwrap();
    let all = client.take_all("replies", depth as usize).await;
    let by_task = by_task(&all);
    assert_eq!(by_task.keys().cloned().collect::<BTreeSet<_>>(), tasks);
    let wanted = [
        "task.accepted",
        "step.processed",
        "step.processed",
        "task.processed",
    ];
    for kinds in by_task.values() {
        assert_eq!(kinds, &wanted);
    }
}
