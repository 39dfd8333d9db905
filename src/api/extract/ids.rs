//! Lists of ids in a request body, as in a bulk command.

use uuid::Uuid;

use crate::domain::values::{FieldFault, Fields};

const MOST_IDS: usize = 1000;

/// Parses the field `ids`. Every invalid id is reported with its JSON pointer.
pub fn ids(fields: &mut Fields<'_>, of: &str) -> Option<Vec<Uuid>> {
    let texts = fields.string_list("ids", 36)?;
    if texts.is_empty() {
        fields.fault("ids", "is empty: name at least one");
    }
    if texts.len() > MOST_IDS {
        fields.fault(
            "ids",
            format!("{} ids are too many; at most {MOST_IDS}", texts.len()),
        );
    }
    let mut ids = Vec::with_capacity(texts.len());
    for (at, text) in texts.into_iter().enumerate() {
        match Uuid::try_parse(&text) {
            Ok(id) => ids.push(id),
            Err(_) => fields.extend([FieldFault::new(
                format!("{}/{at}", fields.pointer("ids")),
                format!("{text:?} is not a {of}'s id"),
            )]),
        }
    }
    Some(ids)
}
