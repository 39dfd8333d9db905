//! The shop of the journeys: its services, which refuse what is wrong until it is fixed, its workflow, and its people.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures::{StreamExt, stream};
use serde_json::{Value, json};

use crate::harness::{Act, Api, Browser, Call, Gate, Provost, Remote, Seen, Setup};

pub const ADA: &str = "0123456789abcdef-ada";
const TOKENS: &str = "ada:admin:0123456789abcdef-ada";

pub struct Shop {
    pub provost: Provost,
    pub remote: Remote,
    /// Services respond to what they refused before.
    pub is_repaired: Arc<AtomicBool>,
    /// Calls of `/slow` wait for it.
    pub gate: Gate,
}

fn respond(seen: &Seen, is_repaired: bool, gate: &Gate) -> Act {
    let refuse = |status, fault: &str| {
        let json = [("content-type", "application/json")];
        Act::answer(status, &json, &json!({ "error": fault }).to_string())
    };
    match seen.path.as_str() {
        "/charge" if seen.body["currency"].is_null() => refuse(422, "currency is required"),
        "/reserve" if seen.body["short"] == true && !is_repaired => refuse(409, "no stock"),
        "/label" if seen.body["far"] == true && !is_repaired => refuse(404, "no printer"),
        "/gone" => refuse(410, "this receiver was removed"),
        "/slow" => gate.then(json!({ "slow": true })),
        path => Act::Ok(json!({ "id": format!("{}-1", path.trim_matches('/')) })),
    }
}

impl Shop {
    /// Opens the shop, with tokens if its people sign in.
    pub async fn open(setup: Setup, has_tokens: bool) -> Self {
        let (is_repaired, gate) = (Arc::new(AtomicBool::new(false)), Gate::closed());
        let (repaired, slow) = (is_repaired.clone(), gate.clone());
        let remote =
            Remote::with(move |seen| respond(seen, repaired.load(Ordering::Relaxed), &slow)).await;
        let setup = match has_tokens {
            true => setup.set("TOKENS", TOKENS),
            false => setup,
        };
        let shop = Self {
            provost: setup.start().await,
            remote,
            is_repaired,
            gate,
        };
        for agent in ["payments", "warehouse", "shipping"] {
            let spec = json!({ "endpoints": [{ "url": shop.remote.url(), "max_in_flight": 64 }] });
            shop.put(&format!("/v1/agents/{agent}"), &spec).await;
        }
        shop.put("/v1/workflows/order", &workflow(true)).await;
        shop
    }

    pub fn api(&self) -> &Api {
        self.provost.api()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.provost.address())
    }

    pub async fn put(&self, path: &str, body: &Value) {
        let answer = as_ada(self.api().put(path, body)).await;
        assert!(answer.status < 300, "{path}: {answer:?}");
    }

    pub async fn post(&self, path: &str, body: &Value) -> Value {
        let answer = as_ada(self.api().post(path, body)).await;
        assert!(answer.status < 300, "{path}: {answer:?}");
        answer.body
    }

    pub async fn get(&self, path: &str) -> Value {
        as_ada(self.api().get(path)).await.expect(200)
    }

    /// Submits an order, and returns its task once it has ended or needs an operator.
    pub async fn order(&self, key: &str, input: Value) -> Value {
        let order = json!({ "workflow": "order", "key": key, "input": input,
            "labels": { "country": "DE" } });
        let submitted = self
            .api()
            .post("/v1/tasks", &order)
            .header("prefer", "wait=60");
        as_ada(submitted).await.body
    }

    /// Submits a thousand orders that fail for three causes, and waits until all have failed.
    pub async fn thousand_failures(&self) {
        let orders = (0..1000).map(|number| async move {
            let input = match number {
                0..500 => json!({}),
                500..800 => json!({ "currency": "EUR", "far": true }),
                _ => json!({ "currency": "EUR", "short": true }),
            };
            let order =
                json!({ "workflow": "order", "key": format!("order-{number}"), "input": input });
            as_ada(self.api().post("/v1/tasks", &order))
                .await
                .expect(202);
        });
        stream::iter(orders).buffer_unordered(16).count().await;
        // Each was reserved, the others were charged, and some were shipped.
        self.remote.requests(1000 + 800 + 300).await;
        self.in_state("error", 1000).await;
    }

    /// Waits until as many tasks are in this state. At most 1,001 are counted.
    pub async fn in_state(&self, state: &str, count: u64) {
        let counted = async || {
            let overview = self.get("/v1/overview").await;
            let mut states = overview["tasks"].as_array().unwrap().iter();
            let found = states.find(|found| found["state"] == state);
            found.map_or(0, |found| found["count"].as_u64().unwrap())
        };
        crate::harness::until(count, counted).await;
    }

    /// Signs in with the token of ada on the page that is asked for.
    pub async fn sign_in(&self, browser: &mut Browser) {
        browser.open(&self.url("/console")).await;
        browser.see("#token:focus", "").await;
        browser.keys(ADA).await;
        browser.press("Enter").await;
    }
}

/// The workflow of an order. Until a version asked for no currency, each request had one.
pub fn workflow(asks_currency: bool) -> Value {
    let mut charge = json!({ "order": "{{ task.key }}", "amount": 12900 });
    if asks_currency {
        charge["currency"] = "{{ input.currency | default(none) }}".into();
    }
    json!({ "description": "From the shop's basket to the parcel", "steps": [
        { "name": "reserve", "agent": "warehouse",
          "request": { "path": "/reserve", "body": { "order": "{{ task.key }}", "short": "{{ input.short | default(false) }}" } },
          "undo": { "request": { "path": "/release", "body": { "order": "{{ task.key }}" } } } },
        { "name": "charge", "agent": "payments", "after": ["reserve"],
          "request": { "path": "/charge", "body": charge },
          "undo": { "request": { "path": "/refund", "body": { "order": "{{ task.key }}" } } } },
        { "name": "ship", "agent": "shipping", "after": ["charge"],
          "request": { "path": "/label", "body": { "order": "{{ task.key }}", "far": "{{ input.far | default(false) }}" } } },
        { "name": "notify", "agent": "shipping", "after": ["ship"],
          "request": { "path": "/mail", "body": { "order": "{{ task.key }}" } } },
    ] })
}

pub fn as_ada(call: Call) -> Call {
    call.header("authorization", &format!("Bearer {ADA}"))
}
