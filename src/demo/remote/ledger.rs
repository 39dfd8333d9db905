//! The records of a remote service, which make it idempotent and can be checked afterwards.

use std::collections::HashSet;

use parking_lot::Mutex;
use serde_json::Value;

/// One piece of work that was done.
struct RecordedCall {
    idempotency_key: String,
    order: String,
    answer: Value,
}

#[derive(Default)]
struct Pages {
    effects: Vec<RecordedCall>,
    /// The keys whose work was undone: a delayed request for it arrives too late.
    withdrawn: HashSet<String>,
    repeats: usize,
}

#[derive(Default)]
pub struct Ledger(Mutex<Pages>);

impl Ledger {
    /// Does the work for this key, unless it has been done: in that case it returns the first response again. Returns
    /// `None` if the work was undone.
    pub fn once(
        &self,
        idempotency_key: &str,
        order: &str,
        work: impl FnOnce() -> Value,
    ) -> Option<Value> {
        let mut pages = self.0.lock();
        if pages.withdrawn.contains(idempotency_key) {
            return None;
        }
        let known = pages
            .effects
            .iter()
            .find(|effect| effect.idempotency_key == idempotency_key);
        if let Some(answer) = known.map(|effect| effect.answer.clone()) {
            pages.repeats += 1;
            return Some(answer);
        }
        let answer = work();
        pages.effects.push(RecordedCall {
            idempotency_key: idempotency_key.to_owned(),
            order: order.to_owned(),
            answer: answer.clone(),
        });
        Some(answer)
    }

    /// Undoes the work with this key and this id. Returns false if there is nothing to undo.
    pub fn undo(&self, id: &str, key: &str) -> bool {
        let mut pages = self.0.lock();
        pages.withdrawn.insert(key.to_owned());
        let before = pages.effects.len();
        let is_it =
            |effect: &RecordedCall| effect.idempotency_key == key && effect.answer["id"] == id;
        pages.effects.retain(|effect| !is_it(effect));
        pages.effects.len() < before
    }

    /// Returns the first work for this order.
    pub fn find(&self, order: &str) -> Option<Value> {
        let pages = self.0.lock();
        let found = pages.effects.iter().find(|effect| effect.order == order);
        found.map(|effect| effect.answer.clone())
    }

    /// Returns how often work was done for this order.
    pub fn effects_for(&self, order: &str) -> usize {
        let pages = self.0.lock();
        let of_order = pages.effects.iter().filter(|effect| effect.order == order);
        of_order.count()
    }

    pub fn effects(&self) -> usize {
        self.0.lock().effects.len()
    }

    /// Returns how many requests asked for work that had been done already.
    pub fn repeats(&self) -> usize {
        self.0.lock().repeats
    }

    /// Returns the responses of all work, oldest first.
    pub fn answers(&self) -> Vec<Value> {
        let pages = self.0.lock();
        pages
            .effects
            .iter()
            .map(|effect| effect.answer.clone())
            .collect()
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
    fn what_was_undone_is_gone_and_not_done_by_a_request_that_comes_too_late() {
        let ledger = Ledger::default();
        ledger.once("k-1", "order-1", || json!({"id": "r"}));
        assert!(!ledger.undo("r", "k-2"), "another's");
        assert!(ledger.undo("r", "k-1"));
        assert!(!ledger.undo("r", "k-1"), "there is nothing left");
        assert_eq!(ledger.find("order-1"), None);
        assert_eq!(ledger.once("k-1", "order-1", || json!({"id": "r"})), None);
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
