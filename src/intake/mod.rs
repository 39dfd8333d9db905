//! Intakes: queues whose messages are submissions. A message is acknowledged only after its task is committed, or
//! after the broker has confirmed it as a dead letter; until then the broker keeps it, and delivers it again if this
//! process dies. Its message id is its idempotency key, so that a message that is delivered again creates nothing again.
//!
//! In here: the loop that reads a queue, and what happens with each message. Not in here: connections
//! ([`crate::broker`]), and what a submission may say ([`crate::api`]).

mod dead_letter;
mod meters;

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use sha2::{Digest, Sha256};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::{dead_letter::dead_letter, meters::IntakeMeters};
use crate::{
    api::{self, App, Problem},
    broker::{Broker, BrokerError, Brokers, Consumer, Delivery, Outgoing, Received},
    config::IntakeConfig,
    domain::{Backoff, MAIN_BROKER},
    store::Submitted,
};

/// Between two attempts to read the queue.
const RECONNECT: Backoff = Backoff::doubling(Duration::from_millis(250), Duration::from_secs(10));
/// Between two attempts to store one message.
const AGAIN: Backoff = Backoff::doubling(Duration::from_millis(100), Duration::from_secs(5));
/// For the confirm of a dead letter.
const CONFIRM_WITHIN: Duration = Duration::from_secs(15);
/// How long messages that are being handled may take after the stop.
const GRACE: Duration = Duration::from_secs(2);
/// The longest `Idempotency-Key`.
const LONGEST_KEY: usize = 255;

#[derive(Clone)]
pub struct Intake(Arc<IntakeState>);

struct IntakeState {
    app: Arc<App>,
    brokers: Arc<Brokers>,
    config: IntakeConfig,
    meters: IntakeMeters,
}

impl Intake {
    pub fn new(app: Arc<App>, brokers: Arc<Brokers>, config: IntakeConfig) -> Self {
        let meters = IntakeMeters::new(&config.name);
        Self(Arc::new(IntakeState {
            app,
            brokers,
            config,
            meters,
        }))
    }

    /// Reads the queue until `stop`. What is not acknowledged then, the broker delivers again.
    pub async fn run(self, stop: CancellationToken) {
        let this = &*self.0;
        let (intake, queue) = (&this.config.name, &this.config.queue);
        let name = this.broker_name();
        let part = format!("reading the queue {queue:?}");
        let mut failures = 0;
        while !stop.is_cancelled() {
            let error = match stop.run_until_cancelled(this.consume()).await {
                None => return,
                Some(Ok(messages)) => {
                    failures = 0;
                    this.brokers.health.works(name, &part);
                    info!(%intake, queue, "reading submissions from a queue");
                    match self.handle_all(messages, &stop).await {
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
            this.brokers.health.failed(name, &part, &reason);
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
        stop: &CancellationToken,
    ) -> Option<BrokerError> {
        // Dropped with the consumer: the broker delivers those messages again.
        let mut handled = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                next = messages.next() => match next {
                    Ok(delivery) => {
                        let this = self.0.clone();
                        handled.spawn(async move { this.handle(&*delivery).await });
                    }
                    Err(error) => return Some(error),
                },
                Some(ended) = handled.join_next() => if let Err(error) = ended {
                    let intake = &self.0.config.name;
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
}

impl IntakeState {
    /// The name of the broker that has the queue.
    fn broker_name(&self) -> &str {
        match self.config.url {
            Some(_) => &self.config.name,
            None => MAIN_BROKER,
        }
    }

    fn broker(&self) -> Result<&Arc<dyn Broker>, BrokerError> {
        self.brokers.get(self.broker_name())
    }

    async fn consume(&self) -> Result<Box<dyn Consumer>, BrokerError> {
        let IntakeConfig {
            queue, prefetch, ..
        } = &self.config;
        self.broker()?.consume(queue, *prefetch).await
    }

    /// Comes back when the broker need no longer keep the message.
    async fn handle(&self, delivery: &dyn Delivery) {
        let message = delivery.message();
        let key = idempotency_key(message);
        let mut tries = 0_u32;
        let problem = loop {
            let app = &self.app;
            let problem = match api::submit_message(app, &self.config, message, key.clone()).await {
                Ok(submitted) => return self.accept(delivery, &submitted).await,
                Err(problem) if is_passing(&problem) => problem,
                Err(problem) => break problem,
            };
            tries += 1;
            self.meters.retried.increment(1);
            self.report_wait(tries, &problem);
            sleep(AGAIN.full_jitter(tries, rand::random())).await;
        };
        self.refuse(delivery, problem).await;
    }

    async fn accept(&self, delivery: &dyn Delivery, submitted: &Submitted) {
        let intake = &self.config.name;
        match submitted {
            Submitted::New(task) => {
                self.meters.accepted.increment(1);
                debug!(%intake, task = %task.id(), "a message submitted a task");
            }
            Submitted::Replayed(task) => {
                self.meters.replayed.increment(1);
                debug!(%intake, %task, "a message had submitted its task before");
            }
        }
        self.acknowledge(delivery).await;
    }

    async fn acknowledge(&self, delivery: &dyn Delivery) {
        if let Err(error) = delivery.acknowledge().await {
            let intake = &self.config.name;
            debug!(%intake, %error, "could not acknowledge a message; the broker delivers it again");
        }
    }

    /// Makes the message a dead letter. Until the broker has confirmed that, the message stays where it is.
    async fn refuse(&self, delivery: &dyn Delivery, problem: Problem) {
        let intake = &self.config.name;
        let letter = dead_letter(&self.config, problem);
        let mut tries = 0_u32;
        while let Err(error) = delivery.forward(&letter.to, CONFIRM_WITHIN).await {
            tries += 1;
            if tries == 1 || tries.is_multiple_of(20) {
                let to = &letter.to.routing_key;
                warn!(%intake, to, tries, %error, "could not publish a dead letter; its message stays in the queue, and is tried again");
            }
            let part = "publishing dead letters";
            self.brokers
                .health
                .failed(self.broker_name(), part, &error.to_string());
            sleep(AGAIN.full_jitter(tries, rand::random())).await;
        }
        if tries > 0 {
            let part = "publishing dead letters";
            self.brokers.health.works(self.broker_name(), part);
        }
        self.meters.refused.increment(1);
        let message = delivery.message();
        warn!(
            %intake, message_id = message.message_id, problem = letter.slug, detail = letter.detail,
            dead_letter = letter.to.routing_key, "refused a message; it is a dead letter now"
        );
        self.acknowledge(delivery).await;
    }

    fn report_wait(&self, tries: u32, problem: &Problem) {
        if tries == 1 || tries.is_multiple_of(20) {
            let (intake, reason) = (&self.config.name, problem.detail());
            info!(%intake, tries, reason, "a message waits, because it cannot be stored now");
        }
    }
}

/// Whether the same message may be accepted later. It stays unacknowledged, and so do those after it: the broker sends
/// no more than `prefetch`.
fn is_passing(problem: &Problem) -> bool {
    problem.kind().status() == StatusCode::SERVICE_UNAVAILABLE
}

/// The header `Idempotency-Key`, or the message id. A message without either has a key of its own for this delivery,
/// so that it creates one task however often it is tried; if it is delivered again, it creates another.
fn idempotency_key(message: &Received) -> String {
    let given = message.header("idempotency-key");
    let given = given.or(message.message_id.as_deref());
    match given.filter(|key| !key.is_empty()) {
        None => format!("delivery:{}", uuid::Uuid::now_v7()),
        Some(key) if key.len() <= LONGEST_KEY && key.bytes().all(|b| b.is_ascii_graphic()) => {
            key.to_owned()
        }
        // A key over HTTP is visible ASCII; queues have no such rule.
        Some(key) => {
            let hash = Sha256::digest(key.as_bytes());
            let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("sha256:{hash}")
        }
    }
}

/// A message to publish for the dead letter, and what the log says of it.
struct DeadLetter {
    to: Outgoing,
    slug: &'static str,
    detail: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: Option<&str>, header: Option<&str>) -> Received {
        let headers = header.map(|key| ("Idempotency-Key".to_owned(), key.to_owned()));
        Received {
            message_id: id.map(str::to_owned),
            headers: headers.into_iter().collect(),
            ..Received::default()
        }
    }

    #[test]
    fn a_key_is_the_header_or_the_message_id_whatever_it_contains() {
        assert_eq!(idempotency_key(&message(Some("m-1"), None)), "m-1");
        assert_eq!(idempotency_key(&message(Some("m-1"), Some("k"))), "k");
        let odd = idempotency_key(&message(Some("ID: ünd 7"), None));
        assert!(odd.starts_with("sha256:") && !odd.contains(' '), "{odd}");
        assert_eq!(odd, idempotency_key(&message(Some("ID: ünd 7"), None)));
        let none = idempotency_key(&message(None, None));
        assert_ne!(none, idempotency_key(&message(Some(""), None)));
    }
}
