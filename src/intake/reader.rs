//! Reads a queue: connects, handles messages concurrently, and connects again.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::dead_letter::dead_letter;
use crate::{
    api::Problem,
    broker::{BrokerError, Brokers, Consumer, Delivery},
    chance,
    clock::{sleep, timeout},
    config::IntakeConfig,
    domain::values::{Backoff, MAIN_BROKER},
};

/// The pauses between attempts to read the queue.
const RECONNECT: Backoff = Backoff::doubling(Duration::from_millis(250), Duration::from_secs(10));
/// The pauses between attempts to handle one message.
pub const RETRY_BACKOFF: Backoff =
    Backoff::doubling(Duration::from_millis(100), Duration::from_secs(5));
/// The longest wait for the confirm of a dead letter, or of a refusal.
pub const CONFIRM_WITHIN: Duration = Duration::from_secs(15);
/// The longest time after the stop for messages that are being handled.
const GRACE: Duration = Duration::from_secs(2);

/// The handler of each message.
#[async_trait]
pub trait MessageHandler: Send + Sync {
    /// Handles a message, and returns when the broker need no longer keep it.
    async fn handle(&self, delivery: &dyn Delivery);
}

/// After this many messages of a usual size in a row, messages are read concurrently again.
const USUAL_AGAIN: u32 = 20;

/// A queue that is read.
pub struct QueueReader {
    pub brokers: Arc<Brokers>,
    pub config: IntakeConfig,
    /// The longest message, in bytes: a longer one will be refused. Up to `prefetch` times this many bytes are held
    /// in memory, and the last message that was read.
    pub max_message: usize,
}

/// The reason why a queue is no longer read.
enum ReadingEnd {
    Stopped,
    Failed(BrokerError),
    /// The queue is to be read with this prefetch.
    Prefetch(u16),
}

impl QueueReader {
    /// Reads the queue until `stop`. The broker delivers the messages again that are not acknowledged by then.
    pub async fn run(&self, handler: Arc<dyn MessageHandler>, stop: CancellationToken) {
        let (intake, queue) = (&self.config.name, &self.config.queue);
        let broker = self.broker_name();
        let part = format!("reading the queue {queue:?}");
        let mut failures = 0;
        let mut prefetch = self.config.prefetch;
        while !stop.is_cancelled() {
            let consumer = self.consume(prefetch);
            let error = match stop.run_until_cancelled(consumer).await {
                None => return,
                Some(Ok(messages)) => {
                    failures = 0;
                    self.brokers.health.works(broker, &part);
                    info!(%intake, queue, prefetch, "reading a queue");
                    match self.handle_all(messages, &handler, &stop, prefetch).await {
                        ReadingEnd::Failed(error) => error,
                        ReadingEnd::Stopped => return,
                        ReadingEnd::Prefetch(next) => {
                            prefetch = next;
                            continue;
                        }
                    }
                }
                Some(Err(error)) => error,
            };
            let reason = match error {
                BrokerError::Unreachable { reason, .. } => reason,
                error => error.to_string(),
            };
            self.brokers.health.failed(broker, &part, &reason);
            failures += 1;
            let pause = sleep(RECONNECT.full_jitter(failures, chance::random()));
            stop.run_until_cancelled(pause).await;
        }
    }

    /// Handles messages concurrently, as many as the broker sends; their commits share transactions. If messages are
    /// much larger than a submission may be, they are read one at a time for a while: nothing else makes the broker
    /// hold back the messages that it is about to send.
    async fn handle_all(
        &self,
        mut messages: Box<dyn Consumer>,
        handler: &Arc<dyn MessageHandler>,
        stop: &CancellationToken,
        prefetch: u16,
    ) -> ReadingEnd {
        let intake = &self.config.name;
        let most = usize::from(self.config.prefetch).saturating_mul(self.max_message);
        let is_one_at_a_time = prefetch < self.config.prefetch;
        let (mut bytes, mut usual) = (0_usize, 0_u32);
        // These are dropped with the consumer: the broker delivers their messages again.
        let mut handled = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                next = messages.next() => match next {
                    Ok(delivery) => {
                        let size = delivery.message().body.len();
                        bytes += size;
                        if bytes > most && prefetch > 1 {
                            info!(%intake, bytes, most, "messages are larger than submissions may be; reading one at a time for a while");
                            messages.cut_off();
                            return ReadingEnd::Prefetch(1);
                        }
                        let handler = handler.clone();
                        handled.spawn(async move {
                            handler.handle(&*delivery).await;
                            size
                        });
                    }
                    Err(error) => return ReadingEnd::Failed(error),
                },
                Some(ended) = handled.join_next() => match ended {
                    Ok(size) => {
                        bytes -= size;
                        usual = if size > self.max_message { 0 } else { usual + 1 };
                        if is_one_at_a_time && usual >= USUAL_AGAIN {
                            return ReadingEnd::Prefetch(self.config.prefetch);
                        }
                    }
                    Err(error) => {
                        warn!(%intake, %error, "the service panicked at a message; the broker delivers it again");
                        // Without an acknowledgement, the message would stay with this consumer.
                        return ReadingEnd::Failed(BrokerError::Refused("a message was not handled".to_owned()));
                    }
                },
            }
        }
        // A message that was stored and not acknowledged is delivered again, and only its key prevents a second task.
        // So the messages that are being handled get time to be acknowledged.
        let all = async { while handled.join_next().await.is_some() {} };
        let _ = timeout(GRACE, all).await;
        ReadingEnd::Stopped
    }

    /// Returns the name of the broker that has the queue.
    fn broker_name(&self) -> &str {
        match self.config.url {
            Some(_) => &self.config.name,
            None => MAIN_BROKER,
        }
    }

    async fn consume(&self, prefetch: u16) -> Result<Box<dyn Consumer>, BrokerError> {
        let broker = self.brokers.get(self.broker_name())?;
        broker.consume(&self.config.queue, prefetch).await
    }

    pub async fn acknowledge(&self, delivery: &dyn Delivery) {
        if let Err(error) = delivery.acknowledge().await {
            let intake = &self.config.name;
            debug!(%intake, %error, "could not acknowledge a message; the broker delivers it again");
        }
    }

    /// Waits before the next attempt to handle a message that cannot be handled now. The message stays
    /// unacknowledged, and the broker sends no more than `prefetch` such messages.
    pub async fn wait(&self, tries: u32, problem: &Problem) {
        if tries == 1 || tries.is_multiple_of(20) {
            let (intake, reason) = (&self.config.name, problem.detail());
            info!(%intake, tries, reason, "a message waits, because it cannot be stored now");
        }
        sleep(RETRY_BACKOFF.full_jitter(tries, chance::random())).await;
    }

    /// Publishes the message as a dead letter, and returns when the broker has confirmed it; the message can be
    /// acknowledged then.
    pub async fn make_dead_letter(&self, delivery: &dyn Delivery, problem: &Problem) {
        let intake = &self.config.name;
        let letter = dead_letter(&self.config, problem);
        let part = "publishing dead letters";
        let mut tries = 0_u32;
        while let Err(error) = delivery.forward(&letter.to, CONFIRM_WITHIN).await {
            tries += 1;
            if tries == 1 || tries.is_multiple_of(20) {
                let to = &letter.to.routing_key;
                warn!(%intake, to, tries, %error, "could not publish a dead letter; its message stays in the queue, and is tried again");
            }
            let health = &self.brokers.health;
            health.failed(self.broker_name(), part, &error.to_string());
            sleep(RETRY_BACKOFF.full_jitter(tries, chance::random())).await;
        }
        if tries > 0 {
            self.brokers.health.works(self.broker_name(), part);
        }
        let message = delivery.message();
        warn!(
            %intake, message_id = message.message_id, problem = letter.slug, detail = letter.detail,
            dead_letter = letter.to.routing_key, "refused a message; it is a dead letter now"
        );
    }
}
