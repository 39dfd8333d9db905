//! Agents over a queue: the request is published, and the service replies later to Provost's own queue.

use std::{collections::BTreeSet, time::Duration};

use lapin::BasicProperties;
use serde_json::{Value, json};

use crate::{
    cluster::{self, Proxy},
    harness::{
        Broker, Provost, Queued, Rabbit, RabbitClient, Remote, Setup, alerts, kinds, one_step,
        step, until,
    },
};

const REPLIES: &str = "provost_queue_replies_total";

fn with_broker(setup: Setup, url: &str) -> Setup {
    setup.set("BROKER__URL", url)
}

async fn register(provost: &Provost, queue: &str) {
    let agent = json!({
        "endpoints": [{ "url": format!("amqp://broker/{queue}") }],
        "retry": { "initial": "10ms", "max": "100ms" },
    });
    provost.put("/v1/agents/pay", &agent).await.expect(201);
}

fn charge() -> Value {
    json!({ "steps": [{ "name": "charge", "agent": "pay", "request": { "body": { "amount": 30 } } }] })
}

/// Replies to a request, as a service does.
async fn reply(client: &RabbitClient, request: &Queued, body: &Value) {
    let to = request.properties.reply_to().as_ref().unwrap().to_string();
    let properties = BasicProperties::default()
        .with_correlation_id(request.correlation_id().as_str().into())
        .with_content_type("application/json".into());
    client
        .publish(&to, body.to_string().as_bytes(), properties)
        .await;
}

async fn replies(provost: &Provost, result: &str) -> f64 {
    let name = format!("{REPLIES}{{result=\"{result}\"}}");
    provost.metric(&name).await
}

#[tokio::test]
async fn a_request_goes_to_a_queue_and_its_reply_ends_the_step() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    client.declare("charges").await;
    let url = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    for setup in [Provost::setup(), Provost::setup().database_url(&url)] {
        let provost = with_broker(setup, &rabbit.url()).start().await;
        register(&provost, "charges").await;
        let check = json!({ "request": { "path": "/" } });
        let refused = provost.post("/v1/agents/pay/check", &check).await;
        let refused = refused.expect_problem(409, "cannot-check");
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.contains("has a queue"), "{detail}");
        let id = provost.submit(&charge()).await;
        let request = client.take("charges").await;
        assert_eq!(request.body, json!({ "amount": 30 }));
        assert_eq!(request.headers["provost-task"], id);
        assert_eq!(request.headers["provost-step"], "charge");
        assert_eq!(request.headers["provost-attempt"], "1");
        assert!(request.headers.contains_key("provost-complete-by"));
        assert!(request.headers.contains_key("traceparent"));
        assert!(!request.message_id().is_empty());
        let expiration = request
            .properties
            .expiration()
            .as_ref()
            .unwrap()
            .to_string();
        assert!(expiration.parse::<u64>().unwrap() > 1000, "{expiration}");
        // No slot is held until the reply, and a heartbeat counts.
        let to = request.properties.reply_to().as_ref().unwrap().to_string();
        let beat = BasicProperties::default()
            .with_correlation_id(request.correlation_id().as_str().into())
            .with_type("heartbeat".into());
        client.publish(&to, br#"{"progress":0.5}"#, beat).await;
        until(json!(0.5), || async {
            let task = provost.task(&id).await;
            step(&task, "charge")["awaited_reply"]["progress"].clone()
        })
        .await;
        reply(&client, &request, &json!({ "output": { "id": "ch_1" } })).await;
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed");
        assert_eq!(step(&task, "charge")["output"]["id"], "ch_1");
        // The same reply again is accepted, and a different one is too late.
        until(2.0, || replies(&provost, "accepted")).await;
        reply(&client, &request, &json!({ "output": { "id": "ch_1" } })).await;
        until(3.0, || replies(&provost, "accepted")).await;
        reply(&client, &request, &json!({ "output": { "id": "ch_2" } })).await;
        until(1.0, || replies(&provost, "late")).await;
        // The first message has an unknown token, and the second has a body that is no reply.
        let unknown = BasicProperties::default().with_correlation_id("none".into());
        client.publish(&to, b"{}", unknown).await;
        until(2.0, || replies(&provost, "late")).await;
        reply(&client, &request, &json!({ "result": 7 })).await;
        let dead = client.take(&format!("{to}.dead")).await;
        assert_eq!(dead.headers["provost-problem-type"], "invalid");
        assert!(!provost.log().contains(&request.correlation_id()));
        until(Some(0), || client.depth(&to)).await;
        // The service refuses the request.
        let id = provost.submit(&charge()).await;
        let request = client.take("charges").await;
        let error = json!({ "error": { "message": "declined", "permanent": true } });
        reply(&client, &request, &error).await;
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "error");
        assert!(step(&task, "charge").to_string().contains("declined"));
    }
}

#[tokio::test]
async fn a_service_is_told_of_a_reply_that_is_refused_and_can_reply_again() {
    let rabbit = Broker::shared().await;
    let client = rabbit.client().await;
    for queue in ["charges", "pay.refusals", "foreign"] {
        client.declare(queue).await;
    }
    let provost = with_broker(Provost::setup(), &rabbit.url())
        .set("BROKER__REPLY_QUEUES", r#"["pay.*", "provost.*"]"#)
        .start()
        .await;
    register(&provost, "charges").await;
    let id = provost.submit(&charge()).await;
    let request = client.take("charges").await;
    let to = request.properties.reply_to().as_ref().unwrap().to_string();
    let dead = format!("{to}.dead");
    let properties = |tell: &str| {
        BasicProperties::default()
            .with_correlation_id(request.correlation_id().as_str().into())
            .with_reply_to(tell.into())
    };
    let good = br#"{"output":{"id":"ch_1"}}"#;
    let packed = properties("pay.refusals").with_content_encoding("gzip".into());
    for (body, properties, slug) in [
        (
            &br#"{"result":7}"#[..],
            properties("pay.refusals"),
            "invalid",
        ),
        (&good[..], packed, "encoded-body"),
    ] {
        client.publish(&to, body, properties).await;
        let told = client.take("pay.refusals").await;
        let kind = told.properties.kind().as_ref().unwrap();
        assert_eq!(kind.as_str(), "reply.refused");
        assert_eq!(told.correlation_id(), request.correlation_id());
        assert_eq!(told.body["type"], format!("/problems/{slug}"), "{told:?}");
        assert_eq!(
            client.take(&dead).await.headers["provost-problem-type"],
            slug
        );
    }
    // The messages name a queue that is not allowed, and Provost's own queue, which a service may have copied.
    for tell in ["foreign", &to] {
        client.publish(&to, b"{", properties(tell)).await;
        client.take(&dead).await;
    }
    client.publish(&to, good, properties("pay.refusals")).await;
    assert_eq!(provost.settled(&id).await["state"], "processed");
    assert_eq!(replies(&provost, "refused").await, 4.0);
    for queue in [&*dead, "foreign", "pay.refusals"] {
        assert_eq!(client.depth(queue).await, Some(0), "{queue}");
    }
    assert!(!provost.log().contains(&request.correlation_id()));
}

#[tokio::test]
async fn a_request_that_reaches_no_queue_or_no_broker_is_tried_again() {
    let mut rabbit = Rabbit::prepare();
    let service = Remote::quick().await;
    let provost = with_broker(Provost::setup(), &rabbit.url()).start().await;
    register(&provost, "charges").await;
    let id = provost.submit(&charge()).await;
    // Tasks that need no broker continue.
    let task = provost.run(&one_step(&service.url(), "/a")).await;
    assert_eq!(task["state"], "processed");
    let says = async |words: &str| {
        until(true, || async {
            provost.task(&id).await.to_string().contains(words)
        })
        .await;
    };
    says("cannot be reached").await;
    rabbit.start_again().await;
    let client = rabbit.client().await;
    says("reached no queue").await;
    client.declare("charges").await;
    let request = client.take("charges").await;
    reply(&client, &request, &json!({ "output": 1 })).await;
    assert_eq!(provost.settled(&id).await["state"], "processed");
    // All publications of the request belong to one attempt and had one key.
    assert_eq!(client.depth("charges").await, Some(0));
}

#[tokio::test]
async fn what_a_queue_cannot_do_is_refused_in_words() {
    let rabbit = Broker::shared().await;
    let provost = with_broker(Provost::setup(), &rabbit.url()).start().await;
    for (url, says) in [
        (
            "amqp://guest:guest@rabbit:5672/charges",
            "which only the configuration knows",
        ),
        ("amqp://other/charges", "must name the broker of [broker]"),
        ("amqp://broker/", "has no name"),
    ] {
        let agent = json!({ "endpoints": [{ "url": url }] });
        let refused = provost.put("/v1/agents/pay", &agent).await;
        let refused = refused.expect_problem(422, "invalid").to_string();
        assert!(
            refused.contains(says) && !refused.contains("guest:guest"),
            "{refused}"
        );
    }
    let without = Provost::start().await;
    register(&without, "charges").await;
    let task = without.run(&charge()).await;
    assert!(task.to_string().contains("set broker.url"), "{task}");
}

/// A service replies to every request once, however often it gets it, while instances, connections and a broker fail.
#[tokio::test]
async fn every_request_is_answered_through_kills_and_cuts() {
    let mut rabbit = Rabbit::start().await;
    rabbit.client().await.declare("charges").await;
    let database = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    let proxy = Proxy::before(rabbit.port()).await;
    let through = rabbit.url_through(proxy.port());
    let setup = |url: &str| with_broker(Provost::setup().database_url(&database), url);
    let mut one = setup(&through).set("INSTANCE_ID", "one").start().await;
    let two = setup(&rabbit.url()).set("INSTANCE_ID", "two").start().await;
    register(&two, "charges").await;
    until(200, || async { one.get("/v1/agents/pay").await.status }).await;
    let mut tasks = BTreeSet::new();
    let mut keys = BTreeSet::new();
    for round in 0..6 {
        let client = rabbit.client().await;
        for at in 0..30 {
            let instance = if at % 2 == 0 { &one } else { &two };
            tasks.insert(instance.submit(&charge()).await);
        }
        match round {
            0 | 3 => {
                proxy.cut();
                tokio::time::sleep(Duration::from_millis(50)).await;
                proxy.heal();
            }
            1 | 4 => {
                one.kill().await;
                one.restart().await;
            }
            _ => {}
        }
        while let Some(1..) = client.depth("charges").await {
            let request = client.take("charges").await;
            keys.insert(request.message_id());
            reply(
                &client,
                &request,
                &json!({ "output": request.message_id() }),
            )
            .await;
        }
        if round == 2 {
            rabbit.kill().await;
            rabbit.start_again().await;
        }
    }
    let client = rabbit.client().await;
    for id in &tasks {
        let answering = async {
            loop {
                let request = client.take("charges").await;
                keys.insert(request.message_id());
                reply(
                    &client,
                    &request,
                    &json!({ "output": request.message_id() }),
                )
                .await;
            }
        };
        let task = tokio::select! {
            task = two.settled(id) => task,
            () = answering => unreachable!(),
        };
        assert_eq!(task["state"], "processed", "{task}");
        // The output is that of this step's own key.
        let history = two.history(id).await;
        assert!(kinds(&history).contains(&"task.processed"));
    }
    // Each step has one key, however often its request was published.
    assert_eq!(keys.len(), tasks.len());
    until(Some(0), || client.depth("charges")).await;
}

async fn breaker_alerts(provost: &Provost, state: &str) -> usize {
    let alerts = alerts(provost, state).await.into_iter();
    alerts
        .filter(|alert| alert["kind"] == "breaker.open")
        .count()
}

async fn breaker_state(provost: &Provost) -> Value {
    let agent = provost.get("/v1/agents/pay").await.expect(200);
    agent["breakers"][0]["state"].clone()
}

/// A failed publication counts like a failed call: while the breaker is open nothing is published, and afterwards each
/// request is published once.
#[tokio::test]
async fn a_breaker_opens_for_a_queue_that_is_missing_and_for_a_broker_that_is_down() {
    let mut rabbit = Rabbit::start().await;
    let url = cluster::new_database;
    let url = tokio::task::spawn_blocking(url).await.unwrap();
    let setups = [
        (Provost::setup(), "charges"),
        (Provost::setup().database_url(&url), "invoices"),
    ];
    for (setup, queue) in setups {
        let mut provost = with_broker(setup, &rabbit.url()).start().await;
        let breaker = json!({ "min_calls": 4, "window": "10m", "open_for": "1s", "canaries": 1 });
        let agent = json!({
            "endpoints": [{ "url": format!("amqp://broker/{queue}") }],
            "retry": { "initial": "10ms", "max": "100ms" }, "breaker": breaker,
        });
        provost.put("/v1/agents/pay", &agent).await.expect(201);
        for (round, cause) in ["reached no queue", "broker"].into_iter().enumerate() {
            if round == 1 {
                rabbit.kill().await;
            }
            let mut tasks = BTreeSet::new();
            for _ in 0..8 {
                tasks.insert(provost.submit(&charge()).await);
            }
            until(1, || breaker_alerts(&provost, "open")).await;
            let agent = provost.get("/v1/agents/pay").await.expect(200);
            let reason = agent["breakers"][0]["reason"].as_str().unwrap();
            assert!(reason.contains(cause), "{reason}");
            for id in &tasks {
                until(json!("breaker"), || async {
                    let task = provost.task(id).await;
                    step(&task, "charge")["blocked_by"]["reason"].clone()
                })
                .await;
            }
            provost.kill().await;
            provost.restart().await;
            assert_eq!(breaker_alerts(&provost, "open").await, 1);
            if round == 1 {
                rabbit.start_again().await;
            }
            let client = rabbit.client().await;
            client.declare(queue).await;
            until(json!("closed"), || breaker_state(&provost)).await;
            let mut left = tasks.clone();
            while !left.is_empty() {
                let request = client.take(queue).await;
                let task = &request.headers["provost-task"];
                // After its crash, the broker may deliver requests again that it had delivered before.
                if tasks.contains(task) {
                    assert!(left.remove(task), "the request of {task} came twice");
                    reply(&client, &request, &json!({ "output": 1 })).await;
                }
            }
            for id in &tasks {
                let task = provost.settled(id).await;
                assert_eq!(task["state"], "processed");
                assert_eq!(step(&task, "charge")["failure_count"], 0);
            }
            assert_eq!(breaker_alerts(&provost, "open").await, 0);
            assert_eq!(breaker_alerts(&provost, "closed").await, round + 1);
        }
    }
}
