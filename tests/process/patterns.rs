//! The page about patterns of control flow: each pattern that it calls direct is a workflow here, with cases that the binary
//! runs.

use std::{collections::BTreeSet, fs};

use tempfile::TempDir;

use crate::harness::binary;

const PAGE: &str = include_str!("../../docs/patterns.md");

/// The number of a pattern, the fields of a workflow, and its cases.
type Direct = (u32, &'static str, &'static str);

/// A step that calls the agent `x`.
macro_rules! step {
    ($name:literal) => {
        concat!(r#"{ "name": ""#, $name, r#"", "agent": "x" }"#)
    };
    ($name:literal, $more:literal) => {
        concat!(r#"{ "name": ""#, $name, r#"", "agent": "x", "#, $more, " }")
    };
}

const DIRECT: [Direct; 37] = [
    (
        1,
        concat!(r#""steps": ["#, step!("a"), ",", step!("b"), "]"),
        "
  - { name: one, services: { a: {}, b: {} }, expect: { state: processed, path: [a, b] } }",
    ),
    (
        2,
        concat!(r#""steps": ["#, step!("a"), ",", step!("b", r#""after": ["a"]"#), ",", step!("c", r#""after": ["a"]"#), "]"),
        "
  - { name: one, services: { a: {}, b: { delay: 5s }, c: { delay: 5s } }, expect: { state: processed, path: [a, b, c], ended_after: 5s } }",
    ),
    (
        3,
        concat!(r#""steps": ["#, step!("b"), ",", step!("c", r#""after": []"#), ",", step!("d", r#""after": ["b", "c"]"#), "]"),
        "
  - { name: one, services: { b: { delay: 9s }, c: {}, d: {} }, expect: { state: processed, path: [b, c, d], ended_after: 9s } }",
    ),
    (
        4,
        r#""steps": [{ "name": "way", "switch": [{ "when": "input.n > 1", "steps": [{ "name": "many", "agent": "x" }] }, { "else": [{ "name": "one", "agent": "x" }] }] }]"#,
        "
  - { name: many, input: { n: 2 }, services: { way.many: {} }, expect: { state: processed, path: [way.many] } }
  - { name: one, input: { n: 1 }, services: { way.one: {} }, expect: { state: processed, path: [way.one] } }",
    ),
    (
        5,
        concat!(r#""steps": [{ "name": "way", "switch": [{ "when": "input.n > 1", "steps": [{ "name": "many", "agent": "x" }] }, { "else": [{ "name": "one", "agent": "x" }] }] },"#, step!("then"), "]"),
        "
  - { name: many, input: { n: 2 }, services: { way.many: {}, then: {} }, expect: { state: processed, path: [way.many, then] } }
  - { name: one, input: { n: 1 }, services: { way.one: {}, then: {} }, expect: { state: processed, path: [way.one, then] } }",
    ),
    (
        6,
        concat!(r#""steps": ["#, step!("b", r#""after": [], "when": "input.b""#), ",", step!("c", r#""after": [], "when": "input.c""#), "]"),
        "
  - { name: both, input: { b: true, c: true }, services: { b: {}, c: {} }, expect: { state: processed, path: [b, c] } }
  - { name: one, input: { b: false, c: true }, services: { c: {} }, expect: { state: processed, path: [c] } }",
    ),
    (
        7,
        concat!(r#""steps": ["#, step!("b", r#""after": [], "when": "input.b""#), ",", step!("c", r#""after": [], "when": "input.c""#), ",", step!("d", r#""after": ["b", "c"]"#), "]"),
        "
  - { name: both, input: { b: true, c: true }, services: { b: { delay: 4s }, c: {}, d: {} }, expect: { path: [b, c, d], ended_after: 4s } }
  - { name: one, input: { b: false, c: true }, services: { c: {}, d: {} }, expect: { state: processed, path: [c, d] } }",
    ),
    (
        9,
        concat!(r#""steps": ["#, step!("b", r#""after": []"#), ",", step!("c", r#""after": []"#), ",", step!("d", r#""after": { "any": 1, "of": ["b", "c"], "rest": "let" }"#), "]"),
        "
  - { name: the other goes on, services: { b: { delay: 9s }, c: { delay: 1s }, d: {} }, expect: { state: processed, path: [b, c, d], ended_after: 9s, steps: { b: { state: processed } } } }",
    ),
    (
        11,
        concat!(r#""steps": ["#, step!("b", r#""after": []"#), ",", step!("c", r#""after": [], "when": "input.c""#), "]"),
        "
  - { name: nothing is left, input: { c: false }, services: { b: { delay: 2s } }, expect: { state: processed, ended_after: 2s } }",
    ),
    (
        12,
        concat!(r#""steps": [{ "name": "each", "for_each": "{{ input.all }}", "task": { "input": "{{ item }}", "steps": ["#, step!("work"), r#"], "await": false } },"#, step!("then"), "]"),
        "
  - { name: nobody waits, input: { all: [1, 2, 3] }, services: { then: {} }, expect: { state: processed, path: [each, then], ended_after: 0s } }",
    ),
    (
        13,
        concat!(r#""steps": ["#, step!("each", r#""for_each": ["a", "b", "c"]"#), ",", step!("then"), "]"),
        "
  - { name: three, services: { each: { delay: 3s }, then: {} }, expect: { path: [each, then], ended_after: 3s, steps: { each: { attempts: 3 } } } }",
    ),
    (
        14,
        concat!(r#""steps": ["#, step!("list"), ",", step!("each", r#""for_each": "{{ steps.list.output }}""#), "]"),
        "
  - { name: two, services: { list: { body: [1, 2] }, each: {} }, expect: { state: processed, path: [list, each], steps: { each: { attempts: 2 } } } }",
    ),
    (
        16,
        concat!(r#""steps": [{ "name": "paid", "after": [], "signal": { "within": "9d" } }, { "name": "late", "after": [], "wait": { "for": "3d" } },
            { "name": "first", "after": { "any": 1, "of": ["paid", "late"] }, "set": { "winner": "{{ steps.first.winner }}" } },"#,
            step!("ship", r#""when": "steps.first.output.winner == 'paid'""#), ",", step!("remind", r#""after": ["first"], "when": "steps.first.output.winner == 'late'""#), "]"),
        "
  - { name: it is paid, signals: [{ step: paid, at: 1d }], services: { ship: {} }, expect: { state: processed, path: [paid, late, ship], ended_after: 1d } }
  - { name: it is late, services: { remind: {} }, expect: { state: processed, path: [paid, late, remind], ended_after: 3d } }",
    ),
    (
        17,
        concat!(r#""limits": [{ "by": "{{ task.id }}", "max_in_flight": 1 }], "steps": ["#, step!("a", r#""after": []"#), ",", step!("b", r#""after": []"#), ",", step!("c", r#""after": ["a"]"#), "]"),
        "
  - { name: the order holds, services: { a: {}, b: {}, c: {} }, expect: { state: processed, path: [a, b, c] } }",
    ),
    (
        18,
        concat!(r#""steps": [{ "name": "closed", "after": [], "wait": { "for": "2d" } }, { "name": "bid", "after": [], "signal": { "within": "9d" }, "while": "steps.closed.state != 'processed'" },"#, step!("take", r#""after": ["bid"], "when": "not (steps.bid is skipped)""#), "]"),
        "
  - { name: in time, signals: [{ step: bid, at: 1d }], services: { take: {} }, expect: { state: processed, path: [closed, bid, take] } }
  - { name: too late, signals: [{ step: bid, at: 3d, refused: true }], services: {}, expect: { state: processed, path: [closed, bid], ended_after: 2d } }",
    ),
    (
        19,
        concat!(r#""steps": [{ "name": "a", "wait": { "for": "9d" } },"#, step!("b"), "]"),
        "
  - { name: skipped, commands: [{ command: skip, step: a, at: 1h }], services: { b: {} }, expect: { state: processed, path: [a, b], ended_after: 1h } }",
    ),
    (
        20,
        concat!(r#""steps": [{ "name": "a", "wait": { "for": "9d" } },"#, step!("b"), "]"),
        "
  - { name: cancelled, commands: [{ command: cancel, at: 1h }], services: {}, expect: { state: cancelled, path: [a] } }",
    ),
    (
        21,
        concat!(r#""steps": ["#, step!("poll", r#""repeat": { "until": "output.done", "at_most": 5 }"#), ",", step!("then"), "]"),
        "
  - { name: three times, services: { poll: [{ body: { done: false } }, { body: { done: false } }, { body: { done: true } }], then: {} }, expect: { state: processed, path: [poll, then], steps: { poll: { attempts: 3 } } } }",
    ),
    (
        22,
        concat!(r#""steps": ["#, step!("work"), r#", { "name": "again", "when": "input.left > 0", "task": { "workflow": "itself", "input": { "left": "{{ input.left - 1 }}" } } }]"#),
        "
  - { name: once more, input: { left: 1 }, services: { work: {}, again: {} }, expect: { state: processed, path: [work, again], requests: [{ step: again, body: { left: 0 } }] } }
  - { name: the last, input: { left: 0 }, services: { work: {} }, expect: { state: processed, path: [work] } }",
    ),
    (
        23,
        r#""steps": [{ "name": "a", "wait": { "for": "1h" } }, { "name": "rung", "signal": { "within": "1d", "on_timeout": "skip", "early": "refuse" } }]"#,
        "
  - { name: nobody listens yet, signals: [{ step: rung, at: 1m, refused: true }], services: {}, expect: { state: processed, ended_after: 25h, steps: { rung: { state: skipped } } } }
  - { name: somebody listens, signals: [{ step: rung, at: 2h }], services: {}, expect: { state: processed, ended_after: 2h } }",
    ),
    (
        24,
        r#""steps": [{ "name": "a", "wait": { "for": "1h" } }, { "name": "rung", "signal": { "within": "1d" } }]"#,
        "
  - { name: it is kept, signals: [{ step: rung, at: 1m }], services: {}, expect: { state: processed, ended_after: 1h } }",
    ),
    (
        25,
        concat!(r#""steps": [{ "name": "region", "after": [], "steps": [{ "name": "a", "wait": { "for": "5d" } }, { "name": "b", "agent": "x" }] }, { "name": "stop", "after": [], "signal": { "within": "9d" } }, "#,
            step!("then", r#""after": { "any": 1, "of": ["region", "stop"], "rest": "cancel" }"#), "]"),
        "
  - { name: stopped, signals: [{ step: stop, at: 1d }], services: { then: {} }, expect: { state: processed, path: [region.a, stop, then], ended_after: 1d } }
  - { name: not stopped, services: { region.b: {}, then: {} }, expect: { state: processed, ended_after: 5d } }",
    ),
    (
        26,
        concat!(r#""steps": [{ "name": "each", "after": [], "for_each": [1, 2, 3], "wait": { "for": "{{ item }}d" } }, { "name": "stop", "after": [], "signal": { "within": "9d" } }, "#,
            step!("then", r#""after": { "any": 1, "of": ["each", "stop"], "rest": "cancel" }"#), "]"),
        "
  - { name: stopped, signals: [{ step: stop, at: 36h }], services: { then: {} }, expect: { state: processed, ended_after: 36h } }",
    ),
    (
        27,
        concat!(r#""steps": [{ "name": "each", "after": [], "for_each": [1, 2, 3], "wait": { "for": "{{ item }}d" } }, { "name": "enough", "after": [], "signal": { "within": "9d" } }, "#,
            step!("then", r#""after": { "any": 1, "of": ["each", "enough"], "rest": "cancel" }"#), "]"),
        "
  - { name: complete, signals: [{ step: enough, at: 36h }], services: { then: {} }, expect: { state: processed, ended_after: 36h } }
  - { name: all, services: { then: {} }, expect: { state: processed, ended_after: 3d } }",
    ),
    (
        28,
        r#""steps": [{ "name": "rounds", "repeat": { "until": "index == 1", "at_most": 3 }, "task": { "steps": [
            { "name": "b", "agent": "x", "after": [] }, { "name": "c", "agent": "x", "after": [] }, { "name": "d", "agent": "x", "after": { "any": 1, "of": ["b", "c"], "rest": "let" } }] } }]"#,
        "
  - { name: two rounds, services: { rounds: { delay: 9s } }, expect: { state: processed, path: [rounds], ended_after: 18s } }",
    ),
    (
        29,
        concat!(r#""steps": ["#, step!("b", r#""after": []"#), r#", { "name": "c", "after": [], "wait": { "for": "1h" } },"#, step!("d", r#""after": { "any": 1, "of": ["b", "c"], "rest": "cancel" }"#), "]"),
        "
  - { name: the rest is cancelled, services: { b: {}, d: {} }, expect: { state: processed, path: [c, b, d], ended_after: 0s } }",
    ),
    (
        30,
        concat!(r#""steps": ["#, step!("a", r#""after": []"#), ",", step!("b", r#""after": []"#), ",", step!("c", r#""after": []"#), ",", step!("d", r#""after": { "any": 2, "of": ["a", "b", "c"], "rest": "let" }"#), "]"),
        "
  - { name: two of three, services: { a: { delay: 1s }, b: { delay: 2s }, c: { delay: 9s }, d: { delay: 1s } }, expect: { state: processed, path: [a, b, c, d], ended_after: 9s } }",
    ),
    (
        31,
        r#""steps": [{ "name": "rounds", "repeat": { "until": "index == 1", "at_most": 3 }, "task": { "steps": [
            { "name": "a", "agent": "x", "after": [] }, { "name": "b", "agent": "x", "after": [] }, { "name": "c", "agent": "x", "after": [] },
            { "name": "d", "agent": "x", "after": { "any": 2, "of": ["a", "b", "c"], "rest": "let" } }] } }]"#,
        "
  - { name: two rounds, services: { rounds: {} }, expect: { state: processed, steps: { rounds: { state: processed } } } }",
    ),
    (
        32,
        concat!(r#""steps": ["#, step!("a", r#""after": []"#), ",", step!("b", r#""after": []"#), r#", { "name": "c", "after": [], "wait": { "for": "1h" } },"#, step!("d", r#""after": { "any": 2, "of": ["a", "b", "c"] }"#), "]"),
        "
  - { name: two of three, services: { a: {}, b: { delay: 2s }, d: {} }, expect: { state: processed, path: [c, a, b, d], ended_after: 2s } }",
    ),
    (
        35,
        concat!(r#""steps": [{ "name": "each", "for_each": [1, 2, 9], "enough": 2, "wait": { "for": "{{ item }}d" } },"#, step!("then"), "]"),
        "
  - { name: two of three, services: { then: {} }, expect: { state: processed, path: [each, then], ended_after: 2d } }",
    ),
    (
        37,
        concat!(r#""steps": ["#, step!("a", r#""after": [], "when": "input.a""#), ",", step!("b", r#""after": ["a"], "when": "input.b""#), ",", step!("c", r#""after": ["a"]"#), ",", step!("d", r#""after": [], "when": "input.d""#), ",",
            step!("e", r#""after": ["b", "c", "d"]"#), "]"),
        "
  - { name: one branch in a branch, input: { a: true, b: false, d: true }, services: { a: {}, c: {}, d: { delay: 3s }, e: {} }, expect: { state: processed, path: [a, c, d, e], ended_after: 3s } }",
    ),
    (
        38,
        concat!(r#""steps": ["#, step!("poll", r#""after": [], "repeat": { "until": "output.done", "at_most": 5 }"#), ",", step!("b", r#""after": [], "when": "input.b""#), ",", step!("c", r#""after": ["poll", "b"]"#), "]"),
        "
  - { name: a loop in a branch, input: { b: false }, services: { poll: [{ body: { done: false } }, { body: { done: true } }], c: {} }, expect: { state: processed, path: [poll, c] } }",
    ),
    (
        39,
        r#""steps": [{ "name": "critical", "task": { "workflow": "one-at-a-time", "key": "{{ input.account }}" } }]"#,
        "
  - { name: it has its turn, input: { account: 7 }, services: { critical: { delay: 5s } }, expect: { state: processed, ended_after: 5s } }",
    ),
    (
        40,
        concat!(r#""limits": [{ "by": "{{ task.id }}", "max_in_flight": 1 }], "steps": ["#, step!("a", r#""after": []"#), ",", step!("b", r#""after": []"#), "]"),
        "
  - { name: both, services: { a: {}, b: {} }, expect: { state: processed, path: [a, b] } }",
    ),
    (
        41,
        concat!(r#""steps": ["#, step!("each", r#""for_each": [1, 2]"#), ",", step!("then", r#""request": { "body": "{{ steps.each.output }}" }"#), "]"),
        "
  - { name: one goes on, services: { each: [{ body: 1 }, { body: 2 }], then: {} }, expect: { state: processed, requests: [{ step: then, body: [1, 2] }] } }",
    ),
    (
        42,
        concat!(r#""steps": ["#, step!("each", r#""for_each": "{{ range(input.n) }}""#), "]"),
        "
  - { name: four, input: { n: 4 }, services: { each: {} }, expect: { state: processed, steps: { each: { attempts: 4 } } } }",
    ),
    (
        43,
        r#""steps": [{ "name": "a", "after": [], "wait": { "for": "9d" } }, { "name": "end", "after": [], "stop": { "state": "processed" } }]"#,
        "
  - { name: at once, services: {}, expect: { state: processed, ended_after: 0s } }",
    ),
];

/// Returns the number of each pattern of the page, and whether it is direct.
fn rows() -> Vec<(u32, bool)> {
    let rows = PAGE.lines().filter(|line| line.starts_with("| "));
    let rows = rows.filter_map(|row| {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let number = cells.next()?.parse().ok()?;
        let is_direct = match cells.nth(1)? {
            "yes" => true,
            "no" => false,
            other => panic!("{other:?} is neither yes nor no"),
        };
        Some((number, is_direct))
    });
    rows.collect()
}

#[test]
fn the_page_has_every_pattern_and_calls_those_direct_that_are_tested() {
    let rows = rows();
    let numbers: Vec<_> = rows.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=43).collect::<Vec<_>>());
    let direct = rows.iter().filter(|(_, is_direct)| *is_direct);
    let direct: BTreeSet<_> = direct.map(|(number, _)| *number).collect();
    let tested: BTreeSet<_> = DIRECT.iter().map(|(number, ..)| *number).collect();
    assert_eq!(direct, tested);
    assert!(PAGE.contains(&format!("**{} of them are said directly**", direct.len())));
}

#[tokio::test]
async fn every_direct_pattern_does_what_its_cases_expect() {
    let mut wrong = Vec::new();
    for (number, workflow, cases) in DIRECT {
        let folder = TempDir::new().unwrap();
        fs::write(
            folder.path().join("workflow.json"),
            format!("{{ {workflow} }}"),
        )
        .unwrap();
        fs::write(folder.path().join("cases.yaml"), format!("cases:{cases}\n")).unwrap();
        let mut command = binary();
        command.args(["test", "workflow.json", "cases.yaml"]);
        let output = command.current_dir(folder.path()).output().await.unwrap();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stdout);
            let complained = String::from_utf8_lossy(&output.stderr);
            wrong.push(format!("pattern {number}\n{said}{complained}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
