//! The overview: an operator sees in one response what failed, how much was done, and how agents and instances are.

use serde_json::{Value, json};

use crate::harness::{Act, Provost, Remote, new_database, until};

/// Returns the sum of a number in all hours.
fn sum(by_hour: &Value, number: &str) -> u64 {
    let hours = by_hour.as_array().unwrap();
    assert_eq!(hours.len(), 24);
    hours.iter().filter_map(|hour| hour[number].as_u64()).sum()
}

fn agent<'o>(overview: &'o Value, name: &str) -> &'o Value {
    let mut agents = overview["agents"].as_array().unwrap().iter();
    agents.find(|agent| agent["name"] == name).unwrap()
}

async fn overview(provost: &Provost) -> Value {
    provost.get("/v1/overview").await.expect(200).clone()
}

async fn one_response_shows_all(mut instances: Vec<Provost>) {
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/refuse" => Act::answer(409, &[], "no label"),
        _ => Act::Ok(json!({})),
    })
    .await;
    instances[0].register("shop", &remote.url(), 64).await;
    for name in ["work", "refuse"] {
        let request = json!({ "path": format!("/{name}") });
        let steps = json!([{ "name": "one", "agent": "shop", "request": request }]);
        let path = format!("/v1/workflows/{name}");
        instances[0].put(&path, &json!({ "steps": steps })).await;
    }
    for (name, count) in [("work", 5), ("refuse", 3)] {
        for number in 0..count {
            let provost = &instances[number % instances.len()];
            let id = provost.submit(&json!({ "workflow": name })).await;
            provost.settled(&id).await;
        }
    }
    // The activity of each process is on record after some seconds.
    until(json!([5, 3, 8]), || async {
        let overview = overview(&instances[0]).await;
        let by_hour = &overview["by_hour"];
        json!([
            sum(by_hour, "processed"),
            sum(by_hour, "failed"),
            sum(by_hour, "accepted")
        ])
    })
    .await;
    instances[0].kill().await;
    instances[0].restart().await;
    for provost in &instances {
        let overview = overview(provost).await;
        let shop = agent(&overview, "shop");
        assert_eq!(sum(&shop["by_hour"], "processed"), 5);
        assert_eq!(shop["day"]["failed"], 3);
        assert!(shop["day"]["p50"].as_u64().is_some(), "{shop}");
        assert_eq!(shop["trouble"], false);
        assert_eq!(shop["queued"], json!({ "count": 0, "more": false }));
        let workflows = overview["workflows"].as_array().unwrap();
        assert_eq!(workflows[0]["name"], "refuse", "failures come first");
        assert_eq!(workflows[1]["processed"], 5);
        let mut tasks = overview["tasks"].as_array().unwrap().iter();
        let failed = tasks.find(|count| count["state"] == "error").unwrap();
        assert_eq!(
            *failed,
            json!({ "state": "error", "count": 3, "more": false })
        );
        let failures = &overview["failures"];
        assert_eq!(failures["causes"], 1);
        assert_eq!(failures["first"][0]["tasks"], 3);
        let alive = overview["instances"].as_array().unwrap().iter();
        let alive = alive.filter(|instance| instance["alive"] == true).count();
        assert!(alive >= instances.len(), "{overview:#}");
        assert_eq!(overview["held"], false);
    }
    instances[0]
        .post("/v1/agents/shop/pause", &json!({ "reason": "a test" }))
        .await;
    let overview = overview(&instances[0]).await;
    let shop = agent(&overview, "shop");
    assert_eq!(shop["trouble"], true);
    assert_eq!(shop["pause"]["reason"], "a test");
}

#[tokio::test]
async fn one_response_shows_what_failed_and_what_was_done() {
    one_response_shows_all(vec![Provost::start().await]).await;
}

#[tokio::test]
async fn instances_add_up_what_they_have_done() {
    let setup = Provost::setup().database_url(&new_database().await);
    let instances = vec![setup.clone().start().await, setup.start().await];
    one_response_shows_all(instances).await;
}
