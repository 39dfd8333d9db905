//! No evaluation builds more than it may, and the guards change nothing else.

use super::*;

#[test]
fn no_evaluation_builds_more_than_it_may() {
    for (template, why) in [
        ("{{ 'x' * 100000000 }}", "**"),
        ("{{ 100000000 * input.sku }}", "**"),
        ("{{ 2 * (input.tags) * 3 }}", "**"),
        ("{{ (input.tags * 100000000) | length }}", "**"),
        ("{{ range(100000) | join(input.customer.name * 1) }}", "**"),
        ("{{ range(100000) | join('0123456789') }}", "larger than"),
        (
            "{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' | replace('', range(9999) | join('0123')) }}",
            "larger than",
        ),
        (
            "{{ [range(100000), range(100000)] | list | map('list') | list | tojson ~ '' }}",
            "larger than",
        ),
        (
            "{{ [range(100000), range(100000), range(100000)] }}",
            "larger than",
        ),
    ] {
        let error = json(template).unwrap_err();
        assert!(error.contains(why), "{template}: {error}");
    }
}

#[test]
fn numbers_are_multiplied_as_ever() {
    let data = data();
    for source in [
        "input.quantity * 3",
        "-input.quantity * -3",
        "2 + input.quantity * 3 - 1",
        "2 * 3 * input.total / 4 * 2",
        "2 ** 3 * 2 ** 2",
        "(1 + 2) * (3 + 4)",
        "[1 * 2, {'a': 3 * 4}]",
        "input.tags | length * 2",
        "'3' | int * 2",
        "2 * '3' | int + 1",
        "2 * 3 if input.gift else 4 * 5",
        "2 * 3 == 6 and 1 * 0 == 0",
        "[1, 2, 3][1 * 1] * 2",
        "range(2 * 2) | list",
        "dict(a=2 * 2)",
        "true * 3",
        "9 // 2 * 2 % 5",
    ] {
        let mut plain = Environment::new();
        plain.set_undefined_behavior(UndefinedBehavior::Strict);
        let expected = plain
            .compile_expression(source)
            .unwrap()
            .eval(data.scope().root(true))
            .unwrap();
        let expected = serde_json::to_value(&expected).unwrap();
        assert_eq!(
            json(&format!("{{{{ {source} }}}}")),
            Ok(expected),
            "{source}"
        );
    }
}

#[test]
fn a_document_that_is_too_large_is_refused() {
    let mut data = data();
    data.input = payload(&format!("{{\"x\": \"{}\"}}", "y".repeat(MAX_RENDERED / 2)));
    let document = payload(r#"["{{ input.x }}", "{{ input }}"]"#);
    let error = JsonTemplate::parse(&document)
        .unwrap()
        .render(&data.scope())
        .unwrap_err();
    assert!(error.to_string().contains("larger than"), "{error}");
    let text = Template::parse("{{ input.x }}{{ input.x }}{{ input.x }}").unwrap();
    assert!(text.render_text(&data.scope()).is_err());
}
