//! The keys of steps, by which services recognise a repeated call: the prefix of the task, a colon and the name of the
//! step. Items, iterations and undos are steps with names of their own, so they have keys of their own.
//!
//! A task that may be submitted again after it was lost has a prefix that follows from what was submitted, so that its
//! services see the same keys. The prefix of any other task is its id.

use std::{fmt, sync::Arc};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use uuid::Uuid;

use crate::{
    definition::UNDO,
    schedule::{RunSource, ScheduleRun, ScheduleState},
    task::aggregate::Task,
    values::ids::StepIndex,
};

/// The number of bytes of a hash in a prefix: enough that no two tasks of a store share a prefix by chance.
const PREFIX: usize = 16;

/// Makes the prefixes with a key that is stored in the database: it stays the same after a restore, and every database
/// has another.
#[derive(Clone)]
pub struct KeyPrefixes(Hmac<Sha256>);

impl KeyPrefixes {
    /// `secret` is the secret of the store. The key is derived from it, so a prefix reveals nothing about other values
    /// that are made with the secret.
    pub fn new(secret: &[u8]) -> Option<Self> {
        let secret: Hmac<Sha256> = Hmac::new_from_slice(secret).ok()?;
        let own = secret.chain_update(b"step keys").finalize().into_bytes();
        Hmac::new_from_slice(&own).ok().map(Self)
    }

    /// Returns the prefix of a task that was submitted under this `Idempotency-Key`. `key` names its caller as well,
    /// and `fingerprint` is that of the request: another request under the key has another prefix.
    pub fn of_request(&self, key: &str, fingerprint: &str) -> Arc<str> {
        self.prefix("request", &[key, fingerprint])
    }

    /// Returns the prefix of the child of a step: it is the same while the step has the same key and the same attempt.
    pub fn of_child(&self, parent: &Task, step: StepIndex) -> Arc<str> {
        let attempt = parent.step(step).attempt.0.to_string();
        self.prefix("child", &[&parent.idempotency_key(step), &attempt])
    }

    /// Returns the prefix of the task of a run. A fire time has one prefix, whether it is fired, caught up or
    /// backfilled, while the submission is the same. A run that an operator triggers has a new prefix, unless the
    /// request is a repeated one.
    pub fn of_run(
        &self,
        schedule: &str,
        state: &ScheduleState,
        run: &ScheduleRun,
        submission: &str,
    ) -> Arc<str> {
        let key = state.idempotency_key(schedule, run);
        match (&run.request, run.source) {
            (Some(request), RunSource::Triggered) => self.prefix(
                "triggered",
                &[&request.key, &request.fingerprint, submission],
            ),
            // After a restore, another run may get the same number.
            (None, RunSource::Triggered) => {
                self.prefix("run", &[&key, &run.decided_at.to_string(), submission])
            }
            _ => self.prefix("fire time", &[&key, submission]),
        }
    }

    fn prefix(&self, kind: &str, parts: &[&str]) -> Arc<str> {
        let mut mac = self.0.clone();
        for part in [&[kind], parts].concat() {
            // The length of a part comes before it, so that no two lists of parts have the same hash.
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        let hash = mac.finalize().into_bytes();
        let hex: String = hash[..PREFIX]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        hex.into()
    }
}

impl fmt::Debug for KeyPrefixes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyPrefixes(hidden)")
    }
}

impl Task {
    /// Returns the key that every attempt of a step has. A probe, a poll and a cancellation name the key of their step,
    /// and an undo also the key of the step that it undoes.
    pub fn idempotency_key(&self, index: StepIndex) -> String {
        let mut id = Uuid::encode_buffer();
        let prefix = match self.details.key_prefix.as_deref() {
            Some(prefix) => prefix,
            None => self.id().0.hyphenated().encode_lower(&mut id),
        };
        if self.is_revert(index) {
            // An undo of a step has one key, whether its task is undone or it has lost a race.
            let undone = self.definition(self.subject(index)).name.as_str();
            return [prefix, ":", undone, UNDO].concat();
        }
        [prefix, ":", self.definition(index).name.as_str()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        schedule::{Overlap, RunRequest, RunState},
        values::time::Timestamp,
    };

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn prefixes() -> KeyPrefixes {
        KeyPrefixes::new(SECRET).unwrap()
    }

    #[test]
    fn a_request_has_one_prefix_under_a_key_of_one_store() {
        let first = prefixes().of_request("order-1 shop", "f1");
        assert_eq!(first, prefixes().of_request("order-1 shop", "f1"));
        let other = KeyPrefixes::new(b"another secret").unwrap();
        for others in [
            prefixes().of_request("order-1 other", "f1"),
            prefixes().of_request("order-1 shop", "f2"),
            prefixes().of_request("order-1 shopf", "1"),
            other.of_request("order-1 shop", "f1"),
        ] {
            assert_ne!(first, others);
        }
        // It fits into a field for the id of a task, and cannot be mistaken for one.
        assert!(first.len() == 32 && first.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(format!("{:?}", prefixes()), "KeyPrefixes(hidden)");
    }

    fn run(number: u64, source: RunSource, decided_at: i64) -> ScheduleRun {
        let at = Timestamp::from_millis(decided_at);
        ScheduleRun {
            number,
            fire_time: Timestamp::from_millis(60_000),
            last_fire_time: None,
            count: 1,
            source,
            state: RunState::Queued,
            overlap: Overlap::Queue,
            skipped: None,
            reason: None,
            by: None,
            task: None,
            starts_at: at,
            decided_at: at,
            started_at: None,
            request: None,
        }
    }

    #[test]
    fn a_fire_time_has_one_prefix_and_each_run_that_an_operator_triggers_its_own() {
        let state = ScheduleState::new(Uuid::nil(), Timestamp::from_millis(0));
        let of =
            |run: &ScheduleRun, submission| prefixes().of_run("nightly", &state, run, submission);
        let fired = of(&run(1, RunSource::Scheduled, 60_000), "{}");
        // After a restore the number is another, and the run is caught up or backfilled.
        for source in [
            RunSource::Scheduled,
            RunSource::CaughtUp,
            RunSource::Backfilled,
        ] {
            assert_eq!(fired, of(&run(2, source, 90_000), "{}"));
        }
        assert_ne!(
            fired,
            of(&run(1, RunSource::Scheduled, 60_000), "{\"n\":1}")
        );
        let again = ScheduleState::new(Uuid::from_u128(1), Timestamp::from_millis(0));
        let of_another = prefixes().of_run(
            "nightly",
            &again,
            &run(1, RunSource::Scheduled, 60_000),
            "{}",
        );
        assert_ne!(fired, of_another);
        let triggered = of(&run(3, RunSource::Triggered, 60_000), "{}");
        assert_eq!(triggered, of(&run(3, RunSource::Triggered, 60_000), "{}"));
        // After a restore, another run gets the same number.
        assert_ne!(triggered, of(&run(3, RunSource::Triggered, 90_000), "{}"));
        // The request for the run is repeated.
        let asked = |number, fingerprint: &str| ScheduleRun {
            request: Some(RunRequest {
                key: "k".to_owned(),
                fingerprint: fingerprint.to_owned(),
            }),
            ..run(number, RunSource::Triggered, 60_000)
        };
        assert_eq!(of(&asked(3, "f"), "{}"), of(&asked(7, "f"), "{}"));
        assert_ne!(of(&asked(3, "f"), "{}"), of(&asked(3, "g"), "{}"));
    }
}
