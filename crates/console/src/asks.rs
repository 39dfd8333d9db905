//! The list of questions that people are asked.

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;
use serde::Deserialize;

use crate::{
    changes::{
        lines::{ChangeLine, lines},
        record::{ChangePage, LedgerChange},
    },
    params::Params,
    parts::{counted, duration_in_words},
    respond::next_page,
    service::Refusal,
    shell::{Section, Shell},
    visit::Visit,
};

/// A page of `GET /v1/asks`.
#[derive(Deserialize)]
pub struct AskPage {
    pub items: Vec<Ask>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize)]
pub struct Ask {
    pub task: String,
    pub key: Option<String>,
    pub workflow: Option<String>,
    pub step: String,
    pub title: Option<String>,
    pub until: Option<String>,
    pub people: Vec<AskedPerson>,
}

#[derive(Deserialize)]
pub struct AskedPerson {
    pub person: String,
    pub choice: Option<String>,
}

impl Ask {
    pub fn task_name(&self) -> &str {
        self.key.as_deref().unwrap_or(&self.task)
    }

    pub fn place(&self) -> String {
        match &self.workflow {
            Some(workflow) => format!("{workflow} › {}", self.step),
            None => self.step.clone(),
        }
    }

    fn closes_at(&self) -> Option<Timestamp> {
        self.until.as_deref()?.parse().ok()
    }

    /// Returns the time that is left, in words.
    pub fn left(&self, page: &Shell) -> Option<String> {
        let seconds = self.closes_at()?.as_second() - page.now.as_second();
        Some(format!("in {}", duration_in_words(seconds)))
    }
}

/// The latest decisions of people.
const DECIDED: &str = "/v1/changes?types=ask.decided&limit=10";

#[derive(Template)]
#[template(path = "asks.html")]
pub struct AsksPage {
    pub page: Shell,
    pub title: String,
    pub lead: String,
    pub asks: Vec<Ask>,
    pub next: Option<String>,
    /// The text that is searched.
    pub text: String,
    /// The latest decisions; none on later pages, and if they cannot be read.
    pub lines: Vec<ChangeLine>,
}

impl AsksPage {
    pub fn new(page: Shell, filter: &Params, list: AskPage, decided: Vec<LedgerChange>) -> Self {
        let mut asks = list.items;
        asks.sort_by_key(Ask::closes_at);
        let count = asks.len() as u64;
        let title = match (count, list.next_cursor.is_some()) {
            (0, true) => String::from("No question among the first matches"),
            (0, false) if filter.get("text").is_some() => String::from("No question matches"),
            (0, false) => String::from("No question waits for a person"),
            (1, false) => String::from("1 question waits for people"),
            (_, is_part) => format!(
                "{}{} wait for people",
                if is_part { "At least " } else { "" },
                counted(count, "question", "questions")
            ),
        };
        let soonest = asks
            .iter()
            .filter(|ask| ask.until.is_some())
            .find_map(|ask| ask.left(&page));
        let lead = match soonest {
            Some(left) => format!("The next one closes {left}."),
            None => String::new(),
        };
        Self {
            title,
            lead,
            next: next_page(filter, list.next_cursor.as_deref()),
            text: filter.text("text").to_owned(),
            asks,
            lines: lines(&page, decided),
            page,
        }
    }
}

pub async fn list(visit: Visit) -> Response {
    let page = build(&visit).await;
    visit.show(page)
}

async fn build(visit: &Visit) -> Result<AsksPage, Refusal> {
    let filter = visit.query.only(&["text"]);
    let mut query = filter.with("open", "true").with("limit", "50");
    if let Some(cursor) = visit.query.get("after") {
        query = query.with("cursor", cursor);
    }
    let target = format!("/v1/asks{}", query.query());
    let is_first = visit.query.get("after").is_none();
    let decided = async {
        match is_first {
            true => visit.get::<ChangePage>(DECIDED).await.ok(),
            false => None,
        }
    };
    let (list, decided) = tokio::join!(visit.get(&target), decided);
    let decided = decided.map_or_else(Vec::new, |page| page.items);
    let page = visit.shell(Section::Asks, "Asks");
    Ok(AsksPage::new(page, &filter, list?, decided))
}
