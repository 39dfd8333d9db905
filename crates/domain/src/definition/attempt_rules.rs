//! The rules for the attempts of a call that most steps do without: they take one pointer of a step that has none.

use std::sync::Arc;

use http::HeaderName;

use crate::values::{
    fields::{FieldFault, Fields, text},
    hidden::is_secret_header,
};

/// The rules for the attempts of a step, or of its undo.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct AttemptRules {
    /// The headers of the response that are kept with its status. `None`: neither is kept.
    pub keep_headers: Option<Box<[HeaderName]>>,
}

/// The most headers that a step keeps.
const MOST_HEADERS: usize = 16;

impl AttemptRules {
    /// Reads the rules of a step. Returns `None` if it has none of them.
    pub(super) fn read_of_step(fields: &mut Fields<'_>) -> Option<Arc<Self>> {
        let rules = Self {
            keep_headers: keep_headers(fields),
        };
        (rules != Self::default()).then(|| Arc::new(rules))
    }
}

fn keep_headers(fields: &mut Fields<'_>) -> Option<Box<[HeaderName]>> {
    let items = fields.array("keep_headers")?;
    let mut names: Vec<HeaderName> = Vec::with_capacity(items.len().min(MOST_HEADERS));
    if items.len() > MOST_HEADERS {
        let message = format!("has {} names: at most {MOST_HEADERS}", items.len());
        fields.fault("keep_headers", message);
        return None;
    }
    for (at, item) in items.into_iter().enumerate() {
        let name = text(item.get());
        let name = name.and_then(|name| HeaderName::from_bytes(name.as_bytes()).ok());
        let fault = match &name {
            None => "must be the name of a header, such as \"location\"",
            Some(name) if is_secret_header(name.as_str()) => {
                "may be a secret, which the record of a task does not keep: remove it"
            }
            Some(name) if names.contains(name) => "is listed twice: remove one",
            Some(_) => "",
        };
        match name.filter(|_| fault.is_empty()) {
            Some(name) => names.push(name),
            None => {
                let pointer = format!("{}/{at}", fields.pointer("keep_headers"));
                fields.extend([FieldFault::new(pointer, fault)]);
            }
        }
    }
    Some(names.into())
}
