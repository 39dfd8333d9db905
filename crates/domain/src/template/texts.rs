//! Filters of texts.

use super::{
    Budget, MAX_RENDERED,
    arguments::ArgumentValues,
    attribute::{Path, attribute_of},
    budget::ITEM,
    eval_error::{EvalError, EvalResult, other},
    value::{ChargedVec, Value},
    write::Out,
};

/// Charges a search for a part in a text, which takes time in proportion to both lengths.
pub(super) fn charge_search(text: &str, part: &str, budget: &Budget) -> EvalResult<()> {
    budget.charge_each(text.len() + part.len(), 2)?;
    Ok(())
}

/// Returns the text that a filter of texts works on: numbers and similar values as they would be written.
pub(super) fn text_of<'v>(value: Value<'v>, budget: &Budget) -> EvalResult<Value<'v>> {
    let value = value.present()?;
    match value {
        Value::Text(_) | Value::Built(_) => Ok(value),
        value => {
            let mut out = Out::new(budget);
            out.json(&value)?;
            Value::built(&out.text, budget)
        }
    }
}

fn argument<'g>(given: ArgumentValues<'g, '_>, at: usize) -> EvalResult<Option<&'g str>> {
    match given.get(at) {
        Some(Some(value)) => match value {
            Value::Null => Ok(None),
            Value::Missing(path) => Err(EvalError::Missing((*path).to_owned())),
            value => match value.as_text() {
                Some(text) => Ok(Some(text)),
                None => other(format!("an argument must be a text, not {}", value.kind())),
            },
        },
        _ => Ok(None),
    }
}

/// Applies a change that works letter by letter. A letter can become three times as long.
fn changed<'v>(
    value: Value<'v>,
    budget: &Budget,
    change: impl FnOnce(&str) -> String,
) -> EvalResult<Value<'v>> {
    let value = text_of(value, budget)?;
    let text = value.as_text().unwrap_or_default();
    budget.charge_each(text.len(), 8)?;
    // The buffer grows by doubling.
    budget.allocate(text.len() * 6)?;
    Value::built(&change(text), budget)
}

pub(super) fn upper<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    changed(value, budget, str::to_uppercase)
}

pub(super) fn lower<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    changed(value, budget, str::to_lowercase)
}

pub(super) fn capitalize<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    changed(value, budget, |text| {
        let mut characters = text.chars();
        let first = characters.next().into_iter().flat_map(char::to_uppercase);
        let rest = characters.flat_map(char::to_lowercase);
        first.chain(rest).collect()
    })
}

pub(super) fn title<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    changed(value, budget, |text| {
        let mut titled = String::with_capacity(text.len());
        let mut begins = true;
        for c in text.chars() {
            if c.is_whitespace() || "-({[<".contains(c) {
                titled.push(c);
                begins = true;
            } else if std::mem::take(&mut begins) {
                titled.extend(c.to_uppercase());
            } else {
                titled.extend(c.to_lowercase());
            }
        }
        titled
    })
}

pub(super) fn trim<'v>(
    value: Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let value = text_of(value, budget)?;
    let text = value.as_text().unwrap_or_default();
    let trimmed = match argument(given, 0)? {
        None => {
            budget.charge_each(text.len(), 4)?;
            text.trim()
        }
        Some(characters) => {
            // Each letter is searched for among all characters.
            budget.charge_each(text.len(), 4 + characters.len() as u64 * 2)?;
            text.trim_matches(|c| characters.contains(c))
        }
    };
    value.part(trimmed, budget)
}

pub(super) fn replace<'v>(
    value: Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let value = text_of(value, budget)?;
    let text = value.as_text().unwrap_or_default();
    let (Some(old), Some(new)) = (argument(given, 0)?, argument(given, 1)?) else {
        return other("`replace` takes two texts");
    };
    // The text is searched once to count and once to replace.
    charge_search(text, old, budget)?;
    charge_search(text, old, budget)?;
    let found = text.matches(old).count();
    budget.charge_each(found, ITEM * 2)?;
    let length = text.len() - found * old.len() + found.saturating_mul(new.len());
    if length > MAX_RENDERED {
        return Err(EvalError::TooLarge);
    }
    budget.allocate(length)?;
    let mut replaced = String::with_capacity(length);
    let mut copied = 0;
    for (at, part) in text.match_indices(old) {
        replaced.push_str(&text[copied..at]);
        replaced.push_str(new);
        copied = at + part.len();
    }
    replaced.push_str(&text[copied..]);
    Value::built(&replaced, budget)
}

pub(super) fn split<'v>(
    value: Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let value = text_of(value, budget)?;
    let text = value.as_text().unwrap_or_default();
    let separator = argument(given, 0)?;
    let most = match given.get(1) {
        Some(Some(most)) => match most.as_number().and_then(|most| most.as_int()) {
            Some(most) => usize::try_from(most).unwrap_or(usize::MAX),
            None => return other("the maximum number of splits is a whole number"),
        },
        _ => usize::MAX,
    };
    charge_search(text, separator.unwrap_or_default(), budget)?;
    let mut parts = ChargedVec::new(budget);
    let mut rest = match separator {
        None => text.trim_start(),
        Some(_) => text,
    };
    for _ in 0..most {
        let found = match separator {
            Some("") => {
                return other("the separator of `split` must not be empty");
            }
            Some(separator) => rest.split_once(separator),
            None => rest
                .split_once(char::is_whitespace)
                .map(|(part, after)| (part, after.trim_start())),
        };
        let Some((part, after)) = found else {
            break;
        };
        parts.push(value.part(part, budget)?)?;
        rest = after;
    }
    if separator.is_some() || !rest.is_empty() {
        parts.push(value.part(rest, budget)?)?;
    }
    Ok(Value::list(parts.items))
}

pub(super) fn lines<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let value = text_of(value, budget)?;
    let text = value.as_text().unwrap_or_default();
    budget.charge_each(text.len(), 2)?;
    let mut lines = ChargedVec::new(budget);
    for line in text.lines() {
        lines.push(value.part(line, budget)?)?;
    }
    Ok(Value::list(lines.items))
}

pub(super) fn join<'v>(
    value: Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let separator = argument(given, 0)?.unwrap_or_default();
    let attribute = argument(given, 1)?;
    let attribute = attribute
        .map(|name| Path::parse(name, budget))
        .transpose()?;
    let mut out = Out::new(budget);
    for (index, item) in value.iter(budget)?.enumerate() {
        let item = attribute_of(item.take(budget)?, attribute.as_ref(), budget)?;
        if index > 0 {
            out.push(separator)?;
        }
        out.interpolate(&item)?;
    }
    Value::built(&out.text, budget)
}

/// Encodes a value for a query: unreserved characters and `/` stay; an object becomes `name=value` pairs.
pub(super) fn urlencode<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let mut out = Out::new(budget);
    if value.is_map() {
        for (name, item) in value.members(budget)? {
            if matches!(item, Value::Null) {
                continue;
            }
            if !out.text.is_empty() {
                out.push("&")?;
            }
            encode(name, &mut out)?;
            out.push("=")?;
            encode(item, &mut out)?;
        }
    } else {
        encode(value, &mut out)?;
    }
    Value::built(&out.text, budget)
}

fn encode(value: Value<'_>, out: &mut Out<'_>) -> EvalResult<()> {
    let value = text_of(value, out.budget)?;
    percent_encode(value.as_text().unwrap_or_default(), "-_.~/", out)
}

/// Encodes a text. ASCII letters and digits stay, and the characters in `kept`.
pub(super) fn percent_encode(text: &str, kept: &str, out: &mut Out<'_>) -> EvalResult<()> {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.budget.charge_each(text.len(), 8)?;
    for byte in text.bytes() {
        let c = char::from(byte);
        if byte.is_ascii_alphanumeric() || kept.contains(c) {
            out.push(c.encode_utf8(&mut [0; 4]))?;
        } else {
            let [high, low] = [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]);
            let mut encoded = ['%', char::from(high), char::from(low)].into_iter();
            encoded.try_for_each(|c| out.push(c.encode_utf8(&mut [0; 4])))?;
        }
    }
    Ok(())
}
