//! The agents of the operated chaos.

use serde_json::json;

use super::{super::harness::Api, workers};

/// Registers the agent whose steps workers fetch.
pub async fn register_workers(api: &Api, is_limited: bool) {
    let mut pull = json!({ "mode": "pull" });
    if is_limited {
        pull["limits"] = json!([{ "by": BY_LOT, "max_in_flight": 4 }]);
    }
    let put = api.put(&format!("/v1/agents/{}", workers::AGENT), &pull);
    let answer = put.await;
    assert!([200, 201].contains(&answer.status), "{answer:?}");
}

pub async fn register(api: &Api, name: &str, url: &str, places: u32, open: Option<u32>) {
    let mut spec = json!({
        "endpoints": [{ "url": url, "max_in_flight": places }],
        "retry": { "initial": "200ms", "max": "800ms", "factor": 2 },
    });
    if let Some(open) = open {
        spec["max_open"] = json!(open);
    }
    let answer = api.put(&format!("/v1/agents/{name}"), &spec).await;
    assert!([200, 201].contains(&answer.status), "{answer:?}");
}

pub const BY_LOT: &str = "{{ task.labels.lot }}";

/// Configures everything that limits the calls of a service, so tightly that each limit has an effect.
pub async fn protect(api: &Api, url: &str) {
    let retry = json!({ "initial": "200ms", "max": "800ms", "factor": 2, "budget_percent": 60 });
    let breaker =
        json!({ "failure_percent": 60, "window": "2s", "min_calls": 10, "open_for": "300ms" });
    let services = json!({
        "endpoints": [{ "url": url, "max_in_flight": 250 }, { "url": url.replace("127.0.0.1", "localhost"), "max_in_flight": 250 }],
        "retry": retry,
        "breaker": breaker,
        "ejection": { "after": 4, "for": "200ms" },
        "max_in_flight": 60,
        "rate_limit": { "rate": "400/s", "burst": 40 },
        "adaptive": { "least": 4 },
        "limits": [{ "by": BY_LOT, "max_in_flight": 8, "rate": "60/s" }],
        "fairness": { "by": BY_LOT, "weights": { "lot-1": 3 } },
    });
    let narrow = json!({
        "endpoints": [{ "url": url, "max_in_flight": 4 }],
        "retry": retry,
        "max_open": 6,
        "limits": [{ "by": BY_LOT, "max_in_flight": 2 }, { "by": "{{ task.key }}", "max_in_flight": 1 }],
    });
    for (name, spec) in [("services", services), ("narrow", narrow)] {
        let answer = api.put(&format!("/v1/agents/{name}"), &spec).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}
