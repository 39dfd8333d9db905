use std::sync::Arc;

use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::{
    definition::{Accepted, Limits, Policies, parse_steps},
    task::{
        Actor, AttemptExchange, BodyRecord, CallOutcome, Claimant, Command, Draft,
        ReceivedResponse, RecordedRequest,
    },
    template::Payload,
    values::{Fault, InstanceId, Priority, TaskId, WorkflowName},
};

const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);

fn details(id: u128, version: u32, input: &str, steps: &Value) -> Details {
    let steps = Payload::from_value(steps);
    let limits = Limits::default();
    let parsed = parse_steps(&steps, "", &Policies::default(), &limits, &Accepted);
    Details {
        id: TaskId(Uuid::from_u128(id)),
        key: Some(format!("order-{id}").into()),
        workflow: Some(WorkflowRef {
            name: WorkflowName::new("order"),
            version,
        }),
        definition: Arc::new(parsed.unwrap()),
        input: Payload::parse(input.to_owned()).unwrap(),
        labels: [("customer".to_owned(), "acme".to_owned())].into(),
        priority: Priority::default(),
        complete_within: None,
        start_at: None,
        trace: None,
        reply_to: None,
        parent: None,
        key_prefix: None,
    }
}

/// A task, with the attempts that its steps have left.
struct Run {
    draft: Draft,
    now: Timestamp,
}

impl Run {
    fn new(details: Details) -> Self {
        Self {
            draft: Draft::submit(Arc::new(details), START),
            now: START,
        }
    }

    fn later(&mut self, span: Span) {
        self.now = self.now + span;
    }

    fn apply(&mut self, command: Command, exchange: Option<Box<AttemptExchange>>) {
        let by = Actor::operator("test");
        let applied = self.draft.apply_with(command, &by, self.now, exchange);
        applied.map_or_else(|refusal| panic!("{refusal}"), |_| ());
    }

    /// Runs a step, which takes 40 ms.
    fn step(
        &mut self,
        name: &str,
        outcome: impl FnOnce(Timestamp) -> CallOutcome,
        exchange: Option<AttemptExchange>,
    ) {
        let step = self.draft.task.find(name).unwrap();
        let by = Claimant::Instance(InstanceId::new("eu-1"));
        self.apply(Command::Claim { step, by }, None);
        self.later(Span::from_millis(40));
        let reply = Command::Reply {
            step,
            attempt: self.draft.task.step(step).attempt,
            outcome: outcome(self.now),
        };
        self.apply(reply, exchange.map(Box::new));
    }

    fn process(&mut self, name: &str) {
        let output = Payload::from_value(&json!({ "id": format!("{name}-1") }));
        self.step(name, |_| CallOutcome::Success(output), None);
    }

    /// Has a step fail, with a request as it was sent.
    fn fail(&mut self, name: &str, path: &str, body: &str) {
        let refusal = |now| {
            CallOutcome::Failed(Fault {
                status: Some(422),
                body: Some(r#"{"error":"currency is required"}"#.to_owned()),
                ..Fault::permanent("the service responded 422", now)
            })
        };
        self.step(name, refusal, Some(sent(path, body)));
    }
}

fn sent(path: &str, body: &str) -> AttemptExchange {
    let headers = [
        ("x-shop", "books"),
        ("x-api-key", "***"),
        ("traceparent", "00-1"),
        ("provost-attempt", "1"),
        ("user-agent", "Provost"),
    ];
    AttemptExchange {
        is_as_sent: true,
        instance: None,
        endpoint: Some("https://pay.example/api/".to_owned()),
        request: RecordedRequest {
            method: "POST".to_owned(),
            url: format!("https://pay.example/api{path}"),
            headers: headers
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .to_vec(),
            body: Some(BodyRecord::of(body.as_bytes())),
        },
        is_body_left_out: false,
        times: crate::task::ExchangeTimes {
            began_at: Some(START),
            responded_at: Some(START + Span::from_millis(30)),
            ..Default::default()
        },
        response: Some(ReceivedResponse {
            status: 422,
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: Some(r#"{"error":"currency is required"}"#.to_owned()),
        }),
    }
}

fn compare(a: &Run, b: &Run) -> TaskDifference {
    let comparison = TaskComparison::new(&a.draft.task, &b.draft.task);
    let wanted = comparison.with_attempts();
    let records = [(a, &wanted[0]), (b, &wanted[1])].map(|(run, wanted)| {
        let all = run.draft.attempts.iter();
        all.filter(|record| wanted.contains(&record.step))
            .cloned()
            .collect()
    });
    comparison.report(records, a.now.max(b.now))
}

/// Returns the differences as text.
fn shown(list: &DifferenceList) -> Vec<String> {
    let text = |value: &Option<ComparedValue>| match value {
        None => "none".to_owned(),
        Some(value) => serde_json::to_value(value).unwrap()["value"].to_string(),
    };
    let items = list.items.iter();
    let items = items.map(|item| format!("{} {} {}", item.pointer, text(&item.a), text(&item.b)));
    items.collect()
}

fn charging(body: &Value) -> Value {
    let headers = json!({ "x-shop": "books", "x-api-key": "a-secret" });
    json!([
        { "name": "reserve", "agent": "stock" },
        { "name": "charge", "agent": "pay",
          "request": { "path": "/charges", "headers": headers, "body": body } },
        { "name": "ship", "agent": "post" },
    ])
}

#[test]
fn a_step_that_failed_comes_first_with_what_its_request_lacked() {
    let body = r#"{"order":"{{ task.key }}","amount":"{{ input.amount }}"}"#;
    let new: Value = serde_json::from_str(body).unwrap();
    let mut old = new.clone();
    old["currency"] = json!("EUR");
    let mut failed = Run::new(details(1, 14, r#"{"amount":12900}"#, &charging(&new)));
    let mut done = Run::new(details(2, 13, r#"{"amount":4200}"#, &charging(&old)));
    for run in [&mut failed, &mut done] {
        run.process("reserve");
    }
    failed.fail(
        "charge",
        "/charges",
        r#"{"order":"order-1","amount":12900}"#,
    );
    done.process("charge");
    let report = compare(&failed, &done);

    assert_eq!(
        report.sentence,
        "order-1 failed at charge, order-2 did not; the versions of order are 14 and 13 at /steps/charge/request/body/currency, the inputs differ at /amount, the requests of charge differ at /body/currency"
    );
    assert!(!report.definition.same_version && !report.definition.same);
    let pointer = "/steps/charge/request/body/currency none \"EUR\"";
    assert_eq!(shown(&report.definition.differences), [pointer]);
    assert_eq!(shown(&report.input), ["/amount 12900 4200"]);
    assert!(report.submission.items.is_empty());
    let names: Vec<_> = report.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["charge", "ship", "reserve"]);

    let charge = &report.steps[0];
    let parts = [StepPart::State, StepPart::Request, StepPart::Response];
    assert_eq!(charge.differs, parts);
    let request = charge.request.as_ref().unwrap();
    let expected = [
        "/body/amount 12900 4200",
        "/body/order \"order-1\" \"order-2\"",
        "/body/currency none \"EUR\"",
    ];
    assert_eq!(shown(request), expected);
    let reasons: Vec<_> = { request.items.iter() }
        .map(|item| item.follows_from.as_deref())
        .collect();
    assert_eq!(reasons, [Some("/input/amount"), Some("/key"), None]);
    assert_eq!(request.items[2].change, MemberChange::Added);
    // The status of a response that is not recorded is not known.
    let response = charge.response.as_ref().unwrap();
    let expected = [
        "/body/error \"currency is required\" none",
        "/body/id none \"charge-1\"",
    ];
    assert_eq!(shown(response), expected);
    let side = charge.a.as_ref().unwrap();
    assert_eq!(side.state, "error");
    assert_eq!(side.duration, Some(Span::from_millis(40)));
    assert_eq!(side.reason.as_deref(), Some("the service responded 422"));
    let attempt = side.attempt.as_ref().unwrap();
    assert_eq!(attempt.status, Some(422));
    assert_eq!(attempt.as_sent, Some(true));
    assert_eq!(attempt.instance.as_deref(), Some("eu-1"));
    assert_eq!(attempt.duration, Some(Span::from_millis(30)));
    assert!(report.steps[2].differs.is_empty());
    assert!(!serde_json::to_string(&report).unwrap().contains("a-secret"));
}

#[test]
fn tasks_that_are_alike_have_no_differences() {
    let steps = charging(&json!({ "order": "{{ task.key }}", "id": "{{ task.id }}" }));
    let run = |id| {
        let mut run = Run::new(details(id, 1, r#"{"amount":1}"#, &steps));
        for step in ["reserve", "charge", "ship"] {
            run.process(step);
        }
        run
    };
    let (a, b) = (run(1), run(2));
    let report = compare(&a, &b);
    assert_eq!(
        report.sentence,
        "order-1 and order-2 are processed; their definitions and inputs are the same"
    );
    assert!(report.definition.same && report.definition.same_version);
    assert!(report.steps.iter().all(|step| step.differs.is_empty()));
    let names: Vec<_> = report.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["reserve", "charge", "ship"]);
    // Ids and keys are shown, and say where they come from.
    let request = report.steps[1].request.as_ref().unwrap();
    let reasons: Vec<_> = { request.items.iter() }
        .map(|item| item.follows_from.as_deref())
        .collect();
    assert_eq!(reasons, [Some("/id"), Some("/key")]);
    // The same task is the same as itself.
    let same = compare(&a, &a);
    assert!(same.steps.iter().all(|step| step.differs.is_empty()));
}

#[test]
fn ids_that_services_return_are_no_difference_and_say_where_they_come_from() {
    let body = json!({ "reservation": "{{ steps.reserve.output.id }}" });
    let run = |id: u128, more: Value| {
        let mut run = Run::new(details(id, 1, "1", &charging(&body)));
        let output = Payload::from_value(&json!({ "id": format!("rs_{}", 9 * id) }));
        run.step("reserve", |_| CallOutcome::Success(output), None);
        let output = Payload::from_value(&more);
        run.step("charge", |_| CallOutcome::Success(output), None);
        run
    };
    let report = compare(&run(1, json!({ "id": 1 })), &run(2, json!({ "id": 2 })));
    let [reserve, charge, _] = report.steps.as_slice() else {
        panic!("{:?}", report.steps);
    };
    assert!(reserve.differs.is_empty() && charge.differs.is_empty());
    assert_eq!(
        shown(reserve.response.as_ref().unwrap()),
        [r#"/body/id "rs_9" "rs_18""#]
    );
    let request = &charge.request.as_ref().unwrap().items[0];
    assert_eq!(request.pointer, "/body/reservation");
    assert_eq!(
        request.follows_from.as_deref(),
        Some("/steps/reserve/output/id")
    );

    // Another form of a response is one.
    for other in [
        json!({}),
        json!({ "id": "2" }),
        json!({ "id": 1, "risk": true }),
    ] {
        let report = compare(&run(1, json!({ "id": 1 })), &run(2, other));
        assert_eq!(report.steps[0].name.as_str(), "charge");
        assert_eq!(report.steps[0].differs, [StepPart::Response]);
    }
}

#[test]
fn attempts_and_times_that_differ_are_named() {
    let steps = json!([{ "name": "check", "agent": "x" }, { "name": "gift", "agent": "x",
                         "when": "input.gift" }]);
    let mut slow = Run::new(details(1, 1, r#"{"gift":false}"#, &steps));
    let mut quick = Run::new(details(2, 1, r#"{"gift":true}"#, &steps));
    slow.step(
        "check",
        |now| CallOutcome::Transient {
            fault: Fault::transient("busy", now),
            wait: std::time::Duration::from_secs(9).into(),
        },
        None,
    );
    slow.later(Span::from_secs(9));
    slow.process("check");
    quick.process("check");
    let report = compare(&slow, &quick);
    let [gift, check] = report.steps.as_slice() else {
        panic!("{:?}", report.steps);
    };
    assert_eq!(gift.name.as_str(), "gift");
    assert_eq!(gift.differs, [StepPart::State]);
    assert_eq!(gift.a.as_ref().unwrap().state, "skipped");
    assert_eq!(check.differs, [StepPart::Attempts, StepPart::Duration]);
    assert_eq!(check.a.as_ref().unwrap().attempts, 2);
    assert_eq!(
        report.sentence,
        "order-1 is processed, order-2 is processing; the inputs differ at /gift"
    );
}

#[test]
fn a_report_of_large_tasks_is_bounded() {
    let rows = |first: usize| {
        let rows: Vec<_> = (first..first + 10_000)
            .map(|row| format!(r#"{{"row":{row},"text":"{}"}}"#, "\\\"".repeat(40)))
            .collect();
        format!(r#"{{"rows":[{}]}}"#, rows.join(","))
    };
    let steps: Vec<_> = (0..300)
        .map(|number| json!({ "name": format!("s{number}"), "agent": "x", "after": [] }))
        .collect();
    let steps = Value::from(steps);
    let mut a = Run::new(details(1, 1, &rows(0), &steps));
    let mut b = Run::new(details(2, 1, &rows(1), &steps));
    let body = |row: usize| format!(r#"{{"row":"{}{row}"}}"#, "x".repeat(10_000));
    for number in 0..300 {
        a.fail(&format!("s{number}"), "/", &body(0));
        b.fail(&format!("s{number}"), "/", &body(1));
    }
    let report = compare(&a, &b);
    assert_eq!(report.input.items.len(), 30);
    assert!(report.input.more && report.more_steps);
    assert_eq!(report.steps.len(), 100);
    let request = report.steps[0].request.as_ref().unwrap();
    let value = request.items[0].a.as_ref().unwrap();
    let value = serde_json::to_value(value).unwrap();
    assert_eq!(value["bytes"], 10_003);
    let excerpt = value["excerpt"].as_str().unwrap();
    assert!(
        excerpt.starts_with('…') && excerpt.ends_with("x0\""),
        "{excerpt}"
    );
    let length = serde_json::to_string(&report).unwrap().len();
    assert!(length < 300_000, "{length}");
}

#[test]
fn of_a_list_the_items_in_error_are_compared() {
    let steps = json!([{ "name": "import", "agent": "x", "for_each": "{{ input.rows }}",
                         "request": { "path": "/rows/{{ item }}" } }]);
    let run = |id, rows: &Value| {
        let input = json!({ "rows": rows }).to_string();
        Run::new(details(id, 1, &input, &steps))
    };
    let mut failed = run(1, &json!([1, -2, 3]));
    let mut done = run(2, &json!([1, 2, 3]));
    failed.process("import[0]");
    failed.fail("import[1]", "/rows/-2", "null");
    for item in 0..3 {
        done.process(&format!("import[{item}]"));
    }
    let report = compare(&failed, &done);
    let names: Vec<_> = report.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["import[1]", "import"]);
    let request = report.steps[0].request.as_ref().unwrap();
    assert!(shown(request).contains(&r#"/path "/rows/-2" "/rows/2""#.to_owned()));
}

#[test]
fn steps_that_only_one_task_has_are_shown_for_it() {
    let steps = |names: &[&str]| {
        let steps = names
            .iter()
            .map(|name| json!({ "name": name, "agent": "x", "after": [] }));
        Value::from(steps.collect::<Vec<_>>())
    };
    let mut a = Run::new(details(1, 1, "1", &steps(&["one", "two"])));
    let mut b = Run::new(details(2, 2, "1", &steps(&["two", "three"])));
    a.process("two");
    b.process("two");
    let report = compare(&a, &b);
    let sides: Vec<_> = { report.steps.iter() }
        .map(|step| (step.name.as_str(), step.a.is_some(), step.b.is_some()))
        .collect();
    let expected = [
        ("one", true, false),
        ("three", false, true),
        ("two", true, true),
    ];
    assert_eq!(sides, expected);
    let definition = shown(&report.definition.differences);
    assert!(definition[0].starts_with("/steps/one "), "{definition:?}");
    assert!(
        definition[1].starts_with("/steps/three none "),
        "{definition:?}"
    );
}

#[test]
fn the_position_of_a_step_matters_only_where_it_follows_the_one_above() {
    let run = |id, steps: Value| Run::new(details(id, 1, "1", &steps));
    let above = run(
        1,
        json!([{ "name": "a", "agent": "x" }, { "name": "b", "agent": "x" }]),
    );
    let named = run(
        2,
        json!([{ "name": "a", "agent": "x" },
                              { "name": "b", "agent": "x", "after": ["a"] }]),
    );
    assert!(compare(&above, &named).definition.same);
    let turned = run(
        3,
        json!([{ "name": "b", "agent": "x" }, { "name": "a", "agent": "x" }]),
    );
    let report = compare(&above, &turned);
    let expected = [
        r#"/steps/a/after/0 none "b""#,
        r#"/steps/b/after/0 "a" none"#,
    ];
    assert_eq!(shown(&report.definition.differences), expected);
}

#[test]
fn a_clone_is_compared_with_its_original_before_it_is_submitted() {
    let steps = charging(&json!({ "amount": "{{ input.amount }}" }));
    let original = Run::new(details(1, 1, r#"{"amount":1,"card":"tok_a"}"#, &steps));
    let changed = details(9, 1, r#"{"amount":1,"card":"tok_b"}"#, &steps);
    let changed = Details {
        key: Some("order-1".into()),
        priority: Priority::new(5).unwrap(),
        ..changed
    };
    let clone = |details: &Details, shows_definition| {
        let planned = PlannedClone {
            details,
            shows_definition,
        };
        clone_difference(&original.draft.task, &planned)
    };
    let report = clone(&changed, true);
    assert_eq!(
        report.sentence,
        "The clone of order-1 would differ from the original: the inputs differ at /card, the submissions differ at /priority"
    );
    assert_eq!(report.b.id, None);
    assert_eq!(report.b.state, None);
    assert_eq!(report.b.key.as_deref(), Some("order-1"));
    assert_eq!(shown(&report.input), [r#"/card "tok_a" "tok_b""#]);
    assert_eq!(shown(&report.submission), ["/priority 0 5"]);
    assert!(report.definition.same && report.steps.is_empty());

    let other = charging(&json!({ "amount": 7 }));
    let other = details(1, 2, r#"{"amount":1,"card":"tok_a"}"#, &other);
    let report = clone(&other, true);
    let amount = r#"/steps/charge/request/body/amount "{{ input.amount }}" 7"#;
    assert_eq!(shown(&report.definition.differences), [amount]);
    let report = clone(&other, false);
    assert!(!report.definition.same && report.definition.differences.items.is_empty());
    assert_eq!(
        report.sentence,
        "The clone of order-1 would differ from the original: the versions of order are 1 and 2"
    );
    let same = details(1, 1, r#"{"amount":1,"card":"tok_a"}"#, &steps);
    assert_eq!(
        clone(&same, true).sentence,
        "The clone of order-1 would be the same as the original"
    );
}
