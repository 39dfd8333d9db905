//! `provost test` and `provost validate`, as careless or hostile authors use them. A rehearsal must also agree with a
//! running service.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Act, Provost, Remote, binary};

/// The end of a command.
struct Ended {
    code: i32,
    out: String,
    err: String,
}

async fn provost(folder: &Path, arguments: &[&str]) -> Ended {
    let mut command = binary();
    let output = command.current_dir(folder).args(arguments).output();
    let output = output.await.unwrap();
    Ended {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

const ORDER: &str = r#"{
  "steps": [
    { "name": "reserve", "agent": "inventory",
      "undo": { "request": { "path": "/free/{{ output.id }}" } } },
    { "name": "charge", "agent": "payments", "on_permanent": "undo" }
  ]
}"#;

const CASES: &str = "services:
  reserve: { body: { id: r1 } }
  charge: { body: { id: c1 } }
  undo reserve: { status: 204 }
cases:
  - name: all is well
    expect: { state: processed }
  - name: 'the card # is refused'
    services: { charge: { status: 402 } }
    expect:
      state: undone
      undone: [reserve]
";

/// Returns a folder with a workflow and its cases, in which `from` is replaced by `to`.
fn changed(from: &str, to: &str) -> TempDir {
    assert!(CASES.contains(from));
    folder(&[("o.json", ORDER), ("c.yaml", &CASES.replace(from, to))])
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

#[tokio::test]
async fn every_example_is_valid_and_has_cases_that_pass() {
    let mut workflows = 0;
    for entry in fs::read_dir(examples()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(stem) = name.strip_suffix(".json") else {
            continue;
        };
        // The file `check.json` is a request for `provost agent check`.
        if stem == "check" || stem.ends_with(".snapshot") {
            continue;
        }
        workflows += 1;
        let cases = format!("{stem}.cases.yaml");
        let valid = provost(&examples(), &["validate", &name]).await;
        assert_eq!(valid.code, 0, "{}", valid.out);
        let run = provost(&examples(), &["test", &name, &cases]).await;
        assert_eq!(run.code, 0, "{}{}", run.out, run.err);
        assert!(!run.out.contains("warning"), "{}", run.out);
    }
    assert!(workflows >= 4, "{workflows}");
}

#[tokio::test]
async fn cases_pass_or_fail_and_the_exit_code_says_so() {
    let folder = changed("x", "x");
    let run = provost(folder.path(), &["test", "o.json", "c.yaml"]).await;
    assert_eq!((run.code, &*run.err), (0, ""), "{}", run.out);
    assert_eq!(
        run.out,
        "c.yaml\n  passed  all is well\n  passed  the card # is refused\n\n2 cases: 2 passed, 0 failed\n"
    );
    let folder = changed("undone: [reserve]", "undone: []");
    let run = provost(folder.path(), &["test", "o.json", "c.yaml"]).await;
    assert_eq!(run.code, 1);
    for part in [
        "FAILED  the card # is refused",
        "c.yaml:12:7: expect.undone: expected [], but it is [reserve]",
        "+0s charge: POST payments  -> 402",
        "+0s undo reserve: POST inventory /free/r1 -> 204",
        "2 cases: 1 passed, 1 failed",
    ] {
        assert!(run.out.contains(part), "{part} not in {}", run.out);
    }
    let only = ["test", "o.json", "c.yaml", "--case", "all is well"];
    assert_eq!(provost(folder.path(), &only).await.code, 0);
    let run = provost(
        folder.path(),
        &["test", "o.json", "c.yaml", "--case", "all is wel"],
    )
    .await;
    assert_eq!(run.code, 2);
    assert!(
        run.err.contains("did you mean \"all is well\"?"),
        "{}",
        run.err
    );
}

#[tokio::test]
async fn tap_and_junit_are_for_programs() {
    let folder = changed("undone: [reserve]", "undone: []");
    let run = provost(
        folder.path(),
        &["test", "o.json", "c.yaml", "--tap", "--junit", "r.xml"],
    )
    .await;
    assert_eq!(run.code, 1);
    assert!(run.out.starts_with("TAP version 14\n1..2\nok 1 - all is well\nnot ok 2 - the card \\# is refused\n  ---\n  failures:\n    - \"c.yaml:12:7: "), "{}", run.out);
    let xml = fs::read_to_string(folder.path().join("r.xml")).unwrap();
    for part in [
        "<testsuites name=\"provost test\" tests=\"2\" failures=\"1\">",
        "<testcase name=\"all is well\" classname=\"c.yaml\" file=\"c.yaml\" line=\"6\"",
        "<failure message=\"expect.undone: expected [], but it is [reserve]\">",
    ] {
        assert!(xml.contains(part), "{part} not in {xml}");
    }
}

#[tokio::test]
async fn a_careless_author_gets_file_line_and_column() {
    for (from, to, fault) in [
        (
            "  - name: all",
            "\t- name: all",
            "c.yaml:6:1: is indented with a tab",
        ),
        (
            "  charge: {",
            "  chrage: {",
            "c.yaml:3:3: /services/chrage: the workflow has no step `chrage`; did you mean `charge`?",
        ),
        (
            "undo reserve:",
            "undo charge:",
            "c.yaml:4:3: /services/undo charge: step `charge` has no `undo`",
        ),
        (
            "status: 402",
            "code: 402",
            "c.yaml:9:27: /cases/1/services/charge/code: unknown field `code`",
        ),
        (
            "state: undone",
            "state: done",
            "c.yaml:11:7: /cases/1/expect/state: must be",
        ),
        (
            "{ id: r1 }",
            "{{ input.id }}",
            "c.yaml:2:21: stands where a name must be",
        ),
        ("undone: [reserve]", "undone: [*all]", "c.yaml:12:"),
        (
            "the card # is refused",
            "all is well",
            "c.yaml:8:5: /cases/1/name: is the name of a case above",
        ),
        (
            "expect: { state: processed }",
            "expects: { state: processed }",
            "c.yaml:7:5: /cases/0/expects: unknown field `expects`; did you mean `expect`?",
        ),
    ] {
        let folder = changed(from, to);
        let run = provost(folder.path(), &["test", "o.json", "c.yaml"]).await;
        assert_eq!((run.code, &*run.out), (2, ""), "{to}");
        assert!(run.err.contains(fault), "{fault} not in {}", run.err);
    }
    let unused = changed("cases:", "  probe reserve: {}\ncases:");
    let run = provost(unused.path(), &["test", "o.json", "c.yaml"]).await;
    assert!(
        run.err.contains("step `reserve` has no `probe`"),
        "{}",
        run.err
    );
    let unused = changed(
        "  - name: all",
        "  - name: new\n    services: { undo reserve: [{}, {}] }\n  - name: all",
    );
    let run = provost(unused.path(), &["test", "o.json", "c.yaml"]).await;
    assert_eq!(run.code, 0);
    for warning in [
        "c.yaml:7:17: warning: services.undo reserve: is never used: `undo reserve` was not called",
        "c.yaml:6:5: warning: expects nothing",
    ] {
        assert!(run.out.contains(warning), "{warning} not in {}", run.out);
    }
}

#[tokio::test]
async fn hostile_files_end_soon_with_a_clear_error() {
    let folder = changed("x", "x");
    let path = |name: &str| folder.path().join(name);
    fs::File::create(path("huge.yaml"))
        .unwrap()
        .set_len(100 << 20)
        .unwrap();
    fs::write(path("deep.json"), "[".repeat(1 << 20)).unwrap();
    fs::write(path("deep.yaml"), "- ".repeat(1 << 20)).unwrap();
    fs::write(path("flow.yaml"), "[".repeat(1 << 20)).unwrap();
    fs::write(path("bytes.yaml"), [0xff, 0xfe, 0x00]).unwrap();
    fs::write(
        path("many.yaml"),
        format!("cases:\n{}", "- {}\n".repeat(100_000)),
    )
    .unwrap();
    fs::write(
        path("names.json"),
        format!(
            "{{{}}}",
            (0..100_000)
                .map(|n| format!("\"n{n}\":1"))
                .collect::<Vec<_>>()
                .join(",")
        ),
    )
    .unwrap();
    fs::write(
        path("laughs.yaml"),
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n",
    )
    .unwrap();
    let began = Instant::now();
    for (file, fault) in [
        ("huge.yaml", "huge.yaml is longer than 4 MiB"),
        (
            "deep.json",
            "deep.json:1:101: is nested deeper than 100 levels",
        ),
        (
            "deep.yaml",
            "deep.yaml:1:201: is nested deeper than 100 levels",
        ),
        (
            "flow.yaml",
            "flow.yaml:1:256: is nested deeper than 100 levels",
        ),
        ("bytes.yaml", "bytes.yaml is not UTF-8 text"),
        ("many.yaml", "100000 cases are too many: at most 1000"),
        ("names.json", "has 100000 fields"),
        ("laughs.yaml", "laughs.yaml:1:4: uses an anchor or an alias"),
        ("none.yaml", "cannot read none.yaml: No such file"),
        (".", "cannot read .: Is a directory"),
        ("/dev/zero", "/dev/zero is longer than 4 MiB"),
    ] {
        for arguments in [["test", "o.json", file], ["test", file, "c.yaml"]] {
            // The workflow may have other faults than the cases.
            let is_of_cases = arguments[1] == file && matches!(file, "many.yaml" | "names.json");
            let run = provost(folder.path(), &arguments).await;
            assert_eq!(run.code, 2, "{arguments:?}");
            assert!(
                is_of_cases || run.err.contains(fault),
                "{fault} not in {}",
                run.err
            );
            assert!(run.err.len() < 20_000);
        }
    }
    // A debug build takes about a second for all of it.
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn a_workflow_that_never_ends_is_ended() {
    let workflow = r#"{ "steps": [{ "name": "a", "agent": "x", "complete_within": "30d",
        "reply": { "poll": { "until": "response.body.done", "every": "1s" } } }] }"#;
    let cases = "cases:\n- name: polls\n  services: { a: { status: 202, headers: { Location: /x } }, poll a: { body: { done: false } } }\n  expect: { state: processed }\n";
    let folder = folder(&[("o.json", workflow), ("c.yaml", cases)]);
    let run = provost(folder.path(), &["test", "o.json", "c.yaml"]).await;
    assert_eq!(run.code, 1);
    assert!(
        run.out.contains("after 100000 commands, 13h53m"),
        "{}",
        run.out
    );
    assert!(run.out.len() < 30_000, "the timeline is shortened");
}

#[tokio::test]
async fn a_snapshot_is_written_and_compared() {
    let folder = changed("x", "x");
    let snapshot = folder.path().join("c.snapshot.json");
    let update = ["test", "o.json", "c.yaml", "--update"];
    assert_eq!(provost(folder.path(), &update).await.code, 0);
    let first = fs::read_to_string(&snapshot).unwrap();
    let content: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(
        content["the card # is refused"]["undone"],
        json!(["reserve"])
    );
    assert_eq!(
        provost(folder.path(), &["test", "o.json", "c.yaml"])
            .await
            .code,
        0
    );
    // The request is different: no expectation checks it, but the snapshot differs.
    let other = ORDER.replace("/free/", "/release/");
    fs::write(folder.path().join("o.json"), other).unwrap();
    let run = provost(folder.path(), &["test", "o.json", "c.yaml"]).await;
    assert_eq!(run.code, 1);
    let difference = "c.yaml:8:5: differs from its snapshot: requests[2].path is \"/release/r1\": expected \"/free/r1\"";
    assert!(run.out.contains(difference), "{}", run.out);
    assert_eq!(provost(folder.path(), &update).await.code, 0);
    assert_eq!(
        provost(folder.path(), &["test", "o.json", "c.yaml"])
            .await
            .code,
        0
    );
    let second = fs::read_to_string(&snapshot).unwrap();
    assert_eq!(
        first.replace("/free/", "/release/"),
        second,
        "nothing else differs"
    );
    // A case of the snapshot is missing.
    let renamed = CASES.replace("all is well", "all is fine");
    fs::write(folder.path().join("c.yaml"), renamed).unwrap();
    let run = provost(folder.path(), &["test", "o.json", "c.yaml"]).await;
    assert!(
        run.out
            .contains("has a snapshot of \"all is well\", which is no case here"),
        "{}",
        run.out
    );
    provost(folder.path(), &update).await;
    assert!(
        !fs::read_to_string(&snapshot)
            .unwrap()
            .contains("all is well")
    );
    fs::write(&snapshot, "{").unwrap();
    let run = provost(folder.path(), &["test", "o.json", "c.yaml"]).await;
    assert_eq!(run.code, 2);
    assert!(
        run.err.contains("is not a file of snapshots"),
        "{}",
        run.err
    );
}

#[tokio::test]
async fn an_exploration_tries_every_fault() {
    let folder = changed("x", "x");
    let run = provost(folder.path(), &["test", "o.json", "c.yaml", "--explore"]).await;
    assert_eq!(run.code, 0, "{}", run.err);
    let words: Vec<_> = run.out.split_whitespace().collect();
    let words = words.join(" ");
    for part in [
        "charge: refused undone 0s nothing",
        "undo reserve: refused (charge refused) error, needs an operator 0s reserve",
        "9 faults: 0 end processed, 1 undone, 8 need an operator; 0 leave effects",
    ] {
        assert!(words.contains(part), "{part} not in {}", run.out);
    }
    let run = provost(
        folder.path(),
        &["test", "o.json", "c.yaml", "--explore", "--json"],
    )
    .await;
    let report: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(report["without_fault"]["state"], "processed");
    let silent = &report["faults"][5];
    assert_eq!(
        (&silent["step"], &silent["fault"]),
        (&json!("charge"), &json!("never responds"))
    );
    assert_eq!(
        silent["stands"][1],
        json!({ "step": "charge", "effect": "may have taken effect" })
    );
}

#[tokio::test]
async fn validate_names_each_fault_with_its_place() {
    let folder = folder(&[
        ("good.json", ORDER),
        ("good.yaml", "steps:\n  - { name: a, agent: x }\n"),
        (
            "bad.json",
            "{\n  \"steps\": [\n    { \"name\": \"a\", \"agnet\": \"x\" },\n    { \"name\": \"b\", \"agent\": \"x\",\n      \"after\": [\"c\"] }\n  ]\n}\n",
        ),
        ("broken.json", "{\n  \"steps\": [,]\n}\n"),
    ]);
    let run = provost(folder.path(), &["validate", "good.json", "good.yaml"]).await;
    assert_eq!(run.code, 0);
    assert!(
        run.out.contains("good.json:2:3: /steps: warning: "),
        "{}",
        run.out
    );
    assert!(run.out.ends_with("good.yaml: valid\n"), "{}", run.out);
    let run = provost(
        folder.path(),
        &["validate", "good.json", "bad.json", "broken.json"],
    )
    .await;
    assert_eq!(run.code, 1);
    for line in [
        "bad.json:3:5: /steps/0/agent: is missing",
        "bad.json:3:20: /steps/0/agnet: unknown field `agnet`; did you mean `agent`?",
        "bad.json:5:17: /steps/1/after/0: there is no step `c`",
        "broken.json:2:13: is not JSON: expected value",
    ] {
        assert!(
            run.out.lines().any(|found| found.starts_with(line)),
            "{line} not in {}",
            run.out
        );
    }
    let run = provost(folder.path(), &["validate", "bad.json", "none.json"]).await;
    assert_eq!(run.code, 2);
    assert!(run.err.contains("cannot read none.json"), "{}", run.err);
}

#[tokio::test]
async fn a_strict_validation_fails_for_warnings_and_not_for_notes() {
    let folder = folder(&[
        ("note.yaml", "steps:\n  - { name: a, agent: x }\n"),
        (
            "warned.yaml",
            "steps:\n  - { name: a, agent: x, when: \"'false'\" }\n",
        ),
    ]);
    let strict = ["validate", "--strict", "note.yaml"];
    let run = provost(folder.path(), &strict).await;
    assert_eq!(run.code, 0, "{}", run.out);
    let note = "note.yaml:1:1: /steps: note: ";
    assert!(run.out.starts_with(note), "{}", run.out);
    assert!(run.out.ends_with("note.yaml: valid\n"), "{}", run.out);
    let run = provost(folder.path(), &["validate", "warned.yaml"]).await;
    assert_eq!(run.code, 0, "{}", run.out);
    let run = provost(folder.path(), &["validate", "--strict", "warned.yaml"]).await;
    assert_eq!(run.code, 1, "{}", run.out);
    assert!(run.out.contains("(text_condition)"), "{}", run.out);
    let end = "warned.yaml: valid, but it has warnings\n";
    assert!(run.out.ends_with(end), "{}", run.out);
}

/// A task, the responses of its services, and the same responses as a case has them.
struct Twin {
    steps: Value,
    acts: Vec<(&'static str, Vec<Act>)>,
    services: &'static str,
}

fn twins() -> Vec<Twin> {
    let close = || Act::Close;
    let ok = || Act::Ok(json!({ "id": "x" }));
    let undo = json!({ "request": { "method": "DELETE", "path": "/undo/{{ output.id }}" } });
    vec![
        Twin {
            steps: json!([{ "name": "a", "request": { "path": "/a" } }, { "name": "b", "request": { "path": "/b" } }]),
            acts: vec![
                (
                    "/a",
                    vec![
                        Act::status(503),
                        Act::answer(429, &[("retry-after", "1")], "slow"),
                        ok(),
                    ],
                ),
                ("/b", vec![Act::status(204)]),
            ],
            services: "{ a: [{ status: 503 }, { status: 429, headers: { Retry-After: '1' } }, { body: { id: x } }], b: { status: 204 } }",
        },
        Twin {
            steps: json!([
                { "name": "a", "request": { "path": "/a" }, "undo": undo },
                { "name": "b", "request": { "path": "/b" }, "on_permanent": "undo",
                  "undo": { "request": { "path": "/never" } } },
            ]),
            acts: vec![
                ("/a", vec![ok()]),
                (
                    "/b",
                    vec![Act::answer(302, &[("location", "/elsewhere")], "")],
                ),
                ("/undo/x", vec![Act::status(404)]),
                ("/never", vec![Act::status(410)]),
            ],
            services: "{ a: { body: { id: x } }, b: { status: 302, headers: { Location: /elsewhere } }, undo a: { status: 404 }, undo b: { status: 410 } }",
        },
        Twin {
            steps: json!([
                { "name": "a", "request": { "path": "/a" }, "max_failures": 1,
                  "probe": { "request": { "path": "/probe" } } },
                { "name": "b", "request": { "path": "/b" }, "complete_within": "200ms", "max_failures": 0, "on_exhausted": "skip" },
                { "name": "c", "request": { "path": "/c" }, "max_failures": 0 },
            ]),
            acts: vec![
                ("/a", vec![close(), ok()]),
                ("/probe", vec![Act::status(404)]),
                ("/b", vec![Act::Hang]),
                ("/c", vec![Act::status(500), Act::status(400)]),
            ],
            services: "{ a: [{ dropped: true }, { body: { id: x } }], probe a: { status: 404 }, b: { never: true }, c: [{ status: 500 }, { status: 400 }] }",
        },
        Twin {
            steps: json!([
                { "name": "a", "request": { "path": "/a" }, "complete_within": "20s",
                  "reply": { "poll": { "until": "response.body.done", "every": "1s" } } },
                { "name": "w", "wait": { "for": "300ms" } },
                { "name": "s", "signal": { "within": "1s", "on_timeout": "skip" } },
                { "name": "b", "request": { "path": "/b" }, "when": "steps.a.output.done == false" },
            ]),
            acts: vec![
                ("/a", vec![Act::answer(202, &[("location", "/op")], "")]),
                (
                    "/op",
                    vec![
                        Act::Ok(json!({ "done": false })),
                        Act::status(503),
                        Act::Ok(json!({ "done": true })),
                    ],
                ),
            ],
            services: "{ a: { status: 202, headers: { Location: /op } }, poll a: [{ body: { done: false } }, { status: 503 }, { body: { done: true } }] }",
        },
    ]
}

/// The rehearsal and a running service use the same rules, so their histories are equal.
#[tokio::test]
async fn a_rehearsal_has_the_history_of_a_running_service() {
    let provost_service = Provost::start().await;
    for (number, twin) in twins().into_iter().enumerate() {
        let Twin {
            mut steps,
            acts,
            services,
        } = twin;
        let counts: Mutex<HashMap<String, usize>> = Mutex::default();
        let remote = Remote::with(move |seen| {
            let mut counts = counts.lock().unwrap();
            let count = counts.entry(seen.path.clone()).or_default();
            *count += 1;
            let (_, acts) = acts
                .iter()
                .find(|(path, _)| *path == seen.path)
                .unwrap_or_else(|| panic!("{}", seen.path));
            acts[(*count - 1).min(acts.len() - 1)].clone()
        })
        .await;
        for step in steps.as_array_mut().unwrap() {
            if step.get("request").is_some() {
                step["url"] = remote.url().into();
            }
        }
        let submission = json!({ "key": "k", "steps": steps });
        let task = provost_service.run(&submission).await;
        let history = provost_service.history(task["id"].as_str().unwrap()).await;
        let of_service: Vec<_> = history
            .iter()
            .map(|event| {
                let step = event["step"]
                    .as_str()
                    .map(|step| format!(" {step}"))
                    .unwrap_or_default();
                format!(
                    "{}{step}: {}",
                    event["type"].as_str().unwrap(),
                    event["to"].as_str().unwrap()
                )
            })
            .collect();
        let cases = format!("cases: [{{ name: twin, services: {services} }}]");
        let folder = folder(&[("o.json", &submission.to_string()), ("c.yaml", &cases)]);
        let run = provost(folder.path(), &["test", "o.json", "c.yaml", "--update"]).await;
        assert_eq!(run.code, 0, "twin {number}: {}{}", run.out, run.err);
        let snapshot = fs::read_to_string(folder.path().join("c.snapshot.json")).unwrap();
        let snapshot: Value = serde_json::from_str(&snapshot).unwrap();
        let snapshot = &snapshot["twin"];
        assert_eq!(snapshot["state"], task["state"], "twin {number}");
        let events = snapshot["history"].as_array().unwrap().iter();
        let of_rehearsal: Vec<_> = events
            .map(|line| line.as_str().unwrap().split_once(' ').unwrap().1.to_owned())
            .collect();
        assert_eq!(of_rehearsal, of_service, "twin {number}");
    }
}
