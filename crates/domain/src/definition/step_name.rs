//! The names of steps, and the lists of them that a definition has.

use crate::values::{
    fields::{FieldFault, Fields, text},
    ids::StepName,
};

/// The longest name of a step, with those of the blocks that it is in, in bytes.
pub(super) const LONGEST_NAME: usize = 64;

/// Reads the name of a step. `prefix`: the names of the blocks that it is in, which become a part of its name.
pub(super) fn name_of_step(fields: &mut Fields<'_>, prefix: &str) -> Option<StepName> {
    const REMEDY: &str = "give 1 to 64 letters, digits, `_` or `-`, starting with a letter";
    /// The last parts of the names of undos.
    const TAKEN: [&str; 2] = ["undo", "revert"];
    if !fields.has("name") {
        fields.missing("name", REMEDY);
    }
    let name = fields.string("name", usize::MAX)?;
    let fault = if !is_name_of_step(&name) {
        format!("is not a valid step name: {REMEDY}")
    } else if prefix.is_empty() {
        return Some(StepName::new(name));
    } else if TAKEN.contains(&&*name) {
        "is the name of what undoes the block: give another one".to_owned()
    } else if prefix.len() + name.len() > LONGEST_NAME {
        format!(
            "is too long: with the names of its blocks it is `{prefix}{name}`, and at most {LONGEST_NAME} letters are allowed"
        )
    } else {
        return Some(StepName::new(format!("{prefix}{name}")));
    };
    fields.fault("name", fault);
    None
}

/// Returns whether a step may have this name.
pub(super) fn is_name_of_step(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic());
    let holds = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    starts && name.len() <= LONGEST_NAME && name.chars().all(holds)
}

/// Reads a list of names of steps. Returns each with its JSON pointer.
pub(super) fn names_of_steps(
    fields: &mut Fields<'_>,
    field: &str,
) -> Option<Vec<(String, String)>> {
    let items = fields.array(field)?;
    let mut named = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let pointer = format!("{}/{index}", fields.pointer(field));
        match text(item.get()) {
            Some(name) => named.push((pointer, name.into_owned())),
            None => fields.extend([FieldFault::new(pointer, "must be the name of a step")]),
        }
    }
    Some(named)
}
