//! Imports only point down: a module uses the layers below its own, and none beside or above it.

#![allow(
    clippy::unwrap_used,
    reason = "a test that fails by a panic says where"
)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The modules of `src/`, from the top layer to the bottom one, as docs/ARCHITECTURE.md draws them. `domain` is a crate
/// of its own, so the compiler itself keeps it below the others.
const LAYERS: &[&[&str]] = &[
    &["main"],
    &["demo", "bench"],
    &["cli"],
    &["service"],
    &["api"],
    &[
        "listener",
        "scheduler",
        "supervisor",
        "delivery",
        "retention",
        "plain_http",
    ],
    &["instance"],
    &["agent"],
    &["config"],
    &["store"],
    &["telemetry", "planted", "output", "interrupt"],
    &["domain"],
];

fn layer(module: &str) -> usize {
    let found = LAYERS.iter().position(|layer| layer.contains(&module));
    found.unwrap_or_else(|| {
        panic!("{module} has no layer: add it to LAYERS and to docs/ARCHITECTURE.md")
    })
}

fn sources(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push(path);
        }
    }
}

fn is_test(path: &Path) -> bool {
    let of_tests = |part: &str| matches!(part, "tests" | "conformance") || part.ends_with("_tests");
    path.with_extension("")
        .iter()
        .any(|part| part.to_str().is_some_and(of_tests))
}

/// The code without its comments and without the module of tests at its end.
fn code(source: &str) -> String {
    let source = source
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let lines = source
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The modules that follow `crate::` or stand first in the branches of a `crate::{…}`.
fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let name = |text: &str| -> String {
        let text = text.trim_start();
        text.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    for (at, prefix) in code.match_indices("crate::") {
        let rest = &code[at + prefix.len()..];
        let Some(tree) = rest.strip_prefix('{') else {
            found.insert(name(rest));
            continue;
        };
        let mut depth = 0;
        let mut branch = true;
        for (at, c) in tree.char_indices() {
            if branch && !c.is_whitespace() {
                found.insert(name(&tree[at..]));
                branch = false;
            }
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => branch = true,
                _ => {}
            }
        }
    }
    found.retain(|module| module.starts_with(|c: char| c.is_lowercase()));
    found
}

#[test]
fn imports_only_point_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    sources(&root, &mut all);
    let mut wrong = Vec::new();
    let mut seen = 0;
    for path in all {
        let relative = path.strip_prefix(&root).unwrap();
        if is_test(relative) {
            continue;
        }
        let first = relative.iter().next().unwrap();
        let module = Path::new(first).file_stem().unwrap().to_str().unwrap();
        let source = fs::read_to_string(&path).unwrap();
        for used in imports(&code(&source)) {
            seen += 1;
            if used != module && layer(&used) <= layer(module) {
                wrong.push(format!("{}: {module} uses {used}", relative.display()));
            }
        }
    }
    assert!(seen > 300, "only {seen} imports were found");
    assert!(
        wrong.is_empty(),
        "these imports do not point down:\n{}",
        wrong.join("\n")
    );
}
