//! Runs the cases of a file, one after another.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use provost_domain::{
    definition::{Definition, SchemaOwner},
    values::FieldFault,
};

use crate::{
    account::{schedule_snapshot, schedule_timeline, snapshot, timeline},
    call_name::CallName,
    cases::{CasesFile, MockTable, TestCase},
    expectation::{CaseNote, Expectation},
    matching::exact_difference,
    mock::Mock,
    rehearsal::{OutsideEvent, OutsideResult, Rehearsal, RehearsalEnd, RehearsalInput, Services},
    schedule::ScheduleCase,
    schedule_rehearsal::rehearse_schedule,
    workflow::WorkflowFile,
    world::rehearse,
};

/// The result of a case.
#[derive(Debug)]
pub struct CaseResult {
    /// The failures of the case. It has passed if there are none.
    pub failures: Vec<CaseNote>,
    pub warnings: Vec<CaseNote>,
    /// The timeline of the rehearsal, line by line.
    pub timeline: Vec<String>,
    /// The snapshot of the rehearsal, which is compared with later runs.
    pub snapshot: Value,
}

impl CaseResult {
    pub fn has_passed(&self) -> bool {
        self.failures.is_empty()
    }
}

/// The number of responses of each list that were used.
pub type UsedMocks = BTreeMap<CallName, usize>;

/// The services of a case: its own, and those of its file.
pub(crate) struct CaseServices<'a> {
    own: &'a MockTable,
    shared: &'a MockTable,
    used_own: UsedMocks,
    used_shared: &'a mut UsedMocks,
}

impl<'a> CaseServices<'a> {
    pub fn new(case: &'a TestCase, shared: &'a MockTable, used_shared: &'a mut UsedMocks) -> Self {
        Self {
            own: &case.services,
            shared,
            used_own: UsedMocks::new(),
            used_shared,
        }
    }
}

impl Services for CaseServices<'_> {
    fn respond(&mut self, name: CallName, count: usize) -> Option<Mock> {
        let (mocks, used) = match self.own.get(&name) {
            Some(mocks) => (mocks, &mut self.used_own),
            None => (self.shared.get(&name)?, &mut *self.used_shared),
        };
        let mock = mocks.get(count).or(mocks.last())?;
        let used = used.entry(name).or_default();
        *used = (*used).max(count + 1);
        Some(mock.clone())
    }
}

/// Runs a case. `known` is the snapshot of an earlier run.
pub fn run_case(
    case: &TestCase,
    file: &CasesFile,
    workflow: &WorkflowFile,
    known: Option<&Value>,
    used_shared: &mut UsedMocks,
) -> CaseResult {
    if let Some(schedule) = &case.schedule {
        return run_schedule(case, schedule, file, workflow, known, used_shared);
    }
    if let Some(refused) = refused_input(case, workflow) {
        return refused;
    }
    let beginning = RehearsalInput {
        workflow,
        input: case.input.clone(),
        key: case.key.clone(),
        labels: case.labels.clone(),
        starts_at: case.starts_at,
        outside: &case.outside,
    };
    let mut services = CaseServices::new(case, &file.services, used_shared);
    let seen = rehearse(&beginning, &mut services);
    let used_own = services.used_own;
    let definition = &workflow.names;
    let mut failures: Vec<_> = end_failure(case, &seen).into_iter().collect();
    let mut warnings = unused_mocks(definition, &case.services, &used_own);
    for (index, event) in case.outside.iter().enumerate() {
        failures.extend(outside_failure(event, &seen.outside[index]));
        if seen.outside[index] == OutsideResult::NotSent {
            let message = format!(
                "was not sent: nothing more happened after {}",
                seen.ended_after
            );
            warnings.push(CaseNote::new(&event.pointer, message));
        }
    }
    if let Some(expect) = &case.expect {
        failures.extend(expect.differences(&seen));
    }
    let snapshot = snapshot(&seen);
    compare(case, known, &snapshot, &mut failures, &mut warnings);
    CaseResult {
        failures,
        warnings,
        timeline: timeline(&seen),
        snapshot,
    }
}

/// Returns a failure if an outside event was refused although it should be accepted, or accepted although it should be
/// refused.
fn outside_failure(event: &OutsideEvent, result: &OutsideResult) -> Option<CaseNote> {
    let message = match result {
        OutsideResult::Accepted(at) if event.refused => {
            format!("was to be refused, but was accepted after {at}")
        }
        OutsideResult::Refused(at, why) if !event.refused => {
            format!("was refused after {at}: {why}")
        }
        _ => return None,
    };
    Some(CaseNote::new(&event.pointer, message))
}

/// Compares the snapshot with that of an earlier run.
fn compare(
    case: &TestCase,
    known: Option<&Value>,
    snapshot: &Value,
    failures: &mut Vec<CaseNote>,
    warnings: &mut Vec<CaseNote>,
) {
    match known.map(|known| exact_difference(known, snapshot)) {
        Some(Some(difference)) => failures.push(CaseNote::new(
            &case.pointer,
            format!(
                "differs from its snapshot: {difference}; if that is right, --update writes it"
            ),
        )),
        Some(None) => {}
        None if case.expect.is_none() => warnings.push(CaseNote::new(
            &case.pointer,
            "expects nothing: add `expect`, or write a snapshot with --update",
        )),
        None => {}
    }
}

/// Runs a case whose tasks are submitted by a schedule. The expectations of a task apply to the task of each run.
fn run_schedule(
    case: &TestCase,
    schedule: &ScheduleCase,
    file: &CasesFile,
    workflow: &WorkflowFile,
    known: Option<&Value>,
    used_shared: &mut UsedMocks,
) -> CaseResult {
    let mut services = CaseServices::new(case, &file.services, used_shared);
    let seen = rehearse_schedule(case, schedule, workflow, &mut services);
    let used_own = services.used_own;
    let mut failures = Vec::new();
    let mut warnings = unused_mocks(&workflow.names, &case.services, &used_own);
    if let Some(message) = &seen.too_long {
        failures.push(CaseNote::new(&case.pointer, message));
    }
    for run in &seen.runs {
        let Some(task) = &run.task else { continue };
        let mut of_run: Vec<_> = end_failure(case, task).into_iter().collect();
        for (event, result) in case.outside.iter().zip(&task.outside) {
            of_run.extend(outside_failure(event, result));
        }
        if let Some(expect) = &case.expect {
            of_run.extend(expect.differences(task));
        }
        let fire_time = run.run.fire_time;
        failures.extend(of_run.into_iter().map(|note| {
            let message = format!("in the run of {fire_time}: {}", note.message);
            CaseNote::new(note.pointer, message)
        }));
    }
    for (index, event) in case.outside.iter().enumerate() {
        let mut results = seen.runs.iter().filter_map(|run| run.outside(index));
        if results.all(|result| *result == OutsideResult::NotSent) {
            warnings.push(CaseNote::new(&event.pointer, "was not sent in any run"));
        }
    }
    if let Some(expect) = &case.expect {
        failures.extend(expect.run_differences(&seen));
    }
    let snapshot = schedule_snapshot(&seen);
    compare(case, known, &snapshot, &mut failures, &mut warnings);
    CaseResult {
        failures,
        warnings,
        timeline: schedule_timeline(&seen),
        snapshot,
    }
}

/// Returns the result of a case whose submission is refused, because its input does not match the schema of the
/// workflow.
fn refused_input(case: &TestCase, workflow: &WorkflowFile) -> Option<CaseResult> {
    let schema = workflow.definition.input_schema.as_ref()?;
    let pointer = format!("{}/input", case.pointer);
    let faults = schema
        .check(&case.input, &pointer, SchemaOwner::Workflow)
        .err()?;
    let is_expected = case.expect.as_ref().is_some_and(Expectation::is_refusal);
    let note = |fault: FieldFault| {
        let message = format!("the submission is refused: {}", fault.message);
        CaseNote::new(fault.pointer, message)
    };
    let notes: Vec<_> = faults.into_iter().map(note).collect();
    Some(CaseResult {
        timeline: notes.iter().map(ToString::to_string).collect(),
        snapshot: json!({ "refused": notes.iter().map(|note| &note.pointer).collect::<Vec<_>>() }),
        failures: if is_expected { Vec::new() } else { notes },
        warnings: Vec::new(),
    })
}

/// Returns the reason why the rehearsal did not get to an end.
fn end_failure(case: &TestCase, seen: &Rehearsal) -> Option<CaseNote> {
    let definition = &*seen.names;
    let message = match &seen.end {
        RehearsalEnd::Settled | RehearsalEnd::Idle => return None,
        RehearsalEnd::NoResponse(name) => {
            let name = name.in_words(definition);
            format!(
                "`{name}` was called after {}, and has no response: add `{name}` to `services`",
                seen.ended_after
            )
        }
        RehearsalEnd::NotSimulated(message) | RehearsalEnd::TooLong(message) => message.clone(),
    };
    Some(CaseNote::new(&case.pointer, message))
}

/// Returns a note for each list with responses that no call got.
pub fn unused_mocks(definition: &Definition, mocks: &MockTable, used: &UsedMocks) -> Vec<CaseNote> {
    let mut notes = Vec::new();
    for (name, mocks) in mocks {
        let count = used.get(name).copied().unwrap_or_default();
        let name = name.in_words(definition);
        let Some(first) = mocks.get(count) else {
            continue;
        };
        // The note is about the list as a whole, if there is a list.
        let list = first.pointer.strip_suffix("/0").unwrap_or(&first.pointer);
        let (pointer, message) = match count {
            0 => (list, format!("is never used: `{name}` was not called")),
            1 => {
                let message = format!("is never used: `{name}` was called only once");
                (&*first.pointer, message)
            }
            count => {
                let message = format!("is never used: `{name}` was called only {count} times");
                (&*first.pointer, message)
            }
        };
        notes.push(CaseNote::new(pointer, message));
    }
    notes
}
