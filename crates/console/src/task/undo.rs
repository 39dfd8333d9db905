//! The plan of an undo: every call that would be made, in its stage, what remains, and what delays it.

use std::collections::BTreeSet;

use askama::Template;
use serde::Deserialize;

use super::{
    command::{Command, command_link},
    excerpt,
    record::{Raw, Task},
    words::why,
};
use crate::{parts::counted, service::Refusal, shell::Shell};

/// The response of `GET /v1/tasks/{id}/undo-plan`.
#[derive(Deserialize)]
pub struct Plan {
    pub possible: bool,
    #[serde(default)]
    pub under_way: bool,
    pub reason: Option<String>,
    #[serde(default)]
    pub running: Vec<Running>,
    #[serde(default)]
    pub calls: Vec<PlannedCall>,
    #[serde(default)]
    pub passed_over: Vec<PassedOver>,
    #[serde(default)]
    pub more_items: Vec<MoreItems>,
    pub fingerprint: String,
}

#[derive(Deserialize)]
pub struct Running {
    pub step: String,
    pub complete_by: String,
    pub on_undo: String,
}

#[derive(Deserialize)]
pub struct PlannedCall {
    pub step: String,
    pub undoes: String,
    pub state: String,
    pub stage: u32,
    pub because: String,
    pub request: Option<PlannedRequest>,
    pub cannot_render: Option<CannotRender>,
    pub task: Option<PlannedTask>,
    pub probe: Option<PlannedProbe>,
}

#[derive(Deserialize)]
pub struct PlannedRequest {
    pub agent: String,
    pub method: String,
    pub path: String,
    pub body: Option<Raw>,
    pub body_bytes: Option<u64>,
}

#[derive(Deserialize)]
pub struct CannotRender {
    pub message: String,
}

#[derive(Deserialize)]
pub struct PlannedTask {
    pub id: Option<String>,
    pub cannot_be_undone: Option<String>,
}

#[derive(Deserialize)]
pub struct PlannedProbe {
    pub request: Option<PlannedRequest>,
    #[serde(default)]
    pub only_if_unknown: bool,
}

#[derive(Deserialize)]
pub struct PassedOver {
    pub step: String,
    pub why: String,
    pub message: String,
}

#[derive(Deserialize)]
pub struct MoreItems {
    pub step: String,
    pub calls: u64,
    pub passed_over: u64,
}

impl Plan {
    /// Returns the number of calls, with those of items that the plan does not name.
    pub fn count(&self) -> u64 {
        let unnamed: u64 = self.more_items.iter().map(|more| more.calls).sum();
        self.calls.len() as u64 + unnamed
    }
}

/// A line of the plan.
pub enum PlanLine {
    Stage(&'static str),
    Call(Box<CallLine>),
}

pub struct CallLine {
    pub step: String,
    pub state: Option<String>,
    pub http: Option<String>,
    pub about: Vec<String>,
    pub child: Option<String>,
    pub ended_at: Option<String>,
    pub undoes: String,
    pub output: Option<String>,
    pub body: Option<String>,
}

pub struct Remains {
    pub step: String,
    pub output: Option<String>,
    pub at: Option<String>,
    pub why: String,
}

#[derive(Template)]
#[template(path = "task/undo.html")]
pub struct UndoPage {
    pub page: Shell,
    pub task: Task,
    pub title: String,
    pub lead: String,
    pub lines: Vec<PlanLine>,
    pub remains: Vec<Remains>,
    pub more: Vec<String>,
    pub facts: Vec<(&'static str, String)>,
    pub delays: Vec<String>,
    /// The reason why there is no form.
    pub refusal: Option<String>,
    pub post: String,
    pub etag: String,
    pub once: String,
    /// The reason that the person typed, when the form comes back.
    pub reason: String,
    pub complaint: Option<String>,
}

impl UndoPage {
    pub fn new(
        page: Shell,
        task: Task,
        plan: Plan,
        once: String,
        reason: String,
        complaint: Option<String>,
    ) -> Self {
        let services: BTreeSet<&str> = plan
            .calls
            .iter()
            .filter_map(|call| Some(call.request.as_ref()?.agent.as_str()))
            .collect();
        let stages = plan
            .calls
            .iter()
            .map(|call| call.stage)
            .collect::<BTreeSet<_>>();
        let calls = plan.count();
        let probes = plan
            .calls
            .iter()
            .filter(|call| call.probe.is_some())
            .count() as u64;
        let title = match (plan.under_way, calls) {
            (false, 0) => format!("Undo {}: no call is needed", task.name()),
            (under_way, _) => {
                let verb = if under_way { "The undo of" } else { "Undo" };
                let rest = if under_way { " remaining" } else { "" };
                let calls = counted(calls, "call", "calls");
                let to = match services.len() as u64 {
                    0 => String::new(),
                    count => format!(" to {}", counted(count, "service", "services")),
                };
                format!(
                    "{verb} {}: {calls}{rest}{to}, in {}",
                    task.name(),
                    counted(stages.len() as u64, "stage", "stages")
                )
            }
        };
        let lead = if plan.under_way {
            String::from(
                "The undo has begun; these calls remain, in reverse order of what took effect.",
            )
        } else {
            format!(
                "Everything that took effect is undone in reverse order; what has not begun never will. The plan holds for version {} of the task. If the task changes before you confirm, nothing happens.",
                task.version
            )
        };
        let mut lines = Vec::new();
        let mut stage = None;
        let counts = |stage: u32| plan.calls.iter().filter(|call| call.stage == stage).count();
        for call in &plan.calls {
            if stage != Some(call.stage) {
                lines.push(PlanLine::Stage(match (stage, counts(call.stage)) {
                    (None, 1) => "First",
                    (None, _) => "First, at the same time",
                    (Some(_), 1) => "Then",
                    (Some(_), _) => "Then, at the same time",
                }));
                stage = Some(call.stage);
            }
            lines.push(PlanLine::Call(Box::new(line(&task, call, plan.under_way))));
        }
        let remains = plan.passed_over.iter().map(|passed| {
            let step = task.step(&passed.step);
            let stays = step.filter(|_| passed.why == "no_undo");
            Remains {
                step: passed.step.clone(),
                output: stays
                    .and_then(|step| step.output.as_ref())
                    .map(|output| excerpt::brief(output.get(), 80)),
                at: stays.and_then(|step| step.ended_at.clone()),
                why: passed.message.replace('`', ""),
            }
        });
        let in_flight = match plan.running.as_slice() {
            [] => String::from("none"),
            running => {
                let words = running.iter().map(|call| match call.on_undo.as_str() {
                    "drop" => format!("{}: its call is dropped at once", call.step),
                    _ => format!(
                        "{}: the undo waits for it until {}",
                        call.step, call.complete_by
                    ),
                });
                words.collect::<Vec<_>>().join("; ")
            }
        };
        let with_probes = if probes > 0 {
            format!(", and {}", counted(probes, "probe", "probes"))
        } else {
            String::new()
        };
        let facts = vec![
            ("calls", format!("{calls}{with_probes}")),
            ("in flight", in_flight),
            (
                "can be stopped",
                String::from("yes: a pause holds it between two calls"),
            ),
            ("can be taken back", String::from("no")),
        ];
        let blocked = task
            .steps
            .iter()
            .filter(|step| step.undoes.is_some())
            .filter_map(|step| {
                let why = why(step.blocked_by.as_ref()?);
                why.badge
                    .is_some()
                    .then(|| format!("{}: {}", step.name, why.words))
            });
        let unsendable = plan.calls.iter().filter_map(|call| {
            let reason = call
                .task
                .as_ref()
                .and_then(|task| task.cannot_be_undone.as_ref())?;
            Some(format!("{} would be in error: {reason}", call.step))
        });
        let delays = blocked.chain(unsendable).collect();
        let refusal = if plan.under_way {
            Some(String::from("the undo is under way already"))
        } else if !plan.possible {
            Some(
                plan.reason
                    .clone()
                    .unwrap_or_else(|| String::from("the task cannot be undone now")),
            )
        } else if !page.operates() {
            Some(format!(
                "your role is {}; an undo needs the role operate",
                page.person.role.word()
            ))
        } else {
            None
        };
        Self {
            title,
            lead,
            remains: remains.collect(),
            more: plan
                .more_items
                .iter()
                .map(|more| {
                    format!(
                        "and {} more items of {}, and {} that need none",
                        more.calls, more.step, more.passed_over
                    )
                })
                .collect(),
            facts,
            delays,
            refusal,
            post: command_link(&page, &task.id, Command::Undo, None),
            etag: plan.fingerprint.clone(),
            once,
            reason,
            complaint,
            lines,
            task,
            page,
        }
    }
}

fn line(task: &Task, call: &PlannedCall, under_way: bool) -> CallLine {
    let undone = task.step(&call.undoes);
    let mut about = Vec::new();
    match call.because.as_str() {
        "unknown" => about.push(format!(
            "the outcome of {} is unknown: it may have taken effect",
            call.undoes
        )),
        "running" => about.push(format!(
            "the call of {} is in flight, and its result decides",
            call.undoes
        )),
        _ => {}
    }
    if let Some(probe) = &call.probe {
        let request = probe.request.as_ref().map_or_else(String::new, |request| {
            format!(": {} {}", request.method, request.path)
        });
        let when = if probe.only_if_unknown {
            "if its outcome stays unknown, a probe asks first"
        } else {
            "a probe asks first"
        };
        about.push(format!("{when}{request}. “not done” skips this call"));
    }
    if let Some(cannot) = &call.cannot_render {
        about.push(cannot.message.clone());
    }
    let child = call.task.as_ref().and_then(|task| task.id.clone());
    if call.task.is_some() {
        about.push(String::from(
            "no call is made: its task is undone, by a plan of its own",
        ));
    }
    let request = call.request.as_ref();
    CallLine {
        step: call.step.clone(),
        state: under_way.then(|| call.state.clone()),
        http: request
            .map(|request| format!("{} {} {}", request.method, request.agent, request.path)),
        about,
        child,
        ended_at: undone.and_then(|step| step.ended_at.clone()),
        undoes: call.undoes.clone(),
        output: undone
            .and_then(|step| step.output.as_ref())
            .map(|output| excerpt::brief(output.get(), 80)),
        body: request.and_then(|request| match (&request.body, request.body_bytes) {
            (Some(body), _) => Some(excerpt::excerpt(body.get(), false).text),
            (None, Some(bytes)) => Some(format!(
                "{} bytes, too many to show",
                crate::parts::number(bytes)
            )),
            (None, None) => None,
        }),
    }
}

/// Returns the plan, or nothing: the page of the task says less without it.
pub fn optional(plan: Result<Plan, Refusal>) -> Option<Plan> {
    plan.ok()
}
