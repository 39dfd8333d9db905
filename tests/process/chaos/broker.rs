//! The use of a message broker in the operated chaos: services that get their requests from a queue, and whose
//! connections break now and then before a request is acknowledged; and connections for publishing that are opened
//! again whenever they break.

use std::{collections::HashMap, time::Duration};

use futures::StreamExt;
use lapin::{
    BasicProperties, Consumer,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::Value;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout},
};

use super::{receiver::Receiver, services::Services};
use crate::harness::{Queued, RabbitClient, Seen};

/// The agent whose steps go to a queue, and that queue.
pub const AGENT: &str = "queued";
pub const REQUESTS: &str = "requests";
/// The queue of the intake.
pub const ORDERS: &str = "orders";
/// The queue of the receiver.
pub const TOLD: &str = "told";
/// The property that names the queue for the reply of a service.
pub const REPLY_QUEUE: &str = "reply-queue";

/// The properties of a message that is published.
#[derive(Clone, Default)]
pub struct Properties {
    pub message_id: Option<String>,
    pub correlation_id: Option<String>,
}

impl Properties {
    fn to_amqp(&self) -> BasicProperties {
        let mut properties = BasicProperties::default();
        if let Some(id) = &self.message_id {
            properties = properties.with_message_id(id.as_str().into());
        }
        if let Some(id) = &self.correlation_id {
            properties = properties.with_correlation_id(id.as_str().into());
        }
        properties
    }
}

const CONSUMERS: u64 = 3;
const PREFETCH: u16 = 8;
/// The time to wait for a confirm, on a busy machine.
const CONFIRM_WITHIN: Duration = Duration::from_secs(10);
const CONNECT_AGAIN: Duration = Duration::from_millis(50);

/// A connection for publishing.
pub struct Publisher {
    url: String,
    client: Mutex<Option<RabbitClient>>,
}

impl Publisher {
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            client: Mutex::default(),
        }
    }

    /// Publishes a message until the broker has confirmed it. The message may be in the queue several times.
    pub async fn publish(&self, queue: &str, body: &Value, properties: Properties) {
        let mut client = self.client.lock().await;
        let (body, properties) = (body.to_string(), properties.to_amqp());
        loop {
            if let Some(client) = &*client {
                let sent = client.try_publish(queue, body.as_bytes(), properties.clone());
                if let Ok(true) = timeout(CONFIRM_WITHIN, sent).await {
                    return;
                }
                sleep(CONNECT_AGAIN).await;
            }
            *client = Some(connect(&self.url).await);
        }
    }
}

/// Connects, and retries until there is a broker.
async fn connect(url: &str) -> RabbitClient {
    loop {
        match RabbitClient::connect(url).await {
            Some(client) => return client,
            None => sleep(CONNECT_AGAIN).await,
        }
    }
}

/// Reads a queue until the test is over. A message for which `take` returns true is acknowledged; otherwise the
/// connection breaks, and the broker delivers the message again.
async fn read(url: String, queue: &str, prefetch: u16, mut take: impl FnMut(Queued) -> bool) {
    loop {
        let client = connect(&url).await;
        if let Ok(mut consumer) = consume(&client, queue, prefetch).await {
            while let Some(Ok(delivery)) = consumer.next().await {
                let acker = delivery.acker;
                let is_taken = take(Queued::new(delivery.data, delivery.properties));
                if !is_taken || acker.ack(BasicAckOptions::default()).await.is_err() {
                    break;
                }
            }
        }
        let _ = client.connection.close(200, "".into()).await;
        sleep(CONNECT_AGAIN).await;
    }
}

async fn consume(client: &RabbitClient, queue: &str, prefetch: u16) -> lapin::Result<Consumer> {
    let channel = &client.channel;
    channel
        .basic_qos(prefetch, BasicQosOptions::default())
        .await?;
    let options = BasicConsumeOptions::default();
    let consumer = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
    consumer.await
}

/// Has the receiver also read its queue, one message after another.
pub fn receive(seed: u64, url: &str, receiver: &Receiver) {
    let receiver = receiver.clone();
    let mut random = StdRng::seed_from_u64(seed);
    let take = move |message: Queued| {
        let is_taken = receiver.is_well() || !random.random_ratio(1, 20);
        receiver.take(&message.message_id(), &message.body, &message.raw, is_taken);
        is_taken
    };
    tokio::spawn(read(url.to_owned(), TOLD, 1, take));
}

/// Starts services that work until the test is over.
pub fn serve(seed: u64, url: &str, services: &Services) {
    for number in 0..CONSUMERS {
        let mut random = StdRng::seed_from_u64(seed ^ (number << 40));
        let (url, services) = (url.to_owned(), services.clone());
        tokio::spawn(read(url, REQUESTS, PREFETCH, move |request| {
            services.requested(&seen(&request));
            !random.random_ratio(1, 20)
        }));
    }
}

fn seen(request: &Queued) -> Seen {
    let mut headers: HashMap<_, _> = request.headers.clone().into_iter().collect();
    let reply_to = request.properties.reply_to().as_ref().unwrap();
    let token = request.correlation_id();
    for (name, value) in [
        ("idempotency-key", request.message_id()),
        (REPLY_QUEUE, reply_to.to_string()),
        ("provost-reply-to", format!("http://any/v1/replies/{token}")),
    ] {
        headers.insert(name.to_owned(), value);
    }
    Seen {
        at: Instant::now().into_std(),
        method: "POST".to_owned(),
        path: request.headers["provost-path"].clone(),
        headers,
        body: request.body.clone(),
        raw: request.raw.clone(),
    }
}
