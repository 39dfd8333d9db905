//! A file of cases: for each of them the responses of the services, and the expectations.

use std::collections::{BTreeMap, BTreeSet};

use provost_domain::{
    definition::{Definition, StepWork},
    template::Payload,
    values::{FieldFault, Fields, LONGEST_NAME, Span, StepIndex, Timestamp, entries, text},
};
use serde_json::value::RawValue;

use crate::{
    call_name::CallName,
    expectation::Expectation,
    mock::Mock,
    names::split_item,
    reading::{list, time},
    rehearsal::{OutsideCommand, OutsideEvent, USUAL_START},
    schedule::ScheduleCase,
    workflow::WorkflowFile,
};

/// The largest number of cases in a file.
pub const MOST_CASES: usize = 1000;
/// The largest number of outside events of a case.
const MOST_OUTSIDE: usize = 1000;

/// The responses of the services, by the names of the calls. The items of a list are for one call each, and the last
/// item is also for all that follow.
pub type MockTable = BTreeMap<CallName, Vec<Mock>>;

#[derive(Debug)]
pub struct CasesFile {
    /// The responses for all cases that do not set their own.
    pub services: MockTable,
    pub cases: Vec<TestCase>,
}

#[derive(Debug)]
pub struct TestCase {
    pub name: String,
    /// The JSON pointer of the case in the file.
    pub pointer: String,
    pub input: Payload,
    pub key: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub starts_at: Timestamp,
    pub services: MockTable,
    pub outside: Vec<OutsideEvent>,
    /// The schedule that submits the tasks. `None`: one task is submitted.
    pub schedule: Option<ScheduleCase>,
    /// The expectations. `None`: any result passes.
    pub expect: Option<Expectation>,
}

/// The fields of the file that apply to all of its cases.
struct Shared<'a> {
    workflow: &'a WorkflowFile,
    input: Option<Payload>,
    starts_at: Timestamp,
}

impl CasesFile {
    /// Reads a file, and reports all faults at once.
    pub fn read(body: &RawValue, workflow: &WorkflowFile) -> Result<Self, Vec<FieldFault>> {
        let mut fields = Fields::of(body, "")?;
        let input = fields.raw("input").map(Payload::new);
        let starts_at = time(&mut fields, "starts_at");
        let services = services(&mut fields, &workflow.names);
        let shared = Shared {
            workflow,
            input,
            starts_at: starts_at.unwrap_or(USUAL_START),
        };
        let mut cases = Vec::new();
        if fields.peek("cases").is_none() {
            fields.missing("cases", "give a list of at least one case");
        }
        let items = fields.array("cases");
        let pointer = fields.pointer("cases");
        match items {
            Some(items) if items.is_empty() => {
                fields.fault("cases", "is empty: give at least one case");
            }
            Some(items) if items.len() > MOST_CASES => {
                let message = format!(
                    "{} cases are too many: at most {MOST_CASES}; split the file",
                    items.len()
                );
                fields.fault("cases", message);
            }
            items => {
                for (index, item) in items.into_iter().flatten().enumerate() {
                    match TestCase::read(item, format!("{pointer}/{index}"), &shared) {
                        Ok(case) => cases.push(case),
                        Err(faults) => fields.extend(faults),
                    }
                }
            }
        }
        let mut names = BTreeSet::new();
        for case in &cases {
            if !names.insert(case.name.as_str()) {
                let pointer = format!("{}/name", case.pointer);
                let message = "is the name of a case above: give each case a name of its own";
                fields.extend([FieldFault::new(pointer, message)]);
            }
        }
        fields.finish()?;
        Ok(Self { services, cases })
    }
}

impl TestCase {
    fn read(
        value: &RawValue,
        pointer: String,
        shared: &Shared<'_>,
    ) -> Result<Self, Vec<FieldFault>> {
        let workflow = shared.workflow;
        let definition = &workflow.names;
        let mut fields = Fields::of(value, &pointer)?;
        if fields.peek("name").is_none() {
            fields.missing("name", "say in a few words what happens in this case");
        }
        let name = fields.string("name", LONGEST_NAME);
        let input = fields.raw("input").map(Payload::new);
        let key = fields.string("key", LONGEST_NAME);
        let labels = fields
            .has("labels")
            .then(|| fields.string_map("labels", LONGEST_NAME));
        let starts_at = time(&mut fields, "starts_at").unwrap_or(shared.starts_at);
        let has_schedule = fields.peek("schedule").is_some();
        let schedule = ScheduleCase::read(&mut fields, starts_at);
        if has_schedule && key.is_some() {
            let message = "is made of the name of the schedule and the fire time: remove it";
            fields.fault("key", message);
        }
        let services = services(&mut fields, definition);
        let mut outside = signals(&mut fields, definition);
        outside.extend(decisions(&mut fields, definition));
        outside.extend(commands(&mut fields, definition));
        if outside.len() > MOST_OUTSIDE {
            let message =
                format!("signals, decisions and commands are too many: at most {MOST_OUTSIDE}");
            fields.fault("signals", message);
        }
        let expect = Expectation::read(&mut fields, definition);
        if !has_schedule && expect.as_ref().is_some_and(Expectation::has_runs) {
            fields.missing("schedule", "`expect` has `runs`, which are of a schedule");
        }
        fields.finish()?;
        let input = input.or_else(|| shared.input.clone());
        let input = input.or_else(|| workflow.input.clone());
        Ok(Self {
            name: name.unwrap_or_default(),
            pointer,
            input: input.unwrap_or_else(Payload::null),
            key: key.or_else(|| workflow.key.clone()),
            labels: labels.unwrap_or_else(|| workflow.labels.clone()),
            starts_at,
            services,
            outside,
            schedule,
            expect,
        })
    }
}

fn services(fields: &mut Fields<'_>, definition: &Definition) -> MockTable {
    let mut table = MockTable::new();
    if fields.peek("services").is_none() {
        fields.value("services");
        return table;
    }
    let parent = fields.pointer("services");
    let Some(value) = fields.value("services") else {
        return table;
    };
    let Some(given) = entries(value) else {
        let message = "must be an object: the name of each step, and its responses";
        fields.fault("services", message);
        return table;
    };
    for (name, value) in given {
        let pointer = format!("{parent}/{}", name.replace('~', "~0").replace('/', "~1"));
        let read = CallName::parse(&name, definition)
            .map_err(|message| vec![FieldFault::new(&pointer, message)])
            .and_then(|name| Ok((name, Mock::read_all(value, &pointer)?)));
        match read {
            Ok((name, mocks)) => {
                if table.insert(name, mocks).is_some() {
                    fields.extend([FieldFault::new(pointer, "is given twice: remove one")]);
                }
            }
            Err(faults) => fields.extend(faults),
        }
    }
    table
}

fn at(fields: &mut Fields<'_>) -> Option<Span> {
    fields.span("at", Span::default()..=Span::LONGEST)
}

fn signals(fields: &mut Fields<'_>, definition: &Definition) -> Vec<OutsideEvent> {
    list(fields, "signals", |signal, pointer| {
        if signal.peek("step").is_none() {
            signal.missing("step", "name the step that awaits the signal");
        }
        let (step, item) = step(signal, definition);
        if let Some(step) = step
            && !matches!(definition.step(step).work, StepWork::Signal(_))
        {
            let name = &definition.step(step).name;
            signal.fault("step", format!("step `{name}` awaits no signal"));
        }
        if step.is_some_and(|step| definition.step(step).work.ask().is_some()) {
            signal.fault(
                "step",
                "asks people: give their decisions under `decisions`",
            );
        }
        let at = at(signal);
        let body = signal.raw("body").map_or_else(Payload::null, Payload::new);
        let refused = signal.boolean("refused").unwrap_or_default();
        Some(OutsideEvent {
            pointer,
            at,
            item,
            command: OutsideCommand::Signal { step: step?, body },
            refused,
        })
    })
}

/// Reads the decisions of people. They have the same fields as those of the page.
fn decisions(fields: &mut Fields<'_>, definition: &Definition) -> Vec<OutsideEvent> {
    list(fields, "decisions", |decision, pointer| {
        for (name, remedy) in [
            ("step", "name the step that asks"),
            ("by", "name the person who decides, as in `of`"),
            ("choice", "say what the person chooses"),
        ] {
            if decision.peek(name).is_none() {
                decision.missing(name, remedy);
            }
        }
        let (step, item) = step(decision, definition);
        let rule = step.and_then(|step| definition.step(step).work.ask());
        if let (Some(step), None) = (step, rule) {
            let name = &definition.step(step).name;
            decision.fault("step", format!("step `{name}` asks nobody"));
        }
        let at = at(decision);
        let by = decision.string("by", LONGEST_NAME);
        let mut form = Vec::new();
        for name in ["choice", "comment"] {
            let given = decision.string(name, usize::MAX);
            form.extend(given.map(|given| (name.to_owned(), given)));
        }
        for (name, _, value) in decision.entries("fields") {
            // The value is converted to the text that a browser would send.
            let given = text(value.get()).map_or_else(|| value.get().to_owned(), Into::into);
            form.push((format!("field.{name}"), given));
        }
        let refused = decision.boolean("refused").unwrap_or_default();
        let answer = match rule?.read_answer(&form) {
            Ok(answer) => answer,
            Err(faults) => {
                for fault in faults {
                    let message = format!("{}: {}", fault.field, fault.message);
                    decision.fault("choice", message);
                }
                return None;
            }
        };
        Some(OutsideEvent {
            pointer,
            at,
            item,
            command: OutsideCommand::Decide {
                step: step?,
                by: by?,
                answer,
            },
            refused,
        })
    })
}

/// Reads the name of a forward step, or of an item, such as `import[17]`.
fn step(fields: &mut Fields<'_>, definition: &Definition) -> (Option<StepIndex>, Option<u16>) {
    let Some(name) = fields.string("step", LONGEST_NAME) else {
        return (None, None);
    };
    let (name, item) = split_item(&name);
    match CallName::parse_step(name, definition) {
        Ok(step) => (Some(step), item),
        Err(message) => {
            fields.fault("step", message);
            (None, None)
        }
    }
}

/// The commands that an operator can give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CommandWord {
    Undo,
    Cancel,
    Pause,
    Resume,
    Retry,
    Skip,
    Resolve,
}

impl From<CommandWord> for &'static str {
    fn from(word: CommandWord) -> Self {
        match word {
            CommandWord::Undo => "undo",
            CommandWord::Cancel => "cancel",
            CommandWord::Pause => "pause",
            CommandWord::Resume => "resume",
            CommandWord::Retry => "retry",
            CommandWord::Skip => "skip",
            CommandWord::Resolve => "resolve",
        }
    }
}

const COMMANDS: [CommandWord; 7] = [
    CommandWord::Undo,
    CommandWord::Cancel,
    CommandWord::Pause,
    CommandWord::Resume,
    CommandWord::Retry,
    CommandWord::Skip,
    CommandWord::Resolve,
];

fn commands(fields: &mut Fields<'_>, definition: &Definition) -> Vec<OutsideEvent> {
    list(fields, "commands", |command, pointer| {
        if command.peek("command").is_none() {
            command.missing("command", "say what the operator does, such as \"undo\"");
        }
        if command.peek("at").is_none() {
            command.missing("at", "say when, such as \"1h\" after the start");
        }
        let word = command.choice("command", &COMMANDS);
        let at = at(command);
        let has_step = command.peek("step").is_some();
        let (step, item) = step(command, definition);
        let output = command.raw("output").map(Payload::new);
        let refused = command.boolean("refused").unwrap_or_default();
        let word = word?;
        let takes_step = matches!(
            word,
            CommandWord::Retry | CommandWord::Skip | CommandWord::Resolve
        );
        if has_step && !takes_step {
            command.fault("step", "is for retry, skip and resolve: remove it");
        }
        if !has_step && matches!(word, CommandWord::Skip | CommandWord::Resolve) {
            command.missing("step", "name the step");
        }
        if output.is_some() && !matches!(word, CommandWord::Skip | CommandWord::Resolve) {
            command.fault("output", "is for skip and resolve: remove it");
        }
        let what = match word {
            CommandWord::Undo => OutsideCommand::Undo,
            CommandWord::Cancel => OutsideCommand::Cancel,
            CommandWord::Pause => OutsideCommand::Pause,
            CommandWord::Resume => OutsideCommand::Resume,
            CommandWord::Retry => OutsideCommand::Retry { step },
            CommandWord::Skip => OutsideCommand::Skip {
                step: step?,
                output,
            },
            CommandWord::Resolve => OutsideCommand::Resolve {
                step: step?,
                output: output.unwrap_or_else(Payload::null),
            },
        };
        Some(OutsideEvent {
            pointer,
            at: Some(at?),
            item,
            command: what,
            refused,
        })
    })
}
