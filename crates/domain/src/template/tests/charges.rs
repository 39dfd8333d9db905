//! All bytes that are read are charged: an expression over more bytes costs more units, in proportion. The tests count
//! units and not time, because other tests run at the same time.

use super::*;

/// Returns the cost of evaluating the expression with this input.
fn units(expression: &str, input: &serde_json::Value) -> u64 {
    units_over(expression, &input.to_string())
}

fn units_over(expression: &str, input: &str) -> u64 {
    let mut data = data();
    data.input = payload(input);
    // Indexing the input is charged once, and is not measured here.
    let index = Budget::evaluation();
    assert!(data.input.document().root(&index).is_ok());
    let parsed = Expression::parse(expression, Origin::Stored).unwrap();
    let scope = data.scope();
    let evaluated = parsed.payload(&scope).map_err(|error| error.to_string());
    let spent = data.budget.spent();
    if let Err(error) = evaluated {
        assert!(!error.contains("costs too much"), "{expression}: {error}");
    }
    spent
}

/// Returns how many units more it costs for each byte, with a text of this length instead of a short one.
fn per_byte(expression: &str, length: usize, input: impl Fn(&str) -> serde_json::Value) -> f64 {
    let (short, long) = (input("x"), input(&"x".repeat(length)));
    let more = units(expression, &long).saturating_sub(units(expression, &short));
    more as f64 / length as f64
}

const LONG: usize = 50_000;

#[test]
fn the_path_of_an_attribute_is_charged_by_its_bytes_and_once() {
    let input =
        |s: &str| serde_json::json!({ "l": vec![serde_json::json!({"k": 1}); 100], "s": s });
    for expression in [
        "input.l | map(attribute=input.s, default=0) | list | length",
        "input.l | selectattr(input.s, 'defined') | list | length",
        "input.l | rejectattr(input.s) | list | length",
        "input.l | sort(attribute=input.s) | length",
        "input.l | unique(attribute=input.s) | length",
        "input.l | max(attribute=input.s)",
        "input.l | min(attribute=input.s)",
        "input.l | sum(attribute=input.s)",
        "input.l | join('', input.s)",
    ] {
        let charged = per_byte(expression, LONG, input);
        assert!((1.0..20.0).contains(&charged), "{expression}: {charged}");
    }
}

#[test]
fn looking_for_capital_letters_is_charged_for_each_text() {
    let input = |s: &str| serde_json::json!({ "l": vec![1; 20], "s": s });
    for expression in [
        "input.l | map(attribute='z', default=input.s) | sort | length",
        "input.l | map(attribute='z', default=input.s) | unique | length",
        "input.l | map(attribute='z', default=input.s) | max",
        "dict(a=input.s) | dictsort(by='value') | length",
    ] {
        let charged = per_byte(expression, LONG, input);
        let texts = if expression.starts_with("dict") {
            1.0
        } else {
            20.0
        };
        assert!(charged >= texts, "{expression}: {charged}");
    }
}

#[test]
fn encoding_a_text_is_charged_by_its_bytes() {
    let input = |s: &str| serde_json::json!({ "s": s.repeat(4), "l": [{ s: 1 }, { s: 2 }] });
    for (expression, least) in [
        ("input.s | b64encode | length", 6.0),
        ("input.s | b64decode | length", 4.0),
        ("input.s | sha256", 30.0),
        ("input.l[0] | merge(input.l[1]) | length", 0.2),
        ("input.l[0] | pick(['a', 'b', 'c']) | length", 0.2),
    ] {
        let charged = per_byte(expression, 12_500, input);
        assert!(charged >= least, "{expression}: {charged}");
    }
}

#[test]
fn a_decimal_that_is_rounded_the_long_way_is_charged_for_it() {
    // The decimal is between two floating-point numbers, so that all of its digits count.
    const HARD: &str = "5.58654991592409463386895000e-307";
    const PLAIN: &str = "5.58654991592409463e-307";
    let list = |item: &str| format!("{{\"l\":[{}]}}", vec![item; 100].join(","));
    let texts = |item: &str| list(&format!("\"{item}\""));
    for (expression, hard, plain) in [
        ("input.l | sum", list(HARD), list(PLAIN)),
        ("input.l | map('float') | sum", texts(HARD), texts(PLAIN)),
        ("input.l | map('int') | sum", texts(HARD), texts(PLAIN)),
        (
            &format!("input.l is defined and {HARD} > 0"),
            list("1"),
            list("1"),
        ),
    ] {
        let more = match expression.contains(HARD) {
            true => {
                let reading = Budget::evaluation();
                assert!(Expression::parse(expression, Origin::Submitted(&reading)).is_ok());
                reading.spent() / 2 * 100
            }
            false => units_over(expression, &hard) - units_over(expression, &plain),
        };
        assert!(more > 100 * 5_000, "{expression}: {more}");
    }
    // Many digits near 1 are quick to read, and common in divided amounts of money.
    let thirds = list("0.3333333333333333333333333333");
    assert!(units_over("input.l | sum", &thirds) < 100 * 1000);
}

#[test]
fn looking_for_a_member_is_charged_by_the_names_that_are_looked_at() {
    // Each object has one long name beside the name that is searched for.
    let objects = |name: &str| {
        let mut object = serde_json::Map::new();
        object.insert(name.to_owned(), 1.into());
        object.insert("k".to_owned(), 2.into());
        serde_json::json!({ "o": object, "l": vec![1; 100], "s": name.replace('x', "y"), "t": name })
    };
    for expression in [
        // The long name is longer than the name that is searched for, and may have escapes.
        "input.l | map('default', input.o) | list and [input.o, input.o] | map(attribute='k') | sum",
        // The long name has the same length, and differs.
        "[input.o, input.o] | map(attribute=input.s, default=0) | sum",
        "[{input.t: 1}, {input.t: 2}] | map(attribute=input.s, default=0) | sum",
        "[{input.t: 1}, {input.t: 2}] | map(attribute=input.t, default=0) | sum",
    ] {
        let charged = per_byte(expression, LONG, objects);
        assert!(charged >= 0.25, "{expression}: {charged}");
    }
    // Names are also compared with each other.
    for expression in [
        "[{input.t: 1, input.s: 2}] | map('length') | sum",
        "[{input.t: 1, input.t: 2}] | map('length') | sum",
    ] {
        let charged = per_byte(expression, LONG, objects);
        assert!(charged >= 0.5, "{expression}: {charged}");
    }
}

#[test]
fn a_step_is_looked_for_among_all_of_them_and_charged_so() {
    let budget = Budget::evaluation();
    let names: Vec<_> = (0..1000)
        .map(|at| StepName::new(format!("s{at}")))
        .collect();
    for source in ["{{ steps.s999.output }}", "{{ steps.s999.output ~ '' }}"] {
        let template = Template::parse(source, Origin::Stored).unwrap();
        let scope = Scope {
            steps: names.iter().map(|name| (name, None)).collect(),
            ..Scope::empty(&budget)
        };
        let before = budget.spent();
        let mut out = Out::new(&budget);
        template.render_json(&scope, &mut out).unwrap();
        assert!(budget.spent() - before > 1000, "{source}");
    }
}

#[test]
fn a_part_of_a_text_holds_no_more_memory_than_is_charged() {
    let mut data = data();
    data.input = payload(&format!("{{\"s\":\"{}\"}}", "x".repeat(500_000)));
    let expression = Expression::parse("input.s[1:-1:2] | length", Origin::Stored).unwrap();
    let scope = data.scope();
    let memory = allocation_counter::measure(|| assert!(expression.truth(&scope).is_ok()));
    let spent = data.budget.spent();
    assert!(
        memory.bytes_total <= spent,
        "{} > {spent}",
        memory.bytes_total
    );
}

#[test]
fn a_text_of_many_comments_is_split_in_one_pass() {
    // Each missing mark was searched for to the end of the text, after every other mark: that took hours for this text.
    let text = "{##}".repeat(2_000_000);
    let template = Template::parse(&text, Origin::Stored).unwrap();
    assert!(template.reads().names.is_empty());
}

#[test]
fn what_differs_in_kind_is_charged_as_compared() {
    let input = serde_json::json!({ "l": vec![serde_json::json!([]); 1000] });
    let compared = units("'a' in input.l", &input);
    assert!(compared >= 1000 * 32, "{compared}");
}
