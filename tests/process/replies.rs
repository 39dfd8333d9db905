//! Messages to the submitter's own address (P33, P34): signed, in order per task, at least once.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tokio::net::TcpListener;

use crate::{
    cluster,
    harness::{Act, Gate, Provost, Remote, Seen, Setup, pipeline},
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

/// With retries that a test need not wait for.
fn setup() -> Setup {
    Provost::setup()
        .set("COURIER__RETRY_INITIAL", "20ms")
        .set("COURIER__RETRY_MAX", "200ms")
}

/// On both databases.
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

/// As a receiver does it, with the reference library.
fn verify(seen: &Seen, secret: &str) -> bool {
    let mut headers = HeaderMap::new();
    for (name, value) in &seen.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
    }
    let webhook = Webhook::new(secret).unwrap();
    webhook.verify(seen.raw.as_bytes(), &headers).is_ok()
}

/// The kinds of messages that each task's receiver saw, each message once, in order of first arrival.
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

async fn messages(provost: &Provost, query: &str) -> Vec<Value> {
    let page = provost.get(&format!("/v1/messages?{query}")).await;
    page.expect(200)["items"].as_array().unwrap().clone()
}

/// Waits until there are this many messages of a state.
async fn until_messages(provost: &Provost, state: &str, count: usize) -> Vec<Value> {
    let query = format!("state={state}");
    let waited = async {
        loop {
            let found = messages(provost, &query).await;
            if found.len() == count {
                return found;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::harness::PATIENCE, waited)
        .await
        .unwrap_or_else(|_| panic!("there were never {count} messages that are {state}"))
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
