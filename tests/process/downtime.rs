//! Downtime: windows by cron in which an agent is paused, and the tasks that will be late because of it.

use serde_json::{Value, json};

use crate::harness::{Provost, Remote, new_database, setups, step, until};

/// Returns a window that began up to a minute ago, in a time zone that differs from UTC.
fn now_for(length: &str) -> Value {
    let zone = "Asia/Kolkata";
    let now = jiff::Timestamp::now() + jiff::SignedDuration::from_mins(330);
    let now = jiff::tz::Offset::UTC.to_datetime(now);
    let cron = format!("{} {} {} * *", now.minute(), now.hour(), now.day());
    json!([{ "cron": cron, "for": length, "timezone": zone, "reason": "the database is moved" }])
}

fn spec(remote: &Remote, downtime: Value) -> Value {
    json!({ "endpoints": [{ "url": remote.url() }], "downtime": downtime })
}

fn charge() -> Value {
    json!({ "steps": [{ "name": "charge", "agent": "payments", "complete_within": "10m" }] })
}

#[tokio::test]
async fn an_agent_is_paused_in_a_window_and_called_after_it() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let mut provost = setup.start().await;
        let api = provost.api();
        // If the minute ends just now, the window still continues.
        let put = api.put("/v1/agents/payments", &spec(&remote, now_for("2h")));
        put.await.expect(201);
        let paused = async |provost: &Provost| {
            let agent = provost.get("/v1/agents/payments").await.expect(200);
            agent["pause"].clone()
        };
        until(json!("downtime"), async || {
            paused(&provost).await["by"].clone()
        })
        .await;
        let pause = paused(&provost).await;
        assert_eq!(pause["reason"], "the database is moved");
        let id = api.submit(&charge()).await;
        let task = provost.task(&id).await;
        let blocked = &step(&task, "charge")["blocked_by"];
        assert_eq!(blocked["reason"], "agent_paused", "{blocked}");
        assert_eq!(blocked["until"], pause["until"]);
        assert_eq!(blocked["message"], "the database is moved");
        let agent = provost.get("/v1/agents/payments").await.expect(200);
        let next = agent["next_downtime"].as_array().unwrap();
        assert_eq!(next.len(), 3, "{next:?}");
        assert!(next[0]["from"].as_str() > pause["until"].as_str());
        provost.kill().await;
        provost.restart().await;
        until(json!("downtime"), async || {
            paused(&provost).await["by"].clone()
        })
        .await;
        assert_eq!(remote.count(), 0);
        // An operator ends this window, but not the following ones.
        let api = provost.api();
        let resumed = api.command("/v1/agents/payments/resume").await.expect(200);
        assert!(resumed.get("pause").is_none(), "{resumed}");
        assert_eq!(api.settled(&id).await["state"], "processed");
        let agent = provost.get("/v1/agents/payments").await.expect(200);
        assert_eq!(agent["next_downtime"].as_array().unwrap().len(), 3);
        api.put("/v1/agents/payments", &spec(&remote, json!([])))
            .await
            .expect(200);
        api.put("/v1/agents/payments", &spec(&remote, now_for("2h")))
            .await
            .expect(200);
        until(json!("downtime"), async || {
            paused(&provost).await["by"].clone()
        })
        .await;
        api.put("/v1/agents/payments", &spec(&remote, json!([])))
            .await
            .expect(200);
        let id = api.submit(&charge()).await;
        assert_eq!(api.settled(&id).await["state"], "processed");
        let wrong = json!([{ "cron": "0 2 30 2 *", "for": "2h" }, { "cron": "0 2 * *", "for": "2h" },
            { "cron": "* * * * *", "for": "1m", "timezone": "Berlin" }]);
        let put = api.put("/v1/agents/payments", &spec(&remote, wrong)).await;
        let faults = [
            "/downtime/0/cron",
            "/downtime/1/cron",
            "/downtime/2/timezone",
        ];
        assert_eq!(put.expect_faults(), faults);
    }
}

#[tokio::test]
async fn every_instance_keeps_to_a_window() {
    let url = new_database().await;
    let start = || Provost::setup().database_url(&url).start();
    let (one, two) = (start().await, start().await);
    let remote = Remote::quick().await;
    let put = one.put("/v1/agents/payments", &spec(&remote, now_for("2h")));
    put.await.expect(201);
    for instance in [&one, &two] {
        until(json!("downtime"), async || {
            let agent = instance.get("/v1/agents/payments").await;
            match agent.status {
                200 => agent.expect(200)["pause"]["by"].clone(),
                _ => Value::Null,
            }
        })
        .await;
    }
    let id = two.submit(&charge()).await;
    let task = one.task(&id).await;
    assert_eq!(
        step(&task, "charge")["blocked_by"]["reason"],
        "agent_paused"
    );
    assert_eq!(remote.count(), 0);
    two.command("/v1/agents/payments/resume").await.expect(200);
    assert_eq!(one.settled(&id).await["state"], "processed");
}

#[tokio::test]
async fn a_pause_says_how_many_tasks_will_be_late() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let provost = setup.start().await;
        let api = provost.api();
        api.register("payments", &remote.url(), 4).await;
        api.register("other", &remote.url(), 4).await;
        for agent in ["payments", "other"] {
            let path = format!("/v1/agents/{agent}/pause");
            let paused = api.command(&path).await.expect(200);
            assert!(paused.get("in_danger").is_none(), "it has no end");
        }
        let task = |agent: &str, complete_within: Option<&str>| {
            let mut task = json!({ "steps": [{ "name": "charge", "agent": agent, "complete_within": "10h" }] });
            if let Some(within) = complete_within {
                task["complete_within"] = json!(within);
            }
            task
        };
        for (agent, within) in [
            ("payments", Some("1h")),
            ("payments", Some("90m")),
            ("payments", Some("3h")),
            ("payments", None),
            ("other", Some("1h")),
        ] {
            api.submit(&task(agent, within)).await;
        }
        let pause = |length: &str| {
            let body = json!({ "for": length });
            api.post("/v1/agents/payments/pause", &body)
        };
        let paused = pause("2h").await.expect(200);
        assert_eq!(paused["in_danger"]["tasks"], 2, "{paused}");
        assert_eq!(paused["in_danger"]["is_at_least"], false);
        assert_eq!(
            paused["in_danger"]["complete_by_before"],
            paused["pause"]["until"]
        );
        assert_eq!(pause("30m").await.expect(200)["in_danger"]["tasks"], 0);
        assert_eq!(pause("5h").await.expect(200)["in_danger"]["tasks"], 3);
        let resumed = api.command("/v1/agents/payments/resume").await.expect(200);
        assert!(resumed.get("in_danger").is_none());
    }
}
