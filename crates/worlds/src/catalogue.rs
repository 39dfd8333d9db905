//! The worlds that are explored.

use serde_json::json;

use crate::{
    action::{OperatorCommand, Trouble, Troubles},
    world::SmallWorld,
};

/// Returns all worlds.
pub fn worlds() -> Vec<SmallWorld> {
    vec![steps()]
}

fn steps() -> SmallWorld {
    let workflow = json!({ "steps": [
        { "name": "a", "agent": "x", "max_failures": 1, "complete_within": "10s" },
        { "name": "b", "agent": "x", "max_failures": 1, "complete_within": "10s" },
    ] });
    let troubles = Troubles::default()
        .with(Trouble::Crash, 1)
        .with(Trouble::WrongGuess, 1)
        .with(Trouble::LostMessage, 1)
        .with(Trouble::Unavailable, 1)
        .with(Trouble::Refusal, 1)
        .with(Trouble::UnseenClaim, 1)
        .with(Trouble::NoSlot, 1)
        .with(Trouble::Command, 2);
    SmallWorld::new(
        "steps",
        "two steps, and instances whose copies of the record are stale",
        &workflow,
    )
    .with_troubles(troubles)
    .with_commands(&[OperatorCommand::Pause, OperatorCommand::Retry])
    .with_caches()
}
