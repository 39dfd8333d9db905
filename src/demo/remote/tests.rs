//! The services of the demo over real sockets: what they claim to do to Provost, they do.

use super::*;
use crate::{demo::orders, plain_http};

async fn ask(
    running: &RunningService,
    order: &str,
    body: Value,
) -> reqwest::Result<reqwest::Response> {
    let url = format!("http://{}{}", running.address, running.remote.path());
    let request = plain_http::client().unwrap().post(url);
    let request = request
        .header("idempotency-key", format!("{order}:step"))
        .header("provost-task-key", order);
    request.json(&body).send().await
}

#[tokio::test]
async fn only_shipping_has_a_sick_address_and_it_refuses_before_anything_is_done() {
    for remote in Remote::ALL {
        let running = start(remote, &orders::all()).await.unwrap();
        let doors = running.doors.len();
        assert_eq!(doors, if remote == Remote::Shipping { 2 } else { 1 });
        let Some(sick) = running.sick_door() else {
            continue;
        };
        let at_sick_door = RunningService {
            address: sick.address,
            doors: Vec::new(),
            desk: running.desk.clone(),
            remote,
        };
        let refused = ask(&at_sick_door, "order-1001", json!({})).await.unwrap();
        assert_eq!(refused.status(), 503);
        assert_eq!(running.ledger().effects(), 0);
        let counts = DoorCounts {
            calls: 1,
            refused: 1,
        };
        assert_eq!(sick.door.counts(), counts);
        let done = ask(&running, "order-1001", json!({})).await.unwrap();
        assert_eq!(done.status(), 201);
        assert_eq!(running.doors[0].door.counts().refused, 0);
        assert_eq!(running.ledger().effects(), 1);
    }
}

#[tokio::test]
async fn a_busy_service_does_nothing_and_then_does_its_work_once() {
    let payments = start(Remote::Payments, &orders::all()).await.unwrap();
    let charge = json!({ "amount": 1800, "card": "tok_visa" });
    let mut answered = Vec::new();
    for _ in 0..4 {
        let answer = ask(&payments, "order-1003", charge.clone()).await.unwrap();
        answered.push(answer.status().as_u16());
    }
    assert_eq!(answered, [503, 503, 201, 201]);
    assert_eq!(payments.ledger().effects_for("order-1003"), 1);
    assert_eq!(payments.ledger().repeats(), 1);
}

#[tokio::test]
async fn a_service_that_hangs_up_gives_no_answer_at_all() {
    let inventory = start(Remote::Inventory, &orders::all()).await.unwrap();
    let reservation = json!({ "sku": "book-7", "quantity": 1 });
    let broken = ask(&inventory, "order-1005", reservation.clone()).await;
    assert!(broken.is_err());
    assert_eq!(inventory.ledger().effects_for("order-1005"), 0);
    let answer = ask(&inventory, "order-1005", reservation).await.unwrap();
    assert_eq!(answer.status(), 201);
}

#[tokio::test]
async fn an_answer_that_was_lost_is_given_again_without_doing_the_work_again() {
    let payments = start(Remote::Payments, &orders::all()).await.unwrap();
    let charge = json!({ "amount": 950, "card": "tok_visa" });
    assert!(ask(&payments, "order-1011", charge.clone()).await.is_err());
    assert_eq!(payments.ledger().effects_for("order-1011"), 1);
    let answer = ask(&payments, "order-1011", charge).await.unwrap();
    assert_eq!(answer.json::<Value>().await.unwrap()["id"], "ch-1011");
    assert_eq!(payments.ledger().effects_for("order-1011"), 1);
}

#[tokio::test]
async fn a_declined_card_is_charged_under_the_same_key_once_it_is_accepted() {
    let payments = start(Remote::Payments, &orders::all()).await.unwrap();
    let charge = json!({ "amount": 950, "card": DECLINED_CARD });
    let refused = ask(&payments, "order-1007", charge.clone()).await.unwrap();
    assert_eq!(refused.status(), 402);
    assert_eq!(payments.ledger().effects(), 0);
    let url = format!("http://{}/cards/{DECLINED_CARD}", payments.address);
    let request = plain_http::client().unwrap().put(url);
    let retried = request.json(&json!({ "accepted": true })).send().await;
    assert_eq!(retried.unwrap().status(), 200);
    let answer = ask(&payments, "order-1007", charge).await.unwrap();
    assert_eq!(answer.status(), 201);
    assert_eq!(payments.ledger().effects_for("order-1007"), 1);
}
