//! The live display as text, with a row for each order. Other code decides where to print it.

use super::{
    api::{StepJson, TaskJson},
    orders::Remote,
};

/// The colours of a terminal; without colours, the signs suffice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Paint {
    pub colours: bool,
}

#[derive(Clone, Copy)]
enum Colour {
    Red = 31,
    Green = 32,
    Yellow = 33,
    Grey = 90,
}

impl Paint {
    fn dye(self, colour: Colour, text: &str) -> String {
        if self.colours {
            format!("\x1b[{}m{text}\x1b[0m", colour as u8)
        } else {
            text.to_owned()
        }
    }

    pub fn good(self, text: &str) -> String {
        self.dye(Colour::Green, text)
    }

    pub fn bad(self, text: &str) -> String {
        self.dye(Colour::Red, text)
    }

    pub fn faint(self, text: &str) -> String {
        self.dye(Colour::Grey, text)
    }

    fn wary(self, text: &str) -> String {
        self.dye(Colour::Yellow, text)
    }
}

/// An order on the board: not submitted yet, or in the state that was last read.
pub struct BoardRow {
    pub key: String,
    pub task: Option<TaskJson>,
}

/// Returns the whole board, with one line per row, and the totals.
pub fn lines(rows: &[BoardRow], paint: Paint) -> Vec<String> {
    let mut lines: Vec<String> = rows.iter().map(|row| line(row, paint)).collect();
    lines.push(progress(rows));
    lines
}

fn line(row: &BoardRow, paint: Paint) -> String {
    let Some(task) = &row.task else {
        return paint.faint(&format!("  {}", row.key));
    };
    let cells = Remote::ALL.map(|remote| match task.step(remote.step()) {
        Some(step) => cell(step, paint),
        None => String::new(),
    });
    let (state, note) = (task.state.as_str(), note(task));
    let rest = match (state, note.as_str()) {
        ("processed", _) => paint.good(state),
        ("error", _) => paint.bad(&format!("needs an operator: {note}")),
        (_, "") => String::new(),
        _ => note,
    };
    let line = format!("  {}  {}  {rest}", row.key, cells.join("  "));
    line.trim_end().to_owned()
}

fn cell(step: &StepJson, paint: Paint) -> String {
    let name = &step.name;
    match step.state.as_str() {
        "waiting" => paint.faint(&format!("{name}  ")),
        "processed" => paint.good(&format!("{name} ✓")),
        "error" => paint.bad(&format!("{name} ✗")),
        _ if step.last_fault.is_some() || step.failure_count > 0 => {
            paint.wary(&format!("{name} ↻"))
        }
        "processing" => format!("{name} …"),
        _ => format!("{name}  "),
    }
}

/// Returns the most useful information right now: the error, or the last fault of the current step.
pub fn note(task: &TaskJson) -> String {
    if let Some(fault) = &task.error {
        return fault.message.clone();
    }
    let live = |step: &&StepJson| matches!(step.state.as_str(), "pending" | "processing");
    let Some(step) = task.steps.iter().find(live) else {
        return String::new();
    };
    match (&step.last_fault, step.failure_count) {
        (Some(fault), 0) => fault.message.clone(),
        (None, 0) => String::new(),
        _ if step.state == "pending" => "did not finish in time; the supervisor noticed".to_owned(),
        _ => format!("recovered by the supervisor: attempt {}", step.attempt),
    }
}

fn progress(rows: &[BoardRow]) -> String {
    let count = |state: &str| {
        let seen = rows.iter().filter_map(|row| row.task.as_ref());
        seen.filter(|task| task.state == state).count()
    };
    let (processed, error) = (count("processed"), count("error"));
    let left = rows.len() - processed - error;
    format!("  {processed} processed, {error} waiting for an operator, {left} running")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const PLAIN: Paint = Paint { colours: false };

    fn row(state: &str, error: Value, steps: Value) -> BoardRow {
        let task =
            json!({ "id": "1", "state": state, "created_at": "", "error": error, "steps": steps });
        BoardRow {
            key: "order-1001".to_owned(),
            task: Some(serde_json::from_value(task).unwrap()),
        }
    }

    fn step(name: &str, state: &str, failures: u32, last_fault: Value) -> Value {
        json!({ "name": name, "state": state, "attempt": failures + 1,
            "failure_count": failures, "last_fault": last_fault })
    }

    #[test]
    fn an_order_under_way_shows_each_step_and_the_trouble_at_hand() {
        let busy = json!({ "message": "the service responded 503", "at": "" });
        let row = row(
            "processing",
            Value::Null,
            json!([
                step("reserve", "processed", 0, Value::Null),
                step("charge", "processing", 0, busy),
                step("ship", "waiting", 0, Value::Null),
            ]),
        );
        let shown = "  order-1001  reserve ✓  charge ↻  ship    the service responded 503";
        assert_eq!(line(&row, PLAIN), shown);
    }

    #[test]
    fn trouble_that_is_over_is_not_shown() {
        let busy = json!({ "message": "the service responded 503", "at": "" });
        let row = row(
            "processed",
            Value::Null,
            json!([
                step("reserve", "processed", 0, busy),
                step("charge", "processed", 1, Value::Null),
                step("ship", "processed", 0, Value::Null),
            ]),
        );
        assert_eq!(
            line(&row, PLAIN),
            "  order-1001  reserve ✓  charge ✓  ship ✓  processed"
        );
    }

    #[test]
    fn an_order_that_failed_says_why_and_what_it_needs() {
        let fault = json!({ "message": "the service responded 402", "at": "" });
        let row = row(
            "error",
            fault,
            json!([step("reserve", "error", 0, Value::Null)]),
        );
        assert!(line(&row, PLAIN).ends_with("  needs an operator: the service responded 402"));
    }

    #[test]
    fn the_last_line_counts_every_order_once() {
        let rows = [
            row("processed", Value::Null, json!([])),
            row("error", Value::Null, json!([])),
            row("processing", Value::Null, json!([])),
            BoardRow {
                key: "order-1002".to_owned(),
                task: None,
            },
        ];
        let lines = lines(&rows, PLAIN);
        assert_eq!(lines.len(), 5);
        assert_eq!(
            lines[4],
            "  1 processed, 1 waiting for an operator, 2 running"
        );
    }
}
