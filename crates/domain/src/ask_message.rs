//! The messages about what people are asked: to the submitter, and to alert webhooks. They carry a link for each person,
//! with which that person decides; the receiver passes the links on.

use serde::Serialize;
use uuid::Uuid;

use crate::{
    alert_message::{AlertFormat, AlertWebhook, escaped},
    ask::{AskChange, OpenAsk},
    definition::{AskField, LinkReceivers},
    history::Event,
    ids::{ReceiverName, StepIndex, StepName, StepRef, TaskId},
    message::{CloudEvent, Message, Sender, position},
    reply_token::{ASK_TOKEN_BEGIN, ReplyKey, begin_of_ask_token},
    step::StepState,
    task::Task,
    time::Timestamp,
};

/// The event of an alert webhook for each question.
pub const ASK_EVENT: &str = "ask.opened";

/// The form of the links of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkForm {
    /// The links lack what makes them links: [`with_complete_links`] adds it when the message is sent. So neither the outbox nor a
    /// backup has a link that decides.
    Incomplete,
    /// The links are complete, as they must be while an older instance may send the message.
    Complete,
}

const ASKS: &str = "/v1/asks/";

/// An incomplete link has the id of its message in place of its MAC. The id is made after all else that the message says, so no
/// other text of the message can hold it.
fn placeholder(message: Uuid) -> String {
    message.simple().to_string()
}

/// The body of a message with its links. `None`: it has no incomplete ones.
pub fn with_complete_links(
    key: &ReplyKey,
    message: Uuid,
    task: TaskId,
    body: &str,
) -> Option<String> {
    let placeholder = placeholder(message);
    let mut parts = body.split(&placeholder);
    let mut complete = parts.next()?.to_owned();
    let mut is_changed = false;
    for part in parts {
        let begin = complete.len().checked_sub(ASK_TOKEN_BEGIN);
        let (path, token) = begin
            .and_then(|at| complete.split_at_checked(at))
            .unwrap_or_default();
        let end = match path.ends_with(ASKS) {
            true => key.end_of_ask_token(token, task),
            false => None,
        };
        is_changed |= end.is_some();
        complete.push_str(end.as_deref().unwrap_or(&placeholder));
        complete.push_str(part);
    }
    is_changed.then_some(complete)
}

/// The queue of the messages about questions to a receiver that the definition names. It is not that of a `reply_to`, whose
/// messages may go to another URL of the receiver; and no receiver or origin has such a name.
pub fn ask_queue_of(receiver: &str) -> ReceiverName {
    ReceiverName::new(format!("asks:{receiver}"))
}

/// The people whose links a message has.
#[derive(Clone, Copy)]
struct Links {
    message: Uuid,
    form: LinkForm,
}

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
    /// A credential of this person alone; null for a receiver that is to pass none on, and without a public URL.
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
        Some(self.link(&format!("{ASKS}{token}")))
    }

    fn link_in(&self, links: Links, step: StepRef, ask: &OpenAsk, person: u16) -> Option<String> {
        if links.form == LinkForm::Complete {
            return self.ask_link(step, ask, person);
        }
        self.ask_key.as_ref().zip(self.public_url.as_ref())?;
        let token = begin_of_ask_token(step, ask.attempt, person);
        Some(self.link(&format!("{ASKS}{token}{}", placeholder(links.message))))
    }

    /// Returns the message to the submitter for an event of the history that asks people, as long as they are asked. It has the
    /// links where the definition allows it.
    pub(super) fn notice_of<'a>(
        &self,
        task: &'a Task,
        event: &Event,
        message: Uuid,
        form: LinkForm,
    ) -> Option<AskNotice<'a>> {
        if event.kind != "step.asked" {
            return None;
        }
        let index = task.find(event.step.as_ref()?.as_str())?;
        let send_to = &task.definition(index).work.ask()?.send_to;
        let is_inline = task.details.workflow.is_none();
        let links = send_to
            .has_reply_to(is_inline)
            .then_some(Links { message, form });
        self.ask_notice(task, index, links)
    }

    fn ask_notice<'a>(
        &self,
        task: &'a Task,
        index: StepIndex,
        links: Option<Links>,
    ) -> Option<AskNotice<'a>> {
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
            link: links.and_then(|links| self.link_in(links, of, ask, person)),
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

    /// The messages about the questions that a change has opened, to each alert webhook, and to the receivers that the definition
    /// names. A channel that several people read gets no link of one of them.
    pub fn asks(
        &self,
        task: &Task,
        asks: &[AskChange],
        at: Timestamp,
        form: LinkForm,
        mut new_id: impl FnMut() -> Uuid,
    ) -> Vec<Message> {
        let mut messages = Vec::new();
        for (place, change) in asks.iter().enumerate() {
            let AskChange::Open(index) = *change else {
                continue;
            };
            let Some(rule) = task.definition(index).work.ask() else {
                continue;
            };
            for (receiver, format, has_links) in self.receivers_of(&rule.send_to) {
                let id = new_id();
                let links = has_links.then_some(Links { message: id, form });
                let Some(ask) = self.ask_notice(task, index, links) else {
                    continue;
                };
                let body = match format {
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
                    receiver,
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

    /// The alert webhooks, and the receivers that are named besides; and whether each gets links.
    fn receivers_of(&self, send_to: &LinkReceivers) -> Vec<(ReceiverName, AlertFormat, bool)> {
        let is_named =
            |webhook: &AlertWebhook, name: &str| webhook.receiver == AlertWebhook::queue_of(name);
        let webhooks = self.webhooks.iter().map(|webhook| {
            let has_links = match send_to {
                LinkReceivers::Usual => true,
                LinkReceivers::Named(_) => send_to.named().any(|name| is_named(webhook, name)),
            };
            (webhook.receiver.clone(), webhook.format, has_links)
        });
        // One that is not configured any more is reported when its message cannot be sent.
        let others = send_to.named();
        let others =
            others.filter(|name| !self.webhooks.iter().any(|webhook| is_named(webhook, name)));
        let others = others.map(|name| (ask_queue_of(name), AlertFormat::Generic, true));
        webhooks.chain(others).collect()
    }

    fn slack_ask(&self, task: &Task, ask: &AskNotice<'_>) -> String {
        let people: Vec<_> = ask.people.iter().map(|person| person.person).collect();
        let mut text = format!(
            ":raised_hand: *{}*\nasked of {} until {}",
            escaped(ask.title),
            escaped(&people.join(", ")),
            ask.until
        );
        let path = format!("/v1/tasks/{}", task.id());
        text.push_str(&self.where_to_read(&path, "View the task"));
        text
    }
}
