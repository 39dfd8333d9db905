//! The names that files and reports give to the calls of a workflow: `charge`, `undo charge`, `probe charge`, `poll
//! charge`, `cancel charge`, `poll undo charge`. Names of steps have no blanks, so no name is ambiguous.

use std::fmt;

use provost_domain::{
    definition::{Definition, ReplyMode, StepWork},
    task::Purpose,
    values::{StepIndex, nearest},
};

/// The purpose of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CallKind {
    /// The work of a step or of an undo.
    Work,
    Probe,
    Poll,
    Cancel,
}

impl CallKind {
    pub fn of(purpose: &Purpose) -> Self {
        match purpose {
            Purpose::Work | Purpose::Undo(_) => CallKind::Work,
            Purpose::Probe(_) => CallKind::Probe,
            Purpose::Poll => CallKind::Poll,
            Purpose::Cancel(_) => CallKind::Cancel,
        }
    }

    const fn word(self) -> Option<&'static str> {
        match self {
            CallKind::Work => None,
            CallKind::Probe => Some("probe"),
            CallKind::Poll => Some("poll"),
            CallKind::Cancel => Some("cancel"),
        }
    }
}

/// A call of a definition. A probe is named after the step whose effect it finds out, also if the probe is made for the
/// undo.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallName {
    pub kind: CallKind,
    /// The index of the step. An undo has an index of its own.
    pub step: StepIndex,
}

impl CallName {
    pub fn work(step: StepIndex) -> Self {
        Self {
            kind: CallKind::Work,
            step,
        }
    }

    /// Returns the name as a file has it.
    pub fn in_words(self, definition: &Definition) -> impl fmt::Display {
        let word = self.kind.word();
        let step = step_name(definition, self.step);
        fmt::from_fn(move |f| match word {
            Some(word) => write!(f, "{word} {step}"),
            None => f.write_str(&step),
        })
    }

    /// Returns the step or undo with this name, whatever its work is. The error says what to write instead.
    pub fn parse_step(text: &str, definition: &Definition) -> Result<StepIndex, String> {
        if let Some(name) = text.strip_prefix("undo ") {
            let step = Self::parse_step(name, definition)?;
            return definition
                .step(step)
                .undo
                .ok_or_else(|| format!("step `{name}` has no `undo`"));
        }
        let mut all = definition.forward();
        let found = all.find(|index| definition.step(*index).name.as_str() == text);
        found.ok_or_else(|| {
            if let Some(name) = text.strip_suffix(".undo") {
                return format!("write `undo {name}`");
            }
            if let Some((name, _)) = text.split_once('[')
                && definition.find(name).is_some()
            {
                return format!("write `{name}`, which stands for all its items or iterations");
            }
            let names = definition.steps.iter().map(|step| step.name.as_str());
            match nearest(text, names) {
                Some(meant) => {
                    format!("the workflow has no step `{text}`; did you mean `{meant}`?")
                }
                None => format!("the workflow has no step `{text}`"),
            }
        })
    }

    /// Returns the call with this name, if the workflow can make it. The error says what to write instead.
    pub fn parse(text: &str, definition: &Definition) -> Result<Self, String> {
        let kinds = [CallKind::Probe, CallKind::Poll, CallKind::Cancel];
        let split = text.split_once(' ').and_then(|(word, rest)| {
            let kind = kinds.into_iter().find(|kind| kind.word() == Some(word))?;
            Some((kind, rest))
        });
        let (kind, name) = split.unwrap_or((CallKind::Work, text));
        let step = Self::parse_step(name, definition)?;
        let found = definition.step(step);
        match &found.work {
            StepWork::Call { .. } | StepWork::Group(_) => {}
            StepWork::Task(_) if kind == CallKind::Work => {}
            StepWork::Task(_) => {
                return Err(format!(
                    "step `{name}` has a task of its own: it calls no service"
                ));
            }
            StepWork::Set(_) | StepWork::Stop(_) => {
                return Err(format!("step `{name}` calls no service"));
            }
            StepWork::Wait(_) => {
                return Err(format!(
                    "step `{name}` waits for a time: it calls no service"
                ));
            }
            StepWork::Signal(_) => {
                return Err(format!(
                    "step `{name}` awaits a signal: it calls no service; send it under `signals`"
                ));
            }
        }
        let missing = match kind {
            CallKind::Work => None,
            CallKind::Probe => found.probe.is_none().then_some("probe"),
            CallKind::Poll => (found.reply.mode() != ReplyMode::Poll).then_some("reply.poll"),
            CallKind::Cancel => found.cancel.is_none().then_some("cancel"),
        };
        match missing {
            Some(field) => Err(format!("step `{name}` has no `{field}`")),
            None => Ok(Self { kind, step }),
        }
    }
}

/// Returns the name of a step, such as `charge`, or `undo charge` for its undo.
pub fn step_name(definition: &Definition, index: StepIndex) -> String {
    let step = definition.step(index);
    match step.undoes {
        Some(undone) => format!("undo {}", definition.step(undone).name),
        None => step.name.to_string(),
    }
}
