//! A task that is watched while an instance is killed.

use serde_json::json;

use super::{shop::Shop, tasks::without_tokens};
use crate::harness::{Browser, Provost, free_port, new_database};

async fn slow_task(shop: &Shop) -> String {
    let slow =
        |name: &str| json!({ "name": name, "agent": "payments", "request": { "path": "/slow" } });
    let task = json!({ "key": "slow-1", "steps": [slow("first"), slow("second")] });
    let task = shop.post("/v1/tasks", &task).await;
    task["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_page_follows_its_task_over_the_kill_of_an_instance_without_being_read_again() {
    let mut browser = Browser::start().await;

    // The only instance is killed, and starts again at the same address.
    let listen = format!("127.0.0.1:{}", free_port());
    let setup = Provost::setup().listen(&listen);
    let mut shop = Shop::open(setup, false).await;
    let task = slow_task(&shop).await;
    browser
        .open(&shop.url(&format!("/console/tasks/{task}")))
        .await;
    browser.see("h1 .pill", "processing").await;
    browser.value("document.body.dataset.opened = 'once'").await;
    shop.remote.requests(1).await;
    shop.provost.kill().await;
    shop.gate.open();
    shop.provost.restart().await;
    browser.see("h1 .pill", "processed").await;
    let opened = browser.value("document.body.dataset.opened").await;
    assert_eq!(opened, "once", "the page was opened anew");
    drop(shop);

    // The instance that calls the service is killed, and the browser is at another one.
    let database = new_database().await;
    let on = || Provost::setup().database_url(&database);
    let mut shop = Shop::open(on(), false).await;
    let watched = on().start().await;
    let task = slow_task(&shop).await;
    shop.remote.requests(1).await;
    let url = format!("http://{}/console/tasks/{task}", watched.address());
    browser.open(&url).await;
    browser.see("h1 .pill", "processing").await;
    browser.value("document.body.dataset.opened = 'once'").await;
    shop.provost.kill().await;
    shop.gate.open();
    browser.see("h1 .pill", "processed").await;
    let opened = browser.value("document.body.dataset.opened").await;
    assert_eq!(opened, "once", "the page was opened anew");
    browser.close().await;
}

#[tokio::test]
async fn a_live_list_offers_what_is_new_while_the_pointer_or_the_focus_is_at_a_row_and_moves_nothing()
 {
    let mut browser = Browser::start().await;
    let shop = without_tokens().await;
    for key in ["order-1", "order-2", "order-3"] {
        shop.order(key, json!({ "currency": "EUR" })).await;
    }
    browser.open(&shop.url("/console/tasks?live=2s")).await;
    browser.loaded().await;
    browser.point("tbody td a", "order-2").await;
    let hovered = "document.querySelector('tbody tr:hover a').innerText";
    assert_eq!(browser.value(hovered).await, "order-2");
    shop.order("order-4", json!({ "currency": "EUR" })).await;
    browser.see(".news", "1 new: show").await;
    assert_eq!(browser.value(hovered).await, "order-2");
    let first = "document.querySelector('tbody td a').innerText";
    assert_eq!(browser.value(first).await, "order-3");
    browser.click(".news", "1 new").await;
    browser.see("tbody tr:first-child td a", "order-4").await;

    // The keyboard focus keeps its row, too.
    browser.point("h1", "").await;
    browser
        .value("test.find('tbody td a', 'order-3').focus()")
        .await;
    shop.order("order-5", json!({ "currency": "EUR" })).await;
    browser.see(".news", "1 new: show").await;
    assert_eq!(
        browser.value("document.activeElement.innerText").await,
        "order-3"
    );
    // Once neither is in the list, the page reads itself as before.
    browser.value("document.activeElement.blur()").await;
    browser.see("tbody tr:first-child td a", "order-5").await;
    browser.close().await;
}
