//! No evaluation builds a value that is larger than its bounds.

use super::*;

#[test]
fn no_evaluation_builds_more_than_it_may() {
    for (template, why) in [
        ("{{ 'x' * 100000000 }}", "two numbers"),
        ("{{ 100000000 * input.sku }}", "two numbers"),
        ("{{ 2 * (input.tags) * 3 }}", "two numbers"),
        ("{{ (input.tags * 100000000) | length }}", "two numbers"),
        (
            "{{ range(100000) | join(input.customer.name * 1) }}",
            "two numbers",
        ),
        ("{{ range(100000) | join('0123456789') }}", "too much"),
        (
            "{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' | replace('', range(9999) | join('0123')) }}",
            "larger than",
        ),
        (
            "{{ [range(100000), range(100000)] | list | map('list') | list | tojson ~ '' }}",
            "too much",
        ),
        (
            "{{ [range(100000), range(100000), range(100000)] }}",
            "too much",
        ),
    ] {
        let error = json(template).unwrap_err();
        let is_bounded =
            error.contains(why) || why != "two numbers" && error.contains("larger than");
        assert!(is_bounded, "{template}: {error}");
    }
}

#[test]
fn a_document_that_is_too_large_is_refused() {
    let mut data = data();
    data.input = payload(&format!("{{\"x\": \"{}\"}}", "y".repeat(MAX_RENDERED / 2)));
    let document = payload(r#"["{{ input.x }}", "{{ input }}"]"#);
    let error = JsonTemplate::parse(&document, Origin::Submitted(&Budget::evaluation()))
        .unwrap()
        .render(&data.scope())
        .unwrap_err();
    assert!(error.to_string().contains("larger than"), "{error}");
    let text = Template::parse(
        "{{ input.x }}{{ input.x }}{{ input.x }}",
        Origin::Submitted(&Budget::evaluation()),
    )
    .unwrap();
    assert!(text.render_text(&data.scope()).is_err());
}

#[test]
fn a_fault_of_a_computation_names_its_reason() {
    for (template, why) in [
        ("{{ (-8) ** 0.5 }}", "no real result"),
        ("{{ 0 ** -1 }}", "divides by zero"),
        ("{{ 0.0 ** -1 }}", "divides by zero"),
        ("{{ 1 // 0 }}", "by zero has no result"),
        ("{{ 2 ** 126 * 2 }}", "too large"),
        ("{{ 1e308 * 10 }}", "too large"),
        ("{{ '\\ud800' }}", "half of a surrogate pair"),
        ("{{ '\\ud800\\n' }}", "half of a surrogate pair"),
        ("{{ '\\ud8' }}", "four hexadecimal digits"),
        ("{{ '\\ud8é' }}", "four hexadecimal digits"),
    ] {
        let error = json(template).unwrap_err();
        assert!(error.contains(why), "{template}: {error}");
    }
}
