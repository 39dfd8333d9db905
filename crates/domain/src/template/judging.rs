//! The tests: `value is name …`.

use std::cmp::Ordering;

use super::{
    Budget,
    arguments::ArgumentValues,
    compare,
    eval_error::{EvalResult, other},
    number::Number,
    value::Value,
};

fn argument<'g, 'v>(given: ArgumentValues<'g, 'v>) -> EvalResult<&'g Value<'v>> {
    match given.first() {
        Some(Some(value)) => Ok(value),
        _ => other("an argument is missing"),
    }
}

fn there<'a, 'v>(value: &'a Value<'v>) -> EvalResult<&'a Value<'v>> {
    match value {
        Value::Missing(_) => value.clone().present().map(|_| value),
        value => Ok(value),
    }
}

macro_rules! kinds {
    ($($name:ident($value:ident) $is:expr;)*) => {$(
        pub(super) fn $name<'v>($value: &Value<'v>, _: ArgumentValues<'_, 'v>, _: &Budget) -> EvalResult<bool> {
            Ok($is)
        }
    )*};
}

kinds! {
    defined(value) !value.is_missing();
    undefined(value) value.is_missing();
    none(value) matches!(value, Value::Null);
    boolean(value) matches!(value, Value::Bool(_));
    is_true(value) matches!(value, Value::Bool(true));
    is_false(value) matches!(value, Value::Bool(false));
    number(value) matches!(value, Value::Number(_));
    integer(value) matches!(value, Value::Number(number) if number.is_int());
    float(value) matches!(value, Value::Number(number) if !number.is_int());
    string(value) value.as_text().is_some();
    mapping(value) value.is_map();
    sequence(value) value.is_list();
    iterable(value) value.is_list() || value.is_map() || value.as_text().is_some();
}

/// True of a step, or of an item of one, that was skipped.
pub(super) fn skipped<'v>(
    value: &Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<bool> {
    let state = member_of_step("skipped", "state", value, budget)?;
    Ok(state.as_text() == Some("skipped"))
}

/// True of a step, or of an item of one, that has an error: it is in error, or a policy has skipped it because of one.
pub(super) fn failed<'v>(
    value: &Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<bool> {
    let error = member_of_step("failed", "error", value, budget)?;
    Ok(!matches!(error, Value::Null))
}

fn member_of_step<'v>(
    test: &str,
    name: &str,
    value: &Value<'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    match there(value)?.member(name, budget)? {
        Some(member) => Ok(member),
        None => other(format!(
            "`{test}` takes a step, as in `steps.reserve is {test}`, not {}",
            value.kind()
        )),
    }
}

fn whole(value: &Value<'_>) -> EvalResult<Option<i128>> {
    Ok(there(value)?.as_number().and_then(Number::as_int))
}

pub(super) fn odd<'v>(
    value: &Value<'v>,
    _: ArgumentValues<'_, 'v>,
    _: &Budget,
) -> EvalResult<bool> {
    Ok(whole(value)?.is_some_and(|number| number % 2 != 0))
}

pub(super) fn even<'v>(
    value: &Value<'v>,
    _: ArgumentValues<'_, 'v>,
    _: &Budget,
) -> EvalResult<bool> {
    Ok(whole(value)?.is_some_and(|number| number % 2 == 0))
}

pub(super) fn divisible_by<'v>(
    value: &Value<'v>,
    given: ArgumentValues<'_, 'v>,
    _: &Budget,
) -> EvalResult<bool> {
    Ok(match (whole(value)?, whole(argument(given)?)?) {
        (Some(number), Some(by)) => number.checked_rem(by) == Some(0),
        _ => false,
    })
}

fn texts<'a>(
    value: &'a Value<'_>,
    given: ArgumentValues<'a, '_>,
) -> EvalResult<(&'a str, &'a str)> {
    match (there(value)?.as_text(), there(argument(given)?)?.as_text()) {
        (Some(text), Some(part)) => Ok((text, part)),
        _ => other("`startingwith` and `endingwith` take two texts"),
    }
}

pub(super) fn starting_with<'v>(
    value: &Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<bool> {
    let (text, start) = texts(value, given)?;
    budget.charge(start.len() as u64 / 4)?;
    Ok(text.starts_with(start))
}

pub(super) fn ending_with<'v>(
    value: &Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<bool> {
    let (text, end) = texts(value, given)?;
    budget.charge(end.len() as u64 / 4)?;
    Ok(text.ends_with(end))
}

fn cased<'v>(value: &Value<'v>, budget: &Budget, is: fn(char) -> bool) -> EvalResult<bool> {
    let Some(text) = there(value)?.as_text() else {
        return Ok(false);
    };
    budget.charge_each(text.len(), 8)?;
    Ok(text.chars().all(is))
}

pub(super) fn lower<'v>(
    value: &Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<bool> {
    cased(value, budget, char::is_lowercase)
}

pub(super) fn upper<'v>(
    value: &Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<bool> {
    cased(value, budget, char::is_uppercase)
}

pub(super) fn eq<'v>(
    value: &Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<bool> {
    compare::equal(there(value)?, there(argument(given)?)?, budget)
}

pub(super) fn ne<'v>(
    value: &Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<bool> {
    Ok(!eq(value, given, budget)?)
}

fn order<'v>(
    value: &Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Ordering> {
    compare::ordered(there(value)?, there(argument(given)?)?, budget)
}

pub(super) fn lt<'v>(
    value: &Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<bool> {
    Ok(order(value, given, budget)?.is_lt())
}

pub(super) fn le<'v>(
    value: &Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<bool> {
    Ok(order(value, given, budget)?.is_le())
}

pub(super) fn gt<'v>(
    value: &Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<bool> {
    Ok(order(value, given, budget)?.is_gt())
}

pub(super) fn ge<'v>(
    value: &Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<bool> {
    Ok(order(value, given, budget)?.is_ge())
}

pub(super) fn contained<'v>(
    value: &Value<'v>,
    given: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<bool> {
    contains(there(argument(given)?)?, there(value)?, budget)
}

/// `value in container`.
pub(super) fn contains<'v>(
    container: &Value<'v>,
    value: &Value<'v>,
    budget: &Budget,
) -> EvalResult<bool> {
    if let Some(text) = container.as_text() {
        let Some(part) = value.as_text() else {
            return other(format!(
                "a text cannot contain {}: give a text",
                value.kind()
            ));
        };
        super::texts::charge_search(text, part, budget)?;
        return Ok(text.contains(part));
    }
    if container.is_map() {
        return match value.as_text() {
            Some(name) => Ok(container.member(name, budget)?.is_some()),
            None => Ok(false),
        };
    }
    if !container.is_list() {
        return other(format!(
            "`in` searches a list, an object or a text, not {}",
            container.kind()
        ));
    }
    for item in container.iter(budget)? {
        if compare::equal(&item.take(budget)?, value, budget)? {
            return Ok(true);
        }
    }
    Ok(false)
}
