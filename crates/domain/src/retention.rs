//! How long tasks are kept after their end: in general, by end state, and by workflow.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{ids::WorkflowName, task::TaskStatus, time::Span};

/// How long something that ended is kept. Ordered by length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Keep {
    For(Span),
    Forever,
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keep::Forever => f.write_str("forever"),
            Keep::For(span) => span.fmt(f),
        }
    }
}

impl Serialize for Keep {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Keep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "forever" {
            return Ok(Keep::Forever);
        }
        Span::parse(&text).map(Keep::For).ok_or_else(|| {
            de::Error::invalid_value(
                de::Unexpected::Str(&text),
                &"\"forever\" or a duration such as \"30d\"",
            )
        })
    }
}

/// How long tasks are kept, for each end state; where it says nothing, what is more general holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KeepRule {
    /// Whatever the end state.
    pub keep: Option<Keep>,
    pub processed: Option<Keep>,
    pub undone: Option<Keep>,
    pub cancelled: Option<Keep>,
}

impl KeepRule {
    pub fn of(self, state: TaskStatus) -> Option<Keep> {
        let of_state = match state {
            TaskStatus::Processed => self.processed,
            TaskStatus::Undone => self.undone,
            TaskStatus::Cancelled => self.cancelled,
            _ => None,
        };
        of_state.or(self.keep)
    }
}

/// The retention in force. What is said of a workflow wins over what is said of all tasks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Retention {
    pub tasks: KeepRule,
    pub workflows: BTreeMap<WorkflowName, KeepRule>,
}

impl Retention {
    /// The same for every task.
    pub fn all(keep: Keep) -> Self {
        let tasks = KeepRule {
            keep: Some(keep),
            ..KeepRule::default()
        };
        Self {
            tasks,
            workflows: BTreeMap::new(),
        }
    }

    /// How long dead letters are kept, counted from their death: as tasks are in general. `None` is for ever.
    pub fn dead_letters(&self) -> Option<Span> {
        match self.tasks.keep {
            Some(Keep::For(keep)) => Some(keep),
            Some(Keep::Forever) | None => None,
        }
    }

    /// How long a task is kept that ended in this state.
    pub fn keep(&self, workflow: Option<&WorkflowName>, state: TaskStatus) -> Keep {
        let rule = workflow.and_then(|workflow| self.workflows.get(workflow));
        rule.and_then(|rule| rule.of(state))
            .or_else(|| self.tasks.of(state))
            .unwrap_or(Keep::Forever)
    }

    /// Every length of time that some task is kept for, the shortest first. Empty where all are kept for ever.
    pub fn periods(&self) -> Vec<Span> {
        let workflows = self.workflows.keys().map(Some).chain([None]);
        let keeps = workflows.flat_map(|workflow| {
            let states = TaskStatus::ENDED.into_iter();
            states.map(move |state| self.keep(workflow, state))
        });
        let periods: BTreeSet<Span> = keeps
            .filter_map(|keep| match keep {
                Keep::For(period) => Some(period),
                Keep::Forever => None,
            })
            .collect();
        periods.into_iter().collect()
    }

    /// Whether every task is kept for the same time, so that nobody need look at what a task is.
    pub fn is_uniform(&self) -> bool {
        let keep = self.keep(None, TaskStatus::Processed);
        let mut rules = self.workflows.values();
        TaskStatus::ENDED
            .into_iter()
            .all(|state| self.keep(None, state) == keep)
            && rules.all(|rule| {
                let mut states = TaskStatus::ENDED.into_iter();
                states.all(|state| rule.of(state).is_none_or(|other| other == keep))
            })
    }

    /// The same for the workflows and end states that are named; all others are kept for ever. None named is all.
    pub fn only(&self, workflows: &[WorkflowName], states: &[TaskStatus]) -> Self {
        let rule = |workflow: Option<&WorkflowName>| {
            let is_named =
                workflows.is_empty() || workflow.is_some_and(|name| workflows.contains(name));
            let keep = |state| {
                let is_named = is_named && (states.is_empty() || states.contains(&state));
                Some(match is_named {
                    true => self.keep(workflow, state),
                    false => Keep::Forever,
                })
            };
            KeepRule {
                keep: None,
                processed: keep(TaskStatus::Processed),
                undone: keep(TaskStatus::Undone),
                cancelled: keep(TaskStatus::Cancelled),
            }
        };
        let named = self.workflows.keys().chain(workflows);
        Self {
            tasks: rule(None),
            workflows: named.map(|name| (name.clone(), rule(Some(name)))).collect(),
        }
    }

    /// A purge that a person asked for: tasks that ended longer ago than `older_than`. A workflow with a rule of its
    /// own is kept for that long all the same, unless the person names it; where workflows or states are named, all
    /// others are left alone.
    pub fn asked(
        &self,
        older_than: Span,
        workflows: &[WorkflowName],
        states: &[TaskStatus],
    ) -> Self {
        let is_named = |state| states.is_empty() || states.contains(&state);
        let rule = |least: &dyn Fn(TaskStatus) -> Option<Keep>| {
            let keep = |state| {
                let asked = match is_named(state) {
                    true => Keep::For(older_than),
                    false => Keep::Forever,
                };
                Some(least(state).map_or(asked, |least| least.max(asked)))
            };
            KeepRule {
                keep: None,
                processed: keep(TaskStatus::Processed),
                undone: keep(TaskStatus::Undone),
                cancelled: keep(TaskStatus::Cancelled),
            }
        };
        let none = |_: TaskStatus| None;
        if workflows.is_empty() {
            let own = self.workflows.iter();
            return Self {
                tasks: rule(&none),
                workflows: own
                    .map(|(name, own)| (name.clone(), rule(&|state| own.of(state))))
                    .collect(),
            };
        }
        Self {
            tasks: rule(&|_| Some(Keep::Forever)),
            workflows: workflows
                .iter()
                .map(|name| (name.clone(), rule(&none)))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Span = Span::from_secs(86_400);

    fn days(days: u64) -> Keep {
        Keep::For(Span::from_secs(days * 86_400))
    }

    fn ship() -> WorkflowName {
        WorkflowName::new("ship")
    }

    fn retention() -> Retention {
        let mut retention = Retention::all(days(30));
        retention.tasks.processed = Some(days(7));
        let of_ship = KeepRule {
            keep: Some(days(365)),
            cancelled: Some(days(1)),
            ..KeepRule::default()
        };
        retention.workflows.insert(ship(), of_ship);
        retention
    }

    #[test]
    fn what_is_said_of_a_workflow_wins_and_within_it_what_is_said_of_a_state() {
        let retention = retention();
        let other = WorkflowName::new("other");
        for (workflow, state, keep) in [
            (None, TaskStatus::Processed, days(7)),
            (None, TaskStatus::Undone, days(30)),
            (Some(&other), TaskStatus::Processed, days(7)),
            (Some(&ship()), TaskStatus::Processed, days(365)),
            (Some(&ship()), TaskStatus::Undone, days(365)),
            (Some(&ship()), TaskStatus::Cancelled, days(1)),
        ] {
            assert_eq!(
                retention.keep(workflow, state),
                keep,
                "{workflow:?} {state:?}"
            );
        }
    }

    #[test]
    fn a_period_is_named_once_and_forever_is_none() {
        let mut retention = retention();
        assert_eq!(
            retention.periods(),
            [1, 7, 30, 365].map(|days| Span::from_secs(days * 86_400))
        );
        retention.tasks = KeepRule::default();
        retention.workflows.clear();
        assert_eq!(retention.periods(), []);
        assert_eq!(Retention::all(Keep::Forever).periods(), []);
    }

    #[test]
    fn rules_that_say_the_same_are_uniform() {
        assert!(Retention::all(days(30)).is_uniform());
        assert!(!retention().is_uniform());
        let mut same = Retention::all(days(30));
        same.tasks.undone = Some(days(30));
        same.workflows.insert(ship(), KeepRule::default());
        assert!(same.is_uniform());
        // The states differ, and the workflow says what the first of them says.
        same.tasks.undone = Some(days(1));
        assert!(!same.is_uniform());
        // What a workflow leaves out falls back on the state.
        let mut other = Retention::all(days(30));
        let cancelled = KeepRule {
            cancelled: Some(days(1)),
            ..KeepRule::default()
        };
        other.workflows.insert(ship(), cancelled);
        assert!(!other.is_uniform());
    }

    #[test]
    fn who_asks_for_a_purge_does_not_delete_what_a_rule_keeps_for_longer() {
        let asked = retention().asked(DAY, &[], &[]);
        assert_eq!(asked.keep(None, TaskStatus::Undone), days(1));
        assert_eq!(asked.keep(Some(&ship()), TaskStatus::Undone), days(365));
        assert_eq!(asked.keep(Some(&ship()), TaskStatus::Cancelled), days(1));
        // A rule never shortens what was asked for.
        let later = retention().asked(Span::from_secs(40 * 86_400), &[], &[]);
        assert_eq!(later.keep(Some(&ship()), TaskStatus::Cancelled), days(40));
    }

    #[test]
    fn who_names_a_workflow_or_a_state_purges_nothing_else() {
        let asked = retention().asked(DAY, &[ship()], &[TaskStatus::Undone]);
        assert_eq!(asked.keep(Some(&ship()), TaskStatus::Undone), days(1));
        assert_eq!(
            asked.keep(Some(&ship()), TaskStatus::Processed),
            Keep::Forever
        );
        assert_eq!(asked.keep(None, TaskStatus::Undone), Keep::Forever);
        let asked = retention().asked(DAY, &[], &[TaskStatus::Undone]);
        assert_eq!(asked.keep(None, TaskStatus::Undone), days(1));
        assert_eq!(asked.keep(None, TaskStatus::Processed), Keep::Forever);
    }
}
