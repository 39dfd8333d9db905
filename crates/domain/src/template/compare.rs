//! Equality, order and sorting. Each comparison is charged for the values that it reads.

use std::cmp::Ordering;

use super::{
    Budget,
    budget::ITEM,
    eval_error::{EvalError, EvalResult, other},
    value::{ChargedVec, Iter, Member, UnchargedItem, Value},
};

/// The deepest nesting of lists and objects that is compared and written.
pub(super) const DEEPEST: usize = 128;

pub(super) fn too_deep() -> EvalError {
    EvalError::Other(format!(
        "lists and objects are nested deeper than {DEEPEST} levels"
    ))
}

/// Returns whether two values are equal: objects in any order of their members, numbers by their value.
pub(super) fn equal<'v>(a: &Value<'v>, b: &Value<'v>, budget: &Budget) -> EvalResult<bool> {
    // A comparison of values of different kinds is charged too, because it costs work to see that.
    budget.charge(ITEM)?;
    // Most comparisons are between texts, and most texts differ in length.
    if let (Some(a), Some(b)) = (a.as_text(), b.as_text()) {
        if a.len() == b.len() {
            budget.charge(a.len() as u64 / 8)?;
            return Ok(a == b);
        }
        return Ok(false);
    }
    Ok(rank(a) == rank(b) && order(a, b, budget)? == Ordering::Equal)
}

/// Compares two values in a total order over all values, in which values of one kind are adjacent.
pub(super) fn order<'v>(a: &Value<'v>, b: &Value<'v>, budget: &Budget) -> EvalResult<Ordering> {
    compare(a, b, budget, 0)
}

fn compare<'v>(
    a: &Value<'v>,
    b: &Value<'v>,
    budget: &Budget,
    depth: usize,
) -> EvalResult<Ordering> {
    budget.charge(ITEM)?;
    if let (Some(a), Some(b)) = (a.as_number(), b.as_number()) {
        return Ok(a.order(b));
    }
    if let (Some(a), Some(b)) = (a.as_text(), b.as_text()) {
        budget.charge(a.len().min(b.len()) as u64 / 8)?;
        return Ok(a.cmp(b));
    }
    let by_rank = rank(a).cmp(&rank(b));
    if by_rank != Ordering::Equal {
        return Ok(by_rank);
    }
    if depth == DEEPEST {
        return Err(too_deep());
    }
    if let (Value::Node(a), Value::Node(b)) = (a, b)
        && a.is_same(*b)
    {
        return Ok(Ordering::Equal);
    }
    if a.is_list() {
        let (mut a, mut b) = (a.iter(budget)?, b.iter(budget)?);
        loop {
            return Ok(match (next(&mut a, budget)?, next(&mut b, budget)?) {
                (Some(a), Some(b)) => match compare(&a, &b, budget, depth + 1)? {
                    Ordering::Equal => continue,
                    decided => decided,
                },
                (None, None) => Ordering::Equal,
                (None, Some(_)) => Ordering::Less,
                (Some(_), None) => Ordering::Greater,
            });
        }
    }
    if a.is_map() {
        let (a, b) = (by_name(a, budget)?, by_name(b, budget)?);
        for ((a_name, a), (b_name, b)) in a.iter().zip(&b) {
            let by_name = compare(a_name, b_name, budget, depth + 1)?;
            let by_value = match by_name {
                Ordering::Equal => compare(a, b, budget, depth + 1)?,
                decided => decided,
            };
            if by_value != Ordering::Equal {
                return Ok(by_value);
            }
        }
        return Ok(a.len().cmp(&b.len()));
    }
    Ok(Ordering::Equal)
}

fn next<'v>(items: &mut Iter<'_, 'v>, budget: &Budget) -> EvalResult<Option<Value<'v>>> {
    items
        .next()
        .map(|item: UnchargedItem<'v>| item.take(budget))
        .transpose()
}

fn by_name<'v>(map: &Value<'v>, budget: &Budget) -> EvalResult<Vec<Member<'v>>> {
    let members = map.members(budget)?;
    sort(members, budget, |a, b| compare(&a.0, &b.0, budget, 0))
}

fn rank(value: &Value<'_>) -> u8 {
    match value {
        Value::Missing(_) => 0,
        Value::Null => 1,
        Value::Bool(_) | Value::Number(_) => 2,
        Value::Text(_) | Value::Built(_) => 3,
        Value::List(_) => 4,
        Value::Node(_) if value.is_list() => 4,
        Value::Node(_) | Value::Map(_) => 5,
    }
}

/// Compares values for `<` and the other operators of order, which apply to numbers, texts and lists. Any other operand
/// is a mistake.
pub(super) fn ordered<'v>(a: &Value<'v>, b: &Value<'v>, budget: &Budget) -> EvalResult<Ordering> {
    let comparable = rank(a) == rank(b) && rank(a) > 1 && rank(a) < 5;
    if !comparable {
        return other(format!(
            "{} and {} have no order: `<`, `<=`, `>` and `>=` take two numbers, or two texts",
            a.kind(),
            b.kind()
        ));
    }
    order(a, b, budget)
}

/// Sorts by merging: equal values keep their order. The sort of the standard library accepts no comparison that can
/// fail.
pub(super) fn sort<T>(
    mut items: Vec<T>,
    budget: &Budget,
    compare: impl Fn(&T, &T) -> EvalResult<Ordering>,
) -> EvalResult<Vec<T>> {
    let mut width = 1;
    while width < items.len() {
        budget.allocate(items.len() * size_of::<T>())?;
        let mut merged = Vec::with_capacity(items.len());
        let mut rest = items.into_iter();
        loop {
            let left: Vec<T> = rest.by_ref().take(width).collect();
            if left.is_empty() {
                break;
            }
            let right: Vec<T> = rest.by_ref().take(width).collect();
            budget.allocate((left.len() + right.len()) * size_of::<T>())?;
            let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
            loop {
                let from_right = match (left.peek(), right.peek()) {
                    (Some(one), Some(other)) => {
                        budget.charge(ITEM)?;
                        compare(one, other)? == Ordering::Greater
                    }
                    (None, Some(_)) => true,
                    (Some(_), None) => false,
                    (None, None) => break,
                };
                merged.extend(if from_right {
                    right.next()
                } else {
                    left.next()
                });
            }
        }
        items = merged;
        width *= 2;
    }
    Ok(items)
}

/// Returns a text in lower case, to be compared without case; any other value unchanged.
pub(super) fn folded<'v>(value: Value<'v>, budget: &Budget) -> EvalResult<Value<'v>> {
    let Some(text) = value.as_text() else {
        return Ok(value);
    };
    budget.charge_each(text.len(), 1)?;
    let is_folded = |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase();
    if text.bytes().all(is_folded) {
        return Ok(value);
    }
    budget.charge_each(text.len(), 8)?;
    // A character can become three times as long.
    budget.allocate(text.len() * 3)?;
    Value::built(&text.to_lowercase(), budget)
}

/// Returns the first of each group of equal values, in their order. `key` returns the value that is compared.
pub(super) fn unique<'v>(
    items: Vec<Value<'v>>,
    budget: &Budget,
    key: impl Fn(&Value<'v>) -> EvalResult<Value<'v>>,
) -> EvalResult<Vec<Value<'v>>> {
    let mut keyed = ChargedVec::new(budget);
    for (at, item) in items.iter().enumerate() {
        keyed.push((key(item)?, at))?;
    }
    // Equal values keep their order in the sort, so the first of them comes first.
    let sorted = sort(keyed.items, budget, |a, b| order(&a.0, &b.0, budget))?;
    budget.allocate(items.len())?;
    let mut is_first = vec![true; items.len()];
    for pair in sorted.windows(2) {
        if order(&pair[0].0, &pair[1].0, budget)? == Ordering::Equal {
            is_first[pair[1].1] = false;
        }
    }
    let mut kept = is_first.into_iter();
    let mut items = items;
    items.retain(|_| kept.next().unwrap_or_default());
    Ok(items)
}
