//! The token of an attempt: the credential with which a service replies later. It needs no record: it names the
//! attempt, and a MAC under a key of the store makes it unguessable. It becomes invalid with the end of the attempt,
//! because the number of the attempt is the fence.

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use uuid::Uuid;

use crate::values::{
    hex::push_hex,
    ids::{Attempt, StepIndex, StepRef, TaskId},
};

/// The length of the task, the step and the attempt in a token, in bytes.
const NAMED: usize = 16 + 2 + 4;
/// The length of the MAC, in bytes: 128 bits cannot be guessed.
const MAC: usize = 16;
/// The length of the same fields in the token of a link, which also has the person.
const ASKED: usize = NAMED + 2;

/// The key of a store, the same on all its instances.
#[derive(Clone)]
pub struct ReplyKey(Hmac<Sha256>);

impl ReplyKey {
    pub fn new(secret: &[u8]) -> Option<Self> {
        // A key of any length will do for an HMAC.
        Hmac::new_from_slice(secret).ok().map(Self)
    }

    /// Returns the queue of a message broker for replies to this store. Other stores may use the same broker, and this
    /// one must not take their replies.
    pub fn reply_queue(&self) -> String {
        let name = self.0.clone().chain_update(b"reply queue").finalize();
        let mut queue = "provost.replies.".to_owned();
        push_hex(&mut queue, &name.into_bytes()[..6]);
        queue
    }

    pub fn token(&self, step: StepRef, attempt: Attempt) -> String {
        let mut token = [0; NAMED + MAC];
        let (named, mac) = token.split_at_mut(NAMED);
        named[..16].copy_from_slice(step.task.0.as_bytes());
        named[16..18].copy_from_slice(&step.step.0.to_be_bytes());
        named[18..].copy_from_slice(&attempt.0.to_be_bytes());
        let full = self.0.clone().chain_update(&*named).finalize().into_bytes();
        mac.copy_from_slice(&full[..MAC]);
        URL_SAFE_NO_PAD.encode(token)
    }

    /// Returns the attempt that a token was made for, `None` if it was not made with this key.
    pub fn verify(&self, token: &str) -> Option<(StepRef, Attempt)> {
        let mut bytes = [0; NAMED + MAC];
        // A longer text does not fit into the buffer, so its length costs nothing.
        let length = URL_SAFE_NO_PAD.decode_slice(token, &mut bytes).ok()?;
        if length != bytes.len() {
            return None;
        }
        let (named, mac) = bytes.split_at(NAMED);
        let expected = self.0.clone().chain_update(named);
        // The comparison takes constant time.
        expected.verify_truncated_left(mac).ok()?;
        let task = TaskId(Uuid::from_slice(&named[..16]).ok()?);
        let step = StepIndex(u16::from_be_bytes(named[16..18].try_into().ok()?));
        let attempt = Attempt(u32::from_be_bytes(named[18..].try_into().ok()?));
        Some((StepRef { task, step }, attempt))
    }
}

/// The addresses to which services send later replies.
#[derive(Clone, Debug)]
pub struct ReplyAddresses {
    base: String,
    key: ReplyKey,
}

impl ReplyAddresses {
    /// `public_url` has no slash at its end.
    pub fn new(public_url: &str, key: ReplyKey) -> Self {
        Self {
            base: format!("{public_url}/v1/replies/"),
            key,
        }
    }

    /// Returns the address of an attempt, or of all attempts of a run of the step: see [`Attempt::any_after`]. It is a
    /// credential, because it suffices to end the attempt.
    pub fn of(&self, step: StepRef, attempt: Attempt) -> String {
        let token = self.key.token(step, attempt);
        format!("{}{token}", self.base)
    }
}

/// The token of a link of a person who is asked. It needs no record either, and becomes invalid with the end of the
/// attempt.
impl ReplyKey {
    pub fn ask_token(&self, step: StepRef, attempt: Attempt, person: u16) -> String {
        let named = asked(step, attempt, person);
        let mut token = URL_SAFE_NO_PAD.encode(named);
        token.push_str(&self.end_of(&named));
        token
    }

    /// Returns the rest of a token with this beginning, if the token is for this task.
    pub(crate) fn end_of_ask_token(&self, begin: &str, task: TaskId) -> Option<String> {
        let mut named = [0; ASKED];
        let length = URL_SAFE_NO_PAD.decode_slice(begin, &mut named).ok()?;
        let is_of_task = length == ASKED && named.starts_with(task.0.as_bytes());
        is_of_task.then(|| self.end_of(&named))
    }

    fn end_of(&self, named: &[u8; ASKED]) -> String {
        let full = self.ask_mac(named).finalize().into_bytes();
        URL_SAFE_NO_PAD.encode(&full[..MAC])
    }

    /// Returns the step, the attempt and the person that a token was made for, `None` if it was not made with this key.
    pub fn verify_ask(&self, token: &str) -> Option<(StepRef, Attempt, u16)> {
        let mut bytes = [0; ASKED + MAC];
        let length = URL_SAFE_NO_PAD.decode_slice(token, &mut bytes).ok()?;
        if length != bytes.len() {
            return None;
        }
        let (named, mac) = bytes.split_at(ASKED);
        self.ask_mac(named).verify_truncated_left(mac).ok()?;
        let task = TaskId(Uuid::from_slice(&named[..16]).ok()?);
        let step = StepIndex(u16::from_be_bytes(named[16..18].try_into().ok()?));
        let attempt = Attempt(u32::from_be_bytes(named[18..22].try_into().ok()?));
        let person = u16::from_be_bytes(named[22..].try_into().ok()?);
        Some((StepRef { task, step }, attempt, person))
    }

    /// Starts the MAC with a prefix, so that no token of a reply is valid as a token of an ask, whatever their lengths.
    fn ask_mac(&self, named: &[u8]) -> Hmac<Sha256> {
        self.0.clone().chain_update(b"ask ").chain_update(named)
    }
}

/// Bytes in groups of three are encoded without padding, so the MAC can be appended as text.
const _: () = assert!(ASKED.is_multiple_of(3));

/// The length of the beginning of a token as text: the part that is not secret.
pub(crate) const ASK_TOKEN_BEGIN: usize = ASKED / 3 * 4;

/// Returns the beginning of a token: the step, the attempt and the person.
pub(crate) fn begin_of_ask_token(step: StepRef, attempt: Attempt, person: u16) -> String {
    URL_SAFE_NO_PAD.encode(asked(step, attempt, person))
}

fn asked(step: StepRef, attempt: Attempt, person: u16) -> [u8; ASKED] {
    let mut named = [0; ASKED];
    named[..16].copy_from_slice(step.task.0.as_bytes());
    named[16..18].copy_from_slice(&step.step.0.to_be_bytes());
    named[18..22].copy_from_slice(&attempt.0.to_be_bytes());
    named[22..].copy_from_slice(&person.to_be_bytes());
    named
}

impl fmt::Debug for ReplyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn step() -> StepRef {
        StepRef {
            task: TaskId(Uuid::from_u128(0x0197_0000_0000_7000_8000_0000_0000_0001)),
            step: StepIndex(3),
        }
    }

    #[test]
    fn a_token_names_its_attempt_and_no_other() {
        let key = ReplyKey::new(SECRET).unwrap();
        let token = key.token(step(), Attempt(7));
        assert_eq!(key.verify(&token), Some((step(), Attempt(7))));
        assert_ne!(token, key.token(step(), Attempt(8)));
        assert!(token.len() < 64, "{token}");
        let other = ReplyKey::new(b"another secret").unwrap();
        assert_eq!(other.verify(&token), None);
    }

    #[test]
    fn a_token_that_was_changed_anywhere_is_unknown() {
        let key = ReplyKey::new(SECRET).unwrap();
        let token = key.token(step(), Attempt(7));
        for at in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(key.verify(&changed), None, "{changed}");
        }
        for text in [
            "",
            "x",
            &token[1..],
            &format!("{token}A"),
            &"A".repeat(100_000),
        ] {
            assert_eq!(key.verify(text), None);
        }
    }

    #[test]
    fn a_link_names_one_person_of_one_attempt_and_is_no_token_of_a_reply() {
        let key = ReplyKey::new(SECRET).unwrap();
        let link = key.ask_token(step(), Attempt(7), 2);
        assert_eq!(key.verify_ask(&link), Some((step(), Attempt(7), 2)));
        assert_eq!(key.verify(&link), None);
        assert_eq!(key.verify_ask(&key.token(step(), Attempt(7))), None);
        for at in 0..link.len() {
            let mut changed = link.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(key.verify_ask(&changed), None, "{changed}");
        }
        let other = ReplyKey::new(b"another secret").unwrap();
        assert_eq!(other.verify_ask(&link), None);
    }

    #[test]
    fn a_key_is_never_shown() {
        let key = ReplyKey::new(SECRET).unwrap();
        assert_eq!(format!("{key:?}"), "ReplyKey(hidden)");
    }
}
