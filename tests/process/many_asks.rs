//! Many asks that are open at once: a page of their list has the same cost at every position.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    backlog::{explaining, plans_of, rows_read},
    harness::{Api, Provost, Setup, until},
};

/// The number of items of a list that run at once. Each task has that number of asks.
const AT_ONCE: usize = 1000;
const TASKS: usize = 11;
const PAGE: usize = 50;

/// Returns a task that asks a person of its own, and one of ten others, for each item.
fn asking(number: usize) -> Value {
    json!({ "input": { "of": (0..AT_ONCE).collect::<Vec<_>>() }, "labels": { "number": number.to_string() }, "steps": [
        { "name": "approve", "for_each": "{{ input.of }}", "max_parallel": AT_ONCE,
          "signal": { "within": "30d", "ask": { "title": "Pay {{ item }}?",
            "of": [format!("ann-{number}@example.com"), "bob-{{ item % 10 }}@example.com"] } } } ] })
}

async fn page(api: &Api, query: &str) -> (Vec<Value>, Option<String>) {
    let path = format!("/v1/asks?open=true&limit={PAGE}{query}");
    let page = api.get(&path).await.expect(200);
    let items = page["items"].as_array().unwrap().clone();
    let next = page["next_cursor"].as_str().map(str::to_owned);
    (items, next)
}

/// Reads the whole list in pages. Returns the number of asks.
async fn all(api: &Api, query: &str) -> usize {
    let mut seen = BTreeSet::new();
    let mut cursor = String::new();
    loop {
        let (items, next) = page(api, &format!("{query}{cursor}")).await;
        for item in items {
            let is_new = seen.insert(format!("{}{}", item["task"], item["step"]));
            assert!(is_new, "listed twice: {item}");
        }
        match next {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return seen.len(),
        }
    }
}

async fn ask(setup: Setup) -> Provost {
    let provost = setup.start().await;
    for number in 0..TASKS {
        provost.submit(&asking(number)).await;
    }
    until(true, async || {
        let waiting = provost.metric("provost_steps_waiting_for_event").await;
        waiting >= (TASKS * AT_ONCE) as f64
    })
    .await;
    assert_eq!(all(&provost, "").await, TASKS * AT_ONCE);
    assert_eq!(
        all(&provost, "&of=bob-3@example.com").await,
        TASKS * AT_ONCE / 10
    );
    assert_eq!(all(&provost, "&of=ann-3@example.com").await, AT_ONCE);
    assert_eq!(all(&provost, "&workflow=none").await, 0);
    provost
}

#[tokio::test]
async fn eleven_thousand_open_questions_are_listed_in_pages_each_once() {
    ask(Provost::setup()).await;
}

#[tokio::test]
async fn a_page_of_open_questions_costs_postgresql_the_same_however_many_there_are() {
    let server = explaining().await;
    let provost = ask(Provost::setup().database_url(&server.url())).await;
    server.sql("ANALYZE").await;
    assert_eq!(all(&provost, "").await, TASKS * AT_ONCE);
    assert_eq!(
        all(&provost, "&of=bob-3@example.com").await,
        TASKS * AT_ONCE / 10
    );
    let plans = plans_of(&server.log(), |sql| sql.contains("FROM open_asks WHERE"));
    assert!(plans.len() > 2 * TASKS * AT_ONCE / PAGE, "{}", plans.len());
    for plan in &plans {
        // The plan reads one row of the index, of the steps and of the tasks for each ask.
        assert!(rows_read(plan) <= 3.0 * (PAGE + 1) as f64, "{plan:#}");
    }
}
