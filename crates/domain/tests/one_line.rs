//! One line is enough for a field: in a copy of the crates a field is added to a specification, and the reader, the check of
//! what serde has read, the schema, the written form and the documentation know it.

#![allow(
    clippy::unwrap_used,
    reason = "a test that fails by a panic says where"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const SPECIFICATION: &str = "domain/src/agent/breaker.rs";
const BEFORE: &str = "    pub canaries: u32,\n";
/// The attribute and the field are one declaration.
const PLANTED: &str = "    /// Planted.\n    #[field(1..=7, default = 3)]\n    pub planted: u32,\n";

/// Shows what is known of the field.
const SHOWS: &str = r##"
use provost_domain::{agent::AgentSpec, values::{Definitions, Object}};
use serde_json::value::RawValue;

fn main() {
    let agent = |breaker: &str| {
        format!(r#"{{"endpoints": [{{"url": "http://a"}}], "breaker": {breaker}}}"#)
    };
    let parse = |breaker: &str| AgentSpec::parse(&RawValue::from_string(agent(breaker)).unwrap());
    println!("refused {}", parse(r#"{"planted": 8}"#).unwrap_err()[0]);
    println!("meant {}", parse(r#"{"plantet": 5}"#).unwrap_err()[0]);
    let spec = parse(r#"{"planted": 5}"#).unwrap();
    println!("written {}", serde_json::to_value(&spec).unwrap()["breaker"]["planted"]);
    println!("default {}", serde_json::to_value(parse("{}").unwrap()).unwrap()["breaker"]["planted"]);
    let spec: AgentSpec = serde_json::from_str(&agent(r#"{"planted": 9}"#)).unwrap();
    println!("checked {:?}", spec.faults("")[0]);
    let mut definitions = Definitions::default();
    definitions.object::<AgentSpec>();
    let document = definitions.document("AgentSpec");
    println!("schema {}", document["$defs"]["Breaker"]["properties"]["planted"]);
    println!("docs {}", definitions.markdown().lines().find(|line| line.contains("`planted`")).unwrap());
}
"##;

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            let (old, new) = (fs::read(entry.path()).unwrap(), fs::read(&to));
            // An unchanged file keeps its time, so that it is not built again.
            if new.ok().as_ref() != Some(&old) {
                fs::write(to, old).unwrap();
            }
        }
    }
}

/// A workspace of the crates below `target`, with what cargo has built there before.
fn scratch() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("one-line");
    for name in ["domain", "object", "object-derive"] {
        copy(
            &crates.join(name).join("src"),
            &scratch.join(name).join("src"),
        );
        fs::copy(
            crates.join(name).join("Cargo.toml"),
            scratch.join(name).join("Cargo.toml"),
        )
        .unwrap();
    }
    fs::copy(crates.join("../Cargo.lock"), scratch.join("Cargo.lock")).unwrap();
    let whole = fs::read_to_string(crates.join("../Cargo.toml")).unwrap();
    let lints = whole.split("[workspace.lints.rust]").nth(1).unwrap();
    let lints = lints.split("\n[lints]").next().unwrap();
    let workspace = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [\"domain\", \"object\", \"object-derive\"]\n\n\
         [workspace.package]\nrust-version = \"1.95\"\n\n[profile.dev]\ndebug = false\n\n\
         [workspace.lints.rust]{lints}"
    );
    fs::write(scratch.join("Cargo.toml"), workspace).unwrap();
    // The rules read tables of the documentation where they are tested, and nowhere else.
    fs::create_dir_all(scratch.join("domain/examples")).unwrap();
    fs::write(scratch.join("domain/examples/shows.rs"), SHOWS).unwrap();
    scratch
}

fn cargo(scratch: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO"))
        .args(arguments)
        .args(["--offline", "--quiet", "--package", "provost-domain"])
        .current_dir(scratch)
        .env("CARGO_TARGET_DIR", scratch.join("target"))
        .output()
        .unwrap()
}

fn change(scratch: &Path, from: &str, to: &str) {
    let path = scratch.join(SPECIFICATION);
    let source = fs::read_to_string(&path).unwrap();
    assert_eq!(source.matches(from).count(), 1, "{from}");
    fs::write(path, source.replace(from, to)).unwrap();
}

#[test]
fn one_line_is_enough_for_a_field_and_a_wrong_one_is_named() {
    let scratch = scratch();
    change(&scratch, BEFORE, &format!("{BEFORE}{PLANTED}"));
    let run = cargo(&scratch, &["run", "--example", "shows"]);
    let shown = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    for line in [
        "refused /breaker/planted: must be a whole number from 1 to 7, not 8",
        "meant /breaker/plantet: unknown field `plantet`; did you mean `planted`?",
        "written 5",
        "default 3",
        "checked (\"/breaker/planted\", \"must be 1 to 7\")",
        r#"schema {"type":["integer","null"],"format":"int32","minimum":1,"maximum":7,"description":"Planted.","default":3}"#,
        "docs | `planted` | whole number, 1 to 7 | `3` | Planted. |",
    ] {
        assert!(
            shown.lines().any(|shown| shown == line),
            "{line} in:\n{shown}"
        );
    }

    // An error of the macro stands at the field.
    let wrong = PLANTED.replace("1..=7, default = 3", "1..=7");
    change(&scratch, PLANTED, &wrong);
    let run = cargo(&scratch, &["check"]);
    let errors = String::from_utf8_lossy(&run.stderr);
    let source = fs::read_to_string(scratch.join(SPECIFICATION)).unwrap();
    let line = source
        .lines()
        .position(|line| line.contains("pub planted"))
        .unwrap()
        + 1;
    assert!(!run.status.success());
    assert!(errors.contains("`planted` needs `default`"), "{errors}");
    assert!(errors.contains(&format!("breaker.rs:{line}:9")), "{errors}");
}
