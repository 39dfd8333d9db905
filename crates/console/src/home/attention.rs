//! The lines about everything that needs attention besides the causes of failures, the most urgent first.

use jiff::Timestamp;
use serde::Deserialize;

use crate::{
    overview::{Overview, OverviewAgent},
    params::Params,
    parts::{Html, counted, duration_in_words},
    schedules::view::{ScheduleHead, SchedulePage},
    service::Refusal,
    shell::Shell,
};

/// The most lines about agents.
const MOST_AGENTS: usize = 10;

/// The kinds of alerts that no other line of the page is about.
const OTHER_ALERTS: [&str; 7] = [
    "task.fault",
    "task.unreadable",
    "messages.waiting",
    "broker.unreachable",
    "secret.unusable",
    "agent.missing",
    "clock.set",
];

/// A list of which only a part of each item matters here.
#[derive(Deserialize)]
pub struct Listed<T> {
    pub items: Vec<T>,
}

#[derive(Deserialize)]
pub struct OpenAsk {
    pub until: Option<String>,
}

#[derive(Deserialize)]
pub struct DeadLetter {
    pub receiver: String,
    pub error: Option<String>,
}

#[derive(Deserialize)]
pub struct Alert {
    pub kind: String,
    pub message: String,
    /// The subject of an alert that is about no task, such as `missing-agent:payments`.
    #[serde(default)]
    pub receiver: Option<String>,
}

/// The responses that the lines are made of, besides the overview. Each may be refused without the others.
pub struct Sources {
    pub alerts: Result<Listed<Alert>, Refusal>,
    pub schedules: Result<SchedulePage, Refusal>,
    /// Read only if the overview counts any.
    pub asks: Option<Result<Listed<OpenAsk>, Refusal>>,
    pub letters: Option<Result<Listed<DeadLetter>, Refusal>>,
}

/// A line about something that needs attention.
pub struct Notice {
    pub badge: Html,
    pub sentence: String,
    pub link: String,
    pub link_name: &'static str,
}

/// Returns the lines, and notes the refusals of the parts that could not be read.
pub fn lines(
    page: &Shell,
    overview: Option<&Overview>,
    sources: Sources,
    refusals: &mut Vec<Refusal>,
) -> Vec<Notice> {
    let mut lines = Vec::new();
    let mut read = |refusal: Refusal| refusals.push(refusal);
    if let Some(overview) = overview {
        of_agents(page, overview, &mut lines);
    }
    let alerts = sources.alerts.map(|alerts| alerts.items);
    let alerts = alerts.map_err(&mut read).unwrap_or_default();
    let others = alerts
        .into_iter()
        .filter(|alert| OTHER_ALERTS.contains(&alert.kind.as_str()));
    lines.extend(others.map(|alert| of_alert(page, alert)));
    if let Some(overview) = overview {
        if !overview.at_risk.is_none() {
            let tasks = overview.at_risk.with_noun("task", "tasks");
            lines.push(Notice {
                badge: page.badge("paused", "clock", "at risk"),
                sentence: format!("{tasks} will be late, as far as is known"),
                link: page.to("/tasks?at_risk=true"),
                link_name: "tasks",
            });
        }
        let asks = sources.asks.map(|asks| asks.map_err(&mut read));
        if !overview.asks.is_none() {
            lines.push(of_asks(page, overview, asks.and_then(Result::ok)));
        }
        let letters = sources.letters.map(|letters| letters.map_err(&mut read));
        if !overview.messages.dead.is_none() {
            lines.push(of_letters(page, overview, letters.and_then(Result::ok)));
        }
    }
    let schedules = sources.schedules.map(|schedules| schedules.items);
    let schedules = schedules.map_err(&mut read).unwrap_or_default();
    lines.extend(schedules.iter().filter_map(|item| of_schedule(page, item)));
    lines
}

fn of_alert(page: &Shell, alert: Alert) -> Notice {
    let subject = alert.receiver.as_deref().unwrap_or_default();
    let missing = subject.strip_prefix("missing-agent:");
    let (link, link_name) = match missing {
        // An agent that is not registered has no page: what can be seen are the tasks that wait for it.
        Some(agent) => {
            let tasks = Params::from_iter([("agent", agent)]).query();
            (page.to(&format!("/tasks{tasks}")), "tasks")
        }
        None => (page.to("/alerts?state=open"), "alerts"),
    };
    Notice {
        badge: page.badge("error", "warn", alert.kind.replace(['.', '_'], " ")),
        sentence: alert.message,
        link,
        link_name,
    }
}

fn of_agents(page: &Shell, overview: &Overview, lines: &mut Vec<Notice>) {
    let troubled: Vec<_> = overview
        .agents
        .iter()
        .filter_map(|agent| of_agent(page, agent))
        .collect();
    let more = troubled.len().saturating_sub(MOST_AGENTS) as u64;
    lines.extend(troubled.into_iter().take(MOST_AGENTS));
    if more > 0 {
        lines.push(Notice {
            badge: page.badge("error", "open", "and"),
            sentence: format!(
                "{} in trouble",
                counted(more, "more agent is", "more agents are")
            ),
            link: page.to("/agents"),
            link_name: "agents",
        });
    }
}

fn of_agent(page: &Shell, agent: &OverviewAgent) -> Option<Notice> {
    let trouble = agent.trouble(page.now)?;
    let waits = match agent.queued {
        none if none.is_none() => String::new(),
        one if one.count == 1 => String::from("; 1 step waits"),
        many => format!("; {} steps wait", many.words()),
    };
    Some(Notice {
        badge: page.badge(trouble.class, trouble.shape, trouble.word),
        sentence: format!("{}: {}{waits}", agent.name, trouble.sentence),
        link: page
            .agent_page(&agent.name)
            .unwrap_or_else(|| page.to("/agents")),
        link_name: "agent",
    })
}

fn of_asks(page: &Shell, overview: &Overview, asks: Option<Listed<OpenAsk>>) -> Notice {
    let asks = asks.map(|asks| asks.items).unwrap_or_default();
    let soonest = asks
        .iter()
        .filter_map(|ask| ask.until.as_deref()?.parse::<Timestamp>().ok())
        .min();
    let closes = soonest.map(|at| {
        let left = duration_in_words(at.as_second() - page.now.as_second());
        format!("; the next one closes in {left}")
    });
    let (words, verb) = (overview.asks.with_noun("ask", "asks"), overview.asks.count);
    let verb = if verb == 1 { "waits" } else { "wait" };
    Notice {
        badge: page.badge("pending", "ask", words),
        sentence: format!("{verb} for people{}", closes.unwrap_or_default()),
        link: page.to("/asks"),
        link_name: "asks",
    }
}

fn of_letters(page: &Shell, overview: &Overview, letters: Option<Listed<DeadLetter>>) -> Notice {
    let dead = overview
        .messages
        .dead
        .with_noun("dead letter", "dead letters");
    let newest = letters.and_then(|letters| letters.items.into_iter().next());
    let sentence = match newest {
        Some(letter) => {
            let why = letter.error.as_deref().unwrap_or("no reason was recorded");
            format!("the newest to {}: {why}", letter.receiver)
        }
        None => String::from("were not delivered, and are not tried again"),
    };
    Notice {
        badge: page.badge("error", "mail", dead),
        sentence,
        link: page.to("/messages?state=dead"),
        link_name: "messages",
    }
}

fn of_schedule(page: &Shell, schedule: &ScheduleHead) -> Option<Notice> {
    let why = schedule.failing.as_deref()?;
    Some(Notice {
        badge: page.badge("error", "clock", "schedule failing"),
        sentence: format!("{}: {why}", schedule.name),
        link: page.schedule(&schedule.name),
        link_name: "schedule",
    })
}
