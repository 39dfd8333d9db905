//! The ledger on the real binary: pages, the wait, the stream and readers with a name, over kills and with two instances.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{
    cluster,
    harness::{Act, Api, Events, Provost, Remote, pipeline, submit_charges},
};

/// Reads on after a position, until no event is left. Returns the events and the position after them.
async fn read_on(api: &Api, mut after: Option<String>, filter: &str) -> (Vec<Value>, String) {
    let mut events = Vec::new();
    loop {
        let from = after.map_or(String::new(), |after| format!("&after={after}"));
        let page = api.get(&format!("/v1/events?limit=7{filter}{from}"));
        let page = page.await.expect(200);
        events.extend(page["items"].as_array().unwrap().iter().cloned());
        let position = page["position"].as_str().unwrap().to_owned();
        if page["has_more"] == false {
            return (events, position);
        }
        after = Some(position);
    }
}

fn seqs(events: &[Value]) -> BTreeMap<String, Vec<String>> {
    let mut seqs = BTreeMap::<_, Vec<_>>::new();
    for event in events.iter().filter(|event| event.get("event").is_some()) {
        let task = event["task"]["id"].as_str().unwrap().to_owned();
        let seq = event["event"]["seq"].as_str().unwrap().to_owned();
        seqs.entry(task).or_default().push(seq);
    }
    seqs
}

/// Checks that the events of each task are those of its history, in order.
async fn check_histories(api: &Api, events: &[Value], tasks: &[String]) {
    let seqs = seqs(events);
    for task in tasks {
        let history = api.history(task).await;
        let expected: Vec<_> = history
            .iter()
            .map(|event| event["seq"].as_str().unwrap())
            .collect();
        assert_eq!(seqs[task], expected, "{task}");
        let shown: Vec<_> = events
            .iter()
            .filter(|event| event["task"]["id"] == **task)
            .map(|event| &event["event"])
            .collect();
        assert_eq!(shown, history.iter().collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn every_event_is_in_one_order_and_can_be_read_again_after_a_kill() {
    let remote = Remote::quick().await;
    let mut provost = Provost::start().await;
    provost.register("payments", &remote.url(), 8).await;
    let tasks = submit_charges(provost.api(), 20).await;
    for task in &tasks {
        provost.settled(task).await;
    }
    let (events, end) = read_on(provost.api(), None, "").await;
    check_histories(provost.api(), &events, &tasks).await;
    let positions: BTreeSet<_> = events
        .iter()
        .map(|event| event["position"].as_str())
        .collect();
    assert_eq!(positions.len(), events.len());
    let middle = events[events.len() / 2]["position"]
        .as_str()
        .unwrap()
        .to_owned();
    provost.kill().await;
    provost.restart().await;
    let (again, _) = read_on(provost.api(), Some(middle), "").await;
    let rest = &events[events.len() / 2 + 1..];
    assert_eq!(again[..rest.len()], *rest);
    let more = submit_charges(provost.api(), 3).await;
    for task in &more {
        provost.settled(task).await;
    }
    let (new, _) = read_on(provost.api(), Some(end), "").await;
    check_histories(provost.api(), &new, &more).await;
}

#[tokio::test]
async fn a_filter_leaves_events_out_and_the_position_moves_on() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let url = remote.url();
    let mut labelled = pipeline(&url, &["only"]);
    labelled["labels"] = json!({ "customer": "acme" });
    let one = provost.run(&labelled).await;
    provost.run(&pipeline(&url, &["only"])).await;
    let (processed, end) = read_on(provost.api(), None, "&types=task.processed").await;
    assert_eq!(processed.len(), 2);
    let (acme, _) = read_on(provost.api(), None, "&label=customer:acme").await;
    assert!(acme.len() > 2);
    assert!(acme.iter().all(|event| event["task"]["id"] == one["id"]));
    let (none, none_end) = read_on(provost.api(), None, "&types=task.undone").await;
    assert!(none.is_empty());
    assert_eq!(none_end, end, "the position moves past what is left out");
    for wrong in [
        "after=nonsense",
        "types=Task",
        "reader=x&after=newest",
        "label=acme",
    ] {
        let refused = provost.get(&format!("/v1/events?{wrong}")).await;
        refused.expect_problem(400, "invalid-query");
    }
}

#[tokio::test]
async fn a_caller_waits_for_the_next_event_and_a_stream_goes_on_where_it_broke_off() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let newest = provost.get("/v1/events?after=newest").await.expect(200);
    let after = newest["position"].as_str().unwrap().to_owned();
    let path = format!("/v1/events?after={after}");
    let waiting = provost.get(&path).header("prefer", "wait=60");
    let waiting = tokio::spawn(async move { waiting.await.expect(200) });
    let stream = provost.get(&path).header("accept", "text/event-stream");
    let mut stream = Events::open(stream).await;
    let task = provost.run(&pipeline(&remote.url(), &["one"])).await;
    let page = waiting.await.unwrap();
    assert_eq!(page["items"][0]["type"], "task.accepted");
    let accepted = stream.until("task.accepted").await;
    assert_eq!(accepted.data["task"]["id"], task["id"]);
    drop(stream);
    let stream = provost
        .get("/v1/events")
        .header("accept", "text/event-stream");
    let mut stream = Events::open(stream.header("last-event-id", &accepted.id)).await;
    let next = stream.next().await.unwrap();
    assert_ne!(next.kind, "task.accepted");
    assert_eq!(
        stream.until("task.processed").await.data["task"]["id"],
        task["id"]
    );
}

#[tokio::test]
async fn a_reader_with_a_name_reads_on_where_it_confirmed() {
    let remote = Remote::quick().await;
    let mut provost = Provost::start().await;
    provost.run(&pipeline(&remote.url(), &["one"])).await;
    let put = provost.put("/v1/readers/billing", &json!({ "position": "newest" }));
    put.await.expect(201);
    let second = provost.run(&pipeline(&remote.url(), &["one"])).await;
    let page = provost.get("/v1/events?reader=billing&types=task.processed");
    let page = page.await.expect(200);
    assert_eq!(page["items"].as_array().unwrap().len(), 1);
    assert_eq!(page["items"][0]["task"]["id"], second["id"]);
    let confirmed = json!({ "position": page["position"] });
    provost
        .put("/v1/readers/billing", &confirmed)
        .await
        .expect(200);
    provost.kill().await;
    provost.restart().await;
    let page = provost.get("/v1/events?reader=billing&types=task.processed");
    assert_eq!(page.await.expect(200)["items"], json!([]));
    provost
        .get("/v1/readers/none")
        .await
        .expect_problem(404, "no-such-reader");
    provost.delete("/v1/readers/billing").await.expect(204);
}

#[tokio::test]
async fn changes_of_people_and_definitions_are_in_one_line_with_the_states_of_agents() {
    let remote = Remote::script([Act::status(402)]).await;
    let provost = Provost::start().await;
    let as_ada = |call: crate::harness::Call| call.header("provost-actor", "ada");
    let agent =
        |slots: u32| json!({ "endpoints": [{ "url": remote.url(), "max_in_flight": slots }] });
    as_ada(provost.put("/v1/agents/payments", &agent(4)))
        .await
        .expect(201);
    as_ada(provost.put("/v1/agents/payments", &agent(8)))
        .await
        .expect(200);
    let workflow = json!({ "steps": [{ "name": "charge", "agent": "payments" }] });
    as_ada(provost.put("/v1/workflows/order", &workflow))
        .await
        .expect(201);
    let pause = provost.post(
        "/v1/agents/payments/pause",
        &json!({ "reason": "the bank moves" }),
    );
    as_ada(pause).await.expect(200);
    as_ada(provost.command("/v1/agents/payments/resume"))
        .await
        .expect(200);
    let task = provost.run(&json!({ "workflow": "order" })).await;
    assert_eq!(task["state"], "error");
    let id = task["id"].as_str().unwrap();
    let cancel = provost.post(
        &format!("/v1/tasks/{id}/cancel"),
        &json!({ "reason": "no money" }),
    );
    as_ada(cancel).await.expect(200);
    let changes = provost.get("/v1/changes?limit=100").await.expect(200);
    let mut items = changes["items"].as_array().unwrap().clone();
    items.reverse();
    let kinds: Vec<_> = items
        .iter()
        .map(|item| item["type"].as_str().unwrap())
        .collect();
    let expected = [
        "agent.put",
        "agent.put",
        "workflow.registered",
        "agent.paused",
        "agent.resumed",
        "task.command",
    ];
    assert_eq!(kinds, expected, "{items:#?}");
    assert_eq!(
        items[1]["differences"][0]["pointer"],
        "/endpoints/0/max_in_flight"
    );
    assert_eq!(items[1]["differences"][0]["before"], "4");
    assert_eq!(items[1]["differences"][0]["after"], "8");
    assert_eq!(items[3]["reason"], "the bank moves");
    assert_eq!(items[5]["reason"], "no money");
    for item in &items {
        assert_eq!(item["by"], "operator:ada");
        assert_eq!(item["address"], "127.0.0.1");
    }
    let agents = provost
        .get("/v1/changes?types=agent.*&limit=2")
        .await
        .expect(200);
    assert_eq!(agents["items"].as_array().unwrap().len(), 2);
    let cursor = agents["next_cursor"].as_str().unwrap();
    let next = provost.get(&format!(
        "/v1/changes?types=agent.*&limit=2&cursor={cursor}"
    ));
    assert_eq!(next.await.expect(200)["items"].as_array().unwrap().len(), 2);
    let (alerts, _) = read_on(provost.api(), None, "&types=alert.*").await;
    let kinds: Vec<_> = alerts
        .iter()
        .map(|alert| alert["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["alert.raised", "alert.closed"]);
}

#[tokio::test]
async fn a_reader_at_one_instance_sees_what_another_does_while_it_is_killed() {
    let database = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    let remote = Remote::quick().await;
    let on = || Provost::setup().database_url(&database);
    let (a, mut b) = tokio::join!(on().start(), on().start());
    a.register("payments", &remote.url(), 8).await;
    let stream = a.get("/v1/events?types=task.processed");
    let mut stream = Events::open(stream.header("accept", "text/event-stream")).await;
    let mut tasks = submit_charges(b.api(), 10).await;
    b.kill().await;
    b.restart().await;
    tasks.extend(submit_charges(b.api(), 10).await);
    let mut processed = BTreeSet::new();
    while processed.len() < tasks.len() {
        let event = stream.next().await.unwrap();
        let task = event.data["task"]["id"].as_str().unwrap().to_owned();
        assert!(processed.insert(task), "it is there once");
    }
    assert_eq!(processed, tasks.iter().cloned().collect());
    let (events, _) = read_on(b.api(), None, "").await;
    check_histories(a.api(), &events, &tasks).await;
}

#[tokio::test]
async fn a_submitter_sees_the_events_of_tasks_and_no_changes() {
    let config = r#"
[[tokens]]
name = "shop"
role = "submit"
token = "the-token-of-the-shop"
[[tokens]]
name = "root"
role = "admin"
token = "the-token-of-the-root"
"#;
    let remote = Remote::quick().await;
    let provost = Provost::setup().config(config).start().await;
    let shop =
        |call: crate::harness::Call| call.header("authorization", "Bearer the-token-of-the-shop");
    let root =
        |call: crate::harness::Call| call.header("authorization", "Bearer the-token-of-the-root");
    let agent = json!({ "endpoints": [{ "url": remote.url(), "max_in_flight": 8 }] });
    root(provost.put("/v1/agents/payments", &agent))
        .await
        .expect(201);
    let task = json!({ "steps": [{ "name": "charge", "agent": "payments" }] });
    let submitted = shop(provost.post("/v1/tasks", &task)).header("prefer", "wait=60");
    submitted.await.expect(200);
    let seen = shop(provost.get("/v1/events")).await.expect(200);
    let seen = seen["items"].as_array().unwrap();
    assert!(!seen.is_empty() && seen.iter().all(|event| event.get("record").is_none()));
    let all = root(provost.get("/v1/events")).await.expect(200);
    assert_eq!(all["items"].as_array().unwrap().len(), seen.len() + 1);
    shop(provost.get("/v1/changes"))
        .await
        .expect_problem(403, "forbidden");
    let changes = root(provost.get("/v1/changes")).await.expect(200);
    assert_eq!(changes["items"][0]["role"], "admin");
    let put = |position: &str| provost.put("/v1/readers/mine", &json!({ "position": position }));
    root(put("oldest")).await.expect(201);
    shop(put("newest")).await.expect_problem(403, "forbidden");
}
