//! The messages about questions to people: to the submitter, and to alert webhooks. They contain a link for each
//! person, with which that person decides; the receiver passes the links on.

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    definition::{AskField, LinkReceivers},
    message::{
        alert_webhook::{AlertFormat, AlertWebhook, escaped},
        envelope::{CloudEvent, Message, Sender, SlackText, position},
    },
    task::{
        aggregate::Task,
        ask::{AskChange, OpenAsk},
        history::Event,
        reply_token::{ASK_TOKEN_BEGIN, ReplyKey, begin_of_ask_token},
        step::StepState,
    },
    values::{
        ids::{ReceiverName, StepIndex, StepName, StepRef, TaskId},
        time::Timestamp,
    },
};

/// The event of an alert webhook for each question.
pub const ASK_EVENT: &str = "ask.opened";

/// The form of the links of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkForm {
    /// The links lack their MAC: [`with_complete_links`] adds it when the message is sent. So neither the outbox nor a
    /// backup has a link that decides.
    Incomplete,
    /// The links are complete, as they must be while an older instance may send the message.
    Complete,
}

const ASKS: &str = "/v1/asks/";

/// Returns the text in place of the MAC of an incomplete link: the id of its message. The id is made after all other
/// parts of the message, so no other text of the message can contain it.
fn placeholder(message: Uuid) -> String {
    message.simple().to_string()
}

/// Returns the body of a message with complete links, `None` if it has no incomplete ones.
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

/// Returns the queue of the messages about questions to a receiver that the definition names. It is not the queue of a
/// `reply_to`, whose messages may go to another URL of the receiver. No receiver and no origin has such a name.
pub fn ask_queue_of(receiver: &str) -> ReceiverName {
    ReceiverName::new(format!("asks:{receiver}"))
}

/// The people whose links a message has.
#[derive(Clone, Copy)]
struct Links {
    message: Uuid,
    form: LinkForm,
}

/// The positions of these messages within a change: after the messages of its alerts.
const AFTER_ALERTS: usize = 2;

/// The question to people, with a link for each of them.
#[derive(Serialize, ToSchema)]
pub struct AskNotice<'a> {
    #[schema(example = "Approve the refund of 120 EUR?")]
    title: &'a str,
    #[schema(required)]
    text: Option<&'a str>,
    #[schema(example = json!(["approve", "reject"]))]
    choices: &'a [String],
    fields: &'a [AskField],
    /// The number of people who must choose the first choice.
    #[schema(example = 1)]
    approvals: u32,
    /// The links can decide until this time.
    until: Timestamp,
    people: Vec<AskedPerson<'a>>,
}

/// One person who is asked.
#[derive(Serialize, ToSchema)]
#[schema(as = AskLink)]
struct AskedPerson<'a> {
    #[schema(example = "ops@example.com")]
    person: &'a str,
    /// The page on which this person decides: a credential of this person alone. Null for a receiver that must not pass
    /// links on, and without a public URL.
    #[schema(
        required,
        example = "https://provost.example/v1/asks/AZc0bXx_cAmAAAAAAAAAAQAAAAAAAQAADHWYLmrRpLrDRtn1Xhh3Zw"
    )]
    link: Option<String>,
}

/// The data of a message to an alert webhook about a question.
#[derive(Serialize, ToSchema)]
pub struct AskData<'a> {
    #[schema(value_type = Uuid)]
    task: TaskId,
    /// The task's key.
    #[schema(required, example = "order-1001")]
    key: Option<&'a str>,
    #[schema(required, example = "order")]
    workflow: Option<&'a str>,
    #[schema(value_type = String, example = "approval")]
    step: &'a StepName,
    ask: AskNotice<'a>,
}

impl Sender {
    /// Returns the link of one person.
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

    /// Returns the message to the submitter for an event of the history that asks people, while they are asked. It has
    /// the links if the definition allows that.
    pub(crate) fn notice_of<'a>(
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

    /// Makes the messages about the questions that a change has opened, to each alert webhook, and to the receivers
    /// that the definition names. A channel that several people read gets no link of one person.
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
                    AlertFormat::Slack => SlackText::body(self.slack_ask(task, &ask)),
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

    /// Returns the alert webhooks, and the other receivers that are named, each with true if it gets links.
    fn receivers_of(&self, send_to: &LinkReceivers) -> Vec<(ReceiverName, AlertFormat, bool)> {
        let is_named =
            |webhook: &AlertWebhook, name: &str| webhook.receiver == AlertWebhook::queue_of(name);
        let webhooks = self.webhooks.iter().map(|webhook| {
            let has_links = match send_to {
                LinkReceivers::WebhooksAndReplyTo => true,
                LinkReceivers::Named(_) => send_to.named().any(|name| is_named(webhook, name)),
            };
            (webhook.receiver.clone(), webhook.format, has_links)
        });
        // A receiver that is no longer configured is reported when its message cannot be sent.
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
