//! The messages about what people are asked: to the submitter, and to alert webhooks. They carry a link for each person,
//! with which that person decides; the receiver passes the links on.

use serde::Serialize;
use uuid::Uuid;

use crate::{
    alert_message::{AlertFormat, escaped},
    ask::{AskChange, OpenAsk},
    definition::AskField,
    history::Event,
    ids::{StepIndex, StepName, StepRef, TaskId},
    message::{CloudEvent, Message, Sender, position},
    step::StepState,
    task::Task,
    time::Timestamp,
};

/// The event of an alert webhook for each question.
pub const ASK_EVENT: &str = "ask.opened";

/// In the positions of a change: after those of its alerts.
const AFTER_ALERTS: usize = 2;

/// What people are asked.
#[derive(Serialize)]
pub struct AskNotice<'a> {
    title: &'a str,
    text: Option<&'a str>,
    choices: &'a [String],
    fields: &'a [AskField],
    /// So many people must choose the first choice.
    approvals: u32,
    /// Until then the links decide.
    until: Timestamp,
    people: Vec<AskedPerson<'a>>,
}

#[derive(Serialize)]
struct AskedPerson<'a> {
    person: &'a str,
    /// A credential of this person alone; null without a public URL.
    link: Option<String>,
}

/// The data of a message to an alert webhook.
#[derive(Serialize)]
struct AskData<'a> {
    task: TaskId,
    key: Option<&'a str>,
    workflow: Option<&'a str>,
    step: &'a StepName,
    ask: AskNotice<'a>,
}

impl Sender {
    /// The link of one person.
    pub fn ask_link(&self, step: StepRef, ask: &OpenAsk, person: u16) -> Option<String> {
        let (key, _) = (self.ask_key.as_ref()?, self.public_url.as_ref()?);
        let token = key.ask_token(step, ask.attempt, person);
        Some(self.link(&format!("/v1/asks/{token}")))
    }

    /// What an event of the history says that people are asked, as long as they are.
    pub(super) fn notice_of<'a>(&self, task: &'a Task, event: &Event) -> Option<AskNotice<'a>> {
        if event.kind != "step.asked" {
            return None;
        }
        self.ask_notice(task, task.find(event.step.as_ref()?.as_str())?)
    }

    fn ask_notice<'a>(&self, task: &'a Task, index: StepIndex) -> Option<AskNotice<'a>> {
        let step = task.step(index);
        let ask = step.ask.as_deref()?;
        let StepState::Processing { complete_by, .. } = step.state else {
            return None;
        };
        let rule = task.definition(index).work.ask()?;
        let of = StepRef {
            task: task.id(),
            step: index,
        };
        let people = (0..).zip(&ask.text.of).map(|(person, name)| AskedPerson {
            person: name,
            link: self.ask_link(of, ask, person),
        });
        Some(AskNotice {
            title: &ask.text.title,
            text: ask.text.text.as_deref(),
            choices: &rule.choices,
            fields: &rule.fields,
            approvals: rule.approvals,
            until: complete_by,
            people: people.collect(),
        })
    }

    /// The messages to each alert webhook about the questions that a change has opened. A channel that several people read
    /// gets no link of one of them.
    pub fn asks(
        &self,
        task: &Task,
        asks: &[AskChange],
        at: Timestamp,
        mut new_id: impl FnMut() -> Uuid,
    ) -> Vec<Message> {
        let mut messages = Vec::new();
        for (place, change) in asks.iter().enumerate() {
            let AskChange::Open(index) = *change else {
                continue;
            };
            for webhook in &self.webhooks {
                let Some(ask) = self.ask_notice(task, index) else {
                    continue;
                };
                let id = new_id();
                let body = match webhook.format {
                    AlertFormat::Generic => {
                        let workflow = task.details.workflow.as_ref();
                        let data = AskData {
                            task: task.id(),
                            key: task.details.key.as_deref(),
                            workflow: workflow.map(|workflow| workflow.name.as_str()),
                            step: &task.definition(index).name,
                            ask,
                        };
                        let source = self.link("/v1/asks");
                        let subject = task.id().to_string();
                        CloudEvent::new(id, source, ASK_EVENT, subject, at, data).into_json()
                    }
                    AlertFormat::Slack => {
                        serde_json::json!({ "text": self.slack_ask(task, &ask) }).to_string()
                    }
                };
                messages.push(Message {
                    id,
                    receiver: webhook.receiver.clone(),
                    subject: task.id().0,
                    position: position(task.version, AFTER_ALERTS + place),
                    task: Some(task.id()),
                    kind: ASK_EVENT.to_owned(),
                    url: None,
                    body,
                    at,
                });
            }
        }
        messages
    }

    fn slack_ask(&self, task: &Task, ask: &AskNotice<'_>) -> String {
        let people: Vec<_> = ask.people.iter().map(|person| person.person).collect();
        let mut text = format!(
            ":raised_hand: *{}*\nasked of {} until {}",
            escaped(ask.title),
            escaped(&people.join(", ")),
            ask.until
        );
        if self.public_url.is_some() {
            let link = self.link(&format!("/v1/tasks/{}", task.id()));
            text.push_str(&format!("\n<{link}|View the task>"));
        }
        text
    }
}
