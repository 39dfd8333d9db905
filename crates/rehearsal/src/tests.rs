//! Tests of rehearsals by example.

use provost_domain::task::TaskStatus;
use serde_json::value::RawValue;

use super::*;

const SAGA: &str = r#"{
  "on_permanent": "undo", "on_exhausted": "undo",
  "input": { "sku": "lamp", "price": 10 },
  "steps": [
    { "name": "reserve", "agent": "inventory", "complete_within": "10s",
      "request": { "path": "/reservations", "body": { "sku": "{{ input.sku }}" } },
      "undo": { "request": { "method": "DELETE", "path": "/reservations/{{ output.id }}" } } },
    { "name": "charge", "agent": "payments", "complete_within": "10s", "max_failures": 1,
      "request": { "path": "/charges", "body": { "amount": "{{ input.price * 2 }}" } },
      "probe": { "request": { "path": "/charges/of/{{ task.key }}" } },
      "undo": { "request": { "method": "DELETE", "path": "/charges/{{ output.id }}" } } },
    { "name": "ship", "agent": "shipping", "complete_within": "10s", "max_failures": 1,
      "request": { "path": "/shipments" } }
  ]
}"#;

const SERVICES: &str = "
services:
  reserve: { body: { id: r1 } }
  charge: { body: { id: c1 } }
  ship: { delay: 1s }
  undo reserve: { status: 204 }
  undo charge: { status: 204 }
";

pub(crate) fn workflow(json: &str) -> WorkflowFile {
    let source = SourceText::parse(json.to_owned(), SourceFormat::Json).unwrap();
    WorkflowFile::read(source.json().raw()).unwrap_or_else(|faults| panic!("{faults:#?}"))
}

pub(crate) fn read(workflow: &WorkflowFile, yaml: &str) -> Result<CasesFile, Vec<String>> {
    let source = SourceText::parse(yaml.to_owned(), SourceFormat::Yaml)
        .map_err(|fault| vec![fault.to_string()])?;
    CasesFile::read(source.json().raw(), workflow).map_err(|faults| {
        let located = faults.iter().map(|fault| source.locate(fault));
        let shown = located
            .map(|fault| format!("{}:{}: {fault}", fault.location.line, fault.location.column));
        shown.collect()
    })
}

pub(crate) fn file(workflow: &WorkflowFile, yaml: &str) -> CasesFile {
    read(workflow, yaml).unwrap_or_else(|faults| panic!("{faults:#?}"))
}

pub(crate) fn run(json: &str, yaml: &str) -> Vec<CaseResult> {
    let workflow = workflow(json);
    let file = file(&workflow, yaml);
    let mut used = UsedMocks::new();
    let cases = file.cases.iter();
    cases
        .map(|case| run_case(case, &file, &workflow, None, &mut used))
        .collect()
}

pub(crate) fn one(json: &str, yaml: &str) -> CaseResult {
    run(json, yaml).remove(0)
}

/// Runs one case and expects that it passes.
pub(crate) fn passes(json: &str, yaml: &str) -> CaseResult {
    let result = one(json, yaml);
    assert!(
        result.has_passed(),
        "{:#?}\n{:#?}",
        result.failures,
        result.timeline
    );
    result
}

fn failures(json: &str, yaml: &str) -> Vec<String> {
    one(json, yaml)
        .failures
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn saga(case: &str) -> String {
    format!("{SERVICES}cases:\n  - name: x\n{case}")
}

#[test]
fn a_saga_that_succeeds_takes_the_path_of_its_steps() {
    passes(
        SAGA,
        &saga(
            "    key: order-1
    expect:
      state: processed
      path: [reserve, charge, ship]
      undone: []
      stands: [reserve, charge, ship]
      ended_after: 1s
      steps:
        charge: { state: processed, attempts: 1, output: { id: c1 } }
        undo charge: { state: waiting, attempts: 0 }
      requests:
        - { step: reserve, method: POST, path: /reservations, body: { sku: lamp } }
        - { step: charge, body: { amount: 20 } }
      history:
        - { type: task.accepted }
        - { type: step.processed, step: charge }
        - { type: task.processed }
",
        ),
    );
}

#[test]
fn a_refusal_undoes_what_was_done_in_reverse_order() {
    passes(
        SAGA,
        &saga(
            "    services: { ship: { status: 422, body: { error: none } } }
    expect:
      state: undone
      error: 422
      path: [reserve, charge, ship, undo charge, undo reserve]
      undone: [charge, reserve]
      stands: []
      steps: { ship: { state: error, attempts: 1, error: 422 }, charge: { state: undone } }
      requests:
        - { step: undo charge, method: DELETE, path: /charges/c1 }
        - { step: undo reserve, path: /reservations/r1 }
"
            .replace("error: 422\n", "error: \"422\"\n")
            .replace("error: 422 }", "error: \"422\" }")
            .as_str(),
        ),
    );
}

#[test]
fn retries_take_virtual_time_as_the_service_asks() {
    // The second attempt is 100ms after the first, and the third two seconds and 200ms after the second.
    passes(
        SAGA,
        &saga(
            "    services:
      reserve:
        - { status: 503 }
        - { status: 429, headers: { Retry-After: \"2\" } }
        - { status: 200, body: { id: r1 }, delay: 500ms }
    expect:
      state: processed
      steps: { reserve: { attempts: 3 } }
      requests:
        - { step: reserve, attempt: 3 }
      ended_after: 3s800ms
",
        ),
    );
}

#[test]
fn a_probe_decides_what_a_silent_service_did() {
    let case = |probe: &str, rest: &str| {
        saga(&format!(
            "    key: k
    services: {{ charge: [{{ never: true }}, {{ body: {{ id: c2 }} }}], probe charge: {probe} }}
    expect:
      state: processed
{rest}"
        ))
    };
    // 12s are the complete-by of 10s, a second of backoff, the probe, and the second of the shipment.
    passes(
        SAGA,
        &case(
            "{ body: { id: c9 } }",
            "      steps: { charge: { attempts: 1, output: { id: c9 } } }
      ended_after: 12s
      requests: [{ step: probe charge, method: GET, path: /charges/of/k }]
",
        ),
    );
    passes(
        SAGA,
        &case(
            "{ status: 404 }",
            "      steps: { charge: { attempts: 2, output: { id: c2 } } }\n      ended_after: 12s\n",
        ),
    );
}

#[test]
fn retries_that_are_used_up_undo_the_task_and_leave_what_cannot_be_undone() {
    passes(
        SAGA,
        &saga(
            "    services: { ship: { dropped: true } }
    expect:
      state: undone
      stands: [ship]
      steps: { ship: { state: error } }
",
        ),
    );
    passes(
        SAGA,
        &saga(
            "    services: { ship: { unreachable: true } }
    expect: { state: undone, stands: [] }
",
        ),
    );
}

#[test]
fn a_response_at_complete_by_is_late() {
    let case = |delay: &str, attempts: u32| {
        saga(&format!(
            "    services: {{ reserve: [{{ delay: {delay}, body: {{ id: r1 }} }}, {{ body: {{ id: r1 }} }}] }}
    expect: {{ state: processed, steps: {{ reserve: {{ attempts: {attempts} }} }} }}
"
        ))
    };
    passes(SAGA, &case("9s999ms", 1));
    passes(SAGA, &case("10s", 2));
}

#[test]
fn a_call_without_a_response_fails_the_case_and_names_it() {
    let yaml = "cases:\n  - name: x\n    services: { reserve: { body: { id: r1 } } }\n    expect: { state: processed }\n";
    let found = failures(SAGA, yaml);
    assert!(
        found[0].contains(
            "`charge` was called after 0s, and has no response: add `charge` to `services`"
        ),
        "{found:?}"
    );
}

#[test]
fn what_differs_is_named_with_both_sides() {
    let found = failures(
        SAGA,
        &saga(
            "    expect:
      state: undone
      error: x
      path: [charge]
      undone: [reserve]
      stands: []
      ended_after: 5s
      ended_within: 1ms
      steps: { charge: { state: error, attempts: 3, output: { id: c2 }, error: y } }
      requests:
        - { step: charge, body: { amount: 21 } }
        - { step: reserve }
        - { step: ship, attempt: 2 }
      history:
        - { type: step.expired }
",
        ),
    );
    let expected = [
        "/cases/0/expect/state: expected undone, but the task is processed",
        "/cases/0/expect/error: expected an error with \"x\", but there is none",
        "/cases/0/expect/path: expected [charge], but it is [reserve, charge, ship]",
        "/cases/0/expect/undone: expected [reserve], but it is []",
        "/cases/0/expect/stands: expected [], but it is [reserve, charge, ship]",
        "/cases/0/expect/ended_after: expected an end after 5s, but it came after 1s",
        "/cases/0/expect/ended_within: expected an end within 1ms, but it came after 1s",
        "/cases/0/expect/steps/charge/state: expected error, but it is processed",
        "/cases/0/expect/steps/charge/attempts: expected 3, but there were 1",
        "/cases/0/expect/steps/charge/output: the output differs: id is \"c1\": expected \"c2\"",
        "/cases/0/expect/steps/charge/error: expected an error with \"y\", but there is none",
        "/cases/0/expect/requests/0: the request of `charge` differs: in its body, amount is 20: expected 21",
        "/cases/0/expect/requests/2: no request number 2 of `ship` was sent",
        "/cases/0/expect/history/0: the history has no step.expired",
    ];
    assert_eq!(found, expected);
}

#[test]
fn requests_are_expected_in_their_order() {
    let found = failures(
        SAGA,
        &saga("    expect: { requests: [{ step: ship }, { step: charge }, { step: ship }] }\n"),
    );
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].contains("the request of `charge` was sent, but not in this order"),
        "{found:?}"
    );
}

const APPROVED: &str = r#"{ "steps": [
    { "name": "reserve", "agent": "inventory", "undo": { "request": { "path": "/free" } } },
    { "name": "approval", "signal": { "within": "3d", "on_timeout": "undo" } },
    { "name": "rest", "wait": { "for": "2h" } },
    { "name": "until", "wait": { "until": "2026-01-01T10:00:00Z" } },
    { "name": "ship", "agent": "shipping", "when": "steps.approval.output.approved" } ] }"#;

fn approved(case: &str) -> String {
    format!(
        "services: {{ reserve: {{}}, ship: {{}}, undo reserve: {{}} }}\ncases:\n  - name: x\n{case}"
    )
}

#[test]
fn signals_and_waits_pass_in_no_time() {
    passes(
        APPROVED,
        &approved(
            "    signals: [{ step: approval, at: 1h, body: { approved: true } }]
    expect: { state: processed, path: [reserve, approval, rest, until, ship], ended_after: 10h }
",
        ),
    );
    passes(
        APPROVED,
        &approved(
            "    starts_at: 2026-01-01T09:59:59Z
    signals: [{ step: approval, body: { approved: false } }]
    expect: { state: processed, path: [reserve, approval, rest, until], steps: { ship: { state: skipped } }, ended_after: 2h }
",
        ),
    );
    passes(
        APPROVED,
        &approved(
            "    expect: { state: undone, undone: [reserve], ended_after: 3d, error: no signal came }\n",
        ),
    );
}

#[test]
fn a_signal_that_is_refused_or_never_sent_is_reported() {
    let late = one(
        APPROVED,
        &approved("    signals: [{ step: approval, at: 4d }]\n    expect: { state: undone }\n"),
    );
    assert!(late.has_passed());
    assert!(
        late.warnings[0]
            .to_string()
            .contains("was not sent: nothing more happened after 3d"),
        "{late:?}"
    );
    let twice = "    signals: [{ step: approval, at: 1h, body: { approved: true } }, { step: approval, at: 2h, body: { approved: false } REFUSED }]\n    expect: { state: processed }\n";
    let found = failures(APPROVED, &approved(&twice.replace(" REFUSED", "")));
    assert!(
        found[0].starts_with("/cases/0/signals/1: was refused after 2h: "),
        "{found:?}"
    );
    passes(
        APPROVED,
        &approved(&twice.replace(" REFUSED", ", refused: true")),
    );
    let wrong = "    signals: [{ step: approval, at: 1h, refused: true }]\n    expect: {}\n";
    assert!(failures(APPROVED, &approved(wrong))[0].contains("was to be refused"));
}

#[test]
fn a_signal_that_is_still_to_come_does_not_keep_a_failed_task_waiting() {
    let result = passes(
        APPROVED,
        &approved(
            "    services: { reserve: { status: 400 } }
    signals: [{ step: approval, at: 1h }]
    expect: { state: error, ended_after: 0s }
",
        ),
    );
    assert!(
        result
            .warnings
            .iter()
            .any(|note| note.message.contains("was not sent"))
    );
}

#[test]
fn an_operator_undoes_retries_and_resolves() {
    passes(
        APPROVED,
        &approved(
            "    commands: [{ command: undo, at: 1h }]
    expect: { state: undone, undone: [reserve], ended_after: 1h }
",
        ),
    );
    passes(
        SAGA,
        &saga(
            "    services: { ship: {}, undo charge: [{ status: 403 }, { status: 204 }] , charge: { status: 200, body: { id: c1 } }, undo reserve: {} }
    commands: [{ command: undo, at: 0s }, { command: retry, at: 2h }]
    expect: { state: processed }
"
            .replace("{ command: undo, at: 0s }, ", "")
            .as_str(),
        ),
    );
    passes(
        SAGA,
        &saga(
            "    services: { ship: { status: 400 }, undo charge: [{ status: 403 }, { status: 204 }] }
    commands: [{ command: retry, at: 2h }]
    expect: { state: undone, undone: [charge, reserve], ended_after: 2h, steps: { undo charge: { attempts: 2 } } }
",
        ),
    );
}

#[test]
fn the_complete_by_of_a_task_passes() {
    let json = SAGA.replace(
        "\"on_permanent\": \"undo\",",
        "\"on_permanent\": \"undo\", \"complete_within\": \"5s\", \"on_deadline\": \"undo\",",
    );
    passes(
        &json,
        &saga(
            "    services: { ship: { never: true } }\n    expect: { state: undone, undone: [charge, reserve] }\n",
        ),
    );
}

const LATER: &str = r#"{ "steps": [
    { "name": "call", "agent": "x", "reply": "callback", "complete_within": "2h", "heartbeat_within": "1m", "max_failures": 0 } ] }"#;

#[test]
fn later_replies_and_heartbeats_come_in_their_time() {
    let case = |later: &str, rest: &str| {
        format!(
            "cases:\n  - name: x\n    services: {{ call: {{ status: 202, {later} }} }}\n    expect: {{ {rest} }}\n"
        )
    };
    passes(
        LATER,
        &case(
            "later: { after: 30s, output: 7 }",
            "state: processed, ended_after: 30s, steps: { call: { output: 7 } }",
        ),
    );
    passes(
        LATER,
        &case(
            "later: { after: 1h, output: 7 }",
            "state: error, error: heartbeat",
        ),
    );
    passes(
        LATER,
        &case(
            "delay: 1s, later: { after: 1h, heartbeat_every: 30s, output: 7 }",
            "state: processed, ended_after: 1h1s",
        ),
    );
    passes(
        LATER,
        &case(
            "later: { after: 1s, error: { message: no money, permanent: true } }",
            "state: error, error: no money",
        ),
    );
    passes(LATER, &case("delay: 0s", "state: error, error: heartbeat"));
    let found = failures(
        SAGA,
        &saga("    services: { reserve: { later: { after: 1s } } }\n    expect: {}\n"),
    );
    assert!(found[0].contains("it promises no later reply"), "{found:?}");
}

const POLLED: &str = r#"{ "steps": [
    { "name": "render", "agent": "x", "request": { "path": "/jobs" }, "complete_within": "1h",
      "reply": { "poll": { "until": "response.body.done", "every": "10s", "output": "response.body.url" } } } ] }"#;

#[test]
fn services_are_polled_where_they_say() {
    passes(
        POLLED,
        "cases:
  - name: x
    services:
      render: { status: 202, headers: { Location: /jobs/7 } }
      poll render: [{ body: { done: false } }, { status: 503 }, { body: { done: true, url: u } }]
    expect:
      state: processed
      ended_after: 30s
      steps: { render: { attempts: 1, output: u } }
      requests: [{ step: poll render, attempt: 3, method: GET }]
",
    );
    // One poll takes at most half a minute.
    passes(
        POLLED,
        "cases:
  - name: x
    services:
      render: { status: 202, headers: { Location: /jobs/7 } }
      poll render: [{ never: true }, { body: { done: true, url: u } }]
    expect: { state: processed, ended_after: 50s }
",
    );
}

#[test]
fn a_workflow_that_retries_for_ever_is_ended() {
    let json = r#"{ "steps": [{ "name": "a", "agent": "x", "complete_within": "30d", "max_failures": 1000,
        "on_exhausted": { "extend": "1s", "times": 1000 } }] }"#;
    let found = failures(
        json,
        "cases: [{ name: x, services: { a: { status: 503 } }, expect: {} }]",
    );
    assert!(found[0].contains("after 100000 commands, 5"), "{found:?}");
    let slow = r#"{ "steps": [{ "name": "a", "agent": "x", "complete_within": "30d", "max_failures": 1000,
        "on_exhausted": { "extend": "30d", "times": 1000 } }] }"#;
    let found = failures(
        slow,
        "cases: [{ name: x, services: { a: { never: true } }, expect: {} }]",
    );
    // The total is 1001 attempts of 30 days, and 1000 waits with an attempt each.
    assert!(found[0].contains("100 years of virtual time"), "{found:?}");
}

#[test]
fn mocks_that_no_call_uses_are_warned_of() {
    let workflow = workflow(SAGA);
    let file = file(
        &workflow,
        &saga(
            "    services: { charge: [{ body: { id: 1 } }, { body: { id: 2 } }], probe charge: {} }\n    expect: {}\n",
        ),
    );
    let mut used = UsedMocks::new();
    let result = run_case(&file.cases[0], &file, &workflow, None, &mut used);
    let warnings: Vec<_> = result.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "/cases/0/services/charge/1: is never used: `charge` was called only once",
            "/cases/0/services/probe charge: is never used: `probe charge` was not called",
        ]
    );
    let shared = unused_mocks(&workflow.definition, &file.services, &used);
    let shared: Vec<_> = shared.iter().map(ToString::to_string).collect();
    assert!(
        shared
            .iter()
            .any(|note| note.contains("`undo reserve` was not called")),
        "{shared:?}"
    );
    assert!(
        !shared.iter().any(|note| note.contains("`ship`")),
        "{shared:?}"
    );
}

#[test]
fn every_mistake_in_a_file_is_reported_with_line_and_column() {
    let workflow = workflow(SAGA);
    let found = read(
        &workflow,
        "service: {}
services:
  chrage: {}
  undo ship: {}
  charge.undo: {}
cases:
  - name: a
    inputs: {}
    services:
      reserve: [{ status: 99 }, { never: true, status: 200 }, { stats: 200 }]
      ship: []
      probe reserve: {}
    signals: [{ step: ship }, {}]
    commands: [{ command: undo }, { command: skip, at: 1h }, { command: undo, at: 1h, step: ship }]
    expect:
      state: done
      path: [reserve, chrage]
      steps: { shipp: {} }
      requests: [{ body: 1 }]
      history: [{ typ: x }]
  - name: a
  - {}
",
    )
    .unwrap_err();
    let expected = [
        "1:1: /service: unknown field `service`; did you mean `services`?",
        "3:3: /services/chrage: the workflow has no step `chrage`; did you mean `charge`?",
        "4:3: /services/undo ship: step `ship` has no `undo`",
        "5:3: /services/charge.undo: write `undo charge`",
        "8:5: /cases/0/inputs: unknown field `inputs`; did you mean `input`?",
        "10:19: /cases/0/services/reserve/0/status: must be a whole number from 200 to 599, not 99",
        "10:35: /cases/0/services/reserve/1/never: does not go with `status`",
        "10:65: /cases/0/services/reserve/2/stats: unknown field `stats`; did you mean `status`?",
        "11:7: /cases/0/services/ship: is empty",
        "12:7: /cases/0/services/probe reserve: step `reserve` has no `probe`",
        "13:17: /cases/0/signals/0/step: step `ship` awaits no signal",
        "13:31: /cases/0/signals/1/step: is missing",
        "14:16: /cases/0/commands/0/at: is missing",
        "14:35: /cases/0/commands/1/step: is missing",
        "14:87: /cases/0/commands/2/step: is for retry",
        "16:7: /cases/0/expect/state: must be \"pending\" or",
        "17:23: /cases/0/expect/path/1: the workflow has no step `chrage`",
        "18:16: /cases/0/expect/steps/shipp: the workflow has no step `shipp`; did you mean `ship`?",
        "19:18: /cases/0/expect/requests/0/step: is missing",
        "20:17: /cases/0/expect/history/0/type: is missing",
        "22:5: /cases/2/name: is missing",
    ];
    for start in expected {
        assert!(
            found.iter().any(|fault| fault.starts_with(start)),
            "{start}\nnot in {found:#?}"
        );
    }
    assert_eq!(read(&workflow, "cases: []").unwrap_err().len(), 1);
    assert_eq!(read(&workflow, "{}").unwrap_err().len(), 1);
    let same = read(&workflow, "cases: [{ name: a }, { name: a }]").unwrap_err();
    assert!(same[0].contains("a case above"), "{same:?}");
}

#[test]
fn a_snapshot_shows_what_changed() {
    let workflow = workflow(SAGA);
    let file = file(&workflow, &saga("    key: k\n"));
    let mut used = UsedMocks::new();
    let case = &file.cases[0];
    let first = run_case(case, &file, &workflow, None, &mut used);
    assert!(first.has_passed() && first.warnings[0].message.contains("expects nothing"));
    let again = run_case(case, &file, &workflow, Some(&first.snapshot), &mut used);
    assert!(again.has_passed() && again.warnings.is_empty(), "{again:?}");
    let mut known = first.snapshot.clone();
    known["steps"]["charge"]["attempts"] = 2.into();
    let changed = run_case(case, &file, &workflow, Some(&known), &mut used);
    assert!(
        changed.failures[0]
            .message
            .contains("steps.charge.attempts is 1: expected 2; if that is right, --update"),
        "{changed:?}"
    );
}

#[test]
fn an_exploration_shows_what_stands_after_each_fault() {
    let workflow = workflow(SAGA);
    let file = file(&workflow, &saga("    key: k\n"));
    let explored = explore(&workflow, &file, &file.cases[0]);
    assert_eq!(explored.baseline.state, TaskStatus::Processed);
    let shown: Vec<_> = explored
        .faults
        .iter()
        .map(|found| {
            let (step, fault) = found.fault.unwrap();
            let stands: Vec<_> = found.stands.iter().map(|effect| effect.step).collect();
            assert_eq!(found.incomplete, None);
            format!(
                "{}: {}{} -> {} {}",
                step_name(&workflow.definition, step),
                fault.in_words(),
                found
                    .undone_for
                    .as_ref()
                    .map(|why| format!(" ({why})"))
                    .unwrap_or_default(),
                found.state.as_str(),
                step_names(&workflow.definition, &stands)
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            "reserve: refused -> undone []",
            "reserve: always unavailable -> undone []",
            // The undo of this step needs an output that never came.
            "reserve: never responds -> error [reserve]",
            "charge: refused -> undone []",
            "charge: always unavailable -> undone []",
            "charge: never responds -> undone []",
            "charge: never responds, but took effect -> processed [reserve, charge, ship]",
            "ship: refused -> undone []",
            "ship: always unavailable -> undone []",
            "ship: never responds -> undone [ship]",
            "undo reserve: refused (ship refused) -> error [reserve]",
            "undo reserve: always unavailable (ship refused) -> error [reserve]",
            "undo reserve: never responds (ship refused) -> error [reserve]",
            "undo charge: refused (ship refused) -> error [reserve, charge]",
            "undo charge: always unavailable (ship refused) -> error [reserve, charge]",
            "undo charge: never responds (ship refused) -> error [reserve, charge]",
        ]
    );
    let silent: Vec<_> = explored
        .faults
        .iter()
        .filter(|found| found.leaves_effects_silently())
        .collect();
    assert_eq!(silent.len(), 1);
    assert!(explored.never_undone.is_empty() && explored.left_out == 0);
}

#[test]
fn parallel_steps_begin_together_and_a_join_waits() {
    let json = r#"{ "steps": [
        { "name": "a", "agent": "x", "after": [] }, { "name": "b", "agent": "x", "after": [] },
        { "name": "c", "agent": "x", "after": ["a", "b"] } ] }"#;
    passes(
        json,
        "services: { a: { delay: 2s }, b: { delay: 5s }, c: {} }
cases:
  - name: x
    expect: { state: processed, path: [a, b, c], ended_after: 5s }
",
    );
}

#[test]
fn a_running_call_is_dropped_or_waited_for_by_an_undo() {
    let json = |on_undo: &str| {
        format!(
            r#"{{ "steps": [
        {{ "name": "a", "agent": "x", "after": [], "on_undo": "{on_undo}", "undo": {{ "request": {{ "path": "/u" }} }} }},
        {{ "name": "b", "agent": "x", "after": [], "on_permanent": "undo" }} ] }}"#
        )
    };
    let cases = |after: &str| {
        format!(
            "services: {{ a: {{ delay: 20s }}, b: {{ status: 400 }}, undo a: {{}} }}
cases: [{{ name: x, expect: {{ state: undone, undone: [a], ended_after: {after} }} }}]"
        )
    };
    passes(&json("drop"), &cases("0s"));
    passes(&json("wait"), &cases("20s"));
}

#[test]
fn unused_json_is_accepted_too() {
    let workflow = workflow(SAGA);
    let raw = RawValue::from_string(
        r#"{ "cases": [{ "name": "x", "expect": { "state": "processed" } }] }"#.to_owned(),
    );
    assert!(CasesFile::read(&raw.unwrap(), &workflow).is_ok());
}

#[test]
fn the_output_of_a_task_is_checked_and_shown() {
    let json = SAGA.replacen(
        '{',
        r#"{ "output": { "charge": "{{ steps.charge.output.id }}" },"#,
        1,
    );
    let result = passes(
        &json,
        &saga("    expect: { state: processed, output: { charge: c1 } }\n"),
    );
    assert_eq!(result.snapshot["output"]["charge"], "c1");
    let found = failures(&json, &saga("    expect: { output: { charge: c2 } }\n"));
    assert_eq!(
        found,
        [
            "/cases/0/expect/output: the output of the task differs: charge is \"c1\": expected \"c2\""
        ]
    );
}

#[test]
fn an_input_and_a_signal_that_do_not_match_their_schemas_are_refused() {
    let json = r#"{ "input_schema": { "type": "object", "required": ["sku"] }, "steps": [
        { "name": "go", "signal": { "within": "1d", "schema": { "required": ["ok"], "type": "object" }, "match": "signal.ok == input.sku" } } ] }"#;
    let case = |input: &str, signals: &str, expect: &str| {
        format!("cases: [{{ name: x, input: {input}, signals: {signals}, expect: {expect} }}]")
    };
    let found = failures(json, &case("{}", "[]", "{}"));
    assert!(
        found[0].starts_with("/cases/0/input") && found[0].contains("the submission is refused: "),
        "{found:?}"
    );
    passes(json, &case("{}", "[]", "{ refused: true }"));
    let found = failures(json, &case("{ sku: a }", "[]", "{ refused: true }"));
    assert!(found[0].contains("but was accepted"), "{found:?}");
    let signals = "[{ step: go, at: 1h, body: 1, refused: true }, { step: go, at: 2h, body: { ok: b }, refused: true }, { step: go, at: 3h, body: { ok: a } }]";
    passes(
        json,
        &case(
            "{ sku: a }",
            signals,
            "{ state: processed, ended_after: 3h }",
        ),
    );
    let found = failures(
        json,
        &case("{ sku: a }", "[{ step: go, at: 1h, body: 1 }]", "{}"),
    );
    assert!(found[0].contains("was refused after 1h"), "{found:?}");
}

#[test]
fn a_processed_task_is_undone_as_long_as_its_workflow_allows() {
    let json = SAGA.replacen('{', r#"{ "undoable_for": "1d","#, 1);
    passes(
        &json,
        &saga(
            "    commands: [{ command: undo, at: 20h }]\n    expect: { state: undone, undone: [charge, reserve], stands: [ship], ended_after: 20h }\n",
        ),
    );
    passes(
        &json,
        &saga(
            "    commands: [{ command: undo, at: 25h, refused: true }]\n    expect: { state: processed }\n",
        ),
    );
}

#[test]
fn the_undo_of_the_last_step_is_explored_after_the_end() {
    let workflow = workflow(APPROVED);
    let file = file(
        &workflow,
        &approved("    signals: [{ step: approval, at: 1h, body: { approved: true } }]\n"),
    );
    let explored = explore(&workflow, &file, &file.cases[0]);
    let undo = explored
        .faults
        .iter()
        .find(|found| found.undone_for.is_some())
        .unwrap();
    assert_eq!(
        undo.undone_for.as_deref(),
        Some("undone by an operator after 10h1ms")
    );
    assert_eq!(undo.state, TaskStatus::Error);
    assert_eq!(undo.stands.len(), 2, "also the shipment");
}

const IMPORT: &str = r#"{
  "input": { "items": ["a", "b", "c"] },
  "steps": [
    { "name": "list", "agent": "shop", "request": { "method": "GET", "path": "/items" } },
    { "name": "import", "agent": "shop", "for_each": "{{ steps.list.output.items }}", "max_parallel": 1,
      "on_permanent": "undo", "request": { "path": "/import/{{ item }}/{{ index }}" },
      "undo": { "request": { "method": "DELETE", "path": "/import/{{ item }}/{{ output.id }}" } } },
    { "name": "approve", "for_each": "{{ steps.import.output }}",
      "signal": { "within": "1h", "match": "signal.id == item.id" } },
    { "name": "mail", "agent": "shop", "on_permanent": "undo",
      "request": { "path": "/mail", "body": "{{ steps.approve.output }}" } }
  ]
}"#;

const IMPORTED: &str = r#"
    services:
      list: { body: { items: [a, b] } }
      import: [{ body: { id: i0 } }, { body: { id: i1 } }]
      undo import: { status: 204 }
      mail: { status: 200 }
    signals:
      - { step: "approve[0]", body: { id: i0 } }
      - { step: "approve[1]", body: { id: i1 } }
"#;

#[test]
fn the_items_of_a_list_go_by_the_name_of_their_step() {
    let case = format!(
        r#"
cases:
  - name: all
    key: k
{IMPORTED}
    expect:
      state: processed
      path: [list, import, approve, mail]
      stands: [import, mail]
      steps:
        import: {{ state: processed, attempts: 2, output: [{{ id: i0 }}, {{ id: i1 }}] }}
      requests:
        - {{ step: import, path: /import/a/0 }}
        - {{ step: import, path: /import/b/1 }}
        - {{ step: mail, body: [{{ id: i0 }}, {{ id: i1 }}] }}
      history:
        - {{ type: step.processed, step: import }}
"#
    );
    let result = passes(IMPORT, &case);
    assert_eq!(
        result.snapshot["steps"]["import"]["items"],
        serde_json::json!({ "processed": 2 })
    );
    let undone = format!(
        r#"
cases:
  - name: mail is down
    key: k
{}
    expect:
      state: undone
      undone: [import]
      stands: []
      steps:
        undo import: {{ state: processed, attempts: 2 }}
"#,
        IMPORTED.replace("mail: { status: 200 }", "mail: { status: 422 }")
    );
    passes(IMPORT, &undone);
}

#[test]
fn an_exploration_has_a_fault_at_all_items_of_a_step_in_turn() {
    let workflow = workflow(IMPORT);
    let file = file(
        &workflow,
        &format!(
            "cases:\n  - name: all\n    key: k\n{IMPORTED}\n    expect: {{ state: processed }}\n"
        ),
    );
    let explored = explore(&workflow, &file, &file.cases[0]);
    assert_eq!(explored.baseline.state, TaskStatus::Processed);
    let of = |name: &str| {
        let faults = explored.faults.iter();
        let faults = faults.filter(|found| {
            let (step, _) = found.fault.unwrap();
            step_name(&workflow.names, step) == name
        });
        let shown: Vec<_> = faults
            .map(|found| {
                assert_eq!(found.incomplete, None);
                let stands: Vec<_> = found.stands.iter().map(|effect| effect.step).collect();
                let stands = step_names(&workflow.names, &stands);
                let (_, fault) = found.fault.unwrap();
                format!("{} -> {} {stands}", fault.in_words(), found.state.as_str())
            })
            .collect();
        shown
    };
    assert_eq!(of("import")[0], "refused -> undone []");
    assert_eq!(of("undo import")[0], "refused -> error [import]");
    assert_eq!(of("approve"), ["no signal comes -> error [import]"]);
}

const NESTED: &str = r#"{
  "on_permanent": "undo",
  "input": { "order": 7 },
  "steps": [
    { "name": "reserve", "agent": "inventory", "undo": { "request": { "method": "DELETE" } } },
    { "name": "ship", "task": { "workflow": "shipping", "input": { "order": "{{ input.order }}" } } },
    { "name": "mail", "agent": "mailer", "request": { "body": { "parcel": "{{ steps.ship.output.parcel }}" } } }
  ]
}"#;

#[test]
fn the_task_of_a_step_ends_as_it_is_mocked() {
    let yaml = "
services:
  reserve: {}
  undo reserve: {}
  ship: { body: { parcel: p1 }, delay: 1h }
  mail: {}
cases:
  - name: all is well
    expect:
      state: processed
      path: [reserve, ship, mail]
      requests:
        - { step: ship, body: { order: 7 } }
        - { step: mail, body: { parcel: p1 } }
  - name: the task is undone
    services: { ship: { status: 400 } }
    expect: { state: undone, undone: [reserve], stands: [] }
  - name: it is undone with its parent
    services: { mail: { status: 400 } }
    expect: { state: undone, undone: [ship, reserve], stands: [] }
  - name: it cannot be undone
    services: { mail: { status: 400 }, undo ship: { status: 409 } }
    expect: { state: error, stands: [reserve, ship] }
  - name: an operator undoes it while it runs
    commands: [{ command: undo, at: 30m }]
    expect: { state: undone, undone: [reserve] }
";
    for result in run(NESTED, yaml) {
        assert!(result.has_passed(), "{:#?}", result);
    }
    let workflow = workflow(NESTED);
    let file = file(&workflow, yaml);
    let explored = explore(&workflow, &file, &file.cases[0]);
    assert_eq!(explored.baseline.state, TaskStatus::Processed);
    assert!(
        explored
            .faults
            .iter()
            .all(|fault| fault.incomplete.is_none())
    );
}

#[test]
fn thousands_of_items_may_each_send_the_input() {
    let items: Vec<_> = (0..1000).map(|n| format!("{n:0>40}")).collect();
    let workflow = serde_json::json!({
        "input": { "items": items },
        "steps": [{ "name": "import", "agent": "shop", "for_each": "{{ input.items }}", "max_parallel": 1000 }],
    });
    let case = "
cases:
  - name: all
    services:
      import: { status: 200 }
    expect:
      state: processed
      steps:
        import: { attempts: 1000 }
";
    passes(&workflow.to_string(), case);
}

/// A step whose attempts, faults and policies are bounded by its own fields.
const BOUNDED: &str = r#"{ "steps": [
  { "name": "charge", "agent": "payments", "max_attempts": 3, "on_exhausted": "skip",
    "retry": { "initial": "10s", "factor": 1, "jitter": false, "on": ["5xx", 409] },
    "on_permanent": { "410": "success" }, "keep_headers": ["location"],
    "failed": "output.ok | default(true) == false",
    "request": { "path": "/charges" } },
  { "name": "after", "agent": "payments", "when": "steps.charge is failed",
    "request": { "path": "/after", "body": "{{ steps.charge.error.kind ~ ' ' ~ steps.charge.attempts }}" } },
  { "name": "created", "agent": "payments", "when": "steps.charge.status == 201",
    "request": { "path": "/created", "body": "{{ steps.charge.headers.location }}" } }
] }"#;

#[test]
fn a_rehearsal_follows_the_bounds_of_attempts_and_the_policies_by_status() {
    let case = |services: &str, expect: &str| {
        passes(
            BOUNDED,
            &format!(
                "services:\n  charge: {services}\n  after: {{ body: 1 }}\n  created: {{ body: 1 }}\ncases:\n  - name: x\n    expect:\n{expect}"
            ),
        );
    };
    case(
        "{ status: 503 }",
        "      steps:
        charge: { state: skipped, attempts: 3, error: failed in 3 attempts }
      requests:
        - { step: after, body: exhausted 3 }
",
    );
    case(
        "{ status: 409 }",
        "      steps:
        charge: { state: skipped, attempts: 3 }
",
    );
    case(
        "{ status: 410 }",
        "      steps:
        charge: { state: processed, attempts: 1 }
        after: { state: skipped }
",
    );
    case(
        "{ status: 201, headers: { location: /charges/7 } }",
        "      steps:
        charge: { state: processed }
      requests:
        - { step: created, body: /charges/7 }
",
    );
}

const RACE: &str = r#"{
  "steps": [
    { "name": "eu", "agent": "x", "after": [], "undo": { "request": { "path": "/undo" } } },
    { "name": "us", "agent": "x", "after": [], "undo": { "request": { "path": "/undo" } } },
    { "name": "timer", "after": [], "wait": { "for": "10s" } },
    { "name": "join", "after": { "any": 1, "of": ["eu", "us", "timer"], "rest": "undo" },
      "set": { "winner": "{{ steps.join.winner }}" } }
  ]
}"#;

#[test]
fn the_first_of_several_steps_wins_and_the_others_are_undone() {
    let cases = |eu: &str, us: &str, expect: &str| {
        format!(
            "services:\n  eu: {{ delay: {eu} }}\n  us: {{ delay: {us} }}\n  undo eu: {{}}\n  undo us: {{}}\ncases:\n  - name: x\n    expect: {expect}\n"
        )
    };
    let expect =
        "{ state: processed, path: [timer, eu, us, undo us], undone: [us], stands: [eu], ended_after: 3s,
              steps: { timer: { state: cancelled }, join: { output: { winner: eu } } } }";
    passes(RACE, &cases("2s", "3s", expect));
    let expect = "{ state: processed, path: [timer, eu, us, undo eu, undo us], undone: [eu, us], stands: [], ended_after: 20s,
              steps: { join: { output: { winner: timer } } } }";
    passes(RACE, &cases("15s", "20s", expect));
}
