use std::collections::BTreeMap;

use uuid::Uuid;

use super::*;
use crate::{
    template::payload::Payload,
    values::{
        fault::Fault,
        ids::{StepName, TaskId},
        time::Timestamp,
    },
};

mod bounds;
mod charges;
mod fuzz;
mod generator;
mod jinja;
mod properties;
mod reference;

/// The data of a task, owned, from which a scope borrows.
struct Data {
    input: Payload,
    labels: BTreeMap<String, String>,
    steps: Vec<(StepName, Option<Payload>)>,
    record: Record,
    budget: Budget,
}

/// The output and the error of an item.
type ItemFacts = (Option<Payload>, Option<Fault>);

/// The record of a task whose steps were skipped if they have no output.
#[derive(Default)]
struct Record {
    steps: Vec<(StepName, Option<Payload>)>,
    errors: BTreeMap<String, Fault>,
    /// The outputs and the errors of the items of steps.
    items: BTreeMap<String, Vec<ItemFacts>>,
    responses: BTreeMap<String, (u16, BTreeMap<String, String>)>,
    undo_cause: Option<Fault>,
}

impl TaskRecord for Record {
    fn step(&self, name: &str) -> Option<StepFacts<'_>> {
        let mut steps = self.steps.iter();
        let (_, output) = steps.find(|(step, _)| step.as_str() == name)?;
        Some(StepFacts {
            error: self.errors.get(name),
            response: self
                .responses
                .get(name)
                .map(|(status, headers)| ResponseFacts {
                    status: *status,
                    headers,
                }),
            ..StepFacts::of_output(output.as_ref())
        })
    }

    fn items<'r>(&'r self, name: &str) -> Option<Box<dyn Iterator<Item = StepFacts<'r>> + 'r>> {
        let items = self.items.get(name)?.iter();
        Some(Box::new(items.map(|(output, error)| StepFacts {
            error: error.as_ref(),
            ..StepFacts::of_output(output.as_ref())
        })))
    }

    fn step_count(&self) -> usize {
        self.steps.len()
    }

    fn created_at(&self) -> Timestamp {
        Timestamp::parse("2026-01-31T09:30:00Z").unwrap()
    }

    fn started_at(&self) -> Option<Timestamp> {
        Timestamp::parse("2026-01-31T09:30:05Z")
    }

    fn undo_cause(&self) -> Option<&Fault> {
        self.undo_cause.as_ref()
    }
}

impl Data {
    fn scope(&self) -> Scope<'_> {
        self.budget.refill();
        Scope {
            task_id: TaskId(Uuid::from_u128(7)),
            state: "undoing",
            key: Some("order-1001"),
            labels: &self.labels,
            input: Some(&self.input),
            block: "",
            steps: self
                .steps
                .iter()
                .map(|(name, output)| (name, output.as_ref()))
                .collect(),
            record: Some(&self.record),
            output: None,
            request: None,
            response: None,
            signal: None,
            reply_url: None,
            item: None,
            budget: &self.budget,
        }
    }
}

fn payload(json: &str) -> Payload {
    Payload::parse(json.to_owned()).unwrap()
}

fn data() -> Data {
    let steps = || {
        vec![
            (
                StepName::new("reserve"),
                Some(payload(r#"{"id": 41, "parts": [1, 2]}"#)),
            ),
            (StepName::new("a-b"), Some(payload("\"done\""))),
            (StepName::new("skipped"), None),
        ]
    };
    Data {
        input: payload(
            r#"{"sku":"book-7","quantity":2,"total":12.5,"gift":true,"note":null,"tags":["a","b"],
                "customer":{"name":"Ann/Lee ?#%","in":"x"},"zero":0,"big":18446744073709551615,"big_text":""}"#,
        ),
        labels: BTreeMap::from([("customer".to_owned(), "acme".to_owned())]),
        steps: steps(),
        record: Record {
            steps: steps(),
            ..Record::default()
        },
        budget: Budget::evaluation(),
    }
}

fn json(template: &str) -> Result<serde_json::Value, String> {
    let document = payload(&serde_json::to_string(template).unwrap());
    let compiled = JsonTemplate::parse(&document, Origin::Submitted(&Budget::evaluation()))
        .map_err(|faults| faults[0].message.clone())?;
    let rendered = compiled
        .render(&data().scope())
        .map_err(|error| error.to_string())?;
    Ok(serde_json::from_str(&rendered).unwrap())
}

fn text(template: &str) -> Result<String, String> {
    Template::parse(template, Origin::Submitted(&Budget::evaluation()))?
        .render_text(&data().scope())
        .map_err(|error| error.to_string())
}

fn path(template: &str) -> Result<String, String> {
    Template::parse(template, Origin::Submitted(&Budget::evaluation()))?
        .render_path(&data().scope())
        .map_err(|error| error.to_string())
}

fn truth(expression: &str) -> Result<bool, String> {
    Expression::parse(expression, Origin::Submitted(&Budget::evaluation()))?
        .truth(&data().scope())
        .map_err(|error| error.to_string())
}

/// Renders a template whose input has only the member `n`, with this number as it is written.
fn of_number(template: &str, number: &str) -> Result<String, String> {
    let with_number = Data {
        input: payload(&format!(r#"{{"n":{number}}}"#)),
        ..data()
    };
    let document = payload(&serde_json::to_string(template).unwrap());
    let compiled = JsonTemplate::parse(&document, Origin::Stored)
        .map_err(|faults| faults[0].message.clone())?;
    let rendered = compiled.render(&with_number.scope());
    rendered.map_err(|error| error.to_string())
}

#[test]
fn whole_numbers_are_exact_or_refused() {
    const LARGEST: &str = "170141183460469231731687303715884105727";
    const SMALLEST: &str = "-170141183460469231731687303715884105728";
    for number in [LARGEST, SMALLEST, "-1", "9007199254740993"] {
        for template in [
            "{{ input.n }}",
            "{{ input.n | int }}",
            "{{ input.n | round }}",
        ] {
            let expected = Ok(number.to_owned());
            assert_eq!(of_number(template, number), expected, "{template}");
        }
    }
    for number in [
        "170141183460469231731687303715884105728",
        "-170141183460469231731687303715884105729",
        "1000000000000000000000000000000000000000000",
    ] {
        for template in [
            "{{ input.n }}",
            "{{ input.n + 1 }}",
            "{{ input.n == 1 }}",
            "{{ [1, input.n] | max }}",
            "{{ input.n | string }}",
            "{{ input.n | float }}",
            "a {{ input.n }}",
            "{{ 'a' if input.n else 'b' }}",
        ] {
            let why = of_number(template, number).unwrap_err();
            assert!(why.contains("128 bits"), "{template}: {why}");
            assert!(!why.contains(number), "{why}");
        }
        let whole = of_number("{{ input }}", number);
        assert_eq!(whole, Ok(format!(r#"{{"n":{number}}}"#)));
        let literal = number.trim_start_matches('-');
        let why = json(&format!("{{{{ {literal} }}}}")).unwrap_err();
        assert!(why.contains("128 bits"), "{why}");
    }
    for (template, number, expected) in [
        (
            "{{ input.n | round(-1) }}",
            "12345678901234567890123",
            "12345678901234567890120",
        ),
        (
            "{{ input.n | round(-1, 'ceil') }}",
            "12345678901234567890123",
            "12345678901234567890130",
        ),
        (
            "{{ input.n | round(-1, 'floor') }}",
            "-12345678901234567890123",
            "-12345678901234567890130",
        ),
        ("{{ input.n | round(-1) }}", "15", "20"),
        ("{{ input.n | round(-1) }}", "25", "20"),
        ("{{ input.n | round(-1) }}", "-25", "-20"),
        ("{{ input.n | round(-2) }}", "-151", "-200"),
        (
            "{{ input.n | int }}",
            "\"12345678901234567890123.9\"",
            "12345678901234567890123",
        ),
        ("{{ input.n | int }}", "\"-1.9\"", "-1"),
        ("{{ input.n | int }}", "\".9\"", "0"),
    ] {
        let expected = Ok(expected.to_owned());
        assert_eq!(of_number(template, number), expected, "{template} {number}");
    }
    let why = of_number("{{ input.n | round(-1) }}", LARGEST).unwrap_err();
    assert!(why.contains("too large"), "{why}");
}

#[test]
fn an_expression_that_fills_a_string_keeps_its_type() {
    use serde_json::json as j;
    for (template, expected) in [
        ("{{ input.quantity }}", j!(2)),
        ("{{input.total}}", j!(12.5)),
        ("{{ input.gift }}", j!(true)),
        ("{{ input.note }}", j!(null)),
        ("{{ input.tags }}", j!(["a", "b"])),
        ("{{ input.big }}", j!(18_446_744_073_709_551_615u64)),
        ("{{ input.quantity + 1 }}", j!(3)),
        ("{{ input.quantity * 3 }}", j!(6)),
        ("{{ input.total * input.quantity - 1 }}", j!(24.0)),
        (
            "{{ [input.sku, {'n': input.quantity}] }}",
            j!(["book-7", {"n": 2}]),
        ),
        ("{{ {'a': {'b': 1}} }}", j!({"a": {"b": 1}})),
        ("{{ input.sku if input.gift else none }}", j!("book-7")),
        ("{{ steps.reserve.output.id }}", j!(41)),
        (
            "{{ steps.reserve.output }}",
            j!({"id": 41, "parts": [1, 2]}),
        ),
        ("{{ steps['a-b'].output }}", j!("done")),
        ("{{ steps.skipped.output }}", j!(null)),
        ("{{ task.key }}", j!("order-1001")),
        ("{{ task.labels.customer }}", j!("acme")),
        (
            "{{ task }}",
            j!({"id": "00000000-0000-0000-0000-000000000007", "key": "order-1001", "labels": {"customer": "acme"}}),
        ),
        ("{{ '}} {{' }}", j!("}} {{")),
        ("{{ input.missing | default('none') }}", j!("none")),
    ] {
        assert_eq!(json(template), Ok(expected), "{template}");
    }
}

#[test]
fn an_expression_inside_a_string_is_text() {
    for (template, expected) in [
        ("plain", "plain"),
        ("{ not } one }}", "{ not } one }}"),
        ("{{ input.quantity }} of {{ input.sku }}", "2 of book-7"),
        ("{{ input.quantity }}{{ input.quantity }}", "22"),
        (
            "tags {{ input.tags }}, note {{ input.note }}",
            "tags [\"a\",\"b\"], note null",
        ),
        (" {{ input.gift }} ", " true "),
        ("a {{- input.quantity -}} b", "a2b"),
        ("a{# left out #}b", "ab"),
        ("{{ '{%' }} is literal", "{% is literal"),
        ("{{ input.tags | join(', ') }}", "a, b"),
    ] {
        assert_eq!(text(template).as_deref(), Ok(expected), "{template}");
    }
    assert_eq!(
        json("<{{ input.sku }}>\n\"x\""),
        Ok("<book-7>\n\"x\"".into())
    );
}

#[test]
fn a_condition_counts_by_truthiness() {
    for (expression, expected) in [
        ("input.total > 12", true),
        ("input.gift and not input.zero", true),
        ("input.zero", false),
        ("input.note", false),
        ("input.tags", true),
        ("input.big_text", false),
        ("'a' in input.tags", true),
        ("input.missing is defined", false),
        ("steps.skipped.output is none", true),
        ("input.customer.in == 'x'", true),
        ("input.quantity is divisibleby 2", true),
    ] {
        assert_eq!(truth(expression), Ok(expected), "{expression}");
    }
}

#[test]
fn what_is_not_there_is_an_error_that_names_it() {
    for (template, named) in [
        ("{{ input.missing }}", "`input.missing`"),
        (
            "{{ input.customer.street.number }}",
            "`input.customer.street`",
        ),
        ("{{ input.sku.length }}", "`input.sku.length`"),
        ("{{ steps.skipped.output.id }}", "`steps.skipped.output.id`"),
        ("{{ task.labels.colour }}", "`task.labels.colour`"),
        ("{{ input.missing + 1 }}", "`input.missing`"),
        ("{{ input.missing.deeper + 1 }}", "`input.missing`"),
        ("{{ [input.missing] }}", "does not exist"),
        ("{{ input['missing'] }}", "does not exist"),
        ("{{ output.id }}", "`output`"),
    ] {
        let error = json(template).unwrap_err();
        assert!(error.contains(named), "{template}: {error}");
        let source = template.trim_matches(['{', '}', ' ']);
        assert!(error.contains(source), "{template}: {error}");
        assert!(text(&format!("see {template}")).is_err(), "{template}");
    }
    assert!(
        truth("input.missing")
            .unwrap_err()
            .contains("`input.missing`")
    );
    assert!(
        truth("input.missing > 1")
            .unwrap_err()
            .contains("`input.missing`")
    );
}

#[test]
fn faults_are_found_before_anything_is_rendered() {
    for (template, why) in [
        ("{{ input. }}", "not an expression"),
        ("{{ }}", "empty"),
        ("{{ input.a", "no closing"),
        ("{% if input.a %}x{% endif %}", "statements"),
        ("{# note", "no closing"),
        ("{{ input.a | shout }}", "no filter `shout`"),
        ("{{ input.a is loud }}", "no test `loud`"),
        ("{{ steps }}", "needs a step's name"),
        ("{{ steps[input.a].output }}", "needs a step's name"),
        ("{{ steps.reserve.result }}", "no `result`"),
        ("{{ task.name }}", "no `name`"),
        ("{{ input.a | indent(9) }}", "no filter `indent`"),
    ] {
        let message =
            Template::parse(template, Origin::Submitted(&Budget::evaluation())).unwrap_err();
        assert!(message.contains(why), "{template}: {message}");
    }
    let message =
        Expression::parse("{{ input.a }}", Origin::Submitted(&Budget::evaluation())).unwrap_err();
    assert!(message.contains("a condition has no braces"), "{message}");
    let long = format!("{{{{ input.{} }}}}", "a".repeat(MAX_EXPRESSION));
    assert!(
        Template::parse(&long, Origin::Submitted(&Budget::evaluation()))
            .unwrap_err()
            .contains("longer than")
    );
}

#[test]
fn the_names_and_steps_that_are_read_are_known() {
    let reads = Template::parse(
        "{{ input.a ~ other }} {{ steps.one.output.x + steps['a-b'].output }} {{ range(3) }} {{ 'steps.no' }} {{ input.steps }}",
        Origin::Submitted(&Budget::evaluation()),
    )
    .unwrap()
    .reads();
    assert_eq!(
        reads.names.into_iter().collect::<Vec<_>>(),
        ["input", "other", "steps"]
    );
    assert_eq!(reads.steps.into_iter().collect::<Vec<_>>(), ["a-b", "one"]);
}

#[test]
fn data_cannot_change_where_a_path_leads() {
    assert_eq!(
        path("/customers/{{ input.customer.name }}/orders/{{ input.quantity }}").as_deref(),
        Ok("/customers/Ann%2FLee%20%3F%23%25/orders/2")
    );
    assert_eq!(
        path("/q?name={{ input.sku }}").as_deref(),
        Ok("/q?name=book-7")
    );
    for template in [
        "/x/{{ input.note }}",
        "/x/{{ input.tags }}",
        "/x/{{ input.big_text }}",
        "/x/{{ input.customer }}",
    ] {
        assert!(
            path(template)
                .unwrap_err()
                .contains("cannot be part of a path"),
            "{template}"
        );
    }
}

#[test]
fn a_document_is_copied_where_it_holds_no_template() {
    let source = r#"{ "a" : [1.0, 1e400, "x\u00e9"], "{{ key }}": "{{ input.quantity }}", "n":{"m":"\u007b{ input.sku }}!"} }"#;
    let template =
        JsonTemplate::parse(&payload(source), Origin::Submitted(&Budget::evaluation())).unwrap();
    assert_eq!(
        template.render(&data().scope()).unwrap(),
        r#"{ "a" : [1.0, 1e400, "x\u00e9"], "{{ key }}": 2, "n":{"m":"book-7!"} }"#
    );
    let pointers: Vec<_> = template
        .reads()
        .map(|(pointer, _)| pointer.to_owned())
        .collect();
    assert_eq!(pointers, ["/{{ key }}", "/n/m"]);
}

#[test]
fn every_fault_of_a_document_is_told_with_its_place() {
    let source = r#"{"a/b":["ok",{"~":"{{ input. }}"}],"c":"{{ x","d":[[],[["{% x %}"]]]}"#;
    let faults = JsonTemplate::parse(&payload(source), Origin::Submitted(&Budget::evaluation()))
        .unwrap_err();
    let pointers: Vec<_> = faults.iter().map(|fault| &*fault.pointer).collect();
    assert_eq!(pointers, ["/a~1b/1/~0", "/c", "/d/1/0/0"]);
}
