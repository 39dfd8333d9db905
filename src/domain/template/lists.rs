//! Filters of lists and objects.

use std::cmp::Ordering;

use super::{
    Budget,
    budget::ITEM,
    compare,
    number::{Arithmetic, Number},
    registry::Given,
    trouble::{Outcome, other},
    value::{Room, Value},
};

/// The most numbers that `range` gives, as ever.
const LONGEST_RANGE: i128 = 100_000;

fn given<'g, 'v>(given: Given<'g, 'v>, at: usize) -> Option<&'g Value<'v>> {
    match given.get(at) {
        Some(Some(Value::Null)) | Some(None) | None => None,
        Some(Some(value)) => Some(value),
    }
}

fn flag(args: Given<'_, '_>, at: usize) -> Outcome<bool> {
    given(args, at).map_or(Ok(false), Value::truth)
}

fn name<'g>(args: Given<'g, '_>, at: usize) -> Outcome<Option<&'g str>> {
    match given(args, at) {
        None => Ok(None),
        Some(value) => match value.clone().present()?.as_text() {
            Some(_) => Ok(value.as_text()),
            None => other(format!(
                "an attribute is named by a text, not by {}",
                value.kind()
            )),
        },
    }
}

fn whole(args: Given<'_, '_>, at: usize) -> Outcome<Option<i128>> {
    match given(args, at) {
        None => Ok(None),
        Some(value) => match value
            .clone()
            .present()?
            .as_number()
            .and_then(Number::as_int)
        {
            Some(number) => Ok(Some(number)),
            None => other(format!("a whole number is needed, not {}", value.kind())),
        },
    }
}

/// What stands under a dotted name in an item. Missing where it is not there.
pub(super) fn attribute_of<'v>(
    item: Value<'v>,
    name: Option<&str>,
    budget: &Budget,
) -> Outcome<Value<'v>> {
    let Some(name) = name else {
        return item.present();
    };
    let mut value = item;
    for part in name.split('.') {
        budget.charge(ITEM)?;
        let found = match (value.is_list(), part.parse::<i128>()) {
            (true, Ok(at)) => item_at(&value, at, budget)?,
            _ => value.member(part, budget)?,
        };
        value = match found {
            Some(value) => value,
            None => return Ok(Value::Missing("")),
        };
    }
    Ok(value)
}

/// Counted from 0, or from the end below that.
pub(super) fn item_at<'v>(
    value: &Value<'v>,
    at: i128,
    budget: &Budget,
) -> Outcome<Option<Value<'v>>> {
    if let Value::List(items) = value {
        let at = if at < 0 { at + items.len() as i128 } else { at };
        let item = usize::try_from(at).ok().and_then(|at| items.get(at));
        return Ok(item.cloned());
    }
    let at = match at {
        at if at < 0 => at + value.length(budget)?.unwrap_or_default() as i128,
        at => at,
    };
    let Ok(at) = usize::try_from(at) else {
        return Ok(None);
    };
    let mut items = value.iter(budget)?;
    for _ in 0..at {
        budget.charge(ITEM / 2)?;
        if items.next().is_none() {
            return Ok(None);
        }
    }
    items.next().map(|item| item.take(budget)).transpose()
}

pub(super) fn attr<'v>(
    value: Value<'v>,
    args: Given<'_, 'v>,
    budget: &Budget,
) -> Outcome<Value<'v>> {
    let value = value.present()?;
    match name(args, 0)? {
        Some(name) => Ok(value.member(name, budget)?.unwrap_or(Value::Missing(""))),
        None => other("`attr` takes the name of a member"),
    }
}

pub(super) fn length<'v>(
    value: Value<'v>,
    _: Given<'_, 'v>,
    budget: &Budget,
) -> Outcome<Value<'v>> {
    match value.length(budget)? {
        Some(length) => Ok(Value::int(length)),
        None => other(format!("{} has no length", value.kind())),
    }
}

pub(super) fn list<'v>(value: Value<'v>, _: Given<'_, 'v>, budget: &Budget) -> Outcome<Value<'v>> {
    match value {
        Value::List(_) => Ok(value),
        value => Ok(Value::list(value.collect(budget)?)),
    }
}

pub(super) fn first<'v>(value: Value<'v>, _: Given<'_, 'v>, budget: &Budget) -> Outcome<Value<'v>> {
    let first = value.iter(budget)?.next();
    let first = first.map(|item| item.take(budget)).transpose()?;
    Ok(first.unwrap_or(Value::Missing("")))
}

pub(super) fn last<'v>(value: Value<'v>, _: Given<'_, 'v>, budget: &Budget) -> Outcome<Value<'v>> {
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

pub(super) fn items<'v>(value: Value<'v>, _: Given<'_, 'v>, budget: &Budget) -> Outcome<Value<'v>> {
    let value = value.present()?;
    if !value.is_map() {
        return other(format!("`items` takes an object, not {}", value.kind()));
    }
    pairs(value.members(budget)?, budget)
}

fn pairs<'v>(members: Vec<(Value<'v>, Value<'v>)>, budget: &Budget) -> Outcome<Value<'v>> {
    let mut pairs = Room::new(budget);
    for (name, value) in members {
        budget.allocate(3 * size_of::<Value<'_>>())?;
        pairs.push(Value::list(vec![name, value]))?;
    }
    Ok(Value::list(pairs.items))
}

pub(super) fn reverse<'v>(
    value: Value<'v>,
    _: Given<'_, 'v>,
    budget: &Budget,
) -> Outcome<Value<'v>> {
    if let Some(text) = value.as_text() {
        budget.charge_each(text.len(), 4)?;
        budget.allocate(text.len() * 3)?;
        return Value::built(&text.chars().rev().collect::<String>(), budget);
    }
    let mut items = value.collect(budget)?;
    items.reverse();
    Ok(Value::list(items))
}

/// What is compared: an attribute, and without regard to case unless that is asked for.
fn key<'v>(
    item: &Value<'v>,
    attribute: Option<&str>,
    case_sensitive: bool,
    budget: &Budget,
) -> Outcome<Value<'v>> {
    let key = attribute_of(item.clone(), attribute, budget)?;
    match case_sensitive {
        true => Ok(key),
        false => compare::folded(key, budget),
    }
}

pub(super) fn sort<'v>(
    value: Value<'v>,
    args: Given<'_, 'v>,
    budget: &Budget,
) -> Outcome<Value<'v>> {
    let (reversed, case_sensitive) = (flag(args, 0)?, flag(args, 1)?);
    let attribute = name(args, 2)?;
    let mut keyed = Room::new(budget);
    for item in value.iter(budget)? {
        let item = item.take(budget)?;
        keyed.push((key(&item, attribute, case_sensitive, budget)?, item))?;
    }
    sorted(keyed.items, reversed, budget, |(_, item)| item)
}

fn sorted<'v, T>(
    keyed: Vec<(Value<'v>, T)>,
    reversed: bool,
    budget: &Budget,
    take: impl Fn((Value<'v>, T)) -> Value<'v>,
) -> Outcome<Value<'v>> {
    let sorted = compare::sort(keyed, budget, |a, b| {
        let order = compare::order(&a.0, &b.0, budget)?;
        Ok(if reversed { order.reverse() } else { order })
    })?;
    budget.allocate(sorted.len() * size_of::<Value<'_>>())?;
    Ok(Value::list(sorted.into_iter().map(take).collect()))
}

pub(super) fn dictsort<'v>(
    value: Value<'v>,
    args: Given<'_, 'v>,
    budget: &Budget,
) -> Outcome<Value<'v>> {
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
    let mut keyed = Room::new(budget);
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
    args: Given<'_, 'v>,
    budget: &Budget,
) -> Outcome<Value<'v>> {
    let case_sensitive = flag(args, 0)?;
    let attribute = name(args, 1)?;
    let items = value.collect(budget)?;
    let unique = compare::unique(items, budget, |item| {
        key(item, attribute, case_sensitive, budget)
    })?;
    Ok(Value::list(unique))
}

pub(super) fn min<'v>(
    value: Value<'v>,
    args: Given<'_, 'v>,
    budget: &Budget,
) -> Outcome<Value<'v>> {
    extreme(value, args, budget, Ordering::Less)
}

pub(super) fn max<'v>(
    value: Value<'v>,
    args: Given<'_, 'v>,
    budget: &Budget,
) -> Outcome<Value<'v>> {
    extreme(value, args, budget, Ordering::Greater)
}

fn extreme<'v>(
    value: Value<'v>,
    args: Given<'_, 'v>,
    budget: &Budget,
    wanted: Ordering,
) -> Outcome<Value<'v>> {
    let case_sensitive = flag(args, 0)?;
    let attribute = name(args, 1)?;
    let mut best: Option<(Value<'v>, Value<'v>)> = None;
    for item in value.iter(budget)? {
        let item = item.take(budget)?;
        let key = key(&item, attribute, case_sensitive, budget)?;
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
    args: Given<'_, 'v>,
    budget: &Budget,
) -> Outcome<Value<'v>> {
    let attribute = name(args, 0)?;
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
        let item = attribute_of(item.take(budget)?, attribute, budget)?.present()?;
        let Some(number) = item.as_number() else {
            return other(format!("only numbers have a sum, not {}", item.kind()));
        };
        sum = Arithmetic::Add.apply(sum, number)?;
    }
    Ok(Value::Number(sum))
}

pub(super) fn range<'v>(args: Given<'_, 'v>, budget: &Budget) -> Outcome<Value<'v>> {
    let first = whole(args, 0)?.unwrap_or_default();
    let (start, stop) = match whole(args, 1)? {
        Some(stop) => (first, stop),
        None => (0, first),
    };
    let step = whole(args, 2)?.unwrap_or(1);
    let limits = -(1i128 << 64)..=1 << 64;
    if step == 0
        || ![start, stop, step]
            .iter()
            .all(|number| limits.contains(number))
    {
        return other("`range` takes whole numbers of at most 64 bits, and a step that is not 0");
    }
    let count = ((stop - start + step - step.signum()) / step).max(0);
    if count > LONGEST_RANGE {
        return other(format!("`range` gives at most {LONGEST_RANGE} numbers"));
    }
    // Within 0 to LONGEST_RANGE.
    let count = count as usize;
    budget.allocate(count * size_of::<Value<'_>>())?;
    budget.charge_each(count, ITEM)?;
    let numbers = (0..count as i128).map(|at| Value::Number(Number::int(start + at * step)));
    Ok(Value::list(numbers.collect()))
}

/// `value[start:stop:step]`, as in Python.
pub(super) fn slice<'v>(
    value: &Value<'v>,
    args: Given<'_, 'v>,
    budget: &Budget,
) -> Outcome<Value<'v>> {
    let step = whole(args, 2)?.unwrap_or(1);
    if step == 0 {
        return other("a slice has no step of 0");
    }
    if value.as_text().is_none() && !value.is_list() {
        return other(format!(
            "only lists and texts can be sliced, not {}",
            value.kind()
        ));
    }
    // Characters are not made into values of their own.
    let text = value.as_text();
    let (items, characters) = match text {
        Some(text) => {
            budget.allocate(text.len() * 5)?;
            budget.charge_each(text.len(), 4)?;
            (Vec::new(), text.char_indices().collect::<Vec<_>>())
        }
        None => (value.collect(budget)?, Vec::new()),
    };
    let length = items.len().max(characters.len()) as i128;
    let (least, most) = if step > 0 {
        (0, length)
    } else {
        (-1, length - 1)
    };
    let place = |at: Option<i128>, usual: i128| match at {
        None => usual,
        Some(at) if at < 0 => at.saturating_add(length).clamp(least, most),
        Some(at) => at.clamp(least, most),
    };
    let (from, to) = if step > 0 {
        (least, most)
    } else {
        (most, least)
    };
    let start = place(whole(args, 0)?, from);
    let stop = place(whole(args, 1)?, to);
    if let Some(text) = text {
        // Where each begins; the end of the text stands for the one behind the last.
        let begins = |at: i128| {
            let place = usize::try_from(at).ok().and_then(|at| characters.get(at));
            place.map_or(text.len(), |(begins, _)| *begins)
        };
        if step == 1 {
            return value.part(
                text.get(begins(start)..begins(stop)).unwrap_or_default(),
                budget,
            );
        }
        let mut sliced = String::new();
        budget.allocate(text.len() * 2)?;
        for at in places(start, stop, step) {
            budget.charge(ITEM)?;
            let character = usize::try_from(at).ok().and_then(|at| characters.get(at));
            sliced.extend(character.map(|(_, character)| *character));
        }
        return Value::built(&sliced, budget);
    }
    let mut sliced = Room::new(budget);
    for at in places(start, stop, step) {
        let item = usize::try_from(at).ok().and_then(|at| items.get(at));
        if let Some(item) = item {
            sliced.push(item.clone())?;
        }
    }
    Ok(Value::list(sliced.items))
}

fn places(start: i128, stop: i128, step: i128) -> impl Iterator<Item = i128> {
    let is_before = move |at: &i128| if step > 0 { *at < stop } else { *at > stop };
    std::iter::successors(Some(start), move |at| at.checked_add(step)).take_while(is_before)
}
