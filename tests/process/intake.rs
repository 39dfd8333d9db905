//! Submissions through a queue: with a real RabbitMQ, both databases, and everything between that can break.

use std::{collections::BTreeSet, time::Duration};

use lapin::{BasicProperties, types::AMQPValue};
use serde_json::{Value, json};

use crate::{
    cluster::{self, Proxy},
    harness::{
        Broker, FramePublisher, Postgres, Provost, Rabbit, Remote, Setup, alerts, nested_table,
        one_step, setups, until,
    },
};

/// Returns a setup with an intake of the queue `orders`.
pub fn reading(setup: Setup, url: &str) -> Setup {
    setup
        .set("BROKER__URL", url)
        .set("INTAKE", r#"[{name="shop",queue="orders"}]"#)
        .set("COURIER__RETRY_INITIAL", "20ms")
        .set("COURIER__RETRY_MAX", "200ms")
}

fn keyed(mut submission: Value, key: &str) -> Value {
    submission["key"] = json!(key);
    submission
}

/// Returns all tasks, as lists show them.
pub async fn tasks(provost: &Provost) -> Vec<Value> {
    let mut tasks = Vec::new();
    let mut next = "/v1/tasks?limit=500".to_owned();
    loop {
        let page = provost.get(&next).await.expect(200);
        tasks.extend_from_slice(page["items"].as_array().unwrap());
        match page["next_cursor"].as_str() {
            Some(cursor) => next = format!("/v1/tasks?limit=500&cursor={cursor}"),
            None => return tasks,
        }
    }
}

/// Returns the keys of all tasks, each as often as there are tasks with it.
pub async fn keys(provost: &Provost) -> Vec<String> {
    let tasks = tasks(provost).await;
    let keys = tasks.iter().map(|task| task["key"].as_str());
    let mut keys: Vec<_> = keys.map(|key| key.unwrap_or_default().to_owned()).collect();
    keys.sort();
    keys
}

async fn until_keys(provost: &Provost, wanted: &[String]) {
    until(wanted.len(), || async { keys(provost).await.len() }).await;
    assert_eq!(keys(provost).await, wanted);
}

#[tokio::test]
async fn a_message_is_a_submission_and_its_sender_is_replied_to() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    for (at, setup) in setups().await.into_iter().enumerate() {
        let service = Remote::quick().await;
        let provost = reading(setup, &rabbit.url()).start().await;
        // Provost declares the queue.
        until(true, || async { client.depth("orders").await.is_some() }).await;
        let private = format!("private-{at}");
        client.declare(&private).await;
        let submission = keyed(one_step(&service.url(), "/charge"), "order-1");
        let properties = BasicProperties::default()
            .with_message_id("m-1".into())
            .with_reply_to(private.as_str().into())
            .with_correlation_id("c-1".into());
        let body = submission.to_string();
        // The message has no content type, and is delivered twice.
        for _ in 0..2 {
            client
                .publish("orders", body.as_bytes(), properties.clone())
                .await;
        }
        let reply = client.take(&private).await;
        assert_eq!(reply.correlation_id(), "c-1");
        assert_eq!(reply.body["type"], "task.processed");
        assert_eq!(reply.body["correlationid"], "c-1");
        assert_eq!(reply.body["id"], reply.message_id());
        assert_eq!(reply.body["data"]["key"], "order-1");
        until(Some(0), || client.depth("orders")).await;
        let replayed = r#"provost_intake_messages_total{intake="shop",result="replayed"}"#;
        until(1.0, || provost.metric(replayed)).await;
        assert_eq!(keys(&provost).await, ["order-1"]);
        assert_eq!(service.count(), 1);
        assert_eq!(client.depth(&private).await, Some(0));
        let task = provost.get("/v1/tasks?key=order-1").await.expect(200);
        let id = task["items"][0]["id"].as_str().unwrap().to_owned();
        let accepted = provost.history(&id).await.remove(0);
        assert_eq!(accepted["reason"], "submitted through the intake shop");
        let shown = provost.task(&id).await;
        assert_eq!(shown["reply_to"]["queue"], json!(private));
        assert_eq!(shown["reply_to"]["correlation_id"], "c-1");
        assert_eq!(
            provost
                .metric(r#"provost_broker_up{broker="broker"}"#)
                .await,
            1.0
        );
        // The password is not in the log.
        assert!(!provost.log().contains("guest:guest"));
    }
}

#[tokio::test]
async fn a_message_that_is_refused_becomes_a_dead_letter_with_the_problem_in_its_headers() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    client.declare("orders").await;
    let service = Remote::quick().await;
    let provost = reading(Provost::setup(), &rabbit.url())
        .set("LIMITS__MAX_REQUEST", "1KiB")
        .start()
        .await;
    let good = one_step(&service.url(), "/charge").to_string();
    let with = BasicProperties::default;
    let large = format!("{{\"key\": {:?}}}", "x".repeat(2000));
    let cases = [
        ("{\"steps\": [", with(), "malformed-json"),
        ("\u{0}", with(), "malformed-json"),
        ("", with(), "malformed-json"),
        ("{\"steps\": []}", with(), "invalid"),
        ("{\"workflow\": \"none\"}", with(), "invalid"),
        (&large, with(), "body-too-large"),
        (
            &good,
            with().with_content_type("text/xml".into()),
            "not-json",
        ),
        (
            &good,
            with().with_content_encoding("gzip".into()),
            "encoded-body",
        ),
        (
            &good,
            with().with_reply_to("a\u{7}b".into()),
            "invalid-query",
        ),
    ];
    for (at, (body, properties, slug)) in cases.into_iter().enumerate() {
        let id = format!("m-{at}");
        // These properties would delete the message, would be compared with the user of the connection, or would be
        // copied.
        let properties = properties
            .with_message_id(id.as_str().into())
            .with_user_id("guest".into())
            .with_expiration("600000".into());
        client.publish("orders", body.as_bytes(), properties).await;
        let dead = client.take("orders.dead").await;
        assert_eq!(dead.headers["provost-problem-type"], slug, "{dead:?}");
        let problem: Value = serde_json::from_str(&dead.headers["provost-problem"]).unwrap();
        assert_eq!(problem["type"], format!("/problems/{slug}"));
        assert_eq!(problem["detail"], dead.headers["provost-problem-detail"]);
        assert_eq!(dead.headers["provost-intake"], "shop");
        assert_eq!((dead.message_id(), dead.raw.as_str()), (id, body));
        assert!(dead.properties.expiration().is_none());
        assert_eq!(dead.properties.delivery_mode(), &Some(2));
    }
    // The second message has the same key and another body.
    let (one, other) = (
        keyed(one_step(&service.url(), "/a"), "k"),
        json!({ "steps": 7 }),
    );
    client.submit("orders", "same", &one).await;
    until(1, || async { keys(&provost).await.len() }).await;
    client
        .submit("orders", "same", &keyed(one.clone(), "l"))
        .await;
    let dead = client.take("orders.dead").await;
    assert_eq!(
        dead.headers["provost-problem-type"],
        "idempotency-key-reused"
    );
    client
        .submit("orders", "odd id with spaces, ünd more", &other)
        .await;
    client.take("orders.dead").await;
    assert_eq!(keys(&provost).await, ["k"]);
    until(Some(0), || client.depth("orders")).await;
}

#[tokio::test]
async fn messages_that_no_client_library_reads_are_dead_letters_and_stop_nothing() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    client.declare("orders").await;
    let service = Remote::quick().await;
    let mut provost = reading(Provost::setup(), &rabbit.url()).start().await;
    let good = one_step(&service.url(), "/charge").to_string();
    let mut frames = FramePublisher::connect(&rabbit).await;
    let cases: [(&[u8], Vec<u8>); 4] = [
        (b"\xff\xfe", vec![]),
        (b"id", b"\x02\xc3\x28t\x01".to_vec()),
        // The table is nested deeper than a thread's stack allows.
        (b"id", nested_table(15_000)),
        (b"id", nested_table(40)),
    ];
    for (id, headers) in &cases {
        frames.publish("orders", id, headers, good.as_bytes()).await;
        let dead = client.take("orders.dead").await;
        assert_eq!(dead.headers["provost-problem-type"], "invalid-query");
        assert!(dead.headers["provost-problem-detail"].starts_with("its property "));
        assert_eq!(dead.raw, good);
    }
    // Values that are no text are ignored, and those after them are read.
    frames
        .publish("orders", b"m-1", b"\x01aS\0\0\0\x01\xff", good.as_bytes())
        .await;
    until(1, || async { service.count() }).await;
    assert!(!provost.has_ended());
}

#[tokio::test]
async fn an_intake_for_one_workflow_takes_no_other() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    let service = Remote::quick().await;
    let provost = reading(Provost::setup(), &rabbit.url())
        .set(
            "INTAKE",
            r#"[{name="shop",queue="orders",workflow="order",dead_letter_routing_key="refused"}]"#,
        )
        .start()
        .await;
    let steps = &one_step(&service.url(), "/charge")["steps"];
    let definition = json!({ "steps": steps });
    provost
        .put("/v1/workflows/order", &definition)
        .await
        .expect(201);
    until(true, || async { client.depth("orders").await.is_some() }).await;
    client.submit("orders", "1", &json!({ "key": "a" })).await;
    let named = json!({ "key": "b", "workflow": "order" });
    client.submit("orders", "2", &named).await;
    for refused in [json!({ "workflow": "other" }), json!({ "steps": steps })] {
        client.submit("orders", "3", &refused).await;
        let dead = client.take("refused").await;
        let detail = &dead.headers["provost-problem-detail"];
        assert!(
            detail.contains("for the workflow \"order\" alone"),
            "{detail}"
        );
    }
    until_keys(&provost, &["a".to_owned(), "b".to_owned()]).await;
}

#[tokio::test]
async fn a_broker_that_is_down_wrong_or_comes_back_stops_nothing_else() {
    let mut rabbit = Rabbit::prepare();
    let service = Remote::quick().await;
    let ops = Remote::quick().await;
    let webhook = format!(r#"[{{name="ops",url="{}"}}]"#, ops.url());
    let mut provost = reading(Provost::setup(), &rabbit.url())
        .set("ALERT_WEBHOOKS", &webhook)
        .start()
        .await;
    provost.says("a broker cannot be used").await;
    let up = r#"provost_broker_up{broker="broker"}"#;
    until(0.0, || provost.metric(up)).await;
    // Work that needs no broker continues.
    let task = provost.run(&one_step(&service.url(), "/charge")).await;
    assert_eq!(task["state"], "processed");
    // There is one alert, however much of the broker fails; a webhook gets it.
    until(1, || async { alerts(&provost, "open").await.len() }).await;
    let alert = alerts(&provost, "open").await.remove(0);
    assert_eq!(alert["kind"], "broker.unreachable");
    assert_eq!(alert["receiver"], "broker:broker");
    assert_eq!(ops.requests(1).await[0].body["type"], "alert.raised");
    rabbit.start_again().await;
    until(1.0, || provost.metric(up)).await;
    until(0, || async { alerts(&provost, "open").await.len() }).await;
    assert_eq!(ops.requests(2).await[1].body["type"], "alert.closed");
    let client = rabbit.client().await;
    until(true, || async { client.depth("orders").await.is_some() }).await;
    client
        .submit("orders", "m-1", &keyed(one_step(&service.url(), "/a"), "a"))
        .await;
    until(2, || async { service.count() }).await;
    // The broker crashes, and starts again with the messages that it has confirmed.
    let mut waiting = Vec::new();
    provost.kill().await;
    for at in 0..20 {
        let key = format!("b{at:02}");
        let submission = keyed(one_step(&service.url(), "/b"), &key);
        client.submit("orders", &key, &submission).await;
        waiting.push(key);
    }
    rabbit.kill().await;
    provost.restart().await;
    provost.says("a broker cannot be used").await;
    rabbit.start_again().await;
    let mut all = vec![String::new(), "a".to_owned()];
    all.append(&mut waiting);
    until_keys(&provost, &all).await;
    // The log has one line for each thing that cannot be done, however often it is retried.
    let failures = provost.log();
    let failures = failures.matches("a broker cannot be used").count();
    assert!(failures <= 6, "{failures} lines");
    // The message about a fault that an operator must correct has the words of the broker.
    for (url, says) in [
        (
            format!("amqp://guest:wrong@127.0.0.1:{}", rabbit.port()),
            "ACCESS_REFUSED",
        ),
        (
            format!("amqp://guest:guest@127.0.0.1:{}/none", rabbit.port()),
            "vhost",
        ),
    ] {
        let wrong = reading(Provost::setup(), &url).start().await;
        wrong.says(says).await;
        assert!(!wrong.log().contains("wrong@"), "{}", wrong.log());
        let task = wrong.run(&one_step(&service.url(), "/c")).await;
        assert_eq!(task["state"], "processed");
    }
}

#[tokio::test]
async fn where_the_store_cannot_commit_messages_wait_unacknowledged_and_bounded() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    client.declare("orders").await;
    let service = Remote::quick().await;
    let database = Postgres::start().await;
    let provost = reading(
        Provost::setup().database_url(&database.url()),
        &rabbit.url(),
    )
    .set("INTAKE", r#"[{name="shop",queue="orders",prefetch=5}]"#)
    .start()
    .await;
    provost.says("reading a queue").await;
    database.crash().await;
    let mut wanted = Vec::new();
    for at in 0..30 {
        let key = format!("o{at:02}");
        let submission = keyed(one_step(&service.url(), "/charge"), &key);
        client.submit("orders", &key, &submission).await;
        wanted.push(key);
    }
    // Only as many messages as the prefetch have left the queue, and none is refused.
    until(Some(25), || client.depth("orders")).await;
    provost
        .says("a message waits, because it cannot be stored now")
        .await;
    assert_eq!(client.depth("orders.dead").await, None);
    database.start_again().await;
    until_keys(&provost, &wanted).await;
    until(30, || async { service.count() }).await;
    until(Some(0), || client.depth("orders")).await;
}

#[tokio::test]
async fn two_instances_that_are_killed_lose_no_message_and_double_none() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    client.declare("orders").await;
    let service = Remote::quick().await;
    let database = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    let proxy = Proxy::before(rabbit.port()).await;
    let through = rabbit.url_through(proxy.port());
    let setup = |url: &str| reading(Provost::setup().database_url(&database), url);
    let mut one = setup(&rabbit.url()).set("INSTANCE_ID", "one").start().await;
    let mut two = setup(&through).set("INSTANCE_ID", "two").start().await;
    let mut wanted = BTreeSet::new();
    for round in 0..8 {
        for at in 0..60 {
            let key = format!("o{round}-{at:02}");
            let submission = keyed(one_step(&service.url(), "/charge"), &key);
            // Some messages are published more than once, as by a publisher that got no confirm.
            for _ in 0..=usize::from(at % 5 == 0) {
                client.submit("orders", &key, &submission).await;
            }
            wanted.insert(key);
        }
        match round % 4 {
            0 => {
                one.kill().await;
                one.restart().await;
            }
            1 => {
                proxy.cut();
                tokio::time::sleep(Duration::from_millis(50)).await;
                proxy.heal();
            }
            2 => {
                two.kill().await;
                two.restart().await;
            }
            _ => one.terminate(),
        }
        if round % 4 == 3 {
            one.ended().await;
            one.restart().await;
        }
    }
    until(Some(0), || client.depth("orders")).await;
    let wanted: Vec<_> = wanted.into_iter().collect();
    until_keys(&two, &wanted).await;
    assert_eq!(client.depth("orders.dead").await, None);
}

#[tokio::test]
async fn thousands_of_redeliveries_make_nothing_twice() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    client.declare("orders").await;
    let service = Remote::quick().await;
    let submission = keyed(one_step(&service.url(), "/charge"), "once");
    let body = submission.to_string();
    for _ in 0..3000 {
        let properties = BasicProperties::default().with_message_id("same".into());
        client.publish("orders", body.as_bytes(), properties).await;
    }
    let provost = reading(Provost::setup(), &rabbit.url()).start().await;
    until(Some(0), || client.depth("orders")).await;
    let replayed = r#"provost_intake_messages_total{intake="shop",result="replayed"}"#;
    until(2999.0, || provost.metric(replayed)).await;
    assert_eq!(keys(&provost).await, ["once"]);
    assert_eq!(service.count(), 1);
}

#[tokio::test]
async fn a_dead_letter_that_cannot_be_published_keeps_its_message() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    client.declare("orders").await;
    // The queue is full, so it rejects further messages.
    let full = [
        ("x-max-length", AMQPValue::LongInt(1)),
        ("x-overflow", AMQPValue::LongString("reject-publish".into())),
    ];
    client.declare_with("orders.dead", &full).await;
    let provost = reading(Provost::setup(), &rabbit.url()).start().await;
    client.submit("orders", "m-1", &json!({ "bad": 1 })).await;
    until(Some(1), || client.depth("orders.dead")).await;
    client.submit("orders", "m-2", &json!({ "bad": 2 })).await;
    provost.says("could not publish a dead letter").await;
    // The queue has space again.
    assert_eq!(client.take("orders.dead").await.message_id(), "m-1");
    assert_eq!(client.take("orders.dead").await.message_id(), "m-2");
    until(Some(0), || client.depth("orders")).await;
}

#[tokio::test]
async fn messages_that_are_too_large_do_not_fill_the_memory() {
    const LARGE: usize = 4 << 20;
    const COUNT: usize = 40;
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    client.declare("orders").await;
    let service = Remote::quick().await;
    let large = vec![b' '; LARGE];
    let publish = async |id: String| {
        let properties = BasicProperties::default().with_message_id(id.as_str().into());
        client.publish("orders", &large, properties).await;
    };
    for at in 0..COUNT {
        publish(format!("large-{at:02}")).await;
    }
    let provost = reading(Provost::setup(), &rabbit.url())
        .set("LIMITS__MAX_REQUEST", "64KiB")
        .set("INTAKE", r#"[{name="shop",queue="orders",prefetch=40}]"#)
        .start()
        .await;
    provost.says("reading one at a time").await;
    // Each of them is refused, and the following messages are read concurrently again.
    let mut dead = BTreeSet::new();
    while dead.len() < COUNT {
        let letter = client.take("orders.dead").await;
        assert_eq!(letter.headers["provost-problem-type"], "body-too-large");
        assert_eq!(letter.raw.len(), LARGE);
        dead.insert(letter.message_id());
    }
    for at in 0..30 {
        let key = format!("o{at:02}");
        let submission = keyed(one_step(&service.url(), "/charge"), &key);
        client.submit("orders", &key, &submission).await;
    }
    until(30, || async { service.count() }).await;
    provost.says(r#""prefetch":1,"#).await;
    until(2, || async {
        provost.log().matches(r#""prefetch":40,"#).count()
    })
    .await;
    let peak = provost.peak_memory().unwrap_or_default();
    let all = (COUNT * LARGE) as u64;
    assert!(peak < all, "{peak} bytes, the messages have {all}");
}
