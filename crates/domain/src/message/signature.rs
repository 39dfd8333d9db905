//! Signatures of messages, by <https://www.standardwebhooks.com>: a receiver that shares a secret can verify the sender
//! of a message, that it was not changed, and that it is not replayed.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize, Serializer};
use sha2::Sha256;

/// The prefix of every secret, by which a leaked one is recognised.
const PREFIX: &str = "whsec_";

/// The length of a key, in bytes: a shorter key could be guessed, a longer one is no stronger.
const KEY: std::ops::RangeInclusive<usize> = 24..=64;

/// The message for every invalid secret. The text that was found is never shown.
pub const SECRET_FORM: &str = "`whsec_` and 24 to 64 random bytes in base64; make one with: echo whsec_$(openssl rand -base64 32)";

/// The text that is shown instead of a secret.
const HIDDEN: &str = "(hidden)";

/// A key that is shared with one receiver. It is never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Secret(Vec<u8>);

impl Secret {
    pub fn parse(text: &str) -> Option<Self> {
        let key = STANDARD.decode(text.strip_prefix(PREFIX)?).ok()?;
        KEY.contains(&key.len()).then_some(Self(key))
    }

    fn sign(&self, id: &str, at: i64, body: &str) -> String {
        // An HMAC accepts a key of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else {
            return String::new();
        };
        mac.update(format!("{id}.{at}.").as_bytes());
        mac.update(body.as_bytes());
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// Returns the header `webhook-signature` of a message sent at `at`, in seconds since 1970: one signature for each
/// secret, so that a receiver may know the old one or the new. `None` if there is no secret.
pub fn signatures(secrets: &[Secret], id: &str, at: i64, body: &str) -> Option<String> {
    let signed: Vec<_> = secrets
        .iter()
        .map(|secret| secret.sign(id, at, body))
        .collect();
    (!signed.is_empty()).then(|| signed.join(" "))
}

impl TryFrom<String> for Secret {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or(SECRET_FORM)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};
    use standardwebhooks::Webhook;

    use super::*;

    const NEW: &str = "whsec_bmV3IHNlY3JldCBvZiB0aGUgc2hvcCwgMzIgYnl0ZXM=";
    const OLD: &str = "whsec_b2xkIHNlY3JldCBvZiB0aGUgc2hvcCwgMzIgYnl0ZXM=";

    fn secret(text: &str) -> Secret {
        Secret::parse(text).unwrap()
    }

    /// The reference library verifies the signatures, not this module.
    #[test]
    fn a_receiver_with_either_secret_can_verify_and_nobody_else() {
        let now = jiff::Timestamp::now().as_second();
        let (id, body) = ("019c7a5e", r#"{"text":"ü"}"#);
        let signed = signatures(&[secret(NEW), secret(OLD)], id, now, body).unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("webhook-id", id),
            ("webhook-timestamp", &now.to_string()),
            ("webhook-signature", &signed),
        ] {
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
        for known in [NEW, OLD] {
            let receiver = Webhook::new(known).unwrap();
            receiver.verify(body.as_bytes(), &headers).unwrap();
            receiver.verify(b"{}", &headers).unwrap_err();
        }
        let stranger = Webhook::new("whsec_c29tZWJvZHkgZWxzZSdzIHNlY3JldCwgMzIgYnl0ZXM=").unwrap();
        stranger.verify(body.as_bytes(), &headers).unwrap_err();
        assert_eq!(signatures(&[], id, now, body), None);
    }

    #[test]
    fn a_secret_that_could_be_guessed_or_is_not_one_is_refused() {
        for text in [
            "",
            "whsec_",
            "whsec_c2hvcnQ=",
            "bmV3IHNlY3JldCBvZiB0aGUgc2hvcCwgMzIgYnl0ZXM=",
            "whsec_not base64 at all, but long enough to be a key",
        ] {
            assert_eq!(Secret::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        let secret = secret(NEW);
        assert_eq!(format!("{secret:?}"), HIDDEN);
        assert_eq!(serde_json::to_value(&secret).unwrap(), HIDDEN);
    }
}
