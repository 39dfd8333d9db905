//! Agents: registered through the API or the configuration file, replaced, deleted.

use std::{collections::HashSet, time::Duration};

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::time::sleep;

use crate::harness::{Act, Provost, Remote, alerts, new_database, step, until};

fn spec(remote: &Remote) -> Value {
    json!({ "endpoints": [{ "url": remote.url(), "max_in_flight": 4 }] })
}

fn charge() -> Value {
    json!({ "steps": [{ "name": "charge", "agent": "payments" }] })
}

#[tokio::test]
async fn an_agent_is_known_from_its_registration_on_and_after_a_restart() {
    let remote = Remote::quick().await;
    let mut provost = Provost::start().await;
    let refused = provost.post("/v1/tasks", &charge()).await;
    assert_eq!(refused.expect_faults(), ["/steps/0/agent"]);
    let made = provost.put("/v1/agents/payments", &spec(&remote)).await;
    assert_eq!(made.status, 201, "{made:?}");
    let agent = provost.get("/v1/agents/payments").await.expect(200);
    assert_eq!(agent["name"], "payments");
    assert_eq!(agent["spec"]["endpoints"][0]["url"], remote.url());
    assert_eq!(agent["spec"]["endpoints"][0]["max_in_flight"], 4);
    assert_eq!(provost.run(&charge()).await["state"], "processed");
    provost.kill().await;
    provost.restart().await;
    assert_eq!(provost.run(&charge()).await["state"], "processed");
    let list = provost.get("/v1/agents").await.expect(200);
    let names: Vec<_> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| &a["name"])
        .collect();
    assert_eq!(names, ["payments"]);
}

#[tokio::test]
async fn a_replaced_agent_is_called_at_its_new_address() {
    let (old, new) = (Remote::quick().await, Remote::quick().await);
    let provost = Provost::start().await;
    provost.put("/v1/agents/payments", &spec(&old)).await;
    provost.run(&charge()).await;
    let replaced = provost.put("/v1/agents/payments", &spec(&new)).await;
    assert_eq!(replaced.status, 200, "{replaced:?}");
    provost.run(&charge()).await;
    assert_eq!([old.count(), new.count()], [1, 1]);
}

#[tokio::test]
async fn a_step_of_a_deleted_agent_waits_until_the_agent_is_back_and_new_ones_are_refused() {
    let gone = Remote::script([Act::Hang]).await;
    let provost = Provost::start().await;
    let mut narrow = spec(&gone);
    narrow["endpoints"][0]["max_in_flight"] = json!(1);
    provost.put("/v1/agents/payments", &narrow).await;
    let running = provost.submit(&charge()).await;
    gone.requests(1).await;
    let id = provost.submit(&charge()).await;
    let refused = provost.delete("/v1/agents/payments").await;
    let refused = refused.expect_problem(409, "agent-in-use");
    assert_eq!(refused["steps"], 1);
    assert_eq!(refused["steps_is_at_least"], false);
    let deleted = provost.delete("/v1/agents/payments?force=true").await;
    assert_eq!(deleted.status, 204, "{deleted:?}");
    provost
        .get("/v1/agents/payments")
        .await
        .expect_problem(404, "no-such-agent");
    provost
        .delete("/v1/agents/payments")
        .await
        .expect_problem(404, "no-such-agent");
    // Two tasks in memory have the same step, and a new one is still refused.
    let refused = provost.post("/v1/tasks", &charge()).await;
    assert_eq!(refused.expect_faults(), ["/steps/0/agent"]);
    let task = provost.task(&id).await;
    assert_eq!(
        step(&task, "charge")["blocked_by"],
        json!({ "reason": "agent", "agent": "payments" })
    );
    provost
        .says("steps are queued for an agent that does not exist")
        .await;
    let kinds = || async {
        let open = alerts(&provost, "open").await.into_iter();
        open.map(|alert| alert["kind"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    until(vec!["agent.missing".to_owned()], kinds).await;
    let alert = alerts(&provost, "open").await.remove(0);
    let message = alert["message"].as_str().unwrap();
    assert!(
        message.contains("agent payments, which does not exist"),
        "{message}"
    );
    let back = Remote::quick().await;
    provost.put("/v1/agents/payments", &spec(&back)).await;
    assert_eq!(provost.settled(&id).await["state"], "processed");
    until(Vec::new(), kinds).await;
    provost
        .command(&format!("/v1/tasks/{running}/cancel"))
        .await
        .expect(200);
}

#[tokio::test]
async fn every_fault_of_an_agent_is_named_at_once() {
    let provost = Provost::start().await;
    let body = json!({
        "endpoints": [{ "url": "ftp://example.org", "max_in_flight": 0 }],
        "retry": { "factor": 99 },
    });
    let mut faults = provost
        .put("/v1/agents/payments", &body)
        .await
        .expect_faults();
    faults.sort();
    assert_eq!(
        faults,
        [
            "/endpoints/0/max_in_flight",
            "/endpoints/0/url",
            "/retry/factor"
        ]
    );
    let typo = json!({ "endpoint": [] });
    let faults = provost
        .put("/v1/agents/payments", &typo)
        .await
        .expect_faults();
    assert!(faults.contains(&"/endpoint".to_owned()), "{faults:?}");
    provost
        .get("/v1/agents/payments")
        .await
        .expect_problem(404, "no-such-agent");
}

#[tokio::test]
async fn an_agent_of_the_configuration_file_cannot_be_changed_through_the_api() {
    let remote = Remote::quick().await;
    let config = format!(
        "[agents.payments]\nendpoints = [{{ url = \"{}\" }}]\n",
        remote.url()
    );
    let provost = Provost::setup().config(&config).start().await;
    assert_eq!(provost.run(&charge()).await["state"], "processed");
    let put = provost.put("/v1/agents/payments", &spec(&remote)).await;
    put.expect_problem(409, "agent-configured");
    let delete = provost.delete("/v1/agents/payments").await;
    delete.expect_problem(409, "agent-configured");
}

/// The supervising instance lacks an agent that another instance has in its configuration file.
#[tokio::test]
async fn an_agent_that_some_instance_has_is_not_missing_until_that_instance_is_gone() {
    let remote = Remote::script([Act::Hang]).await;
    let url = new_database().await;
    let on = || {
        let setup = Provost::setup().database_url(&url);
        setup.set("INSTANCE__LEASE", "2s")
    };
    let supervisor = on().start().await;
    let config = format!(
        "[agents.payments]\nendpoints = [{{ url = \"{}\", max_in_flight = 1 }}]\n",
        remote.url()
    );
    let mut other = on().config(&config).start().await;
    let mut narrow = spec(&remote);
    narrow["endpoints"][0]["max_in_flight"] = json!(1);
    let put = supervisor.put("/v1/agents/gone", &narrow).await;
    put.expect(201);
    // One step of each agent is called, and the others are queued.
    let steps = json!({ "steps": [{ "name": "charge", "agent": "gone" }] });
    for _ in 0..20 {
        other.submit(&charge()).await;
        supervisor.submit(&steps).await;
    }
    remote.requests(2).await;
    let mut database = PgConnection::connect(&url).await.unwrap();
    let mut are_queued = async |agent: &str| {
        let count =
            "SELECT count(*) FROM steps WHERE agent = $1 AND queued = 1 AND due_at IS NOT NULL";
        let count = sqlx::query_scalar::<_, i64>(count).bind(agent);
        count.fetch_one(&mut database).await.unwrap() > 0
    };
    while !are_queued("payments").await || !are_queued("gone").await {
        sleep(Duration::from_millis(5)).await;
    }
    let missing = || async {
        let open = alerts(&supervisor, "open").await.into_iter();
        let messages = open.map(|alert| alert["message"].as_str().unwrap().to_owned());
        let mut agents: Vec<_> = messages
            .filter_map(|message| {
                let (_, rest) = message.split_once("queued for agent ")?;
                Some(rest.split_once(',')?.0.to_owned())
            })
            .collect();
        agents.sort();
        agents
    };
    // `payments` was examined as often as `gone`, and before it.
    let delete = supervisor.delete("/v1/agents/gone?force=true").await;
    delete.expect(204);
    until(vec!["gone".to_owned()], missing).await;
    other.kill().await;
    until(vec!["gone".to_owned(), "payments".to_owned()], missing).await;
}

#[tokio::test]
async fn addresses_that_policy_forbids_are_not_called() {
    let remote = Remote::quick().await;
    let setup = Provost::setup();
    let setup = setup.set("CALLS__ALLOW_PRIVATE_ADDRESSES", "false");
    let provost = setup.set("CALLS__ALLOW_URL_STEPS", "false").start().await;
    let by_url = json!({ "steps": [{ "name": "charge", "url": remote.url() }] });
    let refused = provost.post("/v1/tasks", &by_url).await;
    assert_eq!(refused.expect_faults(), ["/steps/0/url"]);
    // An address given by a name is refused when the agent is registered, or at the latest when it is called.
    let put = provost.put("/v1/agents/payments", &spec(&remote)).await;
    if put.status < 300 {
        let task = provost.run(&charge()).await;
        assert_eq!(task["error"]["kind"], "permanent");
    }
    assert_eq!(remote.count(), 0);
}

/// Returns the agents that have series of their own in the metrics.
async fn labelled(provost: &Provost) -> HashSet<String> {
    let text = provost.get("/metrics").await.expect(200);
    let agents = text.as_str().unwrap().lines().filter_map(|line| {
        let (_, rest) = line.split_once("{agent=\"")?;
        Some(rest.split_once('"')?.0.to_owned())
    });
    agents.collect()
}

#[tokio::test]
async fn a_thousand_agents_do_not_grow_a_scrape_without_bound() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let registered = (0..1000).map(async |number| {
        let agent = format!("agent-{number}");
        provost.register(&agent, &remote.url(), 1).await;
    });
    futures::future::join_all(registered).await;
    assert_eq!(
        labelled(&provost).await,
        HashSet::new(),
        "nobody has used one"
    );
    // Each task has the largest number of steps.
    for agents in [0..500, 500..1000] {
        let steps = agents.map(|number| {
            json!({ "name": format!("s{number}"), "agent": format!("agent-{number}"), "after": [] })
        });
        let task = json!({ "steps": steps.collect::<Vec<_>>() });
        assert_eq!(provost.run(&task).await["state"], "processed");
    }
    let labelled = labelled(&provost).await;
    assert_eq!(labelled.len(), 101);
    assert!(labelled.contains("(other)"));
    let text = provost.get("/metrics").await.expect(200);
    let length = text.as_str().unwrap().len();
    assert!(length < 300_000, "{length} bytes");
}

#[tokio::test]
async fn an_endpoint_that_fails_at_once_gets_few_of_the_calls() {
    let sick = Remote::script([Act::status(503)]).await;
    let busy = Remote::script([Act::After(Duration::from_millis(20), json!({}))]).await;
    let provost = Provost::start().await;
    let spec = json!({
        "endpoints": [{ "url": sick.url() }, { "url": busy.url() }],
        "retry": { "initial": "10ms", "max": "10ms" }
    });
    provost.put("/v1/agents/payments", &spec).await.expect(201);
    let charge = |at| json!({ "name": format!("charge{at}"), "agent": "payments", "after": [], "complete_within": "10m" });
    let task = json!({ "steps": (0..30).map(charge).collect::<Vec<_>>() });
    for _ in 0..10 {
        assert_eq!(provost.run(&task).await["state"], "processed");
    }
    assert_eq!(busy.count(), 300);
    // The first calls failed before anything was known of the endpoint.
    assert!(sick.count() < 60, "{} calls failed", sick.count());
}
