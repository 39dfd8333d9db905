//! The page of changes: each in a sentence, with who made it and with what differs.

use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    HOSTILE,
    browser::{Seen, Visitor},
    full, page_of,
};

const TASK: &str = "01a215c2-87c0-7511-8c40-d9553b745a25";

/// A change of each kind, newest first.
pub fn all() -> Vec<Value> {
    let change = |kind: &str, name: &str, more: Value| {
        let mut change = json!({"at": "2026-11-26T03:10:31Z", "type": kind, "name": name, "by": "operator:ada",
            "subject": kind.split('.').next().unwrap(), "role": "admin", "address": "192.0.2.7"});
        for (name, value) in more.as_object().unwrap() {
            change[name] = value.clone();
        }
        change
    };
    let difference = |pointer: &str, before: Option<&str>, after: Option<&str>| {
        let mut difference = json!({ "pointer": pointer });
        for (name, value) in [("before", before), ("after", after)] {
            if let Some(value) = value {
                difference[name] = value.into();
            }
        }
        difference
    };
    let spec = difference("", None, Some(&format!("{{\"note\":{HOSTILE:?}}}")));
    let open = json!({"by": "instance:eu-2", "role": null, "address": null, "reason": "20 of 24 calls failed"});
    let small = [
        difference("/endpoints/0/max_in_flight", Some("4"), Some("8")),
        difference("/note", Some("\"x\""), None),
    ];
    let steps = vec![difference("/steps/0/agent", Some("\"a\""), Some("\"b\"")); 12];
    let one = [difference("/version", Some("13"), Some("14"))];
    vec![
        change(
            "task.command",
            TASK,
            json!({"command": "retry", "step": "charge", "reason": HOSTILE}),
        ),
        change("agent.breaker_opened", "payments", open),
        change(
            "workflow.activated",
            "order",
            json!({"differences": one, "reason": "currency is back"}),
        ),
        change(
            "workflow.registered",
            "order",
            json!({"differences": steps, "more_differences": true, "reason": "version 14"}),
        ),
        change("agent.put", "risk", json!({ "differences": small })),
        change(
            "agent.put",
            "payments",
            json!({"at": "2026-11-25T18:31:00Z", "differences": [spec]}),
        ),
        change(
            "agent.deleted",
            "old",
            json!({"differences": [difference("", Some("{}"), None)]}),
        ),
        change(
            "bulk_job.added",
            TASK,
            json!({"reason": "retry 403 tasks: payments is repaired"}),
        ),
        change("hibernation.begun", HOSTILE, json!({})),
    ]
}

fn lines(seen: &Seen) -> Vec<String> {
    let lines = seen
        .all("li")
        .into_iter()
        .filter(|line| line.text.contains(": "));
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    lines.map(|line| words(&line.text)).collect()
}

#[tokio::test]
async fn every_change_is_a_sentence_with_who_made_it_and_what_differs() {
    let seen = Visitor::of(full()).get("/console/changes").await;
    assert_eq!(seen.text("h1"), "What changed, and what failed then");
    let lines = lines(&seen);
    let line = |part: &str| {
        let found = lines.iter().find(|line| line.contains(part));
        found.unwrap_or_else(|| panic!("{part}: {lines:#?}"))
    };
    for (part, expected) in [
        (
            "retry",
            format!("task {TASK}: retry charge, “{HOSTILE}” ada, admin, 192.0.2.7"),
        ),
        (
            "breaker",
            String::from("agent payments: breaker opened: 20 of 24 calls failed eu-2"),
        ),
        (
            "activated",
            String::from(
                "workflow order: activated, “currency is back”. version 13 → 14 ada, admin, 192.0.2.7",
            ),
        ),
        (
            "agent risk",
            String::from(
                "agent risk: changed. endpoints/0/max_in_flight 4 → 8, note \"x\" → removed ada, admin, 192.0.2.7",
            ),
        ),
        (
            "bulk",
            format!(
                "bulk job {TASK}: begun: retry 403 tasks: payments is repaired ada, admin, 192.0.2.7"
            ),
        ),
    ] {
        assert!(
            line(part).ends_with(&expected),
            "{expected}: {}",
            line(part)
        );
    }
    assert!(line("version 14 registered").contains("12 differences, and more that are not kept"));
    assert!(line("agent payments: registered").contains("all of it"));
    let days: Vec<_> = seen.all(".day").into_iter().map(|day| day.text).collect();
    assert!(
        days.contains(&String::from("25 November 2026, UTC")),
        "{days:?}"
    );
    let links = seen.all("a");
    let leads_to = |end: &str| {
        links
            .iter()
            .any(|link| link.attribute("href").unwrap().ends_with(end))
    };
    assert!(leads_to("/workflows/order") && leads_to(&format!("/tasks/{TASK}")));
    assert!(
        !leads_to("/agents/old"),
        "the page of an agent that was deleted"
    );
    let chart = seen.all(".chart").remove(0);
    let title = chart.attribute("aria-label").unwrap();
    assert!(
        title.starts_with("403 tasks failed in the last 24 hours"),
        "{title}"
    );
}

#[tokio::test]
async fn changes_are_filtered_by_type_and_read_page_by_page() {
    let api = full();
    let mut page = page_of(&all());
    page["next_cursor"] = "c2".into();
    api.returns("GET /v1/changes", &page);
    let visitor = Visitor::of(api.clone());
    let seen = visitor.get("/console/changes?types=agent.*&after=c1").await;
    let asked = api.calls().into_iter().map(|call| call.target);
    let asked: Vec<_> = asked.collect();
    assert_eq!(asked, ["/v1/changes?types=agent.*&limit=50&cursor=c1"]);
    let links = seen.all("a");
    let older = links.iter().find(|link| link.text == "older").unwrap();
    assert_eq!(
        older.attribute("href"),
        Some("/console/changes?types=agent.*&after=c2")
    );
    page["items"] = json!([]);
    api.returns("GET /v1/changes", &page);
    let seen = visitor.get("/console/changes?types=agent.*").await;
    assert!(
        seen.text(".note").contains("Older ones may"),
        "{}",
        seen.html
    );
    assert_eq!(
        seen.all("a")
            .iter()
            .filter(|link| link.text == "older")
            .count(),
        1
    );
    api.returns("GET /v1/changes", &page_of(&[]));
    let seen = visitor.get("/console/changes").await;
    assert_eq!(seen.text("h1"), "Nothing has been changed yet");
    api.refuses(
        "GET /v1/changes",
        StatusCode::BAD_REQUEST,
        "types: \"X\" is no type",
    );
    let seen = visitor.get("/console/changes?types=X").await;
    assert!(seen.text(".lead").contains("is no type"));
}

#[tokio::test]
async fn the_page_of_a_cause_shows_what_changed_in_the_hour_before_its_first_failure() {
    let api = full();
    let at = |at: &str, kind: &str, name: &str| {
        json!({"at": at, "type": kind, "name": name, "by": "operator:ada",
        "subject": kind.split('.').next().unwrap()})
    };
    let changes = [
        at("2026-11-26T02:50:00Z", "agent.paused", "after"),
        at("2026-11-26T02:36:42Z", "workflow.activated", "order"),
        at("2026-11-26T01:40:00Z", "agent.put", "long-before"),
    ];
    api.returns("GET /v1/changes", &page_of(&changes));
    let visitor = Visitor::of(api.clone());
    let seen = visitor.get("/console/causes/5f1d0a7c93b2e846").await;
    let lines = lines(&seen);
    let lines: Vec<_> = lines.iter().filter(|line| line.contains("ada")).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("workflow order: activated"), "{lines:?}");
    api.refuses("GET /v1/changes", StatusCode::FORBIDDEN, "no");
    let seen = visitor.get("/console/causes/5f1d0a7c93b2e846").await;
    assert_eq!(seen.status, StatusCode::OK);
    assert!(!seen.html.contains("in the hour before"), "{}", seen.html);
}
