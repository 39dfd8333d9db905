//! The night trial: 500 tasks, of which 100 failed for three causes, are put right with at most four commands.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::json;

use super::{Person, Ran};
use crate::harness::{Act, Provost, Remote, until};

/// Counts the commands that the person types.
struct Counted<'p> {
    person: &'p Person,
    commands: usize,
}

impl Counted<'_> {
    async fn types(&mut self, arguments: &[&str]) -> Ran {
        self.commands += 1;
        let ran = self.person.run(arguments).await;
        assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
        ran
    }
}

#[tokio::test]
async fn a_night_with_three_causes_takes_four_commands() {
    let is_up = Arc::new(AtomicBool::new(false));
    let up = is_up.clone();
    let remote = Remote::with(move |seen| {
        let body = &seen.raw;
        match () {
            () if body.contains("\"late\"") && !up.load(Ordering::Relaxed) => {
                Act::answer(403, &[], r#"{"error":"maintenance"}"#)
            }
            () if body.contains("\"bare\"") && !body.contains("EUR") => {
                Act::answer(422, &[], r#"{"error":"no_currency"}"#)
            }
            () if body.contains("\"gone\"") => {
                Act::answer(410, &[], r#"{"error":"account_closed"}"#)
            }
            () => Act::Ok(json!({})),
        }
    })
    .await;
    let provost = Provost::start().await;
    provost.register("payments", &remote.url(), 50).await;
    let workflow = json!({ "steps": [{ "name": "charge", "agent": "payments",
        "request": { "path": "/charges", "body": { "kind": "{{ input.kind }}" } } }] });
    let put = provost.put("/v1/workflows/order", &workflow).await;
    assert_eq!(put.status, 201, "{put:?}");
    let kinds = [("good", 400), ("late", 50), ("bare", 30), ("gone", 20)];
    for (kind, count) in kinds {
        let tasks = (0..count).map(|number| {
            json!({ "workflow": "order", "key": format!("{kind}-{number}"), "input": { "kind": kind } })
        });
        let tasks: Vec<_> = tasks.collect();
        futures::future::join_all(tasks.iter().map(|task| provost.submit(task))).await;
    }
    let count = async |state: &str| {
        let overview = provost.get("/v1/overview").await.expect(200);
        let states = overview["tasks"].as_array().unwrap().clone();
        let found = states.into_iter().find(|counted| counted["state"] == state);
        found.map_or(0, |counted| counted["count"].as_u64().unwrap())
    };
    until(100, || count("error")).await;
    until(0, || count("processing")).await;

    // In the morning the service works again.
    is_up.store(true, Ordering::Relaxed);
    let person = Person::of(&provost);
    let mut morning = Counted {
        person: &person,
        commands: 0,
    };
    let status = morning.types(&["status"]).await.out;
    assert!(status.starts_with("3 causes need you"), "{status}");
    let cause = |words: &str| {
        let line = status
            .lines()
            .find(|line| line.contains(words) && line.contains("Step charge"));
        let line = line.unwrap_or_else(|| panic!("no {words} in {status}"));
        line.split(' ').next().unwrap().to_owned()
    };
    morning
        .types(&[
            "retry",
            "--cause",
            &cause("maintenance"),
            "--yes",
            "--reason",
            "the service works again",
        ])
        .await;
    let patch = r#"{"currency": "EUR"}"#;
    morning
        .types(&[
            "retry",
            "--cause",
            &cause("no_currency"),
            "--patch",
            patch,
            "--yes",
        ])
        .await;
    morning
        .types(&[
            "skip",
            "--cause",
            &cause("account_closed"),
            "--yes",
            "--reason",
            "the accounts are closed",
        ])
        .await;
    assert!(morning.commands <= 4, "{} commands", morning.commands);

    until(0, || count("error")).await;
    until(0, || count("processing")).await;
    let status = person.done(&["status"]).await;
    assert!(status.starts_with("Nothing needs you."), "{status}");
    for (kind, _) in kinds {
        let task = person.json(&["task", &format!("{kind}-0")]).await;
        assert_eq!(task["state"], "processed", "{kind}: {task:#}");
    }
}
