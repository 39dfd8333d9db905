//! The signatures of an agent's requests: by Standard Webhooks, or an HMAC of a form that a service has of its own, such as
//! `x-hub-signature-256: sha256=…`.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderName, HeaderValue};
use provost_object::{Faults, Object};
use sha2::{Sha256, Sha512};

use super::access::{check_header_name, check_secret_name};
use crate::values::{hex::push_hex, ids::SecretName};

/// The longest text that says what is signed, or what the header contains.
const LONGEST_FORM: usize = 200;
/// The longest name of a header.
const LONGEST_HEADER: usize = 100;
/// The shortest key, in bytes: a shorter one could be guessed.
const SHORTEST_KEY: usize = 16;

/// A signature of every request.
#[derive(Clone, PartialEq, Eq, Debug, Object)]
#[object(name = "AgentSignature", check = SignSpec::check_form)]
pub struct SignSpec {
    /// For Standard Webhooks `whsec_` and base64. For a `header`, the bytes of the secret are the key: at least 16.
    #[field(
        1..=64,
        required = "give the name of a secret of [[secrets]]",
        check = check_secret_name,
        pattern = "^[a-zA-Z0-9._-]+$",
        example = "payments-signing"
    )]
    pub secret: SecretName,
    /// The header of an HMAC, which stands in place of a header of the step with this name. Default: the headers of <https://www.standardwebhooks.com>.
    #[field(1..=LONGEST_HEADER, example = "x-hub-signature-256")]
    pub header: Option<String>,
    /// The signed text, with `{body}`, `{timestamp}` (seconds since 1970), `{method}` and `{path}` (with the query). Default: `{body}`.
    #[field(1..=LONGEST_FORM, example = "{timestamp}.{body}")]
    pub of: Option<String>,
    /// The value of the header, with `{signature}` and `{timestamp}`. Default: `{signature}`.
    #[field(1..=LONGEST_FORM, example = "t={timestamp},v1={signature}")]
    pub value: Option<String>,
    /// Default: sha256.
    pub hash: Option<SignatureHash>,
    /// Default: hex.
    pub encoding: Option<SignatureEncoding>,
}

/// The hash function of an HMAC: `sha256`, the default, or `sha512`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Object)]
pub enum SignatureHash {
    #[default]
    #[field(rename = "sha256")]
    Sha256,
    #[field(rename = "sha512")]
    Sha512,
}

/// The form of an HMAC in its header: `hex`, the default, in lower case; `base64`, with padding
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Object)]
pub enum SignatureEncoding {
    #[default]
    Hex,
    Base64,
}

impl SignSpec {
    fn check_form(&self, faults: &mut Faults) {
        let Some(header) = &self.header else {
            let fields = [
                ("of", self.of.is_some()),
                ("value", self.value.is_some()),
                ("hash", self.hash.is_some()),
                ("encoding", self.encoding.is_some()),
            ];
            for (field, _) in fields.into_iter().filter(|(_, is_given)| *is_given) {
                let message =
                    "needs `header`: without it, the signature is that of Standard Webhooks";
                faults.field(field, message);
            }
            return;
        };
        if let Err(message) = check_header_name(header) {
            faults.field("header", message);
        } else if header.eq_ignore_ascii_case("content-type") {
            faults.field("header", "says what the body is: sign in another one");
        }
        if let Some(of) = &self.of {
            match parts(of, &SIGNED) {
                Ok(parts) if !parts.iter().any(|part| matches!(part, SignaturePart::Body)) => {
                    let message = "must contain {body}: without it, anybody could send another one with the same signature";
                    faults.field("of", message);
                }
                Ok(_) => {}
                Err(message) => faults.field("of", message),
            }
        }
        if let Some(value) = &self.value {
            match parts(value, &SHOWN) {
                Ok(parts)
                    if parts
                        .iter()
                        .all(|part| matches!(part, SignaturePart::Text(_))) =>
                {
                    faults.field("value", "must contain {signature} or {timestamp}");
                }
                Ok(_) if HeaderValue::from_str(value).is_err() => {
                    let message = "contains a line break or another character that is not allowed in a header";
                    faults.field("value", message);
                }
                Ok(_) => {}
                Err(message) => faults.field("value", message),
            }
        }
    }
}

/// Returns the positions of signatures in headers that an earlier one has already.
pub(super) fn repeated_headers(sign: &[SignSpec]) -> Vec<usize> {
    let same = |one: &SignSpec, other: &SignSpec| match (&one.header, &other.header) {
        (Some(one), Some(other)) => one.eq_ignore_ascii_case(other),
        _ => false,
    };
    let repeats = |at: &usize| sign[..*at].iter().any(|other| same(&sign[*at], other));
    (0..sign.len()).filter(repeats).collect()
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum SignaturePart {
    Text(String),
    Body,
    Timestamp,
    Method,
    Path,
    Signature,
}

/// The names that `of` and `value` may contain in braces.
const SIGNED: [(&str, SignaturePart); 4] = [
    ("body", SignaturePart::Body),
    ("timestamp", SignaturePart::Timestamp),
    ("method", SignaturePart::Method),
    ("path", SignaturePart::Path),
];
const SHOWN: [(&str, SignaturePart); 2] = [
    ("signature", SignaturePart::Signature),
    ("timestamp", SignaturePart::Timestamp),
];

/// Takes a text with names in braces apart.
fn parts(text: &str, names: &[(&str, SignaturePart)]) -> Result<Vec<SignaturePart>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        if !before.is_empty() {
            parts.push(SignaturePart::Text(before.to_owned()));
        }
        let found = after.split_once('}').and_then(|(name, after)| {
            let (_, part) = names.iter().find(|(known, _)| *known == name)?;
            Some((part.clone(), after))
        });
        let Some((part, after)) = found else {
            let known: Vec<_> = names
                .iter()
                .map(|(name, _)| format!("{{{name}}}"))
                .collect();
            return Err(format!(
                "has braces around something else than {}",
                known.join(", ")
            ));
        };
        parts.push(part);
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(SignaturePart::Text(rest.to_owned()));
    }
    Ok(parts)
}

/// The parts of a request that a signature may be of.
#[derive(Clone, Copy, Debug)]
pub struct SignedRequest<'r> {
    pub method: &'r str,
    /// The path with its query.
    pub path: &'r str,
    pub body: &'r str,
    /// Seconds since 1970.
    pub timestamp: i64,
}

/// An HMAC in a header of its own, with its key.
#[derive(Clone)]
pub struct RequestSignature {
    pub header: HeaderName,
    key: Vec<u8>,
    of: Vec<SignaturePart>,
    value: Vec<SignaturePart>,
    hash: SignatureHash,
    encoding: SignatureEncoding,
}

impl RequestSignature {
    /// Returns the signature of a specification that has a `header`. `Err`: the key is too short.
    pub fn new(spec: &SignSpec, key: &str) -> Option<Result<Self, String>> {
        let header = HeaderName::try_from(spec.header.as_ref()?).ok()?;
        if key.len() < SHORTEST_KEY {
            return Some(Err(format!(
                "it has less than {SHORTEST_KEY} bytes, and could be guessed"
            )));
        }
        let of = spec.of.as_deref().unwrap_or("{body}");
        let value = spec.value.as_deref().unwrap_or("{signature}");
        Some(Ok(Self {
            header,
            key: key.as_bytes().to_vec(),
            of: parts(of, &SIGNED).ok()?,
            value: parts(value, &SHOWN).ok()?,
            hash: spec.hash.unwrap_or_default(),
            encoding: spec.encoding.unwrap_or_default(),
        }))
    }

    /// Returns the value of the header.
    pub fn sign(&self, request: SignedRequest<'_>) -> Option<HeaderValue> {
        let code = match self.hash {
            SignatureHash::Sha256 => self.code::<Hmac<Sha256>>(request)?,
            SignatureHash::Sha512 => self.code::<Hmac<Sha512>>(request)?,
        };
        let signature = match self.encoding {
            SignatureEncoding::Hex => {
                let mut digits = String::with_capacity(2 * code.len());
                push_hex(&mut digits, &code);
                digits
            }
            SignatureEncoding::Base64 => STANDARD.encode(code),
        };
        let shown = self.value.iter();
        let shown = shown.map(|part| part.text(request, &signature));
        HeaderValue::try_from(shown.collect::<String>()).ok()
    }

    fn code<M: Mac + KeyInit>(&self, request: SignedRequest<'_>) -> Option<Vec<u8>> {
        // An HMAC accepts a key of any length.
        let mut mac = <M as KeyInit>::new_from_slice(&self.key).ok()?;
        for part in &self.of {
            mac.update(part.text(request, "").as_bytes());
        }
        Some(mac.finalize().into_bytes().to_vec())
    }
}

impl SignaturePart {
    fn text<'p>(&'p self, request: SignedRequest<'p>, signature: &'p str) -> Cow<'p, str> {
        match self {
            SignaturePart::Text(text) => text.into(),
            SignaturePart::Body => request.body.into(),
            SignaturePart::Timestamp => request.timestamp.to_string().into(),
            SignaturePart::Method => request.method.into(),
            SignaturePart::Path => request.path.into(),
            SignaturePart::Signature => signature.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::agent::spec::AgentSpec;

    fn signed(form: Value, key: &str, body: &str) -> String {
        let mut spec = json!({ "secret": "key" });
        spec.as_object_mut()
            .unwrap()
            .extend(form.as_object().unwrap().clone());
        let spec: SignSpec = serde_json::from_value(spec).unwrap();
        let signature = RequestSignature::new(&spec, key).unwrap().unwrap();
        let request = SignedRequest {
            method: "POST",
            path: "/pay?a=1",
            body,
            timestamp: 1_531_420_618,
        };
        signature
            .sign(request)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    }

    /// The first two are the examples of the documentation of GitHub's webhooks and of Slack's; the other was computed with Python's hmac.
    #[test]
    fn services_find_the_signature_that_they_compute() {
        let github = json!({ "header": "x-hub-signature-256", "value": "sha256={signature}" });
        assert_eq!(
            signed(github, "It's a Secret to Everybody", "Hello, World!"),
            "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
        );
        let slack = json!({
            "header": "x-slack-signature", "of": "v0:{timestamp}:{body}", "value": "v0={signature}"
        });
        let body = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
        assert_eq!(
            signed(slack, "8f742231b10e8888abcd99yyyzzz85a5", body),
            "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
        );
    }

    #[test]
    fn form_and_hash_are_those_of_the_service() {
        let full = json!({
            "header": "x-signature", "hash": "sha512", "encoding": "base64",
            "of": "{method}\n{path}\n{timestamp}\n{body}", "value": "t={timestamp},v1={signature}"
        });
        assert_eq!(
            signed(full, "0123456789abcdef", "{}"),
            "t=1531420618,v1=mO5PNuLIxXeEHTsDUXlacHX8VPbLler42fwocelP8Oj1iJ9chLGrG5d94XWIP0W8ROgklyfHX+AdIZyb8/hUkQ=="
        );
    }

    fn faults(sign: Value) -> Vec<String> {
        let spec = json!({ "endpoints": [{ "url": "https://payments.example/v1" }], "sign": sign });
        let spec: AgentSpec = serde_json::from_value(spec).unwrap();
        spec.faults("")
            .into_iter()
            .map(|(pointer, _)| pointer)
            .collect()
    }

    #[test]
    fn a_form_that_protects_nothing_is_refused() {
        for (form, pointer) in [
            (json!({ "secret": "a", "of": "{body}" }), "/sign/0/of"),
            (
                json!({ "secret": "a", "encoding": "hex" }),
                "/sign/0/encoding",
            ),
            (
                json!({ "secret": "a", "header": "x-s", "of": "{timestamp}" }),
                "/sign/0/of",
            ),
            (
                json!({ "secret": "a", "header": "x-s", "of": "{body}{id}" }),
                "/sign/0/of",
            ),
            (
                json!({ "secret": "a", "header": "x-s", "of": "{body" }),
                "/sign/0/of",
            ),
            (
                json!({ "secret": "a", "header": "x-s", "value": "signed" }),
                "/sign/0/value",
            ),
            (
                json!({ "secret": "a", "header": "x-s", "value": "{body}" }),
                "/sign/0/value",
            ),
            (
                json!({ "secret": "a", "header": "x-s", "value": "{signature}\n" }),
                "/sign/0/value",
            ),
            (
                json!({ "secret": "a", "header": "content-length" }),
                "/sign/0/header",
            ),
            (
                json!({ "secret": "a", "header": "idempotency-key" }),
                "/sign/0/header",
            ),
            (
                json!({ "secret": "a", "header": "content-type" }),
                "/sign/0/header",
            ),
            (
                json!({ "secret": "a", "header": "two words" }),
                "/sign/0/header",
            ),
        ] {
            assert_eq!(faults(json!([form])), [pointer], "{form}");
        }
        let twice = json!([
            { "secret": "a", "header": "x-s" }, { "secret": "b" }, { "secret": "c", "header": "X-S" }
        ]);
        assert_eq!(faults(twice), ["/sign/2/header"]);
        assert_eq!(
            faults(json!([{ "secret": "a" }, { "secret": "b", "header": "authorization" }])),
            [""; 0]
        );
    }

    #[test]
    fn a_header_that_the_agent_sets_already_is_refused() {
        let sign = |header: &str| json!([{ "secret": "a", "header": header }]);
        for (header, added) in [
            ("X-Tenant", json!({ "headers": { "x-tenant": "acme" } })),
            (
                "Authorization",
                json!({ "auth": { "bearer": { "secret": "b" } } }),
            ),
        ] {
            let mut spec =
                json!({ "endpoints": [{ "url": "https://a.example" }], "sign": sign(header) });
            let added = added.as_object().unwrap().clone();
            spec.as_object_mut().unwrap().extend(added);
            let spec: AgentSpec = serde_json::from_value(spec).unwrap();
            let faults = spec.faults("").into_iter();
            let pointers: Vec<_> = faults.map(|(pointer, _)| pointer).collect();
            assert_eq!(pointers, ["/sign/0/header"], "{header}");
        }
    }

    #[test]
    fn a_key_that_could_be_guessed_is_refused() {
        let spec: SignSpec =
            serde_json::from_value(json!({ "secret": "a", "header": "x-s" })).unwrap();
        assert!(RequestSignature::new(&spec, "short").unwrap().is_err());
    }
}
