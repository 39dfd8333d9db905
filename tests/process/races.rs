//! Joins that need fewer than all of the steps before them.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};

use crate::harness::{Act, Gate, Provost, Remote, Seen, id_of, setups, step};

/// Two services compete with a timer.
fn race(url: &str, rest: &str) -> Value {
    let quote = |name: &str| {
        json!({ "name": name, "url": url, "after": [], "request": { "path": format!("/{name}") },
            "undo": { "request": { "method": "DELETE", "path": format!("/{name}/undo") } } })
    };
    json!({ "steps": [
        quote("eu"),
        quote("us"),
        { "name": "timer", "after": [], "wait": { "for": "1h" } },
        { "name": "join", "url": url, "after": { "any": 1, "of": ["eu", "us", "timer"], "rest": rest },
          "request": { "path": "/join", "body": { "won": "{{ steps.join.winner }}" } } },
    ] })
}

/// `eu` replies at once, `us` once the gate is open.
async fn services(gate: &Gate) -> Remote {
    let gate = gate.clone();
    Remote::with(move |seen: &Seen| match seen.path.as_str() {
        "/us" => gate.then(json!({ "id": "us" })),
        path => Act::Ok(json!({ "path": path })),
    })
    .await
}

fn calls(remote: &Remote, path: &str) -> Vec<Seen> {
    let mut ledger = remote.ledger();
    ledger.retain(|seen| seen.path == path);
    ledger
}

#[tokio::test]
async fn the_first_success_begins_the_join_and_the_rest_is_cancelled() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = services(&gate).await;
        let provost = setup.start().await;
        let task = provost.run(&race(&remote.url(), "cancel")).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        let states = ["eu", "us", "timer", "join"].map(|name| step(&task, name)["state"].clone());
        assert_eq!(states, ["processed", "cancelled", "cancelled", "processed"]);
        assert_eq!(step(&task, "us")["outcome"], "unknown");
        assert_eq!(step(&task, "join")["winners"], json!(["eu"]));
        let joined = calls(&remote, "/join");
        assert_eq!(joined.len(), 1);
        assert_eq!(joined[0].body, json!({ "won": "eu" }));
        // The dropped call may have done something, which is undone with the task.
        let undo = format!("/v1/tasks/{}/undo", id_of(&task));
        provost.post(&undo, &json!({})).await.expect(200);
        remote.paths("/us/undo", 1).await;
        remote.paths("/eu/undo", 1).await;
    }
}

#[tokio::test]
async fn a_loser_is_undone_once_although_its_instance_is_killed() {
    for setup in setups().await {
        let gate = Gate::closed();
        let remote = services(&gate).await;
        let mut provost = setup.start().await;
        let id = provost.submit(&race(&remote.url(), "undo")).await;
        remote.paths("/join", 1).await;
        remote.paths("/us", 1).await;
        provost.kill().await;
        gate.open();
        provost.restart().await;
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        let states = ["eu", "us", "timer", "join"].map(|name| step(&task, name)["state"].clone());
        let [eu, us, timer, join] = states.each_ref().map(|state| state.as_str().unwrap());
        assert_eq!(
            (eu, us, timer, join),
            ("processed", "undone", "cancelled", "processed")
        );
        assert_eq!(step(&task, "us.revert")["undoes"], "us");
        let undone = calls(&remote, "/us/undo");
        assert_eq!(undone.len(), 1);
        assert!(undone[0].key().ends_with(":us.undo"), "{}", undone[0].key());
        assert!(calls(&remote, "/eu/undo").is_empty());
    }
}

/// A call competes with a task of two steps, of which the second one waits for the gate. The first one is undoable, or a
/// pivot.
fn race_with_task(url: &str, is_pivot: bool) -> Value {
    let mut book = json!({ "name": "book", "url": url, "request": { "path": "/book" } });
    match is_pivot {
        true => book["pivot"] = json!(true),
        false => book["undo"] = json!({ "request": { "path": "/book/undo" } }),
    }
    let hold =
        json!({ "name": "hold", "url": url, "request": { "path": "/us" }, "on_undo": "drop" });
    json!({ "steps": [
        { "name": "eu", "url": url, "after": [], "request": { "path": "/eu" } },
        { "name": "us", "after": [], "task": { "steps": [book, hold] } },
        { "name": "join", "url": url, "after": { "any": 1, "of": ["eu", "us"], "rest": "undo" },
          "request": { "path": "/join" } },
    ] })
}

/// `/eu` waits for the first gate, `/us` for the second one.
async fn gated(first: &Gate, second: &Gate) -> Remote {
    let (first, second) = (first.clone(), second.clone());
    Remote::with(move |seen: &Seen| match seen.path.as_str() {
        "/eu" => first.then(json!({})),
        "/us" => second.then(json!({})),
        _ => Act::Ok(json!({})),
    })
    .await
}

#[tokio::test]
async fn the_task_of_a_loser_is_undone_once_although_its_instance_is_killed() {
    for setup in setups().await {
        let (first, second) = (Gate::closed(), Gate::closed());
        let remote = gated(&first, &second).await;
        let mut provost = setup.start().await;
        let id = provost.submit(&race_with_task(&remote.url(), false)).await;
        remote.paths("/us", 1).await;
        first.open();
        remote.paths("/join", 1).await;
        provost.kill().await;
        provost.restart().await;
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(step(&task, "us")["state"], "cancelled");
        assert_eq!(step(&task, "us.revert")["state"], "skipped");
        assert_eq!(calls(&remote, "/book/undo").len(), 1);
    }
}

#[tokio::test]
async fn the_task_of_a_loser_that_cannot_be_undone_needs_an_operator() {
    for setup in setups().await {
        let (first, second) = (Gate::closed(), Gate::closed());
        let remote = gated(&first, &second).await;
        let provost = setup.start().await;
        let id = provost.submit(&race_with_task(&remote.url(), true)).await;
        remote.paths("/us", 1).await;
        first.open();
        remote.paths("/join", 1).await;
        second.open();
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "error", "{task:#}");
        let revert = step(&task, "us.revert");
        let fault = revert["error"]["message"].as_str().unwrap();
        assert!(fault.contains("pivot"), "{revert:#}");
        assert_eq!(revert["blocked_by"]["reason"], "operator", "{revert:#}");
        let skip = format!("/v1/tasks/{id}/steps/us.revert/skip");
        provost.post(&skip, &json!({})).await.expect(200);
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
    }
}

#[tokio::test]
async fn a_race_that_nobody_can_win_is_in_error_until_an_operator_decides() {
    let remote = Remote::with(|seen: &Seen| match seen.path.as_str() {
        "/join" => Act::Ok(json!({})),
        _ => Act::status(422),
    })
    .await;
    let provost = Provost::start().await;
    let mut race = race(&remote.url(), "cancel");
    for at in 0..2 {
        race["steps"][at]["on_permanent"] = json!("skip");
    }
    race["steps"][3]["after"] = json!({ "any": 1, "of": ["eu", "us"] });
    race["steps"].as_array_mut().unwrap().remove(2);
    let task = provost.run(&race).await;
    assert_eq!(task["state"], "error", "{task:#}");
    let join = step(&task, "join");
    let message = "none of the steps that it needs one of can still succeed";
    assert_eq!(join["error"]["message"], message, "{join:#}");
    let skip = format!("/v1/tasks/{}/steps/join/skip", id_of(&task));
    let task = provost.post(&skip, &json!({})).await.expect(200);
    assert_eq!(task["state"], "processed", "{task:#}");
}

#[tokio::test]
async fn enough_items_of_a_list_end_it() {
    let gate = Gate::closed();
    let held = gate.clone();
    let remote = Remote::with(move |seen: &Seen| match seen.body["item"].as_u64() {
        Some(3) => held.then(json!(3)),
        item => Act::Ok(json!({ "vote": item })),
    })
    .await;
    let provost = Provost::start().await;
    let task = json!({ "steps": [
        { "name": "vote", "url": remote.url(), "for_each": [1, 2, 3], "enough": 2,
          "request": { "path": "/vote", "body": { "item": "{{ item }}" } } },
        { "name": "sum", "set": { "votes": "{{ steps.vote.output | select | list | length }}" } },
        { "name": "end", "stop": { "state": "processed", "message": "there is a majority",
                                   "output": "{{ steps.sum.output.votes }}" } },
        { "name": "never", "url": remote.url(), "request": { "path": "/never" } },
    ] });
    let task = provost.run(&task).await;
    assert_eq!(task["state"], "processed", "{task:#}");
    assert_eq!(task["output"], 2);
    let kinds = ["vote", "sum", "end"].map(|name| step(&task, name)["kind"].clone());
    assert_eq!(kinds, ["call", "set", "stop"]);
    assert_eq!(step(&task, "never")["state"], "cancelled");
    assert!(calls(&remote, "/never").is_empty());
}

#[tokio::test]
async fn a_task_that_is_stopped_as_undone_is_undone_although_its_instance_is_killed() {
    for setup in setups().await {
        let gate = Gate::closed();
        let held = gate.clone();
        let remote = Remote::with(move |seen: &Seen| match seen.path.as_str() {
            "/undo" => held.then(json!(null)),
            _ => Act::Ok(json!({ "left": 0 })),
        })
        .await;
        let mut provost = setup.start().await;
        let task = json!({ "steps": [
            { "name": "stock", "url": remote.url(), "request": { "path": "/stock" },
              "undo": { "request": { "path": "/undo" } } },
            { "name": "sold-out", "when": "steps.stock.output.left == 0",
              "stop": { "state": "undone", "message": "nothing is left" } },
            { "name": "never", "url": remote.url(), "request": { "path": "/never" } },
        ] });
        let id = provost.submit(&task).await;
        remote.paths("/undo", 1).await;
        provost.kill().await;
        gate.open();
        provost.restart().await;
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "undone", "{task:#}");
        assert_eq!(task["undo"]["error"]["message"], "nothing is left");
        assert!(calls(&remote, "/never").is_empty());
    }
}

/// The responses of a service that loses a race, each after it has done its work or not.
const LOSERS: [(&str, bool); 6] = [
    ("late", true),
    ("refused", false),
    ("broken off", true),
    ("failed", true),
    ("unreadable", true),
    ("unavailable", false),
];

#[tokio::test]
async fn no_effect_of_a_loser_stands_whatever_its_service_does() {
    for setup in setups().await {
        let provost = setup.start().await;
        for (fault, is_done) in LOSERS {
            let effects = Arc::new(Mutex::new(BTreeSet::new()));
            let (known, won) = (Arc::clone(&effects), Gate::closed());
            let (lost, first) = (Gate::closed(), won.clone());
            let held = lost.clone();
            let remote = Remote::with(move |seen: &Seen| {
                let mut effects = known.lock().unwrap();
                if let Some(undone) = seen.headers.get("provost-undoes") {
                    effects.remove(undone);
                    return Act::Ok(json!(null));
                }
                if seen.path != "/us" {
                    effects.insert(seen.key().to_owned());
                    let act = Act::Ok(json!({ "id": "eu" }));
                    return match seen.path.as_str() {
                        "/eu" => Act::Gated(first.clone(), Box::new(act)),
                        _ => act,
                    };
                }
                if is_done {
                    effects.insert(seen.key().to_owned());
                }
                let act = match fault {
                    "refused" => Act::status(422),
                    "broken off" => Act::Close,
                    "failed" => Act::status(500),
                    "unreadable" => Act::answer(200, &[], "{ no JSON"),
                    "unavailable" => Act::status(503),
                    _ => Act::Ok(json!({ "id": "us" })),
                };
                Act::Gated(held.clone(), Box::new(act))
            })
            .await;
            let id = provost.submit(&race(&remote.url(), "undo")).await;
            remote.paths("/us", 1).await;
            won.open();
            remote.paths("/join", 1).await;
            lost.open();
            let task = provost.settled(&id).await;
            assert_eq!(task["state"], "processed", "{fault}: {task:#}");
            let standing = effects.lock().unwrap().clone();
            let expected = ["eu", "join"].map(|name| format!("{id}:{name}"));
            assert_eq!(standing, BTreeSet::from(expected), "{fault}: {task:#}");
            assert_eq!(
                calls(&remote, "/us").len(),
                1,
                "{fault}: it is not tried again"
            );
        }
    }
}
