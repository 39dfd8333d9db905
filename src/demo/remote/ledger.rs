//! What a remote service has done, so that it can be asked afterwards, and does nothing twice.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// One thing that was done.
struct Effect {
    idempotency_key: String,
    order: String,
    answer: Value,
}

#[derive(Default)]
struct Pages {
    effects: Vec<Effect>,
    repeats: usize,
}

#[derive(Default)]
pub struct Ledger(Mutex<Pages>);

impl Ledger {
    /// Does the work under this key, unless it has been done: then the first answer is given again.
    pub fn once(&self, idempotency_key: &str, order: &str, work: impl FnOnce() -> Value) -> Value {
        let mut pages = self.pages();
        let known = pages
            .effects
            .iter()
            .find(|effect| effect.idempotency_key == idempotency_key);
        if let Some(answer) = known.map(|effect| effect.answer.clone()) {
            pages.repeats += 1;
            return answer;
        }
        let answer = work();
        pages.effects.push(Effect {
            idempotency_key: idempotency_key.to_owned(),
            order: order.to_owned(),
            answer: answer.clone(),
        });
        answer
    }

    /// How often work was done for this order.
    pub fn effects_for(&self, order: &str) -> usize {
        let pages = self.pages();
        let of_order = pages.effects.iter().filter(|effect| effect.order == order);
        of_order.count()
    }

    pub fn effects(&self) -> usize {
        self.pages().effects.len()
    }

    /// How many requests asked for what had been done already.
    pub fn repeats(&self) -> usize {
        self.pages().repeats
    }

    /// Everything that was done, in order.
    pub fn answers(&self) -> Vec<Value> {
        let pages = self.pages();
        pages
            .effects
            .iter()
            .map(|effect| effect.answer.clone())
            .collect()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        // Nothing that runs under the lock leaves it half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_asked_twice_under_one_key_is_done_once() {
        let ledger = Ledger::default();
        let first = ledger.once("k-1", "order-1", || json!({"id": "first"}));
        let again = ledger.once("k-1", "order-1", || json!({"id": "second"}));
        assert_eq!(first, again);
        assert_eq!((ledger.effects_for("order-1"), ledger.repeats()), (1, 1));
    }

    #[test]
    fn the_same_work_under_two_keys_is_seen_to_be_done_twice() {
        let ledger = Ledger::default();
        for key in ["k-1", "k-2"] {
            ledger.once(key, "order-1", || json!({}));
        }
        assert_eq!(ledger.effects_for("order-1"), 2);
        assert_eq!((ledger.effects(), ledger.repeats()), (2, 0));
    }
}
