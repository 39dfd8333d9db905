//! The page of a command that was refused because what it is for has changed, or is in another state: what happened since
//! the person looked, by whom, and what they typed.

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;

use crate::{
    params::Params,
    respond,
    service::Refusal,
    shell::{Section, Shell},
    visit::Visit,
};

/// The field of a form that has the time at which the person looked.
pub const SEEN: &str = "seen";

/// The most lines of what happened.
const MOST_LINES: usize = 50;

/// A line of what happened.
pub struct LineRow {
    pub class: &'static str,
    pub shape: &'static str,
    pub at: String,
    pub bold: String,
    pub rest: String,
    /// The number in the history; empty if it has none.
    pub seq: String,
    pub by: String,
}

impl LineRow {
    /// Makes a line of something that a person or an instance has done.
    pub fn done(at: &str, by: &str, what: impl Into<String>, reason: Option<&str>) -> Self {
        Self {
            class: "hand",
            shape: "pending",
            at: at.to_owned(),
            bold: what.into(),
            rest: reason.map_or_else(String::new, |reason| format!(": “{reason}”")),
            seq: String::new(),
            by: by.to_owned(),
        }
    }
}

/// A link, and its text.
pub struct Link {
    pub to: String,
    pub text: String,
}

#[derive(Template)]
#[template(path = "changed.html")]
pub struct ChangedPage {
    pub page: Shell,
    /// The list that the thing is in, and the thing.
    pub list: Link,
    pub thing: Link,
    pub title: String,
    pub lead: String,
    pub lines: Vec<LineRow>,
    /// The command, as in `retry charge`.
    pub was: String,
    pub reason: String,
    pub typed: Option<String>,
    pub step_state: Option<(String, String)>,
    pub refusal: Refusal,
    /// The address of the preview, with what was typed.
    pub again: Option<String>,
}

/// A command that was sent, as far as this page repeats it.
pub struct Refused<'a> {
    pub section: Section,
    pub list: &'static str,
    /// The path of the thing, such as `/agents/payments`.
    pub path: String,
    /// The name of the thing, such as `agent payments`.
    pub name: String,
    /// The command, such as `pause`.
    pub command: &'a str,
    pub form: &'a Params,
    /// True: the command has a preview.
    pub has_preview: bool,
}

/// Returns whether a command was refused because of what happened before it.
pub fn is_change(refusal: &Refusal) -> bool {
    matches!(refusal.status, 409 | 412)
}

/// Responds with the page. `known` are the changes of the thing that are on record.
pub fn respond(
    visit: &Visit,
    refusal: Refusal,
    sent: &Refused<'_>,
    known: Vec<LineRow>,
) -> Response {
    let shell = visit.shell(sent.section, refusal.title.clone());
    let status = refusal.status();
    respond::page(status, &ChangedPage::new(shell, refusal, sent, known))
}

impl ChangedPage {
    fn new(page: Shell, refusal: Refusal, sent: &Refused<'_>, mut known: Vec<LineRow>) -> Self {
        let time = |at: &str| at.parse::<Timestamp>().ok();
        // Without the time at which the person looked, all of it may be new to them.
        let seen = sent.form.get(SEEN).and_then(time);
        known.retain(|line| seen.is_none_or(|seen| time(&line.at).is_some_and(|at| at > seen)));
        known.sort_by_key(|line| time(&line.at));
        known.truncate(MOST_LINES);
        let name = capital(&sent.name);
        let title = match refusal.status {
            412 => format!("{name} has changed since you looked: nothing was done"),
            _ => format!("{name}: {} was refused, and nothing was done", sent.command),
        };
        let kept = sent
            .form
            .without(SEEN)
            .without("if_match")
            .without("as_seen");
        let again = format!("{}/{}{}", page.to(&sent.path), sent.command, kept.query());
        Self {
            list: Link {
                to: page.to(&format!("/{}", sent.list)),
                text: capital(sent.list),
            },
            thing: Link {
                to: page.to(&sent.path),
                text: sent.name.clone(),
            },
            title,
            lead: format!("{}.", capital(refusal.detail.trim_end_matches('.'))),
            lines: known,
            was: sent.command.to_owned(),
            reason: sent.form.text("reason").to_owned(),
            typed: None,
            step_state: None,
            again: sent.has_preview.then_some(again),
            refusal,
            page,
        }
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}
