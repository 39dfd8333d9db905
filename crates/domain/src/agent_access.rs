//! What an agent adds to every request so that its service lets Provost in: headers, query, members of the body,
//! credentials and signatures. Secrets are named, never contained: each instance has them from its own environment and
//! files. Who decides where a secret may go is the operator of the configuration file, not who registers an agent.

use std::collections::BTreeMap;

use http::{HeaderName, HeaderValue, header};
use serde::{Deserialize, Serialize};

use crate::{
    agent_spec::AgentSpec, definition::request::FRAMING_HEADERS, ids::SecretName,
    queue_address::QUEUE_SCHEME, web_address::WebAddress,
};

/// Of headers, of parameters and of members of the body, each.
const MOST_EXTRA: usize = 32;
/// Of signatures: enough for a rotation.
const MOST_SIGNATURES: usize = 4;
/// Characters of a name, or of a text that is no secret.
pub const LONGEST_EXTRA: usize = 4096;

/// `{ "secret": "payments-token" }`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretRef {
    pub secret: SecretName,
}

/// A value that an agent adds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged, expecting = "a text, or { secret = \"name\" } for a secret")]
pub enum TextOrSecret {
    Secret(SecretRef),
    Text(String),
}

impl TextOrSecret {
    fn secret(&self) -> Option<&SecretRef> {
        match self {
            TextOrSecret::Secret(named) => Some(named),
            TextOrSecret::Text(_) => None,
        }
    }
}

/// How the service knows that it is Provost who calls: the header `Authorization` of every request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthSpec {
    Basic(BasicSpec),
    /// The token.
    Bearer(SecretRef),
    /// A token that is fetched, and used until it expires.
    #[serde(rename = "oauth2")]
    OAuth2(OAuthSpec),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BasicSpec {
    pub user: String,
    pub password: SecretRef,
}

/// OAuth 2.0 with client credentials (RFC 6749, section 4.4).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OAuthSpec {
    pub token_url: String,
    pub client_id: String,
    pub client_secret: SecretRef,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
    #[serde(default)]
    pub method: ClientAuthMethod,
    /// How connections to the token endpoint are secured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<AgentTlsSpec>,
}

/// How the token endpoint gets id and secret of the client, by their names in RFC 7591.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ClientAuthMethod {
    /// In the header `Authorization`.
    #[default]
    ClientSecretBasic,
    /// In the body.
    ClientSecretPost,
}

impl ClientAuthMethod {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;
}

/// How connections to the endpoints of an agent, or to its token endpoint, are secured, where that is not as for all others.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentTlsSpec {
    /// Certificates in PEM form that are trusted, instead of those of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<TextOrSecret>,
    /// What is shown to the service, in PEM form: the certificate of `key`, and those that lead to its authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<TextOrSecret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<SecretRef>,
    /// The name in the certificate of the service, if it is not the host of the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_version: Option<TlsVersion>,
}

#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
pub enum TlsVersion {
    #[serde(rename = "1.2")]
    #[strum(serialize = "1.2")]
    Tls12,
    #[serde(rename = "1.3")]
    #[strum(serialize = "1.3")]
    Tls13,
}

impl TlsVersion {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;
}

/// The version of HTTP that the endpoints of an agent are called with.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
pub enum HttpVersion {
    #[serde(rename = "1.1")]
    #[strum(serialize = "1.1")]
    Http1,
    /// By ALPN with `https://`, and by prior knowledge with `http://`.
    #[serde(rename = "2")]
    #[strum(serialize = "2")]
    Http2,
}

impl HttpVersion {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;
}

/// Where an agent uses a secret.
#[derive(PartialEq, Debug)]
pub struct SecretUse<'s> {
    /// Of the name, below that of the specification.
    pub pointer: String,
    pub name: &'s SecretName,
    pub goes_to: SecretTarget<'s>,
}

/// What gets a secret, or a proof that Provost has it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SecretTarget<'s> {
    Endpoints,
    /// This token endpoint, and the endpoints get what the secret is exchanged for.
    EndpointsAndToken(&'s str),
    /// Only this token endpoint.
    Token(&'s str),
}

/// Whose a secret is, by the configuration file of an instance.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SecretScope<'s> {
    /// It is sent to these URLs, and what is below them.
    Urls(&'s [WebAddress]),
    /// No URL is listed: for the agents of the configuration file alone.
    ConfiguredAgents,
}

impl AgentSpec {
    /// Whether its requests are those of the steps, and no more.
    pub fn adds_nothing(&self) -> bool {
        self.headers.is_empty()
            && self.query.is_empty()
            && self.body.is_empty()
            && self.auth.is_none()
            && self.sign.is_empty()
            && self.tls.is_none()
    }

    /// Every use of a secret.
    pub fn secrets(&self) -> Vec<SecretUse<'_>> {
        let mut uses = Vec::new();
        let mut add = |pointer: String, name| {
            uses.push(SecretUse {
                pointer: format!("/{pointer}/secret"),
                name,
                goes_to: SecretTarget::Endpoints,
            });
        };
        let added = [
            ("headers", &self.headers),
            ("query", &self.query),
            ("body", &self.body),
        ];
        for (field, values) in added {
            for (name, value) in values {
                if let TextOrSecret::Secret(named) = value {
                    add(format!("{field}/{}", escape(name)), &named.secret);
                }
            }
        }
        match &self.auth {
            Some(AuthSpec::Basic(basic)) => {
                add("auth/basic/password".to_owned(), &basic.password.secret);
            }
            Some(AuthSpec::Bearer(token)) => add("auth/bearer".to_owned(), &token.secret),
            Some(AuthSpec::OAuth2(_)) | None => {}
        }
        for (at, named) in self.sign.iter().enumerate() {
            add(format!("sign/{at}"), &named.secret);
        }
        if let Some(tls) = &self.tls {
            for (field, name) in tls.secrets() {
                add(format!("tls/{field}"), name);
            }
        }
        if let Some(AuthSpec::OAuth2(oauth)) = &self.auth {
            uses.push(SecretUse {
                pointer: "/auth/oauth2/client_secret/secret".to_owned(),
                name: &oauth.client_secret.secret,
                goes_to: SecretTarget::EndpointsAndToken(&oauth.token_url),
            });
            let tls = oauth.tls.iter().flat_map(AgentTlsSpec::secrets);
            uses.extend(tls.map(|(field, name)| SecretUse {
                pointer: format!("/auth/oauth2/tls/{field}/secret"),
                name,
                goes_to: SecretTarget::Token(&oauth.token_url),
            }));
        }
        uses
    }

    /// The secrets that it may not use, or that are not there: the pointer of each, and why. `is_configured`: the
    /// configuration file defines the agent.
    ///
    /// The name of an agent grants nothing, since what is registered under it can be changed by anyone who may register
    /// agents: the address that gets the secret counts.
    pub fn secret_faults<'s>(
        &self,
        is_configured: bool,
        scope: impl Fn(&SecretName) -> Option<SecretScope<'s>>,
    ) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        for used in self.secrets() {
            let SecretUse {
                pointer,
                name,
                goes_to,
            } = used;
            let fault = match scope(name) {
                None => Some(format!(
                    "the secret `{name}` is not configured at this instance: add it to [[secrets]] of its configuration file"
                )),
                Some(SecretScope::ConfiguredAgents) if is_configured => None,
                Some(SecretScope::ConfiguredAgents) => Some(format!(
                    "the secret `{name}` is for agents of the configuration file only: list the URLs that may get it as `urls` of its [[secrets]]"
                )),
                Some(SecretScope::Urls(urls)) => self.outside(urls, goes_to).map(|url| {
                    format!(
                        "the secret `{name}` may not be sent to {url}: that is not below the `urls` of its [[secrets]]"
                    )
                }),
            };
            faults.extend(fault.map(|fault| (pointer, fault)));
        }
        faults
    }

    /// The first address that is below none of these.
    fn outside<'s>(&'s self, urls: &[WebAddress], goes_to: SecretTarget<'s>) -> Option<&'s str> {
        let endpoints = self.endpoints.iter().map(|endpoint| &*endpoint.url);
        let (endpoints, token) = match goes_to {
            SecretTarget::Endpoints => (Some(endpoints), None),
            SecretTarget::EndpointsAndToken(url) => (Some(endpoints), Some(url)),
            SecretTarget::Token(url) => (None, Some(url)),
        };
        let mut addresses = endpoints.into_iter().flatten().chain(token);
        addresses.find(|url| !is_below_any(url, urls))
    }

    /// What is wrong with what it adds: pointers below that of the specification, and messages.
    pub(crate) fn access_faults(&self) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        let mut fault = |pointer: String, message: String| faults.push((pointer, message));
        let is_queue = |endpoint: &crate::Endpoint| endpoint.url.starts_with(QUEUE_SCHEME);
        let has_queue = self.endpoints.iter().any(is_queue);
        for field in self.access_fields() {
            if has_queue {
                let message = "remove it: an agent with a queue sends no HTTP requests";
                fault(field.to_owned(), message.to_owned());
            }
        }
        let added = [
            ("headers", &self.headers),
            ("query", &self.query),
            ("body", &self.body),
        ];
        for (field, values) in added {
            if values.len() > MOST_EXTRA {
                let message = format!("must hold at most {MOST_EXTRA}, holds {}", values.len());
                fault(field.to_owned(), message);
                continue;
            }
            for (name, value) in values {
                let pointer = format!("{field}/{}", escape(name));
                if name.is_empty() || too_long(name) {
                    let message = format!("needs a name of 1 to {LONGEST_EXTRA} characters");
                    fault(pointer.clone(), message);
                }
                match value {
                    TextOrSecret::Text(text) if too_long(text) => {
                        let message = format!("must be at most {LONGEST_EXTRA} characters long");
                        fault(pointer.clone(), message);
                    }
                    TextOrSecret::Secret(named) => {
                        if let Some(message) = name_fault(&named.secret) {
                            fault(format!("{pointer}/secret"), message);
                        }
                    }
                    TextOrSecret::Text(_) => {}
                }
                if field == "headers"
                    && let Err(message) = check_header(name, value)
                {
                    fault(pointer, message);
                }
            }
        }
        let has_authorization = self.headers.keys().any(|name| {
            HeaderName::from_bytes(name.as_bytes()).is_ok_and(|name| name == header::AUTHORIZATION)
        });
        if has_authorization && self.auth.is_some() {
            let message = "remove it, or `auth`: both set the header Authorization";
            fault("headers/authorization".to_owned(), message.to_owned());
        }
        match &self.auth {
            Some(AuthSpec::Basic(BasicSpec { user, password })) => {
                // RFC 7617, section 2.
                if user.contains(':') || user.contains(|c: char| c.is_control()) || too_long(user) {
                    let message = format!(
                        "must have no colon, no control characters and at most {LONGEST_EXTRA} characters"
                    );
                    fault("auth/basic/user".to_owned(), message);
                }
                if let Some(message) = name_fault(&password.secret) {
                    fault("auth/basic/password/secret".to_owned(), message);
                }
            }
            Some(AuthSpec::Bearer(token)) => {
                if let Some(message) = name_fault(&token.secret) {
                    fault("auth/bearer/secret".to_owned(), message);
                }
            }
            Some(AuthSpec::OAuth2(oauth)) => {
                for (field, message) in oauth.faults() {
                    fault(format!("auth/oauth2/{field}"), message);
                }
            }
            None => {}
        }
        if let Some(tls) = &self.tls {
            let is_https = |endpoint: &crate::Endpoint| endpoint.url.starts_with("https://");
            if !has_queue && !self.endpoints.iter().any(is_https) {
                let message = "remove it, or give an endpoint with https://: this one has no TLS";
                fault("tls".to_owned(), message.to_owned());
            }
            for (field, message) in tls.faults() {
                fault(format!("tls/{field}"), message);
            }
        }
        if self.sign.len() > MOST_SIGNATURES {
            let message = format!("must hold at most {MOST_SIGNATURES} secrets");
            fault("sign".to_owned(), message);
        }
        for (at, named) in self.sign.iter().enumerate() {
            if let Some(message) = name_fault(&named.secret) {
                fault(format!("sign/{at}/secret"), message);
            }
        }
        faults
    }

    /// The names of the fields that say what it adds.
    pub(crate) fn access_fields(&self) -> Vec<&'static str> {
        let fields = [
            ("headers", !self.headers.is_empty()),
            ("query", !self.query.is_empty()),
            ("body", !self.body.is_empty()),
            ("auth", self.auth.is_some()),
            ("sign", !self.sign.is_empty()),
            ("tls", self.tls.is_some()),
            ("http_version", self.http_version.is_some()),
        ];
        let given = fields.into_iter().filter(|(_, is_given)| *is_given);
        given.map(|(name, _)| name).collect()
    }
}

impl OAuthSpec {
    fn faults(&self) -> Vec<(String, String)> {
        let mut faults: Vec<(String, String)> = Vec::new();
        let is_https = match WebAddress::parse(&self.token_url) {
            Ok(_) => self.token_url.starts_with("https://"),
            Err(message) => {
                faults.push(("token_url".to_owned(), message));
                // One fault is enough.
                true
            }
        };
        let texts = [
            ("client_id", Some(&self.client_id)),
            ("scope", self.scope.as_ref()),
            ("audience", self.audience.as_ref()),
        ];
        for (field, text) in texts {
            let wrong = |text: &String| {
                text.is_empty() || too_long(text) || text.contains(|c: char| c.is_control())
            };
            if text.is_some_and(wrong) {
                let message =
                    format!("must be 1 to {LONGEST_EXTRA} characters, without control characters");
                faults.push((field.to_owned(), message));
            }
        }
        if let Some(message) = name_fault(&self.client_secret.secret) {
            faults.push(("client_secret/secret".to_owned(), message));
        }
        if let Some(tls) = &self.tls {
            if !is_https {
                let message = "remove it, or give a token_url with https://: this one has no TLS";
                faults.push(("tls".to_owned(), message.to_owned()));
            }
            let of_tls = tls.faults().into_iter();
            faults.extend(of_tls.map(|(field, message)| (format!("tls/{field}"), message)));
        }
        faults
    }
}

/// Bytes of certificates.
pub const LONGEST_PEM: usize = 64 << 10;

impl AgentTlsSpec {
    /// The fields that name secrets, each with its secret.
    fn secrets(&self) -> Vec<(&'static str, &SecretName)> {
        let fields = [
            ("ca", self.ca.as_ref().and_then(TextOrSecret::secret)),
            (
                "certificate",
                self.certificate.as_ref().and_then(TextOrSecret::secret),
            ),
            ("key", self.key.as_ref()),
        ];
        let named = fields.into_iter();
        named
            .filter_map(|(field, named)| Some((field, &named?.secret)))
            .collect()
    }

    fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        let texts = [
            ("ca", "ca/secret", &self.ca),
            ("certificate", "certificate/secret", &self.certificate),
        ];
        for (field, secret_field, value) in texts {
            match value {
                Some(TextOrSecret::Text(pem)) if pem.contains("PRIVATE KEY") => {
                    // It was stored and shown, had it been accepted.
                    let message =
                        "contains a private key: replace that key, and name a secret as `key`";
                    faults.push((field, message.to_owned()));
                }
                Some(TextOrSecret::Text(pem))
                    if pem.len() > LONGEST_PEM || !pem.contains("-----BEGIN CERTIFICATE-----") =>
                {
                    let message = format!(
                        "must be certificates in PEM form, -----BEGIN CERTIFICATE----- and so on, of at most {LONGEST_PEM} bytes; or name a secret"
                    );
                    faults.push((field, message));
                }
                Some(TextOrSecret::Secret(named)) => {
                    faults.extend(name_fault(&named.secret).map(|message| (secret_field, message)));
                }
                Some(TextOrSecret::Text(_)) | None => {}
            }
        }
        match (&self.certificate, &self.key) {
            (Some(_), None) => {
                let message = "is missing: name the secret with the private key of `certificate`";
                faults.push(("key", message.to_owned()));
            }
            (None, Some(_)) => {
                let message = "is missing: give the certificate that belongs to `key`";
                faults.push(("certificate", message.to_owned()));
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        if let Some(key) = &self.key {
            let message = name_fault(&key.secret);
            faults.extend(message.map(|message| ("key/secret", message)));
        }
        let is_name = |name: &str| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':');
            (1..=253).contains(&name.len()) && name.bytes().all(plain)
        };
        if self
            .server_name
            .as_deref()
            .is_some_and(|name| !is_name(name))
        {
            let message = "must be the name of a host, or an IP address";
            faults.push(("server_name", message.to_owned()));
        }
        faults
    }
}

/// What a specification has in one of its maps.
pub type ExtraFields = BTreeMap<String, TextOrSecret>;

fn is_below_any(url: &str, urls: &[WebAddress]) -> bool {
    WebAddress::parse(url).is_ok_and(|url| urls.iter().any(|base| url.is_below(base)))
}

fn too_long(text: &str) -> bool {
    text.len() > LONGEST_EXTRA
}

fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Names of secrets are part of messages and metrics.
pub fn is_secret_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

fn name_fault(name: &SecretName) -> Option<String> {
    (!is_secret_name(name.as_str()))
        .then(|| "must be 1 to 64 of the characters a-z A-Z 0-9 . _ -".to_owned())
}

/// Headers that frame the message, and those that Provost sets for each call.
fn check_header(name: &str, value: &TextOrSecret) -> Result<(), String> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| "needs the name of a header".to_owned())?;
    let lower = parsed.as_str();
    if FRAMING_HEADERS.contains(&parsed)
        || lower.starts_with("provost-")
        || lower.starts_with("webhook-")
        || ["idempotency-key", "traceparent", "tracestate"].contains(&lower)
    {
        return Err("is set by Provost: remove it".to_owned());
    }
    let TextOrSecret::Text(text) = value else {
        return Ok(());
    };
    if is_credential(lower) {
        // It would be stored and shown.
        return Err(
            "must name a secret, as in { \"secret\": \"name\" }, and not contain one".to_owned(),
        );
    }
    match HeaderValue::from_str(text) {
        Ok(_) => Ok(()),
        Err(_) => Err(
            "contains a line break or another character that is not allowed in a header".to_owned(),
        ),
    }
}

/// Whether a header with this name has no other use than to carry a secret. A header that is only hidden where it is
/// shown ([`crate::hidden::is_secret_header`]) may have one.
fn is_credential(name: &str) -> bool {
    const NAMES: [&str; 5] = [
        "authorization",
        "proxy-authorization",
        "cookie",
        "x-api-key",
        "api-key",
    ];
    const PARTS: [&str; 3] = ["token", "secret", "password"];
    NAMES.contains(&name) || PARTS.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(added: Value) -> AgentSpec {
        let mut spec = json!({ "endpoints": [{ "url": "https://payments.example/v1" }] });
        spec.as_object_mut()
            .unwrap()
            .extend(added.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    fn faults(added: Value) -> Vec<String> {
        let faults = spec(added).faults("");
        faults.into_iter().map(|(pointer, _)| pointer).collect()
    }

    #[test]
    fn what_is_added_is_read_and_written_alike() {
        let added = json!({
            "endpoints": [{ "url": "https://payments.example/v1", "max_in_flight": 64 }],
            "retry": { "initial": "100ms", "max": "10s", "factor": 2 },
            "headers": { "x-tenant": "acme", "x-api-key": { "secret": "key" } },
            "query": { "key": { "secret": "key" } },
            "body": { "api_key": { "secret": "key" } },
            "auth": { "basic": { "user": "provost", "password": { "secret": "password" } } },
            "sign": [{ "secret": "signing" }],
            "http_version": "2",
        });
        let read: AgentSpec = serde_json::from_value(added.clone()).unwrap();
        assert_eq!(read.faults(""), []);
        assert_eq!(serde_json::to_value(&read).unwrap(), added);
        let uses: Vec<_> = read
            .secrets()
            .into_iter()
            .map(|used| used.pointer)
            .collect();
        assert_eq!(
            uses,
            [
                "/headers/x-api-key/secret",
                "/query/key/secret",
                "/body/api_key/secret",
                "/auth/basic/password/secret",
                "/sign/0/secret"
            ]
        );
    }

    #[test]
    fn what_cannot_be_sent_or_should_be_a_secret_is_refused() {
        for (added, pointer) in [
            (json!({ "headers": { "host": "evil" } }), "/headers/host"),
            (
                json!({ "headers": { "Provost-Task": "x" } }),
                "/headers/Provost-Task",
            ),
            (
                json!({ "headers": { "webhook-id": "x" } }),
                "/headers/webhook-id",
            ),
            (json!({ "headers": { "x y": "z" } }), "/headers/x y"),
            (json!({ "headers": { "x": "a\nb" } }), "/headers/x"),
            (
                json!({ "headers": { "Authorization": "Bearer abc" } }),
                "/headers/Authorization",
            ),
            (
                json!({ "headers": { "x-auth-token": "abc" } }),
                "/headers/x-auth-token",
            ),
            (
                json!({ "headers": { "x": { "secret": "a b" } } }),
                "/headers/x/secret",
            ),
            (json!({ "query": { "": "x" } }), "/query/"),
            (json!({ "body": { "a": "x".repeat(4097) } }), "/body/a"),
            (
                json!({ "auth": { "basic": { "user": "a:b", "password": { "secret": "p" } } } }),
                "/auth/basic/user",
            ),
            (
                json!({ "auth": { "bearer": { "secret": "" } } }),
                "/auth/bearer/secret",
            ),
            (
                json!({ "auth": { "bearer": { "secret": "p" } },
                    "headers": { "authorization": { "secret": "p" } } }),
                "/headers/authorization",
            ),
            (
                json!({ "sign": [{ "secret": "/etc/passwd" }] }),
                "/sign/0/secret",
            ),
        ] {
            assert_eq!(faults(added.clone()), [pointer], "{added}");
        }
    }

    #[test]
    fn nothing_is_added_where_no_http_request_is_sent() {
        let added = json!({ "headers": { "x": "y" }, "auth": { "bearer": { "secret": "p" } },
            "http_version": "2" });
        let mut queue = spec(added.clone());
        queue.endpoints[0].url = "amqp://broker/charges".to_owned();
        let faults: Vec<_> = queue.faults("").into_iter().map(|(at, _)| at).collect();
        assert_eq!(faults, ["/headers", "/auth", "/http_version"]);
        let mut pull = spec(added);
        pull.mode = crate::AgentMode::Pull;
        pull.endpoints.clear();
        let faults: Vec<_> = pull.faults("").into_iter().map(|(at, _)| at).collect();
        assert_eq!(faults, ["/headers", "/auth", "/http_version"]);
    }

    #[test]
    fn tls_and_tokens_that_cannot_work_are_refused() {
        const PEM: &str = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n";
        let key = "-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\n";
        let oauth = |token_url: &str, id: &str| {
            json!({ "auth": { "oauth2": { "token_url": token_url, "client_id": id,
                "client_secret": { "secret": "s" } } } })
        };
        for (added, pointer) in [
            (json!({ "tls": { "ca": "no PEM" } }), "/tls/ca"),
            (json!({ "tls": { "ca": format!("{PEM}{key}") } }), "/tls/ca"),
            (
                json!({ "tls": { "ca": { "secret": "" } } }),
                "/tls/ca/secret",
            ),
            (json!({ "tls": { "certificate": PEM } }), "/tls/key"),
            (
                json!({ "tls": { "key": { "secret": "k" } } }),
                "/tls/certificate",
            ),
            (
                json!({ "tls": { "server_name": "a b" } }),
                "/tls/server_name",
            ),
            (oauth("ftp://h", "id"), "/auth/oauth2/token_url"),
            (oauth("https://user@h", "id"), "/auth/oauth2/token_url"),
            (oauth("https://h/token", ""), "/auth/oauth2/client_id"),
        ] {
            assert_eq!(faults(added.clone()), [pointer], "{added}");
        }
        let mut plain = spec(json!({ "tls": { "min_version": "1.3" } }));
        assert_eq!(plain.faults(""), []);
        plain.endpoints[0].url = "http://payments".to_owned();
        assert_eq!(plain.faults("")[0].0, "/tls");
    }

    #[test]
    fn tls_of_the_token_endpoint_is_that_of_an_agent_and_its_key_goes_nowhere_else() {
        const PEM: &str = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n";
        let of = |token_url: &str, tls: Value| {
            json!({ "auth": { "oauth2": { "token_url": token_url, "client_id": "id",
                "client_secret": { "secret": "s" }, "tls": tls } } })
        };
        let (login, payments) = ("https://login.example", "https://payments.example");
        for (tls, pointer) in [
            (json!({ "ca": "no PEM" }), "/auth/oauth2/tls/ca"),
            (json!({ "certificate": PEM }), "/auth/oauth2/tls/key"),
            (
                json!({ "server_name": "a b" }),
                "/auth/oauth2/tls/server_name",
            ),
        ] {
            assert_eq!(faults(of(login, tls)), [pointer]);
        }
        let plain = of("http://login.example", json!({ "min_version": "1.3" }));
        assert_eq!(faults(plain), ["/auth/oauth2/tls"]);
        let spec = spec(of(
            login,
            json!({ "certificate": PEM, "key": { "secret": "k" } }),
        ));
        let names: Vec<_> = spec.secrets().into_iter().map(|used| used.name).collect();
        assert_eq!(names, [&SecretName::new("s"), &SecretName::new("k")]);
        let refused = |urls: &[&str]| -> Vec<String> {
            let urls = urls.iter().map(|url| WebAddress::parse(url).unwrap());
            let urls: Vec<_> = urls.collect();
            let faults = spec.secret_faults(false, |_| Some(SecretScope::Urls(&urls)));
            faults.into_iter().map(|(pointer, _)| pointer).collect()
        };
        let (client, key) = (
            "/auth/oauth2/client_secret/secret",
            "/auth/oauth2/tls/key/secret",
        );
        // The endpoints get the token, but nothing of the key.
        assert_eq!(refused(&[login]), [client]);
        assert_eq!(refused(&[payments]), [client, key]);
        assert!(refused(&[login, payments]).is_empty());
        let read: AgentSpec = serde_json::from_str(&serde_json::to_string(&spec).unwrap()).unwrap();
        assert_eq!(read, spec);
    }

    /// The token goes to the endpoints: with a secret for the token endpoint alone, anyone could have one sent to them.
    #[test]
    fn a_client_secret_is_bound_to_token_endpoint_and_endpoints() {
        let spec = spec(
            json!({ "auth": { "oauth2": { "token_url": "https://login.example/token",
            "client_id": "provost", "client_secret": { "secret": "s" } } } }),
        );
        let (login, payments) = ("https://login.example", "https://payments.example");
        assert_eq!(refusals(&spec, false, Some(&[login])), 1);
        assert_eq!(refusals(&spec, false, Some(&[payments])), 1);
        assert_eq!(refusals(&spec, false, Some(&[payments, login])), 0);
    }

    fn refusals(spec: &AgentSpec, is_configured: bool, urls: Option<&[&str]>) -> usize {
        let urls = urls.map(|urls| {
            let parsed = urls.iter().map(|url| WebAddress::parse(url).unwrap());
            parsed.collect::<Vec<_>>()
        });
        let scope = |_: &SecretName| match &urls {
            Some(urls) => Some(SecretScope::Urls(urls)),
            None => Some(SecretScope::ConfiguredAgents),
        };
        spec.secret_faults(is_configured, scope).len()
    }

    #[test]
    fn a_secret_goes_only_where_the_configuration_file_lets_it() {
        let spec = spec(json!({ "auth": { "bearer": { "secret": "token" } } }));
        for (urls, is_refused) in [
            (&["https://payments.example"][..], false),
            (&["https://payments.example/v1"], false),
            (
                &["https://other.example", "https://payments.example"],
                false,
            ),
            (&["https://payments.example/v1/charges"], true),
            (&["https://payments.example/v"], true),
            (&["http://payments.example"], true),
            (&["https://payments.example:8443"], true),
            (&["https://payments.example.evil.example"], true),
            (&["https://evil.example"], true),
        ] {
            for is_configured in [true, false] {
                let refused = refusals(&spec, is_configured, Some(urls));
                assert_eq!(refused == 1, is_refused, "{urls:?}");
            }
        }
        assert_eq!(refusals(&spec, true, None), 0);
        assert_eq!(refusals(&spec, false, None), 1);
        assert_eq!(spec.secret_faults(true, |_| None).len(), 1);
    }

    #[test]
    fn one_endpoint_elsewhere_is_enough_to_refuse_the_secret() {
        let mut spec = spec(json!({ "sign": [{ "secret": "key" }] }));
        spec.endpoints.push(crate::Endpoint {
            url: "https://evil.example".to_owned(),
            max_in_flight: 1,
            zone: None,
            drain: false,
        });
        assert_eq!(
            refusals(&spec, false, Some(&["https://payments.example"])),
            1
        );
    }
}
