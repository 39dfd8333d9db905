//! Messages to the submitter's own address: signed, in order for each task, at least once.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    cluster,
    harness::{
        Act, Gate, Provost, Remote, Seen, Setup, alerts, messages, one_step, pipeline, until,
        until_messages, verify,
    },
};

const NEW: &str = "whsec_bmV3IHNlY3JldCBvZiB0aGUgc2hvcCwgMzIgYnl0ZXM=";
const OLD: &str = "whsec_b2xkIHNlY3JldCBvZiB0aGUgc2hvcCwgMzIgYnl0ZXM=";

const ALL: [&str; 5] = [
    "task.accepted",
    "step.processed",
    "step.error",
    "task.processed",
    "task.error",
];

/// Returns a setup with short retries.
fn setup() -> Setup {
    Provost::setup()
        .set("COURIER__RETRY_INITIAL", "20ms")
        .set("COURIER__RETRY_MAX", "200ms")
}

/// Returns setups for both databases.
async fn setups() -> [Setup; 2] {
    let url = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    [setup(), setup().database_url(&url)]
}

fn told(mut submission: Value, url: &str, events: &[&str]) -> Value {
    submission["reply_to"] = json!({ "url": url, "events": events });
    submission
}

fn kind(seen: &Seen) -> String {
    seen.body["type"].as_str().unwrap_or_default().to_owned()
}

/// Returns the kinds of messages that the receiver of each task got, each message once, in the order of first arrival.
fn by_task(ledger: &[Seen]) -> BTreeMap<String, Vec<String>> {
    let mut known = HashMap::new();
    let mut tasks: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for seen in ledger {
        let id = seen.header("webhook-id").to_owned();
        assert_eq!(seen.body["id"], id);
        let before = known.insert(id, seen.raw.clone());
        match before {
            Some(before) => assert_eq!(before, seen.raw, "a repetition is the same"),
            None => {
                let subject = seen.body["subject"].as_str().unwrap().to_owned();
                tasks.entry(subject).or_default().push(kind(seen));
            }
        }
    }
    tasks
}

#[tokio::test]
async fn the_submitter_is_told_by_signed_events_what_becomes_of_its_task() {
    for setup in setups().await {
        let (service, shop) = (Remote::quick().await, Remote::quick().await);
        let config = format!(
            "[[receivers]]\nname = \"shop\"\nurl = \"{}\"\nsecrets = [\"{NEW}\", \"{OLD}\"]\n",
            shop.url()
        );
        let provost = setup.config(&config).start().await;
        let mut submission = pipeline(&service.url(), &["one", "two"]);
        submission["key"] = json!("order-1");
        let url = format!("{}/replies", shop.url());
        let id = provost.submit(&told(submission, &url, &ALL)).await;
        let seen = shop.requests(4).await;
        let kinds: Vec<_> = seen.iter().map(kind).collect();
        assert_eq!(
            kinds,
            [
                "task.accepted",
                "step.processed",
                "step.processed",
                "task.processed"
            ]
        );
        for seen in &seen {
            assert_eq!((&*seen.method, &*seen.path), ("POST", "/replies"));
            assert_eq!(seen.header("content-type"), "application/cloudevents+json");
            assert_eq!(seen.header("webhook-id"), seen.body["id"]);
            assert_eq!(seen.body["specversion"], "1.0");
            assert_eq!(seen.body["subject"], id);
            assert_eq!(seen.body["data"]["key"], "order-1");
            assert_eq!(seen.body["data"]["task"]["id"], id);
            assert!(verify(seen, NEW) && verify(seen, OLD), "{seen:?}");
            assert!(!verify(
                seen,
                "whsec_c29tZWJvZHkgZWxzZSdzIHNlY3JldCwgMzIgYnl0ZXM="
            ));
        }
        assert_eq!(seen[2].body["data"]["step"], "two");
        let told = &seen[3].body["data"]["task"];
        let shown = provost.task(&id).await;
        assert_eq!(*told, shown);
        assert_eq!(shown["reply_to"]["url"], url);
        assert_eq!(shown["reply_to"]["receiver"], "shop");
        until_messages(&provost, "pending", 0).await;
        assert_eq!(shop.count(), 4, "each once");
        assert!(!provost.log().contains("whsec_"));
    }
}

#[tokio::test]
async fn a_receiver_that_is_down_gets_everything_in_order_once_it_is_up() {
    for setup in setups().await {
        let service = Remote::quick().await;
        let provost = setup.start().await;
        let address = cluster::free_port();
        let url = format!("http://127.0.0.1:{address}/r");
        let submission = told(pipeline(&service.url(), &["one", "two"]), &url, &ALL);
        let mut ids = Vec::new();
        for _ in 0..5 {
            ids.push(
                provost.run(&submission).await["id"]
                    .as_str()
                    .unwrap()
                    .to_owned(),
            );
        }
        let waiting = until_messages(&provost, "pending", 20).await;
        let head = |message: &&Value| message["next_try_at"].is_string();
        until(true, || async {
            let tried = messages(&provost, "state=pending").await;
            let tried = tried.iter().filter(head).map(|m| m["error"].to_string());
            tried
                .into_iter()
                .any(|error| error.contains("could not connect"))
        })
        .await;
        assert_eq!(waiting.iter().filter(head).count(), 5, "one for each task");
        let listener = TcpListener::bind(("127.0.0.1", address)).await.unwrap();
        let shop = Remote::on(listener, |_| Act::status(204));
        until_messages(&provost, "pending", 0).await;
        let told = by_task(&shop.ledger());
        assert_eq!(told.len(), 5);
        for id in &ids {
            assert_eq!(
                told[id],
                [
                    "task.accepted",
                    "step.processed",
                    "step.processed",
                    "task.processed"
                ]
            );
        }
        assert!(alerts(&provost, "open").await.is_empty());
    }
}

#[tokio::test]
async fn a_message_that_fails_holds_up_its_own_task_and_no_other() {
    for setup in setups().await {
        let service = Remote::quick().await;
        let failures = AtomicUsize::new(0);
        let first = Arc::new(Mutex::new(None::<String>));
        let chosen = Arc::clone(&first);
        // The receiver refuses the messages of the task that comes first for a while.
        let shop = Remote::with(move |seen| {
            let subject = seen.body["subject"].as_str().unwrap().to_owned();
            let mut first = chosen.lock().unwrap();
            let first = first.get_or_insert(subject.clone());
            let bad = *first == subject && failures.fetch_add(1, Ordering::Relaxed) < 8;
            Act::status(if bad { 422 } else { 204 })
        })
        .await;
        let provost = setup.start().await;
        let submission = told(pipeline(&service.url(), &["one"]), &shop.url(), &ALL);
        let bad = provost.submit(&submission).await;
        shop.requests(1).await;
        let mut others = Vec::new();
        for _ in 0..4 {
            others.push(provost.submit(&submission).await);
        }
        until_messages(&provost, "pending", 0).await;
        let ledger = shop.ledger();
        let of_bad: Vec<_> = ledger
            .iter()
            .filter(|seen| seen.body["subject"] == bad)
            .collect();
        let kinds: Vec<_> = of_bad.iter().map(|seen| kind(seen)).collect();
        let mut expected = vec!["task.accepted"; 9];
        expected.extend(["step.processed", "task.processed"]);
        assert_eq!(kinds, expected);
        let tries: Vec<_> = of_bad
            .iter()
            .map(|seen| seen.header("provost-try"))
            .collect();
        assert_eq!(tries[..9], ["1", "2", "3", "4", "5", "6", "7", "8", "9"]);
        let told = by_task(&ledger);
        for id in &others {
            assert_eq!(
                told[id],
                ["task.accepted", "step.processed", "task.processed"]
            );
        }
    }
}

#[tokio::test]
async fn a_receiver_that_hangs_slows_neither_tasks_nor_other_receivers() {
    for setup in setups().await {
        let service = Remote::quick().await;
        let gate = Gate::closed();
        let hanging = gate.clone();
        let slow = Remote::with(move |_| hanging.then(json!({}))).await;
        let quick = Remote::quick().await;
        let provost = setup.set("COURIER__MAX_IN_FLIGHT", "4").start().await;
        let to = |remote: &Remote| told(one_step(&service.url(), "/"), &remote.url(), &ALL);
        for _ in 0..20 {
            provost.submit(&to(&slow)).await;
        }
        slow.requests(4).await;
        let mut ids = Vec::new();
        for _ in 0..20 {
            ids.push(provost.submit(&to(&quick)).await);
        }
        for id in &ids {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
        quick.requests(60).await;
        let told = by_task(&quick.ledger());
        for id in &ids {
            assert_eq!(
                told[id],
                ["task.accepted", "step.processed", "task.processed"]
            );
        }
        assert_eq!(slow.count(), 4, "no more than its share");
        until_messages(&provost, "pending", 60).await;
        gate.open();
        until_messages(&provost, "pending", 0).await;
    }
}

#[tokio::test]
async fn one_that_does_not_answer_in_time_is_tried_again() {
    let service = Remote::quick().await;
    let shop = Remote::script([Act::Hang, Act::Drip, Act::CloseHalfway, Act::status(200)]).await;
    let provost = setup().set("COURIER__TIMEOUT", "100ms").start().await;
    let submission = told(
        one_step(&service.url(), "/"),
        &shop.url(),
        &["task.processed"],
    );
    provost.submit(&submission).await;
    let seen = shop.requests(2).await;
    assert_eq!(seen[0].raw, seen[1].raw);
    assert_eq!(seen[0].header("webhook-id"), seen[1].header("webhook-id"));
    until_messages(&provost, "pending", 0).await;
}

#[tokio::test]
async fn one_that_wants_no_more_gets_no_more_and_an_operator_is_told() {
    for setup in setups().await {
        let service = Remote::quick().await;
        let shop = Remote::script([Act::status(410), Act::status(200)]).await;
        let provost = setup.start().await;
        let submission = told(one_step(&service.url(), "/"), &shop.url(), &ALL);
        let id = provost.submit(&submission).await;
        let dead = until_messages(&provost, "dead", 1).await.remove(0);
        assert_eq!(dead["type"], "task.accepted");
        assert_eq!(dead["task"], id);
        assert_eq!(dead["tries"], 1);
        assert!(dead["error"].as_str().unwrap().contains("410"), "{dead:#}");
        // The messages after it are delivered.
        until_messages(&provost, "pending", 0).await;
        let kinds: Vec<_> = shop.ledger().iter().map(kind).collect();
        assert_eq!(kinds, ["task.accepted", "step.processed", "task.processed"]);
        let open = alerts(&provost, "open").await;
        assert_eq!(open.len(), 1);
        assert_eq!(open[0]["kind"], "message.undeliverable");
        assert_eq!(open[0]["task"], Value::Null);
        assert_eq!(open[0]["receiver"], dead["receiver"]);
        let metrics = provost.get("/metrics").await.body;
        let metrics = metrics.as_str().unwrap();
        for line in [
            "provost_alerts_open{kind=\"message.undeliverable\"} 1",
            "provost_messages{state=\"dead\"} 1",
            "provost_messages_total{result=\"dead\"} 1",
            "provost_messages_total{result=\"delivered\"} 2",
        ] {
            assert!(metrics.contains(line), "{line} in {metrics}");
        }

        let path = format!("/v1/messages/{}", dead["id"].as_str().unwrap());
        let whole = provost.get(&path).await.expect(200);
        assert_eq!(whole["body"], shop.ledger()[0].body);
        let again = provost
            .command(&format!("{path}/redeliver"))
            .await
            .expect(202);
        assert_eq!(again["state"], "pending");
        until_messages(&provost, "pending", 0).await;
        let seen = shop.requests(4).await;
        assert_eq!(
            seen[3].raw, seen[0].raw,
            "the same message under the same id"
        );
        until(0, || async { alerts(&provost, "open").await.len() }).await;
        assert_eq!(alerts(&provost, "closed").await.len(), 1);
        provost
            .get(&path)
            .await
            .expect_problem(404, "no-such-message");
    }
}

#[tokio::test]
async fn a_message_is_given_up_after_its_time_and_dead_letters_are_redelivered_or_discarded() {
    for setup in setups().await {
        let service = Remote::quick().await;
        let is_up = Arc::new(AtomicUsize::new(0));
        let up = Arc::clone(&is_up);
        let shop = Remote::with(move |_| match up.load(Ordering::Relaxed) {
            0 => Act::answer(500, &[], "out of order"),
            _ => Act::status(200),
        })
        .await;
        let provost = setup.set("COURIER__GIVE_UP_AFTER", "300ms").start().await;
        let mut submission = told(
            one_step(&service.url(), "/"),
            &shop.url(),
            &["task.processed"],
        );
        let mut ids = Vec::new();
        for _ in 0..6 {
            ids.push(provost.submit(&submission).await);
        }
        let dead = until_messages(&provost, "dead", 6).await;
        for letter in &dead {
            let error = letter["error"].as_str().unwrap();
            assert!(
                error.contains("500") && error.contains("out of order"),
                "{error}"
            );
            assert_eq!(letter["next_try_at"], Value::Null);
        }
        assert_eq!(
            alerts(&provost, "open").await.len(),
            1,
            "one for the receiver"
        );

        let body = json!({ "receiver": dead[0]["receiver"], "dry_run": true });
        let counted = provost
            .post("/v1/messages/redeliver", &body)
            .await
            .expect(200);
        assert_eq!(counted, json!({ "matched": 6, "done": 0, "dry_run": true }));
        let id_of = |letter: &Value| letter["id"].as_str().unwrap().to_owned();
        let gone = provost.delete(&format!("/v1/messages/{}", id_of(&dead[0])));
        gone.await.expect(204);
        let body = json!({ "ids": [id_of(&dead[1]), id_of(&dead[0])] });
        let done = provost
            .post("/v1/messages/discard", &body)
            .await
            .expect(200);
        assert_eq!(done, json!({ "matched": 1, "done": 1, "dry_run": false }));

        is_up.store(1, Ordering::Relaxed);
        let before = shop.count();
        let done = provost.post("/v1/messages/redeliver", &json!({})).await;
        assert_eq!(done.expect_faults(), ["/all"]);
        let done = provost
            .post("/v1/messages/redeliver", &json!({ "all": true }))
            .await;
        assert_eq!(done.expect(200)["done"], 4);
        let seen = shop.requests(before + 4).await;
        let subjects: BTreeSet<_> = seen[before..]
            .iter()
            .map(|seen| seen.body["subject"].to_string())
            .collect();
        assert_eq!(subjects.len(), 4);
        until(0, || async { alerts(&provost, "open").await.len() }).await;
        assert!(messages(&provost, "").await.is_empty());
        let named = |kind: &str, letters: &[Value]| {
            let names = letters
                .iter()
                .map(|letter| (kind.to_owned(), letter["id"].to_string()));
            names.collect::<Vec<_>>()
        };
        let mut expected = named("message.discarded", &dead[..2]);
        expected.extend(named("message.redelivered", &dead[2..]));
        let expected: BTreeSet<_> = expected.into_iter().collect();
        // On PostgreSQL a change is shown once no older transaction of the server runs any more.
        until(expected, async || {
            let changes = provost.get("/v1/changes?types=message.*").await.expect(200);
            let changes = changes["items"].as_array().unwrap().iter();
            changes
                .map(|change| {
                    (
                        change["type"].as_str().unwrap().to_owned(),
                        change["name"].to_string(),
                    )
                })
                .collect()
        })
        .await;

        // It continues as usual.
        submission["key"] = json!("after");
        let seen = shop.count();
        provost.submit(&submission).await;
        shop.requests(seen + 1).await;
    }
}

#[tokio::test]
async fn a_task_that_is_undone_tells_so() {
    let service = Remote::with(|seen| match &*seen.path {
        "/two" => Act::status(402),
        _ => Act::Ok(json!({})),
    })
    .await;
    let shop = Remote::quick().await;
    let provost = setup().start().await;
    let mut submission = pipeline(&service.url(), &["one", "two"]);
    submission["steps"][0]["undo"] = json!({ "request": { "path": "/undo" } });
    submission["steps"][1]["on_permanent"] = json!("undo");
    let wanted = [
        "task.undoing",
        "task.undone",
        "task.processed",
        "task.error",
    ];
    let id = provost
        .submit(&told(submission, &shop.url(), &wanted))
        .await;
    let seen = shop.requests(2).await;
    until_messages(&provost, "pending", 0).await;
    assert_eq!(
        by_task(&shop.ledger())[&id],
        ["task.undoing", "task.undone"]
    );
    assert_eq!(seen[1].body["data"]["task"]["state"], "undone");
    assert_eq!(seen[1].body["data"]["task"]["undo"]["error"]["status"], 402);
}

#[tokio::test]
async fn a_receiver_is_left_alone_for_as_long_as_it_asks_and_redirects_lead_nowhere() {
    let service = Remote::quick().await;
    let elsewhere = Remote::quick().await;
    let location = elsewhere.url();
    let shop = Remote::script([
        Act::answer(429, &[("retry-after", "1")], ""),
        Act::answer(307, &[("location", &location)], ""),
        Act::status(200),
    ])
    .await;
    let provost = setup().start().await;
    let submission = told(
        one_step(&service.url(), "/"),
        &shop.url(),
        &["task.processed"],
    );
    provost.submit(&submission).await;
    let seen = shop.requests(3).await;
    assert!(seen[1].at - seen[0].at >= Duration::from_secs(1));
    assert_eq!(elsewhere.count(), 0);
    until_messages(&provost, "pending", 0).await;
}

#[tokio::test]
async fn instances_share_an_outbox_and_never_send_one_tasks_messages_at_a_time() {
    let url = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    let service = Remote::quick().await;
    let gate = Gate::closed();
    let slow = gate.clone();
    let shop = Remote::with(move |_| slow.then(json!({}))).await;
    let (a, b) = tokio::join!(
        setup().database_url(&url).start(),
        setup().database_url(&url).start()
    );
    let submission = told(pipeline(&service.url(), &["one", "two"]), &shop.url(), &ALL);
    let mut ids = Vec::new();
    for at in 0..10 {
        let provost = if at % 2 == 0 { &a } else { &b };
        ids.push(provost.submit(&submission).await);
    }
    for id in &ids {
        assert_eq!(a.settled(id).await["state"], "processed");
    }
    // The receiver gets the first message of each task, and no second one.
    let seen = shop.requests(10).await;
    assert_eq!(by_task(&seen).len(), 10);
    gate.open();
    until_messages(&b, "pending", 0).await;
    assert_eq!(shop.count(), 40, "each once");
    let told = by_task(&shop.ledger());
    for id in &ids {
        assert_eq!(
            told[id],
            [
                "task.accepted",
                "step.processed",
                "step.processed",
                "task.processed"
            ]
        );
    }
}

#[tokio::test]
async fn what_was_under_way_when_it_was_stopped_is_delivered_by_the_next() {
    let service = Remote::quick().await;
    let gate = Gate::closed();
    let shop = Remote::script([gate.then(json!({})), Act::Hang, Act::status(200)]).await;
    let mut provost = setup().set("SHUTDOWN_GRACE", "300ms").start().await;
    let to_shop = told(
        one_step(&service.url(), "/"),
        &shop.url(),
        &["task.accepted"],
    );
    provost.submit(&to_shop).await;
    shop.requests(1).await;
    provost.submit(&to_shop).await;
    shop.requests(2).await;
    provost.terminate();
    provost.says("waiting for messages in flight").await;
    gate.open();
    assert!(provost.ended().await.success());
    provost.restart().await;
    until_messages(&provost, "pending", 0).await;
    assert_eq!(
        shop.count(),
        3,
        "the first was taken, the second is tried again"
    );
}

#[tokio::test]
async fn addresses_that_policy_does_not_allow_are_refused() {
    let provost = setup().start().await;
    let refused = |reply_to: Value| {
        let mut submission = one_step("http://127.0.0.1:1", "/");
        submission["reply_to"] = reply_to;
        let call = provost.post("/v1/tasks", &submission);
        async move { call.await.expect_faults() }
    };
    assert_eq!(refused(json!({ "url": "shop" })).await, ["/reply_to/url"]);
    let unknown = json!({ "receiver": "shop", "events": ["task.done"] });
    assert_eq!(
        refused(unknown).await,
        ["/reply_to/receiver", "/reply_to/events/0"]
    );

    let config = format!(
        "insecure = true\n[calls]\nallow_url_steps = true\n\
         [[receivers]]\nname = \"shop\"\nurl = \"https://shop.example/r\"\nsecrets = [\"{NEW}\"]\n"
    );
    let open = setup().listen("0.0.0.0:0").config(&config).start().await;
    let port = open.address().rsplit_once(':').unwrap().1;
    let open = crate::harness::Api::new(&format!("127.0.0.1:{port}"));
    for (url, allowed) in [
        ("https://shop.example/r/7", true),
        ("https://shop.example/other", false),
        ("http://169.254.169.254/latest", false),
    ] {
        let submission = told(one_step("https://service.example", "/"), url, &ALL);
        let answer = open.post("/v1/tasks?dry_run=true", &submission).await;
        match allowed {
            true => drop(answer.expect(200)),
            false => assert_eq!(answer.expect_faults(), ["/reply_to/url"]),
        }
    }
}

/// The process is killed again and again, and the receiver fails now and then: every chosen event of every task is
/// delivered, in order, at least once.
#[tokio::test]
async fn killed_at_any_moment_it_tells_every_event_of_every_task_in_order() {
    const KILLS: usize = 8;
    const TASKS: usize = 80;
    for setup in setups().await {
        let service = Remote::quick().await;
        let posts = AtomicUsize::new(0);
        // A refused message does not count as delivered.
        let taken = Arc::new(Mutex::new(Vec::new()));
        let takes = Arc::clone(&taken);
        let shop = Remote::with(move |seen| {
            if posts.fetch_add(1, Ordering::Relaxed) % 7 == 5 {
                return Act::status(503);
            }
            takes.lock().unwrap().push(seen.clone());
            Act::status(204)
        })
        .await;
        // It has a name of its own, so it continues at once with the messages that it held.
        let mut provost = setup.set("INSTANCE_ID", "only").start().await;
        let submission = told(pipeline(&service.url(), &["one", "two"]), &shop.url(), &ALL);
        let mut ids = Vec::new();
        for kill in 0..KILLS {
            let before = shop.count();
            for order in 0..TASKS / KILLS {
                let key = format!("order-{kill}-{order}");
                let call = provost.post("/v1/tasks", &submission);
                let call = call.header("idempotency-key", &key).await;
                ids.push(call.expect(202)["id"].as_str().unwrap().to_owned());
            }
            shop.requests(before + 1 + kill * 3).await;
            provost.kill().await;
            provost.restart().await;
        }
        for id in &ids {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
        until_messages(&provost, "pending", 0).await;
        let told = by_task(&taken.lock().unwrap());
        assert_eq!(told.len(), ids.len());
        for id in &ids {
            assert_eq!(
                told[id],
                [
                    "task.accepted",
                    "step.processed",
                    "step.processed",
                    "task.processed"
                ],
            );
        }
        println!("{} tasks, {} posts", ids.len(), shop.count());
        assert!(
            shop.count() > ids.len() * 4,
            "no message was ever tried again"
        );
    }
}
