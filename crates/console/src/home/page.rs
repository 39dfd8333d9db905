//! The page: the first sentence, the causes of failures, everything else that is in trouble, then load, and the state of
//! agents, workflows and instances.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use jiff::Timestamp;

use super::attention::{self, Listed, Notice, Sources};
use crate::{
    causes::failure::{Failure, FailurePage},
    hours::{self, Since, latency},
    instances::Instance,
    overview::{Capped, Overview},
    parts::{Html, Spark, counted, duration_in_words, number},
    service::Refusal,
    shell::{NavCount, Section, Shell, has_page},
    tasks::list::TaskPage,
    visit::Visit,
};

/// The most rows of agents and of workflows.
const MOST_ROWS: usize = 12;

#[derive(Template)]
#[template(path = "home.html")]
pub struct HomePage {
    pub page: Shell,
    pub title: String,
    pub lead: String,
    /// The cause that the lead is about: its address and its sentence.
    pub grows: Option<(String, String)>,
    pub causes: Result<FailurePage, Refusal>,
    /// Says how many causes are not shown, if some are not.
    pub hidden_causes: Option<String>,
    pub lines: Vec<Notice>,
    /// The parts of those lines that could not be read.
    pub refusals: Vec<Refusal>,
    pub state: Result<StateOfService, Refusal>,
}

/// The part of the page that the overview has.
pub struct StateOfService {
    pub as_of: String,
    pub held: bool,
    pub facts: Vec<Fact>,
    pub tasks: Html,
    pub latency: Html,
    pub agents: Vec<AgentRow>,
    pub more_agents: usize,
    pub workflows: Vec<WorkflowRow>,
    pub more_workflows: usize,
    pub instances: Vec<Instance>,
}

pub struct Fact {
    pub name: &'static str,
    pub value: String,
}

pub struct AgentRow {
    pub name: String,
    /// Sums of several agents have none.
    pub link: Option<String>,
    pub badge: Html,
    pub sentence: String,
    pub queued: String,
    pub calls: String,
    pub failed: String,
    pub latency: String,
    pub spark: Option<Html>,
}

pub struct WorkflowRow {
    pub name: String,
    pub link: Option<String>,
    pub accepted: String,
    pub processed: String,
    pub failed: String,
    pub has_failed: bool,
    pub latency: String,
}

/// The page of a service that has no tasks yet.
#[derive(Template)]
#[template(path = "first_run.html")]
pub struct FirstRunPage {
    pub page: Shell,
    /// The address of the API, for the commands to copy.
    pub api: String,
    pub agents: usize,
    pub instances: Vec<Instance>,
}

/// Returns how many causes a list leaves out, as far as that is known.
fn hidden(causes: &FailurePage, overview: Option<&Overview>) -> Option<String> {
    if causes.next_cursor.is_none() && !causes.more_causes {
        return None;
    }
    let failures = overview.map(|overview| &overview.failures);
    let all = failures.map_or(0, |failures| failures.causes);
    let hidden = all.saturating_sub(causes.items.len() as u64);
    let is_least = failures.is_some_and(|failures| failures.more_causes);
    Some(match (hidden, is_least) {
        (0, _) => String::from("There are more causes, of fewer tasks."),
        (_, true) => format!(
            "More than {} are not shown, of fewer tasks.",
            counted(hidden, "other cause", "other causes")
        ),
        (1, false) => String::from("1 other cause is not shown, of fewer tasks."),
        (_, false) => format!(
            "{} are not shown, of fewer tasks.",
            counted(hidden, "other cause", "other causes")
        ),
    })
}

impl HomePage {
    pub fn new(
        mut page: Shell,
        overview: Result<Overview, Refusal>,
        causes: Result<FailurePage, Refusal>,
        sources: Sources,
    ) -> Self {
        let mut refusals = Vec::new();
        let lines = attention::lines(&page, overview.as_ref().ok(), sources, &mut refusals);
        let hidden_causes = causes.as_ref().ok();
        let hidden_causes = hidden_causes.and_then(|causes| hidden(causes, overview.as_ref().ok()));
        let summary = Sentences::of(overview.as_ref().ok(), causes.as_ref().ok());
        let title = summary.as_ref().map_or_else(
            || String::from("It is not known what needs a person"),
            Sentences::title,
        );
        let (lead, grows) = summary
            .as_ref()
            .map_or_else(Default::default, |summary| summary.lead(&page));
        if let Ok(overview) = &overview {
            page.counts = counts(overview);
        }
        Self {
            title,
            lead,
            grows,
            lines,
            refusals,
            state: overview.map(|overview| StateOfService::of(&page, overview)),
            causes,
            hidden_causes,
            page,
        }
    }
}

/// The numbers of which the first sentences are made.
struct Sentences<'a> {
    tasks: Capped,
    causes: Capped,
    growing: u64,
    /// The causes that are known, the most urgent first.
    known: &'a [Failure],
}

impl<'a> Sentences<'a> {
    /// Returns what is known from the overview, or else from the list of causes.
    fn of(overview: Option<&'a Overview>, causes: Option<&'a FailurePage>) -> Option<Self> {
        let listed = |causes: &[Failure]| Capped {
            count: causes
                .iter()
                .map(|cause| cause.tasks)
                .fold(0, u64::saturating_add),
            more: causes.iter().any(|cause| cause.more),
        };
        if let Some(overview) = overview {
            let failures = &overview.failures;
            // A step may have failed while others of its task go on: then the task is not in error yet.
            let tasks = match overview.in_state("error") {
                none if none.is_none() => listed(&failures.first),
                tasks => tasks,
            };
            return Some(Self {
                tasks,
                causes: Capped {
                    count: failures.causes,
                    more: failures.more_causes,
                },
                growing: failures.growing,
                known: &failures.first,
            });
        }
        let causes = causes?;
        let is_more = causes.more_causes || causes.next_cursor.is_some();
        let tasks = listed(&causes.items);
        Some(Self {
            tasks: Capped {
                more: tasks.more || is_more,
                ..tasks
            },
            causes: Capped {
                count: causes.items.len() as u64,
                more: is_more,
            },
            growing: causes.items.iter().filter(|cause| cause.growing).count() as u64,
            known: &causes.items,
        })
    }

    fn title(&self) -> String {
        if self.tasks.is_none() {
            return String::from("No task needs a person");
        }
        let verb = match self.tasks.count {
            1 if !self.tasks.more => "needs",
            _ => "need",
        };
        let title = format!("{} {verb} a person", self.tasks.with_noun("task", "tasks"));
        let title = match self.causes.is_none() {
            true => title,
            false => format!("{title}, for {}", self.causes.with_noun("cause", "causes")),
        };
        let mut letters = title.chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(letters).collect()
    }

    /// Returns the second sentence, and the cause that it ends with.
    fn lead(&self, page: &Shell) -> (String, Option<(String, String)>) {
        let grows = self.known.iter().find(|cause| cause.growing);
        let Some(cause) = grows else {
            let lead = match self.tasks.is_none() {
                true => "What runs, runs by itself.",
                false => "None of the causes grows.",
            };
            return (String::from(lead), None);
        };
        let ago = cause.first_at.parse::<Timestamp>().map_or_else(
            |_| String::from("some time"),
            |at| duration_in_words(page.now.as_second() - at.as_second()),
        );
        let lead = match self.growing {
            0 | 1 => format!("One cause grows. Its first task failed {ago} ago:"),
            many => format!(
                "{} causes grow. The most urgent of them began {ago} ago:",
                number(many)
            ),
        };
        let link = (page.cause(&cause.fingerprint), cause.sentence.clone());
        (lead, Some(link))
    }
}

/// Returns the numbers in the navigation.
fn counts(overview: &Overview) -> Vec<NavCount> {
    let counts = [
        (Section::Home, overview.in_state("error"), true),
        (Section::Asks, overview.asks, false),
        (Section::Messages, overview.messages.dead, true),
    ];
    let known = counts.into_iter().filter(|(_, count, _)| !count.is_none());
    let counts = known.map(|(section, count, is_bad)| NavCount {
        section,
        number: match count.more {
            true => format!("{}+", number(count.count.saturating_sub(1))),
            false => number(count.count),
        },
        is_bad,
    });
    counts.collect()
}

impl StateOfService {
    fn of(page: &Shell, overview: Overview) -> Self {
        let since = Since {
            from: &overview.from,
            now: page.now,
        };
        let latencies: Vec<_> = overview
            .by_hour
            .iter()
            .map(|hour| (hour.p50, hour.p99))
            .collect();
        let more = |all: usize| all.saturating_sub(MOST_ROWS);
        let agents = overview.agents.iter().take(MOST_ROWS);
        let workflows = overview.workflows.iter().take(MOST_ROWS);
        Self {
            held: overview.held,
            facts: facts(&overview),
            tasks: hours::of_tasks(&since, &overview.by_hour),
            latency: hours::of_latency(&since, "From submission to end, last 24 hours", &latencies),
            agents: agents.map(|agent| AgentRow::of(page, agent)).collect(),
            more_agents: more(overview.agents.len()),
            workflows: workflows
                .map(|workflow| WorkflowRow::of(page, workflow))
                .collect(),
            more_workflows: more(overview.workflows.len()),
            as_of: overview.as_of,
            instances: overview.instances,
        }
    }
}

fn facts(overview: &Overview) -> Vec<Fact> {
    let fact = |name, value| Fact { name, value };
    let day =
        |name, of: fn(&crate::overview::TaskActivity) -> u64| fact(name, number(overview.day(of)));
    vec![
        fact("processing now", overview.in_state("processing").words()),
        fact("pending", overview.in_state("pending").words()),
        day("accepted in 24 h", |hour| hour.accepted),
        day("processed in 24 h", |hour| hour.processed),
        day("failed in 24 h", |hour| hour.failed),
        fact("messages to deliver", overview.messages.pending.words()),
    ]
}

fn both(p50: Option<u64>, p99: Option<u64>) -> String {
    match (p50, p99) {
        (None, None) => String::from("–"),
        (p50, p99) => format!("{} / {}", latency(p50), latency(p99)),
    }
}

impl AgentRow {
    fn of(page: &Shell, agent: &crate::overview::OverviewAgent) -> Self {
        let (badge, sentence) = match agent.trouble(page.now) {
            Some(trouble) => (
                page.badge(trouble.class, trouble.shape, trouble.word),
                trouble.sentence,
            ),
            None if has_page(&agent.name) => {
                (page.badge("ok", "ok", "gets its calls"), String::new())
            }
            None => (page.badge("pending", "pending", "several"), String::new()),
        };
        let calls: Vec<_> = agent.by_hour.iter().map(|hour| hour.calls()).collect();
        let title = format!(
            "{} in the last 24 hours, by hour",
            counted(agent.day.calls(), "call", "calls")
        );
        Self {
            link: page.agent_page(&agent.name),
            name: agent.name.clone(),
            badge,
            sentence,
            queued: agent.queued.words(),
            calls: number(agent.day.calls()),
            failed: number(agent.day.failures()),
            latency: both(agent.day.p50, agent.day.p99),
            spark: (agent.day.calls() > 0).then(|| Spark::quiet(&title, &calls)),
        }
    }
}

impl WorkflowRow {
    fn of(page: &Shell, workflow: &crate::overview::WorkflowDay) -> Self {
        let day = &workflow.day;
        Self {
            link: has_page(&workflow.name).then(|| page.workflow(&workflow.name)),
            name: workflow.name.clone(),
            accepted: number(day.accepted),
            processed: number(day.processed),
            failed: number(day.failed),
            has_failed: day.failed > 0,
            latency: both(day.p50, day.p99),
        }
    }
}

pub async fn show(visit: Visit) -> Response {
    let (overview, causes, alerts, schedules) = tokio::join!(
        visit.get::<Overview>("/v1/overview"),
        visit.get::<FailurePage>("/v1/failures?limit=20"),
        visit.get("/v1/alerts?state=open&limit=100"),
        visit.get("/v1/schedules?limit=100"),
    );
    // A part that cannot be read is refused in its place; a person who may read none of them needs another role.
    if let (Err(refusal), Err(_)) = (&overview, &causes)
        && refusal.status == StatusCode::FORBIDDEN
    {
        return visit.refused(refusal);
    }
    let shell = visit.shell(Section::Home, "Home");
    let counts = |of: fn(&Overview) -> bool| overview.as_ref().is_ok_and(of);
    if counts(Overview::shows_no_task)
        && let Ok(tasks) = visit.get::<TaskPage>("/v1/tasks?limit=1").await
        && tasks.items.is_empty()
        && tasks.next_cursor.is_none()
    {
        return visit.show(overview.map(|overview| FirstRunPage {
            api: format!("{}{}", visit.origin(), shell.installation.base),
            agents: overview.agents.len(),
            instances: overview.instances,
            page: shell,
        }));
    }
    let asks = async {
        match counts(|overview| !overview.asks.is_none()) {
            true => Some(visit.get("/v1/asks?open=true&limit=100").await),
            false => None,
        }
    };
    let letters = async {
        match counts(|overview| !overview.messages.dead.is_none()) {
            true => Some(
                visit
                    .get::<Listed<_>>("/v1/messages?state=dead&limit=1")
                    .await,
            ),
            false => None,
        }
    };
    let (asks, letters) = tokio::join!(asks, letters);
    let sources = Sources {
        alerts,
        schedules,
        asks,
        letters,
    };
    visit.show(Ok(HomePage::new(shell, overview, causes, sources)))
}
