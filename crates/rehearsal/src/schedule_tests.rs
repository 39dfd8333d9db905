//! Tests of workflows that a schedule submits.

use crate::tests::{one, passes, read, workflow};

/// A workflow with one call, whose duration is the delay of its service.
const REPORT: &str = r#"{
  "on_permanent": "undo",
  "steps": [{ "name": "report", "agent": "reports", "complete_within": "30h", "max_failures": 1,
              "request": { "path": "/reports", "body": { "at": "{{ task.labels.fire_time }}", "key": "{{ task.key }}" } } }]
}"#;

/// Returns a case with a report each hour that takes 100 minutes, for five and a half hours from midnight on.
fn hourly(schedule: &str, expect: &str) -> String {
    format!(
        "
cases:
  - name: hourly
    schedule: {{ name: hours, cron: \"0 * * * *\", for: 5h30m, {schedule} }}
    services:
      report: {{ delay: 100m }}
    expect:
      runs:
{expect}"
    )
}

#[test]
fn each_fire_time_has_a_task_with_its_labels_and_key() {
    passes(
        REPORT,
        r#"
cases:
  - name: twice a day
    schedule: { name: daily, every: 12h, for: 24h }
    services: { report: { body: { id: 1 } } }
    expect:
      state: processed
      runs:
        - { fire_time: 2026-01-01T12:00:00Z, state: processed, source: scheduled, count: 1 }
        - { fire_time: 2026-01-02T00:00:00Z, started_at: 2026-01-02T00:00:00Z }
  - name: once
    schedule: { name: daily, every: 12h, for: 12h }
    services: { report: { body: { id: 1 } } }
    expect:
      path: [report]
      requests:
        - step: report
          body: { at: "2026-01-01T12:00:00.000Z", key: "daily@2026-01-01T12:00:00.000Z" }
"#,
    );
}

#[test]
fn the_clock_of_a_place_changes() {
    let case = |dst: &str, from: &str, expected: &str| {
        format!(
            "
cases:
  - name: the clock changes
    starts_at: {from}
    schedule: {{ cron: \"30 2 * * *\", timezone: Europe/Berlin, dst: {dst}, for: 24h }}
    services: {{ report: {{ body: 1 }} }}
    expect: {{ runs: [{expected}] }}"
        )
    };
    let spring = "2026-03-28T12:00:00Z";
    let autumn = "2026-10-24T12:00:00Z";
    let first = "{ fire_time: 2026-10-25T00:30:00Z, state: processed }";
    passes(
        REPORT,
        &case(
            "once",
            spring,
            "{ fire_time: 2026-03-29T01:30:00Z, state: processed }",
        ),
    );
    passes(
        REPORT,
        &case(
            "skip",
            spring,
            "{ fire_time: 2026-03-29T01:30:00Z, skipped: dst }",
        ),
    );
    passes(REPORT, &case("once", autumn, first));
    passes(
        REPORT,
        &case(
            "both",
            autumn,
            &format!("{first}, {{ fire_time: 2026-10-25T01:30:00Z, state: processed }}"),
        ),
    );
}

#[test]
fn runs_that_overlap_are_left_out() {
    passes(
        REPORT,
        &hourly(
            "overlap: skip",
            "
        - { fire_time: 2026-01-01T01:00:00Z, state: processed }
        - { fire_time: 2026-01-01T02:00:00Z, skipped: overlap, count: 1 }
        - { fire_time: 2026-01-01T03:00:00Z, state: processed }
        - { fire_time: 2026-01-01T04:00:00Z, skipped: overlap }
        - { fire_time: 2026-01-01T05:00:00Z, state: processed }",
        ),
    );
}

#[test]
fn runs_that_overlap_wait_for_each_other() {
    passes(
        REPORT,
        &hourly(
            "overlap: queue",
            "
        - { fire_time: 2026-01-01T01:00:00Z, started_at: 2026-01-01T01:00:00Z }
        - { fire_time: 2026-01-01T02:00:00Z, started_at: 2026-01-01T02:40:00Z }
        - { fire_time: 2026-01-01T03:00:00Z, started_at: 2026-01-01T04:20:00Z }
        - { fire_time: 2026-01-01T04:00:00Z }
        - { fire_time: 2026-01-01T05:00:00Z }",
        ),
    );
}

#[test]
fn a_run_takes_the_turn_of_the_one_before_it() {
    passes(
        REPORT,
        &hourly(
            "overlap: replace",
            "
        - { fire_time: 2026-01-01T01:00:00Z, state: cancelled }
        - { fire_time: 2026-01-01T02:00:00Z, state: cancelled, started_at: 2026-01-01T02:00:00Z }
        - { fire_time: 2026-01-01T03:00:00Z, state: cancelled }
        - { fire_time: 2026-01-01T04:00:00Z, state: cancelled }
        - { fire_time: 2026-01-01T05:00:00Z, state: processed }",
        ),
    );
}

#[test]
fn runs_begin_beside_each_other() {
    let all: Vec<_> = (1..=5)
        .map(|hour| {
            let at = format!("2026-01-01T0{hour}:00:00Z");
            format!("        - {{ fire_time: {at}, started_at: {at}, state: processed }}")
        })
        .collect();
    passes(REPORT, &hourly("overlap: allow", &all.join("\n")));
}

#[test]
fn missed_fire_times_are_caught_up() {
    let case = |catch_up: &str, expected: &str| {
        format!(
            "
cases:
  - name: a night without an instance
    schedule:
      cron: \"0 * * * *\"
      overlap: queue
      catch_up: {catch_up}
      for: 5h
      down: [{{ from: 90m, to: 4h30m }}]
    services: {{ report: {{ body: 1 }} }}
    expect:
      runs:
        - {{ fire_time: 2026-01-01T01:00:00Z, state: processed }}
{expected}
        - {{ fire_time: 2026-01-01T05:00:00Z, state: processed }}"
        )
    };
    let back = "2026-01-01T04:30:00Z";
    passes(
        REPORT,
        &case(
            "none",
            "        - { fire_time: 2026-01-01T02:00:00Z, skipped: missed, count: 3 }",
        ),
    );
    passes(
        REPORT,
        &case(
            "last",
            &format!(
                "        - {{ fire_time: 2026-01-01T02:00:00Z, skipped: missed, count: 2 }}
        - {{ fire_time: 2026-01-01T04:00:00Z, source: caught_up, started_at: {back} }}"
            ),
        ),
    );
    let all: Vec<_> = (2..=4)
        .map(|hour| {
            format!("        - {{ fire_time: 2026-01-01T0{hour}:00:00Z, source: caught_up, started_at: {back} }}")
        })
        .collect();
    passes(REPORT, &case("all", &all.join("\n")));
}

#[test]
fn a_pause_leaves_fire_times_out() {
    passes(
        REPORT,
        r#"
cases:
  - name: paused
    schedule: { every: 1h, for: 4h, paused: [{ from: 90m, to: 3h30m }], until: 2026-01-01T04:00:00Z }
    services: { report: { body: 1 } }
    expect:
      runs:
        - { fire_time: 2026-01-01T01:00:00Z, state: processed }
        - { fire_time: 2026-01-01T02:00:00Z, skipped: paused, count: 2 }
        - { fire_time: 2026-01-01T04:00:00Z, state: processed }
"#,
    );
}

#[test]
fn a_task_that_needs_an_operator_holds_up_what_comes_later() {
    let result = passes(
        REPORT,
        r#"
cases:
  - name: nobody looks
    schedule: { every: 1h, for: 3h }
    services: { report: { dropped: true } }
    expect:
      state: error
      runs:
        - { fire_time: 2026-01-01T01:00:00Z, state: error }
        - { fire_time: 2026-01-01T02:00:00Z, skipped: overlap, count: 2 }
"#,
    );
    assert!(
        result.timeline[1].contains("and 1 more until"),
        "{:?}",
        result.timeline
    );
}

#[test]
fn an_input_that_is_refused_has_no_task() {
    let strict = REPORT.replacen('{', r#"{ "input_schema": { "required": ["day"] },"#, 1);
    passes(
        &strict,
        r#"
cases:
  - name: no day
    input: {}
    schedule: { every: 1h, for: 1h }
    expect:
      runs: [{ fire_time: 2026-01-01T01:00:00Z, refused: true }]
"#,
    );
}

#[test]
fn what_differs_is_said_of_each_run() {
    let result = one(
        REPORT,
        r#"
cases:
  - name: wrong
    schedule: { every: 1h, for: 2h }
    services: { report: { status: 404 } }
    expect:
      state: processed
      runs:
        - { fire_time: 2026-01-01T01:00:00Z, skipped: overlap }
"#,
    );
    let failures: Vec<_> = result.failures.iter().map(ToString::to_string).collect();
    assert_eq!(failures.len(), 4, "{failures:#?}");
    assert!(failures[0].contains("in the run of 2026-01-01T01:00:00.000Z: expected processed"));
    assert!(failures[2].contains("expected overlap, but the run was: 2026-01-01T01:00:00.000Z"));
    assert!(failures[3].contains("expected 1 runs, but there were 2"));
    let missing = one(
        REPORT,
        r#"
cases:
  - name: too few
    schedule: { every: 1h, for: 30m }
    expect:
      runs: [{ fire_time: 2026-01-01T01:00:00Z }]
"#,
    );
    assert!(missing.failures[0].message.contains("there was no run of"));
}

#[test]
fn a_snapshot_has_every_run_and_its_task() {
    let yaml = "
cases:
  - name: hourly
    schedule: { every: 1h, for: 2h }
    services: { report: { body: 1 } }
    expect: { state: processed }
";
    let first = one(REPORT, yaml);
    assert_eq!(first.snapshot["runs"][1]["task"]["state"], "processed");
    assert_eq!(first.snapshot, one(REPORT, yaml).snapshot);
}

#[test]
fn a_schedule_that_fires_too_often_ends() {
    let result = one(
        REPORT,
        "
cases:
  - name: for ever
    schedule: { every: 1s, for: 30d, overlap: allow }
    services: { report: { body: 1 } }
    expect: { state: processed }
",
    );
    assert!(
        result.failures[0].message.contains("more than 1000 runs"),
        "{:?}",
        result.failures
    );
}

#[test]
fn faults_are_reported_where_they_are() {
    let faults = read(
        &workflow(REPORT),
        "
cases:
  - name: one
    key: k
    schedule: { cron: \"61 * * * *\", down: [{ from: 2h, to: 1h }, { from: 1h }] }
  - name: two
    expect: { runs: [{ fire_time: soon, state: processed, skipped: overlap }] }
",
    )
    .unwrap_err();
    let wanted = [
        ":5:",
        "schedule/cron",
        "schedule/down/0/to: must be later than `from`",
        "schedule/down/1/to: is missing",
        "schedule/for: is missing",
        "cases/0/key: is made of",
        "cases/1/schedule: is missing",
        "runs/0/fire_time: must be a time",
        "runs/0/state: is of a task",
    ];
    for wanted in wanted {
        assert!(
            faults.iter().any(|fault| fault.contains(wanted)),
            "{wanted} not in {faults:#?}"
        );
    }
}
