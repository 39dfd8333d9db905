//! What an agent adds to its requests, as the API takes and shows it. Secrets are named, never given.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::openapi::words::{ClientAuthMethodSchema, TlsVersionSchema};
use crate::{
    agent::Agents,
    domain::{
        AgentName, AgentSpec, AgentTlsSpec, AuthSpec, BasicSpec, ClientAuthMethod, ExtraFields,
        FieldFault, Fields, HttpVersion, LONGEST_EXTRA, LONGEST_PEM, LONGEST_URL, OAuthSpec,
        SecretName, SecretRef, TextOrSecret, TlsVersion, text,
    },
};

/// A secret of the configuration file, `[[secrets]]`, by its name.
#[derive(ToSchema)]
#[schema(as = SecretRef)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct SecretRefBody {
    #[schema(
        min_length = 1,
        max_length = 64,
        pattern = "^[a-zA-Z0-9._-]+$",
        example = "payments-token"
    )]
    secret: String,
}

/// A text, or the name of a secret. A text is stored and shown.
#[derive(ToSchema)]
#[schema(as = TextOrSecret)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
#[serde(untagged)]
pub enum TextOrSecretBody {
    Secret(SecretRefBody),
    Text(String),
}

/// The header `Authorization` of every request: one of these.
#[derive(ToSchema)]
#[schema(as = AgentAuth, min_properties = 1, max_properties = 1)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct AuthBody {
    /// A user and a password (RFC 7617).
    basic: Option<BasicBody>,
    /// A token (RFC 6750).
    bearer: Option<SecretRefBody>,
    oauth2: Option<OAuthBody>,
}

/// A token by OAuth 2.0 with client credentials (RFC 6749, section 4.4). It is fetched when a call needs one, and used by all
/// calls of this instance until shortly before it expires, or until the service responds 401.
#[derive(ToSchema)]
#[schema(as = OAuthClient)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct OAuthBody {
    /// The token endpoint. The `urls` of the client secret must cover it and the endpoints, which get the token.
    #[schema(max_length = 2000, example = "https://login.example/oauth2/token")]
    token_url: String,
    #[schema(min_length = 1, max_length = 4096, example = "provost")]
    client_id: String,
    client_secret: SecretRefBody,
    #[schema(min_length = 1, max_length = 4096, example = "payments.write")]
    scope: Option<String>,
    #[schema(
        min_length = 1,
        max_length = 4096,
        example = "https://payments.example"
    )]
    audience: Option<String>,
    method: Option<ClientAuthMethodSchema>,
    /// Of connections to the token endpoint, whose URL must begin with `https://`.
    tls: Option<TlsBody>,
}

/// How connections are secured, where that is not as for all agents. At least one endpoint must begin with `https://`.
#[derive(ToSchema)]
#[schema(as = AgentTls)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct TlsBody {
    /// Certificates in PEM form, which are trusted instead of those of the machine.
    ca: Option<TextOrSecretBody>,
    /// The client's certificate in PEM form, and those that lead to its authority. With `key`.
    certificate: Option<TextOrSecretBody>,
    /// The private key of `certificate`, in PEM form.
    key: Option<SecretRefBody>,
    /// The name in the service's certificate, if it is not the host of the URL.
    #[schema(min_length = 1, max_length = 253, example = "payments.internal")]
    server_name: Option<String>,
    min_version: Option<TlsVersionSchema>,
}

/// A user and a password.
#[derive(ToSchema)]
#[schema(as = BasicAuth)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct BasicBody {
    /// Without a colon.
    #[schema(max_length = 4096, example = "provost")]
    user: String,
    password: SecretRefBody,
}

/// Fills in what the specification says is added to requests.
pub fn read(fields: &mut Fields<'_>, spec: &mut AgentSpec) {
    spec.headers = extra_fields(fields, "headers");
    spec.query = extra_fields(fields, "query");
    spec.body = extra_fields(fields, "body");
    spec.auth = fields.object("auth").and_then(|auth| {
        let pointer = fields.pointer("auth");
        taken(fields, read_auth(auth, &pointer))
    });
    let signing = fields.array("sign").unwrap_or_default();
    for (at, value) in signing.into_iter().enumerate() {
        let pointer = format!("{}/{at}", fields.pointer("sign"));
        spec.sign.extend(taken(fields, secret_ref(value, &pointer)));
    }
    spec.tls = fields.object("tls").and_then(|tls| {
        let pointer = fields.pointer("tls");
        taken(fields, read_tls(tls, &pointer))
    });
    spec.http_version = fields.choice("http_version", HttpVersion::ALL);
}

/// `None` where it is missing or null.
fn present<'a>(fields: &mut Fields<'a>, name: &str) -> Option<&'a RawValue> {
    fields.value(name).filter(|value| value.get() != "null")
}

fn read_tls(mut fields: Fields<'_>, pointer: &str) -> Result<AgentTlsSpec, Vec<FieldFault>> {
    let mut spec = AgentTlsSpec::default();
    for (name, value) in [("ca", &mut spec.ca), ("certificate", &mut spec.certificate)] {
        if let Some(given) = present(&mut fields, name) {
            let pointer = format!("{pointer}/{name}");
            *value = taken(&mut fields, text_or_secret(given, &pointer, LONGEST_PEM));
        }
    }
    if let Some(given) = present(&mut fields, "key") {
        let pointer = format!("{pointer}/key");
        spec.key = taken(&mut fields, secret_ref(given, &pointer));
    }
    spec.server_name = fields.string("server_name", 253);
    spec.min_version = fields.choice("min_version", TlsVersion::ALL);
    fields.finish()?;
    Ok(spec)
}

fn read_oauth(mut fields: Fields<'_>) -> Result<OAuthSpec, Vec<FieldFault>> {
    for (name, remedy) in [
        ("token_url", "give the URL of the token endpoint"),
        ("client_id", "give the name of the client"),
    ] {
        if fields.peek(name).is_none() {
            fields.missing(name, remedy);
        }
    }
    let token_url = fields.string("token_url", LONGEST_URL);
    let client_id = fields.string("client_id", LONGEST_EXTRA);
    let client_secret = required_secret(&mut fields, "client_secret");
    let scope = fields.string("scope", LONGEST_EXTRA);
    let audience = fields.string("audience", LONGEST_EXTRA);
    let method = fields.choice("method", ClientAuthMethod::ALL);
    let tls = fields.object("tls").and_then(|tls| {
        let pointer = fields.pointer("tls");
        taken(&mut fields, read_tls(tls, &pointer))
    });
    fields.finish()?;
    // Without one of them there was a fault.
    let (token_url, client_id) = token_url.zip(client_id).ok_or_else(Vec::new)?;
    Ok(OAuthSpec {
        token_url,
        client_id,
        client_secret: client_secret.ok_or_else(Vec::new)?,
        scope,
        audience,
        method: method.unwrap_or_default(),
        tls,
    })
}

fn taken<T>(fields: &mut Fields<'_>, read: Result<T, Vec<FieldFault>>) -> Option<T> {
    read.map_err(|faults| fields.extend(faults)).ok()
}

fn extra_fields(fields: &mut Fields<'_>, name: &str) -> ExtraFields {
    let mut extra = BTreeMap::new();
    for (name, pointer, value) in fields.entries(name) {
        if let Some(value) = taken(fields, text_or_secret(value, &pointer, LONGEST_EXTRA)) {
            extra.insert(name, value);
        }
    }
    extra
}

fn text_or_secret(
    value: &RawValue,
    pointer: &str,
    longest: usize,
) -> Result<TextOrSecret, Vec<FieldFault>> {
    if let Some(text) = text(value.get()) {
        // The value is not repeated: a careless hand may have put a secret there.
        let fault = match text.contains('\0') {
            false if text.len() <= longest => return Ok(TextOrSecret::Text(text.into())),
            false => format!("must be at most {longest} bytes long"),
            true => "cannot contain the character U+0000".to_owned(),
        };
        return Err(vec![FieldFault::new(pointer, fault)]);
    }
    if !value.get().starts_with('{') {
        let message = "must be a text, or name a secret: {\"secret\": \"payments-token\"}";
        return Err(vec![FieldFault::new(pointer, message)]);
    }
    secret_ref(value, pointer).map(TextOrSecret::Secret)
}

fn secret_ref(value: &RawValue, pointer: &str) -> Result<SecretRef, Vec<FieldFault>> {
    read_secret_ref(Fields::of(value, pointer)?)
}

fn read_secret_ref(mut fields: Fields<'_>) -> Result<SecretRef, Vec<FieldFault>> {
    if fields.peek("secret").is_none() {
        fields.missing("secret", "give the name of a secret of [[secrets]]");
    }
    let name = fields.string("secret", 64);
    fields.finish()?;
    // Without a name there was a fault.
    let name = name.ok_or_else(Vec::new)?;
    Ok(SecretRef {
        secret: SecretName::new(name),
    })
}

/// The secret in a field of `fields`, which must be there.
fn required_secret(fields: &mut Fields<'_>, name: &str) -> Option<SecretRef> {
    if fields.peek(name).is_none() {
        fields.missing(name, "name a secret: {\"secret\": \"payments-token\"}");
    }
    let secret = fields.object(name)?;
    taken(fields, read_secret_ref(secret))
}

fn read_auth(mut fields: Fields<'_>, pointer: &str) -> Result<AuthSpec, Vec<FieldFault>> {
    let kinds = ["basic", "bearer", "oauth2"];
    let given = kinds.iter().filter(|kind| fields.peek(kind).is_some());
    if given.count() != 1 {
        // What is unknown is reported as well.
        for kind in kinds {
            let _ = fields.value(kind);
        }
        fields.finish()?;
        let message = "must have one of the fields: basic, bearer, oauth2";
        return Err(vec![FieldFault::new(pointer, message)]);
    }
    let basic = fields.object("basic");
    let basic = basic.and_then(|basic| taken(&mut fields, read_basic(basic)));
    let bearer = present(&mut fields, "bearer").and_then(|given| {
        let pointer = format!("{pointer}/bearer");
        taken(&mut fields, secret_ref(given, &pointer))
    });
    let oauth = fields.object("oauth2");
    let oauth = oauth.and_then(|oauth| taken(&mut fields, read_oauth(oauth)));
    fields.finish()?;
    let auth = basic.map(AuthSpec::Basic);
    let auth = auth.or(bearer.map(AuthSpec::Bearer));
    auth.or(oauth.map(AuthSpec::OAuth2)).ok_or_else(Vec::new)
}

fn read_basic(mut fields: Fields<'_>) -> Result<BasicSpec, Vec<FieldFault>> {
    if fields.peek("user").is_none() {
        fields.missing("user", "give the name of the user");
    }
    let user = fields.string("user", LONGEST_EXTRA);
    let password = required_secret(&mut fields, "password");
    fields.finish()?;
    let basic = user.zip(password);
    basic
        .map(|(user, password)| BasicSpec { user, password })
        .ok_or_else(Vec::new)
}

/// A secret that the agent names, at the instance that responds.
#[derive(Serialize, ToSchema)]
#[schema(as = AgentSecret)]
pub struct SecretView {
    #[schema(example = "payments-token")]
    name: String,
    /// Why it cannot be used, or not by this agent; null if it can. While there is a fault, this instance makes no call of
    /// the agent.
    #[schema(required, example = "its file does not exist")]
    fault: Option<String>,
}

impl SecretView {
    /// `None` if the agent names no secret.
    pub fn all(agents: &Agents, name: &AgentName, spec: &AgentSpec) -> Option<Vec<Self>> {
        let mut names: Vec<_> = spec.secrets().into_iter().map(|used| used.name).collect();
        names.sort();
        names.dedup();
        let refused = agents.secret_faults(name, spec);
        let of = |secret: &SecretName| {
            let used = spec.secrets().into_iter().find(|used| used.name == secret);
            let pointer = used.map(|used| used.pointer);
            let refused = refused.iter().find(|(at, _)| Some(at) == pointer.as_ref());
            let fault = refused.map(|(_, why)| why.clone());
            Self {
                name: secret.to_string(),
                fault: fault.or_else(|| agents.secrets().fault(secret)),
            }
        };
        let views: Vec<_> = names.into_iter().map(of).collect();
        (!views.is_empty()).then_some(views)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(json: &str) -> Vec<String> {
        let body = RawValue::from_string(json.to_owned()).unwrap();
        let mut fields = Fields::of(&body, "").unwrap();
        read(&mut fields, &mut AgentSpec::default());
        let faults = fields.finish().err().unwrap_or_default();
        let all: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert!(!all.join(" ").contains("hunter2"), "{all:?}");
        faults.into_iter().map(|fault| fault.pointer).collect()
    }

    #[test]
    fn a_secret_that_was_put_in_place_of_its_name_is_refused_and_not_repeated() {
        for (json, pointer) in [
            (r#"{"auth": "hunter2"}"#, "/auth"),
            (r#"{"auth": {"bearer": "hunter2"}}"#, "/auth/bearer"),
            (r#"{"auth": {}}"#, "/auth"),
            (r#"{"auth": {"bearer": null}}"#, "/auth"),
            (r#"{"auth": {"bearer": {}}}"#, "/auth/bearer/secret"),
            (r#"{"auth": {"digest": {}}}"#, "/auth/digest"),
            (
                r#"{"auth": {"bearer": {"secret": "a"}, "basic": {"user": "u", "password": {"secret": "a"}}}}"#,
                "/auth",
            ),
            (
                r#"{"auth": {"basic": {"user": "u", "password": "hunter2"}}}"#,
                "/auth/basic/password",
            ),
            (
                r#"{"auth": {"basic": {"password": {"secret": "a"}}}}"#,
                "/auth/basic/user",
            ),
            (
                r#"{"auth": {"oauth2": {"token_url": "https://h", "client_id": "c", "client_secret": "hunter2"}}}"#,
                "/auth/oauth2/client_secret",
            ),
            (
                r#"{"auth": {"oauth2": {"client_id": "c", "client_secret": {"secret": "a"}}}}"#,
                "/auth/oauth2/token_url",
            ),
            (
                r#"{"auth": {"oauth2": {"token_url": "https://h", "client_id": "c", "client_secret": {"secret": "a"}, "tls": {"key": "hunter2"}}}}"#,
                "/auth/oauth2/tls/key",
            ),
            (r#"{"tls": {"key": "hunter2"}}"#, "/tls/key"),
            (r#"{"tls": {"ca": 7}}"#, "/tls/ca"),
            (r#"{"tls": {"min_version": "1.1"}}"#, "/tls/min_version"),
            (r#"{"http_version": "3"}"#, "/http_version"),
            (r#"{"http_version": 2}"#, "/http_version"),
            (r#"{"headers": {"x": 7}}"#, "/headers/x"),
            (r#"{"headers": {"x": {"secret": 7}}}"#, "/headers/x/secret"),
            (
                r#"{"headers": {"x": {"secret": "a", "value": "hunter2"}}}"#,
                "/headers/x/value",
            ),
            (r#"{"query": ["hunter2"]}"#, "/query"),
            (r#"{"sign": [{"secret": "a"}, "hunter2"]}"#, "/sign/1"),
        ] {
            assert_eq!(faults(json), [pointer], "{json}");
        }
    }

    #[test]
    fn what_is_added_is_read_as_it_is_shown() {
        let json = r#"{"headers":{"x-tenant":"acme"},"query":{"key":{"secret":"a"}},"auth":{"basic":{"user":"u","password":{"secret":"b"}}},"sign":[{"secret":"c"}]}"#;
        let body = RawValue::from_string(json.to_owned()).unwrap();
        let mut fields = Fields::of(&body, "").unwrap();
        let mut spec = AgentSpec::default();
        read(&mut fields, &mut spec);
        fields.finish().unwrap();
        let shown = serde_json::to_value(&spec).unwrap();
        let given: serde_json::Value = serde_json::from_str(json).unwrap();
        for (name, value) in given.as_object().unwrap() {
            assert_eq!(shown[name], *value);
        }
    }
}
