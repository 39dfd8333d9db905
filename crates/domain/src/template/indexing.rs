//! Items by their indices, slices and ranges.

use super::{
    Budget,
    arguments::{ArgumentValues, whole},
    budget::ITEM,
    eval_error::{EvalResult, other},
    number::Number,
    value::{ChargedVec, Value},
};

/// The most numbers that `range` returns. It has always been this number.
const LONGEST_RANGE: i128 = 100_000;

/// Returns the item at an index, which counts from 0, or from the end if it is negative.
pub(super) fn item_at<'v>(
    value: &Value<'v>,
    at: i128,
    budget: &Budget,
) -> EvalResult<Option<Value<'v>>> {
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

pub(super) fn range<'v>(args: ArgumentValues<'_, 'v>, budget: &Budget) -> EvalResult<Value<'v>> {
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
        return other(format!("`range` returns at most {LONGEST_RANGE} numbers"));
    }
    // The count is within 0 to LONGEST_RANGE.
    let count = count as usize;
    budget.allocate(count * size_of::<Value<'_>>())?;
    budget.charge_each(count, ITEM)?;
    let numbers = (0..count as i128).map(|at| Value::Number(Number::int(start + at * step)));
    Ok(Value::list(numbers.collect()))
}

/// `value[start:stop:step]`, as in Python.
pub(super) fn slice<'v>(
    value: &Value<'v>,
    args: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let step = whole(args, 2)?.unwrap_or(1);
    if step == 0 {
        return other("the step of a slice cannot be 0");
    }
    if value.as_text().is_none() && !value.is_list() {
        return other(format!(
            "only lists and texts can be sliced, not {}",
            value.kind()
        ));
    }
    // Characters are not made into values of their own: only the begin of each is recorded.
    let text = value.as_text();
    let (items, characters) = match text {
        Some(text) => {
            budget.charge_each(text.len(), 4)?;
            let count = text.chars().count();
            budget.allocate(count * size_of::<u32>())?;
            let mut begins = Vec::with_capacity(count);
            // A u32 is enough for the length of every text.
            begins.extend(text.char_indices().map(|(at, _)| at as u32));
            (Vec::new(), begins)
        }
        None => (value.collect(budget)?, Vec::new()),
    };
    let length = items.len().max(characters.len()) as i128;
    let (least, most) = if step > 0 {
        (0, length)
    } else {
        (-1, length - 1)
    };
    let position = |at: Option<i128>, usual: i128| match at {
        None => usual,
        Some(at) if at < 0 => at.saturating_add(length).clamp(least, most),
        Some(at) => at.clamp(least, most),
    };
    let (from, to) = if step > 0 {
        (least, most)
    } else {
        (most, least)
    };
    let start = position(whole(args, 0)?, from);
    let stop = position(whole(args, 1)?, to);
    if let Some(text) = text {
        // Returns the begin of a character; for the index after the last character, the end of the text.
        let begins = |at: i128| {
            let position = usize::try_from(at).ok().and_then(|at| characters.get(at));
            position.map_or(text.len(), |begins| *begins as usize)
        };
        if step == 1 {
            return value.part(
                text.get(begins(start)..begins(stop)).unwrap_or_default(),
                budget,
            );
        }
        let mut sliced = String::new();
        budget.allocate(text.len() * 2)?;
        for at in indices(start, stop, step) {
            budget.charge(ITEM)?;
            sliced.extend(text[begins(at)..].chars().next());
        }
        return Value::built(&sliced, budget);
    }
    let mut sliced = ChargedVec::new(budget);
    for at in indices(start, stop, step) {
        let item = usize::try_from(at).ok().and_then(|at| items.get(at));
        if let Some(item) = item {
            sliced.push(item.clone())?;
        }
    }
    Ok(Value::list(sliced.items))
}

fn indices(start: i128, stop: i128, step: i128) -> impl Iterator<Item = i128> {
    let is_before = move |at: &i128| if step > 0 { *at < stop } else { *at > stop };
    std::iter::successors(Some(start), move |at| at.checked_add(step)).take_while(is_before)
}
