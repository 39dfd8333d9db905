//! The console without a mouse.

use serde_json::json;

use super::shop::{ADA, Shop};
use crate::harness::{Browser, Provost};

#[tokio::test]
async fn a_task_is_found_and_retried_with_the_keyboard_alone() {
    let mut browser = Browser::start().await;
    let shop = Shop::open(Provost::setup(), true).await;
    let failed = shop
        .order("order-9", json!({ "currency": "EUR", "short": true }))
        .await;
    assert_eq!(failed["state"], "error");
    shop.is_repaired
        .store(true, std::sync::atomic::Ordering::Relaxed);

    browser.open(&shop.url("/console/tasks?state=error")).await;
    browser.see("#token:focus", "").await;
    browser.keys(ADA).await;
    browser.press("Enter").await;
    browser.see("h1", "in error").await;
    // The first element leads past the head.
    browser.press("Tab").await;
    browser.see("a:focus", "Skip to the content").await;
    browser.press("Enter").await;
    browser.tab_to("td a", "order-9").await;
    browser.press("Enter").await;
    browser.see("h1", "order-9").await;

    // The search is one key away, and finds the same task.
    browser.loaded().await;
    browser.press("/").await;
    browser.see(".find input:focus", "").await;
    browser.value("document.body.dataset.seen = 'yes'").await;
    browser.keys("order-9").await;
    browser.press("Enter").await;
    browser
        .see("body:not([data-seen]) .note.error", "reserve")
        .await;
    browser.tab_to(".acts a", "Retry").await;
    browser.press("Enter").await;
    browser.see("h1", "Retry").await;
    browser.tab_to("[name=reason]", "").await;
    browser.keys("stock has come").await;
    browser.tab_to("button", "Retry").await;
    browser.press("Enter").await;
    browser.see("h1 .pill", "processed").await;
    assert_eq!(browser.clicks(), 0);
    browser.close().await;
}
