//! `for_each`: a step that is run once for each item of a list.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::{FromInput, Policy, from_input};
use crate::{
    template::{JsonTemplate, Origin, Reads, Scope, payload::Payload},
    values::fields::{FieldFault, Fields},
};

/// The most items of one task.
pub const MOST_ITEMS: usize = 10_000;

/// The number of items that run at once, unless the step sets it.
const AT_ONCE: u16 = 10;
/// The largest number of items that a step can ask for: at once, or to succeed.
pub(crate) const MOST_AT_ONCE: u16 = 1000;

#[derive(Debug)]
pub struct ForEachRule {
    list: JsonTemplate,
    /// The largest number of items that run at once; the maximum, if the input gives it.
    pub max_parallel: u16,
    pub max_parallel_from: Option<FromInput<u16>>,
    pub enough: Option<Enough>,
}

/// The number of items that must succeed. The others are cancelled then.
#[derive(Debug)]
pub enum Enough {
    Fixed(u16),
    FromInput(FromInput<u16>),
}

/// The names that the expressions of an item see besides the usual ones.
pub(super) const SEEN_BY_ITEM: [&str; 2] = ["item", "index"];

/// The field `for_each` and the fields that belong to it, as they were read.
pub(super) struct ForEachDraft {
    list: Option<JsonTemplate>,
    max_parallel: u16,
    pub max_parallel_from: Option<FromInput<u16>>,
    pub enough: Option<Enough>,
    pub on_item_error: Option<Policy>,
}

/// Reads `for_each` and the fields that belong to it, and collects the names that its expressions read.
pub(super) fn read(
    step: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<ForEachDraft> {
    let value = step.value("for_each").filter(|value| value.get() != "null");
    let has = ["max_parallel", "on_item_error", "enough"]
        .map(|field| (field, step.peek(field).is_some()));
    let (max_parallel, max_parallel_from) =
        from_input::number(step, "max_parallel", 1..=MOST_AT_ONCE, origin);
    let (enough, enough_from) = from_input::number(step, "enough", 1..=MOST_AT_ONCE, origin);
    let enough = match enough_from {
        Some(from) => Some(Enough::FromInput(from)),
        None => enough.map(Enough::Fixed),
    };
    let on_item_error = step.choice("on_item_error", Policy::ALL);
    let Some(value) = value else {
        for (field, is_given) in has {
            if is_given {
                step.fault(
                    field,
                    "belongs to steps with `for_each`: add that, or remove it",
                );
            }
        }
        return None;
    };
    let pointer = step.pointer("for_each");
    let first = value.get().trim_start().chars().next();
    let list = match first {
        Some('"' | '[') => {
            let document = Payload::new(value.to_owned());
            JsonTemplate::parse(&document, origin).map_err(|faults| {
                step.extend(faults.into_iter().map(|fault| {
                    FieldFault::new(format!("{pointer}{}", fault.pointer), fault.message)
                }));
            })
        }
        _ => {
            step.fault("for_each", EXPECTED);
            Err(())
        }
    };
    if first == Some('[') && items_of(value).is_some_and(|items| items.len() > MOST_ITEMS) {
        let message =
            format!("has more than {MOST_ITEMS} items: split the list over several tasks");
        step.fault("for_each", message);
    }
    if first == Some('"')
        && list
            .as_ref()
            .is_ok_and(|list| list.reads().next().is_none())
    {
        step.fault("for_each", EXPECTED);
    }
    if let (Some('"'), Ok(list), Origin::Submitted(_)) = (first, &list, origin)
        && list.reads().next().is_some()
        && list.mixes_texts()
    {
        step.fault("for_each", ONLY_TEXT);
    }
    if let Ok(list) = &list {
        let found = list.reads();
        reads.extend(found.map(|(inside, looks)| (format!("{pointer}{inside}"), looks)));
    }
    Some(ForEachDraft {
        list: list.ok(),
        max_parallel: max_parallel.unwrap_or(AT_ONCE),
        max_parallel_from,
        enough,
        on_item_error,
    })
}

const EXPECTED: &str =
    "must be an array, or an expression that gives one, such as \"{{ steps.list.output.items }}\"";

const ONLY_TEXT: &str = "can only give a text: the whole string must be one expression, such as \"{{ steps.list.output.items }}\"";

impl ForEachDraft {
    pub fn finish(self) -> Option<ForEachRule> {
        Some(ForEachRule {
            list: self.list?,
            max_parallel: self.max_parallel,
            max_parallel_from: self.max_parallel_from,
            enough: self.enough,
        })
    }
}

impl ForEachRule {
    /// Returns the reads of each expression in the list, with its JSON pointer relative to the list.
    pub fn reads(&self) -> impl Iterator<Item = (&str, Reads)> {
        self.list.reads()
    }

    /// Returns the list as JSON text. The error text is for an operator: the definition or the data is wrong.
    pub fn list(&self, scope: &Scope<'_>) -> Result<String, String> {
        let list = self.list.render(scope);
        list.map_err(|error| format!("`for_each` could not be evaluated: {error}"))
    }
}

/// Returns the items of a JSON array, `None` if the text is not an array.
pub(crate) fn items_of(list: &RawValue) -> Option<Arc<[Payload]>> {
    let items: Vec<&RawValue> = serde_json::from_str(list.get()).ok()?;
    let items = items.into_iter();
    Some(items.map(|item| Payload::new(item.to_owned())).collect())
}
