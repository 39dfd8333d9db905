//! The caller of a request. The token check puts it into the request's extensions; handlers extract it.

use std::{
    net::IpAddr,
    sync::{Arc, LazyLock},
};

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, request::Parts},
};

use crate::{
    api::problem::{Problem, ProblemKind},
    config::Role,
    domain::{task::Actor, values::AgentName, view::ChangeOrigin},
};

/// If no tokens are configured, callers may give their name in this header. It is recorded in the history and
/// grants nothing.
pub const ACTOR_HEADER: &str = "provost-actor";

const LONGEST_NAME: usize = 64;

static ANONYMOUS: LazyLock<Arc<str>> = LazyLock::new(|| "anonymous".into());

#[derive(Clone, PartialEq, Debug)]
pub struct Caller {
    /// The token's name; without tokens the value of `Provost-Actor`.
    pub name: Arc<str>,
    pub role: Role,
    /// The agents whose steps the caller may fetch, with the role `work`.
    pub agents: Arc<[AgentName]>,
    /// True if the name comes from a token.
    pub is_known: bool,
    /// The address from which the request came: that of a proxy, if there is one. `None` for a Unix socket.
    pub address: Option<IpAddr>,
}

impl Caller {
    /// Returns the caller's name as the history records it.
    pub fn operator(&self) -> Actor {
        Actor::operator(&self.name)
    }

    /// Returns who the caller is, as the ledger records the changes that it requests.
    pub fn origin(&self) -> ChangeOrigin {
        ChangeOrigin {
            by: self.operator().to_string(),
            role: self.is_known.then(|| self.role.as_str().to_owned()),
            address: self.address.map(|address| address.to_string()),
            reason: None,
        }
    }

    /// Refuses a worker that may not fetch steps of this agent.
    pub fn must_work_for(&self, agent: &str) -> Result<(), Problem> {
        let is_bound = self.role == Role::Work;
        if !is_bound || self.agents.iter().any(|known| known.as_str() == agent) {
            return Ok(());
        }
        Err(Problem::new(
            ProblemKind::Forbidden,
            format!(
                "the token {:?} does not fetch the steps of agent {agent:?}: add the agent to its `agents`",
                self.name
            ),
        ))
    }

    /// Returns the caller if no tokens are configured.
    pub fn without_token(headers: &HeaderMap) -> Result<Self, Problem> {
        let name = match headers.get(ACTOR_HEADER) {
            None => ANONYMOUS.clone(),
            Some(value) => match value.to_str() {
                // A tab is legal in a header, but is not printable.
                Ok(name) if (1..=LONGEST_NAME).contains(&name.len()) && !name.contains('\t') => {
                    name.into()
                }
                _ => {
                    return Err(Problem::new(
                        ProblemKind::InvalidQuery,
                        format!(
                            "Provost-Actor must be 1 to {LONGEST_NAME} printable ASCII characters, such as your name; or omit it"
                        ),
                    ));
                }
            },
        };
        Ok(Self {
            name,
            role: Role::Admin,
            agents: Arc::default(),
            is_known: false,
            address: None,
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // A request without a caller is on a public route, and its handler does not extract one.
        parts.extensions.get::<Caller>().cloned().ok_or_else(|| {
            Problem::new(
                ProblemKind::Internal,
                "the request has no authenticated caller",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(actor: &[u8]) -> HeaderMap {
        let value = axum::http::HeaderValue::from_bytes(actor).unwrap();
        HeaderMap::from_iter([(ACTOR_HEADER.parse().unwrap(), value)])
    }

    #[test]
    fn without_tokens_a_caller_is_who_the_header_says_or_anonymous() {
        let none = Caller::without_token(&HeaderMap::new()).unwrap();
        assert_eq!(none.operator().to_string(), "operator:anonymous");
        let ada = Caller::without_token(&headers(b"ada@example.org")).unwrap();
        assert_eq!(ada.operator().to_string(), "operator:ada@example.org");
    }

    #[test]
    fn a_name_that_would_spoil_a_log_line_is_refused() {
        for name in [&b""[..], &[b'x'; 65], "Zoë".as_bytes(), b"\xff", b"a\tb"] {
            let refused = Caller::without_token(&headers(name));
            let refused = refused.map_err(|problem| problem.kind());
            assert_eq!(refused.unwrap_err(), ProblemKind::InvalidQuery, "{name:?}");
        }
    }
}
