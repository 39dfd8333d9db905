//! The path of an attribute, such as `'customer.name'` or `'lines.0'`.

use super::{Budget, budget::ITEM, eval_error::EvalResult, indexing::item_at, value::Value};

/// A dotted name, split once for all items of a filter: it may come from the data, and be long.
pub(super) struct Path<'g>(Vec<PathSegment<'g>>);

struct PathSegment<'g> {
    name: &'g str,
    /// The name as an index in a list, if it is a number.
    at: Option<i128>,
}

impl<'g> Path<'g> {
    pub fn parse(name: &'g str, budget: &Budget) -> EvalResult<Self> {
        // The text is read twice to split it, and once to read the numbers in it.
        budget.charge_each(name.len(), 8)?;
        let count = name.split('.').count();
        budget.allocate(count * size_of::<PathSegment<'_>>())?;
        let mut parts = Vec::with_capacity(count);
        parts.extend(name.split('.').map(|name| PathSegment {
            name,
            at: name.parse().ok(),
        }));
        Ok(Self(parts))
    }

    /// Returns the value at this path in an item. It is a missing value if the path does not exist.
    pub fn of<'v>(&self, item: Value<'v>, budget: &Budget) -> EvalResult<Value<'v>> {
        let mut value = item;
        for part in &self.0 {
            budget.charge(ITEM)?;
            let found = match (value.is_list(), part.at) {
                (true, Some(at)) => item_at(&value, at, budget)?,
                _ => value.member(part.name, budget)?,
            };
            value = match found {
                Some(value) => value,
                None => return Ok(Value::Missing("")),
            };
        }
        Ok(value)
    }
}

/// Returns the value of an attribute, or the item itself if no attribute is named.
pub(super) fn attribute_of<'v>(
    item: Value<'v>,
    path: Option<&Path<'_>>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    match path {
        Some(path) => path.of(item, budget),
        None => item.present(),
    }
}
