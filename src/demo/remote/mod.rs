//! The remote services of the demo: what Provost calls, on sockets of their own. They know nothing of
//! Provost but its headers, and do what any service should that is called at least once: they remember
//! what they did under which `Idempotency-Key`.

mod ledger;
mod line;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{ConnectInfo, Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{post, put},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use self::line::Line;
use super::orders::{DECLINED_CARD, Order, Remote, Trouble};
pub use ledger::Ledger;

/// A remote service that is running, until the process ends.
pub struct Running {
    pub remote: Remote,
    pub address: SocketAddr,
    desk: Arc<Desk>,
}

impl Running {
    pub fn ledger(&self) -> &Ledger {
        &self.desk.ledger
    }
}

struct Desk {
    remote: Remote,
    ledger: Ledger,
    /// What each order will meet here, first things first.
    troubles: Mutex<HashMap<String, VecDeque<Trouble>>>,
    declined_cards: Mutex<HashSet<String>>,
}

/// Starts one on a free port of the loopback interface.
pub async fn start(remote: Remote, orders: &[Order]) -> io::Result<Running> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let desk = Arc::new(Desk {
        remote,
        ledger: Ledger::default(),
        troubles: Mutex::new(troubles(remote, orders)),
        declined_cards: Mutex::new(HashSet::from([DECLINED_CARD.to_owned()])),
    });
    let mut router = Router::new().route(remote.path(), post(work).get(list));
    if remote == Remote::Payments {
        router = router.route("/cards/{card}", put(set_card));
    }
    let router = router.with_state(desk.clone());
    let service = router.into_make_service_with_connect_info::<Line>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(Running {
        remote,
        address,
        desk,
    })
}

fn troubles(remote: Remote, orders: &[Order]) -> HashMap<String, VecDeque<Trouble>> {
    let here = |order: &Order| {
        let met = order.troubles.iter().filter(|(at, _)| *at == remote);
        (order.key(), met.map(|(_, trouble)| *trouble).collect())
    };
    orders.iter().map(here).collect()
}

/// The request of a step.
async fn work(
    State(desk): State<Arc<Desk>>,
    ConnectInfo(line): ConnectInfo<Line>,
    headers: HeaderMap,
    Json(wanted): Json<Value>,
) -> Response {
    let header = |name| headers.get(name)?.to_str().ok();
    let (Some(key), Some(order)) = (header("idempotency-key"), header("provost-task-key")) else {
        return refusal(StatusCode::BAD_REQUEST, "headers_missing", "who asks?");
    };
    tokio::time::sleep(desk.thinking_time(order)).await;
    let trouble = desk.next_trouble(order);
    match trouble {
        Some(Trouble::Busy) => {
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "busy", "try again soon");
        }
        Some(Trouble::HangsUp) => return line.hang_up().await,
        Some(Trouble::HangsUpAfterwards | Trouble::NeverAnswers) | None => {}
    }
    if let Some(card) = desk.declined_card(&wanted) {
        // Nothing was done, so nothing is remembered: asked again, the bank may agree.
        let message = format!("the bank declines {card}");
        return refusal(StatusCode::PAYMENT_REQUIRED, "card_declined", &message);
    }
    let answer = desk.ledger.once(key, order, || desk.effect(order, wanted));
    match trouble {
        Some(Trouble::HangsUpAfterwards) => line.hang_up().await,
        Some(Trouble::NeverAnswers) => std::future::pending().await,
        Some(Trouble::Busy | Trouble::HangsUp) | None => {
            (StatusCode::CREATED, Json(answer)).into_response()
        }
    }
}

fn refusal(status: StatusCode, error: &str, message: &str) -> Response {
    (status, Json(json!({ "error": error, "message": message }))).into_response()
}

/// Everything that was done here.
async fn list(State(desk): State<Arc<Desk>>) -> Json<Vec<Value>> {
    Json(desk.ledger.answers())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CardSettings {
    accepted: bool,
}

/// The payment service's own administration: how the cause of a declined card is mended.
async fn set_card(
    State(desk): State<Arc<Desk>>,
    Path(card): Path<String>,
    Json(settings): Json<CardSettings>,
) -> Json<Value> {
    let answer = json!({ "card": card, "accepted": settings.accepted });
    let mut declined = desk
        .declined_cards
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if settings.accepted {
        declined.remove(&card);
    } else {
        declined.insert(card);
    }
    Json(answer)
}

impl Desk {
    /// Between 80 and 400 ms, so that there is something to watch; the same in each run.
    fn thinking_time(&self, order: &str) -> Duration {
        let seed = order.bytes().fold(self.remote as u64 + 1, |seed, byte| {
            seed.wrapping_mul(131).wrapping_add(u64::from(byte))
        });
        Duration::from_millis(80 + seed % 320)
    }

    fn next_trouble(&self, order: &str) -> Option<Trouble> {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.get_mut(order)?.pop_front()
    }

    fn declined_card(&self, wanted: &Value) -> Option<String> {
        let card = wanted.get("card")?.as_str()?;
        let declined = self
            .declined_cards
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        declined.contains(card).then(|| card.to_owned())
    }

    /// The work itself: what was wanted, with an id and the order that it was done for.
    fn effect(&self, order: &str, wanted: Value) -> Value {
        let prefix = match self.remote {
            Remote::Inventory => "res",
            Remote::Payments => "ch",
            Remote::Shipping => "shp",
        };
        let number = order.trim_start_matches("order-");
        let mut answer = json!({ "id": format!("{prefix}-{number}"), "for": order });
        if let (Some(answer), Value::Object(wanted)) = (answer.as_object_mut(), wanted) {
            answer.extend(wanted);
        }
        answer
    }
}

#[cfg(test)]
mod tests;
