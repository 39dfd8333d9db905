//! The data that an agent adds to its requests, with the values of the secrets that it names. The secrets are inserted
//! once for each change of a secret; see `credentials.rs` for the use of the data in a call.

use std::sync::Arc;

use ::http::{HeaderName, HeaderValue, header};
use arc_swap::ArcSwap;
use base64::{Engine, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use serde_json::Value;
use url::form_urlencoded;

use super::{
    credentials::{Credentials, sensitive},
    file::SecretText,
    oauth::{self, TokenCache},
    reader::SecretStore,
};
use crate::agent::client::{
    connector::CallConnector,
    tls::{ClientTls, TlsTexts, client_tls},
};
use crate::domain::{
    agent::{
        AgentSpec, AgentTlsSpec, AuthSpec, RequestSignature, SecretRef, SecretTarget, TextOrSecret,
    },
    message::{SECRET_FORM, Secret},
    values::{AgentName, SecretName},
};

/// A connector, and the TLS texts that it was made from.
type SecuredConnector = (TlsTexts, CallConnector);

/// The data that one agent adds to its requests. A change of the agent's specification makes a new value.
pub(in crate::agent) struct AgentAccess {
    agent: AgentName,
    spec: AgentSpec,
    /// True if the configuration file defines the agent.
    is_configured: bool,
    secrets: Arc<SecretStore>,
    /// The connector for the agent's calls, before the TLS settings of the agent are applied.
    connector: CallConnector,
    /// The connector for the agent's token endpoint, before its TLS settings are applied. It speaks HTTP/1.1.
    token_connector: CallConnector,
    /// The connector for the agent's calls with the agent's TLS settings, once it has been made.
    tls: Mutex<Option<SecuredConnector>>,
    /// The connector for the token endpoint with its TLS settings, once it has been made.
    token_tls: Mutex<Option<SecuredConnector>>,
    tokens: Option<Arc<TokenCache>>,
    /// The credentials of the next request, without an OAuth 2 token; or the reason why no request can be made.
    ready: ArcSwap<Result<Arc<Credentials>, AccessFault>>,
}

/// The reason why an agent can make no request.
#[derive(Clone, Debug)]
pub(in crate::agent) struct AccessFault {
    pub message: String,
    /// The secret whose text cannot be used for its purpose.
    pub secret: Option<SecretName>,
    /// True if a secret has not been read yet. At each start this lasts for some milliseconds.
    pub is_unread: bool,
}

impl From<String> for AccessFault {
    fn from(message: String) -> Self {
        Self {
            message,
            secret: None,
            is_unread: false,
        }
    }
}

impl AccessFault {
    fn of(named: &SecretRef, why: &str) -> Self {
        let name = &named.secret;
        Self {
            message: format!("the secret `{name}` {why}"),
            secret: Some(name.clone()),
            is_unread: false,
        }
    }
}

impl AgentAccess {
    /// Returns `None` for an agent that adds nothing to its requests.
    pub fn of(
        agent: &AgentName,
        spec: &AgentSpec,
        is_configured: bool,
        secrets: &Arc<SecretStore>,
        connector: &CallConnector,
        token_connector: &CallConnector,
    ) -> Option<Arc<Self>> {
        if spec.adds_nothing() {
            return None;
        }
        let tokens = match &spec.auth {
            Some(AuthSpec::OAuth2(oauth)) => Some(Arc::new(TokenCache::new(
                oauth.clone(),
                token_connector.policy(),
                token_connector.clone(),
            ))),
            _ => None,
        };
        let access = Self {
            agent: agent.clone(),
            spec: spec.clone(),
            is_configured,
            secrets: Arc::clone(secrets),
            connector: connector.clone(),
            token_connector: token_connector.clone(),
            tls: Mutex::default(),
            token_tls: Mutex::default(),
            tokens,
            ready: ArcSwap::from_pointee(Err(String::new().into())),
        };
        access.refresh();
        Some(Arc::new(access))
    }

    /// Makes the credentials again from the current values of the secrets.
    pub fn refresh(&self) {
        let mut used = self.spec.secrets().into_iter();
        let is_unread = used.any(|used| self.secrets.is_unread(used.name));
        let mut ready = self.credentials().map(Arc::new);
        if let Err(fault) = &mut ready {
            fault.is_unread = is_unread;
        }
        self.ready.store(Arc::new(ready));
    }

    pub async fn ready(&self) -> Result<Arc<Credentials>, String> {
        let ready = (**self.ready.load()).clone();
        let ready = ready.map_err(|fault| fault.message)?;
        let Some(tokens) = &self.tokens else {
            return Ok(ready);
        };
        match tokens.known(&ready) {
            Some(full) => Ok(full),
            // The future is boxed, so that the futures of other calls do not reserve room for it.
            None => Box::pin(tokens.with_token(ready)).await,
        }
    }

    /// Reports that the service responded 401. Returns true if the next attempt gets another token, which may help.
    pub fn has_refused_token(&self, credentials: &Credentials) -> bool {
        let tokens = self.tokens.as_ref();
        tokens.is_some_and(|tokens| tokens.refused(credentials))
    }

    /// Returns the reason why no request can be made, or `None` if requests can be made.
    pub fn fault(&self) -> Option<AccessFault> {
        self.ready.load().as_ref().as_ref().err().cloned()
    }

    pub fn is_ready(&self) -> bool {
        self.ready.load().is_ok()
    }

    fn credentials(&self) -> Result<Credentials, AccessFault> {
        let spec = &self.spec;
        let refused = self.secrets.faults(spec, self.is_configured);
        if let Some((_, why)) = refused.into_iter().next() {
            return Err(why.into());
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
        let (mut client_secret, mut token_connector) = (None, None);
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
            // The token is added later, when it has been fetched.
            Some(AuthSpec::OAuth2(oauth)) => {
                let secret = found.get(&oauth.client_secret)?;
                // The token endpoint may echo the pair of client id and secret, so the redactor must find it.
                found.texts.push(oauth::basic_pair(oauth, secret.expose()));
                client_secret = Some(secret);
                let tls = oauth.tls.as_ref();
                let secured = tls
                    .map(|tls| secured(&self.secrets, tls, &self.token_connector, &self.token_tls))
                    .transpose();
                token_connector =
                    secured.map_err(|why| format!("for the token endpoint, {why}"))?;
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
        let mut signatures = Vec::new();
        for sign in &spec.sign {
            let named = SecretRef {
                secret: sign.secret.clone(),
            };
            let text = found.get(&named)?;
            if let Some(signature) = RequestSignature::new(sign, text.expose()) {
                let cannot = |why| AccessFault::of(&named, &format!("cannot sign: {why}"));
                signatures.push(signature.map_err(cannot)?);
                continue;
            }
            let key = Secret::parse(text.expose()).ok_or_else(|| {
                AccessFault::of(&named, &format!("cannot sign: it is not {SECRET_FORM}"))
            })?;
            signing.push(key);
        }
        let connector = spec.tls.as_ref();
        let connector = connector
            .map(|tls| secured(&self.secrets, tls, &self.connector, &self.tls))
            .transpose()?;
        let names = spec.secrets().into_iter();
        let names = names.filter(|used| !matches!(used.goes_to, SecretTarget::Token(_)));
        let names = names.map(|used| used.name.clone());
        Ok(Credentials {
            agent: self.agent.clone(),
            headers,
            query_names: spec.query.keys().cloned().collect(),
            query,
            body,
            signing,
            signatures,
            redactor: self.secrets.used.add(&self.agent, &found.texts),
            texts: found.texts,
            client_secret,
            connector,
            token_connector,
            names: names.collect(),
            secrets: Arc::clone(&self.secrets),
        })
    }
}

/// Returns a connector with the TLS settings of `spec`. The connector in `known` is replaced only when a text has
/// changed, because a new connector closes the connections.
fn secured(
    secrets: &SecretStore,
    spec: &AgentTlsSpec,
    connector: &CallConnector,
    known: &Mutex<Option<SecuredConnector>>,
) -> Result<CallConnector, String> {
    // The service never receives these texts, so the redactor does not look for them in responses.
    let text = |value: &TextOrSecret| match value {
        TextOrSecret::Text(text) => Ok(text.clone()),
        TextOrSecret::Secret(named) => {
            let text = secrets.get(&named.secret);
            text.map(|text| text.expose().to_owned())
        }
    };
    let key = spec.key.clone().map(TextOrSecret::Secret);
    let chain = spec.certificate.as_ref().map(text).transpose()?;
    let texts = TlsTexts {
        ca: spec.ca.as_ref().map(text).transpose()?,
        identity: chain.zip(key.as_ref().map(text).transpose()?),
        server_name: spec.server_name.clone(),
        min_version: spec.min_version,
    };
    let mut known = known.lock();
    if let Some((made_of, connector)) = &*known
        && *made_of == texts
    {
        return Ok(connector.clone());
    }
    let ClientTls {
        config,
        server_name,
    } = client_tls(&texts)?;
    let connector = connector.with_tls(config, server_name);
    *known = Some((texts, connector.clone()));
    Ok(connector)
}

/// Reads secrets, and collects the texts that the redactor must remove from records.
struct FoundSecrets<'s> {
    secrets: &'s SecretStore,
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

    fn header(&mut self, named: &SecretRef, scheme: &str) -> Result<HeaderValue, AccessFault> {
        let text = self.get(named)?;
        sensitive(&format!("{scheme}{}", text.expose())).map_err(|()| {
            let why = "cannot be sent in a header: it contains a line break, or a character that is not printable ASCII";
            AccessFault::of(named, why)
        })
    }
}
