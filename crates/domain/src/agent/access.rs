//! Extra parts of every request to an agent, with which its service lets Provost in: headers, query, members of the
//! body, credentials and signatures. Secrets are named, never contained: each instance has them from its own
//! environment and files.

use std::collections::BTreeMap;

use http::{HeaderName, HeaderValue};
use provost_object::{
    Bounds, Definitions, Faults, FieldValue, Object, Place, Unfit, read_text, text, text_schema,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use crate::{
    definition::request::FRAMING_HEADERS,
    values::{
        ids::SecretName,
        plain_name::{PLAIN_WORD, is_plain_word},
        web_address::{LONGEST_URL, WebAddress},
    },
};

/// The most headers, the most parameters and the most members of the body.
pub(crate) const MOST_EXTRA: usize = 32;
/// The most signatures, which is enough for a rotation.
pub(crate) const MOST_SIGNATURES: usize = 4;
/// The most characters of a name, or of a text that is no secret.
const LONGEST_EXTRA: usize = 4096;

/// A secret of the configuration file, `[[secrets]]`, by its name.
#[derive(Clone, PartialEq, Eq, Debug, Object)]
pub struct SecretRef {
    #[field(
        1..=64,
        required = "give the name of a secret of [[secrets]]",
        check = check_secret_name,
        pattern = "^[a-zA-Z0-9._-]+$",
        example = "payments-token"
    )]
    pub secret: SecretName,
}

impl FieldValue for SecretName {
    type Bound = usize;

    fn read(value: &RawValue, _: Place<'_>, bounds: &Bounds<usize>) -> Result<Self, Unfit> {
        Ok(Self::new(read_text(value, bounds)?))
    }

    fn schema(bounds: &Bounds<usize>, _: &mut Definitions) -> Value {
        text_schema(bounds)
    }

    fn form(_: &Bounds<usize>) -> String {
        "name of a secret".to_owned()
    }
}

/// A value that an agent adds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged, expecting = "a text, or { secret = \"name\" } for a secret")]
pub enum TextOrSecret {
    Secret(SecretRef),
    Text(String),
}

impl TextOrSecret {
    const ABOUT: &str = "A text, or the name of a secret. A text is stored and shown.";

    pub(crate) fn secret(&self) -> Option<&SecretRef> {
        match self {
            TextOrSecret::Secret(named) => Some(named),
            TextOrSecret::Text(_) => None,
        }
    }
}

impl FieldValue for TextOrSecret {
    /// Bytes of the text.
    type Bound = usize;

    fn read(value: &RawValue, place: Place<'_>, bounds: &Bounds<usize>) -> Result<Self, Unfit> {
        let Some(text) = text(value.get()) else {
            return match value.get().starts_with('{') {
                true => SecretRef::read(value, place, &Bounds::ANY).map(Self::Secret),
                false => Err(Unfit::Value(
                    "must be a text, or name a secret: {\"secret\": \"payments-token\"}".to_owned(),
                )),
            };
        };
        // The value is not repeated: a careless hand may have put a secret there.
        let longest = bounds.most.unwrap_or(LONGEST_EXTRA);
        match text.contains('\0') {
            false if text.len() <= longest => Ok(Self::Text(text.into())),
            false => Err(Unfit::Value(format!(
                "must be at most {longest} bytes long"
            ))),
            true => Err(Unfit::Value(
                "cannot contain the character U+0000".to_owned(),
            )),
        }
    }

    fn schema(_: &Bounds<usize>, definitions: &mut Definitions) -> Value {
        definitions.refer("TextOrSecret", |definitions| {
            let secret = definitions.object::<SecretRef>();
            json!({ "oneOf": [secret, { "type": "string" }], "description": Self::ABOUT })
        })
    }

    fn form(_: &Bounds<usize>) -> String {
        "text or [SecretRef](#secretref)".to_owned()
    }
}

/// The header `Authorization` of every request: one of these.
#[derive(Clone, PartialEq, Eq, Debug, Object)]
#[object(name = "AgentAuth")]
pub enum AuthSpec {
    /// A user and a password (RFC 7617).
    Basic(BasicSpec),
    /// A token (RFC 6750).
    Bearer(SecretRef),
    #[field(rename = "oauth2")]
    OAuth2(OAuthSpec),
}

/// A user and a password.
#[derive(Clone, PartialEq, Eq, Debug, Object)]
#[object(name = "BasicAuth")]
pub struct BasicSpec {
    /// Without a colon.
    #[field(
        ..=LONGEST_EXTRA,
        required = "give the name of the user",
        check = check_user,
        example = "provost"
    )]
    pub user: String,
    #[field(required = "name a secret: {\"secret\": \"payments-token\"}")]
    pub password: SecretRef,
}

/// A token by OAuth 2.0 with client credentials (RFC 6749, section 4.4). It is fetched when a call needs one, and used by all
/// calls of this instance until shortly before it expires, or until the service responds 401.
#[derive(Clone, PartialEq, Eq, Debug, Object)]
#[object(name = "OAuthClient", check = OAuthSpec::check_tls)]
pub struct OAuthSpec {
    /// The token endpoint. The `urls` of the client secret must cover it and the endpoints, which get the token.
    #[field(
        ..=LONGEST_URL,
        required = "give the URL of the token endpoint",
        check = check_token_url,
        example = "https://login.example/oauth2/token"
    )]
    pub token_url: String,
    #[field(
        1..=LONGEST_EXTRA,
        required = "give the name of the client",
        check = check_client_text,
        example = "provost"
    )]
    pub client_id: String,
    #[field(required = "name a secret: {\"secret\": \"payments-token\"}")]
    pub client_secret: SecretRef,
    #[field(1..=LONGEST_EXTRA, check = check_client_text, example = "payments.write")]
    pub scope: Option<String>,
    #[field(1..=LONGEST_EXTRA, check = check_client_text, example = "https://payments.example")]
    pub audience: Option<String>,
    #[field(default)]
    pub method: ClientAuthMethod,
    /// The TLS settings of connections to the token endpoint, whose URL must begin with `https://`.
    pub tls: Option<AgentTlsSpec>,
}

/// The way in which the token endpoint gets id and secret: `client_secret_basic`, the default: in the header `Authorization`; `client_secret_post`: in the body
// The names are those of RFC 7591.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Object)]
pub enum ClientAuthMethod {
    #[default]
    ClientSecretBasic,
    ClientSecretPost,
}

/// The TLS settings of connections, where they are not those of all agents. At least one endpoint must begin with `https://`.
#[derive(Clone, PartialEq, Eq, Debug, Object)]
#[object(name = "AgentTls", default, check = AgentTlsSpec::check_pair)]
pub struct AgentTlsSpec {
    /// Certificates in PEM form, which are trusted instead of those of the machine.
    #[field(..=LONGEST_PEM, check = check_certificates)]
    pub ca: Option<TextOrSecret>,
    /// The client's certificate in PEM form, and those that lead to its authority. With `key`.
    #[field(..=LONGEST_PEM, check = check_certificates)]
    pub certificate: Option<TextOrSecret>,
    /// The private key of `certificate`, in PEM form.
    pub key: Option<SecretRef>,
    /// The name in the service's certificate, if it is not the host of the URL.
    #[field(1..=LONGEST_HOST, check = check_server_name, example = "payments.internal")]
    pub server_name: Option<String>,
    pub min_version: Option<TlsVersion>,
}

/// The least version of TLS. Default: 1.2
#[derive(Clone, Copy, PartialEq, Eq, Debug, Object)]
pub enum TlsVersion {
    #[field(rename = "1.2")]
    Tls12,
    #[field(rename = "1.3")]
    Tls13,
}

/// The version of HTTP
#[derive(Clone, Copy, PartialEq, Eq, Debug, Object)]
pub enum HttpVersion {
    #[field(rename = "1.1")]
    Http1,
    // Connections choose it by ALPN with `https://`, and by prior knowledge with `http://`.
    #[field(rename = "2")]
    Http2,
}

impl OAuthSpec {
    fn check_tls(&self, faults: &mut Faults) {
        let is_plain = !self.token_url.starts_with("https://");
        // A URL that cannot be read is one fault, and enough.
        if self.tls.is_some() && is_plain && WebAddress::parse(&self.token_url).is_ok() {
            let message = "remove it, or give a token_url with https://: this one has no TLS";
            faults.field("tls", message);
        }
    }
}

fn check_token_url(url: &str, faults: &mut Faults) {
    if let Err(message) = WebAddress::parse(url) {
        faults.add(message);
    }
}

fn check_client_text(text: &str, faults: &mut Faults) {
    if text.is_empty() || too_long(text) || text.contains(|c: char| c.is_control()) {
        faults.add(format!(
            "must be 1 to {LONGEST_EXTRA} characters, without control characters"
        ));
    }
}

/// RFC 7617, section 2.
fn check_user(user: &str, faults: &mut Faults) {
    if user.contains(':') || user.contains(|c: char| c.is_control()) || too_long(user) {
        faults.add(format!(
            "must have no colon, no control characters and at most {LONGEST_EXTRA} characters"
        ));
    }
}

pub(crate) fn check_headers(headers: &ExtraFields, faults: &mut Faults) {
    check_each(headers, check_header, faults);
}

pub(crate) fn check_extra(values: &ExtraFields, faults: &mut Faults) {
    check_each(values, |_, _| Ok(()), faults);
}

/// Checks what is added in one place, and each by a rule of that place.
fn check_each(
    values: &ExtraFields,
    rule: impl Fn(&str, &TextOrSecret) -> Result<(), String>,
    faults: &mut Faults,
) {
    if values.len() > MOST_EXTRA {
        let message = format!("must hold at most {MOST_EXTRA}, holds {}", values.len());
        return faults.add(message);
    }
    for (name, value) in values {
        faults.part(name, |faults| {
            if name.is_empty() || too_long(name) {
                faults.add(format!("needs a name of 1 to {LONGEST_EXTRA} characters"));
            }
            match value {
                TextOrSecret::Text(text) if too_long(text) => {
                    faults.add(format!("must be at most {LONGEST_EXTRA} characters long"));
                }
                TextOrSecret::Secret(named) => named.check_fields(faults),
                TextOrSecret::Text(_) => {}
            }
            if let Err(message) = rule(name, value) {
                faults.add(message);
            }
        });
    }
}

/// The longest name of a host.
const LONGEST_HOST: usize = 253;

/// Bytes of certificates.
const LONGEST_PEM: usize = 64 << 10;

impl AgentTlsSpec {
    /// The fields that name secrets, each with its secret.
    pub(crate) fn secrets(&self) -> Vec<(&'static str, &SecretName)> {
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

    fn check_pair(&self, faults: &mut Faults) {
        match (&self.certificate, &self.key) {
            (Some(_), None) => {
                let message = "is missing: name the secret with the private key of `certificate`";
                faults.field("key", message);
            }
            (None, Some(_)) => {
                let message = "is missing: give the certificate that belongs to `key`";
                faults.field("certificate", message);
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
    }
}

fn check_certificates(value: &TextOrSecret, faults: &mut Faults) {
    match value {
        TextOrSecret::Text(pem) if pem.contains("PRIVATE KEY") => {
            // It was stored and shown, had it been accepted.
            faults.add("contains a private key: replace that key, and name a secret as `key`");
        }
        TextOrSecret::Text(pem)
            if pem.len() > LONGEST_PEM || !pem.contains("-----BEGIN CERTIFICATE-----") =>
        {
            faults.add(format!(
                "must be certificates in PEM form, -----BEGIN CERTIFICATE----- and so on, of at most {LONGEST_PEM} bytes; or name a secret"
            ));
        }
        TextOrSecret::Secret(named) => named.check_fields(faults),
        TextOrSecret::Text(_) => {}
    }
}

fn check_server_name(name: &str, faults: &mut Faults) {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':');
    if !(1..=LONGEST_HOST).contains(&name.len()) || !name.bytes().all(plain) {
        faults.add("must be the name of a host, or an IP address");
    }
}

/// One map of a specification: its headers, parameters or members of the body, by name.
pub type ExtraFields = BTreeMap<String, TextOrSecret>;

fn too_long(text: &str) -> bool {
    text.len() > LONGEST_EXTRA
}

pub(super) fn check_secret_name(name: &SecretName, faults: &mut Faults) {
    if !is_plain_word(name.as_str()) {
        faults.add(format!("must be {PLAIN_WORD}"));
    }
}

/// Returns a name that an agent may give to a header: not one that frames the message, or that Provost sets for each call.
pub(super) fn check_header_name(name: &str) -> Result<HeaderName, String> {
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
    Ok(parsed)
}

fn check_header(name: &str, value: &TextOrSecret) -> Result<(), String> {
    let name = check_header_name(name)?;
    let TextOrSecret::Text(text) = value else {
        return Ok(());
    };
    if is_credential(name.as_str()) {
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

/// Returns whether a header with this name has no other use than to carry a secret. A header that is only hidden where
/// it is shown ([`crate::values::hidden::is_secret_header`]) may have another use.
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

    use crate::agent::spec::{AgentMode, AgentSpec};

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
        pull.mode = AgentMode::Pull;
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
    fn tls_of_the_token_endpoint_is_checked_as_that_of_an_agent() {
        const PEM: &str = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n";
        let of = |token_url: &str, tls: Value| {
            json!({ "auth": { "oauth2": { "token_url": token_url, "client_id": "id",
                "client_secret": { "secret": "s" }, "tls": tls } } })
        };
        let login = "https://login.example";
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
    }
}
