//! SIGKILL at any moment while submissions come from a queue and a service is called over another one; the broker is
//! killed as well. Every message that the broker has confirmed is one task, and every task ends.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use jiff::Timestamp;
use lapin::{
    BasicProperties,
    message::Delivery,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    cluster,
    harness::{
        PATIENCE, Provost, Queued, Rabbit, RabbitClient, Remote, Setup, kill_count, step, until,
    },
    intake::{keys, reading, tasks},
};

const KILLS: u64 = 6;
/// At this kill the broker is killed too: alone, or together with Provost.
const BROKER_KILL: u64 = 2;
const LEAST_TASKS: usize = 60;
/// A reply that the broker has had for less than this time may be lost.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);
const PUBLISHERS: u64 = 4;
const SERVICES: u64 = 3;

fn submission(url: &str, key: &str) -> Value {
    json!({ "key": key, "steps": [
        { "name": "charge", "agent": "pay", "complete_within": "3s", "max_failures": 100,
          "request": { "body": { "order": "{{ task.key }}" } } },
        { "name": "ship", "url": url, "after": ["charge"], "complete_within": "1h", "request": { "path": "/ship" } },
    ] })
}

/// The id of a task and the number of an attempt of its first step.
type Attempt = (String, u64);

#[derive(Default)]
struct Ledger {
    /// The message ids of the requests of each task.
    requested: BTreeMap<String, BTreeSet<String>>,
    attempts: HashSet<Attempt>,
    /// The attempts with a reply, which the broker may have.
    sent: HashSet<Attempt>,
    /// The time when the broker confirmed the first reply.
    replied: HashMap<Attempt, Timestamp>,
}

/// The state that the clients of the broker share.
struct Clients {
    broker: String,
    service: String,
    seed: u64,
    ledger: Mutex<Ledger>,
    requests: watch::Sender<usize>,
    are_done: AtomicBool,
}

impl Clients {
    /// Connects, and retries until there is a broker.
    async fn connect(&self) -> RabbitClient {
        loop {
            match RabbitClient::connect(&self.broker).await {
                Some(client) => return client,
                None => sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Publishes submissions one after another, each until it is confirmed. Returns their keys.
    async fn publish(
        self: Arc<Self>,
        number: u64,
        count: watch::Sender<usize>,
        enough: watch::Receiver<bool>,
    ) -> Vec<String> {
        let mut random = StdRng::seed_from_u64(self.seed.wrapping_add(number));
        let mut client = self.connect().await;
        let mut keys = Vec::new();
        while !*enough.borrow() || *count.borrow() < LEAST_TASKS {
            let key = format!("order-{number}-{}", keys.len());
            let body = submission(&self.service, &key).to_string();
            loop {
                let id = BasicProperties::default().with_message_id(key.as_str().into());
                match client.try_publish("orders", body.as_bytes(), id).await {
                    // The message is published again, as by a client that lost its connection before the confirm.
                    true if random.random_ratio(1, 10) => {}
                    true => break,
                    false => client = self.connect().await,
                }
            }
            keys.push(key);
            count.send_modify(|count| *count += 1);
            sleep(Duration::from_millis(random.random_range(0..250))).await;
        }
        keys
    }

    /// Runs a service that replies to most requests, and connects again whenever its connection breaks.
    async fn serve(self: Arc<Self>, number: u64) {
        let mut random = StdRng::seed_from_u64(self.seed.wrapping_mul(31).wrapping_add(number));
        while !self.are_done.load(Ordering::Relaxed) {
            let client = self.connect().await;
            let _ = self.consume(&client, &mut random).await;
        }
    }

    async fn consume(&self, client: &RabbitClient, random: &mut StdRng) -> lapin::Result<()> {
        let channel = &client.channel;
        channel.basic_qos(10, BasicQosOptions::default()).await?;
        let consumer = channel.basic_consume(
            "charges".into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let mut consumer = consumer.await?;
        while !self.are_done.load(Ordering::Relaxed) {
            let next = timeout(Duration::from_millis(200), consumer.next()).await;
            match next {
                Ok(Some(delivery)) => self.reply(client, delivery?, random).await?,
                Ok(None) => break,
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Sends the reply after a while, and some replies twice. A request that is acknowledged without a reply is lost.
    async fn reply(
        &self,
        client: &RabbitClient,
        delivery: Delivery,
        random: &mut StdRng,
    ) -> lapin::Result<()> {
        let request = Queued::new(delivery.data, delivery.properties);
        let task = request.headers["provost-task"].clone();
        let attempt: u64 = request.headers["provost-attempt"].parse().unwrap();
        {
            let mut ledger = self.ledger.lock().unwrap();
            let of_task = ledger.requested.entry(task.clone()).or_default();
            of_task.insert(request.message_id());
            ledger.attempts.insert((task.clone(), attempt));
        }
        self.requests.send_modify(|requests| *requests += 1);
        sleep(Duration::from_millis(random.random_range(0..60))).await;
        let times = match random.random_range(0..30) {
            0 => 0,
            1..5 => 2,
            _ => 1,
        };
        let to = request.properties.reply_to().as_ref().unwrap().to_string();
        let body = json!({ "output": { "attempt": attempt } }).to_string();
        for _ in 0..times {
            let token = request.correlation_id();
            let properties = BasicProperties::default().with_correlation_id(token.as_str().into());
            let sent = (task.clone(), attempt);
            self.ledger.lock().unwrap().sent.insert(sent);
            let confirmed = client.try_publish(&to, body.as_bytes(), properties).await;
            if !confirmed {
                return Ok(());
            }
            let mut ledger = self.ledger.lock().unwrap();
            let replied = ledger.replied.entry((task.clone(), attempt));
            replied.or_insert_with(Timestamp::now);
        }
        delivery.acker.ack(BasicAckOptions::default()).await?;
        Ok(())
    }
}

/// Returns the time of each kill, and the time when everything was ready again.
async fn killer(
    provost: &mut Provost,
    rabbit: &mut Rabbit,
    clients: &Clients,
    random: &mut StdRng,
) -> Vec<(Timestamp, Timestamp)> {
    let mut kills = Vec::new();
    for kill in 0..kill_count(KILLS) {
        let mut requests = clients.requests.subscribe();
        let count = *requests.borrow() + random.random_range(1..25);
        let requested = requests.wait_for(|requests| *requests >= count);
        let requested = timeout(PATIENCE, requested).await.is_ok();
        assert!(requested, "nothing is requested");
        sleep(Duration::from_micros(random.random_range(0..30_000))).await;
        println!("kill {kill}: {} requests", *requests.borrow());
        let killed_at = Timestamp::now();
        let is_of_broker = kill == BROKER_KILL;
        if is_of_broker {
            rabbit.kill().await;
        }
        if !is_of_broker || random.random_ratio(1, 2) {
            provost.kill().await;
            provost.restart().await;
        }
        if is_of_broker {
            rabbit.start_again().await;
        }
        kills.push((killed_at, Timestamp::now()));
    }
    kills
}

async fn no_message_is_lost_or_doubled(setup: Setup) {
    let seed = match std::env::var("PROVOST_TEST_SEED") {
        Ok(seed) => seed.parse().expect("PROVOST_TEST_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("PROVOST_TEST_SEED={seed} replays the kill points");
    let mut rabbit = Rabbit::start().await;
    let client = rabbit.client().await;
    for queue in ["orders", "charges"] {
        client.declare(queue).await;
    }
    let remote = Remote::quick().await;
    // The addresses for later replies stay valid, because the port stays the same.
    let setup = setup.listen(&format!("127.0.0.1:{}", cluster::free_port()));
    let setup = reading(setup, &rabbit.url()).set("INSTANCE_ID", "node-1");
    let mut provost = setup.start().await;
    let agent = json!({
        "endpoints": [{ "url": "amqp://broker/charges" }],
        "retry": { "initial": "10ms", "max": "100ms" },
    });
    provost.put("/v1/agents/pay", &agent).await.expect(201);
    let clients = Arc::new(Clients {
        broker: rabbit.url(),
        service: remote.url(),
        seed,
        ledger: Mutex::default(),
        requests: watch::Sender::new(0),
        are_done: AtomicBool::new(false),
    });
    let mut services = JoinSet::new();
    for number in 0..SERVICES {
        services.spawn(Arc::clone(&clients).serve(number));
    }
    let (enough, is_enough) = watch::channel(false);
    let count = watch::Sender::new(0);
    let mut publishers = JoinSet::new();
    for number in 0..PUBLISHERS {
        let publisher = Arc::clone(&clients).publish(number, count.clone(), is_enough.clone());
        publishers.spawn(publisher);
    }
    let mut random = StdRng::seed_from_u64(seed);
    let kills = killer(&mut provost, &mut rabbit, &clients, &mut random).await;
    enough.send_replace(true);
    let mut confirmed: Vec<String> = publishers.join_all().await.into_iter().flatten().collect();
    confirmed.sort();
    println!("{} submissions were confirmed", confirmed.len());

    let client = rabbit.client().await;
    until(Some(0), || client.depth("orders")).await;
    until(confirmed.len(), || async { keys(&provost).await.len() }).await;
    assert_eq!(keys(&provost).await, confirmed, "each is one task");
    let mut ended = BTreeMap::new();
    for task in tasks(&provost).await {
        let id = task["id"].as_str().unwrap();
        let task = provost.settled(id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        ended.insert(id.to_owned(), (task, provost.history(id).await));
    }
    until(Some(0), || client.depth("charges")).await;
    clients.are_done.store(true, Ordering::Relaxed);
    services.join_all().await;
    assert_eq!(client.depth("orders.dead").await, None, "none was refused");
    judge(&ended, &clients.ledger.lock().unwrap(), &kills);
    let shipped = remote.ledger();
    let shipped: BTreeSet<&str> = shipped.iter().map(|seen| seen.key()).collect();
    assert_eq!(shipped.len(), ended.len(), "one key for each task");
}

fn judge(
    tasks: &BTreeMap<String, (Value, Vec<Value>)>,
    ledger: &Ledger,
    kills: &[(Timestamp, Timestamp)],
) {
    let (mut survived, mut again) = (0, 0);
    for (id, (task, history)) in tasks {
        let of_step = history.iter().filter(|entry| entry["step"] == "charge");
        let of_step: Vec<&Value> = of_step.collect();
        let claims = of_step.iter().filter(|e| e["type"] == "step.claimed");
        let attempts = claims.count() as u64;
        let is_known = |attempt: &Attempt| attempt.0 != *id || attempt.1 <= attempts;
        assert!(ledger.attempts.iter().all(is_known), "{history:#?}");
        let done: Vec<_> = of_step
            .iter()
            .filter(|entry| entry["type"] == "step.processed")
            .collect();
        assert_eq!(done.len(), 1, "{history:#?}");
        assert_eq!(done[0]["by"], "service", "{history:#?}");
        assert_eq!(done[0]["attempt"], attempts, "{history:#?}");
        assert_eq!(step(task, "charge")["output"]["attempt"], attempts);
        assert_eq!(ledger.requested[id].len(), 1, "one key: {history:#?}");
        let last = (id.clone(), attempts);
        assert!(ledger.sent.contains(&last), "nobody replied: {history:#?}");
        again += usize::from(attempts > 1);
        if let Some(replied) = ledger.replied.get(&last) {
            let met = |(from, to): &(Timestamp, Timestamp)| replied > from && replied < to;
            survived += usize::from(kills.iter().any(met));
        }
        for expired in of_step.iter().filter(|e| e["type"] == "step.expired") {
            let of = (id.clone(), expired["attempt"].as_u64().unwrap());
            let Some(replied) = ledger.replied.get(&of) else {
                continue;
            };
            let at: Timestamp = expired["at"].as_str().unwrap().parse().unwrap();
            // The waits between tries to connect double: the last one is about as long as all before it.
            let is_met = |(from, to): &(Timestamp, Timestamp)| {
                let last_wait = to.duration_since(*from);
                *from <= at && *to + last_wait + TAKEN_WITHIN * 3 >= *replied
            };
            let is_lost = at > *replied + TAKEN_WITHIN && !kills.iter().any(is_met);
            assert!(!is_lost, "its reply was there at {replied}: {history:#?}");
        }
    }
    println!("{survived} replies came while Provost was dead, {again} steps took several attempts");
    assert!(survived > 0, "no kill met a reply");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_by_kills_at_any_moment_on_sqlite() {
    no_message_is_lost_or_doubled(Provost::setup()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_by_kills_at_any_moment_on_postgres() {
    let url = tokio::task::spawn_blocking(cluster::new_database).await;
    let setup = Provost::setup().database_url(&url.unwrap());
    no_message_is_lost_or_doubled(setup).await;
}
