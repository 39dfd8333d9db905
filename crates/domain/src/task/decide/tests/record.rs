//! The record of attempts, by example.

use super::*;
use crate::task::{AttemptExchange, AttemptPurpose, AttemptRecord, AttemptResult, RecordedRequest};

fn charging() -> Bench {
    Bench::new(json!([
        { "name": "price", "agent": "x" },
        { "name": "charge", "agent": "x", "max_failures": 1,
          "request": { "path": "/charges", "headers": { "x-token": "t", "x-shop": "books" },
                       "body": { "amount": "{{ steps.price.output.id }}" } },
          "undo": { "request": { "path": "/refunds", "body": "{{ request.body.amount }}" } } },
        { "name": "ship", "agent": "x" },
    ]))
}

fn records(bench: &Bench) -> &[AttemptRecord] {
    &bench.draft.attempts
}

fn body(record: &AttemptRecord) -> &str {
    let exchange = record.exchange.as_ref().unwrap();
    let body = exchange.request.body.as_ref().unwrap();
    body.start.as_deref().unwrap()
}

#[test]
fn failures_are_recorded_with_the_request_and_successes_are_not() {
    let mut bench = charging();
    bench.process("price");
    assert!(records(&bench).is_empty());
    bench.defer("charge", 503, Duration::from_secs(5));
    let [transient] = records(&bench) else {
        panic!("{:?}", records(&bench));
    };
    assert_eq!(transient.attempt, Attempt(1));
    assert_eq!(transient.result, AttemptResult::Transient);
    assert_eq!(transient.purpose, AttemptPurpose::Work);
    assert_eq!(transient.next_at, Some(bench.now + Span::from_secs(5)));
    let status = transient.error.as_ref().and_then(|error| error.status);
    assert_eq!(status, Some(503));
    let exchange = transient.exchange.as_ref().unwrap();
    assert!(!exchange.is_as_sent);
    assert_eq!(body(transient), r#"{"amount":"price"}"#);
    let headers: Vec<_> = exchange.request.headers.iter().collect();
    assert!(headers.contains(&&("x-token".to_owned(), "***".to_owned())));
    assert!(headers.contains(&&("x-shop".to_owned(), "books".to_owned())));

    bench.later(Span::from_secs(5));
    let attempt = bench.claim("charge").unwrap();
    bench.reply("charge", attempt, refusal(422)).unwrap();
    let permanent = records(&bench).last().unwrap();
    assert_eq!(permanent.attempt, Attempt(2));
    assert_eq!(permanent.result, AttemptResult::Permanent);
    assert_eq!(permanent.next_at, None);
    assert_eq!(records(&bench).len(), 2);
}

#[test]
fn what_the_instance_says_is_recorded_also_of_a_success() {
    let mut bench = charging();
    let attempt = bench.claim("price").unwrap();
    let request = RecordedRequest {
        method: "POST".to_owned(),
        url: "http://x/".to_owned(),
        headers: Vec::new(),
        body: None,
    };
    let exchange = AttemptExchange {
        is_as_sent: true,
        ..AttemptExchange::rendered(request, None)
    };
    let reply = Command::Reply {
        step: bench.step("price"),
        attempt,
        outcome: success(json!({ "id": 1 })),
    };
    let (by, now) = (bench.by.clone(), bench.now);
    bench
        .draft
        .apply_with(reply, &by, now, Some(Box::new(exchange)))
        .unwrap();
    let [record] = records(&bench) else {
        panic!("{:?}", records(&bench));
    };
    assert_eq!(record.result, AttemptResult::Succeeded);
    let exchange = record.exchange.as_ref().unwrap();
    assert!(exchange.is_as_sent);
    assert_eq!(exchange.instance, Some(InstanceId::new("node-1")));
}

#[test]
fn attempts_that_end_without_a_response_are_recorded() {
    let mut bench = charging();
    bench.process("price");
    let attempt = bench.claim("charge").unwrap();
    bench.lose("charge", attempt).unwrap();
    bench.claim("charge").unwrap();
    bench.later(Span::from_secs(31));
    bench.expire("charge").unwrap();
    let results: Vec<_> = records(&bench).iter().map(|record| record.result).collect();
    assert_eq!(results, [AttemptResult::Lost, AttemptResult::Expired]);
    assert!(
        records(&bench)
            .iter()
            .all(|record| body(record).contains("price"))
    );
    assert_eq!(
        records(&bench)[0].exchange.as_ref().unwrap().instance,
        Some(InstanceId::new("node-1"))
    );
}

#[test]
fn an_attempt_that_a_command_ends_is_recorded_and_one_of_no_slot_is_not() {
    let mut bench = charging();
    let attempt = bench.claim("price").unwrap();
    let step = bench.step("price");
    let why = Release::NoSlot;
    bench
        .apply(Command::Release { step, attempt, why })
        .unwrap();
    assert!(records(&bench).is_empty());
    bench.claim("price").unwrap();
    bench.apply(Command::Cancel { reason: None }).unwrap();
    let [record] = records(&bench) else {
        panic!("{:?}", records(&bench));
    };
    assert_eq!(record.result, AttemptResult::Abandoned);
    assert_eq!(record.attempt, Attempt(2));
}

#[test]
fn a_late_reply_is_not_recorded() {
    let mut bench = charging();
    let attempt = bench.claim("price").unwrap();
    bench.lose("price", attempt).unwrap();
    assert_eq!(records(&bench).len(), 1);
    assert!(bench.reply("price", attempt, refusal(400)).is_err());
    assert_eq!(records(&bench).len(), 1);
}

/// Returns a task that charged a price, of which the price has changed since, and which is undone.
fn refund(bench: &mut Bench) -> Call {
    bench.apply(Command::Undo { reason: None }).unwrap();
    let undo = bench.step("charge.undo");
    let by = Claimant::Instance(InstanceId::new("node-1"));
    match bench.apply(Command::Claim { step: undo, by }).unwrap() {
        CommandOutput::Call(call) => *call,
        _ => panic!("the undo was not called"),
    }
}

fn with_another_price(reruns: bool) -> Bench {
    let mut bench = charging();
    bench.process("price");
    bench.process("charge");
    let step = bench.step("price");
    let rerun = Command::RetryFrom { step, reason: None };
    bench.apply(rerun).unwrap();
    let attempt = bench.claim("price").unwrap();
    let price = success(json!({ "id": "another" }));
    bench.reply("price", attempt, price).unwrap();
    if reruns {
        bench.process("charge");
    }
    bench
}

#[test]
fn an_undo_reads_the_request_that_was_sent_although_a_rerun_has_changed_what_it_was_made_of() {
    let mut bench = with_another_price(false);
    assert_eq!(refund(&mut bench).body.as_deref(), Some("\"price\""));
}

#[test]
fn an_undo_reads_the_request_of_the_rerun_once_that_was_sent() {
    let mut bench = with_another_price(true);
    assert_eq!(refund(&mut bench).body.as_deref(), Some("\"another\""));
}

#[test]
fn a_poll_that_fails_is_recorded_under_its_attempt_and_one_that_is_not_over_is_not() {
    let poll = json!({ "poll": { "until": "response.body.done", "every": "10s" } });
    let step = json!({ "name": "a", "agent": "x", "reply": poll, "complete_within": "1h" });
    let mut bench = Bench::new(json!([step]));
    let attempt = bench.claim("a").unwrap();
    let promise = CallOutcome::PollAt {
        address: "http://x:1/jobs/7".to_owned(),
        retry_after: None,
    };
    bench.reply("a", attempt, promise).unwrap();
    bench.later(Span::from_secs(10));
    bench.claim("a").unwrap();
    let not_yet = CallOutcome::Polled {
        status: 200,
        body: Payload::from_value(&json!({ "done": false })),
        retry_after: None,
    };
    bench.reply("a", attempt, not_yet).unwrap();
    assert!(records(&bench).is_empty());
    bench.later(Span::from_secs(10));
    bench.claim("a").unwrap();
    let sent = RecordedRequest {
        method: "GET".to_owned(),
        url: "http://x:1/jobs/7".to_owned(),
        headers: Vec::new(),
        body: None,
    };
    let exchange = AttemptExchange::rendered(sent, None);
    let reply = Command::Reply {
        step: bench.step("a"),
        attempt,
        outcome: bench.transient(503, Duration::from_secs(60)),
    };
    let (by, now) = (bench.by.clone(), bench.now);
    bench
        .draft
        .apply_with(reply, &by, now, Some(Box::new(exchange)))
        .unwrap();
    let [record] = records(&bench) else {
        panic!("{:?}", records(&bench));
    };
    assert_eq!(record.purpose, AttemptPurpose::Poll);
    assert_eq!(record.result, AttemptResult::Transient);
    assert_eq!(record.attempt, attempt);
    assert_eq!(record.next_at, Some(bench.now + Span::from_secs(60)));
}
