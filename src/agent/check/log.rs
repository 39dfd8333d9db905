//! The log of a check: its exchanges, as people see them, and what they show of all calls together.

use super::{
    bounds::{CutShort, millis},
    call_options::CallOptions,
};
use crate::agent::client::exchange::ServiceExchange;
use crate::domain::{
    agent::{AskedWait, CheckAnswer, CheckObservations},
    task::{Call, Purpose},
    values::{Timestamp, shortened},
};

/// The check ends early after this number of calls, so that a service that always asks for a retry cannot use all of
/// its time.
const MOST_EXCHANGES: usize = 100;
/// A report shows at most this number of bytes of a path or a body.
const SHOWN: usize = 1024;

/// One exchange, for people.
pub struct ShownExchange {
    pub number: u32,
    pub purpose: &'static str,
    pub method: &'static str,
    pub path: String,
    /// The key of the work, which an undo or a probe names.
    pub key: String,
    pub complete_by: Timestamp,
    pub sent: Option<String>,
    pub status: Option<u16>,
    pub retry_after: Option<String>,
    pub body: Option<String>,
    /// Why there is no response.
    pub fault: Option<String>,
    pub millis: u64,
}

#[derive(Default)]
pub(super) struct CheckLog {
    exchanges: Vec<ShownExchange>,
    waits: Vec<AskedWait>,
    /// The length of the largest response, in bytes, with its exchange.
    largest: Option<(u64, u32)>,
    /// The slowest response, in milliseconds, with its exchange.
    slowest: Option<(u64, u32)>,
}

impl CheckLog {
    /// Adds an exchange that took this many milliseconds, and returns its number. `sent` is the body of its request.
    pub fn add(
        &mut self,
        request: &Call,
        sent: Option<&str>,
        exchange: &ServiceExchange,
        answer: &CheckAnswer,
        took: u64,
        options: CallOptions,
    ) -> Result<u32, CutShort> {
        if self.exchanges.len() >= MOST_EXCHANGES {
            let why = format!("it has made {MOST_EXCHANGES} calls, more than a check may");
            return Err(CutShort(why));
        }
        // At most MOST_EXCHANGES.
        let number = self.exchanges.len() as u32 + 1;
        if let (Some(status @ (408 | 425 | 429 | 500..)), Some(wait)) =
            (exchange.status, &exchange.retry_after)
        {
            let wait = wait.clone().map(millis);
            self.waits.push(AskedWait {
                exchange: number,
                status,
                wait,
            });
        }
        if options.is_usual && exchange.status.is_some() {
            self.slowest = self.slowest.max(Some((took, number)));
            let length = exchange.length.map(|length| (length, number));
            self.largest = self.largest.max(length);
        }
        let key = match &request.purpose {
            Purpose::Undo(key) | Purpose::Probe(key) | Purpose::Cancel(key) => key.clone(),
            Purpose::Work | Purpose::Poll => request.idempotency_key.clone(),
        };
        let shown = |body: &str| shortened(body, SHOWN);
        self.exchanges.push(ShownExchange {
            number,
            purpose: options.purpose,
            method: request.method.as_str(),
            path: shortened(&request.path, SHOWN),
            key,
            complete_by: request.complete_by,
            sent: sent.map(shown),
            status: exchange.status,
            retry_after: exchange.retry_after.as_ref().map(|wait| match wait {
                Ok(wait) => format!("{} ms", millis(*wait)),
                Err(text) => text.clone(),
            }),
            body: exchange.body.as_deref().map(shown),
            fault: exchange.status.is_none().then(|| answer.to_string()),
            millis: took,
        });
        Ok(number)
    }

    /// Adds what the log shows to the observations, and returns the exchanges.
    pub fn add_to(self, seen: &mut CheckObservations) -> Vec<ShownExchange> {
        seen.waits = self.waits;
        seen.largest = self.largest;
        seen.slowest = self.slowest;
        self.exchanges
    }
}
