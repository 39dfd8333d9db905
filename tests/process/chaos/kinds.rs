//! The steps of the operated chaos that are more than one call or one event.

use rand::{RngExt, rngs::StdRng};
use serde_json::{Value, json};

use super::orders::one_of;

/// Has the step done for each item of a short list.
pub fn for_each(random: &mut StdRng, step: &mut Value, undoable: bool) {
    let count = one_of(random, &[0, 1, 2, 3, 3, 4, 4, 5, 6]);
    let items: Vec<_> = (0..count).collect();
    step["for_each"] = json!(items);
    step["max_parallel"] = json!(random.random_range(1..4));
    let policies: &[&str] = match undoable {
        true => &["error", "skip", "skip", "undo"],
        false => &["error", "skip"],
    };
    if random.random_ratio(2, 3) {
        step["on_item_error"] = json!(one_of(random, policies));
    }
    if step["request"]["body"].is_object() {
        step["request"]["body"]["item"] = json!("{{ item }}");
    }
}
