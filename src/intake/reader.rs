//! Reads a queue: connects, handles messages side by side, and connects again.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::dead_letter::dead_letter;
use crate::{
    api::Problem,
    broker::{BrokerError, Brokers, Consumer, Delivery},
    config::IntakeConfig,
    domain::{Backoff, MAIN_BROKER},
};

/// Between two attempts to read the queue.
const RECONNECT: Backoff = Backoff::doubling(Duration::from_millis(250), Duration::from_secs(10));
/// Between two attempts to handle one message.
pub const AGAIN: Backoff = Backoff::doubling(Duration::from_millis(100), Duration::from_secs(5));
/// For the confirm of a dead letter, or of a refusal.
pub const CONFIRM_WITHIN: Duration = Duration::from_secs(15);
/// How long messages that are being handled may take after the stop.
const GRACE: Duration = Duration::from_secs(2);

/// What is done with each message.
#[async_trait]
pub trait MessageHandler: Send + Sync {
    /// Comes back when the broker need no longer keep the message.
    async fn handle(&self, delivery: &dyn Delivery);
}

/// A queue that is read.
pub struct QueueReader {
    pub brokers: Arc<Brokers>,
    pub config: IntakeConfig,
}

impl QueueReader {
    /// Reads the queue until `stop`. What is not acknowledged then, the broker delivers again.
    pub async fn run(&self, handler: Arc<dyn MessageHandler>, stop: CancellationToken) {
        let (intake, queue) = (&self.config.name, &self.config.queue);
        let broker = self.broker_name();
        let part = format!("reading the queue {queue:?}");
        let mut failures = 0;
        while !stop.is_cancelled() {
            let error = match stop.run_until_cancelled(self.consume()).await {
                None => return,
                Some(Ok(messages)) => {
                    failures = 0;
                    self.brokers.health.works(broker, &part);
                    info!(%intake, queue, "reading a queue");
                    match self.handle_all(messages, &handler, &stop).await {
                        Some(error) => error,
                        None => return,
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
            let pause = sleep(RECONNECT.full_jitter(failures, rand::random()));
            stop.run_until_cancelled(pause).await;
        }
    }

    /// Handles messages side by side, as many as the broker sends; their commits share transactions. Returns why no
    /// more can be read, or nothing after the stop.
    async fn handle_all(
        &self,
        mut messages: Box<dyn Consumer>,
        handler: &Arc<dyn MessageHandler>,
        stop: &CancellationToken,
    ) -> Option<BrokerError> {
        // Dropped with the consumer: the broker delivers those messages again.
        let mut handled = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                next = messages.next() => match next {
                    Ok(delivery) => {
                        let handler = handler.clone();
                        handled.spawn(async move { handler.handle(&*delivery).await });
                    }
                    Err(error) => return Some(error),
                },
                Some(ended) = handled.join_next() => if let Err(error) = ended {
                    let intake = &self.config.name;
                    warn!(%intake, %error, "the service panicked at a message; the broker delivers it again");
                    // Unacknowledged, it would stay with this consumer.
                    return Some(BrokerError::Refused("a message was not handled".to_owned()));
                },
            }
        }
        // A message that was stored and not acknowledged is delivered again, and has to have a key then.
        let all = async { while handled.join_next().await.is_some() {} };
        let _ = timeout(GRACE, all).await;
        None
    }

    /// The name of the broker that has the queue.
    pub fn broker_name(&self) -> &str {
        match self.config.url {
            Some(_) => &self.config.name,
            None => MAIN_BROKER,
        }
    }

    async fn consume(&self) -> Result<Box<dyn Consumer>, BrokerError> {
        let IntakeConfig {
            queue, prefetch, ..
        } = &self.config;
        let broker = self.brokers.get(self.broker_name())?;
        broker.consume(queue, *prefetch).await
    }

    pub async fn acknowledge(&self, delivery: &dyn Delivery) {
        if let Err(error) = delivery.acknowledge().await {
            let intake = &self.config.name;
            debug!(%intake, %error, "could not acknowledge a message; the broker delivers it again");
        }
    }

    /// Waits before the next attempt to handle a message that cannot be handled now. It stays unacknowledged, and so
    /// do those after it: the broker sends no more than `prefetch`.
    pub async fn wait(&self, tries: u32, problem: &Problem) {
        if tries == 1 || tries.is_multiple_of(20) {
            let (intake, reason) = (&self.config.name, problem.detail());
            info!(%intake, tries, reason, "a message waits, because it cannot be stored now");
        }
        sleep(AGAIN.full_jitter(tries, rand::random())).await;
    }

    /// Comes back when the broker has confirmed that the message is a dead letter; it can be acknowledged then.
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
            sleep(AGAIN.full_jitter(tries, rand::random())).await;
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
