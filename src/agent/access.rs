//! What an agent adds to its requests, with the secrets that it names put in. That happens once for each change of a
//! secret, and a call copies it. From here no secret goes anywhere but into a request.

use std::sync::Arc;

use ::http::{HeaderMap, HeaderName, HeaderValue, Request, header, uri::PathAndQuery};
use arc_swap::ArcSwap;
use base64::{Engine, engine::general_purpose::STANDARD};
use percent_encoding::percent_decode_str;
use serde_json::{Value, value::RawValue};
use url::form_urlencoded;
use uuid::Uuid;

use super::{
    connections::RequestBody, http::text_or_encoded, redact::Redactor, secret_file::SecretText,
    secrets::Secrets,
};
use crate::domain::{
    AgentSpec, AuthSpec, Call, CallBody, Purpose, SECRET_FORM, Secret, SecretName, SecretRef,
    Target, TextOrSecret, Timestamp, WebAddress, entries, signatures,
};

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// What one agent adds, as long as it has this specification.
pub(super) struct Access {
    spec: AgentSpec,
    /// The configuration file defines the agent.
    is_configured: bool,
    secrets: Arc<Secrets>,
    /// Or why no request can be made.
    ready: ArcSwap<Result<Arc<Credentials>, String>>,
}

impl Access {
    /// `None` for an agent that adds nothing.
    pub fn of(spec: &AgentSpec, is_configured: bool, secrets: &Arc<Secrets>) -> Option<Arc<Self>> {
        if spec.adds_nothing() {
            return None;
        }
        let access = Self {
            spec: spec.clone(),
            is_configured,
            secrets: Arc::clone(secrets),
            ready: ArcSwap::from_pointee(Err(String::new())),
        };
        access.refresh();
        Some(Arc::new(access))
    }

    /// Takes the secrets as they are now.
    pub fn refresh(&self) {
        self.ready.store(Arc::new(self.credentials().map(Arc::new)));
    }

    pub fn ready(&self) -> Result<Arc<Credentials>, String> {
        (**self.ready.load()).clone()
    }

    /// Why no request can be made, if none can.
    pub fn fault(&self) -> Option<String> {
        self.ready.load().as_ref().as_ref().err().cloned()
    }

    pub fn is_ready(&self) -> bool {
        self.ready.load().is_ok()
    }

    fn credentials(&self) -> Result<Credentials, String> {
        let spec = &self.spec;
        let refused = self.secrets.faults(spec, self.is_configured);
        if let Some((_, why)) = refused.into_iter().next() {
            return Err(why);
        }
        let mut found = FoundSecrets {
            secrets: &self.secrets,
            texts: Vec::new(),
        };
        let mut headers = Vec::with_capacity(spec.headers.len() + 1);
        for (name, value) in &spec.headers {
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| format!("{name:?} is not the name of a header"))?;
            let value = match value {
                TextOrSecret::Text(text) => HeaderValue::from_str(text)
                    .map_err(|_| format!("the header {name} of the agent cannot be sent"))?,
                TextOrSecret::Secret(named) => found.header(named, "")?,
            };
            headers.push((name, value));
        }
        match &spec.auth {
            None => {}
            Some(AuthSpec::Bearer(token)) => {
                headers.push((header::AUTHORIZATION, found.header(token, "Bearer ")?));
            }
            Some(AuthSpec::Basic(basic)) => {
                let password = found.get(&basic.password)?;
                let pair = STANDARD.encode(format!("{}:{}", basic.user, password.expose()));
                let value = sensitive(&format!("Basic {pair}"))
                    .map_err(|()| "the credentials cannot be sent in a header".to_owned())?;
                headers.push((header::AUTHORIZATION, value));
                found.texts.push(pair);
            }
        }
        let mut body = Vec::with_capacity(spec.body.len());
        for (name, value) in &spec.body {
            let text = found.text(value)?;
            body.push((name.clone(), Value::from(text).to_string()));
        }
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (name, value) in &spec.query {
            query.append_pair(name, &found.text(value)?);
        }
        let query = query.finish();
        let mut signing = Vec::with_capacity(spec.sign.len());
        for named in &spec.sign {
            let text = found.get(named)?;
            let key = Secret::parse(text.expose()).ok_or_else(|| {
                format!(
                    "the secret `{}` cannot sign: it is not {SECRET_FORM}",
                    named.secret
                )
            })?;
            signing.push(key);
        }
        let names = spec.secrets().into_iter().map(|used| used.name.clone());
        Ok(Credentials {
            headers,
            query_names: spec.query.keys().cloned().collect(),
            query,
            body,
            signing,
            redactor: Redactor::of(found.texts.iter().map(String::as_str)),
            names: names.collect(),
            secrets: Arc::clone(&self.secrets),
        })
    }
}

/// Collects what is not for the record.
struct FoundSecrets<'s> {
    secrets: &'s Secrets,
    texts: Vec<String>,
}

impl FoundSecrets<'_> {
    fn get(&mut self, named: &SecretRef) -> Result<SecretText, String> {
        let text = self.secrets.get(&named.secret)?;
        self.texts.push(text.expose().to_owned());
        Ok(text)
    }

    fn text(&mut self, value: &TextOrSecret) -> Result<String, String> {
        match value {
            TextOrSecret::Text(text) => Ok(text.clone()),
            TextOrSecret::Secret(named) => Ok(self.get(named)?.expose().to_owned()),
        }
    }

    fn header(&mut self, named: &SecretRef, scheme: &str) -> Result<HeaderValue, String> {
        let text = self.get(named)?;
        sensitive(&format!("{scheme}{}", text.expose())).map_err(|()| {
            format!(
                "the secret `{}` cannot be sent in a header: it contains a line break, or a character that is not printable ASCII",
                named.secret
            )
        })
    }
}

/// Its value is left out where headers are logged. Services do not agree on what other bytes than ASCII mean.
fn sensitive(text: &str) -> Result<HeaderValue, ()> {
    if !text.is_ascii() {
        return Err(());
    }
    let mut value = HeaderValue::from_str(text).map_err(|_| ())?;
    value.set_sensitive(true);
    Ok(value)
}

/// What is added to a request, ready to be copied.
pub(super) struct Credentials {
    headers: Vec<(HeaderName, HeaderValue)>,
    query_names: Vec<String>,
    /// Encoded; empty where nothing is added.
    query: String,
    /// Names, and values as JSON.
    body: Vec<(String, String)>,
    signing: Vec<Secret>,
    pub redactor: Redactor,
    /// Of every secret that goes along.
    names: Vec<SecretName>,
    secrets: Arc<Secrets>,
}

impl Credentials {
    /// An address that a service named (for polling) may be below none of those that the secrets are bound to.
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

    /// The body with what the agent adds to it, in place of what the step has there.
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

    /// Adds headers, query and signature. `body` is what is sent.
    pub fn add_to(
        &self,
        request: &mut Request<RequestBody>,
        call: &Call,
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
        self.sign(request.headers_mut(), call, body, now);
        Ok(())
    }

    fn with_query(&self, target: &str) -> String {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let kept = self.others(query);
        let parts = kept.chain(std::iter::once(&*self.query));
        format!("{path}?{}", parts.collect::<Vec<_>>().join("&"))
    }

    /// The parameters that the agent does not add, as they are written.
    fn others<'q>(&self, query: &'q str) -> impl Iterator<Item = &'q str> {
        let is_ours = |pair: &str| {
            let name = pair.split('=').next().unwrap_or_default().replace('+', " ");
            let name = percent_decode_str(&name).decode_utf8_lossy();
            self.query_names.iter().any(|ours| *ours == *name)
        };
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        pairs.filter(move |pair| !is_ours(pair))
    }

    /// An address that a service named, for the record: the next request to it gets what is left out here.
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
            Some(_) => Err(
                "the service named an address that contains a secret of its agent, which is not recorded"
                    .to_owned(),
            ),
        }
    }

    fn sign(&self, headers: &mut HeaderMap, call: &Call, body: &str, now: Timestamp) {
        let id = match &call.purpose {
            // The dot separates the parts of what is signed.
            Purpose::Work | Purpose::Undo(_) => {
                let key = text_or_encoded(&call.idempotency_key);
                key.to_str().unwrap_or_default().replace('.', "%2E")
            }
            // Each is a message of its own, for those who take a message once.
            Purpose::Probe(_) | Purpose::Poll | Purpose::Cancel(_) => Uuid::now_v7().to_string(),
        };
        let at = now.as_millis() / 1000;
        let Some(Ok(signed)) = signatures(&self.signing, &id, at, body).map(HeaderValue::try_from)
        else {
            return;
        };
        headers.insert(WEBHOOK_ID, text_or_encoded(&id));
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(at));
        headers.insert(WEBHOOK_SIGNATURE, signed);
    }
}

fn member(name: &str, value: &str) -> String {
    format!("{}:{value}", Value::from(name))
}
