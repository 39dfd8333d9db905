//! Commands for an agent: pause, resume, and its breakers. Each has a page that says what will happen.

use axum::{
    extract::{Path, Request},
    response::Response,
};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use super::view::Agent;
use crate::{
    changed::{self, is_change},
    command_page::{CommandPage, Field},
    form::read_form,
    overview::{Capped, Overview},
    params::{Params, encoded},
    parts::counted,
    service::Refusal,
    shell::Section,
    visit::Visit,
};

/// The field with the time for which the page says that the agent is paused.
const FOR_SEEN: &str = "for_seen";

/// The field with what operators had done to the agent when the person looked.
const AS_SEEN: &str = "as_seen";

pub async fn preview(Path((name, command)): Path<(String, String)>, visit: Visit) -> Response {
    let page = build(&visit, &name, &command).await;
    visit.show(page)
}

fn pause_consequences(calls: &str, queued: Option<Capped>) -> Vec<String> {
    let continues = format!("{calls} in flight continue, and their responses count.");
    let waits = String::from(
        "Steps of this agent wait until it is resumed. Tasks whose time runs out meanwhile are late or fail.",
    );
    let queued =
        queued.map(|queued| format!("Queued for it now: {}.", queued.with_noun("step", "steps")));
    [continues]
        .into_iter()
        .chain(queued)
        .chain([waits])
        .collect()
}

/// Returns the number of steps that are queued for an agent, if it is known.
async fn queued(visit: &Visit, name: &str) -> Option<Capped> {
    let overview: Overview = visit.get("/v1/overview").await.ok()?;
    let agent = overview.agents.into_iter().find(|agent| agent.name == name);
    agent.map(|agent| agent.queued)
}

async fn build(visit: &Visit, name: &str, command: &str) -> Result<CommandPage, Refusal> {
    let agent: Agent = visit.get(&format!("/v1/agents/{}", encoded(name))).await?;
    let calls = counted(agent.in_flight, "call", "calls");
    let (title, consequences, fields, is_final) = match command {
        "pause" => (
            match visit.query.text("for").trim() {
                "" => format!("Pause agent {name}: it gets no new calls"),
                span => format!("Pause agent {name} for {span}: it gets no new calls"),
            },
            pause_consequences(&calls, queued(visit, name).await),
            vec![
                Field::new(
                    "for",
                    "For how long: 30m, 2h. Empty: until it is resumed",
                    visit.query.text("for"),
                ),
                Field::hidden(FOR_SEEN, visit.query.text("for")),
            ],
            false,
        ),
        "resume" => (
            format!("Resume agent {name}: it gets calls again"),
            vec![String::from(
                "Steps that wait for this agent are called, within its limits.",
            )],
            Vec::new(),
            false,
        ),
        "open" => (
            format!("Open the breakers of agent {name}: no calls until they are closed"),
            vec![format!("{calls} in flight continue. New steps wait.")],
            Vec::new(),
            true,
        ),
        "close" => (
            format!("Close the breakers of agent {name}: all calls go to it again"),
            vec![String::from(
                "Steps that wait are called at once, within the limits. If the service still fails, the breakers open again.",
            )],
            Vec::new(),
            false,
        ),
        "reset" => (
            format!("Reset the breakers of agent {name}: they begin to count anew"),
            vec![String::from(
                "What operators decided about the breakers is forgotten; the rule of the agent holds again.",
            )],
            Vec::new(),
            false,
        ),
        _ => {
            let detail = format!("agents have no command {command}");
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "No such command",
                detail,
            ));
        }
    };
    let page = visit.shell(Section::Agents, title.clone());
    let mut fields = fields;
    fields.push(Field::hidden(AS_SEEN, &agent.commanded()));
    Ok(CommandPage {
        action: page.agent_command(name, command),
        back: page.agent(name),
        button: format!("{}{} {name}", command[..1].to_uppercase(), &command[1..]),
        asks_reason: true,
        reason: visit.query.text("reason").to_owned(),
        title,
        consequences,
        fields,
        is_final,
        needs_admin: false,
        fault: None,
        page,
    })
}

pub async fn send(
    Path((name, command)): Path<(String, String)>,
    visit: Visit,
    request: Request,
) -> Response {
    let form = read_form(request.into_body()).await;
    let reason = form.get("reason");
    let sent = changed::Refused {
        section: Section::Agents,
        list: "agents",
        path: format!("/agents/{}", encoded(&name)),
        name: format!("agent {name}"),
        command: &command,
        form: &form,
        has_preview: true,
    };
    if let Some(seen) = form.get(AS_SEEN) {
        let of = format!("/v1/agents/{}", encoded(&name));
        match visit.get::<Agent>(&of).await {
            Ok(now) if now.commanded() == seen => {}
            Ok(now) => return changed::respond(&visit, since(&name), &sent, now.changes()),
            Err(refusal) => return visit.refused(&refusal),
        }
    }
    // Another time than the page has said: it says that first.
    if let Some(seen) = form.all(FOR_SEEN).next()
        && seen.trim() != form.text("for").trim()
    {
        let shown = Params::from_iter([("for", form.text("for")), ("reason", form.text("reason"))]);
        let page = format!("/agents/{}/pause{}", encoded(&name), shown.query());
        return visit.go(&page);
    }
    let (path, body) = match command.as_str() {
        "pause" => {
            let mut body = json!({});
            for (field, value) in [("for", form.get("for")), ("reason", reason)] {
                if let Some(value) = value {
                    body[field] = value.into();
                }
            }
            ("pause", body)
        }
        "resume" => ("resume", json!({})),
        action => {
            let mut body = json!({ "action": action });
            if let Some(reason) = reason {
                body["reason"] = reason.into();
            }
            ("breaker", body)
        }
    };
    let target = format!("/v1/agents/{}/{path}", encoded(&name));
    let done: Result<Value, Refusal> = visit.post(&target, HeaderMap::new(), &body).await;
    match done {
        Ok(_) => visit.go(&format!("/agents/{}", encoded(&name))),
        Err(refusal) if is_change(&refusal) => {
            let of = format!("/v1/agents/{}", encoded(&name));
            let now = visit.get::<Agent>(&of).await;
            let changes = now.map(|agent| agent.changes());
            changed::respond(&visit, refusal, &sent, changes.unwrap_or_default())
        }
        Err(refusal) => visit.refused(&refusal),
    }
}

/// Returns the refusal of a command whose preview showed an older state of the agent.
fn since(name: &str) -> Refusal {
    Refusal::new(
        StatusCode::PRECONDITION_FAILED,
        "The agent has changed",
        format!(
            "agent {name} was paused or resumed, or its breakers were commanded, since you looked"
        ),
    )
}
