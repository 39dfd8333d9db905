//! Messages: undelivered ones as the API lists them, and delivered ones as a receiver verifies them.

use std::{fmt::Debug, future::Future, sync::Mutex, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use standardwebhooks::Webhook;
use tokio::time::timeout;

use super::{PATIENCE, Provost, Seen};

/// Verifies a message as a receiver does it, with the reference library.
pub fn verify(seen: &Seen, secret: &str) -> bool {
    let mut headers = HeaderMap::new();
    for (name, value) in &seen.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
    }
    let webhook = Webhook::new(secret).unwrap();
    webhook.verify(seen.raw.as_bytes(), &headers).is_ok()
}

pub async fn messages(provost: &Provost, query: &str) -> Vec<Value> {
    let page = provost.get(&format!("/v1/messages?{query}")).await;
    page.expect(200)["items"].as_array().unwrap().clone()
}

/// Repeats the request until it returns this value.
pub async fn until<T: PartialEq + Debug, F: Future<Output = T>>(
    wanted: T,
    mut ask: impl FnMut() -> F,
) {
    let last = Mutex::new(None);
    let asked = async {
        loop {
            let found = ask().await;
            if found == wanted {
                return;
            }
            *last.lock().unwrap() = Some(found);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if timeout(PATIENCE, asked).await.is_err() {
        panic!("it was never {wanted:?}, but {:?}", last.lock().unwrap());
    }
}

/// Waits until there are this many messages of a state.
pub async fn until_messages(provost: &Provost, state: &str, count: usize) -> Vec<Value> {
    let query = format!("state={state}&limit=500");
    until(count, || async { messages(provost, &query).await.len() }).await;
    messages(provost, &query).await
}

pub async fn alerts(provost: &Provost, state: &str) -> Vec<Value> {
    let page = provost.get(&format!("/v1/alerts?state={state}")).await;
    page.expect(200)["items"].as_array().unwrap().clone()
}
