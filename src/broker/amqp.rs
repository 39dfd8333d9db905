//! AMQP 0-9-1, as RabbitMQ and others speak it. Messages are published on one connection, which is kept, and each
//! queue is read on a connection of its own: a broker that blocks publishers stops reading from their connections, and
//! queue is read on a connection of its own: a broker that blocks publishers stops reading from their connections, and
//! acknowledgements must not wait for that to end.
//! Each message in flight has a channel of its own. When the broker refuses something, it closes the channel, with
//! everything else that is in flight on it. With one channel each, a message that cannot be published fails alone.

use std::{borrow::Cow, collections::HashSet, sync::Arc, time::Duration};

use async_rs::{Runtime, Tokio};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use lapin::{
    AsyncTcpStream, BasicProperties, Channel, Confirmation, Connection, ConnectionProperties,
    ErrorKind, Event,
    message::Delivery as LapinDelivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
        ConfirmSelectOptions, QueueDeclareOptions,
    },
    protocol::{AMQPErrorKind, AMQPSoftError},
    types::{AMQPValue, FieldTable, ShortString},
    uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo},
};
use metrics::counter;
use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::watch};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{
    Broker, BrokerError, BrokerHealth, Consumer, Delivery, OutgoingMessage, ReceivedMessage,
    frames::UNREADABLE,
    stream::{BrokerRuntime, BrokerStream},
};
use crate::{
    chance,
    clock::{sleep, timeout},
    config::BrokerUrl,
    domain::values::{Backoff, DIRECT_REPLY},
};

const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(250), Duration::from_secs(10));
/// The time limit of the handshake after the connection, and of each request to the broker that is not a message.
const RESPONSE_WITHIN: Duration = Duration::from_secs(10);
/// In seconds: a connection without any sign of life is given up after twice that time.
const HEARTBEAT: u16 = 15;
/// The interval at which the state of a connection is read if no event came from it.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// The longest time that the broker may take to close a connection or a channel.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// The most idle channels that are kept for the next messages.
const MOST_IDLE: usize = 64;
/// The most of a message's own headers that a forwarded one keeps, in bytes: all of them must fit into one frame.
const LONGEST_HEADERS: usize = 48 << 10;

#[derive(Debug)]
pub struct AmqpSettings {
    pub name: String,
    pub url: BrokerUrl,
    /// The name of the connection that the broker shows.
    pub client: String,
    pub connect_timeout: Duration,
}

#[derive(Clone)]
pub struct Amqp(Arc<AmqpConnections>);

struct AmqpConnections {
    settings: AmqpSettings,
    health: BrokerHealth,
    link: watch::Sender<PublisherState>,
    /// Idle channels, with confirms.
    channels: Mutex<Vec<Channel>>,
}

/// The connection for publishing.
#[derive(Clone)]
enum PublisherState {
    Connecting,
    Up(Arc<OpenConnection>),
    Down(String),
}

/// A connection that ends, with its thread, some time after it is dropped.
struct OpenConnection {
    connection: Connection,
    end: CancellationToken,
    /// The queues that messages named for replies, and that exist.
    reply_queues: Mutex<HashSet<String>>,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let end = self.end.clone();
        match Handle::try_current() {
            // The library first sends the close to the broker.
            Ok(runtime) => drop(runtime.spawn(async move {
                sleep(CLOSE_WITHIN).await;
                end.cancel();
            })),
            Err(_) => end.cancel(),
        }
    }
}

impl OpenConnection {
    /// Returns when the connection is lost, with the reason.
    async fn lost(&self) -> String {
        let mut events = self.connection.events_listener();
        let mut reason = None;
        loop {
            if !self.connection.status().connected() {
                return reason.unwrap_or_else(|| "the connection was closed".to_owned());
            }
            if let Ok(Some(Event::Error(error))) = timeout(CHECK_EVERY, events.next()).await {
                reason = Some(describe(&error));
            }
        }
    }
}

impl Amqp {
    pub fn new(settings: AmqpSettings, health: BrokerHealth) -> Self {
        Self(Arc::new(AmqpConnections {
            settings,
            health,
            link: watch::Sender::new(PublisherState::Connecting),
            channels: Mutex::default(),
        }))
    }
}

impl AmqpConnections {
    fn unreachable(&self, reason: String) -> BrokerError {
        BrokerError::Unreachable {
            broker: self.settings.name.clone(),
            reason,
        }
    }

    async fn connect(&self, part: &str) -> Result<OpenConnection, BrokerError> {
        let AmqpSettings {
            url,
            client,
            connect_timeout,
            ..
        } = &self.settings;
        let end = CancellationToken::new();
        // A connection attempt that is given up leaves no thread.
        let given_up = end.clone().drop_guard();
        let open = {
            let (url, limit, end) = (url.clone(), *connect_timeout, end.clone());
            async move |_: AMQPUri, _: Runtime<BrokerRuntime>| {
                let stream = BrokerStream::connect(&url, limit, end.clone()).await;
                Ok(AsyncTcpStream::Plain(stream?))
            }
        };
        let name = format!("{client} {part}");
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let runtime = Runtime::new(BrokerRuntime(Tokio::current()));
        let opened = Connection::connector(uri(url), runtime, open, properties);
        let limit = *connect_timeout + RESPONSE_WITHIN;
        let connection = match timeout(limit, opened).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return Err(self.unreachable(describe(&error))),
            Err(_) => return Err(self.unreachable(format!("no answer within {limit:?}"))),
        };
        given_up.disarm();
        Ok(OpenConnection {
            connection,
            end,
            reply_queues: Mutex::default(),
        })
    }

    /// Returns the connection for publishing, if there is one now. At the start it waits for the first connection
    /// attempt.
    async fn link(&self) -> Result<Arc<OpenConnection>, BrokerError> {
        let mut link = self.link.subscribe();
        let known = link.wait_for(|link| !matches!(link, PublisherState::Connecting));
        let known = match timeout(RESPONSE_WITHIN, known).await {
            Ok(Ok(known)) => known.clone(),
            _ => PublisherState::Connecting,
        };
        match known {
            PublisherState::Up(connected) if connected.connection.status().blocked() => {
                Err(BrokerError::Blocked {
                    broker: self.settings.name.clone(),
                })
            }
            PublisherState::Up(connected) => Ok(connected),
            PublisherState::Down(reason) => Err(self.unreachable(reason)),
            PublisherState::Connecting => Err(self.unreachable("not connected yet".to_owned())),
        }
    }

    async fn channel(&self, connected: &OpenConnection) -> Result<Channel, BrokerError> {
        let opened = async {
            let channel = connected.connection.create_channel().await?;
            let confirms = ConfirmSelectOptions::default();
            channel.confirm_select(confirms).await?;
            Ok(channel)
        };
        self.with_response_timeout(opened).await
    }

    /// Returns the broker's response to a request that is not a message.
    async fn with_response_timeout<T>(
        &self,
        request: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, BrokerError> {
        match timeout(RESPONSE_WITHIN, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.fault(&error)),
            Err(_) => Err(self.unreachable(format!("no answer within {RESPONSE_WITHIN:?}"))),
        }
    }

    fn fault(&self, error: &lapin::Error) -> BrokerError {
        match error.is_amqp_soft_error() {
            true => BrokerError::Refused(describe(error)),
            false => self.unreachable(describe(error)),
        }
    }

    async fn publish(
        &self,
        to: &OutgoingMessage,
        properties: BasicProperties,
        body: &[u8],
        within: Duration,
    ) -> Result<(), BrokerError> {
        if let Some(queue) = to.reply_to.as_ref().filter(|_| to.declare_reply_to) {
            self.declare_once(queue).await?;
        }
        let attempt = self.publish_once(to, properties.clone(), body);
        let mut published = timeout(within, attempt).await;
        if let Ok(Err(BrokerError::Unroutable { .. })) = published
            && to.declare
            && to.exchange.is_empty()
        {
            let connected = self.link().await?;
            self.declare(&connected, &to.routing_key).await?;
            let again = self.publish_once(to, properties, body);
            published = timeout(within, again).await;
        }
        let broker = self.settings.name.clone();
        let published = published.unwrap_or(Err(BrokerError::Unconfirmed { broker, within }));
        let outcome = match &published {
            Ok(()) => "confirmed",
            Err(BrokerError::Unroutable { .. }) => "unroutable",
            Err(BrokerError::Rejected { .. } | BrokerError::Refused(_)) => "rejected",
            Err(_) => "unconfirmed",
        };
        let broker = self.settings.name.clone();
        counter!("provost_broker_published_total", "broker" => broker, "outcome" => outcome)
            .increment(1);
        published
    }

    async fn publish_once(
        &self,
        to: &OutgoingMessage,
        properties: BasicProperties,
        body: &[u8],
    ) -> Result<(), BrokerError> {
        let connected = self.link().await?;
        let idle = self.channels.lock().pop();
        let channel = match idle {
            Some(channel) if channel.status().connected() => channel,
            _ => self.channel(&connected).await?,
        };
        let options = BasicPublishOptions {
            // RabbitMQ returns every mandatory message for a direct reply as unroutable, also those that it delivers.
            mandatory: !to.routing_key.starts_with(DIRECT_REPLY),
            ..BasicPublishOptions::default()
        };
        let (exchange, key) = (short(&to.exchange), short(&to.routing_key));
        let confirmed = async {
            let published = channel.basic_publish(exchange, key, options, body, properties);
            published.await?.await
        };
        let confirmation = confirmed.await.map_err(|error| match self.fault(&error) {
            BrokerError::Unreachable { broker, reason } => {
                BrokerError::Interrupted { broker, reason }
            }
            fault => fault,
        })?;
        let mut idle = self.channels.lock();
        if idle.len() < MOST_IDLE {
            idle.push(channel);
        }
        drop(idle);
        let queue = to.routing_key.clone();
        match confirmation {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(returned)) => Err(BrokerError::Unroutable {
                queue,
                reason: returned.reply_text.to_string(),
            }),
            Confirmation::Nack(_) | Confirmation::NotRequested => {
                Err(BrokerError::Rejected { queue })
            }
        }
    }

    /// Calls [`Self::declare`] once for each connection and queue.
    async fn declare_once(&self, queue: &str) -> Result<(), BrokerError> {
        let connected = self.link().await?;
        if connected.reply_queues.lock().contains(queue) {
            return Ok(());
        }
        self.declare(&connected, queue).await?;
        connected.reply_queues.lock().insert(queue.to_owned());
        Ok(())
    }

    /// Declares a durable queue if it does not exist. An existing queue is not changed.
    async fn declare(&self, connected: &OpenConnection, queue: &str) -> Result<(), BrokerError> {
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let declare = async |options| {
            let channel = self
                .with_response_timeout(connected.connection.create_channel())
                .await?;
            let declared = channel.queue_declare(short(queue), options, FieldTable::default());
            let declared = timeout(RESPONSE_WITHIN, declared).await;
            let ended = channel.close(200, "done".into());
            let result = match declared {
                Ok(Ok(_)) => Ok(true),
                Ok(Err(error)) if is_not_found(&error) => Ok(false),
                Ok(Err(error)) => Err(self.fault(&error)),
                Err(_) => Err(self.unreachable(format!("no answer within {RESPONSE_WITHIN:?}"))),
            };
            // A refusal has closed the channel already.
            let _ = timeout(CLOSE_WITHIN, ended).await;
            result
        };
        if declare(passive).await? {
            return Ok(());
        }
        declare(durable).await?;
        let broker = &self.settings.name;
        info!(%broker, queue, "declared a durable queue that did not exist");
        Ok(())
    }
}

#[async_trait]
impl Broker for Amqp {
    async fn publish(
        &self,
        message: &OutgoingMessage,
        within: Duration,
    ) -> Result<(), BrokerError> {
        let mut properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_app_id("provost".into())
            .with_content_type(message.content_type.into())
            .with_message_id(short(&message.message_id))
            .with_type(short(&message.kind));
        if let Some(id) = &message.correlation_id {
            properties = properties.with_correlation_id(short(id));
        }
        if let Some(queue) = &message.reply_to {
            properties = properties.with_reply_to(short(queue));
        }
        if let Some(after) = message.expires_in {
            let millis = after.as_millis().min(u128::from(u32::MAX));
            properties = properties.with_expiration(short(&millis.to_string()));
        }
        if !message.headers.is_empty() {
            let mut headers = FieldTable::default();
            add(&mut headers, &message.headers);
            properties = properties.with_headers(headers);
        }
        self.0
            .publish(message, properties, &message.body, within)
            .await
    }

    async fn consume(&self, queue: &str, prefetch: u16) -> Result<Box<dyn Consumer>, BrokerError> {
        let connected = self.0.connect(queue).await?;
        self.0.declare(&connected, queue).await?;
        let opened = async {
            let channel = connected.connection.create_channel().await?;
            let qos = BasicQosOptions::default();
            channel.basic_qos(prefetch, qos).await?;
            let (tag, arguments) = (ShortString::default(), FieldTable::default());
            let options = BasicConsumeOptions::default();
            channel
                .basic_consume(short(queue), tag, options, arguments)
                .await
        };
        let messages = self.0.with_response_timeout(opened).await?;
        Ok(Box::new(AmqpConsumer {
            broker: self.0.clone(),
            messages,
            queue: queue.to_owned(),
            connected,
        }))
    }

    async fn keep(&self) {
        let this = &self.0;
        let name = &this.settings.name;
        let mut failures = 0;
        loop {
            let reason = match this.connect("publish").await {
                Ok(connected) => {
                    failures = 0;
                    info!(broker = %name, url = %this.settings.url, "connected to a broker");
                    this.health.works(name, PUBLISHING);
                    let connected = Arc::new(connected);
                    this.link
                        .send_replace(PublisherState::Up(connected.clone()));
                    connected.lost().await
                }
                Err(BrokerError::Unreachable { reason, .. }) => reason,
                Err(error) => error.to_string(),
            };
            this.channels.lock().clear();
            this.health.failed(name, PUBLISHING, &reason);
            this.link.send_replace(PublisherState::Down(reason));
            failures += 1;
            sleep(BACKOFF.full_jitter(failures, chance::random())).await;
        }
    }
}

/// The name of the connection for publishing in [`BrokerHealth`].
const PUBLISHING: &str = "publishing";
const PERSISTENT: u8 = 2;

struct AmqpConsumer {
    broker: Arc<AmqpConnections>,
    messages: lapin::Consumer,
    queue: String,
    connected: OpenConnection,
}

#[async_trait]
impl Consumer for AmqpConsumer {
    async fn next(&mut self) -> Result<Box<dyn Delivery>, BrokerError> {
        match self.messages.next().await {
            Some(Ok(delivery)) => Ok(Box::new(AmqpDelivery::new(delivery, self.broker.clone()))),
            Some(Err(error)) => Err(self.broker.fault(&error)),
            None => Err(BrokerError::Refused(format!(
                "it cancelled the consumer of {:?}; the queue may have been deleted",
                self.queue
            ))),
        }
    }

    fn cut_off(self: Box<Self>) {
        self.connected.end.cancel();
    }
}

struct AmqpDelivery {
    broker: Arc<AmqpConnections>,
    delivery: LapinDelivery,
    message: ReceivedMessage,
}

impl AmqpDelivery {
    fn new(mut delivery: LapinDelivery, broker: Arc<AmqpConnections>) -> Self {
        let body = Bytes::from(std::mem::take(&mut delivery.data));
        let properties = &delivery.properties;
        let text = |value: &Option<ShortString>| value.as_ref().map(ToString::to_string);
        let headers = properties.headers().iter().flat_map(FieldTable::inner);
        let headers = headers.filter_map(|(name, value)| {
            let AMQPValue::LongString(value) = value else {
                return None;
            };
            let value = String::from_utf8(value.as_bytes().to_vec()).ok()?;
            Some((name.to_string(), value))
        });
        let mut message = ReceivedMessage {
            body,
            message_id: text(properties.message_id()),
            correlation_id: text(properties.correlation_id()),
            reply_to: text(properties.reply_to()),
            content_type: text(properties.content_type()),
            content_encoding: text(properties.content_encoding()),
            kind: text(properties.kind()),
            headers: headers.collect(),
            unreadable: None,
        };
        message.unreadable = message.headers.remove(UNREADABLE);
        Self {
            broker,
            delivery,
            message,
        }
    }
}

#[async_trait]
impl Delivery for AmqpDelivery {
    fn message(&self) -> &ReceivedMessage {
        &self.message
    }

    async fn acknowledge(&self) -> Result<(), BrokerError> {
        let acknowledged = self.delivery.ack(BasicAckOptions::default());
        self.broker
            .with_response_timeout(acknowledged)
            .await
            .map(drop)
    }

    async fn forward(&self, to: &OutgoingMessage, within: Duration) -> Result<(), BrokerError> {
        let own = &self.delivery.properties;
        let mut headers = own.headers().clone().unwrap_or_default();
        let size = format!("{headers:?}").len();
        let keeps = size <= LONGEST_HEADERS;
        if !keeps {
            headers = FieldTable::default();
        }
        // The broker would send copies to the queues that these headers name.
        let copies: Vec<_> = headers.inner().keys().cloned().collect();
        let copies = copies
            .into_iter()
            .filter(|name| ["CC", "BCC"].contains(&name.as_str()));
        let mut headers = copies.fold(headers, without);
        add(&mut headers, &to.headers);
        // The expiration is left out, because it would delete the message; so is the user, which the broker compares
        // with ours.
        let mut properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_headers(headers);
        if let Some(value) = own.content_type().clone() {
            properties = properties.with_content_type(value);
        }
        if let Some(value) = own.content_encoding().clone() {
            properties = properties.with_content_encoding(value);
        }
        if let Some(value) = own.correlation_id().clone() {
            properties = properties.with_correlation_id(value);
        }
        if let Some(value) = own.reply_to().clone() {
            properties = properties.with_reply_to(value);
        }
        if let Some(value) = own.message_id().clone() {
            properties = properties.with_message_id(value);
        }
        if let Some(value) = *own.timestamp() {
            properties = properties.with_timestamp(value);
        }
        if let Some(value) = own.kind().clone() {
            properties = properties.with_type(value);
        }
        if let Some(value) = own.app_id().clone() {
            properties = properties.with_app_id(value);
        }
        let body = &self.message.body;
        self.broker.publish(to, properties, body, within).await
    }
}

fn without(headers: FieldTable, name: ShortString) -> FieldTable {
    let mut kept = FieldTable::default();
    for (known, value) in headers.inner() {
        if *known != name {
            kept.insert(known.clone(), value.clone());
        }
    }
    kept
}

fn add(headers: &mut FieldTable, new: &[(Cow<'static, str>, String)]) {
    for (name, value) in new {
        let value = AMQPValue::LongString(value.as_str().into());
        headers.insert(short(name), value);
    }
}

/// Truncates a text to 255 bytes: AMQP has one byte for its length. Text that can be longer was checked where it was
/// parsed.
fn short(text: &str) -> ShortString {
    let end = text.floor_char_boundary(255);
    text[..end].into()
}

fn uri(url: &BrokerUrl) -> AMQPUri {
    AMQPUri {
        // TLS is done by `BrokerStream`.
        scheme: AMQPScheme::AMQP,
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo {
                username: url.user.clone(),
                password: url.password.clone(),
            },
            host: url.host.clone(),
            port: url.port,
        },
        vhost: url.vhost.clone(),
        query: AMQPQueryString {
            heartbeat: Some(HEARTBEAT),
            ..AMQPQueryString::default()
        },
    }
}

fn is_not_found(error: &lapin::Error) -> bool {
    let ErrorKind::ProtocolError(error) = error.kind() else {
        return false;
    };
    matches!(error.kind(), AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND))
}

fn describe(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        ErrorKind::IOError(error) => error.to_string(),
        ErrorKind::MissingHeartbeatError => "it sent no heartbeat in time".to_owned(),
        _ => error.to_string(),
    }
}
