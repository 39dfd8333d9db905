//! The check of an agent: calls its service as steps would, under keys of its own, and notes what came back. The rules that
//! say what it means are in the domain.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use super::{
    capacity::Slot,
    exchange::{ExchangeAnswer, ResponseWait, ServiceExchange},
    guard::Stopped,
    registry::{Agent, Agents},
};
use crate::domain::{
    AskedWait, Attempt, Call, CallBody, CallTrace, CheckAnswer, CheckObservations, CheckedCall,
    CheckedStep, Definition, DroppedAnswer, EffectCount, LateArrival, Method, Payload, Purpose,
    ReplyMode, RequestTemplate, Span, StepDefinition, StepIndex, StepRef, Target, TaskId,
    Timestamp, effect_count,
    render::{Rendered, render_request},
    shortened,
    template::{Budget, Expression, Scope},
};

/// A service that always asks for another try ends the check before its time is over.
const MOST_EXCHANGES: usize = 100;
/// How often a call is made again after a transient fault.
const RETRIES: u32 = 2;
/// The wait before that, unless the service asks for another, which is not waited for if it is longer than this.
const RETRY_WAIT: Duration = Duration::from_millis(200);
const LONGEST_RETRY_WAIT: Duration = Duration::from_secs(5);
/// How long ago the complete-by of the late request was: more than clocks usually differ.
const LATE_BY: Duration = Duration::from_secs(60);
/// The least time until the complete-by that is waited for.
const SHORT_COMPLETE_BY: Duration = Duration::from_secs(1);
/// How much earlier than a probe the work is sent that it asks about.
const HEAD_START: Duration = Duration::from_millis(50);
/// How often the check looks for a free slot.
const SLOT_WAIT: Duration = Duration::from_millis(20);
/// What is shown of each body, in bytes.
const SHOWN: usize = 1024;
/// How often a probe asks for the end of work that was dropped.
const PROBES: u32 = 10;

/// What is checked, and with what.
pub struct CheckRequest {
    /// One step, with its undo if it has one.
    pub definition: Definition,
    pub input: Payload,
    /// A body that the service must refuse.
    pub invalid: Option<Payload>,
    /// Gives how often the work was done, from the response of the probe.
    pub count: Option<Expression>,
    /// The most time for all calls together.
    pub within: Duration,
    /// The store's time at the start.
    pub now: Timestamp,
    pub max_output: u64,
}

/// What has been seen.
pub struct CheckReport {
    pub seen: CheckObservations,
    pub exchanges: Vec<ShownExchange>,
}

/// One exchange, for people.
pub struct ShownExchange {
    pub number: u32,
    pub purpose: &'static str,
    pub method: &'static str,
    pub path: String,
    /// The key of the work, which an undo or a probe names.
    pub key: String,
    pub complete_by: Timestamp,
    pub sent: Option<String>,
    pub status: Option<u16>,
    pub retry_after: Option<String>,
    pub body: Option<String>,
    /// Why there is no response.
    pub fault: Option<String>,
    pub millis: u64,
}

/// Why the check ends before it is complete.
struct CutShort(String);

impl Agents {
    /// Checks an agent. It makes real work at the service, and undoes what it can.
    pub async fn check(&self, agent: &Arc<Agent>, request: &CheckRequest) -> CheckReport {
        let step = &request.definition.steps[0];
        let undo = request.definition.undos.first();
        let mut seen = CheckObservations::new(CheckedStep {
            has_undo: undo.is_some(),
            undo_is_delete: undo.is_some_and(|undo| undo.method() == Some(Method::Delete)),
            has_probe: step.probe.is_some(),
            sends_body: step.method().is_some_and(Method::sends_body),
            names_invalid: request.invalid.is_some(),
            complete_within_millis: millis(step.complete_within.duration()),
            max_output: request.max_output,
        });
        let start = Instant::now();
        let run = Run {
            agents: self,
            agent,
            request,
            step,
            undo,
            start,
            end: start + request.within,
            log: Mutex::default(),
        };
        if let Err(CutShort(why)) = run.all(&mut seen).await {
            seen.cut_short = Some(why);
        }
        let log = run.log.into_inner();
        seen.waits = log.waits;
        seen.largest = log.largest;
        seen.slowest = log.slowest;
        CheckReport {
            seen,
            exchanges: log.exchanges,
        }
    }
}

/// As if it were of a task: keys and expressions have an id of their own.
struct Subject {
    task: TaskId,
    key: String,
}

impl Subject {
    fn new() -> Self {
        let id = Uuid::now_v7();
        Self {
            task: TaskId(id),
            key: format!("provost-check-{}", id.hyphenated()),
        }
    }
}

#[derive(Default)]
struct CheckLog {
    exchanges: Vec<ShownExchange>,
    waits: Vec<AskedWait>,
    largest: Option<(u64, u32)>,
    slowest: Option<(u64, u32)>,
}

struct Run<'r> {
    agents: &'r Agents,
    agent: &'r Arc<Agent>,
    request: &'r CheckRequest,
    step: &'r StepDefinition,
    undo: Option<&'r StepDefinition>,
    start: Instant,
    end: Instant,
    log: Mutex<CheckLog>,
}

/// How a call is made.
#[derive(Clone, Copy)]
struct Making {
    purpose: &'static str,
    within: Duration,
    /// Where the complete-by is not what is waited for.
    complete_by: Option<Timestamp>,
    retries: u32,
    /// Whether it counts for sizes and times.
    is_usual: bool,
}

impl Run<'_> {
    async fn all(&self, seen: &mut CheckObservations) -> Result<(), CutShort> {
        let first = Subject::new();
        if self.has_probe() {
            seen.probe_before = Some(self.probe(&first).await?);
        }
        let work = self.work(&first).await?;
        let latency = Duration::from_millis(work.millis);
        let output = work.output().cloned();
        seen.work = Some(work);
        let Some(output) = output else {
            return Ok(());
        };
        self.repeats(&first, &output, seen).await?;
        self.at_once(latency, seen).await?;
        if self.has_probe() {
            self.dropped_answer(latency, seen).await?;
        }
        self.after_complete_by(latency, seen).await?;
        self.late_request(seen).await?;
        if self.undo.is_some() {
            self.undo_before_work(seen).await?;
        }
        if self.step.method().is_some_and(Method::sends_body) {
            self.invalid_body(seen).await?;
        }
        Ok(())
    }

    /// The same again, its undo, and that again.
    async fn repeats(
        &self,
        subject: &Subject,
        output: &Payload,
        seen: &mut CheckObservations,
    ) -> Result<(), CutShort> {
        if self.has_probe() {
            seen.probe_after = Some(self.probe(subject).await?);
        }
        seen.again = Some(self.work(subject).await?);
        seen.count_after_again = self.probe_to_count(subject).await?;
        if self.undo.is_none() {
            return Ok(());
        }
        seen.undo = Some(self.undo(subject, Some(output), "undo").await?);
        if self.has_probe() {
            seen.probe_after_undo = Some(self.probe(subject).await?);
        }
        seen.undo_again = Some(self.undo(subject, Some(output), "undo").await?);
        Ok(())
    }

    async fn at_once(
        &self,
        latency: Duration,
        seen: &mut CheckObservations,
    ) -> Result<(), CutShort> {
        let subject = Subject::new();
        let timed = async || {
            let call = self.work(&subject).await?;
            Ok::<_, CutShort>((call, Instant::now()))
        };
        let probe = async || {
            if !self.has_probe() {
                return Ok(None);
            }
            // The work must have arrived before the probe does.
            sleep((latency / 2).max(HEAD_START)).await;
            let mut call = self.probe_once(&subject).await?;
            // It may have been delayed: what counts is what the service goes on to say.
            if call.answer == CheckAnswer::NotDone {
                call = self.probe_once(&subject).await?;
            }
            Ok::<_, CutShort>(Some((call, Instant::now())))
        };
        let (one, other, probe) = tokio::join!(timed(), timed(), probe());
        let ((one, one_ended), (other, other_ended)) = (one?, other?);
        if let Some((call, ended)) = probe? {
            let ends = [(&one, one_ended), (&other, other_ended)];
            let succeeded = ends.into_iter().filter(|(call, _)| call.output().is_some());
            let first = succeeded.map(|(_, ended)| ended).min();
            let was_running = first.is_some_and(|first| ended < first);
            seen.probe_during = Some((call, was_running));
        }
        let output = one.output().or(other.output()).cloned();
        seen.at_once = Some([one, other]);
        seen.count_after_both = self.probe_to_count(&subject).await?;
        self.clean_up(&subject, output.as_ref()).await
    }

    async fn dropped_answer(
        &self,
        latency: Duration,
        seen: &mut CheckObservations,
    ) -> Result<(), CutShort> {
        let subject = Subject::new();
        let soon = (latency / 2).clamp(Duration::from_millis(5), SHORT_COMPLETE_BY);
        let exchange = self.send_and_close(&subject, soon).await?;
        let pause = (latency * 2).max(Duration::from_millis(100));
        self.pause(pause).await?;
        let mut probe = self.probe_once(&subject).await?;
        for _ in 1..PROBES {
            if !matches!(
                probe.answer,
                CheckAnswer::InProgress | CheckAnswer::Transient(_)
            ) {
                break;
            }
            self.pause(pause).await?;
            probe = self.probe_once(&subject).await?;
        }
        let repeat = self.work(&subject).await?;
        let probe_after = self.probe(&subject).await?;
        let output = repeat.output().cloned();
        seen.dropped = Some(DroppedAnswer {
            exchange,
            probe: Some(probe),
            repeat,
            probe_after: Some(probe_after),
        });
        self.clean_up(&subject, output.as_ref()).await
    }

    async fn after_complete_by(
        &self,
        latency: Duration,
        seen: &mut CheckObservations,
    ) -> Result<(), CutShort> {
        let subject = Subject::new();
        let within = (latency * 4).max(SHORT_COMPLETE_BY);
        let within = within.min(self.step.complete_within.duration());
        let begun = Instant::now();
        let rendered = self.render_work(&subject);
        let first = self
            .make(
                &subject,
                Purpose::Work,
                rendered,
                Making {
                    within,
                    ..self.usual()
                },
            )
            .await?;
        let passed = begun + within + Duration::from_millis(50);
        self.pause(passed.saturating_duration_since(Instant::now()))
            .await?;
        let again = self.work(&subject).await?;
        let output = first.output().or(again.output()).cloned();
        seen.complete_by = Some([first, again]);
        seen.count_after_complete_by = self.probe_to_count(&subject).await?;
        self.clean_up(&subject, output.as_ref()).await
    }

    async fn late_request(&self, seen: &mut CheckObservations) -> Result<(), CutShort> {
        let subject = Subject::new();
        let late_by = i64::try_from(LATE_BY.as_millis()).unwrap_or(i64::MAX);
        let complete_by = Timestamp::from_millis(self.now().as_millis() - late_by);
        let rendered = self.render_work(&subject);
        let call = self
            .make(
                &subject,
                Purpose::Work,
                rendered,
                Making {
                    purpose: "late work",
                    complete_by: Some(complete_by),
                    retries: 0,
                    is_usual: false,
                    ..self.usual()
                },
            )
            .await?;
        let is_refused = matches!(
            call.answer,
            CheckAnswer::Refused(_) | CheckAnswer::Transient(_)
        );
        let (mut probe, mut in_time) = (None, None);
        if is_refused {
            if self.has_probe() {
                probe = Some(self.probe(&subject).await?);
            }
            in_time = Some(self.work(&subject).await?);
        }
        let output = in_time.as_ref().unwrap_or(&call).output().cloned();
        seen.late = Some(LateArrival {
            call,
            probe,
            in_time,
        });
        self.clean_up(&subject, output.as_ref()).await
    }

    async fn undo_before_work(&self, seen: &mut CheckObservations) -> Result<(), CutShort> {
        let subject = Subject::new();
        let undo = self.undo(&subject, None, "undo").await?;
        let was_made = !matches!(undo.answer, CheckAnswer::Unmakeable(_));
        seen.undo_before = Some(undo);
        if !was_made {
            return Ok(());
        }
        let rendered = self.render_work(&subject);
        let work = self
            .make(
                &subject,
                Purpose::Work,
                rendered,
                Making {
                    purpose: "work after its undo",
                    retries: 0,
                    is_usual: false,
                    ..self.usual()
                },
            )
            .await?;
        let mut probe = None;
        if self.has_probe() {
            probe = Some(self.probe(&subject).await?);
        }
        let output = work.output().cloned();
        seen.work_after_undo = Some((work, probe));
        self.clean_up(&subject, output.as_ref()).await
    }

    async fn invalid_body(&self, seen: &mut CheckObservations) -> Result<(), CutShort> {
        let subject = Subject::new();
        let body = self.request.invalid.clone();
        let body =
            body.unwrap_or_else(|| Payload::from_string("provost agent check: not a request"));
        let rendered = self.render_work(&subject).map(|rendered| Rendered {
            body: Some(CallBody::Whole(body)),
            ..rendered
        });
        let call = self
            .make(
                &subject,
                Purpose::Work,
                rendered,
                Making {
                    purpose: "invalid work",
                    retries: 0,
                    is_usual: false,
                    ..self.usual()
                },
            )
            .await?;
        let output = call.output().cloned();
        seen.invalid = Some(call);
        self.clean_up(&subject, output.as_ref()).await
    }

    /// Undoes what was done for this key.
    async fn clean_up(&self, subject: &Subject, output: Option<&Payload>) -> Result<(), CutShort> {
        if output.is_some() && self.undo.is_some() {
            self.undo(subject, output, "clean-up").await?;
        }
        Ok(())
    }

    fn has_probe(&self) -> bool {
        self.step.probe.is_some()
    }

    fn now(&self) -> Timestamp {
        self.request.now + Span::from_millis(millis(self.start.elapsed()))
    }

    /// As the step's work is done.
    fn usual(&self) -> Making {
        Making {
            purpose: "work",
            within: self.step.complete_within.duration(),
            complete_by: None,
            retries: RETRIES,
            is_usual: true,
        }
    }

    async fn work(&self, subject: &Subject) -> Result<CheckedCall, CutShort> {
        let rendered = self.render_work(subject);
        self.make(subject, Purpose::Work, rendered, self.usual())
            .await
    }

    async fn undo(
        &self,
        subject: &Subject,
        output: Option<&Payload>,
        purpose: &'static str,
    ) -> Result<CheckedCall, CutShort> {
        let Some(undo) = self.undo else {
            return Err(CutShort("it has no undo".to_owned()));
        };
        let making = Making {
            purpose,
            within: undo.complete_within.duration(),
            ..self.usual()
        };
        let rendered = self.render_undo(subject, undo, output);
        let undoes = Purpose::Undo(self.key(subject, self.step));
        self.make(subject, undoes, rendered, making).await
    }

    async fn probe(&self, subject: &Subject) -> Result<CheckedCall, CutShort> {
        self.probe_with(subject, RETRIES).await
    }

    /// Nothing if the check reads no count.
    async fn probe_to_count(&self, subject: &Subject) -> Result<Option<CheckedCall>, CutShort> {
        match &self.request.count {
            Some(_) => self.probe(subject).await.map(Some),
            None => Ok(None),
        }
    }

    async fn probe_once(&self, subject: &Subject) -> Result<CheckedCall, CutShort> {
        self.probe_with(subject, 0).await
    }

    async fn probe_with(&self, subject: &Subject, retries: u32) -> Result<CheckedCall, CutShort> {
        let Some(probe) = &self.step.probe else {
            return Err(CutShort("it has no probe".to_owned()));
        };
        let making = Making {
            purpose: "probe",
            within: probe.complete_within.duration(),
            retries,
            ..self.usual()
        };
        let rendered = self.rendered(subject, Some(&probe.request), None);
        let probes = Purpose::Probe(self.key(subject, self.step));
        self.make(subject, probes, rendered, making).await
    }

    fn key(&self, subject: &Subject, step: &StepDefinition) -> String {
        format!("{}:{}", subject.task.0.hyphenated(), step.name)
    }

    fn render_work(&self, subject: &Subject) -> Result<Rendered, String> {
        self.rendered(subject, self.step.request(), None)
    }

    fn render_undo(
        &self,
        subject: &Subject,
        undo: &StepDefinition,
        output: Option<&Payload>,
    ) -> Result<Rendered, String> {
        self.rendered(subject, undo.request(), Some(output))
    }

    /// `undone`: the output of the work that is undone, if that is known.
    fn rendered(
        &self,
        subject: &Subject,
        request: Option<&RequestTemplate>,
        undone: Option<Option<&Payload>>,
    ) -> Result<Rendered, String> {
        let sent = match undone {
            None => None,
            Some(_) => Some(self.render_work(subject)?.as_payload()),
        };
        let budget = Budget::evaluation();
        let mut scope = self.scope(subject, &budget);
        scope.request = sent.as_ref();
        if let Some(Some(output)) = undone {
            scope.output = Some(output);
            scope.steps.push((&self.step.name, Some(output)));
        }
        let request = request.ok_or("the step calls no service")?;
        render_request(request, &scope, None).map_err(|error| error.to_string())
    }

    fn scope<'s>(&'s self, subject: &'s Subject, budget: &'s Budget) -> Scope<'s> {
        Scope {
            task_id: subject.task,
            key: Some(&subject.key),
            input: Some(&self.request.input),
            ..Scope::empty(budget)
        }
    }

    /// Makes a call, and makes it again after transient faults.
    async fn make(
        &self,
        subject: &Subject,
        purpose: Purpose,
        rendered: Result<Rendered, String>,
        making: Making,
    ) -> Result<CheckedCall, CutShort> {
        let mut call = CheckedCall {
            task: subject.task,
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
            let left = self.end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.out_of_time());
            }
            let begun = Instant::now();
            let end = begun + making.within.min(left);
            let complete_by = making.complete_by.unwrap_or_else(|| {
                let within = Span::from_millis(millis(making.within));
                self.now() + within
            });
            let request = self.call(subject, &purpose, &rendered, complete_by, made + 1);
            let body = rendered.body.clone();
            let wire = self.agent.wire();
            let exchange = wire.exchange(&request, body, self.now(), ResponseWait::Until(end));
            let exchange = exchange.await;
            drop(slot);
            let took = millis(begun.elapsed());
            let wait = exchange.retry_after.clone();
            let answer = self.understood(subject, &exchange);
            if answer == CheckAnswer::Silent && making.within > left {
                return Err(self.out_of_time());
            }
            let number = self.note(&request, &rendered, &exchange, &answer, took, making)?;
            call.exchanges.push(number);
            call.millis = took;
            let is_transient = matches!(answer, CheckAnswer::Transient(_) | CheckAnswer::Broken(_));
            call.answer = answer;
            call.count = self.count(subject, &exchange);
            let wait = match wait {
                Some(Ok(wait)) => wait.max(RETRY_WAIT),
                _ => RETRY_WAIT,
            };
            if !is_transient || made == making.retries || wait > LONGEST_RETRY_WAIT {
                return Ok(call);
            }
            made += 1;
            self.pause(wait).await?;
        }
    }

    /// Sends the work, and closes the connection soon after.
    async fn send_and_close(&self, subject: &Subject, soon: Duration) -> Result<u32, CutShort> {
        let rendered = self.render_work(subject).map_err(CutShort)?;
        let _slot = self.slot().await?;
        let within = self.step.complete_within;
        let complete_by = self.now() + within;
        let request = self.call(subject, &Purpose::Work, &rendered, complete_by, 1);
        let end = (Instant::now() + within.duration()).min(self.end);
        let patience = ResponseWait::CloseAfter(soon, end);
        let begun = Instant::now();
        let body = rendered.body.clone();
        let wire = self.agent.wire();
        let exchange = wire.exchange(&request, body, self.now(), patience).await;
        let answer = self.understood(subject, &exchange);
        let making = Making {
            purpose: "work, dropped",
            is_usual: false,
            ..self.usual()
        };
        let took = millis(begun.elapsed());
        self.note(&request, &rendered, &exchange, &answer, took, making)
    }

    fn understood(&self, subject: &Subject, exchange: &ServiceExchange) -> CheckAnswer {
        match (&exchange.answer, &self.step.probe) {
            (ExchangeAnswer::Known(answer), _) => answer.clone(),
            (ExchangeAnswer::Probed(status, body), Some(probe)) => {
                let budget = Budget::evaluation();
                let scope = self.scope(subject, &budget);
                CheckAnswer::of_probe(probe, *status, body, scope)
            }
            (ExchangeAnswer::Probed(status, _), None) => CheckAnswer::Refused(*status),
        }
    }

    fn count(&self, subject: &Subject, exchange: &ServiceExchange) -> Option<EffectCount> {
        let count = self.request.count.as_ref()?;
        let ExchangeAnswer::Probed(status, body) = &exchange.answer else {
            return None;
        };
        let budget = Budget::evaluation();
        let scope = self.scope(subject, &budget);
        Some(effect_count(count, *status, body, scope))
    }

    fn note(
        &self,
        request: &Call,
        rendered: &Rendered,
        exchange: &ServiceExchange,
        answer: &CheckAnswer,
        took: u64,
        making: Making,
    ) -> Result<u32, CutShort> {
        let mut log = self.log.lock();
        if log.exchanges.len() >= MOST_EXCHANGES {
            let why = format!("it has made {MOST_EXCHANGES} calls, more than a check may");
            return Err(CutShort(why));
        }
        // At most MOST_EXCHANGES.
        let number = log.exchanges.len() as u32 + 1;
        if let (Some(status @ (408 | 425 | 429 | 500..)), Some(wait)) =
            (exchange.status, &exchange.retry_after)
        {
            let wait = wait.clone().map(millis);
            log.waits.push(AskedWait {
                exchange: number,
                status,
                wait,
            });
        }
        if making.is_usual && exchange.status.is_some() {
            log.slowest = log.slowest.max(Some((took, number)));
            let length = exchange.length.map(|length| (length, number));
            log.largest = log.largest.max(length);
        }
        let key = match &request.purpose {
            Purpose::Undo(key) | Purpose::Probe(key) | Purpose::Cancel(key) => key.clone(),
            Purpose::Work | Purpose::Poll => request.idempotency_key.clone(),
        };
        let shown = |body: &str| shortened(body, SHOWN);
        log.exchanges.push(ShownExchange {
            number,
            purpose: making.purpose,
            method: request.method.as_str(),
            path: shortened(&request.path, SHOWN),
            key,
            complete_by: request.complete_by,
            sent: rendered.body.as_deref().map(shown),
            status: exchange.status,
            retry_after: exchange.retry_after.as_ref().map(|wait| match wait {
                Ok(wait) => format!("{} ms", millis(*wait)),
                Err(text) => text.clone(),
            }),
            body: exchange.body.as_deref().map(shown),
            fault: exchange.status.is_none().then(|| answer.to_string()),
            millis: took,
        });
        Ok(number)
    }

    fn call(
        &self,
        subject: &Subject,
        purpose: &Purpose,
        rendered: &Rendered,
        complete_by: Timestamp,
        attempt: u32,
    ) -> Call {
        let (definition, index) = match (purpose, self.undo) {
            (Purpose::Undo(_), Some(undo)) => (undo, StepIndex(1)),
            _ => (self.step, StepIndex(0)),
        };
        let step = StepRef {
            task: subject.task,
            step: index,
        };
        let attempt = Attempt(attempt);
        Call {
            step,
            step_name: definition.name.clone(),
            task_key: Some(subject.key.as_str().into()),
            attempt,
            tries: 0,
            idempotency_key: self.key(subject, definition),
            target: Target::Agent(self.agent.name().clone()),
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
            is_dropped_by_undo: false,
            reply_mode: ReplyMode::Response,
            heartbeat_within: None,
        }
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
            if let Some(why) = current.stopped().as_ref().and_then(Stopped::why) {
                return Err(CutShort(why));
            }
            if let Some(slot) = self.agents.try_take(name)
                && slot.begins()
            {
                return Ok(slot);
            }
            if self.agents.is_closed() {
                return Err(CutShort("the service is stopping".to_owned()));
            }
            self.pause(SLOT_WAIT).await?;
        }
    }

    async fn pause(&self, length: Duration) -> Result<(), CutShort> {
        let until = Instant::now() + length;
        sleep_until(until.min(self.end)).await;
        if until > self.end {
            return Err(self.out_of_time());
        }
        Ok(())
    }

    fn out_of_time(&self) -> CutShort {
        let within = Span::from_millis(millis(self.request.within));
        CutShort(format!("the time of the check, {within}, was over"))
    }
}

impl Stopped {
    /// Why the agent is not called for now; `None` if it is only called later.
    pub fn why(&self) -> Option<String> {
        match self {
            Self::Paused(_) => Some("the agent is paused".to_owned()),
            Self::Breaker { reason, .. } => Some(format!(
                "the breakers of all its endpoints are open: {reason}"
            )),
            Self::Unhealthy { reason, .. } => Some(format!("no endpoint is healthy: {reason}")),
            Self::Secret(why) => Some(format!("it needs a secret that cannot be used: {why}")),
            Self::Throttled(_) | Self::Rate(_) => None,
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
