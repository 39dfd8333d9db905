//! The output of a command. Standard output has nothing but data; notes, questions and progress go to standard error.

mod color;
mod table;
mod times;
mod yaml;

use std::{
    ffi::OsString,
    fmt,
    io::{self, ErrorKind, IsTerminal, Write},
};

use clap::ValueEnum;
use serde_json::value::RawValue;

pub use color::{Color, ColorChoice};
pub use table::{Cell, Table};
pub use times::{Times, millis_in_words, span_of};
pub use yaml::of_json as yaml_of_json;

use crate::{outcome::ClientError, plain::plain};

/// The form of the data on standard output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Format {
    /// For people: sentences and tables
    #[default]
    Table,
    /// The response of the API, unchanged
    Json,
    /// The response of the API as YAML
    Yaml,
    /// One id, fingerprint or name a line
    Name,
    /// One item of a list a line, as JSON
    Jsonl,
}

/// The way in which a command writes.
#[derive(Clone, Debug)]
pub struct Output {
    pub format: Format,
    pub times: Times,
    /// The columns of the terminal. `None`: standard output is no terminal, and nothing is cut.
    width: Option<usize>,
    has_color: bool,
    /// True if a person can be asked: standard input and standard error are terminals.
    is_interactive: bool,
    shows_progress: bool,
}

impl Output {
    pub fn new(format: Format, color: ColorChoice, utc: bool) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let on_error = io::stderr().is_terminal();
        Self {
            format,
            times: Times::new(utc),
            width: is_terminal.then(terminal_width),
            has_color: color.is_on(
                is_terminal && !is_dumb(std::env::var_os("TERM")),
                std::env::var_os("NO_COLOR"),
            ),
            is_interactive: io::stdin().is_terminal() && on_error,
            shows_progress: on_error,
        }
    }

    #[cfg(test)]
    pub fn of_tests(format: Format, width: Option<usize>) -> Self {
        let now = "2026-03-01T12:00:00Z".parse().expect("a time");
        Self {
            format,
            times: Times::at(false, now),
            width,
            has_color: false,
            is_interactive: false,
            shows_progress: false,
        }
    }

    pub fn is_for_people(&self) -> bool {
        self.format == Format::Table
    }

    pub fn is_interactive(&self) -> bool {
        self.is_interactive
    }

    pub fn shows_progress(&self) -> bool {
        self.shows_progress
    }

    /// Returns the text in a colour, if colours are on.
    pub fn paint(&self, color: Color, text: &str) -> String {
        match self.has_color {
            true => color.paint(text),
            false => text.to_owned(),
        }
    }

    /// Returns the state of a task or a step in its colour.
    pub fn state(&self, state: &str) -> String {
        self.paint(Color::of_state(state), &plain(state))
    }

    /// Prints a line for people.
    pub fn say(&self, line: impl fmt::Display) -> Result<(), ClientError> {
        write(format_args!("{line}\n"))
    }

    /// Prints a table with its title, unless it has no rows.
    pub fn table(&self, title: &str, table: &Table) -> Result<(), ClientError> {
        if table.is_empty() {
            return Ok(());
        }
        if !title.is_empty() {
            self.say(self.paint(Color::Bold, title))?;
        }
        let text = table.layout(self.width, |color, text| self.paint(color, text));
        write(format_args!("{}", text.lines))?;
        if let [first, rest @ ..] = text.left_out.as_slice() {
            let (columns, have) = match rest {
                [] => (format!("column {first}"), "has"),
                _ => (format!("columns {}", text.left_out.join(", ")), "have"),
            };
            note(format_args!(
                "the {columns} {have} no room here: a wider terminal shows all, and so does -o json"
            ));
        }
        Ok(())
    }

    /// Prints a list for people. If it has nothing, a note says so: an empty answer could be a failure.
    pub fn rows(&self, table: &Table, nothing: &str) -> Result<(), ClientError> {
        match table.is_empty() {
            true => {
                note(nothing);
                Ok(())
            }
            false => self.table("", table),
        }
    }

    /// Prints one object: a response as it came, or its name.
    pub fn object(&self, json: &str, name: &str) -> Result<(), ClientError> {
        match self.format {
            // A plan has no name.
            Format::Name if name.is_empty() => Ok(()),
            Format::Name => self.say(plain(name)),
            Format::Yaml => write(format_args!("{}", yaml::of_json(json))),
            Format::Table | Format::Json | Format::Jsonl => self.say(json.trim_end()),
        }
    }

    /// Prints one object of a stream without end: a line, a document of YAML, or its name.
    pub fn streamed(&self, json: &str, name: &str) -> Result<(), ClientError> {
        match self.format {
            Format::Name => self.say(plain(name)),
            Format::Yaml => {
                self.say("---")?;
                write(format_args!("{}", yaml::of_json(json)))
            }
            Format::Table | Format::Json | Format::Jsonl => self.say(json),
        }
    }

    /// Prints one object of several things: a response as it came, or their names, one a line.
    pub fn object_of<'a>(
        &self,
        json: &str,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), ClientError> {
        match self.format {
            Format::Name => names.into_iter().try_for_each(|name| self.say(plain(name))),
            Format::Table | Format::Json | Format::Yaml | Format::Jsonl => self.object(json, ""),
        }
    }

    /// Prints a list in a form for programs. `page` is the response, with all items that were read.
    pub fn list(
        &self,
        page: &str,
        items: &[Box<RawValue>],
        name: impl Fn(&str) -> String,
    ) -> Result<(), ClientError> {
        match self.format {
            Format::Json | Format::Table => self.say(page.trim_end()),
            Format::Yaml => write(format_args!("{}", yaml::of_json(page))),
            Format::Name => items
                .iter()
                .try_for_each(|item| self.say(plain(&name(item.get())))),
            Format::Jsonl => items.iter().try_for_each(|item| self.say(item.get())),
        }
    }
}

/// Returns whether a terminal, which TERM names, knows no colours.
fn is_dumb(term: Option<OsString>) -> bool {
    term.is_some_and(|term| term == "dumb")
}

/// Prints a note on standard error.
pub fn note(text: impl fmt::Display) {
    eprintln!("{text}");
}

/// Writes to standard output.
pub fn write(text: fmt::Arguments<'_>) -> Result<(), ClientError> {
    let mut out = io::stdout().lock();
    let written = out.write_fmt(text).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => ClientError::ClosedOutput,
        _ => ClientError::Output(error),
    })
}

/// Returns the columns of the terminal that standard output is.
fn terminal_width() -> usize {
    const USUAL: usize = 80;
    let size = rustix::termios::tcgetwinsize(io::stdout());
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    match columns {
        0 => USUAL,
        columns => columns,
    }
}
