//! Tasks that will be late, by what is known, are shown before they are late.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Act, Api, Provost, Remote, Setup, all_processed, new_database, setups, until,
};

const TAKES: Duration = Duration::from_millis(200);

fn setup_of(setup: Setup) -> Setup {
    setup
        .set("SUPERVISOR__PREDICTION_INTERVAL", "100ms")
        .set("SUPERVISOR__ALERT_AT_RISK", "true")
}

async fn slow() -> Remote {
    Remote::with(|_| Act::After(TAKES, json!({}))).await
}

/// Registers an agent with a limit of calls at once, for all instances together.
async fn register(api: &Api, remote: &Remote, max_in_flight: u32) {
    let spec = json!({ "endpoints": [{ "url": remote.url(), "max_in_flight": 200 }],
                       "max_in_flight": max_in_flight });
    let put = api.put("/v1/agents/payments", &spec).await;
    assert!(put.status < 300, "{put:?}");
}

fn charge(within: &str) -> Value {
    json!({ "complete_within": within,
            "steps": [{ "name": "charge", "agent": "payments", "complete_within": "10m" }] })
}

async fn submit(api: &Api, count: usize, within: &str) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(api.submit(&charge(within)).await);
    }
    ids
}

async fn at_risk(api: &Api) -> Vec<Value> {
    let page = api
        .get("/v1/tasks?at_risk=true&limit=200")
        .await
        .expect(200);
    page["items"].as_array().unwrap().clone()
}

async fn alerts(api: &Api) -> Vec<Value> {
    let page = api.get("/v1/alerts?state=open").await.expect(200);
    page["items"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_task_behind_a_long_queue_is_at_risk_until_the_queue_moves_faster() {
    for setup in setups().await {
        let remote = Remote::with(|_| Act::After(TAKES * 3, json!({}))).await;
        let mut provost = setup_of(setup).start().await;
        let api = provost.api();
        register(api, &remote, 1).await;
        // The tasks would take two minutes. The following checks take seconds, also on a slow machine.
        let ids = submit(api, 200, "60s").await;
        // The last task is at risk, and the first is not.
        until(json!(ids[199]), async || {
            let tasks = at_risk(api).await;
            tasks.first().map_or(Value::Null, |task| task["id"].clone())
        })
        .await;
        let tasks = at_risk(api).await;
        for task in &tasks {
            let risk = &task["at_risk"];
            assert_eq!(risk["agent"], "payments", "{task}");
            assert!(
                risk["predicted_end"].as_str() > task["complete_by"].as_str(),
                "{task}"
            );
            assert!(
                risk["since"].as_str() >= task["created_at"].as_str(),
                "{task}"
            );
        }
        assert!(tasks.len() < 190, "{}", tasks.len());
        let last = provost.task(&ids[199]).await;
        assert_eq!(last["at_risk"]["agent"], "payments", "{last}");
        assert_eq!(provost.task(&ids[0]).await.get("at_risk"), None);
        until(true, async || {
            api.metric("provost_tasks_at_risk").await > 0.0
        })
        .await;
        until(json!(["tasks.at_risk"]), async || {
            alerts(api)
                .await
                .iter()
                .map(|alert| alert["kind"].clone())
                .collect()
        })
        .await;
        let alert = alerts(api).await[0].clone();
        let message = alert["message"].as_str().unwrap();
        assert!(message.contains("agent payments"), "{message}");

        // An instance that does not know yet how fast the agent is keeps the recorded prediction.
        provost.kill().await;
        provost.restart().await;
        let api = provost.api();
        let before = remote.count();
        until(true, async || remote.count() > before + 3).await;
        assert!(!at_risk(api).await.is_empty());
        assert_eq!(alerts(api).await[0]["id"], alert["id"]);

        register(api, &remote, 200).await;
        until(0, async || at_risk(api).await.len()).await;
        all_processed(api, &ids).await;
        until(0, async || alerts(api).await.len()).await;
        until(true, async || {
            api.metric("provost_tasks_at_risk").await == 0.0
        })
        .await;
        let wrong = api.get("/v1/tasks?at_risk=maybe").await;
        wrong.expect_problem(400, "invalid-query");
    }
}

#[tokio::test]
async fn a_task_of_an_agent_that_is_paused_is_at_risk_whenever_it_must_be_complete() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let provost = setup_of(setup).start().await;
        let api = provost.api();
        register(api, &remote, 5).await;
        api.command("/v1/agents/payments/pause").await.expect(200);
        let late = submit(api, 1, "9h").await;
        let unlimited = json!({ "steps": [{ "name": "charge", "agent": "payments", "complete_within": "10m" }] });
        let unlimited = api.submit(&unlimited).await;
        until(json!(null), async || {
            let task = provost.task(&late[0]).await;
            match task.get("at_risk") {
                Some(risk) => risk["predicted_end"].clone(),
                None => json!("it is not at risk"),
            }
        })
        .await;
        assert_eq!(at_risk(api).await.len(), 1);
        // All tasks at risk can be cancelled by one command.
        let dry = json!({ "at_risk": true, "dry_run": true, "reason": "the service is away" });
        let dry = api.bulk("cancel", &dry).await;
        assert_eq!(dry["matched"], 1, "{dry}");
        api.command("/v1/agents/payments/resume").await.expect(200);
        all_processed(api, &[late[0].clone(), unlimited]).await;
        until(0, async || at_risk(api).await.len()).await;
        assert_eq!(provost.task(&late[0]).await.get("at_risk"), None);
    }
}

#[tokio::test]
async fn three_instances_see_the_same_risk_while_the_one_that_predicts_is_killed() {
    let url = new_database().await;
    let remote = slow().await;
    let setup = || setup_of(Provost::setup().database_url(&url)).set("INSTANCE__LEASE", "2s");
    let mut one = setup().start().await;
    let (two, three) = (setup().start().await, setup().start().await);
    register(one.api(), &remote, 4).await;
    // All instances together make twenty calls a second.
    let ids = submit(one.api(), 300, "12s").await;
    for instance in [&one, &two, &three] {
        until(true, async || !at_risk(instance.api()).await.is_empty()).await;
    }
    one.kill().await;
    register(two.api(), &remote, 200).await;
    until(0, async || at_risk(three.api()).await.len()).await;
    all_processed(two.api(), &ids).await;
    until(0, async || alerts(two.api()).await.len()).await;
}
