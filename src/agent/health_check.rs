//! One health check of an endpoint: a GET over the connections and with the credentials of a call.

use std::time::Duration;

use super::{
    client::{
        address,
        body::{self, BodyError},
        connector::{Unanswered, root_cause},
        http,
    },
    registry::Agent,
    secret::credentials::Credentials,
    transport::{Transport, text_without_secrets},
};
use crate::{
    clock,
    domain::{agent::HealthSpec, values::Timestamp},
};

/// The most bytes of a response that are read, so that its connection can be reused. The status decides the result.
const MOST_READ: usize = 64 << 10;

/// The result of a health check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CheckResult {
    Healthy,
    /// The endpoint is unhealthy, for this reason.
    Unhealthy(String),
    /// The check was not made, for this reason, so that the state of the endpoint is unknown.
    NotMade(String),
}

impl Agent {
    /// Makes a health check of the endpoint with this URL.
    pub async fn check(&self, url: &str, spec: &HealthSpec, now: Timestamp) -> CheckResult {
        self.wire().check(url, spec, now).await
    }
}

impl Transport {
    async fn check(&self, url: &str, spec: &HealthSpec, now: Timestamp) -> CheckResult {
        let limit = spec.timeout.duration();
        let credentials = match self.credentials_within(limit).await {
            Ok(credentials) => credentials,
            Err(why) => return CheckResult::NotMade(why),
        };
        let credentials = credentials.as_deref();
        let asked = self.ask(url, &spec.path, credentials, now);
        let result = match clock::timeout(limit, asked).await {
            Ok(result) => result,
            Err(_) => CheckResult::Unhealthy(format!(
                "GET {} had no whole response within {}",
                spec.path, spec.timeout
            )),
        };
        let redactor = credentials.map(Credentials::redactor);
        match result {
            CheckResult::Unhealthy(why) => {
                CheckResult::Unhealthy(text_without_secrets(why, redactor))
            }
            other => other,
        }
    }

    /// Returns the credentials, or an error after `limit`. A token endpoint that is down says nothing about the
    /// service.
    async fn credentials_within(
        &self,
        limit: Duration,
    ) -> Result<Option<std::sync::Arc<Credentials>>, String> {
        let Some(access) = &self.access else {
            return Ok(None);
        };
        match clock::timeout(limit, access.ready()).await {
            Ok(ready) => ready.map(Some),
            Err(_) => Err("there is no access token yet".to_owned()),
        }
    }

    async fn ask(
        &self,
        url: &str,
        path: &str,
        credentials: Option<&Credentials>,
        now: Timestamp,
    ) -> CheckResult {
        let Some(endpoint) = self.endpoints.at(url) else {
            return CheckResult::NotMade("the agent has no such endpoint".to_owned());
        };
        let way = match &endpoint.target {
            Ok(way) => way,
            Err(why) => return CheckResult::NotMade(why.clone()),
        };
        let made = http::check_request(&way.base, &way.host, path).and_then(|mut request| {
            if let Some(credentials) = credentials {
                credentials.add_to_check(&mut request, now)?;
            }
            Ok(request)
        });
        let request = match made {
            Ok(request) => request,
            Err(why) => return CheckResult::NotMade(why),
        };
        let sent = way.connections.send(self.connector(credentials), request);
        let mut response = match sent.await {
            Ok(response) => response,
            Err(error) => return unanswered(path, &error),
        };
        let status = response.head.status;
        if status.is_success() {
            return match body::whole(&mut response, MOST_READ).await {
                Ok(_) | Err(BodyError::TooLarge) => CheckResult::Healthy,
                Err(BodyError::Broken(error)) => unanswered(path, &error),
            };
        }
        let note = match status.is_redirection() {
            true => "; redirects are not followed",
            false => "",
        };
        CheckResult::Unhealthy(format!("GET {path} responded {status}{note}"))
    }
}

fn unanswered(path: &str, unanswered: &Unanswered) -> CheckResult {
    let error = unanswered.error();
    if let Some(refusal) = address::refusal_in(error) {
        return CheckResult::NotMade(refusal.to_string());
    }
    let cause = root_cause(error);
    CheckResult::Unhealthy(match unanswered {
        Unanswered::Unconnected(_) => format!("there was no connection: {cause}"),
        Unanswered::Unprocessed(_) => format!("GET {path} failed: {cause}"),
        Unanswered::Broken(_) => format!("GET {path} broke off: {cause}"),
    })
}
