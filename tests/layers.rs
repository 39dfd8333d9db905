//! Checks that imports only point down: a module uses the layers below its own, and none beside or above it. Within
//! `src` and within each crate, files do not import each other in a circle. The fields of log events are plain values.

#![allow(
    clippy::unwrap_used,
    reason = "a test that fails by a panic says where"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The modules of `src/`, from the top layer to the bottom one, as docs/ARCHITECTURE.md draws them. `domain` and
/// `rehearsal` are crates of their own, so the compiler itself keeps them below the others.
const LAYERS: &[&[&str]] = &[
    &["main"],
    &["simulation"],
    &["demo", "bench"],
    &["cli"],
    &["service"],
    &["intake", "console"],
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
    &["broker"],
    &["config"],
    &["store"],
    &["telemetry", "planted", "output", "interrupt", "http2_guard"],
    &["blocking"],
    &["chance"],
    &["clock"],
    &["host"],
    &["rehearsal"],
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

/// Returns the code without its comments and without the module of tests at its end.
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

/// Returns the paths that follow a prefix such as `crate::`. For each branch of a `crate::{…}` it is the whole path.
fn paths<'c>(code: &'c str, prefix: &str) -> Vec<Vec<&'c str>> {
    let starts_word = |at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == ':');
    let mut found = Vec::new();
    for (at, _) in code
        .match_indices(prefix)
        .filter(|(at, _)| starts_word(*at))
    {
        branches(&code[at + prefix.len()..], &mut Vec::new(), &mut found);
    }
    found
}

/// Reads one tree of imports, and returns the code after it.
fn branches<'c>(tree: &'c str, stem: &mut Vec<&'c str>, found: &mut Vec<Vec<&'c str>>) -> &'c str {
    let depth = stem.len();
    let mut rest = tree.trim_start();
    loop {
        if let Some(mut inner) = rest.strip_prefix('{') {
            while !inner.trim_start().starts_with('}') && !inner.is_empty() {
                inner = branches(inner, stem, found);
                inner = inner.trim_start().trim_start_matches(',');
            }
            stem.truncate(depth);
            return inner.trim_start().get(1..).unwrap_or_default();
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
        stem.push(name);
        match after.strip_prefix("::") {
            Some(next) if !name.is_empty() => rest = next,
            _ => break,
        }
    }
    found.push(stem.clone());
    stem.truncate(depth);
    // The rest is a new name for the import, or a character that belongs to none.
    let after = rest.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
    after.trim_start_matches(|c: char| !matches!(c, ',' | '}'))
}

/// Returns the modules that follow `crate::`, or are first in the branches of a `crate::{…}`.
fn imports(code: &str) -> BTreeSet<&str> {
    let firsts = paths(code, "crate::").into_iter().map(|path| path[0]);
    firsts
        .filter(|module| module.starts_with(|c: char| c.is_lowercase()))
        .collect()
}

/// The rooms of the domain, from the bottom to the top, as docs/ARCHITECTURE.md lists them.
const ROOMS: [&str; 10] = [
    "values",
    "template",
    "schedule",
    "definition",
    "task",
    "queue",
    "message",
    "upkeep",
    "agent",
    "view",
];

/// Every file of the service but those of tests, by its path of modules, with its code.
fn files() -> BTreeMap<Vec<String>, String> {
    files_of("src")
}

fn files_of(folder: &str) -> BTreeMap<Vec<String>, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut all = Vec::new();
    sources(&root, &mut all);
    let named = all.into_iter().filter_map(|path| {
        let relative = path.strip_prefix(&root).unwrap().with_extension("");
        let parts = relative
            .iter()
            .map(|part| part.to_str().unwrap().to_owned());
        let mut module: Vec<_> = parts.collect();
        module.pop_if(|last| last == "mod");
        let source = fs::read_to_string(&path).unwrap();
        (!is_test(&relative)).then(|| (module, code(&source)))
    });
    named.collect()
}

/// Returns the file of a path of modules and items.
fn file_of(files: &BTreeMap<Vec<String>, String>, path: &[String]) -> Option<Vec<String>> {
    let lengths = (1..=path.len()).rev();
    let mut prefixes = lengths.map(|length| path[..length].to_vec());
    prefixes.find(|prefix| files.contains_key(prefix))
}

/// Returns the files that a file imports from, except those above it in its own folder and those below.
fn imported(
    files: &BTreeMap<Vec<String>, String>,
    module: &[String],
    code: &str,
) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    let stems = [
        ("crate::", 0),
        ("super::", module.len().saturating_sub(1)),
        ("super::super::", module.len().saturating_sub(2)),
        ("self::", module.len()),
    ];
    for (prefix, length) in stems {
        for path in paths(code, prefix) {
            let stem = module[..length].iter().cloned();
            let path: Vec<_> = stem.chain(path.into_iter().map(str::to_owned)).collect();
            let file = file_of(files, &path);
            found.extend(file.filter(|f| !module.starts_with(f) && !f.starts_with(module)));
        }
    }
    found
}

/// The folders that are looked at for circles, each by itself: a crate cannot be in a circle with another.
fn crates() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    let mut all = vec!["src".to_owned()];
    for entry in fs::read_dir(root).unwrap() {
        let name = entry.unwrap().file_name();
        all.push(format!("crates/{}/src", name.to_str().unwrap()));
    }
    all
}

#[test]
fn files_do_not_import_each_other_in_a_circle() {
    let (mut circles, mut seen) = (Vec::new(), 0);
    for folder in crates() {
        let files = files_of(&folder);
        let mut open: BTreeMap<_, _> = files
            .iter()
            .map(|(module, code)| (module.clone(), imported(&files, module, code)))
            .collect();
        seen += open.values().map(BTreeSet::len).sum::<usize>();
        // A file is in no circle if it imports none of the remaining files, or if none of them imports it.
        loop {
            let left: BTreeSet<_> = open.keys().cloned().collect();
            let used: BTreeSet<_> = open.values().flatten().cloned().collect();
            open.retain(|module, imports| {
                imports.retain(|import| left.contains(import));
                !imports.is_empty() && used.contains(module)
            });
            if open.len() == left.len() {
                break;
            }
        }
        circles.extend(open.iter().map(|(module, imports)| {
            let imports: Vec<_> = imports.iter().map(|import| import.join("::")).collect();
            let module = module.join("::");
            format!("{folder}: {module} imports {}", imports.join(", "))
        }));
    }
    assert!(seen > 1_000, "only {seen} imports were found");
    assert!(
        circles.is_empty(),
        "these files import each other in a circle:\n{}",
        circles.join("\n")
    );
}

#[test]
fn imports_only_point_down() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (path, code) in files() {
        let module = path[0].as_str();
        for used in imports(&code) {
            seen += 1;
            if used != module && layer(used) <= layer(module) {
                wrong.push(format!("{}: {module} uses {used}", path.join("::")));
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

#[test]
fn rooms_of_the_domain_only_use_the_rooms_below_them() {
    let files = files_of("crates/domain/src");
    let height = |room: &str| {
        let found = ROOMS.iter().position(|known| *known == room);
        found.unwrap_or_else(|| panic!("{room} is no room: add it to ROOMS"))
    };
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (module, code) in &files {
        if module == &["lib"] {
            continue;
        }
        for import in imported(&files, module, code) {
            seen += 1;
            if height(&import[0]) > height(&module[0]) {
                wrong.push(format!("{} uses {}", module.join("::"), import.join("::")));
            }
        }
    }
    assert!(seen > 300, "only {seen} imports were found");
    assert!(
        wrong.is_empty(),
        "these imports point up:\n{}",
        wrong.join("\n")
    );
}

/// Returns the code in the parentheses at the start of this text, without its string literals.
fn arguments(code: &str) -> String {
    let (mut found, mut depth, mut is_text) = (String::new(), 0, false);
    let mut characters = code.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' if is_text => drop(characters.next()),
            '"' => is_text = !is_text,
            _ if is_text => {}
            ')' if depth == 1 => break,
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if !is_text {
            found.push(c);
        }
    }
    found
}

/// Returns whether a field is written as `?value`, which is the form of `Debug`.
fn has_debug_field(arguments: &str) -> bool {
    let before_sigil = arguments
        .match_indices('?')
        .map(|(at, _)| arguments[..at].trim_end());
    let mut before_sigil = before_sigil.map(|before| before.chars().last());
    before_sigil.any(|last| matches!(last, Some(',' | '=' | '(')))
}

#[test]
fn the_fields_of_log_events_are_plain_values() {
    const MACROS: [&str; 8] = [
        "trace!(", "debug!(", "info!(", "warn!(", "error!(", "event!(", "span!(", "_span!(",
    ];
    let mut all = Vec::new();
    sources(Path::new("src"), &mut all);
    sources(Path::new("crates"), &mut all);
    let mut events = 0;
    for path in all.iter().filter(|path| !is_test(path)) {
        let code = code(&fs::read_to_string(path).unwrap());
        for name in MACROS {
            for (at, _) in code.match_indices(name) {
                let found = arguments(&code[at + name.len() - 1..]);
                assert!(
                    !has_debug_field(&found),
                    "{}: {name}{found}): a reader of JSON cannot use the form of Debug; give a number, or %value",
                    path.display()
                );
                events += 1;
            }
        }
    }
    assert!(events > 100, "{events}");
    assert!(has_debug_field("(%error, again_in = ?wait,"));
    assert!(has_debug_field("(?wait,"));
    assert!(!has_debug_field("(of(task)?, wait,"));
}
