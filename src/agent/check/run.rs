//! One run of a check: makes its calls in the slots of the agent, again after transient faults, and logs each exchange.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{
    bounds::{CheckTime, CutShort, millis},
    call_options::{CallOptions, RETRIES},
    log::CheckLog,
};
use crate::agent::{
    client::exchange::{ExchangeAnswer, ResponseWait, ServiceExchange},
    queue::capacity::Slot,
    registry::{Agent, Agents},
};
use crate::{
    clock,
    domain::{
        agent::{AgentStop, CheckAnswer, CheckSubject, CheckedCall, EffectCount, StepRequests},
        task::{Call, Purpose, render::Rendered},
        template::Payload,
        values::{Attempt, Span, Timestamp},
    },
};

/// The shortest wait before a retry. The service may ask for a longer wait.
const RETRY_WAIT: Duration = Duration::from_millis(200);
/// If the service asks for a longer wait than this, the call is not retried.
const LONGEST_RETRY_WAIT: Duration = Duration::from_secs(5);
/// The interval at which the check looks for a free slot.
const SLOT_WAIT: Duration = Duration::from_millis(20);

pub(super) struct CheckRun<'r> {
    pub agents: &'r Agents,
    pub agent: &'r Arc<Agent>,
    pub requests: StepRequests<'r>,
    /// A body that the service must refuse.
    pub invalid: Option<&'r Payload>,
    pub time: CheckTime,
    pub log: Mutex<CheckLog>,
}

impl CheckRun<'_> {
    pub fn has_probe(&self) -> bool {
        self.requests.step.probe.is_some()
    }

    /// As the step's work is done.
    pub fn usual(&self) -> CallOptions {
        CallOptions {
            purpose: "work",
            within: self.requests.step.complete_within.duration(),
            complete_by: None,
            retries: RETRIES,
            is_usual: true,
        }
    }

    pub async fn work(&self, subject: &CheckSubject) -> Result<CheckedCall, CutShort> {
        self.work_with(subject, self.usual()).await
    }

    pub async fn work_with(
        &self,
        subject: &CheckSubject,
        options: CallOptions,
    ) -> Result<CheckedCall, CutShort> {
        let rendered = self.requests.work(subject);
        self.make(subject, Purpose::Work, rendered, options).await
    }

    pub async fn undo(
        &self,
        subject: &CheckSubject,
        output: Option<&Payload>,
        purpose: &'static str,
    ) -> Result<CheckedCall, CutShort> {
        let Some(undo) = self.requests.undo else {
            return Err(CutShort("it has no undo".to_owned()));
        };
        let options = CallOptions {
            purpose,
            within: undo.complete_within.duration(),
            ..self.usual()
        };
        let rendered = self.requests.undo(subject, undo, output);
        let undoes = Purpose::Undo(self.requests.work_key(subject));
        self.make(subject, undoes, rendered, options).await
    }

    pub async fn probe(&self, subject: &CheckSubject) -> Result<CheckedCall, CutShort> {
        self.probe_with(subject, RETRIES).await
    }

    /// Nothing if the check reads no count.
    pub async fn probe_to_count(
        &self,
        subject: &CheckSubject,
    ) -> Result<Option<CheckedCall>, CutShort> {
        match self.requests.has_count() {
            true => self.probe(subject).await.map(Some),
            false => Ok(None),
        }
    }

    pub async fn probe_once(&self, subject: &CheckSubject) -> Result<CheckedCall, CutShort> {
        self.probe_with(subject, 0).await
    }

    async fn probe_with(
        &self,
        subject: &CheckSubject,
        retries: u32,
    ) -> Result<CheckedCall, CutShort> {
        let Some(probe) = &self.requests.step.probe else {
            return Err(CutShort("it has no probe".to_owned()));
        };
        let options = CallOptions {
            purpose: "probe",
            within: probe.complete_within.duration(),
            retries,
            ..self.usual()
        };
        let rendered = self.requests.probe(subject, &probe.request);
        let probes = Purpose::Probe(self.requests.work_key(subject));
        self.make(subject, probes, rendered, options).await
    }

    /// Makes a call, and makes it again after transient faults.
    pub async fn make(
        &self,
        subject: &CheckSubject,
        purpose: Purpose,
        rendered: Result<Rendered, String>,
        options: CallOptions,
    ) -> Result<CheckedCall, CutShort> {
        let mut call = CheckedCall {
            task: subject.keys,
            exchanges: Vec::new(),
            answer: CheckAnswer::Silent,
            count: None,
            millis: 0,
        };
        let rendered = match rendered {
            Ok(rendered) => rendered,
            Err(why) => {
                call.answer = CheckAnswer::Unmakeable(why);
                return Ok(call);
            }
        };
        let mut made = 0;
        loop {
            let slot = self.slot().await?;
            let left = self.time.left();
            if left.is_zero() {
                return Err(self.time.cut_short());
            }
            let begun = clock::instant();
            let end = begun + options.within.min(left);
            let complete_by = options.complete_by.unwrap_or_else(|| {
                let within = Span::from_millis(millis(options.within));
                self.time.now() + within
            });
            let request = self.call(subject, &purpose, &rendered, complete_by, made + 1);
            let body = rendered.body.clone();
            let wire = self.agent.wire();
            let exchange = wire.exchange(&request, body, self.time.now(), ResponseWait::Until(end));
            let exchange = exchange.await;
            drop(slot);
            let took = millis(begun.elapsed());
            let wait = exchange.retry_after.clone();
            let answer = self.understood(subject, &exchange);
            if answer == CheckAnswer::Silent && options.within > left {
                return Err(self.time.cut_short());
            }
            let number = self.note(&request, &rendered, &exchange, &answer, took, options)?;
            call.exchanges.push(number);
            call.millis = took;
            let is_transient = matches!(answer, CheckAnswer::Transient(_) | CheckAnswer::Broken(_));
            call.answer = answer;
            call.count = self.count(subject, &exchange);
            let wait = match wait {
                Some(Ok(wait)) => wait.max(RETRY_WAIT),
                _ => RETRY_WAIT,
            };
            if !is_transient || made == options.retries || wait > LONGEST_RETRY_WAIT {
                return Ok(call);
            }
            made += 1;
            self.time.pause(wait).await?;
        }
    }

    /// Sends the work, and closes the connection soon after.
    pub async fn send_and_close(
        &self,
        subject: &CheckSubject,
        soon: Duration,
    ) -> Result<u32, CutShort> {
        let rendered = self.requests.work(subject).map_err(CutShort)?;
        let _slot = self.slot().await?;
        let within = self.requests.step.complete_within;
        let complete_by = self.time.now() + within;
        let request = self.call(subject, &Purpose::Work, &rendered, complete_by, 1);
        let end = (clock::instant() + within.duration()).min(self.time.end());
        let patience = ResponseWait::CloseAfter(soon, end);
        let begun = clock::instant();
        let body = rendered.body.clone();
        let wire = self.agent.wire();
        let exchange = wire
            .exchange(&request, body, self.time.now(), patience)
            .await;
        let answer = self.understood(subject, &exchange);
        let options = CallOptions {
            purpose: "work, dropped",
            is_usual: false,
            ..self.usual()
        };
        let took = millis(begun.elapsed());
        self.note(&request, &rendered, &exchange, &answer, took, options)
    }

    fn understood(&self, subject: &CheckSubject, exchange: &ServiceExchange) -> CheckAnswer {
        match &exchange.answer {
            ExchangeAnswer::Known(answer) => answer.clone(),
            ExchangeAnswer::Probed(status, body) => {
                self.requests.probe_answer(subject, *status, body)
            }
        }
    }

    fn count(&self, subject: &CheckSubject, exchange: &ServiceExchange) -> Option<EffectCount> {
        match &exchange.answer {
            ExchangeAnswer::Known(_) => None,
            ExchangeAnswer::Probed(status, body) => self.requests.count(subject, *status, body),
        }
    }

    fn note(
        &self,
        request: &Call,
        rendered: &Rendered,
        exchange: &ServiceExchange,
        answer: &CheckAnswer,
        took: u64,
        options: CallOptions,
    ) -> Result<u32, CutShort> {
        let sent = rendered.body.as_deref();
        let mut log = self.log.lock();
        log.add(request, sent, exchange, answer, took, options)
    }

    fn call(
        &self,
        subject: &CheckSubject,
        purpose: &Purpose,
        rendered: &Rendered,
        complete_by: Timestamp,
        attempt: u32,
    ) -> Call {
        let (agent, attempt) = (self.agent.name(), Attempt(attempt));
        self.requests
            .call(subject, agent, purpose, rendered, complete_by, attempt)
    }

    /// Waits for a slot of the agent, as its steps do.
    async fn slot(&self) -> Result<Slot, CutShort> {
        let name = self.agent.name();
        loop {
            let current = self.agents.get(name);
            let Some(current) = current.filter(|now| now.spec() == self.agent.spec()) else {
                return Err(CutShort(
                    "the agent was changed or removed meanwhile".to_owned(),
                ));
            };
            if let Some(why) = current.stopped().as_ref().and_then(AgentStop::why) {
                return Err(CutShort(why));
            }
            if let Some(slot) = self.agents.try_take(name)
                && slot.begin_call()
            {
                return Ok(slot);
            }
            if self.agents.is_closed() {
                return Err(CutShort("the service is stopping".to_owned()));
            }
            self.time.pause(SLOT_WAIT).await?;
        }
    }
}
