//! Times in the zone of the reader.

use serde_json::json;

use super::tasks::without_tokens;
use crate::harness::Browser;

#[tokio::test]
async fn times_are_in_the_zone_of_the_reader_with_utc_beside_and_stay_so_when_a_page_reads_itself_again()
 {
    let mut browser = Browser::start().await;
    let shop = without_tokens().await;
    shop.order("order-1", json!({ "currency": "EUR" })).await;
    // The zone is 8 hours and 45 minutes before UTC, the whole year.
    browser.time_zone("Australia/Eucla").await;
    browser.open(&shop.url("/console/tasks?live=2s")).await;
    browser.see("[data-zone]", "times in Australia/Eucla").await;
    let wrong = "[...document.querySelectorAll('time')].filter((time) => { \
        const shifted = new Date(Date.parse(time.dateTime) + 525 * 60000).toISOString(); \
        const local = [shifted.slice(11, 19), shifted.slice(11, 16)]; \
        return !local.some((local) => time.textContent.includes(local)) || \
            !time.title.includes('Australia/Eucla') || !time.title.endsWith(new Date(time.dateTime).toISOString().slice(11, 23) + ' UTC'); \
        }).map((time) => time.outerHTML)";
    assert_eq!(browser.value(wrong).await, json!([]));
    // A task that comes later is in the zone, too, when the page has read itself again.
    shop.order("order-2", json!({ "currency": "EUR" })).await;
    browser.see("td a", "order-2").await;
    assert_eq!(browser.value(wrong).await, json!([]));
    browser.click("[data-zone] button", "show UTC").await;
    browser.see("[data-zone]", "times in UTC").await;
    let utc = "[...document.querySelectorAll('time')].every((time) => \
        time.textContent.includes(time.dateTime.slice(11, 16)) && time.title.endsWith('UTC') && !time.title.includes('Eucla'))";
    assert_eq!(browser.value(utc).await, true);
    browser.open(&shop.url("/console/tasks")).await;
    browser
        .see("[data-zone] button", "show Australia/Eucla")
        .await;
    assert_eq!(browser.value(utc).await, true, "the choice is kept");
    browser.close().await;
}
