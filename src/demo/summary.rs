//! The summary when all orders have ended or wait for an operator: the faults of each order and their causes, the
//! work of the services, and the commands with which an operator can complete the waiting order.

use std::fmt::Write;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    EJECTED_FOR,
    api::{HistoryEntryJson, TaskJson},
    board::Paint,
    ejection_watch::EjectionWatch,
    orders::{DECLINED_CARD, Order, Remote},
    remote::{DoorCounts, RunningService},
    story,
    width::wrapped,
};

/// The final state of an order: the task, and its history.
pub struct ObservedOrder {
    pub order: Order,
    pub task: Option<(TaskJson, Vec<HistoryEntryJson>)>,
}

/// Returns the end and the faults of each order.
pub fn orders(seen: &[ObservedOrder], paint: Paint, columns: usize) -> String {
    let mut text = String::from("What happened\n\n");
    for ObservedOrder { order, task } in seen {
        let key = order.key();
        let Some((task, history)) = task else {
            text += &format!("  {key}  never accepted\n");
            continue;
        };
        let state = match task.state.as_str() {
            "processed" => paint.good("processed"),
            state => paint.bad(&format!("{state:<9}")),
        };
        let took = took(task).map_or_else(String::new, |took| format!("{took:.1}s"));
        let mut lines = story::story(history);
        if lines.is_empty() {
            lines.push(paint.faint("at the first attempt"));
        }
        // Writing to a String cannot fail.
        let _ = write!(text, "  {key}  {state}  {took:>5}  ");
        // On a narrow screen it starts on its own line.
        let indent = if columns < 2 * STORY { 4 } else { STORY };
        let from = lines.first().map_or(0, String::len);
        let mut own_line = columns < 2 * STORY && STORY + from > columns;
        for line in lines {
            if own_line {
                text.truncate(text.trim_end().len());
                text += &format!("\n{:indent$}", "");
            }
            let column = if own_line { indent } else { STORY };
            text += &wrapped(&line, column, indent, columns);
            own_line = true;
        }
        text.push('\n');
    }
    text
}

/// The column where the story of an order starts.
const STORY: usize = 32;

/// Returns the seconds from its acceptance until it ended or needed an operator.
fn took(task: &TaskJson) -> Option<f64> {
    let failed_at = task.error.as_ref().map(|fault| &fault.at);
    let end: Timestamp = task.ended_at.as_ref().or(failed_at)?.parse().ok()?;
    let start: Timestamp = task.created_at.parse().ok()?;
    Some(end.duration_since(start).as_secs_f64())
}

/// Returns the records of the services.
pub fn services(remotes: &[RunningService], watch: &EjectionWatch, columns: usize) -> String {
    let mut text = String::from("What the services did\n\n");
    for running in remotes {
        let (agent, what) = (running.remote.agent(), running.remote.effects());
        let (effects, repeats) = (running.ledger().effects(), running.ledger().repeats());
        let mut did = format!("{effects} {what}");
        if repeats > 0 {
            let requests = if repeats == 1 {
                "1 request was repeated, recognised by its Idempotency-Key".to_owned()
            } else {
                format!("{repeats} requests were repeated, recognised by their Idempotency-Key")
            };
            did += &format!(" ({requests})");
        }
        let did = wrapped(&did, 13, 13, columns);
        let _ = writeln!(text, "  {agent:<9}  {did}");
        if running.doors.len() < 2 {
            continue;
        }
        for door in &running.doors {
            let calls = calls(door.door.counts(), watch.was_ejected);
            let line = format!("http://{}: {calls}", door.address);
            let _ = writeln!(text, "{:13}{}", "", wrapped(&line, 13, 15, columns));
        }
    }
    text
}

/// Returns the counts of one of several endpoints.
fn calls(counts: DoorCounts, was_ejected: bool) -> String {
    let DoorCounts { calls, refused } = counts;
    let many = |calls: usize| match calls {
        1 => "1 call".to_owned(),
        _ => format!("{calls} calls"),
    };
    if refused == 0 {
        return many(calls);
    }
    let ejected = match was_ejected {
        true => format!(", so it was ejected for {EJECTED_FOR}"),
        false => String::new(),
    };
    let rest = many(calls - refused);
    format!(
        "{} refused with 503{ejected}, and {rest} when it was well again",
        many(refused)
    )
}

/// Returns the commands that inspect an order in error, fix the cause and retry its step.
pub fn operator(
    base: &str,
    payments: &RunningService,
    order: &Order,
    task: &TaskJson,
    columns: usize,
) -> String {
    let (key, id) = (order.key(), &task.id);
    let (url, step) = (format!("{base}/v1/tasks/{id}"), Remote::Payments.step());
    let bank = format!("http://{}/cards/{DECLINED_CARD}", payments.address);
    let reservation = task.step(Remote::Inventory.step());
    let reservation = reservation.and_then(|step| step.output.as_ref()?.get("id"));
    let charge = order.good_charge(reservation.unwrap_or(&Value::Null));
    let other_card = json!({ "input": charge, "reason": "the customer gave another card" });
    let json = "-H 'content-type: application/json'";
    // Commands are never wrapped, so that they can be copied.
    let say = |text: &str| wrapped(text, 0, 0, columns);
    let look = say("Inspect the task, and its history with all events in order:");
    let fix = say(&format!(
        "Fix the cause, here at the payment service, which then responds {{\"card\":\"{DECLINED_CARD}\",\"accepted\":true}}:"
    ));
    let resubmit = say(
        "Retry the step. The response is the task, which is processing again and continues where it stopped:",
    );
    let instead = say("Or, instead of these two commands, retry it with another card:");
    format!(
        "\
You are the operator: {key} waits for you

{look}
  curl -s {url}
  curl -s {url}/history

{fix}
  curl -s -X PUT {bank} {json} -d '{{\"accepted\": true}}'

{resubmit}
  curl -s -X POST {url}/steps/{step}/retry

{instead}
  curl -s -X POST {url}/steps/{step}/retry {json} \\
    -d '{other_card}'

See that it is processed:
  curl -s '{url}?wait=10s'
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::{orders as plan, remote};

    const PLAIN: Paint = Paint { colours: false };

    fn task(state: &str, ended_at: Option<&str>) -> TaskJson {
        let task = json!({ "id": "0197", "state": state, "created_at": "2026-01-01T00:00:00Z",
            "ended_at": ended_at, "steps": [
            { "name": "reserve", "state": "processed", "attempt": 1, "failure_count": 0,
              "output": { "id": "res-1007" } } ] });
        serde_json::from_value(task).unwrap()
    }

    #[test]
    fn an_order_that_met_nothing_is_one_short_line() {
        let order = plan::all().remove(0);
        let seen = task("processed", Some("2026-01-01T00:00:01.25Z"));
        let text = orders(
            &[ObservedOrder {
                order,
                task: Some((seen, vec![])),
            }],
            PLAIN,
            80,
        );
        assert!(
            text.ends_with("\n  order-1001  processed   1.2s  at the first attempt\n"),
            "{text}"
        );
    }

    #[test]
    fn a_story_begins_on_a_line_of_its_own_where_there_is_no_room_beside_the_order() {
        let order = plan::all().remove(0);
        let seen = task("processed", Some("2026-01-01T00:00:01.25Z"));
        let task = Some((seen, vec![]));
        let text = orders(&[ObservedOrder { order, task }], PLAIN, 40);
        assert!(
            text.ends_with("\n  order-1001  processed   1.2s\n    at the first attempt\n"),
            "{text}"
        );
    }

    #[test]
    fn an_endpoint_that_was_sick_says_how_many_calls_it_refused() {
        let of = |all, refused, ejected| {
            let counts = DoorCounts {
                calls: all,
                refused,
            };
            calls(counts, ejected)
        };
        assert_eq!(of(12, 0, true), "12 calls");
        assert_eq!(
            of(7, 3, true),
            "3 calls refused with 503, so it was ejected for 2s, and 4 calls when it was well again"
        );
        assert_eq!(
            of(2, 1, false),
            "1 call refused with 503, and 1 call when it was well again"
        );
    }

    #[tokio::test]
    async fn the_commands_name_the_real_addresses_and_the_real_charge() {
        let orders = plan::all();
        let order = &orders[6];
        let payments = remote::start(Remote::Payments, &orders).await.unwrap();
        let text = operator(
            "http://127.0.0.1:1",
            &payments,
            order,
            &task("error", None),
            40,
        );
        let bank = format!("PUT http://{}/cards/tok_declined ", payments.address);
        assert!(text.contains(&bank), "{text}");
        assert!(text.contains("http://127.0.0.1:1/v1/tasks/0197/steps/charge/retry"));
        assert!(text.contains(r#""reservation":"res-1007""#), "{text}");
    }
}
