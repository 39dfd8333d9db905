//! `docs/agent-fields.md` has the fields of an agent, as they are declared.

#![allow(
    clippy::unwrap_used,
    reason = "a test that fails by a panic says where"
)]

use std::fs;

use provost_domain::{agent::AgentSpec, values::Definitions};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/agent-fields.md");
const HEAD: &str = "# The fields of an agent

Use this page to look up a field of `PUT /v1/agents/{name}` or of `[agents.…]` in the configuration file. A test makes it of the
declarations in the code, with the environment variable `PROVOST_WRITE_DOCS=1`: do not edit it.

";

fn definitions() -> Definitions {
    let mut definitions = Definitions::default();
    definitions.object::<AgentSpec>();
    definitions
}

#[test]
fn the_page_has_the_fields_as_they_are_declared() {
    let page = format!("{HEAD}{}", definitions().markdown());
    if std::env::var_os("PROVOST_WRITE_DOCS").is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    let kept = fs::read_to_string(PAGE).unwrap_or_default();
    assert!(
        kept == page,
        "docs/agent-fields.md is out of date: PROVOST_WRITE_DOCS=1 cargo test -p provost-domain --test agent_fields"
    );
}

/// `1m30s` as prose has it: `1 m 30 s`.
fn spaced(span: &str) -> String {
    let mut spaced = String::new();
    for c in span.chars() {
        let before = spaced.chars().last();
        if before.is_some_and(|before| before.is_ascii_digit() != c.is_ascii_digit()) {
            spaced.push(' ');
        }
        spaced.push(c);
    }
    spaced
}

/// JSON Schema has no word for the bounds of a duration, so the description has them.
#[test]
fn the_description_of_a_duration_names_its_longest() {
    let mut seen = 0;
    for table in definitions().tables {
        for row in table.rows {
            let Some((_, longest)) = row.form.split_once(" to ") else {
                continue;
            };
            if row.form.starts_with("duration, ") {
                let about = &row.about;
                assert!(
                    about.contains(&spaced(longest)),
                    "{}.{}: {about}",
                    table.name,
                    row.field
                );
                seen += 1;
            }
        }
    }
    assert!(seen >= 8, "{seen}");
}
