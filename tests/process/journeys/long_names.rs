//! Names as long as they may be: no page becomes wider than the screen, and no column of a table hides the others.

use serde_json::json;

use super::shop::Shop;
use crate::harness::{Browser, Look, Provost};

/// Returns how far the page is wider than the screen, and of the tables of a desk how far each is wider than its panel.
/// A browser of a phone zooms out of a page that is too wide, so that the width of its window does not tell.
pub async fn too_wide(browser: &mut Browser, look: Look) -> Vec<String> {
    let script = format!(
        "[['page', document.documentElement.scrollWidth - {}], ...[...document.querySelectorAll('.scroll')].map((table) => \
         [table.innerText.slice(0, 60), {} ? table.scrollWidth - table.clientWidth : 0])]\
         .filter(([, by]) => by > 0).map(([name, by]) => `${{name}}: ${{by}} pixels too wide`)",
        look.width,
        look.width >= 1280
    );
    let found = browser.value(&script).await;
    let found = found.as_array().unwrap().iter();
    found
        .map(|line| line.as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn no_name_is_so_long_that_it_hides_what_is_beside_it() {
    let mut browser = Browser::start().await;
    let shop = Shop::open(Provost::setup(), false).await;
    let long = |letter: &str, length: usize| letter.repeat(length);
    let agent = long("a", 64);
    let spec = json!({ "endpoints": [{ "url": shop.remote.url(), "max_in_flight": 8 }] });
    shop.put(&format!("/v1/agents/{agent}"), &spec).await;
    let step = |letter: &str, body: serde_json::Value| {
        json!({ "name": long(letter, 64), "agent": agent,
        "request": { "path": if letter == "m" { "/charge" } else { "/label" }, "body": body } })
    };
    let workflow = long("w", 64);
    let mut second = step("m", json!({}));
    second["after"] = json!([long("s", 64)]);
    let steps = json!({ "steps": [step("s", json!({})), second] });
    shop.put(&format!("/v1/workflows/{workflow}"), &steps).await;
    let schedule = json!({ "every": "24h", "workflow": workflow, "description": long("d", 200) });
    shop.put(&format!("/v1/schedules/{}", long("c", 64)), &schedule)
        .await;
    let mut tasks = Vec::new();
    for key in [long("k", 200), long("W", 200)] {
        let labels = json!({ long("l", 32): long("v", 100) });
        let task = json!({ "workflow": workflow, "key": key, "labels": labels });
        let task = shop
            .api()
            .post("/v1/tasks", &task)
            .header("prefer", "wait=60")
            .await;
        tasks.push(task.body["id"].as_str().unwrap().to_owned());
    }
    shop.in_state("error", 2).await;
    let failures = shop.get("/v1/failures").await;
    let cause = failures["items"][0]["fingerprint"].as_str().unwrap();
    let [one, other] = &*tasks else {
        panic!("{tasks:?}")
    };
    let pages = [
        String::from("/console"),
        String::from("/console/tasks"),
        format!("/console/tasks/{one}"),
        format!("/console/tasks/{one}?compare={other}"),
        format!("/console/tasks/{one}/undo"),
        format!("/console/causes/{cause}"),
        format!("/console/causes/{cause}/fix?do=retry"),
        String::from("/console/agents"),
        format!("/console/agents/{agent}"),
        String::from("/console/workflows"),
        format!("/console/workflows/{workflow}"),
        String::from("/console/schedules"),
        String::from("/console/changes"),
        String::from("/console/instances"),
    ];
    let mut wrong = Vec::new();
    for path in &pages {
        browser.open(&shop.url(path)).await;
        browser.see("h1", "").await;
        for look in [Look::DESK, Look::PHONE] {
            browser.look(look).await;
            let found = too_wide(&mut browser, look).await;
            wrong.extend(
                found
                    .iter()
                    .map(|line| format!("{path} {}: {line}", look.name)),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The texts of the graph end with their node.
    browser.look(Look::DESK).await;
    browser.open(&shop.url(&pages[2])).await;
    browser.see(".graph svg svg", "").await;
    let clipped = "[...document.querySelectorAll('.graph svg svg')].every((text) => getComputedStyle(text).overflow === 'hidden')";
    assert_eq!(browser.value(clipped).await, true);
    browser.close().await;
}
