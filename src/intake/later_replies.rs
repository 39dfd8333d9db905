//! The queue for replies of services whose agents have queues: any instance takes them. A reply is acknowledged after
//! its commit. A reply that is too late, or is not awaited, is counted and dropped, as over HTTP. A reply that cannot
//! be read becomes a dead letter, and its service gets the problem if the reply names a queue for that.

use std::sync::Arc;

use async_trait::async_trait;
use http::StatusCode;
use metrics::{Counter, counter};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{
    reader::{MessageHandler, QueueReader},
    refusal_notice::{REPLY_REFUSED, RefusalNotice},
};
use crate::{
    api::{self, App, Problem},
    broker::{Brokers, Delivery, ReceivedMessage},
    config::IntakeConfig,
};

/// The most replies that are handled at once.
const PREFETCH: u16 = 64;

pub struct LaterReplies {
    app: Arc<App>,
    reader: QueueReader,
    accepted: Counter,
    late: Counter,
    refused: Counter,
}

impl LaterReplies {
    pub fn new(app: Arc<App>, brokers: Arc<Brokers>) -> Self {
        metrics::describe_counter!(
            "provost_queue_replies_total",
            "Replies of services through a queue, by result: accepted, late (too late, or unknown), or refused (a dead \
             letter)"
        );
        let config = IntakeConfig {
            name: "replies".to_owned(),
            url: None,
            queue: app.reply_key.reply_queue(),
            prefetch: PREFETCH,
            workflow: None,
            dead_letter_exchange: String::new(),
            dead_letter_routing_key: None,
        };
        let of = |result: &'static str| counter!("provost_queue_replies_total", "result" => result);
        Self {
            reader: QueueReader {
                brokers,
                config,
                max_message: app.config.limits.max_request.as_usize(),
            },
            app,
            accepted: of("accepted"),
            late: of("late"),
            refused: of("refused"),
        }
    }

    pub async fn run(self, stop: CancellationToken) {
        let this = Arc::new(self);
        this.reader.run(this.clone(), stop).await;
    }

    async fn tell_service(&self, message: &ReceivedMessage, problem: &Problem) {
        let config = &self.reader.config;
        let Some(to) = api::refusal_address(&self.app, config, message) else {
            return;
        };
        // The service has copied this property from the request, and does not read that queue.
        if *to.queue == *config.queue {
            return;
        }
        let key = message_key(message);
        let notice = RefusalNotice::new(config, to, REPLY_REFUSED, message, &key, problem);
        notice.publish(&self.reader).await;
    }
}

/// Returns a key made of the token and the body: a service seldom gives its replies ids, and one attempt may have
/// several replies that are refused.
fn message_key(message: &ReceivedMessage) -> String {
    let token = message.correlation_id.as_deref().unwrap_or_default();
    let body = Sha256::digest(&message.body);
    let body: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{token}\t{body}")
}

#[async_trait]
impl MessageHandler for LaterReplies {
    async fn handle(&self, delivery: &dyn Delivery) {
        let message = delivery.message();
        let mut tries = 0_u32;
        let problem = loop {
            match api::reply_by_message(&self.app, message).await {
                Ok(()) => {
                    self.accepted.increment(1);
                    return self.reader.acknowledge(delivery).await;
                }
                Err(problem) if problem.kind().status() == StatusCode::SERVICE_UNAVAILABLE => {
                    tries += 1;
                    self.reader.wait(tries, &problem).await;
                }
                Err(problem) => break problem,
            }
        };
        if matches!(
            problem.kind().status(),
            StatusCode::CONFLICT | StatusCode::NOT_FOUND
        ) {
            self.late.increment(1);
            let (kind, detail) = (problem.kind().slug(), problem.detail());
            info!(problem = kind, detail, "dropped a reply from a queue");
            return self.reader.acknowledge(delivery).await;
        }
        self.refused.increment(1);
        self.reader.make_dead_letter(delivery, &problem).await;
        self.tell_service(message, &problem).await;
        self.reader.acknowledge(delivery).await;
    }
}
