//! Filters of lists and objects.

use std::cmp::Ordering;

use super::{
    Budget,
    arguments::{ArgumentValues, flag, given},
    attribute::{Path, attribute_of},
    budget::ITEM,
    compare,
    eval_error::{EvalResult, other},
    number::{Arithmetic, Number},
    value::{ChargedVec, Value},
};

fn name<'g>(args: ArgumentValues<'g, '_>, at: usize) -> EvalResult<Option<&'g str>> {
    match given(args, at) {
        None => Ok(None),
        Some(value) => match value.clone().present()?.as_text() {
            Some(_) => Ok(value.as_text()),
            None => other(format!(
                "the name of an attribute is a text, not {}",
                value.kind()
            )),
        },
    }
}

fn path<'g>(
    args: ArgumentValues<'g, '_>,
    at: usize,
    budget: &Budget,
) -> EvalResult<Option<Path<'g>>> {
    let name = name(args, at)?;
    name.map(|name| Path::parse(name, budget)).transpose()
}

pub(super) fn attr<'v>(
    value: Value<'v>,
    args: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let value = value.present()?;
    match name(args, 0)? {
        Some(name) => Ok(value.member(name, budget)?.unwrap_or(Value::Missing(""))),
        None => other("`attr` takes the name of a member"),
    }
}

pub(super) fn length<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    match value.length(budget)? {
        Some(length) => Ok(Value::int(length)),
        None => other(format!("{} has no length", value.kind())),
    }
}

pub(super) fn list<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    match value {
        Value::List(_) => Ok(value),
        value => Ok(Value::list(value.collect(budget)?)),
    }
}

pub(super) fn first<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let first = value.iter(budget)?.next();
    let first = first.map(|item| item.take(budget)).transpose()?;
    Ok(first.unwrap_or(Value::Missing("")))
}

pub(super) fn last<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    if let Some(text) = value.as_text() {
        return match text.chars().next_back() {
            Some(c) => Value::built(c.encode_utf8(&mut [0; 4]), budget),
            None => Ok(Value::Missing("")),
        };
    }
    let mut last = None;
    for item in value.iter(budget)? {
        budget.charge(ITEM / 2)?;
        last = Some(item);
    }
    let last = last.map(|item| item.take(budget)).transpose()?;
    Ok(last.unwrap_or(Value::Missing("")))
}

pub(super) fn items<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let value = value.present()?;
    if !value.is_map() {
        return other(format!("`items` takes an object, not {}", value.kind()));
    }
    pairs(value.members(budget)?, budget)
}

/// Returns the object with the members of another one: of two with one name, that of the other.
pub(super) fn merge<'v>(
    value: Value<'v>,
    args: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let value = value.present()?;
    let with = match args.first() {
        Some(Some(with)) => with.clone().present()?,
        _ => return other("`merge` takes an object"),
    };
    let mut merged = ChargedVec::new(budget);
    for object in [&value, &with] {
        if !object.is_map() {
            return other(format!("`merge` takes two objects, not {}", object.kind()));
        }
        for member in object.members(budget)? {
            merged.push(member)?;
        }
    }
    let merged = Value::Map(merged.items.into());
    // Each name once.
    Ok(Value::Map(merged.members(budget)?.into()))
}

/// Returns the object with only the members of these names.
pub(super) fn pick<'v>(
    value: Value<'v>,
    args: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    members_named("pick", true, value, args, budget)
}

/// Returns the object without the members of these names.
pub(super) fn omit<'v>(
    value: Value<'v>,
    args: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    members_named("omit", false, value, args, budget)
}

fn members_named<'v>(
    filter: &str,
    keeps: bool,
    value: Value<'v>,
    args: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let value = value.present()?;
    let names = match args.first() {
        Some(Some(names)) => names.clone().present()?,
        _ => Value::Null,
    };
    let names = match names.as_text() {
        Some(_) => vec![names],
        None if names.is_list() => names.collect(budget)?,
        None => Vec::new(),
    };
    let are_texts = names.iter().all(|name| name.as_text().is_some());
    if !value.is_map() || names.is_empty() || !are_texts {
        return other(format!(
            "`{filter}` takes an object, and the names of members as a list of texts, as in `input | {filter}(['sku', 'price'])`"
        ));
    }
    let mut kept = ChargedVec::new(budget);
    for (name, member) in value.members(budget)? {
        let text = name.as_text().unwrap_or_default();
        budget.charge_each(names.len(), ITEM + text.len() as u64 / 8)?;
        let is_named = names.iter().any(|named| named.as_text() == Some(text));
        if is_named == keeps {
            kept.push((name, member))?;
        }
    }
    Ok(Value::Map(kept.items.into()))
}

/// Returns pairs of the items of two lists, as many as the shorter one has.
pub(super) fn zip<'v>(
    value: Value<'v>,
    args: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let with = match args.first() {
        Some(Some(with)) => with.clone().present()?,
        _ => return other("`zip` takes a list"),
    };
    let mut pairs = ChargedVec::new(budget);
    let mut others = with.iter(budget)?;
    for item in value.iter(budget)? {
        let Some(with) = others.next() else {
            break;
        };
        budget.allocate(3 * size_of::<Value<'_>>())?;
        let pair = vec![item.take(budget)?, with.take(budget)?];
        pairs.push(Value::list(pair))?;
    }
    Ok(Value::list(pairs.items))
}

fn pairs<'v>(members: Vec<(Value<'v>, Value<'v>)>, budget: &Budget) -> EvalResult<Value<'v>> {
    let mut pairs = ChargedVec::new(budget);
    for (name, value) in members {
        budget.allocate(3 * size_of::<Value<'_>>())?;
        pairs.push(Value::list(vec![name, value]))?;
    }
    Ok(Value::list(pairs.items))
}

pub(super) fn reverse<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    if let Some(text) = value.as_text() {
        budget.charge_each(text.len(), 4)?;
        budget.allocate(text.len() * 3)?;
        return Value::built(&text.chars().rev().collect::<String>(), budget);
    }
    let mut items = value.collect(budget)?;
    items.reverse();
    Ok(Value::list(items))
}

/// Returns the value of an item that is compared: an attribute if one is named, and in lower case unless
/// `case_sensitive`.
fn key<'v>(
    item: &Value<'v>,
    attribute: Option<&Path<'_>>,
    case_sensitive: bool,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let key = attribute_of(item.clone(), attribute, budget)?;
    match case_sensitive {
        true => Ok(key),
        false => compare::folded(key, budget),
    }
}

pub(super) fn sort<'v>(
    value: Value<'v>,
    args: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let (reversed, case_sensitive) = (flag(args, 0)?, flag(args, 1)?);
    let attribute = path(args, 2, budget)?;
    let mut keyed = ChargedVec::new(budget);
    for item in value.iter(budget)? {
        let item = item.take(budget)?;
        keyed.push((
            key(&item, attribute.as_ref(), case_sensitive, budget)?,
            item,
        ))?;
    }
    sorted(keyed.items, reversed, budget, |(_, item)| item)
}

fn sorted<'v, T>(
    keyed: Vec<(Value<'v>, T)>,
    reversed: bool,
    budget: &Budget,
    take: impl Fn((Value<'v>, T)) -> Value<'v>,
) -> EvalResult<Value<'v>> {
    let sorted = compare::sort(keyed, budget, |a, b| {
        let order = compare::order(&a.0, &b.0, budget)?;
        Ok(if reversed { order.reverse() } else { order })
    })?;
    budget.allocate(sorted.len() * size_of::<Value<'_>>())?;
    Ok(Value::list(sorted.into_iter().map(take).collect()))
}

pub(super) fn dictsort<'v>(
    value: Value<'v>,
    args: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let value = value.present()?;
    if !value.is_map() {
        return other(format!("`dictsort` takes an object, not {}", value.kind()));
    }
    let case_sensitive = flag(args, 0)?;
    let by_value = match name(args, 1)? {
        None | Some("key") => false,
        Some("value") => true,
        Some(_) => return other("`dictsort` sorts by \"key\" or by \"value\""),
    };
    let mut keyed = ChargedVec::new(budget);
    for (name, item) in value.members(budget)? {
        let by = if by_value { &item } else { &name };
        let by = key(by, None, case_sensitive, budget)?;
        budget.allocate(3 * size_of::<Value<'_>>())?;
        keyed.push((by, Value::list(vec![name, item])))?;
    }
    sorted(keyed.items, flag(args, 2)?, budget, |(_, pair)| pair)
}

pub(super) fn unique<'v>(
    value: Value<'v>,
    args: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let case_sensitive = flag(args, 0)?;
    let attribute = path(args, 1, budget)?;
    let items = value.collect(budget)?;
    let unique = compare::unique(items, budget, |item| {
        key(item, attribute.as_ref(), case_sensitive, budget)
    })?;
    Ok(Value::list(unique))
}

pub(super) fn min<'v>(
    value: Value<'v>,
    args: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    extreme(value, args, budget, Ordering::Less)
}

pub(super) fn max<'v>(
    value: Value<'v>,
    args: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    extreme(value, args, budget, Ordering::Greater)
}

fn extreme<'v>(
    value: Value<'v>,
    args: ArgumentValues<'_, 'v>,
    budget: &Budget,
    wanted: Ordering,
) -> EvalResult<Value<'v>> {
    let case_sensitive = flag(args, 0)?;
    let attribute = path(args, 1, budget)?;
    let mut best: Option<(Value<'v>, Value<'v>)> = None;
    for item in value.iter(budget)? {
        let item = item.take(budget)?;
        let key = key(&item, attribute.as_ref(), case_sensitive, budget)?;
        let is_better = match &best {
            None => true,
            Some((known, _)) => compare::order(&key, known, budget)? == wanted,
        };
        if is_better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Value::Missing(""), |(_, item)| item))
}

pub(super) fn sum<'v>(
    value: Value<'v>,
    args: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let attribute = path(args, 0, budget)?;
    let mut sum = match given(args, 1) {
        None => Number::int(0),
        Some(start) => match start.as_number() {
            Some(start) => start,
            None => {
                return other(format!(
                    "a sum starts with a number, not with {}",
                    start.kind()
                ));
            }
        },
    };
    for item in value.iter(budget)? {
        let item = attribute_of(item.take(budget)?, attribute.as_ref(), budget)?.present()?;
        let Some(number) = item.as_number() else {
            return other(format!("only numbers have a sum, not {}", item.kind()));
        };
        sum = Arithmetic::Add.apply(sum, number)?;
    }
    Ok(Value::Number(sum))
}
