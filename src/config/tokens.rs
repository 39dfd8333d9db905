//! Tokens and their roles. Provost keeps only the SHA-256 of a token, so that no log, crash dump or configuration
//! file has to contain it. A plain hash suffices because tokens are random and long, not chosen by people; that is
//! why short ones are refused.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize, Serializer, ser::SerializeStruct};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::domain::values::AgentName;

/// The rights of a token's bearer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Submit,
    Read,
    Operate,
    Admin,
    /// Fetches the work of certain agents, and nothing else.
    Work,
}

impl Role {
    /// Returns the role's name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
            Self::Work => "work",
        }
    }
}

/// The shortest token that cannot be guessed from its hash.
const SHORTEST: usize = 16;

/// The text that replaces a secret when settings are shown.
pub const HIDDEN: &str = "(hidden)";

/// The report about any invalid token. The value is never shown.
pub const ALLOWED: &str = "each of [[tokens]] needs a `name` of its own, a `role` (submit, read, operate, admin, or work with `agents`, the names of those whose steps it fetches), \
     and either `token`, random and at least 16 characters, or `sha256`, its SHA-256 as 64 hex digits; \
     make one with: openssl rand -hex 32";

#[derive(Clone, PartialEq, Deserialize)]
#[serde(try_from = "TokenEntry")]
pub struct AccessToken {
    pub name: String,
    pub role: Role,
    /// With the role `work`: the agents whose steps it fetches.
    pub agents: Arc<[AgentName]>,
    sha256: [u8; 32],
}

impl AccessToken {
    /// Returns whether `presented` is this token. The duration of the comparison depends only on the hash of
    /// `presented`, from which no token can be derived.
    pub fn is(&self, presented: &[u8]) -> bool {
        self.sha256 == hash(presented)
    }

    /// The SHA-256 of this token, by which a session of the console knows it.
    pub fn digest(&self) -> [u8; 32] {
        self.sha256
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("name", &self.name)
            .field("role", &self.role)
            .field("agents", &self.agents)
            .finish_non_exhaustive()
    }
}

/// The form in which settings are shown: without the secret, so that the output cannot be parsed.
impl Serialize for AccessToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Token", 4)?;
        fields.serialize_field("name", &self.name)?;
        fields.serialize_field("role", &self.role)?;
        if self.role == Role::Work {
            fields.serialize_field("agents", &self.agents)?;
        }
        fields.serialize_field("sha256", HIDDEN)?;
        fields.end()
    }
}

fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// A token in the form of the configuration file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: String,
    role: Role,
    #[serde(default)]
    agents: Vec<AgentName>,
    sha256: Option<String>,
    token: Option<String>,
}

impl TryFrom<TokenEntry> for AccessToken {
    type Error = &'static str;

    fn try_from(written: TokenEntry) -> Result<Self, Self::Error> {
        let sha256 = match (written.token, written.sha256) {
            (Some(token), None) if token.len() >= SHORTEST => Some(hash(token.as_bytes())),
            (None, Some(hex)) => from_hex(&hex),
            _ => None,
        };
        // A worker without agents could do nothing, and other roles have no agents.
        let is_bound = written.agents.is_empty() != (written.role == Role::Work);
        match sha256 {
            Some(sha256) if !written.name.is_empty() && is_bound => Ok(Self {
                name: written.name,
                role: written.role,
                agents: written.agents.into(),
                sha256,
            }),
            _ => Err(ALLOWED),
        }
    }
}

fn from_hex(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Returns whether all names and all secrets differ. Two tokens with the same name could not be distinguished in the
/// history; two with the same secret could not be distinguished at all.
pub fn are_distinct(tokens: &[AccessToken]) -> bool {
    tokens.iter().enumerate().all(|(at, token)| {
        tokens[..at]
            .iter()
            .all(|other| other.name != token.name && other.sha256 != token.sha256)
    })
}

/// Parses `PROVOST_TOKENS`: `name:role:token`, several joined by commas; the agents of a worker follow its role, as in
/// `name:work/video/audio:token`. `None` if a part is missing.
pub fn from_env(text: &str) -> Option<Value> {
    text.split(',')
        .map(|entry| {
            let mut parts = entry.trim().splitn(3, ':');
            let mut fields = Map::new();
            for field in ["name", "role", "token"] {
                fields.insert(field.into(), Value::from(parts.next()?.to_owned()));
            }
            let role = fields.get("role").and_then(Value::as_str)?.to_owned();
            if let Some((role, agents)) = role.split_once('/') {
                let agents: Vec<_> = agents.split('/').collect();
                fields.insert("agents".into(), agents.into());
                fields.insert("role".into(), role.into());
            }
            Some(Value::from(fields))
        })
        .collect::<Option<Vec<_>>>()
        .map(Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(json: &str) -> Result<AccessToken, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn a_token_is_the_same_written_plainly_or_as_its_hash() {
        let plain = token(r#"{"name":"ci","role":"submit","token":"0123456789abcdef"}"#).unwrap();
        let hashed = token(
            r#"{"name":"ci","role":"submit","sha256":"9F9F5111F7B27A781F1F1DDDE5EBC2DD2B796BFC7365C9C28B548E564176929F"}"#,
        )
        .unwrap();
        assert_eq!(plain, hashed);
        assert!(hashed.is(b"0123456789abcdef"));
        assert!(!hashed.is(b"0123456789abcdeF"));
    }

    #[test]
    fn the_environment_binds_a_worker_to_agents() {
        let read = from_env("w:work/video/audio:0123456789:abcdef,ci:read:fedcba9876543210");
        let tokens: Vec<AccessToken> = serde_json::from_value(read.unwrap()).unwrap();
        assert_eq!(tokens[0].role, Role::Work);
        let agents: Vec<_> = tokens[0].agents.iter().map(AgentName::as_str).collect();
        assert_eq!(agents, ["video", "audio"]);
        assert!(tokens[0].is(b"0123456789:abcdef"));
        assert!(tokens[1].agents.is_empty());
    }

    #[test]
    fn a_token_that_could_be_guessed_or_is_not_whole_is_refused() {
        for json in [
            r#"{"name":"ci","role":"submit","token":"short"}"#,
            r#"{"name":"ci","role":"submit"}"#,
            r#"{"name":"","role":"submit","token":"0123456789abcdef"}"#,
            r#"{"name":"ci","role":"root","token":"0123456789abcdef"}"#,
            r#"{"name":"ci","role":"submit","sha256":"9f"}"#,
            r#"{"name":"ci","role":"submit","token":"0123456789abcdef","sha256":"9f"}"#,
            r#"{"name":"ci","role":"work","token":"0123456789abcdef"}"#,
            r#"{"name":"ci","role":"work","agents":[],"token":"0123456789abcdef"}"#,
            r#"{"name":"ci","role":"submit","agents":["video"],"token":"0123456789abcdef"}"#,
        ] {
            assert!(token(json).is_err(), "{json}");
        }
    }

    #[test]
    fn neither_debug_nor_json_shows_what_a_token_is() {
        let token = token(r#"{"name":"ci","role":"submit","token":"0123456789abcdef"}"#).unwrap();
        for shown in [format!("{token:?}"), serde_json::to_string(&token).unwrap()] {
            assert!(shown.contains("ci"), "{shown}");
            assert!(!shown.contains("0123456789abcdef"), "{shown}");
            assert!(!shown.to_lowercase().contains("9f9f5111"), "{shown}");
        }
    }
}
