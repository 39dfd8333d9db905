//! The expectations of a case, and their differences from what happened.

use provost_domain::{
    definition::{Definition, Method},
    schedule::{RunSource, RunState, SkipReason},
    task::{StepState, StepStatus, TaskStatus, task_output},
    values::{
        FieldFault, Fields, LONGEST_NAME, Span, StepIndex, Timestamp, entries, nearest, text,
    },
};
use serde_json::{Value, value::RawValue};

use crate::{
    call_name::{CallName, step_name},
    matching::difference,
    names::is_of,
    reading::{list, time},
    rehearsal::{Rehearsal, SentRequest},
    schedule::{RehearsedRun, RehearsedSchedule},
};

/// A difference or a warning, with the JSON pointer of the part of the file that it is about.
pub type CaseNote = FieldFault;

#[derive(Clone, Debug, Default)]
pub struct Expectation {
    pointer: String,
    state: Option<TaskStatus>,
    error: Option<String>,
    path: Option<Vec<StepIndex>>,
    undone: Option<Vec<StepIndex>>,
    stands: Option<Vec<StepIndex>>,
    steps: Vec<ExpectedStep>,
    requests: Vec<ExpectedRequest>,
    history: Vec<ExpectedEvent>,
    ended_after: Option<Span>,
    ended_within: Option<Span>,
    output: Option<Value>,
    /// True if the submission is expected to be refused, because its input does not match the schema.
    refused: bool,
    /// The expected runs of the schedule. All other expectations apply to the task of each run.
    runs: Option<Vec<ExpectedRun>>,
}

#[derive(Clone, Debug)]
struct ExpectedRun {
    pointer: String,
    fire_time: Timestamp,
    state: Option<TaskStatus>,
    skipped: Option<SkipReason>,
    count: Option<u64>,
    source: Option<RunSource>,
    started_at: Option<Timestamp>,
    refused: bool,
}

#[derive(Clone, Debug)]
struct ExpectedStep {
    pointer: String,
    step: StepIndex,
    state: Option<StepStatus>,
    attempts: Option<usize>,
    output: Option<Value>,
    error: Option<String>,
}

#[derive(Clone, Debug)]
struct ExpectedRequest {
    pointer: String,
    name: CallName,
    attempt: Option<usize>,
    method: Option<Method>,
    path: Option<String>,
    headers: Vec<(String, String)>,
    body: Option<Value>,
}

#[derive(Clone, Debug)]
struct ExpectedEvent {
    pointer: String,
    kind: String,
    step: Option<StepIndex>,
}

impl Expectation {
    /// Reads the field `expect`.
    pub fn read(case: &mut Fields<'_>, definition: &Definition) -> Option<Self> {
        let mut fields = case.object("expect")?;
        let mut expected = Self {
            pointer: case.pointer("expect"),
            state: fields.choice("state", TaskStatus::ALL),
            error: fields.string("error", 4096),
            path: step_list(&mut fields, "path", definition),
            undone: step_list(&mut fields, "undone", definition),
            stands: step_list(&mut fields, "stands", definition),
            ended_after: fields.span("ended_after", Span::default()..=Span::LONGEST),
            ended_within: fields.span("ended_within", Span::default()..=Span::LONGEST),
            output: any_json(&mut fields, "output"),
            refused: fields.boolean("refused").unwrap_or_default(),
            ..Self::default()
        };
        expected.read_steps(&mut fields, definition);
        expected.read_requests(&mut fields, definition);
        expected.read_history(&mut fields, definition);
        expected.read_runs(&mut fields);
        if let Err(faults) = fields.finish() {
            case.extend(faults);
        }
        Some(expected)
    }

    fn read_steps(&mut self, fields: &mut Fields<'_>, definition: &Definition) {
        let parent = fields.pointer("steps");
        let Some(value) = fields.value("steps").filter(|value| value.get() != "null") else {
            return;
        };
        let Some(given) = entries(value) else {
            fields.fault(
                "steps",
                "must be an object: the name of each step, and what is expected of it",
            );
            return;
        };
        for (name, value) in given {
            let pointer = format!("{parent}/{}", name.replace('~', "~0").replace('/', "~1"));
            let read = CallName::parse_step(&name, definition)
                .map_err(|message| vec![FieldFault::new(&pointer, message)])
                .and_then(|step| ExpectedStep::read(value, pointer, step));
            match read {
                Ok(step) => self.steps.push(step),
                Err(faults) => fields.extend(faults),
            }
        }
    }

    fn read_requests(&mut self, fields: &mut Fields<'_>, definition: &Definition) {
        let parent = fields.pointer("requests");
        for (index, item) in fields.array("requests").into_iter().flatten().enumerate() {
            let pointer = format!("{parent}/{index}");
            match ExpectedRequest::read(item, pointer, definition) {
                Ok(request) => self.requests.extend(request),
                Err(faults) => fields.extend(faults),
            }
        }
    }

    fn read_history(&mut self, fields: &mut Fields<'_>, definition: &Definition) {
        let parent = fields.pointer("history");
        for (index, item) in fields.array("history").into_iter().flatten().enumerate() {
            let pointer = format!("{parent}/{index}");
            match ExpectedEvent::read(item, pointer, definition) {
                Ok(event) => self.history.extend(event),
                Err(faults) => fields.extend(faults),
            }
        }
    }

    fn read_runs(&mut self, fields: &mut Fields<'_>) {
        if fields.peek("runs").is_some() {
            self.runs = Some(list(fields, "runs", ExpectedRun::read));
        }
    }

    /// Returns whether it expects something of the runs of a schedule.
    pub fn has_runs(&self) -> bool {
        self.runs.is_some()
    }

    /// Returns the differences between the runs of a schedule and the expected ones.
    pub fn run_differences(&self, seen: &RehearsedSchedule) -> Vec<CaseNote> {
        let Some(expected) = &self.runs else {
            return Vec::new();
        };
        let pointer = format!("{}/runs", self.pointer);
        let mut notes: Vec<_> = expected
            .iter()
            .zip(&seen.runs)
            .flat_map(|(expected, seen)| expected.differences(seen))
            .collect();
        let more = seen.runs.get(expected.len()..).unwrap_or_default();
        if let Some(first) = more.first() {
            let message = format!(
                "expected {} runs, but there were {}; the first that was not expected: {}",
                expected.len(),
                seen.runs.len(),
                first.in_words()
            );
            notes.push(CaseNote::new(pointer, message));
        }
        for missing in expected.get(seen.runs.len()..).unwrap_or_default() {
            let message = format!("there was no run of {}", missing.fire_time);
            notes.push(CaseNote::new(&missing.pointer, message));
        }
        notes
    }

    /// Returns whether the submission is expected to be refused.
    pub fn is_refusal(&self) -> bool {
        self.refused
    }

    /// Returns the differences between what happened and what was expected.
    pub fn differences(&self, seen: &Rehearsal) -> Vec<CaseNote> {
        let mut notes = Vec::new();
        let task = &seen.task;
        let definition = &*seen.names;
        let mut differs = |field: &str, message: String| {
            notes.push(CaseNote::new(format!("{}/{field}", self.pointer), message));
        };
        let error = task.error().or_else(|| task.undo.as_ref()?.error.as_ref());
        let error = error.map(|fault| fault.message.as_str());
        if let Some(state) = self.state
            && state != task.status()
        {
            let why = error.map_or_else(String::new, |error| format!(" ({error})"));
            let message = format!(
                "expected {}, but the task is {}{why}",
                state.as_str(),
                task.status().as_str()
            );
            differs("state", message);
        }
        if let Some(wanted) = &self.error
            && !error.is_some_and(|error| error.contains(wanted.as_str()))
        {
            let found = error.map_or_else(
                || "there is none".to_owned(),
                |error| format!("it is {error:?}"),
            );
            differs(
                "error",
                format!("expected an error with {wanted:?}, but {found}"),
            );
        }
        let lists = [
            ("path", &self.path, seen.path()),
            ("undone", &self.undone, seen.undone()),
            (
                "stands",
                &self.stands,
                seen.standing().iter().map(|effect| effect.step).collect(),
            ),
        ];
        for (field, wanted, found) in lists {
            if let Some(wanted) = wanted
                && *wanted != found
            {
                let message = format!(
                    "expected {}, but it is {}",
                    step_names(definition, wanted),
                    step_names(definition, &found)
                );
                differs(field, message);
            }
        }
        if let Some(wanted) = self.ended_after
            && wanted != seen.ended_after
        {
            let message = format!(
                "expected an end after {wanted}, but it came after {}",
                seen.ended_after
            );
            differs("ended_after", message);
        }
        if let Some(wanted) = self.ended_within
            && wanted < seen.ended_after
        {
            let message = format!(
                "expected an end within {wanted}, but it came after {}",
                seen.ended_after
            );
            differs("ended_within", message);
        }
        if let Some(wanted) = &self.output {
            let found = match task_output(task) {
                Some(Ok(output)) => serde_json::from_str(output.as_json()).unwrap_or_default(),
                None => Value::Null,
                Some(Err(error)) => {
                    differs("output", format!("it cannot be evaluated: {error}"));
                    wanted.clone()
                }
            };
            if let Some(difference) = difference(wanted, &found) {
                differs(
                    "output",
                    format!("the output of the task differs: {difference}"),
                );
            }
        }
        if self.refused {
            differs(
                "refused",
                "the submission was to be refused, but was accepted".to_owned(),
            );
        }
        for step in &self.steps {
            notes.extend(step.differences(seen));
        }
        notes.extend(self.request_differences(seen));
        notes.extend(self.history_difference(seen));
        notes
    }

    /// Checks that each expected request was sent, in this order. Others may have been sent between them.
    fn request_differences(&self, seen: &Rehearsal) -> Vec<CaseNote> {
        let mut notes = Vec::new();
        let mut from = 0;
        for expected in &self.requests {
            let is_meant = |request: &SentRequest| {
                request.name == expected.name
                    && expected
                        .attempt
                        .is_none_or(|attempt| attempt == request.count)
            };
            let rest = &seen.requests[from..];
            if let Some(at) = rest
                .iter()
                .position(|request| is_meant(request) && expected.difference(request).is_none())
            {
                from += at + 1;
                continue;
            }
            let definition = &*seen.names;
            let name = expected.name.in_words(definition);
            let nearest = rest.iter().find(|request| is_meant(request));
            let message = match nearest.and_then(|request| expected.difference(request)) {
                Some(difference) => format!("the request of `{name}` differs: {difference}"),
                None if seen.requests[..from].iter().any(is_meant) => {
                    format!(
                        "the request of `{name}` was sent, but not in this order, or not so often"
                    )
                }
                None => {
                    let attempt = expected.attempt.map(|attempt| format!(" number {attempt}"));
                    format!(
                        "no request{} of `{name}` was sent",
                        attempt.unwrap_or_default()
                    )
                }
            };
            notes.push(CaseNote::new(&expected.pointer, message));
        }
        notes
    }

    /// Checks that the expected events happened in this order. Others may have happened between them.
    fn history_difference(&self, seen: &Rehearsal) -> Option<CaseNote> {
        let mut events = seen.events.iter();
        let missing = self.history.iter().find(|expected| {
            let name = expected.step.map(|step| &seen.names.step(step).name);
            let found = events.find(|(_, event)| {
                event.kind == expected.kind
                    && name.is_none_or(|name| {
                        event.step.as_ref().is_some_and(|step| is_of(step, name))
                    })
            });
            found.is_none()
        })?;
        let step = missing
            .step
            .map(|step| format!(" of `{}`", step_name(&seen.names, step)));
        let step = step.unwrap_or_default();
        let kind = &missing.kind;
        let message = match seen.events.iter().any(|(_, event)| event.kind == *kind) {
            true => format!("no {kind}{step} comes after the events above it in this list"),
            false => {
                let kinds = seen.events.iter().map(|(_, event)| &*event.kind);
                match nearest(kind, kinds) {
                    Some(meant) => {
                        format!("the history has no {kind}{step}; did you mean {meant}?")
                    }
                    None => format!("the history has no {kind}{step}"),
                }
            }
        };
        Some(CaseNote::new(&missing.pointer, message))
    }
}

/// Takes a field whose value may be any JSON, null included.
fn any_json(fields: &mut Fields<'_>, name: &str) -> Option<Value> {
    let value = fields.value(name)?;
    serde_json::from_str(value.get()).ok()
}

fn step_list(
    fields: &mut Fields<'_>,
    name: &str,
    definition: &Definition,
) -> Option<Vec<StepIndex>> {
    let parent = fields.pointer(name);
    let items = fields.array(name)?;
    let mut steps = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let pointer = format!("{parent}/{index}");
        let step = text(item.get()).ok_or_else(|| "must be the name of a step".to_owned());
        match step.and_then(|name| CallName::parse_step(&name, definition)) {
            Ok(step) => steps.push(step),
            Err(message) => fields.extend([FieldFault::new(pointer, message)]),
        }
    }
    Some(steps)
}

/// Returns the names in brackets, as a file has them.
pub fn step_names(definition: &Definition, steps: &[StepIndex]) -> String {
    let names: Vec<_> = steps
        .iter()
        .map(|step| step_name(definition, *step))
        .collect();
    format!("[{}]", names.join(", "))
}

impl ExpectedStep {
    fn read(value: &RawValue, pointer: String, step: StepIndex) -> Result<Self, Vec<FieldFault>> {
        let mut fields = Fields::of(value, &pointer)?;
        let state = fields.choice("state", StepStatus::ALL);
        let attempts = fields.integer("attempts", 0..=1_000_000);
        let output = any_json(&mut fields, "output");
        let error = fields.string("error", 4096);
        fields.finish()?;
        Ok(Self {
            pointer,
            step,
            state,
            // The value is within 0 to a million.
            attempts: attempts.map(|attempts| attempts as usize),
            output,
            error,
        })
    }

    fn differences(&self, seen: &Rehearsal) -> Vec<CaseNote> {
        let task = &seen.task;
        let mut notes = Vec::new();
        let mut differs = |field: &str, message: String| {
            notes.push(CaseNote::new(format!("{}/{field}", self.pointer), message));
        };
        // An undo exists only once the task is being undone.
        let step = seen.in_task(self.step).map(|index| task.step(index));
        let status = seen.status(self.step);
        let fault = step.and_then(|step| match &step.state {
            StepState::Error(fault) => Some(fault),
            _ => step.last_fault.as_ref(),
        });
        let error = fault.map(|fault| fault.message.as_str());
        if let Some(state) = self.state
            && state != status
        {
            let why = error.map_or_else(String::new, |error| format!(" ({error})"));
            let message = format!(
                "expected {}, but it is {}{why}",
                state.as_str(),
                status.as_str()
            );
            differs("state", message);
        }
        let attempts = seen.attempts(self.step);
        if let Some(wanted) = self.attempts
            && wanted != attempts
        {
            differs(
                "attempts",
                format!("expected {wanted}, but there were {attempts}"),
            );
        }
        if let Some(wanted) = &self.output {
            let output = step.and_then(|step| step.output());
            let output = output.and_then(|output| serde_json::from_str(output.as_json()).ok());
            if let Some(difference) = difference(wanted, &output.unwrap_or(Value::Null)) {
                differs("output", format!("the output differs: {difference}"));
            }
        }
        if let Some(wanted) = &self.error
            && !error.is_some_and(|error| error.contains(wanted.as_str()))
        {
            let found = error.map_or_else(
                || "there is none".to_owned(),
                |error| format!("it is {error:?}"),
            );
            differs(
                "error",
                format!("expected an error with {wanted:?}, but {found}"),
            );
        }
        notes
    }
}

impl ExpectedRequest {
    fn read(
        value: &RawValue,
        pointer: String,
        definition: &Definition,
    ) -> Result<Option<Self>, Vec<FieldFault>> {
        let mut fields = Fields::of(value, &pointer)?;
        if fields.peek("step").is_none() {
            fields.missing(
                "step",
                "name the call, such as \"charge\" or \"undo charge\"",
            );
        }
        let name = fields.string("step", LONGEST_NAME).and_then(|name| {
            let name = CallName::parse(&name, definition);
            name.map_err(|message| fields.fault("step", message)).ok()
        });
        let attempt = fields.integer("attempt", 1..=1_000_000);
        let method = fields.choice("method", Method::ALL);
        let path = fields.string("path", usize::MAX);
        let mut headers = Vec::new();
        for (name, pointer, value) in fields.entries("headers") {
            match text(value.get()) {
                Some(value) => headers.push((name.to_ascii_lowercase(), value.into_owned())),
                None => fields.extend([FieldFault::new(pointer, "must be a string: quote it")]),
            }
        }
        let body = any_json(&mut fields, "body");
        fields.finish()?;
        Ok(name.map(|name| Self {
            pointer,
            name,
            // The value is within 1 to a million.
            attempt: attempt.map(|attempt| attempt as usize),
            method,
            path,
            headers,
            body,
        }))
    }

    fn difference(&self, request: &SentRequest) -> Option<String> {
        if let Some(method) = self.method
            && method.as_str() != request.method
        {
            return Some(format!(
                "its method is {}: expected {}",
                request.method,
                method.as_str()
            ));
        }
        if let Some(path) = &self.path
            && *path != request.path
        {
            return Some(format!("its path is {:?}: expected {path:?}", request.path));
        }
        for (name, value) in &self.headers {
            let mut headers = request.headers.iter();
            match headers.find(|(known, _)| known == name) {
                Some((_, found)) if found == value => {}
                Some((_, found)) => {
                    return Some(format!(
                        "its header {name} is {found:?}: expected {value:?}"
                    ));
                }
                None => return Some(format!("it has no header {name}: expected {value:?}")),
            }
        }
        let wanted = self.body.as_ref()?;
        let body = request.body.as_ref();
        let body = body.and_then(|body| serde_json::from_str(body.as_json()).ok());
        difference(wanted, &body.unwrap_or(Value::Null))
            .map(|difference| format!("in its body, {difference}"))
    }
}

impl ExpectedRun {
    fn read(fields: &mut Fields<'_>, pointer: String) -> Option<Self> {
        if fields.peek("fire_time").is_none() {
            fields.missing("fire_time", "say which fire time the run is of");
        }
        let fire_time = time(fields, "fire_time");
        let state = fields.choice("state", TaskStatus::ALL);
        let skipped = fields.choice("skipped", SkipReason::ALL);
        let refused = fields.boolean("refused").unwrap_or_default();
        if state.is_some() && (skipped.is_some() || refused) {
            fields.fault("state", "is of a task, and such a run has none: remove it");
        }
        let count = fields.integer("count", 1..=i64::MAX);
        let source = fields.choice("source", RunSource::ALL);
        let started_at = time(fields, "started_at");
        Some(Self {
            pointer,
            fire_time: fire_time?,
            state,
            skipped,
            // The value is at least 1.
            count: count.map(i64::unsigned_abs),
            source,
            started_at,
            refused,
        })
    }

    fn differences(&self, seen: &RehearsedRun) -> Vec<CaseNote> {
        let run = &seen.run;
        let is_refused = run.state == RunState::Failed;
        let state = seen.task.as_ref().map(|seen| seen.task.status());
        let wrong = [
            (
                "fire_time",
                self.fire_time != run.fire_time,
                self.fire_time.to_string(),
            ),
            (
                "skipped",
                self.skipped != run.skipped && (self.skipped.is_some() || self.state.is_some()),
                word(self.skipped.map(SkipReason::as_str)),
            ),
            (
                "state",
                self.state.is_some() && self.state != state,
                word(self.state.map(TaskStatus::as_str)),
            ),
            (
                "count",
                self.count.is_some_and(|count| count != run.count),
                word(self.count),
            ),
            (
                "source",
                self.source.is_some_and(|source| source != run.source),
                word(self.source.map(RunSource::as_str)),
            ),
            (
                "started_at",
                self.started_at.is_some() && self.started_at != run.started_at,
                word(self.started_at),
            ),
            (
                "refused",
                self.refused != is_refused && (self.refused || self.state.is_some()),
                self.refused.to_string(),
            ),
        ];
        let wrong = wrong.into_iter().filter(|(_, differs, _)| *differs);
        let notes = wrong.map(|(field, _, wanted)| {
            let message = format!("expected {wanted}, but the run was: {}", seen.in_words());
            CaseNote::new(format!("{}/{field}", self.pointer), message)
        });
        // One difference is enough.
        notes.take(1).collect()
    }
}

fn word(wanted: Option<impl ToString>) -> String {
    wanted.map_or_else(|| "none".to_owned(), |wanted| wanted.to_string())
}

impl ExpectedEvent {
    fn read(
        value: &RawValue,
        pointer: String,
        definition: &Definition,
    ) -> Result<Option<Self>, Vec<FieldFault>> {
        let mut fields = Fields::of(value, &pointer)?;
        if fields.peek("type").is_none() {
            fields.missing(
                "type",
                "give the type of an event, such as \"step.expired\"",
            );
        }
        let kind = fields.string("type", LONGEST_NAME);
        let has_step = fields.peek("step").is_some();
        let step = fields.string("step", LONGEST_NAME).and_then(|name| {
            let step = CallName::parse_step(&name, definition);
            step.map_err(|message| fields.fault("step", message)).ok()
        });
        fields.finish()?;
        Ok(kind
            .filter(|_| !has_step || step.is_some())
            .map(|kind| Self {
                pointer,
                kind,
                step,
            }))
    }
}
