//! The language is a part of Jinja's: the interpreter has the same results as minijinja.

use minijinja::{Environment, UndefinedBehavior};

use super::*;

/// Returns the result of minijinja for an expression, `None` for an error.
fn reference(source: &str) -> Option<serde_json::Value> {
    let data = data();
    let json = |payload: &Payload| serde_json::from_str(payload.as_json()).unwrap();
    let steps: serde_json::Map<String, serde_json::Value> = data
        .steps
        .iter()
        .map(|(name, output)| {
            let output = output.as_ref().map_or(serde_json::Value::Null, json);
            let state = match output.is_null() {
                true => "skipped",
                false => "processed",
            };
            let attempts = u8::from(state == "processed");
            let step = serde_json::json!({
                "output": output, "state": state, "error": null, "attempts": attempts
            });
            (name.to_string(), step)
        })
        .collect();
    let input: serde_json::Value = json(&data.input);
    let context = serde_json::json!({
        "input": input,
        "steps": steps,
        "task": { "id": TaskId(Uuid::from_u128(7)).to_string(), "key": "order-1001", "labels": data.labels },
    });
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let expression = environment.compile_expression(source).ok()?;
    let value = expression
        .eval(serde_json::from_value::<minijinja::Value>(context).ok()?)
        .ok()?;
    if value.is_undefined() {
        return None;
    }
    serde_json::to_value(&value).ok()
}

/// A whole number and a float of the same value count as equal.
fn alike(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    use serde_json::Value::{Array, Number, Object};
    match (a, b) {
        (Number(a), Number(b)) => a.as_f64() == b.as_f64(),
        (Array(a), Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| alike(a, b)),
        (Object(a), Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(name, a)| b.get(name).is_some_and(|b| alike(a, b)))
        }
        (a, b) => a == b,
    }
}

#[test]
fn an_expression_means_what_jinja_means_by_it() {
    let differences: Vec<_> = SOURCES
        .iter()
        .filter_map(|source| {
            let (expected, found) = (reference(source), json(&format!("{{{{ {source} }}}}")));
            let is_same = match (&expected, &found) {
                (Some(expected), Ok(found)) => alike(found, expected),
                (None, Err(_)) => true,
                _ => false,
            };
            (!is_same).then(|| format!("{source}: {found:?}, not {expected:?}"))
        })
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

const SOURCES: &[&str] = &[
    // Paths.
    "input.sku",
    "input.customer.name",
    "input.customer.in",
    "input.tags",
    "input.note",
    "input.note.deeper",
    "input.missing",
    "input.missing.deeper",
    "input.sku.length",
    "task.id",
    "task.key",
    "task.labels",
    "task.labels.missing",
    "steps.reserve",
    "steps.reserve.output.id",
    "steps.reserve.output.missing",
    "steps.skipped.output",
    "steps.skipped.output.id",
    "steps['a-b'].output",
    "steps.unknown.output",
    "output",
    "input.tags[0]",
    "input.tags.1",
    "input.tags[-1]",
    "input.tags[7]",
    "input.tags['x']",
    "input['customer']['name'][0]",
    "input.sku[1]",
    "input.sku[1:3]",
    "input.sku[-3:]",
    "input.sku[:-2]",
    "input.sku[::2]",
    "[1,2,3,4,5][1:4]",
    "[1,2,3,4,5][:2]",
    "[1,2,3,4,5][-2:]",
    "[1,2,3,4,5][::2]",
    "[1,2,3,4,5][9:]",
    // Numbers.
    "input.quantity * 3",
    "-input.quantity * -3",
    "2 + input.quantity * 3 - 1",
    "2 * 3 * input.total / 4 * 2",
    "2 ** 3 * 2 ** 2",
    "2 ** 3 ** 2",
    "-2 ** 2",
    "2 ** -1",
    "(1 + 2) * (3 + 4)",
    "input.tags | length * 2",
    "'3' | int * 2",
    "2 * '3' | int + 1",
    "2 * 3 == 6 and 1 * 0 == 0",
    "[1, 2, 3][1 * 1] * 2",
    "true * 3",
    "9 // 2 * 2 % 5",
    "-9 // 2",
    "-9 % 4",
    "9 % -4",
    "-9.5 // 2",
    "-9.5 % 4",
    "1 / 3",
    "6 / 3",
    "1 / 0",
    "1 % 0",
    "1.5 + 1",
    "1_000 + 1",
    "1e3",
    "1.5e-2",
    "0x10",
    "input.big > 18446744073709551614",
    "-input.total",
    "-input.sku",
    "170141183460469231731687303715884105727 + 1",
    "input.sku - 1",
    "'a' + 'b'",
    "'a' + 1",
    "[1] + [2, 3]",
    "1 ~ 2 ~ 'x'",
    "1 + 2 ~ 3",
    // Logic.
    "1 < 2 < 3",
    "1 < 2 > 3",
    "1 == 1.0",
    "'1' == 1",
    "[1, {'a': 2}] == [1.0, {'a': 2}]",
    "{'a': 1, 'b': 2} == {'b': 2, 'a': 1}",
    "input.note == none",
    "'a' in input.tags",
    "'z' not in input.tags",
    "'ook' in input.sku",
    "'name' in input.customer",
    "'x' in 1",
    "not input.gift",
    "not 1 == 2",
    "input.gift and 'yes'",
    "input.zero or 'no'",
    "input.missing or 1",
    "1 if input.gift",
    "1 if input.zero",
    "1 if input.zero else 2 if input.gift else 3",
    "input.missing is defined",
    "input.missing is not defined",
    "input.missing.deeper is defined",
    "input.note is none",
    "input.gift is boolean",
    "input.quantity is number and input.total is float",
    "3 is divisibleby 3",
    "3 is odd",
    "input.sku is startingwith 'book'",
    "input.sku is endingwith('8')",
    "2 is in [1, 2]",
    "2 is eq 2",
    "input.tags is sequence",
    "input.customer is mapping",
    "input.sku is string",
    "not input.missing is defined",
    // Filters.
    "input.missing | default('x')",
    "input.missing.name | default('x')",
    "input.note | default('x')",
    "input.note | default('x', true)",
    "input.missing | d(1)",
    "input.sku | upper",
    "'Hello wORLD' | title",
    "'hello wORLD' | capitalize",
    "' x ' | trim",
    "'xxaxx' | trim('x')",
    "'a-b-c' | replace('-', '+')",
    "'abc' | replace('', '.')",
    "'a,b,c' | split(',')",
    "'a,b,c' | split(',', 1)",
    "' a  b ' | split",
    "'a\nb' | lines",
    "input.tags | join(', ')",
    "[{'n': 'x'}, {'n': 'y'}] | join('-', attribute='n')",
    "input.tags | first",
    "input.tags | last",
    "[] | first",
    "'abc' | last",
    "input.tags | reverse | list",
    "'abc' | reverse",
    "[3, 1, 2] | sort",
    "['b', 'A', 'c'] | sort",
    "['b', 'A', 'c'] | sort(case_sensitive=true)",
    "[3, 1, 2] | sort(reverse=true)",
    "[{'n': 2}, {'n': 1}] | sort(attribute='n')",
    "['a', 'A', 'b', 'a'] | unique",
    "[1, 1.0, 2] | unique",
    "[3, 1, 2] | min",
    "['b', 'A'] | max",
    "[{'n': 2}, {'n': 1}] | max(attribute='n')",
    "[] | max",
    "[1, 2.5] | sum",
    "[{'n': 2}, {'n': 1}] | sum(attribute='n')",
    "[{'n': 2}, {'n': 1}] | map(attribute='n') | list",
    "[{'n': 2}, {}] | map(attribute='n', default=0) | list",
    "[{'n': {'m': 2}}] | map(attribute='n.m') | list",
    "['a', 'b'] | map('upper') | list",
    "['a,b', 'c'] | map('split', ',') | map('first') | list",
    "[0, 1, 2] | select | list",
    "[0, 1, 2] | select('odd') | list",
    "[0, 1, 2] | reject('gt', 1) | list",
    "[{'a': 1}, {'a': 2}] | selectattr('a', 'eq', 2) | list",
    "[{'a': 1}, {'a': 0}] | rejectattr('a') | list",
    "input.customer | items | list",
    "{'b': 1, 'A': 2} | dictsort",
    "{'b': 1, 'a': 2} | dictsort(by='value')",
    "input.customer | list",
    "input.customer | length",
    "'äöü' | length",
    "2.5 | round",
    "3.5 | round",
    "2.345 | round(2)",
    "2.1 | round(0, 'ceil')",
    "-7 | abs",
    "1234 | round(-2)",
    "'12.7' | int",
    "'x' | int",
    "'x' | int(5)",
    "'ff' | int(base=16)",
    "'1.5' | float",
    "none | int",
    "7 | string",
    "0 | bool",
    "input.customer | attr('name')",
    "range(4) | list",
    "range(1, 8, 3) | list",
    "range(5, 0, -2) | list",
    "range(200000) | list",
    "dict(a=2 * 2)",
    "{'a': [1, {'b': none}]}",
    r#"'\u00e9\n\'' ~ "q""#,
    "input.tags | shout",
    "input.tags |",
    "1 +",
    "(1",
    "[1, 2,]",
];
