//! Filters that convert between kinds of values, and filters of numbers.

use super::{
    Budget,
    arguments::ArgumentValues,
    eval_error::{EvalError, EvalResult, other},
    number::{Number, Rounding, negate, round_int, rounding, whole_part},
    texts::text_of,
    value::Value,
    write::Out,
};

pub(super) fn default<'v>(
    value: Value<'v>,
    given: ArgumentValues<'_, 'v>,
    _: &Budget,
) -> EvalResult<Value<'v>> {
    let is_lax = match given.get(1) {
        Some(Some(lax)) => lax.truth()?,
        _ => false,
    };
    if !value.is_missing() && (!is_lax || value.truth()?) {
        return Ok(value);
    }
    match given.first() {
        Some(Some(default)) => Ok(default.clone()),
        _ => Ok(Value::Text("")),
    }
}

pub(super) fn boolean<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    _: &Budget,
) -> EvalResult<Value<'v>> {
    Ok(Value::Bool(value.truth()?))
}

pub(super) fn string<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    text_of(value, budget)
}

pub(super) fn to_json<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let mut out = Out::new(budget);
    out.json(&value.present()?)?;
    Value::built(&out.text, budget)
}

pub(super) fn abs<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    _: &Budget,
) -> EvalResult<Value<'v>> {
    let number = number_of("abs", value)?;
    let is_negative = number.as_float() < 0.0;
    Ok(Value::Number(if is_negative {
        negate(number)?
    } else {
        number
    }))
}

fn number_of(filter: &str, value: Value<'_>) -> EvalResult<Number> {
    let value = value.present()?;
    match value.as_number() {
        Some(number) => Ok(number),
        None => other(format!("`{filter}` takes a number, not {}", value.kind())),
    }
}

fn or_default<'v>(
    found: Option<Number>,
    value: &Value<'v>,
    given: ArgumentValues<'_, 'v>,
    what: &str,
) -> EvalResult<Value<'v>> {
    match (found, given.first()) {
        (Some(number), _) => Ok(Value::Number(number)),
        (None, Some(Some(default))) => Ok(default.clone()),
        // As in Jinja, null becomes 0.
        (None, _) if matches!(value, Value::Null) => Ok(Value::int(0)),
        (None, _) => {
            let kind = value.kind();
            other(format!(
                "{kind} cannot be converted to {what}: give a default, as in `int(0)`"
            ))
        }
    }
}

pub(super) fn int<'v>(
    value: Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let value = value.present()?;
    let radix = match given.get(1) {
        Some(Some(base)) => match base.as_number().and_then(Number::as_int) {
            Some(base @ 2..=36) => base as u32,
            _ => return other("the base is a whole number from 2 to 36"),
        },
        _ => 10,
    };
    let found = match (value.as_number(), value.as_text()) {
        (Some(number), _) if number.is_int() => Some(number),
        (Some(number), _) => {
            let whole = Number::Float(number.as_float().trunc());
            whole.as_int().map(Number::int)
        }
        (None, Some(text)) => {
            budget.charge_each(text.len(), 8)?;
            let text = text.trim();
            budget.charge(rounding(text))?;
            match i128::from_str_radix(text, radix) {
                Ok(number) => Some(Number::int(number)),
                Err(_) if radix == 10 => {
                    let float = || text.parse::<f64>().map(f64::trunc).ok();
                    let rounded = || float().and_then(|float| Number::Float(float).as_int());
                    whole_part(text).or_else(rounded).map(Number::int)
                }
                Err(_) => None,
            }
        }
        _ => None,
    };
    or_default(found, &value, given, "a whole number")
}

pub(super) fn float<'v>(
    value: Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let value = value.present()?;
    let found = match (value.as_number(), value.as_text()) {
        (Some(number), _) => Some(number.as_float()),
        (None, Some(text)) => {
            budget.charge_each(text.len(), 4)?;
            let text = text.trim();
            budget.charge(rounding(text))?;
            text.parse::<f64>().ok()
        }
        _ => None,
    };
    let found = found.filter(|number| number.is_finite()).map(Number::Float);
    or_default(found, &value, given, "a number")
}

/// Rounds to this many decimals, with halves to even where the number is exactly a half; or always up or down.
pub(super) fn round<'v>(
    value: Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let number = number_of("round", value)?;
    let precision = match given.first() {
        Some(Some(precision)) => precision.as_number().and_then(Number::as_int),
        _ => Some(0),
    };
    let Some(precision @ -30..=30) = precision else {
        return other("`round` takes a precision from -30 to 30 decimals");
    };
    // The precision is within -30 to 30.
    let precision = precision as i32;
    let method = match given.get(1) {
        Some(Some(method)) => method.as_text(),
        _ => Some("common"),
    };
    let direction = match method {
        Some("common") => Rounding::Nearest,
        Some("ceil") => Rounding::Up,
        Some("floor") => Rounding::Down,
        _ => return other("`round` takes the method \"common\", \"ceil\" or \"floor\""),
    };
    let too_large = || EvalError::Other("the rounded number is too large".to_owned());
    if let Number::Int(_) = number
        && let Some(int) = number.as_int()
    {
        // The whole number is not converted to floating point, which cannot represent every whole number.
        let rounded = match precision {
            0.. => Some(int),
            _ => round_int(int, precision.unsigned_abs(), direction),
        };
        let rounded = rounded.ok_or_else(too_large)?;
        return Ok(Value::Number(Number::int(rounded)));
    }
    // At most some hundred digits are written and read again.
    budget.charge(1000)?;
    let float = number.as_float();
    let rounded = if precision >= 0 && direction == Rounding::Nearest {
        let digits = precision.unsigned_abs() as usize;
        format!("{float:.digits$}").parse().unwrap_or(float)
    } else {
        let factor = 10f64.powi(precision);
        let scaled = float * factor;
        let directed = match direction {
            Rounding::Nearest => scaled.round_ties_even(),
            Rounding::Up => scaled.ceil(),
            Rounding::Down => scaled.floor(),
        };
        match scaled.is_finite() {
            true => directed / factor,
            false => float,
        }
    };
    match rounded.is_finite() {
        true => Ok(Value::Number(Number::Float(rounded))),
        false => Err(too_large()),
    }
}
