//! The remote services of the demo, which Provost calls, each on its own socket. They know only Provost's headers,
//! and do the duty of any service that is called at least once: they remember the result for each `Idempotency-Key`.
//! Shipping replies later, and has two addresses, one of them sick at first.

mod door;
mod ledger;
mod line;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{ConnectInfo, Path, Request, State},
    http::{HeaderMap, Method, StatusCode, Uri},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{delete, get, post, put},
};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use self::line::WaitingLine;
use super::orders::{DECLINED_CARD, InjectedFault, Order, Remote, STOLEN_CARD};
use crate::{clock, plain_http};
pub use door::{Door, DoorCounts};
pub use ledger::Ledger;

/// A running remote service; it runs until the process ends.
pub struct RunningService {
    pub remote: Remote,
    pub address: SocketAddr,
    /// All its addresses, the first included.
    pub doors: Vec<RunningDoor>,
    desk: Arc<ServiceState>,
}

/// One address of a service.
pub struct RunningDoor {
    pub address: SocketAddr,
    pub door: Arc<Door>,
}

impl RunningService {
    pub fn ledger(&self) -> &Ledger {
        &self.desk.ledger
    }

    pub fn sick_door(&self) -> Option<&RunningDoor> {
        self.doors.iter().find(|door| door.door.is_sick())
    }
}

struct ServiceState {
    remote: Remote,
    ledger: Ledger,
    /// The faults that each order will meet here, in order.
    troubles: Mutex<HashMap<String, VecDeque<InjectedFault>>>,
    declined_cards: Mutex<HashSet<String>>,
    /// Responds with 503 to every request for work.
    is_down: AtomicBool,
    /// The client that sends later replies.
    client: reqwest::Client,
}

/// Starts a service on free ports of the loopback interface.
pub async fn start(remote: Remote, orders: &[Order]) -> io::Result<RunningService> {
    let desk = Arc::new(ServiceState {
        remote,
        ledger: Ledger::default(),
        troubles: Mutex::new(troubles(remote, orders)),
        declined_cards: Mutex::new([DECLINED_CARD, STOLEN_CARD].map(str::to_owned).into()),
        is_down: AtomicBool::new(false),
        client: plain_http::client().map_err(io::Error::other)?,
    });
    let path = remote.path();
    let mut router = Router::new()
        .route(path, post(work).get(list))
        .route(&format!("{path}/{{id}}"), delete(undo))
        .route(&format!("{path}/of/{{order}}"), get(find))
        .route("/outage", put(set_outage));
    match remote {
        // The paths of the example of parallel steps.
        Remote::Inventory => {
            router = router
                .route("/imports", post(work))
                .route("/catalogues", post(work));
        }
        Remote::Payments => router = router.route("/cards/{card}", put(set_card)),
        Remote::Shipping => {}
    }
    let router = router.with_state(desk.clone());
    let well = open(Door::default(), router.clone()).await?;
    let address = well.address;
    let mut doors = vec![well];
    if remote == Remote::Shipping {
        doors.push(open(Door::sick(), router).await?);
    }
    Ok(RunningService {
        remote,
        address,
        doors,
        desk,
    })
}

async fn open(door: Door, router: Router) -> io::Result<RunningDoor> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let door = Arc::new(door);
    let router = router.layer(middleware::from_fn_with_state(door.clone(), pass));
    let service = router.into_make_service_with_connect_info::<WaitingLine>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(RunningDoor { address, door })
}

/// Passes a request on, unless it asks for work (a POST) and the door refuses it.
async fn pass(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    if request.method() == Method::POST && !door.enter(clock::instant()) {
        let (error, message) = ("sick", "this address is being repaired");
        return refusal(StatusCode::SERVICE_UNAVAILABLE, error, message);
    }
    next.run(request).await
}

fn troubles(remote: Remote, orders: &[Order]) -> HashMap<String, VecDeque<InjectedFault>> {
    let here = |order: &Order| {
        let met = order.troubles.iter().filter(|(at, _)| *at == remote);
        (order.key(), met.map(|(_, trouble)| *trouble).collect())
    };
    orders.iter().map(here).collect()
}

/// Handles the request of a step.
async fn work(
    State(desk): State<Arc<ServiceState>>,
    ConnectInfo(line): ConnectInfo<WaitingLine>,
    path: Uri,
    headers: HeaderMap,
    Json(wanted): Json<Value>,
) -> Response {
    let header = |name| headers.get(name)?.to_str().ok();
    let (Some(key), Some(order)) = (header("idempotency-key"), header("provost-task-key")) else {
        return refusal(StatusCode::BAD_REQUEST, "headers_missing", "who asks?");
    };
    if let Some(refusal) = desk.outage() {
        return refusal;
    }
    clock::sleep(desk.thinking_time(order)).await;
    let trouble = desk.next_trouble(order);
    match trouble {
        Some(InjectedFault::Busy) => {
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "busy", "try again soon");
        }
        Some(InjectedFault::HangsUp) => return line.hang_up().await,
        Some(InjectedFault::HangsUpAfterwards | InjectedFault::NeverAnswers) | None => {}
    }
    if let Some(card) = desk.declined_card(&wanted) {
        // Nothing was done, so nothing is remembered: the bank may accept the next request.
        let message = format!("the bank declines {card}");
        return refusal(StatusCode::PAYMENT_REQUIRED, "card_declined", &message);
    }
    let done = desk
        .ledger
        .once(key, order, || effect(path.path(), order, wanted));
    let Some(answer) = done else {
        return refusal(StatusCode::CONFLICT, "withdrawn", "it was undone before");
    };
    if trouble.is_none()
        && desk.remote == Remote::Shipping
        && let Some(address) = header("provost-reply-to")
    {
        let wait = desk.thinking_time(order);
        tokio::spawn(reply_later(
            desk.client.clone(),
            address.to_owned(),
            answer,
            wait,
        ));
        return (StatusCode::ACCEPTED, [("provost-async", "true")]).into_response();
    }
    match trouble {
        Some(InjectedFault::HangsUpAfterwards) => line.hang_up().await,
        Some(InjectedFault::NeverAnswers) => std::future::pending().await,
        Some(InjectedFault::Busy | InjectedFault::HangsUp) | None => {
            (StatusCode::CREATED, Json(answer)).into_response()
        }
    }
}

/// Sends the reply that a parcel was collected, some time after it was ordered. The same reply again is safe, so it
/// is sent until it arrives.
async fn reply_later(client: reqwest::Client, address: String, answer: Value, wait: Duration) {
    let reply = json!({ "output": answer });
    loop {
        clock::sleep(wait).await;
        let sent = client.post(&address).json(&reply).send().await;
        if sent.is_ok_and(|response| !response.status().is_server_error()) {
            return;
        }
    }
}

fn refusal(status: StatusCode, error: &str, message: &str) -> Response {
    (status, Json(json!({ "error": error, "message": message }))).into_response()
}

/// Handles the request of an undo.
async fn undo(
    State(desk): State<Arc<ServiceState>>,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Response {
    if let Some(refusal) = desk.outage() {
        return refusal;
    }
    let undoes = headers.get("provost-undoes");
    let undoes = undoes.and_then(|key| key.to_str().ok()).unwrap_or_default();
    match desk.ledger.undo(&id, undoes) {
        true => StatusCode::NO_CONTENT.into_response(),
        false => refusal(StatusCode::NOT_FOUND, "nothing_there", "nothing to undo"),
    }
}

/// Handles the request of a probe: whether any work was done for an order.
async fn find(State(desk): State<Arc<ServiceState>>, Path(order): Path<String>) -> Response {
    match desk.ledger.find(&order) {
        Some(answer) => Json(answer).into_response(),
        None => {
            let message = format!("nothing was done for {order}");
            refusal(StatusCode::NOT_FOUND, "nothing_there", &message)
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Outage {
    down: bool,
}

/// Takes the service down, or brings it back.
async fn set_outage(
    State(desk): State<Arc<ServiceState>>,
    Json(outage): Json<Outage>,
) -> Json<Value> {
    desk.is_down.store(outage.down, Ordering::Relaxed);
    Json(json!({ "down": outage.down }))
}

/// Returns all work that was done here.
async fn list(State(desk): State<Arc<ServiceState>>) -> Json<Vec<Value>> {
    Json(desk.ledger.answers())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CardSettings {
    accepted: bool,
}

/// Accepts or declines a card. This is the payment service's own administration: an operator uses it to fix the cause
/// of a declined card.
async fn set_card(
    State(desk): State<Arc<ServiceState>>,
    Path(card): Path<String>,
    Json(settings): Json<CardSettings>,
) -> Json<Value> {
    let answer = json!({ "card": card, "accepted": settings.accepted });
    let mut declined = desk.declined_cards.lock();
    if settings.accepted {
        declined.remove(&card);
    } else {
        declined.insert(card);
    }
    Json(answer)
}

impl ServiceState {
    /// Returns a delay between 80 and 400 ms, so that a user can watch the orders; it is the same in each run.
    fn thinking_time(&self, order: &str) -> Duration {
        let seed = order.bytes().fold(self.remote as u64 + 1, |seed, byte| {
            seed.wrapping_mul(131).wrapping_add(u64::from(byte))
        });
        Duration::from_millis(80 + seed % 320)
    }

    fn next_trouble(&self, order: &str) -> Option<InjectedFault> {
        let mut troubles = self.troubles.lock();
        troubles.get_mut(order)?.pop_front()
    }

    fn declined_card(&self, wanted: &Value) -> Option<String> {
        let card = wanted.get("card")?.as_str()?;
        let declined = self.declined_cards.lock();
        declined.contains(card).then(|| card.to_owned())
    }

    fn outage(&self) -> Option<Response> {
        let down = self.is_down.load(Ordering::Relaxed);
        down.then(|| refusal(StatusCode::SERVICE_UNAVAILABLE, "down", "closed for repair"))
    }
}

/// Returns the result of the work: the requested item, with an id and the order.
fn effect(path: &str, order: &str, wanted: Value) -> Value {
    let prefix = match path {
        "/reservations" => "res",
        "/charges" => "ch",
        "/shipments" => "shp",
        other => other.trim_start_matches('/'),
    };
    let number = order.trim_start_matches("order-");
    let mut answer = json!({ "id": format!("{prefix}-{number}"), "for": order });
    if let (Some(answer), Value::Object(wanted)) = (answer.as_object_mut(), wanted) {
        answer.extend(wanted);
    }
    answer
}

#[cfg(test)]
mod tests;
