//! Readers of the documentation rely on two things: every link leads to a file or a heading that exists, and every table
//! is whole.

#![allow(
    clippy::unwrap_used,
    reason = "a test that fails by a panic says where"
)]

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Component, Path, PathBuf},
};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the pages of the project with their paths below its folder.
fn pages() -> Vec<(PathBuf, String)> {
    let mut paths = vec![
        "README.md".into(),
        "CONTRIBUTING.md".into(),
        "CHANGELOG.md".into(),
    ];
    for folder in ["docs", "docs/decisions"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = Path::new(folder).join(entry.unwrap().file_name());
            if path.extension().is_some_and(|extension| extension == "md") {
                paths.push(path);
            }
        }
    }
    let read = |path: PathBuf| {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        (path, text)
    };
    paths.into_iter().map(read).collect()
}

/// Returns the lines of a page with their numbers, without blocks of code.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    let numbered = text.lines().enumerate();
    numbered.filter_map(move |(at, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence && !line.starts_with("    ")).then_some((at + 1, line))
    })
}

/// Returns the name that a heading has in links, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        letter if letter.is_alphanumeric() => Some(letter),
        _ => None,
    });
    kept.collect()
}

fn anchors(text: &str) -> HashSet<String> {
    let mut count = HashMap::<String, usize>::new();
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    let names = headings.map(|(_, line)| {
        let name = anchor(line);
        let seen = count.entry(name.clone()).or_default();
        *seen += 1;
        match *seen {
            1 => name,
            more => format!("{name}-{}", more - 1),
        }
    });
    names.collect()
}

/// Returns a path without its `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// Returns the targets of the links in a line.
fn links(line: &str) -> Vec<&str> {
    let links = line.split("](").skip(1);
    links.filter_map(|rest| rest.split(')').next()).collect()
}

#[test]
fn every_link_leads_to_something_that_exists() {
    let pages = pages();
    let known: HashMap<_, _> = { pages.iter() }
        .map(|(path, text)| (path.clone(), anchors(text)))
        .collect();
    let mut broken = Vec::new();
    let mut looked_at = 0;
    for (path, text) in &pages {
        for (number, line) in prose(text) {
            for link in links(line) {
                if link.contains("://") || link.starts_with("mailto:") {
                    continue;
                }
                looked_at += 1;
                let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
                let target = match file {
                    "" => path.clone(),
                    file => normal(&path.parent().unwrap().join(file)),
                };
                let is_there = root().join(&target).exists();
                let is_named = anchor.is_empty()
                    || known
                        .get(&target)
                        .is_some_and(|anchors| anchors.contains(anchor));
                if !is_there || !is_named {
                    broken.push(format!("{}:{number}: {link}", path.display()));
                }
            }
        }
    }
    assert!(looked_at > 300, "{looked_at} links");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_table_is_whole() {
    let mut faults = Vec::new();
    let mut tables = 0;
    for (path, text) in pages() {
        let lines: Vec<_> = prose(&text).collect();
        let mut columns = None;
        for (at, (number, line)) in lines.iter().enumerate() {
            if !line.starts_with('|') {
                columns = None;
                continue;
            }
            let found = line.replace("\\|", "").matches('|').count();
            let Some(columns) = columns else {
                tables += 1;
                columns = Some(found);
                let next = lines.get(at + 1).map_or("", |(_, line)| *line);
                if !next.starts_with("| ---") {
                    faults.push(format!(
                        "{}:{number}: a table without a head",
                        path.display()
                    ));
                }
                continue;
            };
            if found != columns {
                faults.push(format!(
                    "{}:{number}: {found} bars instead of {columns}",
                    path.display()
                ));
            }
        }
    }
    assert!(tables > 50, "{tables} tables");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
