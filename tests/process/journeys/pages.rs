//! Every page on a desk and on a phone, in light and dark: a picture of each, and no finding of axe-core that is serious.

use std::fs;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    long_names::too_wide,
    shop::{Shop, as_ada, workflow},
    tasks::refund,
};
use crate::harness::{Browser, Look, Provost, screenshots};

const AXE: &str = include_str!("axe-core-4.14.1.min.js");
const DIGEST: &str = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c";

/// The rules of each look. The whole set runs once for each page; those that depend on colours and sizes run also in the other
/// colours on the other screen.
const RULES: [(&str, &str); 2] = [
    (
        "desk-light",
        "{ type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }",
    ),
    (
        "phone-dark",
        "{ type: 'rule', values: ['color-contrast', 'target-size', 'scrollable-region-focusable', 'link-in-text-block'] }",
    ),
];

/// Fills the shop with one of everything that a page shows. Returns the pages with their names.
async fn story(shop: &Shop) -> Vec<(&'static str, String)> {
    // A version without the currency is active for a while.
    let mut failed = Vec::new();
    for number in 0..20 {
        match number {
            8 => shop.put("/v1/workflows/order", &workflow(false)).await,
            12 => shop.put("/v1/workflows/order", &workflow(true)).await,
            _ => {}
        }
        let input = match number {
            12..15 => json!({ "currency": "EUR", "far": true }),
            15..17 => json!({ "currency": "EUR", "short": true }),
            _ => json!({ "currency": "EUR" }),
        };
        let task = shop.order(&format!("order-20{number:03}"), input).await;
        if task["state"] == "error" {
            failed.push(task["id"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(failed.len(), 9);
    let failed = failed.swap_remove(0);
    let rows: Vec<Value> = (0..24)
        .map(|row| json!({ "row": row, "short": row % 8 == 3 }))
        .collect();
    let import = json!({ "key": "catalog-import", "input": { "rows": rows }, "steps": [
        { "name": "rows", "for_each": "{{ input.rows }}", "agent": "warehouse",
          "request": { "path": "/reserve", "body": { "row": "{{ item.row }}", "short": "{{ item.short }}" } } } ] });
    let import = as_ada(
        shop.api()
            .post("/v1/tasks", &import)
            .header("prefer", "wait=60"),
    )
    .await
    .body;
    let import = import["id"]
        .as_str()
        .unwrap_or_else(|| panic!("{import:#}"))
        .to_owned();
    shop.put("/v1/workflows/refund", &refund()).await;
    shop.post(
        "/v1/tasks",
        &json!({ "workflow": "refund", "key": "refund-1" }),
    )
    .await;
    let slow = json!({ "key": "slow-1", "complete_within": "2h", "labels": { "country": "DE" }, "reply_to": { "url": format!("{}/gone", shop.remote.url()), "events": ["task.accepted"] },
        "steps": [{ "name": "first", "agent": "payments", "request": { "path": "/slow" } },
                  { "name": "later", "wait": { "for": "1h" } },
                  { "name": "last", "agent": "shipping", "request": { "path": "/label" } }] });
    let slow = shop.post("/v1/tasks", &slow).await;
    let slow = slow["id"].as_str().unwrap().to_owned();
    let paid =
        json!({ "key": "paid-1", "steps": [{ "name": "paid", "signal": { "within": "1h" } }] });
    let paid = shop.post("/v1/tasks", &paid).await;
    let paid = paid["id"].as_str().unwrap().to_owned();
    let nightly = json!({ "cron": "0 3 * * *", "timezone": "Europe/Berlin", "workflow": "order", "description": "The ledger of the day" });
    shop.put("/v1/schedules/nightly-ledger", &nightly).await;
    shop.put(
        "/v1/schedules/price-feed",
        &json!({ "every": "15m", "workflow": "order" }),
    )
    .await;
    shop.post(
        "/v1/schedules/price-feed/pause",
        &json!({ "reason": "the supplier changes its format" }),
    )
    .await;
    shop.post("/v1/schedules/nightly-ledger/trigger", &json!({}))
        .await;
    shop.post(
        "/v1/agents/shipping/pause",
        &json!({ "for": "2h", "reason": "stock count" }),
    )
    .await;
    let limits = json!({ "endpoints": [{ "url": shop.remote.url(), "max_in_flight": 8 }], "max_in_flight": 4 });
    shop.put("/v1/agents/risk", &limits).await;
    let retry = json!({ "state": "error", "workflow": "order", "first": 2, "reason": "the printer is back" });
    let job = shop.post("/v1/tasks/retry", &retry).await;
    let job = job["id"].as_str().unwrap().to_owned();
    let dead = async || {
        let messages = shop.get("/v1/messages?state=dead").await;
        messages["items"].as_array().unwrap().len()
    };
    crate::harness::until(1, dead).await;
    let asked = async || {
        shop.get("/v1/asks?open=true").await["items"]
            .as_array()
            .unwrap()
            .len()
    };
    crate::harness::until(1, asked).await;
    let messages = shop.get("/v1/messages?state=dead").await;
    let message = messages["items"][0]["id"].as_str().unwrap().to_owned();
    let ask = shop.get("/v1/asks?open=true").await;
    let link = ask["items"][0]["people"][0]["link"].as_str().unwrap();
    let link = link[link.find("/v1/asks/").unwrap()..].to_owned();
    let failures = shop.get("/v1/failures").await;
    let causes = failures["items"].as_array().unwrap().iter();
    let mut causes = causes.filter(|cause| cause["step"] == "charge");
    let cause = causes.next().unwrap_or_else(|| panic!("{failures:#}"));
    let cause = cause["fingerprint"].as_str().unwrap().to_owned();
    let good = shop
        .get("/v1/tasks?state=processed&workflow=order&limit=1")
        .await;
    let good = good["items"][0]["id"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let patch = "do=patch&patch=%7B%22currency%22%3A%22EUR%22%7D";
    [
        ("cause", format!("/console/causes/{cause}")),
        (
            "fix-preview",
            format!("/console/causes/{cause}/fix?{patch}"),
        ),
        ("fix-choice", String::from("/console/tasks/fix?state=error")),
        (
            "fix-undo",
            String::from("/console/tasks/fix?state=error&do=undo"),
        ),
        ("bulk", String::from("/console/bulk")),
        ("bulk-job", format!("/console/bulk/{job}")),
        ("tasks", String::from("/console/tasks?state=error")),
        (
            "tasks-empty",
            String::from("/console/tasks?state=error&text=nothing"),
        ),
        ("task", format!("/console/tasks/{failed}")),
        ("task-waiting", format!("/console/tasks/{slow}")),
        ("task-items", format!("/console/tasks/{import}?step=rows")),
        (
            "task-compare",
            format!("/console/tasks/{failed}?compare={good}"),
        ),
        (
            "task-retry",
            format!("/console/tasks/{failed}/retry?step=charge"),
        ),
        (
            "task-signal",
            format!("/console/tasks/{paid}/signal?step=paid"),
        ),
        ("task-undo", format!("/console/tasks/{failed}/undo")),
        ("workflows", String::from("/console/workflows")),
        (
            "workflow",
            String::from("/console/workflows/order?diff=1..2"),
        ),
        (
            "workflow-activate",
            String::from("/console/workflows/order/activate?version=1"),
        ),
        (
            "workflow-submit",
            String::from("/console/workflows/order/submit?version=1&input=%7B%7D"),
        ),
        (
            "agent-check",
            String::from("/console/agents/payments/check"),
        ),
        ("agents", String::from("/console/agents")),
        ("agent", String::from("/console/agents/payments")),
        (
            "agent-pause",
            String::from("/console/agents/payments/pause"),
        ),
        ("schedules", String::from("/console/schedules")),
        ("schedule", String::from("/console/schedules/price-feed")),
        ("asks", String::from("/console/asks")),
        ("alerts", String::from("/console/alerts")),
        ("messages", String::from("/console/messages")),
        ("message", format!("/console/messages/{message}")),
        ("changes", String::from("/console/changes")),
        ("instances", String::from("/console/instances")),
        ("not-found", String::from("/console/nothing")),
        // By then the service has counted what it did.
        ("home", String::from("/console")),
        ("ask", link),
        ("ask-unknown", String::from("/v1/asks/unknown")),
    ]
    .to_vec()
}

/// Returns the findings of axe-core that are serious or critical, each in a line.
async fn findings(browser: &mut Browser, rules: &str) -> Vec<String> {
    let run = format!(
        "axe.run(document, {{ runOnly: {rules}, resultTypes: ['violations'] }}).then(({{ violations }}) => violations \
         .filter(({{ impact }}) => impact === 'serious' || impact === 'critical') \
         .flatMap(({{ id, nodes }}) => nodes.map((node) => `${{id}}: ${{node.html}}: ${{node.failureSummary}}`)))"
    );
    let found = browser.value(&run).await;
    let found = found.as_array().unwrap().iter();
    found
        .map(|line| line.as_str().unwrap().to_owned())
        .collect()
}

/// Takes the pictures of a page in all looks, and returns what is wrong with it.
async fn look_at(browser: &mut Browser, name: &str) -> Vec<String> {
    let folder = screenshots();
    let mut wrong = Vec::new();
    browser.value(&format!("{AXE}; 0")).await;
    for look in Look::ALL {
        browser.look(look).await;
        let rules = RULES.iter().find(|(name, _)| *name == look.name);
        let found = match rules {
            Some((_, rules)) => findings(browser, rules).await,
            None => Vec::new(),
        };
        let wide = too_wide(browser, look).await;
        wrong.extend(
            wide.iter()
                .map(|line| format!("{name} {}: {line}", look.name)),
        );
        wrong.extend(
            found
                .iter()
                .map(|line| format!("{name} {}: {line}", look.name)),
        );
        let picture = browser.picture().await;
        fs::write(folder.join(format!("{name}-{}.png", look.name)), picture).unwrap();
    }
    browser.look(Look::DESK).await;
    wrong
}

#[tokio::test]
async fn no_page_has_a_serious_finding_of_axe_on_a_desk_or_a_phone_in_light_or_dark() {
    let digest: String = Sha256::digest(AXE)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(digest, DIGEST, "axe-core is the file of its package");
    let mut browser = Browser::start().await;
    let shop = Shop::open(Provost::setup(), true).await;
    let mut wrong = Vec::new();
    browser.open(&shop.url("/console")).await;
    browser.see("h1", "Sign in").await;
    wrong.extend(look_at(&mut browser, "login").await);
    shop.sign_in(&mut browser).await;
    browser.see("h1", "No tasks yet").await;
    wrong.extend(look_at(&mut browser, "first-run").await);
    for (name, path) in story(&shop).await {
        browser.open(&shop.url(&path)).await;
        browser.see("h1", "").await;
        if ["home", "cause"].contains(&name) {
            let picture = browser.screen().await;
            fs::write(screenshots().join(format!("readme-{name}.webp")), picture).unwrap();
        }
        wrong.extend(look_at(&mut browser, name).await);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    browser.close().await;
}
