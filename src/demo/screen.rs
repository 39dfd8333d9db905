//! Shows the board: redrawn in place on a terminal, as one line per change elsewhere.

use std::{
    collections::HashMap,
    io::{self, IsTerminal, Write},
};

use super::{
    board::{self, BoardRow, Paint},
    width,
};
use crate::clock::{self, Instant};

pub struct Screen {
    pub paint: Paint,
    mode: Mode,
}

enum Mode {
    /// `drawn` is the number of lines on the screen.
    Live { drawn: usize },
    Plain {
        started: Instant,
        /// The last line of each order.
        said: HashMap<String, String>,
    },
}

impl Screen {
    pub fn new() -> Self {
        let term = std::env::var("TERM").unwrap_or_default();
        if !io::stdout().is_terminal() || term == "dumb" {
            let mode = Mode::Plain {
                started: clock::instant(),
                said: HashMap::new(),
            };
            return Self {
                paint: Paint { colours: false },
                mode,
            };
        }
        // The rule of <https://no-color.org>.
        let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            paint: Paint { colours },
            mode: Mode::Live { drawn: 0 },
        }
    }

    /// Shows the current rows. A closed output is an error that the demo cannot handle.
    pub fn show(&mut self, rows: &[BoardRow]) {
        let text = match &mut self.mode {
            Mode::Live { drawn } => {
                let columns = width::columns();
                let lines = board::lines(rows, self.paint);
                // A wrapped line would shift everything below it.
                let lines: Vec<_> = lines.iter().map(|line| width::cut(line, columns)).collect();
                let text = redraw(&lines, *drawn);
                *drawn = lines.len();
                text
            }
            Mode::Plain { started, said } => changes(rows, said, started.elapsed().as_secs_f32()),
        };
        let mut out = io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

const HIDE_CURSOR: &str = "\x1b[?25l";
const SHOW_CURSOR: &str = "\x1b[?25h";
/// The window may have become narrower in the meantime.
const CUT_LINES: &str = "\x1b[?7l";
const WRAP_LINES: &str = "\x1b[?7h";
const CLEAR_LINE: &str = "\x1b[2K";

fn redraw(lines: &[String], drawn: usize) -> String {
    let mut text = format!("{HIDE_CURSOR}{CUT_LINES}");
    if drawn > 0 {
        text += &format!("\x1b[{drawn}A");
    }
    for line in lines {
        text += &format!("\r{CLEAR_LINE}{line}\n");
    }
    text + WRAP_LINES + SHOW_CURSOR
}

/// Returns a line for each order with something new. A fault that is over is not new.
fn changes(rows: &[BoardRow], said: &mut HashMap<String, String>, seconds: f32) -> String {
    let mut text = String::new();
    for row in rows {
        let Some(task) = &row.task else { continue };
        let note = board::note(task);
        if note.is_empty() && said.contains_key(&row.key) && !task.is_at_rest() {
            continue;
        }
        let news = format!("{:<10}  {note}", task.state).trim_end().to_owned();
        if said.get(&row.key) != Some(&news) {
            text += &format!("{seconds:5.1}s  {}  {news}\n", row.key);
            said.insert(row.key.clone(), news);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(state: &str) -> BoardRow {
        let task = json!({ "id": "1", "state": state, "created_at": "", "steps": [] });
        BoardRow {
            key: "order-1001".to_owned(),
            task: Some(serde_json::from_value(task).unwrap()),
        }
    }

    #[test]
    fn elsewhere_only_what_is_new_is_said() {
        let mut said = HashMap::new();
        let first = changes(&[row("processing")], &mut said, 0.1);
        assert_eq!(first, "  0.1s  order-1001  processing\n");
        assert_eq!(changes(&[row("processing")], &mut said, 0.2), "");
        let last = changes(&[row("processed")], &mut said, 1.0);
        assert_eq!(last, "  1.0s  order-1001  processed\n");
    }

    #[test]
    fn a_board_is_drawn_over_the_one_before() {
        let lines = ["one".to_owned(), "two".to_owned()];
        assert!(!redraw(&lines, 0).contains("\x1b[2A"));
        let again = redraw(&lines, 2);
        assert!(
            again.contains("\x1b[2A\r\x1b[2Kone\n\r\x1b[2Ktwo\n"),
            "{again:?}"
        );
    }
}
