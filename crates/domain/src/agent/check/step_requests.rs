//! The requests of a check: those that the step, its undo and its probe send for a task that does not exist, and the
//! meaning of the probe's response.

use uuid::Uuid;

use super::{CheckAnswer, CheckedStep, EffectCount, effect_count};
use crate::{
    definition::{Definition, Method, ReplyMode, RequestTemplate, StepDefinition, Target},
    task::{
        Call, DroppedBy, Purpose,
        render::{Rendered, render_request},
    },
    template::{Budget, Expression, Scope, payload::Payload},
    values::{
        ids::{AgentName, Attempt, StepIndex, StepRef, TaskId},
        time::Timestamp,
        trace::CallTrace,
    },
};

/// A task that does not exist: its id is used in keys and expressions.
pub struct CheckSubject {
    task: TaskId,
    key: String,
    /// The id that its idempotency keys contain.
    pub keys: TaskId,
}

impl CheckSubject {
    /// Makes a subject with an id that no other task has.
    pub fn new(id: Uuid) -> Self {
        Self {
            task: TaskId(id),
            key: format!("provost-check-{}", id.hyphenated()),
            keys: TaskId(id),
        }
    }

    /// Makes a subject whose requests are the same as those of this one, under other keys. `id` is one that no other
    /// task has.
    pub fn under_other_keys(&self, id: Uuid) -> Self {
        Self {
            task: self.task,
            key: self.key.clone(),
            keys: TaskId(id),
        }
    }
}

/// The step that is checked, with its undo if it has one, and the input of the task.
pub struct StepRequests<'d> {
    pub step: &'d StepDefinition,
    pub undo: Option<&'d StepDefinition>,
    input: &'d Payload,
    count: Option<&'d Expression>,
}

impl<'d> StepRequests<'d> {
    /// `definition` has one step. `count` reads how often the work was done from the response of the probe.
    pub fn new(
        definition: &'d Definition,
        input: &'d Payload,
        count: Option<&'d Expression>,
    ) -> Self {
        Self {
            step: &definition.steps[0],
            undo: definition.undos.first(),
            input,
            count,
        }
    }

    /// Returns the facts about the step that are known without calling the service.
    pub fn facts(&self, names_invalid: bool, max_output: u64) -> CheckedStep {
        let complete_within = self.step.complete_within.duration().as_millis();
        let undo = self.undo.and_then(|undo| undo.method());
        CheckedStep {
            has_undo: self.undo.is_some(),
            undo_is_delete: undo == Some(Method::Delete),
            has_probe: self.step.probe.is_some(),
            sends_body: self.step.method().is_some_and(Method::sends_body),
            names_invalid,
            complete_within_millis: u64::try_from(complete_within).unwrap_or(u64::MAX),
            max_output,
        }
    }

    /// Returns whether the check reads how often the work was done.
    pub fn has_count(&self) -> bool {
        self.count.is_some()
    }

    /// Returns the request of the step, or the reason why it cannot be made; so do the next two functions.
    pub fn work(&self, subject: &CheckSubject) -> Result<Rendered, String> {
        self.rendered(subject, self.step.request(), None)
    }

    /// Returns the request of the undo. `output` is the output of the work that is undone, if that is known.
    pub fn undo(
        &self,
        subject: &CheckSubject,
        undo: &StepDefinition,
        output: Option<&Payload>,
    ) -> Result<Rendered, String> {
        self.rendered(subject, undo.request(), Some(output))
    }

    /// Returns the request of the probe.
    pub fn probe(
        &self,
        subject: &CheckSubject,
        request: &RequestTemplate,
    ) -> Result<Rendered, String> {
        self.rendered(subject, Some(request), None)
    }

    /// `undone`: the output of the work that is undone, if that is known.
    fn rendered(
        &self,
        subject: &CheckSubject,
        request: Option<&RequestTemplate>,
        undone: Option<Option<&Payload>>,
    ) -> Result<Rendered, String> {
        let sent = match undone {
            None => None,
            Some(_) => Some(self.work(subject)?.as_payload()),
        };
        let budget = Budget::evaluation();
        let mut scope = self.scope(subject, &budget);
        scope.request = sent.as_ref();
        scope.reply_url = Some(NO_REPLY);
        if let Some(Some(output)) = undone {
            scope.output = Some(output);
            scope.steps.push((&self.step.name, Some(output)));
        }
        let request = request.ok_or("the step calls no service")?;
        render_request(request, &scope, None).map_err(|error| error.to_string())
    }

    fn scope<'s>(&'s self, subject: &'s CheckSubject, budget: &'s Budget) -> Scope<'s> {
        Scope {
            task_id: subject.task,
            key: Some(&subject.key),
            input: Some(self.input),
            ..Scope::empty(budget)
        }
    }

    /// Returns the idempotency key of the work, which an undo or a probe names.
    pub fn work_key(&self, subject: &CheckSubject) -> String {
        idempotency_key(subject, self.step)
    }

    /// Returns the call of an agent with a request. The purpose decides whether it is a call of the step or of its undo.
    pub fn call(
        &self,
        subject: &CheckSubject,
        agent: &AgentName,
        purpose: &Purpose,
        rendered: &Rendered,
        complete_by: Timestamp,
        attempt: Attempt,
    ) -> Call {
        let (definition, index) = match (purpose, self.undo) {
            (Purpose::Undo(_), Some(undo)) => (undo, StepIndex(1)),
            _ => (self.step, StepIndex(0)),
        };
        let step = StepRef {
            task: subject.task,
            step: index,
        };
        Call {
            step,
            step_name: definition.name.clone(),
            task_key: Some(subject.key.as_str().into()),
            attempt,
            transient_faults: 0,
            idempotency_key: idempotency_key(subject, definition),
            target: Target::Agent(agent.clone()),
            method: rendered.method,
            path: rendered.path.clone(),
            headers: rendered.headers.clone(),
            body: None,
            complete_by,
            wall_complete_by: complete_by,
            complete_within: definition.complete_within,
            trace: CallTrace::of(None, step, attempt),
            purpose: purpose.clone(),
            needs_new_connection: false,
            dropped_by: DroppedBy::Withdrawal,
            reply_mode: ReplyMode::Response,
            heartbeat_within: None,
            reply_url: None,
            rules: None,
        }
    }

    /// Returns the meaning of the response to the probe.
    pub fn probe_answer(&self, subject: &CheckSubject, status: u16, body: &Payload) -> CheckAnswer {
        let Some(probe) = &self.step.probe else {
            return CheckAnswer::Refused(status);
        };
        let budget = Budget::evaluation();
        CheckAnswer::of_probe(probe, status, body, self.scope(subject, &budget))
    }

    /// Returns how often the work was done, by the response to the probe; `None` if the check does not read that.
    pub fn count(
        &self,
        subject: &CheckSubject,
        status: u16,
        body: &Payload,
    ) -> Option<EffectCount> {
        let budget = Budget::evaluation();
        let scope = self.scope(subject, &budget);
        Some(effect_count(self.count?, status, body, scope))
    }
}

/// The address for a reply in the requests of a check, which awaits none.
const NO_REPLY: &str = "http://provost.invalid/v1/replies/none";

fn idempotency_key(subject: &CheckSubject, step: &StepDefinition) -> String {
    format!("{}:{}", subject.keys.0.hyphenated(), step.name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        definition::{Accepted, Limits, Policies, parse_steps},
        template::Origin,
    };

    fn definition(step: &Value) -> Definition {
        let steps = Payload::from_value(&json!([step]));
        let policies = Policies::default();
        parse_steps(&steps, "", &policies, &Limits::default(), &Accepted).unwrap()
    }

    fn charge() -> Definition {
        definition(&json!({
            "name": "charge",
            "agent": "payments",
            "request": { "path": "/charges", "body": { "amount": "{{ input.amount }}" } },
            "probe": { "request": { "path": "/charges/{{ task.key }}" } },
            "undo": { "request": {
                "path": "/refunds",
                "body": { "amount": "{{ request.body.amount }}", "of": "{{ output.id }}" },
            } },
        }))
    }

    fn subject() -> CheckSubject {
        CheckSubject::new(Uuid::from_u128(7))
    }

    const KEY: &str = "00000000-0000-0000-0000-000000000007:charge";

    #[test]
    fn an_undo_reads_the_request_and_the_output_of_the_work() {
        let (definition, input) = (charge(), Payload::from_value(&json!({ "amount": 5 })));
        let requests = StepRequests::new(&definition, &input, None);
        let work = requests.work(&subject()).unwrap();
        assert_eq!(work.path, "/charges");
        assert_eq!(work.body.as_deref(), Some(r#"{"amount":5}"#));
        let output = Payload::from_value(&json!({ "id": "ch_1" }));
        let undo = requests.undo.unwrap();
        let undo = requests.undo(&subject(), undo, Some(&output)).unwrap();
        assert_eq!(undo.body.as_deref(), Some(r#"{"amount":5,"of":"ch_1"}"#));
    }

    #[test]
    fn an_undo_that_reads_an_unknown_output_cannot_be_made() {
        let (definition, input) = (charge(), Payload::from_value(&json!({ "amount": 5 })));
        let requests = StepRequests::new(&definition, &input, None);
        let undo = requests.undo.unwrap();
        assert!(requests.undo(&subject(), undo, None).is_err());
    }

    #[test]
    fn a_call_of_the_undo_has_a_key_of_its_own_and_names_that_of_the_work() {
        let (definition, input) = (charge(), Payload::from_value(&json!({ "amount": 5 })));
        let requests = StepRequests::new(&definition, &input, None);
        let work = requests.work(&subject()).unwrap();
        let call = |purpose: &Purpose| {
            requests.call(
                &subject(),
                &AgentName::new("payments"),
                purpose,
                &work,
                Timestamp::from_millis(1),
                Attempt(2),
            )
        };
        let made = call(&Purpose::Work);
        assert_eq!(made.idempotency_key, KEY);
        assert_eq!(made.attempt, Attempt(2));
        assert_eq!(requests.work_key(&subject()), KEY);
        let undo = call(&Purpose::Undo(KEY.to_owned()));
        assert_eq!(undo.idempotency_key, format!("{KEY}.undo"));
        assert_eq!(undo.step.step, StepIndex(1));
    }

    #[test]
    fn one_request_can_be_sent_under_two_keys() {
        let (definition, input) = (charge(), Payload::from_value(&json!({ "amount": 5 })));
        let requests = StepRequests::new(&definition, &input, None);
        let one = subject();
        let other = one.under_other_keys(Uuid::from_u128(8));
        let probe = &requests.step.probe.as_ref().unwrap().request;
        let [sent, resent] =
            [&one, &other].map(|subject| requests.probe(subject, probe).unwrap().path);
        assert_eq!(sent, resent);
        assert_eq!(requests.work_key(&one), KEY);
        assert_eq!(requests.work_key(&other), KEY.replace('7', "8"));
    }

    #[test]
    fn a_count_is_read_from_the_response_of_the_probe_if_the_check_has_one() {
        let (definition, input) = (charge(), Payload::null());
        let body = Payload::from_value(&json!({ "done": 2 }));
        let without = StepRequests::new(&definition, &input, None);
        assert_eq!(without.count(&subject(), 200, &body), None);
        let budget = Budget::evaluation();
        let origin = Origin::Submitted(&budget);
        let count = Expression::parse("response.body.done", origin).unwrap();
        let with = StepRequests::new(&definition, &input, Some(&count));
        assert_eq!(with.count(&subject(), 200, &body), Some(Ok(2)));
        assert_eq!(
            with.probe_answer(&subject(), 404, &body),
            CheckAnswer::NotDone
        );
    }
}
