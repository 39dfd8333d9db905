//! The data that is added to a request, with every secret in it, and the requests to which it is added. From here
//! secrets go only into requests.

use std::sync::Arc;

use ::http::{HeaderName, HeaderValue, Request, header, uri::PathAndQuery};
use percent_encoding::percent_decode_str;
use serde_json::{Value, value::RawValue};

use super::{file::SecretText, reader::SecretStore};
use crate::agent::client::{
    connector::{CallConnector, RequestBody},
    http::text_or_encoded,
};
use crate::{
    chance,
    domain::{
        agent::{RequestSignature, SignedRequest},
        definition::Target,
        message::{Secret, signatures},
        task::{Call, CallBody, Purpose, Redactor, SHORTEST_SECRET},
        values::{AgentName, SecretName, Timestamp, WebAddress, entries},
    },
};

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// The message about an address from a service that contains a secret.
pub(in crate::agent) const SECRET_IN_ADDRESS: &str =
    "the service named an address that contains a secret of its agent, which is not recorded";

/// Returns a header value that logs omit. Only ASCII is allowed, because services interpret other bytes differently.
pub(in crate::agent) fn sensitive(text: &str) -> Result<HeaderValue, ()> {
    if !text.is_ascii() {
        return Err(());
    }
    let mut value = HeaderValue::from_str(text).map_err(|_| ())?;
    value.set_sensitive(true);
    Ok(value)
}

/// The data that is added to a request, ready to be copied.
#[derive(Clone)]
pub(in crate::agent) struct Credentials {
    /// The agent that the credentials belong to.
    pub agent: AgentName,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub query_names: Vec<String>,
    /// The query parameters, encoded; empty if none are added.
    pub query: String,
    /// The members of the body: names, and values as JSON.
    pub body: Vec<(String, String)>,
    /// The keys of Standard Webhooks.
    pub signing: Vec<Secret>,
    /// The signatures in headers of their own.
    pub signatures: Vec<RequestSignature>,
    pub redactor: Redactor,
    /// The texts that the redactor looks for.
    pub texts: Vec<String>,
    pub client_secret: Option<SecretText>,
    /// The connector for the calls, if the agent has TLS settings of its own.
    pub connector: Option<CallConnector>,
    /// The connector for the token endpoint, if it has TLS settings of its own.
    pub token_connector: Option<CallConnector>,
    /// The name of every secret that a request contains.
    pub names: Vec<SecretName>,
    pub secrets: Arc<SecretStore>,
}

impl Credentials {
    pub fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    pub fn client_secret(&self) -> Option<&str> {
        self.client_secret.as_ref().map(SecretText::expose)
    }

    /// Returns the credentials with a token that was fetched. Returns `None` if the token cannot be sent, or is so
    /// short that the redactor could not distinguish it from other text in a response.
    pub fn with_bearer(&self, token: &str) -> Option<Self> {
        let value = sensitive(&format!("Bearer {token}")).ok()?;
        let mut full = self.clone();
        full.headers.push((header::AUTHORIZATION, value));
        full.texts.push(token.to_owned());
        if token.len() < SHORTEST_SECRET {
            return None;
        }
        full.redactor = self.secrets.used.add(&self.agent, &full.texts);
        Some(full)
    }

    /// Refuses a call to a URL outside the addresses that the agent's secrets are bound to. A service may name such a
    /// URL for polling.
    pub fn check_target(&self, call: &Call) -> Result<(), String> {
        let (Target::Url { url, .. } | Target::Operation { url, .. }) = &call.target else {
            return Ok(());
        };
        let address = WebAddress::parse(url).map_err(|why| format!("the address {why}"))?;
        let may_not = |name: &&SecretName| !self.secrets.may_go_to(name, &address);
        match self.names.iter().find(may_not) {
            None => Ok(()),
            Some(name) => Err(format!(
                "the service named an address that may not get the secret `{name}`: add it to the `urls` of its [[secrets]]"
            )),
        }
    }

    /// Returns whether the agent sets this header of its requests.
    pub fn sets(&self, name: &str) -> bool {
        let own = self.headers.iter().map(|(own, _)| own);
        let own = own.chain(self.signatures.iter().map(|signature| &signature.header));
        let of_webhooks = [&WEBHOOK_ID, &WEBHOOK_TIMESTAMP, &WEBHOOK_SIGNATURE];
        let of_webhooks = of_webhooks.into_iter().filter(|_| !self.signing.is_empty());
        own.chain(of_webhooks).any(|own| own == name)
    }

    /// Returns whether the agent adds members to the bodies of its requests.
    pub fn adds_to_body(&self) -> bool {
        !self.body.is_empty()
    }

    /// Returns the body with the members that the agent adds. They replace members of the step with the same names.
    pub fn body(&self, body: Option<CallBody>) -> Result<Option<CallBody>, String> {
        let Some(given) = body.as_deref().filter(|_| !self.body.is_empty()) else {
            return Ok(body);
        };
        let is_ours = |name: &str| self.body.iter().any(|(ours, _)| ours == name);
        let members: Option<Vec<String>> = serde_json::from_str::<&RawValue>(given)
            .ok()
            .and_then(entries)
            .map(|members| {
                let kept = members.iter().filter(|(name, _)| !is_ours(name));
                let kept = kept.map(|(name, value)| member(name, value.get()));
                let ours = self.body.iter().map(|(name, value)| member(name, value));
                kept.chain(ours).collect()
            });
        match members {
            Some(members) => Ok(Some(CallBody::Rendered(format!(
                "{{{}}}",
                members.join(",")
            )))),
            None => Err(
                "the agent adds members to the body of its requests, but this body is not an object"
                    .to_owned(),
            ),
        }
    }

    /// Adds headers, query and signature. `body` is the body that is sent.
    pub fn add_to(
        &self,
        request: &mut Request<RequestBody>,
        call: &Call,
        body: &str,
        now: Timestamp,
    ) -> Result<(), String> {
        let id = match &call.purpose {
            // The dot separates the parts of the signed text, so the key must not contain one.
            Purpose::Work | Purpose::Undo(_) => {
                let key = text_or_encoded(&call.idempotency_key);
                key.to_str().unwrap_or_default().replace('.', "%2E")
            }
            // Each of these requests is a message of its own, for services that accept a message id only once.
            Purpose::Probe(_) | Purpose::Poll | Purpose::Cancel(_) => chance::id().to_string(),
        };
        self.add(request, &id, body, now)
    }

    /// Does the same as [`Credentials::add_to`] for a request that has no body and belongs to no step.
    pub fn add_to_check(
        &self,
        request: &mut Request<RequestBody>,
        now: Timestamp,
    ) -> Result<(), String> {
        self.add(request, &chance::id().to_string(), "", now)
    }

    fn add(
        &self,
        request: &mut Request<RequestBody>,
        id: &str,
        body: &str,
        now: Timestamp,
    ) -> Result<(), String> {
        for (name, value) in &self.headers {
            request.headers_mut().insert(name.clone(), value.clone());
        }
        if !self.query.is_empty() {
            let target = request.uri().path_and_query();
            let target = self.with_query(target.map_or("/", PathAndQuery::as_str));
            let target = PathAndQuery::try_from(target)
                .map_err(|_| "the query with what the agent adds is too long".to_owned())?;
            *request.uri_mut() = target.into();
        }
        self.sign(request, id, body, now);
        Ok(())
    }

    fn with_query(&self, target: &str) -> String {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let kept = self.others(query);
        let parts = kept.chain(std::iter::once(&*self.query));
        format!("{path}?{}", parts.collect::<Vec<_>>().join("&"))
    }

    /// Returns the parameters that the agent does not add, in their original encoding.
    fn others<'q>(&self, query: &'q str) -> impl Iterator<Item = &'q str> {
        let is_ours = |pair: &str| {
            let name = pair.split('=').next().unwrap_or_default().replace('+', " ");
            let name = percent_decode_str(&name).decode_utf8_lossy();
            self.query_names.iter().any(|ours| *ours == *name)
        };
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        pairs.filter(move |pair| !is_ours(pair))
    }

    /// Returns an address that a service named in the form that is recorded: without the parameters that the agent
    /// adds to every request. The next request to it gets them again.
    pub fn address_without_secrets(&self, address: String) -> Result<String, String> {
        let kept = match address.split_once('?') {
            Some((base, query)) if !self.query.is_empty() => {
                let others: Vec<_> = self.others(query).collect();
                match others.is_empty() {
                    true => base.to_owned(),
                    false => format!("{base}?{}", others.join("&")),
                }
            }
            _ => address,
        };
        match self.redactor.hide(kept.as_bytes()) {
            None => Ok(kept),
            Some(_) => Err(SECRET_IN_ADDRESS.to_owned()),
        }
    }

    fn sign(&self, request: &mut Request<RequestBody>, id: &str, body: &str, now: Timestamp) {
        let at = now.as_millis() / 1000;
        for signature in &self.signatures {
            let path = request.uri().path_and_query();
            let signed = signature.sign(SignedRequest {
                method: request.method().as_str(),
                path: path.map_or("/", PathAndQuery::as_str),
                body,
                timestamp: at,
            });
            if let Some(signed) = signed {
                request.headers_mut().insert(&signature.header, signed);
            }
        }
        let headers = request.headers_mut();
        let Some(Ok(signed)) = signatures(&self.signing, id, at, body).map(HeaderValue::try_from)
        else {
            return;
        };
        headers.insert(WEBHOOK_ID, text_or_encoded(id));
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(at));
        headers.insert(WEBHOOK_SIGNATURE, signed);
    }
}

fn member(name: &str, value: &str) -> String {
    format!("{}:{value}", Value::from(name))
}
