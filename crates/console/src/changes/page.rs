//! The page of changes, with the failures of the day above them.

use askama::Template;
use axum::response::Response;

use crate::{
    changes::{
        lines::{ChangeLine, lines},
        record::ChangePage,
    },
    hours::{self, Since},
    overview::Overview,
    params::Params,
    parts::Html,
    respond::next_page,
    service::Refusal,
    shell::{Section, Shell},
    visit::Visit,
};

/// The names of the parameters of `GET /v1/changes` that select.
pub const FILTER: [&str; 1] = ["types"];

const ROWS: &str = "50";
/// The filters that are offered as links: the types of the API, and their name.
const FAMILIES: [(&str, &str); 10] = [
    ("", "everything"),
    ("agent.*", "agents"),
    ("workflow.*", "workflows"),
    ("schedule.*", "schedules"),
    ("task.command", "commands on tasks"),
    ("ask.*", "decisions"),
    ("bulk_job.*", "bulk jobs"),
    ("message.*", "messages"),
    ("alert.*", "alerts"),
    ("instance.*,ledger.*", "instances"),
];

/// A filter that is offered as a link.
pub struct Family {
    pub name: &'static str,
    pub link: String,
    pub is_current: bool,
}

#[derive(Template)]
#[template(path = "changes.html")]
pub struct ChangesPage {
    pub page: Shell,
    pub query: Params,
    pub title: String,
    pub families: Vec<Family>,
    /// The failures of the last 24 hours; none on later pages, and if they cannot be read.
    pub failures: Option<Html>,
    pub lines: Vec<ChangeLine>,
    pub next: Option<String>,
    /// True: newer changes precede this page.
    pub is_later: bool,
}

impl ChangesPage {
    pub fn new(page: Shell, query: &Params, list: ChangePage, overview: Option<&Overview>) -> Self {
        let filter = query.only(&FILTER);
        let types = filter.text("types");
        let families = FAMILIES.iter().map(|(pattern, name)| Family {
            name,
            link: page.to(&format!(
                "/changes{}",
                match *pattern {
                    "" => String::new(),
                    pattern => Params::from_iter([("types", pattern)]).query(),
                }
            )),
            is_current: *pattern == types,
        });
        let is_later = query.get("after").is_some();
        let title = match (list.items.is_empty(), types) {
            (true, "") if !is_later => String::from("Nothing has been changed yet"),
            (true, _) => String::from("No change matches"),
            (false, "") => String::from("What changed, and what failed then"),
            (false, _) => String::from("What changed"),
        };
        Self {
            title,
            families: families.collect(),
            failures: overview.map(|overview| {
                let since = Since {
                    from: &overview.from,
                    now: page.now,
                };
                hours::of_failures(&since, &overview.by_hour)
            }),
            next: next_page(&filter, list.next_cursor.as_deref()),
            lines: lines(&page, list.items),
            query: filter,
            is_later,
            page,
        }
    }
}

pub async fn show(visit: Visit) -> Response {
    let page = build(&visit).await;
    visit.show(page)
}

async fn build(visit: &Visit) -> Result<ChangesPage, Refusal> {
    let mut asked = visit.query.only(&FILTER).with("limit", ROWS);
    if let Some(cursor) = visit.query.get("after") {
        asked = asked.with("cursor", cursor);
    }
    let target = format!("/v1/changes{}", asked.query());
    let is_first = visit.query.get("after").is_none();
    let overview = async {
        match is_first {
            true => visit.get::<Overview>("/v1/overview").await.ok(),
            false => None,
        }
    };
    let (list, overview) = tokio::join!(visit.get::<ChangePage>(&target), overview);
    let shell = visit.shell(Section::Changes, "Changes");
    Ok(ChangesPage::new(
        shell,
        &visit.query,
        list?,
        overview.as_ref(),
    ))
}
