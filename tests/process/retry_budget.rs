//! The retries of an agent are a share of its calls. Retries beyond the share are parked, and lose no time by that.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Act, Provost, Remote, setups, step};

async fn register(provost: &Provost, remote: &Remote, budget: u32) {
    let spec = json!({
        "endpoints": [{ "url": remote.url(), "max_in_flight": 200 }],
        "retry": { "initial": "10ms", "max": "50ms", "budget_percent": budget }
    });
    let put = provost.put("/v1/agents/payments", &spec).await;
    assert_eq!(put.status, 201, "{put:?}");
}

fn charge(complete_within: &str) -> Value {
    json!({ "steps": [{ "name": "charge", "agent": "payments", "complete_within": complete_within }] })
}

#[tokio::test]
async fn a_failing_service_gets_few_retries_more_than_calls() {
    for setup in setups().await {
        let remote = Remote::script([Act::status(503)]).await;
        let provost = setup.start().await;
        register(&provost, &remote, 20).await;
        let started = Instant::now();
        for _ in 0..100 {
            provost.submit(&charge("1h")).await;
        }
        remote.requests(108).await;
        let calls = remote.ledger();
        let retries = calls.iter().filter(|call| call.attempt() > 1).count();
        // The bound for each second is a fifth of the calls in ten seconds, which include the retries; and one retry
        // may just have begun.
        let most = 3.0 * (started.elapsed() + Duration::from_secs(1)).as_secs_f64();
        assert!(retries as f64 <= most, "{retries} retries, not {most}");
    }
}

#[tokio::test]
async fn a_parked_retry_keeps_the_time_of_its_step() {
    let remote = Remote::with(|call| match call.attempt() {
        1 => Act::status(503),
        _ => Act::Ok(json!({})),
    });
    let remote = remote.await;
    let provost = Provost::start().await;
    register(&provost, &remote, 100).await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(provost.submit(&charge("2s")).await);
    }
    let mut parked = 0;
    for id in &ids {
        let task = provost.settled(id).await;
        let charge = step(&task, "charge");
        assert_eq!(
            (&charge["state"], &charge["failure_count"]),
            (&json!("processed"), &json!(0)),
            "{task}"
        );
        let history = provost
            .get(&format!("/v1/tasks/{id}/history"))
            .await
            .expect(200);
        parked += usize::from(
            history
                .to_string()
                .contains("within the retry budget of its agent"),
        );
    }
    assert!(parked > 10, "{parked}");
    let began: Vec<Instant> = remote.ledger().iter().map(|call| call.at).collect();
    let lasted = began.last().unwrap().duration_since(began[0]);
    assert!(
        lasted > Duration::from_secs(4),
        "longer than a step has: {lasted:?}"
    );
}
