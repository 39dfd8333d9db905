//! `docs/expressions.md` is correct and complete: each of its examples has the result that is written beside it, and it
//! shows all of the language.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    super::registry::{FILTERS, FUNCTIONS, OF_EACH, TESTS},
    *,
};

const PAGE: &str = include_str!("../../../../../docs/expressions.md");

/// Returns the cells of each row of a table that begins with this head.
fn rows(head: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut is_inside = false;
    for line in PAGE.lines() {
        if !line.starts_with("| ") {
            is_inside = false;
            continue;
        }
        let cells: Vec<_> = line
            .replace("\\|", "\u{1}")
            .trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().replace('\u{1}', "|"))
            .collect();
        if cells[0] == head {
            is_inside = true;
        } else if is_inside && !cells[0].starts_with("---") {
            rows.push(cells);
        }
    }
    assert!(!rows.is_empty(), "no table of {head}");
    rows
}

fn code(cell: &str) -> &str {
    cell.strip_prefix('`')
        .and_then(|cell| cell.strip_suffix('`'))
        .unwrap_or(cell)
}

fn output(output: &Value) -> Option<Payload> {
    (!output.is_null()).then(|| Payload::from_value(output))
}

fn steps_of(steps: &Value) -> Vec<(StepName, Option<Payload>)> {
    let steps = steps.as_object().unwrap().iter();
    steps
        .map(|(name, given)| (StepName::new(&**name), output(given)))
        .collect()
}

fn fault(of: &Value) -> Option<Fault> {
    let text = |name: &str| of[name].as_str().map(str::to_owned);
    Some(Fault {
        status: of["status"].as_u64().map(|status| status as u16),
        body: text("body"),
        step: text("step").map(StepName::new),
        ..Fault::permanent(text("message")?, Timestamp::from_millis(0))
    })
}

fn sample() -> Data {
    let json = PAGE
        .split("```json")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let sample: serde_json::Value = serde_json::from_str(json).unwrap();
    let mut data = data();
    data.input = Payload::from_value(&sample["input"]);
    data.steps = steps_of(&sample["steps"]);
    let errors = sample["errors"].as_object().unwrap().iter();
    let items = sample["items"].as_object().unwrap().iter();
    data.record = Record {
        steps: steps_of(&sample["steps"]),
        errors: errors
            .filter_map(|(name, error)| Some((name.clone(), fault(error)?)))
            .collect(),
        items: items
            .map(|(name, items)| {
                let items = items.as_array().unwrap().iter();
                let item = |item: &Value| (output(&item["output"]), fault(&item["error"]));
                (name.clone(), items.map(item).collect())
            })
            .collect(),
        responses: serde_json::from_value(sample["responses"].clone()).unwrap(),
        undo_cause: fault(&sample["task"]["error"]),
    };
    data
}

#[test]
fn every_example_of_the_reference_gives_what_it_says() {
    let data = sample();
    for head in ["expression", "operator", "filter", "test", "function"] {
        for row in rows(head) {
            let [.., expression, expected] = &row[..] else {
                panic!("{row:?}");
            };
            let template = format!(
                "\"{{{{ {} }}}}\"",
                code(expression).replace('\\', "\\\\").replace('"', "\\\"")
            );
            let rendered = JsonTemplate::parse(
                &payload(&template),
                Origin::Submitted(&Budget::evaluation()),
            )
            .map_err(|faults| faults[0].message.clone())
            .and_then(|template| {
                template
                    .render(&data.scope())
                    .map_err(|error| error.to_string())
            });
            if expected == "fault" {
                assert!(rendered.is_err(), "{expression}: {rendered:?}");
                continue;
            }
            let rendered = rendered.unwrap_or_else(|error| panic!("{expression}: {error}"));
            let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(json(&rendered), json(code(expected)), "{expression}");
        }
    }
}

#[test]
fn the_reference_leaves_nothing_out() {
    let named = |head| -> BTreeSet<String> {
        rows(head)
            .iter()
            .map(|row| code(&row[0]).to_owned())
            .collect()
    };
    let filters = FILTERS.iter().map(|filter| filter.name).chain(OF_EACH);
    assert_eq!(named("filter"), filters.map(str::to_owned).collect());
    assert_eq!(
        named("test"),
        TESTS.iter().map(|test| test.name.to_owned()).collect()
    );
    assert_eq!(
        named("function"),
        FUNCTIONS
            .iter()
            .map(|function| function.name.to_owned())
            .collect()
    );
    for row in rows("filter") {
        let name = code(&row[0]);
        if let Some(filter) = FILTERS.iter().find(|filter| filter.name == name) {
            assert_eq!(row[1], filter.params.join(", "), "{name}");
        }
        assert!(row[3].contains(name), "{name}");
    }
}
