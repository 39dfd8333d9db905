//! `provost status`: what needs a person, and how everything is.

use serde_json::value::RawValue;

use crate::{
    failures,
    operations::{GET_OVERVIEW, LIST_ALERTS},
    outcome::{ClientError, Outcome},
    output::{Cell, Color, Table, millis_in_words},
    plain::plain,
    session::Session,
    shapes::{AgentOverviewJson, AlertJson, CountJson, OverviewJson},
};

/// The most alerts that are shown.
const ALERTS: usize = 20;

pub async fn run(session: &Session) -> Result<Outcome, ClientError> {
    let out = &session.out;
    let response = session.api.request(&GET_OVERVIEW, &[]).send().await?;
    let overview: OverviewJson = response.read()?;
    if !out.is_for_people() {
        let causes = overview.failures.first.iter();
        let fingerprints = causes.map(|failure| &*failure.fingerprint);
        out.object_of(&response.text, fingerprints)?;
        return Ok(Outcome::Done);
    }
    let open = [("state", "open".to_owned())];
    let alerts = session.api.list(&LIST_ALERTS, &[], &open, ALERTS).await?;
    out.say(headline(&overview))?;
    let counts = overview.tasks.iter().filter(|tasks| tasks.count > 0);
    let counts: Vec<_> = counts
        .map(|tasks| {
            let sign = if tasks.more { "+" } else { "" };
            format!("{} {}{sign}", out.state(&tasks.state), tasks.count)
        })
        .collect();
    if !counts.is_empty() {
        out.say(format_args!("Tasks: {}", counts.join(", ")))?;
    }
    out.table(
        "\nCauses",
        &failures::table(session, &overview.failures.first),
    )?;
    let hidden = overview
        .failures
        .causes
        .saturating_sub(overview.failures.first.len() as u64);
    if hidden > 0 {
        out.say(format_args!("{hidden} more: provost failures"))?;
    }
    out.table("\nAlerts", &alerts_table(session, &alerts.items))?;
    out.table("\nAgents", &agents_table(&overview.agents))?;
    out.table("\nInstances", &instances_table(session, &overview))?;
    if let Some(first) = overview.failures.first.first() {
        out.say(format_args!(
            "\nNext: provost failures {}",
            first.fingerprint
        ))?;
    }
    Ok(Outcome::Done)
}

/// Returns what needs a person, in a sentence.
fn headline(overview: &OverviewJson) -> String {
    let count = |count: &CountJson| match count.more {
        true => format!("{}+", count.count),
        false => count.count.to_string(),
    };
    let mut parts = Vec::new();
    let failures = &overview.failures;
    if failures.causes > 0 {
        let more = if failures.more_causes { "+" } else { "" };
        let (causes, need) = plural(failures.causes, "cause");
        let growing = match failures.growing {
            0 => String::new(),
            growing => format!(" ({growing} growing)"),
        };
        parts.push(format!(
            "{}{more} {causes} {need} you{growing}",
            failures.causes
        ));
    }
    if overview.asks.count > 0 {
        parts.push(format!(
            "{} {} open",
            count(&overview.asks),
            plural(overview.asks.count, "question").0
        ));
    }
    if overview.messages.dead.count > 0 {
        let dead = &overview.messages.dead;
        parts.push(format!(
            "{} dead {}",
            count(dead),
            plural(dead.count, "message").0
        ));
    }
    if overview.at_risk.count > 0 {
        parts.push(format!(
            "{} {} will be late",
            count(&overview.at_risk),
            plural(overview.at_risk.count, "task").0
        ));
    }
    let trouble = overview.agents.iter().filter(|agent| agent.trouble).count();
    if trouble > 0 {
        parts.push(format!(
            "{trouble} {} in trouble",
            plural(trouble as u64, "agent").0
        ));
    }
    let held = match overview.held {
        true => "This instance is held: it calls nothing until POST /v1/hold/release. ",
        false => "",
    };
    match parts.is_empty() {
        true => format!("{held}Nothing needs you."),
        false => format!("{held}{}.", parts.join(", ")),
    }
}

fn plural(count: u64, noun: &str) -> (String, &'static str) {
    match count {
        1 => (noun.to_owned(), "needs"),
        _ => (format!("{noun}s"), "need"),
    }
}

fn alerts_table(session: &Session, items: &[Box<RawValue>]) -> Table {
    let mut table = Table::new(&["KIND", "STEPS", "RAISED", "MESSAGE"]);
    table.wrap_last();
    table.leave_out_first(&["STEPS", "RAISED"]);
    for item in items {
        let Ok(alert) = serde_json::from_str::<AlertJson>(item.get()) else {
            continue;
        };
        table.row([
            Cell::new(&alert.kind).in_color(Color::Red),
            Cell::number(alert.count),
            Cell::new(session.out.times.show(&alert.raised_at)),
            Cell::new(alert.cause.as_deref().unwrap_or(&alert.message)),
        ]);
    }
    table
}

fn agents_table(agents: &[AgentOverviewJson]) -> Table {
    let mut table = Table::new(&[
        "AGENT",
        "STATE",
        "QUEUED",
        "IN FLIGHT",
        "24 H",
        "RETRIED",
        "FAILED",
        "P99",
        "WHY",
    ]);
    for agent in agents {
        let (state, why) = state_of(agent);
        let p99 = agent.day.p99.map(millis_in_words);
        table.row([
            Cell::new(&agent.name),
            Cell::state(state),
            Cell::at_least(agent.queued.count, agent.queued.more),
            Cell::number(agent.in_flight),
            Cell::number(agent.day.processed),
            Cell::number(agent.day.retried),
            Cell::number(agent.day.failed),
            Cell::optional(p99.as_deref()),
            Cell::new(why),
        ]);
    }
    table
}

/// Returns the state of an agent, and why it is in it.
fn state_of(agent: &AgentOverviewJson) -> (&'static str, String) {
    if let Some(pause) = &agent.pause {
        let reason = pause.reason.as_deref().unwrap_or_default();
        return ("paused", plain(&format!("by {} {reason}", pause.by)));
    }
    if let Some(throttle) = &agent.throttle {
        return ("throttled", plain(&throttle.reason));
    }
    let breaker = agent
        .breakers
        .iter()
        .find(|breaker| breaker.state != "closed");
    if let Some(breaker) = breaker {
        let reason = breaker.reason.as_deref().unwrap_or_default();
        return ("open", plain(&format!("{}: {reason}", breaker.endpoint)));
    }
    match agent.trouble {
        true => {
            let endpoint = agent
                .endpoints
                .iter()
                .find_map(|endpoint| endpoint.reason.as_deref());
            ("unhealthy", plain(endpoint.unwrap_or_default()))
        }
        false => ("active", String::new()),
    }
}

fn instances_table(session: &Session, overview: &OverviewJson) -> Table {
    let mut table = Table::new(&[
        "INSTANCE",
        "STATE",
        "ROLE",
        "STARTED",
        "VERSION",
        "IN FLIGHT",
    ]);
    for instance in &overview.instances {
        let role = if instance.supervising {
            "supervises"
        } else {
            ""
        };
        table.row([
            Cell::new(&instance.id),
            Cell::state(if instance.alive { "active" } else { "dead" }),
            Cell::new(role),
            Cell::new(session.out.times.show(&instance.started_at)),
            Cell::new(&instance.version),
            Cell::number(instance.in_flight),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_says_what_needs_a_person() {
        assert_eq!(headline(&OverviewJson::default()), "Nothing needs you.");
        let json = r#"{"failures":{"causes":3,"more_causes":false,"growing":1,"first":[]},"asks":{"count":1,"more":false},
            "messages":{"dead":{"count":1001,"more":true}},"at_risk":{"count":0}}"#;
        assert_eq!(
            headline(&serde_json::from_str(json).unwrap()),
            "3 causes need you (1 growing), 1 question open, 1001+ dead messages."
        );
    }
}
