//! Sessions of people who signed in. A session is a random id in a cookie; the service keeps only the SHA-256 of the id,
//! and of the token the SHA-256 too, so that nobody can sign in with what is kept here.

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use rand::RngExt;
use sha2::{Digest, Sha256};

use crate::assets::hex;

/// The longest time that a session lasts.
pub const LONGEST: Duration = Duration::from_secs(8 * 3600);

/// The number of sessions that are kept. The one that ends first gives way to a new one.
const MOST: usize = 10_000;

/// The number of sessions of one access token, so that who has a token signs out nobody who has another one.
const MOST_OF_TOKEN: usize = 100;

/// The id of a session, as the cookie has it.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionId(String);

impl SessionId {
    pub fn random() -> Self {
        Self(hex(&rand::rng().random::<[u8; 32]>()))
    }

    pub fn read(text: &str) -> Option<Self> {
        let is_id = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(&self.0).into()
    }
}

/// A session as it is kept, under the digest of its id.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// The SHA-256 of the access token: the session ends when the token is removed.
    pub credential: [u8; 32],
    pub ends_at: Timestamp,
}

/// The place where sessions are kept.
#[async_trait]
pub trait SessionStore: Send + Sync + 'static {
    async fn put(&self, id: [u8; 32], session: Session, now: Timestamp);
    /// Returns the session, unless it has ended.
    async fn get(&self, id: &[u8; 32], now: Timestamp) -> Option<Session>;
    async fn remove(&self, id: &[u8; 32]);
}

/// Sessions in the memory of one instance, which end with its process.
#[derive(Default)]
pub struct MemorySessions(Mutex<HashMap<[u8; 32], Session>>);

#[async_trait]
impl SessionStore for MemorySessions {
    async fn put(&self, id: [u8; 32], session: Session, now: Timestamp) {
        let mut all = self.0.lock();
        all.retain(|_, session| session.ends_at > now);
        let of_token = |other: &Session| other.credential == session.credential;
        if all.values().filter(|other| of_token(other)).count() >= MOST_OF_TOKEN {
            remove_first(&mut all, of_token);
        } else if all.len() >= MOST {
            remove_first(&mut all, |_| true);
        }
        all.insert(id, session);
    }

    async fn get(&self, id: &[u8; 32], now: Timestamp) -> Option<Session> {
        let found = self.0.lock().get(id).cloned();
        found.filter(|session| session.ends_at > now)
    }

    async fn remove(&self, id: &[u8; 32]) {
        self.0.lock().remove(id);
    }
}

/// Removes the session that ends first among some of them.
fn remove_first(all: &mut HashMap<[u8; 32], Session>, among: impl Fn(&Session) -> bool) {
    let among = all.iter().filter(|(_, session)| among(session));
    let first = among.min_by_key(|(_, session)| session.ends_at);
    if let Some(first) = first.map(|(id, _)| *id) {
        all.remove(&first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[tokio::test]
    async fn a_session_ends_at_its_time_and_when_it_is_removed() {
        let sessions = MemorySessions::default();
        let id = SessionId::random();
        let session = Session {
            credential: [1; 32],
            ends_at: at(10),
        };
        sessions.put(id.digest(), session.clone(), at(0)).await;
        assert_eq!(sessions.get(&id.digest(), at(9)).await, Some(session));
        assert_eq!(sessions.get(&id.digest(), at(10)).await, None);
        sessions.remove(&id.digest()).await;
        assert_eq!(sessions.get(&id.digest(), at(9)).await, None);
    }

    #[tokio::test]
    async fn the_number_of_sessions_is_bounded() {
        let sessions = MemorySessions::default();
        let id = |number: usize| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&number.to_le_bytes());
            id
        };
        let put = async |number: usize, token: usize| {
            let ends_at = at(100 + i64::try_from(number).unwrap());
            let credential = id(token);
            let session = Session {
                credential,
                ends_at,
            };
            sessions.put(id(number), session, at(0)).await;
        };
        put(0, 1).await;
        for number in 1..=MOST_OF_TOKEN + 1 {
            put(number, 2).await;
        }
        assert_eq!(sessions.0.lock().len(), MOST_OF_TOKEN + 1);
        assert!(
            sessions.get(&id(0), at(0)).await.is_some(),
            "of another token"
        );
        assert_eq!(
            sessions.get(&id(1), at(0)).await,
            None,
            "the first to end gave way"
        );
        for number in MOST_OF_TOKEN + 2..MOST + 10 {
            put(number, number).await;
        }
        assert_eq!(sessions.0.lock().len(), MOST);
        assert_eq!(
            sessions.get(&id(0), at(0)).await,
            None,
            "the first to end gave way"
        );
    }

    #[test]
    fn an_id_is_read_as_it_was_written_and_nothing_else_is_one() {
        let id = SessionId::random();
        assert!(SessionId::read(id.as_str()).is_some_and(|read| read == id));
        for other in ["", "abc", &"g".repeat(64), &"a".repeat(65)] {
            assert!(SessionId::read(other).is_none(), "{other}");
        }
        assert_ne!(SessionId::random().as_str(), id.as_str());
    }
}
