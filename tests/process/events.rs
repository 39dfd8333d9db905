//! The events of a task in order: as a list, and live as server-sent events.

use serde_json::{Value, json};

use crate::harness::{Events, Gate, Provost, Remote, kinds, new_database, pipeline, setups};

const STORY: [&str; 9] = [
    "task.accepted",
    "step.ready",
    "step.claimed",
    "task.processing",
    "step.processed",
    "step.ready",
    "step.claimed",
    "step.processed",
    "task.processed",
];

#[tokio::test]
async fn the_history_tells_every_change_in_order_with_who_and_when() {
    let remote = Remote::quick().await;
    let setup = Provost::setup()
        .argument("--instance-id")
        .argument("node-1");
    let provost = setup.start().await;
    let task = provost.run(&pipeline(&remote.url(), &["a", "b"])).await;
    let history = provost.history(task["id"].as_str().unwrap()).await;
    assert_eq!(kinds(&history), STORY);
    assert_eq!(history[0]["by"], "submitter");
    assert_eq!(history[2]["by"], "scheduler:node-1");
    let place = |entry: &Value| {
        let seq = entry["seq"].as_str().unwrap();
        let (version, place) = seq.split_once('.').unwrap();
        (
            version.parse::<u64>().unwrap(),
            place.parse::<u64>().unwrap(),
        )
    };
    assert!(
        history
            .windows(2)
            .all(|pair| place(&pair[0]) < place(&pair[1])),
        "{history:#?}"
    );
    let at = |entry: &Value| entry["at"].as_str().unwrap().to_owned();
    assert!(history.windows(2).all(|pair| at(&pair[0]) <= at(&pair[1])));
    for entry in history.iter().filter(|entry| entry["step"].is_string()) {
        assert!(
            entry["from"].is_string() && entry["to"].is_string(),
            "{entry}"
        );
    }
}

#[tokio::test]
async fn the_history_comes_in_pages() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let task = provost.run(&pipeline(&remote.url(), &["a", "b"])).await;
    let id = task["id"].as_str().unwrap();
    let mut items = Vec::new();
    let mut path = format!("/v1/tasks/{id}/history?limit=1");
    loop {
        let page = provost.get(&path).await.expect(200);
        items.extend(page["items"].as_array().unwrap().clone());
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/v1/tasks/{id}/history?limit=1&cursor={cursor}");
    }
    assert_eq!(items, provost.history(id).await);
}

#[tokio::test]
async fn events_come_as_they_happen_and_close_when_the_task_ends() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let provost = Provost::start().await;
    let id = provost.submit(&pipeline(&remote.url(), &["a", "b"])).await;
    let mut events = provost.events(&id).await;
    let first = events.next().await.unwrap();
    assert_eq!(first.kind, "task.accepted");
    events.until("step.claimed").await;
    gate.open();
    events.until("task.processed").await;
    assert!(events.next().await.is_none(), "the stream is closed");
    // From the begin the stream has the same events as the history.
    let told = provost.events(&id).await.rest().await;
    let told: Vec<Value> = told.into_iter().map(|event| event.data).collect();
    assert_eq!(told, provost.history(&id).await);
}

#[tokio::test]
async fn a_client_that_comes_back_misses_nothing_and_hears_nothing_twice() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let task = provost.run(&pipeline(&remote.url(), &["a", "b"])).await;
    let path = format!("/v1/tasks/{}/events", task["id"].as_str().unwrap());
    let all = Events::open(provost.get(&path)).await.rest().await;
    let all: Vec<String> = all.into_iter().map(|event| event.id).collect();
    assert!(all.len() > 5);
    // A client that has seen the last event gets another response: see below.
    for (place, seen) in all.iter().enumerate().take(all.len() - 1) {
        let resumed = provost.get(&path).header("last-event-id", seen);
        let rest = Events::open(resumed).await.rest().await;
        let rest: Vec<String> = rest.into_iter().map(|event| event.id).collect();
        assert_eq!(rest, all[place + 1..], "after {seen}");
    }
}

#[tokio::test]
async fn events_of_a_task_that_is_not_there_are_404() {
    let provost = Provost::start().await;
    for part in ["", "/events", "/history"] {
        let path = format!("/v1/tasks/019c7a5e-0000-7000-8000-000000000000{part}");
        provost.get(&path).await.expect_problem(404, "no-such-task");
    }
    provost
        .get("/v1/tasks/nonsense")
        .await
        .expect_problem(404, "no-such-task");
}

#[tokio::test]
async fn who_has_seen_the_end_is_told_that_there_is_no_more() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!(1))]).await;
    let provost = Provost::start().await;
    let id = provost.submit(&pipeline(&remote.url(), &["a"])).await;
    let path = format!("/v1/tasks/{id}/events");
    // The id is later than all events so far: the following events are sent.
    let ahead = provost.get(&path).header("last-event-id", "900.1");
    let mut ahead = Events::open(ahead).await;
    remote.requests(1).await;
    gate.open();
    ahead.until("task.processed").await;
    assert!(ahead.next().await.is_none());

    let all = provost.events(&id).await.rest().await;
    assert_eq!(all.last().unwrap().kind, "task.processed");
    for seen in [all.last().unwrap().id.as_str(), "900.1"] {
        let answer = provost.get(&path).header("last-event-id", seen).await;
        assert_eq!((answer.status, &answer.body), (204, &json!("")), "{seen}");
    }
    let before = &all[all.len() - 2].id;
    let rest = provost.get(&path).header("last-event-id", before);
    let rest = Events::open(rest).await.rest().await;
    assert_eq!(rest.len(), 1);
}

/// One change of a list has an entry for each item.
#[tokio::test]
async fn a_page_of_the_history_has_no_more_entries_than_its_limit() {
    const ITEMS: usize = 600;
    for setup in setups().await {
        let remote = Remote::quick().await;
        let provost = setup.start().await;
        let items: Vec<_> = (0..ITEMS).collect();
        let task = provost
            .run(&json!({
                "input": { "items": items },
                "steps": [{ "name": "each", "url": remote.url(), "for_each": "{{ input.items }}" }],
            }))
            .await;
        assert_eq!(task["state"], "processed", "{task}");
        let list = format!("/v1/tasks/{}/history", task["id"].as_str().unwrap());
        let read = async |limit: usize| {
            let mut entries: Vec<Value> = Vec::new();
            let mut path = format!("{list}?limit={limit}");
            loop {
                let page = provost.get(&path).await.expect(200);
                let items = page["items"].as_array().unwrap();
                assert!(items.len() <= limit, "{} of {limit}", items.len());
                entries.extend(items.iter().cloned());
                match page["next_cursor"].as_str() {
                    Some(cursor) => path = format!("{list}?limit={limit}&cursor={cursor}"),
                    None => return entries,
                }
            }
        };
        let all = read(500).await;
        assert!(all.len() > 2 * ITEMS, "{}", all.len());
        assert_eq!(read(77).await, all);
        let mut stream = provost.events(task["id"].as_str().unwrap()).await;
        let events = stream.rest().await.into_iter();
        let events: Vec<Value> = events.map(|event| event.data).collect();
        assert_eq!(events, all);
    }
}

/// No instance notifies the other, so the stream gets the events at its next read.
#[tokio::test]
async fn a_stream_has_what_another_instance_did_without_notifications() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let url = new_database().await;
    let on = || {
        Provost::setup()
            .database_url(&url)
            .set("POSTGRES__LISTEN", "false")
    };
    let (works, shows) = (on().start().await, on().start().await);
    let id = works.submit(&pipeline(&remote.url(), &["a"])).await;
    remote.requests(1).await;
    let mut streams = [shows.events(&id).await, shows.events(&id).await];
    for events in &mut streams {
        events.until("step.claimed").await;
    }
    gate.open();
    for events in &mut streams {
        events.until("task.processed").await;
        assert!(events.next().await.is_none(), "the stream is closed");
    }
}
