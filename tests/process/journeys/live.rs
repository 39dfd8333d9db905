//! A task that is watched while an instance is killed.

use serde_json::json;

use super::shop::Shop;
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
