//! A night with a thousand failures.

use std::sync::atomic::Ordering;

use super::shop::Shop;
use crate::harness::{Browser, setups};

#[tokio::test]
async fn a_thousand_failures_of_three_causes_are_found_and_fixed_within_ten_clicks() {
    let mut browser = Browser::start().await;
    for setup in setups().await {
        let shop = Shop::open(setup, true).await;
        shop.thousand_failures().await;
        let before = browser.clicks();
        shop.sign_in(&mut browser).await;
        browser
            .see("h1", "1,000 tasks need a person, for 3 causes")
            .await;

        // The cause of half of them is a request without its currency.
        browser.click(".causes .go", "Look and fix").await;
        browser.see(".wire", "currency is required").await;
        browser.click("textarea[name=patch]", "").await;
        browser.keys(r#"{"currency":"EUR"}"#).await;
        browser.press("Tab").await;
        browser.keys("the request had no currency").await;
        browser.click("button", "Preview for 500 tasks").await;
        browser
            .see("h1", "Retry 500 tasks with a changed request")
            .await;
        browser.see("ins", r#""currency": "EUR""#).await;
        // Two hundred tasks in a second, where twenty are usual.
        browser.click("#rate", "").await;
        browser.keys("0").await;
        browser.click("button", "Retry 500 tasks").await;
        browser.see(".kv", "the request had no currency").await;

        // Services have been repaired: the others are retried as they are, once the first have ended.
        shop.is_repaired.store(true, Ordering::Relaxed);
        shop.remote.paths("/mail", 500).await;
        shop.in_state("error", 500).await;
        browser.click(".acts a", "Tasks in error").await;
        browser.click(".acts a", "Act on all that match").await;
        browser.click("button", "Preview").await;
        browser.see("h1", "Retry 500 tasks").await;
        browser.click("#rate", "").await;
        browser.keys("0").await;
        browser.press("Tab").await;
        browser.keys("printer and stock are back").await;
        browser.click("button", "Retry 500 tasks").await;
        browser.see(".kv", "printer and stock are back").await;
        let clicks = browser.clicks() - before;
        assert!(clicks <= 10, "{clicks} clicks");

        // The page of the job follows it by itself.
        browser.see(".lead", "ended").await;
        shop.in_state("error", 0).await;
        browser.open(&shop.url("/console")).await;
        browser.see("h1", "No task needs a person").await;
        let charged = shop.remote.ledger();
        let charged = charged
            .iter()
            .filter(|seen| seen.path == "/charge" && !seen.body["currency"].is_null());
        assert_eq!(charged.count(), 1000);
    }
    browser.close().await;
}
