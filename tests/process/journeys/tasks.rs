//! One task: it is undone by its plan, and a person approves on a phone.

use serde_json::{Value, json};

use super::shop::Shop;
use crate::harness::{Browser, Look, Provost, setups};

#[tokio::test]
async fn a_task_is_undone_by_its_plan_and_the_services_are_called_in_its_order() {
    let mut browser = Browser::start().await;
    for setup in setups().await {
        let shop = Shop::open(setup, true).await;
        let order = json!({ "currency": "EUR", "far": true });
        let task = shop.order("order-7", order).await;
        assert_eq!(task["state"], "error");
        shop.sign_in(&mut browser).await;
        browser.see("h1", "1 task needs a person").await;
        browser.click(".find input", "").await;
        browser.keys("order-7").await;
        browser.press("Enter").await;
        browser.see("h1", "order-7").await;
        browser.see(".note.error", "ship").await;
        let undo = browser
            .value("test.find('.head .acts > a', 'Undo') ? 'a' : 'menu'")
            .await;
        if undo == "menu" {
            browser.click("details.menu > summary", "More").await;
        }
        browser.click(".acts a", "Undo").await;
        browser.see("h1", "Undo").await;
        let plan = browser.text(".plan").await;
        let places = ["refund", "release"].map(|path| plan.find(path));
        assert!(places[0].is_some() && places[0] < places[1], "{plan}");
        browser.click("#why", "").await;
        browser.keys("the customer has changed their mind").await;
        browser.press("Tab").await;
        browser.keys("order-7").await;
        browser.click("button", "Undo the task").await;
        browser.see("h1 .pill", "undone").await;
        let calls = shop.remote.ledger();
        let calls: Vec<_> = calls.iter().map(|seen| seen.path.as_str()).collect();
        assert_eq!(
            calls,
            ["/reserve", "/charge", "/label", "/refund", "/release"]
        );
    }
    browser.close().await;
}

/// Returns the links of the question of this step.
async fn link(shop: &Shop) -> String {
    let asks = shop.get("/v1/asks?open=true").await;
    let link = &asks["items"][0]["people"][0]["link"];
    link.as_str().unwrap().to_owned()
}

pub fn refund() -> Value {
    json!({ "steps": [
        { "name": "approval", "signal": { "within": "1h", "ask": {
            "title": "Refund 890.00 EUR to customer c-2207?",
            "text": "Order order-19302, delivered 19 November.\nReason: arrived broken.",
            "of": ["ada@shop.example", "bob@shop.example"],
            "fields": [{ "name": "amount", "type": "number", "label": "Amount to refund" }] } } },
        { "name": "refund", "agent": "payments", "request": { "path": "/refund" } } ] })
}

#[tokio::test]
async fn a_person_approves_on_a_phone_on_a_page_without_script_and_the_task_goes_on() {
    let mut browser = Browser::start().await;
    browser.look(Look::PHONE).await;
    for setup in setups().await {
        let shop = Shop::open(setup, true).await;
        shop.put("/v1/workflows/refund", &refund()).await;
        let task = json!({ "workflow": "refund", "key": "refund-1" });
        let task = shop.post("/v1/tasks", &task).await;
        let id = task["id"].as_str().unwrap();
        let waits = async || {
            let asks = shop.get("/v1/asks?open=true").await;
            asks["items"].as_array().unwrap().len()
        };
        crate::harness::until(1, waits).await;
        browser.open(&link(&shop).await).await;
        browser.see("h1", "Refund 890.00 EUR").await;
        let scripts = browser.value("document.scripts.length").await;
        assert_eq!(scripts, 0, "the page needs no script");
        let overflows = "document.documentElement.scrollWidth > innerWidth";
        assert_eq!(
            browser.value(overflows).await,
            false,
            "the page fits a phone"
        );
        let heights = "[...document.querySelectorAll('.choice, button')].map((e) => e.getBoundingClientRect().height)";
        let heights = browser.value(heights).await;
        for height in heights.as_array().unwrap() {
            assert!(height.as_f64().unwrap() >= 44.0, "{heights}");
        }
        browser.click("input[name=\"field.amount\"]", "").await;
        browser.keys("890").await;
        browser.click("label", "approve").await;
        browser.click("button", "Send the decision").await;
        browser.see("h1", "Your decision is recorded").await;
        browser.see("strong", "approve").await;
        let ended = shop.get(&format!("/v1/tasks/{id}?wait=60s")).await;
        assert_eq!(ended["state"], "processed", "{ended:#}");
    }
    browser.close().await;
}

/// A Provost without tokens, for tests in which nobody signs in.
pub async fn without_tokens() -> Shop {
    Shop::open(Provost::setup(), false).await
}
