//! Metrics of queues that wait: the reason why an agent makes no calls, and keys at their limits.

use serde_json::{Value, json};

use crate::harness::{Gate, Provost, Remote, all_processed, setups, until};

fn task(agent: &str, customer: &str) -> Value {
    json!({ "labels": { "customer": customer },
            "steps": [{ "name": "one", "agent": agent, "complete_within": "10m" }] })
}

async fn metrics(provost: &Provost, names: &[&str]) -> Vec<f64> {
    let mut found = Vec::new();
    let text = provost.get("/metrics").await.expect(200);
    let text = text.as_str().unwrap();
    for name in names {
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        found.push(line.map_or(f64::NAN, |value| value.parse().unwrap()));
    }
    found
}

const SERIES: [&str; 9] = [
    r#"provost_queue_blocked{agent="rated",reason="rate_limit"}"#,
    r#"provost_queue_blocked{agent="paused",reason="agent_paused"}"#,
    r#"provost_queue_blocked{agent="gone",reason="agent"}"#,
    r#"provost_queue_keys{agent="keyed"}"#,
    r#"provost_queue_keys_at_limit{agent="keyed"}"#,
    r#"provost_queue_keys{agent="plain"}"#,
    r#"provost_queue_keys_at_limit{agent="plain"}"#,
    r#"provost_queue_keys{agent="fair"}"#,
    r#"provost_queue_keys_at_limit{agent="fair"}"#,
];

#[tokio::test]
async fn metrics_say_what_holds_a_queue_back_and_when_it_is_over() {
    const BY: &str = "{{ task.labels.customer }}";
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = Remote::with({
            let gate = gate.clone();
            move |_| gate.then(json!("done"))
        });
        let remote = remote.await;
        let provost = setup.start().await;
        let agents = [
            (
                "rated",
                64,
                json!({ "rate_limit": { "rate": "1/h", "burst": 1 } }),
            ),
            ("paused", 64, json!({})),
            ("gone", 64, json!({})),
            (
                "keyed",
                64,
                json!({ "limits": [{ "by": BY, "max_in_flight": 1 }] }),
            ),
            ("plain", 64, json!({})),
            ("fair", 1, json!({ "fairness": { "by": BY } })),
        ];
        for (name, most, mut spec) in agents {
            spec["endpoints"] = json!([{ "url": remote.url(), "max_in_flight": most }]);
            let put = provost.put(&format!("/v1/agents/{name}"), &spec).await;
            put.expect(201);
        }
        let workflow = json!({ "limits": [{ "by": BY, "max_in_flight": 1 }],
            "steps": [{ "name": "one", "agent": "plain", "complete_within": "10m" }] });
        provost
            .put("/v1/workflows/sync", &workflow)
            .await
            .expect(201);
        let pause = provost.post("/v1/agents/paused/pause", &json!({})).await;
        pause.expect(200);
        let mut ids = Vec::new();
        // For customer `a` one task runs and two wait; for `b` one runs and none waits.
        for customer in ["a", "b", "a", "a"] {
            ids.push(provost.submit(&task("keyed", customer)).await);
            let one = json!({ "workflow": "sync", "labels": { "customer": customer } });
            ids.push(provost.submit(&one).await);
        }
        // One task runs, and three of two customers wait for its slot.
        for customer in ["a", "b", "a", "a"] {
            ids.push(provost.submit(&task("fair", customer)).await);
        }
        remote.requests(5).await;
        // A new limit has no tokens yet.
        let late = provost.submit(&task("rated", "a")).await;
        ids.push(provost.submit(&task("paused", "a")).await);
        provost
            .post("/v1/agents/gone/pause", &json!({}))
            .await
            .expect(200);
        let orphan = provost.submit(&task("gone", "a")).await;
        provost
            .delete("/v1/agents/gone?force=true")
            .await
            .expect(204);
        until(vec![1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 0.0], || {
            metrics(&provost, &SERIES)
        })
        .await;

        gate.open();
        let none = json!({});
        provost
            .post("/v1/agents/paused/resume", &none)
            .await
            .expect(200);
        all_processed(provost.api(), &ids).await;
        for id in [&late, &orphan] {
            let cancelled = provost.post(&format!("/v1/tasks/{id}/cancel"), &none).await;
            cancelled.expect(200);
        }
        until(vec![0.0; SERIES.len()], || metrics(&provost, &SERIES)).await;
    }
}
