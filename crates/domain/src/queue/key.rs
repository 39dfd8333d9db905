//! Keys of tasks: made of a task by a template, and cut to a length that fits into names of lanes and indexes.

use sha2::{Digest, Sha256};

use crate::{
    task::aggregate::Details,
    template::{Budget, Scope, Template},
};

/// Longer keys are cut, and a hash keeps them distinct.
pub(crate) const LONGEST_KEY: usize = 64;
/// The most that making the keys of one step may cost, in the units of [`Budget`].
const COST: u64 = 1 << 18;

impl Details {
    /// Returns the key that the template gives; an empty text if it cannot be made.
    pub(crate) fn render_key(&self, template: &Template) -> String {
        let budget = Budget::new(COST);
        let scope = Scope {
            task_id: self.id,
            key: self.key.as_deref(),
            labels: &self.labels,
            input: Some(&self.input),
            ..Scope::empty(&budget)
        };
        template.render_text(&scope).unwrap_or_default()
    }
}

/// Returns the key, cut if it is longer than [`LONGEST_KEY`] bytes.
pub(crate) fn short(key: String) -> String {
    const KEPT: usize = LONGEST_KEY - 17;
    if key.len() <= LONGEST_KEY {
        // PostgreSQL takes no text that has U+0000.
        return key.replace('\0', "\u{fffd}");
    }
    let hash = Sha256::digest(key.as_bytes());
    let hash: String = hash
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let kept = &key[..key.floor_char_boundary(KEPT)];
    format!("{}~{hash}", kept.replace('\0', "\u{fffd}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_keys_are_cut_and_stay_different() {
        let (one, other) = ("é".repeat(500), "é".repeat(501));
        let (one, other) = (short(one), short(other));
        assert!(one.len() <= LONGEST_KEY && other.len() <= LONGEST_KEY);
        assert_ne!(one, other);
        assert_eq!(short("a\0b".to_owned()), "a\u{fffd}b");
    }
}
