//! Pages as people get them: requests to the routes of the console, with an API that returns what a test wants, and a parser
//! that reads the pages as a browser does.

#![allow(
    clippy::unwrap_used,
    reason = "a test that fails by a panic says where, in its helpers too"
)]

mod browser;
mod changes;
mod front;

use browser::{FakeApi, Visitor};
use http::StatusCode;

/// A name as an attacker would choose it.
const HOSTILE: &str = r#"<script>alert(1)</script>"'&"#;

fn failure(fingerprint: &str, tasks: u64, is_growing: bool) -> serde_json::Value {
    serde_json::json!({
        "fingerprint": fingerprint,
        "sentence": format!("Step charge of workflow order failed: {HOSTILE}"),
        "open": true, "workflow": "order", "step": "charge", "agent": "payments", "kind": "permanent",
        "status": 422, "words": "currency is required", "tasks": tasks, "steps": tasks, "more": false,
        "failures": tasks, "first_at": "2026-11-26T02:41:07Z", "last_at": "2026-11-26T03:12:31Z",
        "growing": is_growing,
        "trend": {"from": "2026-11-25T03:15:00Z", "by_hour": vec![0; 24], "by_quarter": [0, 0, 0, 0, 0, 0, 7, 12]},
        "example": {"task": "01a215c2-87c0-7511-8c40-d9553b745a25", "key": HOSTILE, "step": "charge",
            "attempt": 1, "message": "422", "at": "2026-11-26T03:12:31Z"},
        "first_task": null, "alert": null,
        "remedies": [{"do": "retry", "when": "Retry the tasks once the service accepts the request."}]
    })
}

fn task(key: &str, state: &str) -> serde_json::Value {
    serde_json::json!({
        "id": "01a215c2-87c0-7511-8c40-d9553b745a25", "key": key, "workflow": "order", "workflow_version": 14,
        "state": state, "priority": 0, "labels": {"country": HOSTILE}, "created_at": "2026-11-26T02:43:44Z",
        "start_at": null, "complete_by": null, "ended_at": null, "version": 3,
        "error": {"kind": "permanent", "message": format!("step ship: {HOSTILE}"), "status": 422, "body": null,
            "at": "2026-11-26T03:09:44Z", "outcome": "unknown", "step": "ship"}
    })
}

fn page_of(items: &[serde_json::Value]) -> serde_json::Value {
    serde_json::json!({"items": items, "next_cursor": null, "examined_back_to": null, "more_causes": false})
}

fn dry_run(accepted: u64) -> serde_json::Value {
    serde_json::json!({
        "matched": accepted + 3, "accepted": accepted, "refused": 3, "refusals": {"wrong-task-state": 3},
        "dry_run": true, "total": accepted + 3, "total_is_at_least": false,
        "sentence": "retry 400 tasks", "next_cursor": null,
        "examples": [{"task": "01a215c2-87c0-7511-8c40-d9553b745a25", "key": HOSTILE,
            "before": {"state": "error", "steps": [], "request_body": "{\"amount\":1.00}"},
            "after": {"state": "processing", "steps": [], "request_body": "{\"amount\":1.00,\"currency\":\"EUR\"}"}}]
    })
}

fn count(count: u64) -> serde_json::Value {
    serde_json::json!({"count": count, "more": count > 1_000})
}

fn task_hour(accepted: u64, failed: u64) -> serde_json::Value {
    let (p50, p99) = match accepted {
        0 => (None, None),
        _ => (Some(430), Some(2_600)),
    };
    serde_json::json!({"accepted": accepted, "processed": accepted, "failed": failed, "undone": 1, "cancelled": 0,
        "p50": p50, "p99": p99})
}

fn agent_hour(processed: u64, failed: u64) -> serde_json::Value {
    serde_json::json!({"processed": processed, "retried": failed, "failed": failed, "p50": 43, "p99": 260})
}

fn agent_overview(name: &str, trouble: bool) -> serde_json::Value {
    let breakers = match trouble {
        true => {
            serde_json::json!([{"endpoint": "http://a", "state": "open", "reason": HOSTILE, "by": "eu-1",
            "since": "2026-11-26T03:09:45Z", "until": null}])
        }
        false => serde_json::json!([]),
    };
    let mut hours = vec![agent_hour(5, 0); 24];
    hours[22] = agent_hour(1_000, 20);
    serde_json::json!({"name": name, "trouble": trouble, "breakers": breakers, "endpoints": [], "queued": count(212),
        "in_flight": 3, "day": agent_hour(1_115, 20), "by_hour": hours})
}

/// The overview while 403 tasks are in error.
fn overview() -> serde_json::Value {
    let mut hours = vec![task_hour(200, 0); 24];
    hours[23] = task_hour(482, 403);
    let mut workflow = task_hour(5_082, 403);
    workflow["name"] = HOSTILE.into();
    let instance = serde_json::json!({"id": "eu-1", "started_at": "2026-11-20T03:12:00Z", "version": "0.1.0", "alive": true,
        "lease_until": "2026-11-26T03:13:00Z", "supervising": true, "term": 1, "in_flight": 9});
    serde_json::json!({
        "as_of": "2026-11-26T03:12:40Z", "held": false,
        "failures": {"causes": 1, "more_causes": false, "growing": 1, "first": [failure("5f1d0a7c93b2e846", 403, true)]},
        "tasks": [{"state": "error", "count": 403, "more": false}, {"state": "processing", "count": 1_001, "more": true}],
        "at_risk": count(8), "asks": count(3), "messages": {"pending": count(2), "dead": count(14)},
        "from": "2026-11-25T04:00:00Z", "by_hour": hours, "workflows": [workflow],
        "agents": [agent_overview("shipping", true), agent_overview("payments", false), agent_overview("(url)", false)],
        "instances": [instance]
    })
}

/// An API with one of everything.
fn full() -> FakeApi {
    let api = FakeApi::default();
    api.returns("GET /v1/overview", &overview());
    api.returns(
        "GET /v1/hold",
        &serde_json::json!({"instance": "eu-1", "held": true}),
    );
    api.returns(
        "GET /v1/failures",
        &page_of(&[failure("5f1d0a7c93b2e846", 403, true)]),
    );
    api.returns(
        "GET /v1/failures/5f1d0a7c93b2e846",
        &failure("5f1d0a7c93b2e846", 403, true),
    );
    api.returns(
        "GET /v1/tasks",
        &page_of(&[task(HOSTILE, "error"), task("order-2", "hibernating")]),
    );
    let ask = serde_json::json!({"task": "01a215c2-87c0-7511-8c40-d9553b745a25", "key": HOSTILE, "workflow": null, "step": "approval",
        "title": HOSTILE, "until": "2026-11-26T04:00:00Z", "people": [{"person": HOSTILE, "choice": null, "at": null}]});
    api.returns("GET /v1/asks", &page_of(&[ask]));
    let letter = serde_json::json!({"id": "01a215c2-87c0-7511-8c40-d9553b745a25", "type": "task.error", "receiver": HOSTILE, "url": null, "task": null,
        "state": "dead", "created_at": "2026-11-26T02:00:00Z", "tries": 41, "next_try_at": null, "error": HOSTILE, "died_at": null});
    api.returns("GET /v1/messages", &page_of(&[letter]));
    let alert = serde_json::json!({"id": "01a2", "task": null, "step": null, "receiver": HOSTILE, "kind": "secret.unusable",
        "message": HOSTILE, "state": "open", "raised_at": "2026-11-26T02:00:00Z", "acknowledged_by": null, "count": 1});
    api.returns("GET /v1/alerts", &page_of(&[alert]));
    let agent = serde_json::json!({"name": "payments", "source": "api", "spec": {"max_open": 1, "note": HOSTILE}, "in_flight": 3, "capacity": 8,
        "pause": {"until": null, "reason": HOSTILE, "by": "operator:ops", "since": "2026-11-26T02:00:00Z"},
        "endpoints": [{"url": "http://a", "state": "healthy", "reason": null, "by": null, "since": null, "until": null, "in_flight": 3}]});
    api.returns("GET /v1/agents", &page_of(std::slice::from_ref(&agent)));
    api.returns("GET /v1/agents/payments", &agent);
    let schedule = serde_json::json!({"name": "nightly", "cron": "0 3 * * *", "timezone": "UTC", "every": null, "state": "active",
        "next_fire_time": null, "queued": 0, "failing": HOSTILE, "workflow": "order", "description": null, "pause": null});
    api.returns(
        "GET /v1/schedules",
        &page_of(std::slice::from_ref(&schedule)),
    );
    api.returns("GET /v1/schedules/nightly", &schedule);
    let instance = serde_json::json!({"id": "eu-1", "started_at": "2026-11-20T03:12:00Z", "version": "0.1.0", "alive": true,
        "lease_until": "2026-11-26T03:13:00Z", "supervising": true, "term": 1, "in_flight": 9});
    api.returns("GET /v1/instances", &page_of(&[instance]));
    let workflow = serde_json::json!({"name": "order", "version": 2, "active_version": 1, "description": HOSTILE,
        "created_at": "2026-11-20T03:12:00Z", "steps": [{"name": HOSTILE}], "activations": []});
    api.returns(
        "GET /v1/workflows",
        &page_of(std::slice::from_ref(&workflow)),
    );
    api.returns("GET /v1/workflows/order", &workflow);
    api.returns(
        "GET /v1/workflows/order/versions",
        &page_of(std::slice::from_ref(&workflow)),
    );
    api.returns("GET /v1/workflows/order/versions/1", &workflow);
    let usage =
        serde_json::json!({"tasks": 1, "more": false, "more_in_error": false, "versions": []});
    api.returns("GET /v1/workflows/order/usage", &usage);
    let job = serde_json::json!({"id": "01a216f2-7c40-7a51-9d0e-2b7f6f9c1e55", "command": "retry", "sentence": "retry 403 tasks",
        "state": "stopped", "stop_cause": "first", "failure": null, "by": "operator:ops", "reason": HOSTILE,
        "created_at": "2026-11-26T03:13:20Z", "ended_at": null, "rate": "20/s", "total": 403, "matched": 5, "accepted": 4,
        "refused": 1, "failed_again": 2, "instance": null, "events": []});
    api.returns("GET /v1/bulk", &page_of(std::slice::from_ref(&job)));
    api.returns("GET /v1/bulk/01a216f2-7c40-7a51-9d0e-2b7f6f9c1e55", &job);
    api.returns(
        "GET /v1/bulk/01a216f2-7c40-7a51-9d0e-2b7f6f9c1e55/tasks",
        &page_of(&[]),
    );
    api.returns("GET /v1/changes", &page_of(&changes::all()));
    api.returns("POST /v1/tasks/retry", &dry_run(400));
    api.returns("POST /v1/tasks/undo", &dry_run(400));
    api
}

const PAGES: [&str; 20] = [
    "/console",
    "/console/causes/5f1d0a7c93b2e846",
    "/console/causes/5f1d0a7c93b2e846/fix?do=patch&patch={\"currency\":\"EUR\"}",
    "/console/tasks?state=error&label=country:DE",
    "/console/tasks/fix?state=error",
    "/console/tasks/fix?state=error&do=undo",
    "/console/bulk",
    "/console/bulk/01a216f2-7c40-7a51-9d0e-2b7f6f9c1e55",
    "/console/agents",
    "/console/agents/payments",
    "/console/agents/payments/resume",
    "/console/schedules",
    "/console/schedules/nightly",
    "/console/asks",
    "/console/changes?types=agent.*",
    "/console/messages",
    "/console/instances",
    "/console/instances/release",
    "/console/workflows/order",
    "/console/alerts",
];

#[tokio::test]
async fn every_page_escapes_names_and_has_one_title_and_nothing_inline() {
    let visitor = Visitor::of(full());
    for address in PAGES {
        let seen = visitor.get(address).await;
        assert_eq!(seen.status, StatusCode::OK, "{address}: {}", seen.html);
        assert_eq!(seen.all("h1").len(), 1, "{address}");
        assert_eq!(seen.all("main").len(), 1, "{address}");
        assert!(!seen.html.contains("<script>"), "{address}");
        for script in seen.all("script") {
            assert!(
                script.attribute("src").is_some(),
                "{address}: a script with content"
            );
        }
        for element in seen.elements() {
            let inline = element
                .attributes
                .iter()
                .find(|(name, _)| name == "style" || name.starts_with("on"));
            assert_eq!(inline, None, "{address}: {}", element.name);
        }
        assert_eq!(
            seen.header("content-security-policy"),
            provost_console::POLICY,
            "{address}"
        );
        assert!(seen.html.len() < 60_000, "{address}: {}", seen.html.len());
    }
}

#[tokio::test]
async fn every_link_and_form_is_below_the_path_of_the_public_url_and_every_field_has_a_name_to_read()
 {
    let visitor = Visitor::of(full().below("/ops"));
    for address in PAGES {
        let seen = visitor.get(address).await;
        let links = seen.elements();
        let links = links
            .iter()
            .filter_map(|element| match element.name.as_str() {
                "use" => None,
                _ => element
                    .attribute("href")
                    .or(element.attribute("action"))
                    .or(element.attribute("src")),
            });
        for link in links {
            assert!(
                link.starts_with("/ops/") || link == "/ops/console" || link.starts_with('#'),
                "{address}: {link}"
            );
        }
        let labels: Vec<_> = seen
            .all("label")
            .iter()
            .filter_map(|label| label.attribute("for").map(str::to_owned))
            .collect();
        for field in seen
            .elements()
            .iter()
            .filter(|element| ["input", "select", "textarea"].contains(&element.name.as_str()))
        {
            let is_choice = matches!(
                field.attribute("type"),
                Some("hidden" | "radio" | "checkbox")
            );
            let has_label = field
                .attribute("id")
                .is_some_and(|id| labels.iter().any(|label| label == id));
            assert!(
                is_choice || has_label || field.attribute("aria-label").is_some(),
                "{address}: {field:?}"
            );
        }
    }
}

#[tokio::test]
async fn the_home_page_says_first_how_many_tasks_need_a_person_and_keeps_what_one_part_refuses_to_that_part()
 {
    let api = full();
    api.refuses(
        "GET /v1/asks",
        StatusCode::SERVICE_UNAVAILABLE,
        "too many reads",
    );
    let seen = Visitor::of(api).get("/console").await;
    assert_eq!(seen.status, StatusCode::OK);
    assert_eq!(seen.text("h1"), "403 tasks need a person, for 1 cause");
    assert!(seen.html.contains("too many reads"));
    assert!(
        seen.html.contains("growing: 19 in half an hour"),
        "{}",
        seen.html
    );
    assert!(seen.html.contains("secret unusable"));
}

#[tokio::test]
async fn the_home_page_shows_the_load_of_each_hour_in_words_in_bars_and_in_numbers() {
    let seen = Visitor::of(full()).get("/console").await;
    let charts = seen.all(".chart");
    let titles: Vec<_> = charts
        .iter()
        .map(|chart| chart.attribute("aria-label").unwrap())
        .collect();
    assert_eq!(
        titles,
        [
            "5,082 tasks were accepted in the last 24 hours, at most 482 in an hour, from 03:00 UTC; 403 failed, \
             most of them (403) in the hour from 03:00 UTC",
            "From submission to end, last 24 hours: half took no longer than 430 ms to 430 ms, by hour; the longest \
             p99 was 2.6 s, in the hour from 03:00 UTC",
        ]
    );
    let newest = seen
        .all("tr")
        .into_iter()
        .find(|row| row.text.contains("482"));
    let newest = newest.unwrap().text;
    assert!(
        newest.contains("03:00") && newest.contains("403"),
        "{newest}"
    );
    assert_eq!(
        seen.all(".facts")[0]
            .text
            .matches("more than 1,000")
            .count(),
        1
    );
}

#[tokio::test]
async fn agents_in_trouble_come_first_with_what_waits_for_them() {
    let seen = Visitor::of(full()).get("/console").await;
    let rows = seen.all("tr");
    let row = |text: &str| {
        let found = rows.iter().position(|row| row.text.starts_with(text));
        found.unwrap_or_else(|| panic!("{text}: {rows:?}"))
    };
    assert!(row("shipping") < row("payments"));
    let shipping = &rows[row("shipping")].text;
    for part in ["breaker open", "212", "1,155", "43 ms / 260 ms"] {
        assert!(shipping.contains(part), "{part}: {shipping}");
    }
    let lines = seen.all(".list")[0].text.clone();
    assert!(lines.contains("; 212 steps wait"), "{lines}");
    let links = seen.all("a");
    let leads_to = |part: &str| {
        links
            .iter()
            .any(|link| link.attribute("href").unwrap().contains(part))
    };
    assert!(leads_to("/agents/shipping"));
    assert!(!leads_to("/agents/(url)") && !leads_to("/agents/%28url%29"));
}

#[tokio::test]
async fn the_first_sentences_say_which_cause_grows_and_never_more_than_is_known() {
    let api = full();
    let seen = Visitor::of(api.clone()).get("/console").await;
    let lead = seen.text(".lead");
    assert!(lead.starts_with("One cause grows."), "{lead}");
    assert!(lead.ends_with(HOSTILE), "{lead}");
    let counts: Vec<_> = seen.all(".n").into_iter().map(|count| count.text).collect();
    assert_eq!(counts, ["403", "3", "14"]);
    let mut many = overview();
    many["tasks"][0] = serde_json::json!({"state": "error", "count": 1_001, "more": true});
    many["failures"]["causes"] = 7.into();
    many["failures"]["first"][0]["growing"] = false.into();
    api.returns("GET /v1/overview", &many);
    let seen = Visitor::of(api.clone()).get("/console").await;
    assert_eq!(
        seen.text("h1"),
        "More than 1,000 tasks need a person, for 7 causes"
    );
    assert_eq!(seen.text(".lead"), "None of the causes grows.");
    assert!(!seen.html.contains("not shown"));
    // More causes than are counted, of which the page shows a few.
    many["failures"]["causes"] = 500.into();
    many["failures"]["more_causes"] = true.into();
    api.returns("GET /v1/overview", &many);
    let mut part = page_of(&[failure("5f1d0a7c93b2e846", 403, false)]);
    part["more_causes"] = true.into();
    api.returns("GET /v1/failures", &part);
    let seen = Visitor::of(api.clone()).get("/console").await;
    assert_eq!(
        seen.text("h1"),
        "More than 1,000 tasks need a person, for more than 499 causes"
    );
    assert!(
        seen.html
            .contains("More than 499 other causes are not shown"),
        "{}",
        seen.html
    );
    many["failures"]["causes"] = 2.into();
    many["failures"]["more_causes"] = false.into();
    api.returns("GET /v1/overview", &many);
    part["more_causes"] = false.into();
    part["next_cursor"] = "n".into();
    api.returns("GET /v1/failures", &part);
    let seen = Visitor::of(api.clone()).get("/console").await;
    assert!(
        seen.html.contains("1 other cause is not shown"),
        "{}",
        seen.html
    );
    let mut none = overview();
    none["tasks"] = serde_json::json!([]);
    none["failures"] =
        serde_json::json!({"causes": 0, "more_causes": false, "growing": 0, "first": []});
    api.returns("GET /v1/overview", &none);
    let seen = Visitor::of(api).get("/console").await;
    assert_eq!(seen.text("h1"), "No task needs a person");
}

#[tokio::test]
async fn without_the_overview_the_causes_are_shown_all_the_same() {
    let api = full();
    api.refuses(
        "GET /v1/overview",
        StatusCode::SERVICE_UNAVAILABLE,
        "too many reads",
    );
    let visitor = Visitor::of(api);
    let seen = visitor.get("/console").await;
    assert_eq!(seen.status, StatusCode::OK);
    assert_eq!(seen.text("h1"), "403 tasks need a person, for 1 cause");
    assert_eq!(seen.all(".causes").len(), 1);
    assert!(
        seen.all(".note")
            .iter()
            .any(|note| note.text.contains("too many reads"))
    );
    assert!(!seen.html.contains("nothing waits for people"));
    let seen = visitor.get("/console/agents/payments").await;
    assert_eq!(seen.status, StatusCode::OK);
    assert!(
        seen.all(".note")
            .iter()
            .any(|note| note.text.contains("too many reads"))
    );
}

#[tokio::test]
async fn the_page_of_an_agent_shows_its_calls_by_hour() {
    let seen = Visitor::of(full()).get("/console/agents/payments").await;
    let charts = seen.all(".chart");
    assert_eq!(charts.len(), 2);
    assert_eq!(
        charts[0].attribute("aria-label").unwrap(),
        "1,155 calls ended in the last 24 hours, at most 1,040 in an hour, from 02:00 UTC; 40 failed, most of them (40) \
         in the hour from 02:00 UTC"
    );
    assert!(seen.text(".facts").contains("212"));
}

#[tokio::test]
async fn the_page_of_an_agent_shows_the_latest_tasks_and_the_workflows_that_use_it() {
    let api = full();
    let mut tasks: Vec<_> = (0..12)
        .map(|number| task(&format!("order-{number}"), "processed"))
        .collect();
    tasks[3]["workflow"] = "refund".into();
    tasks[4]["workflow"] = serde_json::Value::Null;
    api.returns("GET /v1/tasks", &page_of(&tasks));
    let seen = Visitor::of(api.clone())
        .get("/console/agents/payments")
        .await;
    let html = &seen.html;
    assert!(html.contains("Latest tasks with a step here"), "{html}");
    assert!(html.contains(">order-9</a>") && !html.contains(">order-10</a>"));
    assert!(html.contains("/console/tasks?agent=payments"), "{html}");
    let (_, users) = html.split_once("Who uses it").unwrap();
    assert!(users.contains("of the latest 12 tasks"), "{users}");
    let (order, refund) = (users.find(">order</a>"), users.find(">refund</a>"));
    assert!(order.is_some() && order < refund, "{users}");
    api.refuses(
        "GET /v1/tasks",
        StatusCode::SERVICE_UNAVAILABLE,
        "too many reads",
    );
    let seen = Visitor::of(api).get("/console/agents/payments").await;
    assert_eq!(seen.status, StatusCode::OK);
    assert!(seen.html.contains("too many reads") && !seen.html.contains("Who uses it"));
}

#[tokio::test]
async fn numbers_that_are_zero_or_huge_and_long_names_break_no_page() {
    let api = full();
    let mut extreme = overview();
    let name = "n".repeat(128);
    extreme["by_hour"] = vec![task_hour(u64::MAX, u64::MAX); 24].into();
    extreme["by_hour"][0] = task_hour(0, 0);
    extreme["agents"][0] = agent_overview(&name, true);
    extreme["agents"][0]["day"] = agent_hour(u64::MAX, u64::MAX);
    extreme["agents"][0]["by_hour"] = vec![agent_hour(u64::MAX, u64::MAX); 24].into();
    extreme["agents"][1]["by_hour"] = vec![agent_hour(0, 0); 24].into();
    api.returns("GET /v1/overview", &extreme);
    let visitor = Visitor::of(api.clone());
    let seen = visitor.get("/console").await;
    assert_eq!(seen.status, StatusCode::OK);
    let charts = seen.all(".chart");
    let title = charts[0].attribute("aria-label").unwrap();
    assert!(
        title.starts_with("18,446,744,073,709,551,615 tasks"),
        "{title}"
    );
    for bar in seen.all("rect") {
        for side in ["x", "y", "width", "height"] {
            let value = bar.attribute(side).unwrap_or("0").trim_end_matches('%');
            let value: f64 = value.parse().unwrap();
            assert!((0.0..=131.0).contains(&value), "{side} of {bar:?}");
        }
    }
    let is_there = |cell: &browser::Element| cell.text.starts_with(&name);
    let cell = seen.all("td").into_iter().find(is_there).unwrap();
    assert_eq!(
        cell.attribute("class"),
        Some("grow"),
        "a long name may wrap"
    );
    let seen = visitor.get("/console/agents/payments").await;
    assert!(seen.html.contains("No call ended."), "{}", seen.html);
    let agent = serde_json::json!({"name": name, "source": "api", "spec": {}, "in_flight": u64::MAX, "capacity": 0, "endpoints": []});
    api.returns("GET /v1/agents", &page_of(&[agent]));
    let seen = visitor.get("/console/agents").await;
    let cell = seen.all("td").into_iter().find(is_there).unwrap();
    assert_eq!(
        cell.attribute("class"),
        Some("grow"),
        "a long name may wrap"
    );
}

#[tokio::test]
async fn a_held_instance_is_released_by_its_own_form_only() {
    let api = full();
    let mut held = overview();
    held["held"] = true.into();
    api.returns("GET /v1/overview", &held);
    api.returns(
        "POST /v1/hold/release",
        &serde_json::json!({"instance": "eu-1", "held": false, "released": true}),
    );
    let visitor = Visitor::of(api.clone());
    let seen = visitor.get("/console").await;
    assert!(seen.text(".note").contains("Instance eu-1 is held"));
    let was_released = || api.calls().iter().any(|sent| sent.method == "POST");
    let seen = visitor.get("/console/instances/release").await;
    assert!(seen.text("h1").contains("Release instance eu-1"));
    let seen = visitor
        .post("/console/instances/release", "instance=eu-2")
        .await;
    assert_eq!(seen.status, StatusCode::CONFLICT);
    assert!(!was_released());
    let seen = visitor
        .post("/console/instances/release", "instance=eu-1")
        .await;
    assert_eq!(seen.status, StatusCode::SEE_OTHER);
    assert!(was_released());
}

#[tokio::test]
async fn without_tasks_the_home_page_says_how_to_submit_one() {
    let api = full();
    let mut idle = overview();
    idle["tasks"] = serde_json::json!([]);
    idle["by_hour"] = vec![task_hour(0, 0); 24].into();
    api.returns("GET /v1/overview", &idle);
    let seen = Visitor::of(api.clone()).get("/console").await;
    assert_ne!(seen.text("h1"), "No tasks yet", "the list has tasks");
    api.returns("GET /v1/tasks", &page_of(&[]));
    let seen = Visitor::of(api).get("/console").await;
    assert_eq!(seen.text("h1"), "No tasks yet");
}

#[tokio::test]
async fn the_list_asks_the_api_for_what_its_address_says_and_shows_unknown_states() {
    let api = full();
    let visitor = Visitor::of(api.clone());
    let seen = visitor
        .get("/console/tasks?state=error&workflow=&label=a:b&label=c:d&after=xyz")
        .await;
    let asked = api.calls().pop().unwrap();
    assert_eq!(
        asked.target,
        "/v1/tasks?state=error&label=a%3Ab&label=c%3Ad&limit=25&cursor=xyz"
    );
    let labels = seen.all("input");
    let labels = labels
        .iter()
        .filter(|field| field.attribute("name") == Some("label"));
    let labels: Vec<_> = labels
        .filter_map(|field| field.attribute("value"))
        .collect();
    assert_eq!(labels, ["a:b", "c:d"], "the form keeps every label");
    assert!(seen.text("tbody").contains("hibernating"));
    assert!(seen.html.contains("#pending"));
    assert_eq!(seen.all("tr").len(), 3);
}

#[tokio::test]
async fn an_empty_list_names_the_filters_that_empty_it() {
    let api = full();
    api.returns("GET /v1/tasks", &page_of(&[]));
    let seen = Visitor::of(api)
        .get("/console/tasks?state=error&label=country:DK")
        .await;
    assert_eq!(seen.text("h1"), "No tasks in error labelled country:DK");
    let without: Vec<_> = seen
        .all("a")
        .into_iter()
        .filter(|link| link.text.starts_with("without "))
        .collect();
    assert_eq!(without.len(), 2);
    assert_eq!(
        without[1].attribute("href"),
        Some("/console/tasks?state=error")
    );
}

#[tokio::test]
async fn a_preview_changes_nothing_and_shows_the_difference() {
    let api = full();
    let seen = Visitor::of(api.clone())
        .get("/console/causes/5f1d0a7c93b2e846/fix?do=patch&patch={\"n\":1.00}")
        .await;
    assert_eq!(seen.text("h1"), "Retry 400 tasks with a changed request");
    assert!(seen.text("ins").contains("\"currency\": \"EUR\""));
    for call in api.calls().iter().filter(|call| call.method == "POST") {
        assert!(call.body.contains("\"dry_run\":true"), "{}", call.body);
        assert!(
            call.body.contains("\"patch\":{\"n\":1.00}"),
            "numbers stay: {}",
            call.body
        );
    }
}

#[tokio::test]
async fn a_confirmation_sends_what_the_preview_showed_and_leads_to_the_job() {
    let api = full();
    let visitor = Visitor::of(api.clone());
    api.returns_for(
        "POST /v1/tasks/retry",
        "\"first\":5",
        &serde_json::json!({"id": "01a216f2"}),
    );
    let address = "/console/causes/5f1d0a7c93b2e846/fix";
    let form = "do=retry&expected=400&once=abc&first=5&rate=20&reason=fixed";
    let seen = visitor.post(address, form).await;
    assert_eq!(seen.status, StatusCode::SEE_OTHER, "{}", seen.html);
    assert_eq!(seen.header("location"), "/console/bulk/01a216f2");
    let sent = api.calls().pop().unwrap();
    assert_eq!(
        sent.body,
        r#"{"cause":"5f1d0a7c93b2e846","first":5,"rate":"20/s","reason":"fixed"}"#
    );
    assert_eq!(sent.header("idempotency-key"), "abc");
}

#[tokio::test]
async fn a_confirmation_is_refused_if_the_tasks_have_changed_since_and_keeps_what_was_typed() {
    let api = full();
    let form = "do=retry&expected=399&once=abc&first=5&rate=20&reason=fixed+it";
    let seen = Visitor::of(api.clone())
        .post("/console/causes/5f1d0a7c93b2e846/fix", form)
        .await;
    assert_eq!(seen.status, StatusCode::CONFLICT);
    assert!(
        seen.text(".note")
            .contains("399 tasks then, and is for 400 now"),
        "{}",
        seen.html
    );
    assert!(seen.html.contains("value=\"fixed it\""));
    assert!(
        api.calls()
            .iter()
            .all(|call| call.method == "GET" || call.body.contains("\"dry_run\":true"))
    );
}

#[tokio::test]
async fn what_cannot_be_taken_back_asks_for_the_number() {
    let api = full();
    api.returns_for(
        "POST /v1/tasks/undo",
        "\"reason\":\"x\"",
        &serde_json::json!({"id": "01a216f2"}),
    );
    let visitor = Visitor::of(api.clone());
    let form = "ids=01a2&do=undo&expected=400&once=abc&reason=x";
    assert_eq!(
        visitor.post("/console/tasks/fix", form).await.status,
        StatusCode::CONFLICT
    );
    let seen = visitor
        .post("/console/tasks/fix", &format!("{form}&typed=400"))
        .await;
    assert_eq!(seen.status, StatusCode::SEE_OTHER, "{}", seen.html);
    assert!(
        api.calls()
            .pop()
            .unwrap()
            .body
            .starts_with(r#"{"ids":["01a2"]"#)
    );
}

#[tokio::test]
async fn a_form_that_is_sent_twice_leads_to_the_job_of_the_first_although_the_tasks_have_changed() {
    let api = full();
    let visitor = Visitor::of(api.clone());
    api.returns_for(
        "POST /v1/tasks/retry",
        "\"reason\":\"fixed\"",
        &serde_json::json!({"id": "01a216f2"}),
    );
    let form = "do=retry&state=error&expected=400&once=abc&rate=20&reason=fixed";
    for accepted in [400, 12] {
        api.returns_for(
            "POST /v1/tasks/retry",
            "\"dry_run\":true",
            &dry_run(accepted),
        );
        let seen = visitor.post("/console/tasks/fix", form).await;
        assert_eq!(seen.status, StatusCode::SEE_OTHER, "{}", seen.html);
        assert_eq!(seen.header("location"), "/console/bulk/01a216f2");
    }
    let calls = api.calls();
    let jobs = calls
        .iter()
        .filter(|call| call.method == "POST" && !call.body.contains("dry_run"));
    assert_eq!(jobs.count(), 1);
}

#[tokio::test]
async fn what_cannot_be_taken_back_begins_with_no_more_tasks_than_the_preview_examined() {
    let api = full();
    let mut part = dry_run(10_000);
    part["next_cursor"] = "next".into();
    for command in ["cancel", "retry"] {
        let path = format!("POST /v1/tasks/{command}");
        api.returns_for(&path, "\"dry_run\":true", &part);
        api.returns_for(
            &path,
            "\"reason\":\"x\"",
            &serde_json::json!({"id": "01a216f2"}),
        );
    }
    let visitor = Visitor::of(api.clone());
    let page = visitor
        .get("/console/tasks/fix?do=cancel&state=pending")
        .await;
    assert_eq!(page.text("h1"), "Cancel at least 10,000 tasks");
    assert!(!page.html.contains("value=\"all\""), "{}", page.html);
    let page = visitor.get("/console/tasks/fix?do=retry&state=error").await;
    assert!(
        page.all("button")
            .iter()
            .any(|button| button.text == "Retry at least 10,000 tasks"),
        "{}",
        page.html
    );
    let confirm = async |command: &str, first: &str| {
        let form =
            format!("do={command}&state=pending&expected=10000&typed=10000&first={first}&reason=x");
        visitor.post("/console/tasks/fix", &form).await
    };
    let misspelt = "do=cancel&sate=pending&expected=10000&typed=10000&first=5&reason=x";
    let misspelt = visitor.post("/console/tasks/fix", misspelt).await;
    assert_eq!(misspelt.status, StatusCode::BAD_REQUEST);
    for first in ["all", "10001", ""] {
        let refused = confirm("cancel", first).await;
        assert_eq!(refused.status, StatusCode::CONFLICT);
        assert!(
            refused.text(".note").contains("More tasks match"),
            "{}",
            refused.html
        );
    }
    assert_eq!(confirm("cancel", "5").await.status, StatusCode::SEE_OTHER);
    assert_eq!(confirm("retry", "all").await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn a_form_of_another_site_is_refused() {
    let visitor = Visitor::of(full());
    for headers in [
        &[][..],
        &[("sec-fetch-site", "cross-site")],
        &[("origin", "https://evil.example")],
        &[
            ("sec-fetch-site", "same-site"),
            ("origin", "https://provost.example"),
        ],
    ] {
        let seen = visitor
            .send("POST", "/console/tasks/fix", headers, "do=retry")
            .await;
        assert_eq!(seen.status, StatusCode::FORBIDDEN, "{headers:?}");
    }
    let own = [("origin", "https://provost.example")];
    let seen = visitor
        .send("POST", "/console/agents/payments/resume", &own, "")
        .await;
    assert_ne!(seen.status, StatusCode::FORBIDDEN, "{}", seen.html);
}

#[tokio::test]
async fn without_a_public_url_a_form_comes_from_the_address_to_which_it_is_sent() {
    let visitor = Visitor::of(full().without_public_url());
    for (origin, is_own) in [
        ("http://10.0.0.5:8080", true),
        ("https://10.0.0.5:8080", false),
        ("http://10.0.0.5", false),
        ("http://evil.example", false),
        ("null", false),
    ] {
        let headers = [("host", "10.0.0.5:8080"), ("origin", origin)];
        let seen = visitor
            .send("POST", "/console/agents/payments/resume", &headers, "")
            .await;
        let is_refused = seen.status == StatusCode::FORBIDDEN;
        assert_eq!(is_refused, !is_own, "{origin}: {}", seen.html);
    }
}

#[tokio::test]
async fn a_refusal_of_the_api_is_a_page_with_its_status_and_the_remedy() {
    let api = full();
    api.refuses(
        "GET /v1/failures/0000000000000000",
        StatusCode::NOT_FOUND,
        "no such cause <b>",
    );
    let visitor = Visitor::of(api);
    let seen = visitor.get("/console/causes/0000000000000000").await;
    assert_eq!(seen.status, StatusCode::NOT_FOUND);
    assert!(seen.text(".lead").contains("no such cause <b>"));
    let seen = visitor.get("/console/nothing/here").await;
    assert_eq!(seen.status, StatusCode::NOT_FOUND);
    assert!(seen.text(".lead").contains("/console/nothing/here"));
}

#[tokio::test]
async fn a_person_signs_in_with_a_token_and_out_again() {
    let visitor = Visitor::of(full().with_token("secret-of-ada", "ada", "operate"));
    let away = visitor.get("/console/tasks?state=error").await;
    assert_eq!(away.status, StatusCode::SEE_OTHER);
    assert_eq!(
        away.header("location"),
        "/console/login?to=%2Fconsole%2Ftasks%3Fstate%3Derror"
    );
    let wrong = visitor
        .post("/console/login", "token=guess&to=%2Fconsole")
        .await;
    assert_eq!(wrong.status, StatusCode::UNAUTHORIZED);
    assert_eq!(wrong.header("set-cookie"), "");
    let right = visitor
        .post(
            "/console/login",
            "token=secret-of-ada&to=https://evil.example",
        )
        .await;
    assert_eq!(right.header("location"), "/console");
    let cookie = right.header("set-cookie").to_owned();
    assert!(cookie.starts_with("__Host-provost-session="), "{cookie}");
    for part in [
        "Path=/;",
        "HttpOnly",
        "SameSite=Lax",
        "; Secure",
        "Max-Age=28800",
    ] {
        assert!(cookie.contains(part), "{part}: {cookie}");
    }
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let with = [
        ("cookie", cookie.as_str()),
        ("sec-fetch-site", "same-origin"),
    ];
    let seen = visitor.send("GET", "/console/tasks", &with, "").await;
    assert!(seen.text(".role").contains("ada"), "{}", seen.html);
    let out = visitor.send("POST", "/console/logout", &with, "").await;
    assert!(out.header("set-cookie").contains("Max-Age=0"));
    let seen = visitor.send("GET", "/console/tasks", &with, "").await;
    assert_eq!(seen.status, StatusCode::SEE_OTHER, "the session has ended");
}

#[tokio::test]
async fn a_session_ends_with_its_token() {
    let api = full().with_token("secret-of-ada", "ada", "read");
    let visitor = Visitor::of(api.clone());
    let right = visitor.post("/console/login", "token=secret-of-ada").await;
    let cookie = right
        .header("set-cookie")
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    let with = [("cookie", cookie.as_str())];
    let seen = visitor.send("GET", "/console/tasks", &with, "").await;
    assert_eq!(seen.status, StatusCode::OK);
    assert!(
        !seen.html.contains("Act on selected"),
        "the role read has no commands"
    );
    api.forget_tokens();
    let seen = visitor.send("GET", "/console/tasks", &with, "").await;
    assert_eq!(seen.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn assets_are_kept_for_ever_under_their_hash_and_nowhere_else() {
    let visitor = Visitor::of(full());
    let seen = visitor.get("/console").await;
    let css = seen.all("link")[0].attribute("href").unwrap().to_owned();
    let asset = visitor.get(&css).await;
    assert_eq!(asset.header("content-type"), "text/css; charset=utf-8");
    assert_eq!(
        asset.header("cache-control"),
        "public, max-age=31536000, immutable"
    );
    let other = css.replace("/assets/", "/assets/0");
    assert_eq!(visitor.get(&other).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_search_leads_to_the_task_with_this_key_and_else_to_the_list() {
    let api = full();
    let visitor = Visitor::of(api.clone());
    api.returns("GET /v1/tasks", &page_of(&[task("order-1", "error")]));
    let seen = visitor.get("/console/find?q=order-1").await;
    assert_eq!(
        seen.header("location"),
        "/console/tasks/01a215c2-87c0-7511-8c40-d9553b745a25"
    );
    api.returns("GET /v1/tasks", &page_of(&[]));
    let seen = visitor.get("/console/find?q=card+declined").await;
    assert_eq!(seen.header("location"), "/console/tasks?text=card+declined");
    let seen = visitor.get("/console/find?q=country%3ADE").await;
    assert_eq!(seen.header("location"), "/console/tasks?label=country%3ADE");
}

#[tokio::test]
async fn a_list_reads_itself_again_only_if_its_address_says_so() {
    let visitor = Visitor::of(full().below("/ops"));
    let is_live = |seen: &browser::Seen| seen.html.contains("data-live=");
    let off = visitor.get("/console/tasks?state=error").await;
    assert!(!is_live(&off));
    let links = off.all("a");
    let link = links.iter().find(|link| link.text == "live: off").unwrap();
    assert_eq!(
        link.attribute("href"),
        Some("/ops/console/tasks?state=error&live=5s")
    );
    let on = visitor.get("/console/tasks?state=error&live=5s").await;
    assert!(is_live(&on));
    assert!(!is_live(&visitor.get("/console/tasks?live=0s").await));
}

#[tokio::test]
async fn a_refused_command_says_what_happened_since_the_person_looked_and_by_whom() {
    let api = full();
    let visitor = Visitor::of(api.clone());
    let preview = visitor
        .get("/console/workflows/order/activate?version=2")
        .await;
    let inputs = preview.all("input");
    let mut fields = inputs
        .iter()
        .filter(|input| input.attribute("name") == Some("seen"));
    assert!(fields.next().is_some_and(|field| {
        let seen = field.attribute("value").unwrap();
        seen.parse::<jiff::Timestamp>().is_ok()
    }));
    let activation = |version: u64, at: &str, by: &str| serde_json::json!({"version": version, "from_version": 1, "at": at, "by": by, "reason": HOSTILE});
    let workflow = serde_json::json!({"name": "order", "active_version": 3, "activations": [
        activation(3, "2026-11-26T03:05:00Z", "operator:ada"), activation(1, "2026-11-20T03:00:00Z", "operator:bob")]});
    api.returns("GET /v1/workflows/order", &workflow);
    api.refuses(
        "POST /v1/workflows/order/activate",
        StatusCode::PRECONDITION_FAILED,
        "version 1 is active no longer",
    );
    let form = "seen=2026-11-26T03:00:00Z&version=2&reason=currency+was+missing";
    let seen = visitor
        .post("/console/workflows/order/activate", form)
        .await;
    assert_eq!(seen.status, StatusCode::PRECONDITION_FAILED);
    assert_eq!(
        seen.text("h1"),
        "Workflow order has changed since you looked: nothing was done"
    );
    let log = seen.text(".log");
    assert!(
        log.contains("version 3 activated")
            && log.contains("operator:ada")
            && log.contains(HOSTILE),
        "{log}"
    );
    assert!(!log.contains("operator:bob"), "{log}");
    assert!(seen.text(".kv").contains("currency was missing"));
    let links = seen.all("a");
    let again = links.iter().find(|link| link.text == "Preview it again");
    assert_eq!(
        again.unwrap().attribute("href"),
        Some("/console/workflows/order/activate?version=2&reason=currency+was+missing")
    );
}

#[tokio::test]
async fn a_conflict_of_an_agent_a_schedule_or_a_job_names_who_came_first() {
    let api = full();
    let mut schedule = serde_json::json!({"name": "nightly", "cron": "0 3 * * *", "timezone": "UTC", "every": null,
        "state": "paused", "next_fire_time": null, "queued": 0, "failing": null, "workflow": "order",
        "description": null, "pause": null});
    schedule["changes"] = serde_json::json!([{"at": "2026-11-26T03:01:00Z", "by": "operator:eve", "action": "paused", "reason": null}]);
    api.returns("GET /v1/schedules/nightly", &schedule);
    let job = "01a216f2-7c40-7a51-9d0e-2b7f6f9c1e55";
    let mut stopped = serde_json::json!({"id": job, "command": "retry", "sentence": "retry 403 tasks", "state": "stopped",
        "by": "operator:ops", "created_at": "2026-11-26T01:13:20Z", "total": 403, "matched": 5, "accepted": 4, "refused": 1});
    stopped["events"] = serde_json::json!([{"at": "2026-11-26T02:30:00Z", "event": "stopped", "by": "operator:eve"}]);
    api.returns(&format!("GET /v1/bulk/{job}"), &stopped);
    let visitor = Visitor::of(api.clone());
    for (command, target, who) in [
        (
            "/agents/payments/pause",
            "/v1/agents/payments/pause",
            "operator:ops",
        ),
        (
            "/schedules/nightly/pause",
            "/v1/schedules/nightly/pause",
            "operator:eve",
        ),
        (
            &format!("/bulk/{job}/stop"),
            &format!("/v1/bulk/{job}/stop"),
            "operator:eve",
        ),
    ] {
        api.refuses(
            &format!("POST {target}"),
            StatusCode::CONFLICT,
            "it is so already",
        );
        let address = format!("/console{command}");
        let seen = visitor.post(&address, "seen=2026-11-26T01:59:00Z").await;
        assert_eq!(seen.status, StatusCode::CONFLICT, "{command}");
        assert!(seen.text(".log").contains(who), "{command}");
        assert_eq!(seen.text(".lead"), "It is so already.", "{command}");
        let seen = visitor.post(&address, "seen=2026-11-26T04:00:00Z").await;
        assert!(!seen.text(".log").contains(who), "{command}");
        assert!(seen.html.contains("Nothing is on record since you looked."));
    }
}

#[tokio::test]
async fn a_command_for_an_agent_that_a_colleague_has_paused_meanwhile_is_not_sent() {
    let api = full();
    let mut agent = serde_json::json!({"name": "payments", "source": "api", "spec": {}, "in_flight": 0, "capacity": 8,
        "pause": null, "endpoints": []});
    api.returns("GET /v1/agents/payments", &agent);
    api.returns("POST /v1/agents/payments/pause", &serde_json::json!({}));
    let visitor = Visitor::of(api.clone());
    let preview = visitor.get("/console/agents/payments/pause?for=2h").await;
    let fields = preview.all("input");
    let field = |name: &str| {
        let found = fields
            .iter()
            .find(|field| field.attribute("name") == Some(name));
        found.unwrap().attribute("value").unwrap().to_owned()
    };
    let form = format!(
        "as_seen={}&seen=2026-11-26T01:59:00Z&for=2h&reason=count",
        field("as_seen")
    );
    agent["pause"] = serde_json::json!({"until": null, "reason": "they are down", "by": "operator:eve",
        "since": "2026-11-26T02:00:00Z"});
    api.returns("GET /v1/agents/payments", &agent);
    let seen = visitor.post("/console/agents/payments/pause", &form).await;
    assert_eq!(seen.status, StatusCode::PRECONDITION_FAILED);
    assert!(seen.text("h1").contains("has changed since you looked"));
    let log = seen.text(".log");
    assert!(
        log.contains("they are down") && log.contains("eve"),
        "{log}"
    );
    assert!(seen.html.contains("for=2h"), "what was typed is kept");
    assert!(api.calls().iter().all(|call| call.method == "GET"));
    // Once the person has seen it, the command is sent.
    agent["pause"] = serde_json::Value::Null;
    api.returns("GET /v1/agents/payments", &agent);
    let seen = visitor.post("/console/agents/payments/pause", &form).await;
    assert_eq!(seen.status, StatusCode::SEE_OTHER, "{}", seen.html);
}

#[tokio::test]
async fn a_name_that_turns_text_around_is_shown_by_its_code_on_every_page() {
    let api = full();
    let name = "a\u{202e}b";
    api.returns("GET /v1/tasks", &page_of(&[task(name, "error")]));
    let visitor = Visitor::of(api);
    for address in ["/console/tasks", "/console/tasks?text=a%E2%80%AEb"] {
        let seen = visitor.get(address).await;
        assert!(seen.text("tbody").contains("a\\u202eb"), "{}", seen.html);
        let texts = seen.elements();
        let title = texts.iter().find(|element| element.name == "h1").unwrap();
        assert!(!title.text.contains('\u{202e}'), "{}", title.text);
    }
    let seen = visitor.get("/console/tasks?text=a%E2%80%AEb").await;
    let fields = seen.all("input");
    let text = fields
        .iter()
        .find(|field| field.attribute("name") == Some("text"));
    assert_eq!(
        text.unwrap().attribute("value"),
        Some(name),
        "a form keeps it"
    );
}

#[tokio::test]
async fn what_can_scroll_can_be_reached_with_the_keyboard() {
    let visitor = Visitor::of(full());
    for address in PAGES {
        let seen = visitor.get(address).await;
        for region in seen.all(".scroll") {
            let is_named = region.attribute("aria-label").is_some();
            let is_reached = region.attribute("tabindex") == Some("0");
            assert_eq!(is_named, is_reached, "{address}: {region:?}");
        }
    }
}

#[tokio::test]
async fn a_missing_agent_leads_to_the_tasks_that_wait_for_it() {
    let api = full();
    let alert = serde_json::json!({"kind": "agent.missing", "message": "gone is not registered", "receiver": "missing-agent:gone"});
    let of_agent = serde_json::json!({"kind": "secret.unusable", "message": "no secret", "receiver": "secret:token"});
    api.returns("GET /v1/alerts", &page_of(&[alert, of_agent]));
    let seen = Visitor::of(api).get("/console").await;
    let links = seen.all("a");
    let leads_to = |to: &str| links.iter().any(|link| link.attribute("href") == Some(to));
    assert!(leads_to("/console/tasks?agent=gone"), "{}", seen.html);
    assert!(leads_to("/console/alerts?state=open"), "{}", seen.html);
}

#[tokio::test]
async fn a_list_without_a_bulk_job_is_without_its_result_too() {
    let api = full();
    api.returns("GET /v1/tasks", &page_of(&[]));
    let seen = Visitor::of(api)
        .get("/console/tasks?state=error&bulk=01a2&bulk_result=failed_again")
        .await;
    assert_eq!(
        seen.text("h1"),
        "No tasks in error of bulk job 01a2 that failed again"
    );
    let links = seen.all("a");
    let without = |text: &str| {
        let found = links.iter().find(|link| link.text.starts_with(text));
        found.unwrap().attribute("href").unwrap().to_owned()
    };
    assert_eq!(without("without bulk:"), "/console/tasks?state=error");
    assert_eq!(
        without("without bulk_result:"),
        "/console/tasks?state=error&bulk=01a2"
    );
}

#[tokio::test]
async fn a_command_for_a_cause_is_chosen_where_the_address_names_none() {
    let seen = Visitor::of(full())
        .get("/console/causes/5f1d0a7c93b2e846/fix")
        .await;
    assert_eq!(seen.status, StatusCode::OK, "{}", seen.html);
    assert_eq!(seen.text("h1"), "What to do with the tasks of this cause");
    let form = seen.all("form");
    let form = form
        .iter()
        .find(|form| form.text.contains("Preview"))
        .unwrap();
    assert_eq!(
        form.attribute("action"),
        Some("/console/causes/5f1d0a7c93b2e846/fix")
    );
}

#[tokio::test]
async fn a_refused_confirmation_keeps_the_rate_and_the_reasons_are_words() {
    let form = "do=retry&expected=399&once=abc&first=5&rate=3&reason=fixed+it";
    let seen = Visitor::of(full())
        .post("/console/causes/5f1d0a7c93b2e846/fix", form)
        .await;
    assert_eq!(seen.status, StatusCode::CONFLICT);
    let fields = seen.all("input");
    let rate = fields
        .iter()
        .find(|field| field.attribute("name") == Some("rate"));
    assert_eq!(rate.unwrap().attribute("value"), Some("3"));
    let refused = seen.all("td");
    let words = "the state of the task does not allow it";
    assert!(
        refused.iter().any(|cell| cell.text.starts_with(words)),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_preview_says_that_a_task_in_error_is_paused_too() {
    let api = full();
    let mut run = dry_run(1);
    run["examples"][0]["after"] =
        serde_json::json!({"state": "error", "paused": true, "steps": []});
    api.returns("POST /v1/tasks/pause", &run);
    let seen = Visitor::of(api)
        .get("/console/tasks/fix?state=error&do=pause")
        .await;
    let cols = seen.text(".cols");
    assert!(cols.contains("error → error paused"), "{cols}");
}

#[tokio::test]
async fn tasks_that_an_ended_job_did_not_meet_are_explained() {
    let api = full();
    let job = "01a216f2-7c40-7a51-9d0e-2b7f6f9c1e55";
    let ended = serde_json::json!({"id": job, "command": "retry", "sentence": "retry 620 tasks", "state": "ended",
        "by": "operator:ops", "created_at": "2026-11-26T01:13:20Z", "ended_at": "2026-11-26T01:14:20Z", "total": 620,
        "matched": 100, "accepted": 100, "refused": 0, "events": []});
    api.returns(&format!("GET /v1/bulk/{job}"), &ended);
    let seen = Visitor::of(api).get(&format!("/console/bulk/{job}")).await;
    assert!(!seen.html.contains("not begun"), "{}", seen.html);
    assert!(
        seen.html
            .contains("520 tasks matched the filter when the job was confirmed, and no longer"),
        "{}",
        seen.html
    );
}

#[tokio::test]
async fn what_is_not_found_leads_to_its_list_and_a_time_to_type_stays_as_it_is_written() {
    let api = full();
    let problem = |slug: &str| serde_json::json!({"type": format!("/problems/{slug}"), "title": "Not found", "status": 404, "detail": "it does not exist"});
    for (slug, address, list) in [
        ("no-such-agent", "/console/agents/gone", "/console/agents"),
        (
            "no-such-schedule",
            "/console/schedules/gone",
            "/console/schedules",
        ),
        ("no-such-bulk-job", "/console/bulk/gone", "/console/bulk"),
    ] {
        let kind = address.trim_start_matches("/console");
        api.refuses_with(
            &format!("GET /v1{kind}"),
            StatusCode::NOT_FOUND,
            &problem(slug),
        );
        let seen = Visitor::of(api.clone()).get(address).await;
        assert_eq!(seen.status, StatusCode::NOT_FOUND);
        let panel = seen.text("main");
        assert!(!panel.contains("tasks that ended are kept"), "{panel}");
        let links = seen.all("a");
        let in_list = links
            .iter()
            .filter(|link| link.attribute("href") == Some(list));
        assert!(in_list.count() >= 2, "{address}: {}", seen.html);
    }
    api.refuses(
        "GET /v1/tasks",
        StatusCode::BAD_REQUEST,
        r#"created_after: must be a time such as "2026-01-31T09:30:00Z""#,
    );
    let seen = Visitor::of(api)
        .get("/console/tasks?created_after=yesterday")
        .await;
    assert!(
        seen.text(".lead").contains("\"2026-01-31T09:30:00Z\""),
        "{}",
        seen.html
    );
}

#[tokio::test]
async fn a_page_with_its_files_takes_less_than_60_kilobytes_where_the_browser_accepts_gzip() {
    let visitor = Visitor::of(full());
    let gzip = [("accept-encoding", "gzip, deflate, br")];
    for address in PAGES {
        let seen = visitor.send("GET", address, &gzip, "").await;
        let plain = visitor.get(address).await;
        assert_eq!(seen.header("content-encoding"), "gzip", "{address}");
        assert_eq!(seen.all("h1").len(), 1, "{address}");
        assert_eq!(plain.header("vary"), "accept-encoding", "{address}");
        assert!(seen.bytes * 2 < plain.bytes, "{address}: {}", seen.bytes);
        let mut all = seen.bytes;
        for (name, file) in [("link", "href"), ("script", "src")] {
            for element in seen.all(name) {
                let file = element.attribute(file).unwrap();
                all += visitor.send("GET", file, &gzip, "").await.bytes;
            }
        }
        assert!(all < 60_000, "{address}: {all}");
    }
}

#[tokio::test]
async fn a_role_without_pages_is_not_sent_home() {
    let api = full().with_token("0123456789abcdef-ci", "ci", "submit");
    api.refuses_with(
        "GET /v1/tasks",
        StatusCode::FORBIDDEN,
        &serde_json::json!({"type": "/problems/forbidden", "title": "Insufficient role", "status": 403,
            "detail": "this needs the role read", "needed_role": "read"}),
    );
    let visitor = Visitor::of(api);
    let signed_in = visitor
        .post("/console/login", "token=0123456789abcdef-ci&to=%2Fconsole")
        .await;
    let cookie = signed_in.header("set-cookie").split(';').next().unwrap();
    let headers = [("cookie", cookie)];
    let seen = visitor.send("GET", "/console/tasks", &headers, "").await;
    assert_eq!(seen.status, StatusCode::FORBIDDEN);
    assert!(!seen.html.contains("Go home"), "{}", seen.html);
    assert!(
        seen.html.contains("Sign in as another person"),
        "{}",
        seen.html
    );
}

#[tokio::test]
async fn the_list_of_agents_says_how_many_steps_wait_for_each() {
    let api = full();
    let seen = Visitor::of(api.clone()).get("/console/agents").await;
    let row = seen
        .all("tr")
        .into_iter()
        .find(|row| row.text.starts_with("payments"));
    assert!(row.unwrap().text.contains("212"), "{}", seen.html);
    api.refuses(
        "GET /v1/overview",
        StatusCode::SERVICE_UNAVAILABLE,
        "too many reads",
    );
    let seen = Visitor::of(api).get("/console/agents").await;
    assert_eq!(seen.status, StatusCode::OK);
    assert!(seen.html.contains("not counted"), "{}", seen.html);
}

#[tokio::test]
async fn an_alert_is_acknowledged_after_a_preview() {
    let api = full();
    api.returns("POST /v1/alerts/01a2/acknowledge", &serde_json::json!({}));
    let visitor = Visitor::of(api.clone());
    let list = visitor.get("/console/alerts?state=open").await;
    assert_eq!(list.text("h1"), "1 alert waits for a person");
    let address = "/console/alerts/01a2/acknowledge";
    assert!(list.html.contains(address), "{}", list.html);
    let preview = visitor.get(address).await;
    assert_eq!(preview.status, StatusCode::OK, "{}", preview.html);
    assert!(api.calls().iter().all(|call| call.method == "GET"));
    let done = visitor.post(address, "").await;
    assert_eq!(done.status, StatusCode::SEE_OTHER);
    assert_eq!(
        api.calls().pop().unwrap().target,
        "/v1/alerts/01a2/acknowledge"
    );
    let unknown = visitor.get("/console/alerts/01ff/acknowledge").await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
}
