//! One request outside of any step: the courier posts messages by it. The same policy of addresses
//! holds, and the same TLS; redirects are not followed, and of the answer only the beginning is read.

use std::time::Duration;

use ::http::{HeaderMap, StatusCode, header};
use reqwest::{Client, Method, Request, Url};

use super::{
    address::{self, AddressPolicy},
    answer, body, http,
    http::ClientUnusable,
    registry::AgentSettings,
    retry::retry_after,
};
use crate::domain::Timestamp;

/// Posts to addresses that policy allows.
#[derive(Clone)]
pub struct Post {
    client: Client,
    policy: AddressPolicy,
    timeout: Duration,
}

/// How a receiver answered.
#[derive(Debug)]
pub struct Posted {
    pub status: StatusCode,
    pub retry_after: Option<Duration>,
    /// The beginning of the answer, where it was no success.
    pub excerpt: Option<String>,
}

/// Why there was no answer.
#[derive(Debug)]
pub enum NotPosted {
    /// The address may not be called, or is none.
    Refused(String),
    /// Nobody took the connection, it broke off, or the answer did not come in time.
    Broken(String),
}

impl Post {
    /// `timeout` is that of a whole exchange.
    pub fn new(settings: &AgentSettings, timeout: Duration) -> Result<Self, ClientUnusable> {
        Ok(Self {
            client: http::client(settings)?,
            policy: AddressPolicy {
                allow_private: settings.allow_private,
            },
            timeout,
        })
    }

    /// What can be said of an address before it is resolved.
    pub fn check(&self, url: &str) -> Result<(), String> {
        self.parse(url).map(drop)
    }

    /// The URL may be a secret, and is not repeated.
    fn parse(&self, url: &str) -> Result<Url, String> {
        let url = Url::parse(url).map_err(|error| format!("is not a URL: {error}"))?;
        let checked = self.policy.check_literal(&url);
        checked.map_err(|refusal| refusal.to_string())?;
        Ok(url)
    }

    /// `now` is for answers that name a date to come back at.
    pub async fn post(
        &self,
        url: &str,
        headers: HeaderMap,
        body: String,
        now: Timestamp,
    ) -> Result<Posted, NotPosted> {
        let url = self.parse(url).map_err(NotPosted::Refused)?;
        let mut request = Request::new(Method::POST, url);
        *request.headers_mut() = headers;
        request
            .headers_mut()
            .insert(header::USER_AGENT, http::USER_AGENT);
        *request.body_mut() = Some(body.into());
        let answered = async {
            let response = self.client.execute(request).await;
            let response = response.map_err(|error| broken(&error))?;
            let (status, headers) = (response.status(), response.headers());
            let retry_after = retry_after(headers, now);
            let excerpt = match status.is_success() {
                true => None,
                false => answer::excerpt(&body::start(response).await),
            };
            Ok(Posted {
                status,
                retry_after,
                excerpt,
            })
        };
        match tokio::time::timeout(self.timeout, answered).await {
            Ok(answered) => answered,
            Err(_) => {
                let within = self.timeout;
                Err(NotPosted::Broken(format!("no answer within {within:?}")))
            }
        }
    }
}

fn broken(error: &reqwest::Error) -> NotPosted {
    if let Some(refusal) = address::refusal_in(error) {
        return NotPosted::Refused(refusal.to_string());
    }
    let cause = http::root_cause(error);
    NotPosted::Broken(if error.is_connect() {
        format!("could not connect: {cause}")
    } else {
        format!("the exchange broke off: {cause}")
    })
}
