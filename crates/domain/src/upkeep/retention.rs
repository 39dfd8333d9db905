//! The time for which tasks are kept after their end: in general, by end state, and by workflow.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    task::status::TaskStatus,
    values::{ids::WorkflowName, time::Span},
};

/// The time for which something that ended is kept. Ordered by length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum KeepTime {
    For(Span),
    Forever,
}

impl fmt::Display for KeepTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeepTime::Forever => f.write_str("forever"),
            KeepTime::For(span) => span.fmt(f),
        }
    }
}

impl Serialize for KeepTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KeepTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "forever" {
            return Ok(KeepTime::Forever);
        }
        Span::parse(&text).map(KeepTime::For).ok_or_else(|| {
            de::Error::invalid_value(
                de::Unexpected::Str(&text),
                &"\"forever\" or a duration such as \"30d\"",
            )
        })
    }
}

/// The time for which tasks are kept, for each end state. An end state without a value has the more general one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KeepRule {
    /// The time for all end states that have no value of their own.
    pub keep: Option<KeepTime>,
    pub processed: Option<KeepTime>,
    pub undone: Option<KeepTime>,
    pub cancelled: Option<KeepTime>,
}

impl KeepRule {
    pub fn of(self, state: TaskStatus) -> Option<KeepTime> {
        let of_state = match state {
            TaskStatus::Processed => self.processed,
            TaskStatus::Undone => self.undone,
            TaskStatus::Cancelled => self.cancelled,
            _ => None,
        };
        of_state.or(self.keep)
    }
}

/// The retention in force. The rule of a workflow takes precedence over the rule of all tasks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Retention {
    pub tasks: KeepRule,
    pub workflows: BTreeMap<WorkflowName, KeepRule>,
}

impl Retention {
    /// Keeps every task for the same time.
    pub fn all(keep: KeepTime) -> Self {
        let tasks = KeepRule {
            keep: Some(keep),
            ..KeepRule::default()
        };
        Self {
            tasks,
            workflows: BTreeMap::new(),
        }
    }

    /// Returns the time for which dead letters are kept after their death: the general time of tasks. `None`: forever.
    pub fn dead_letters(&self) -> Option<Span> {
        match self.tasks.keep {
            Some(KeepTime::For(keep)) => Some(keep),
            Some(KeepTime::Forever) | None => None,
        }
    }

    /// Returns the time for which a task is kept that ended in this state.
    pub fn keep(&self, workflow: Option<&WorkflowName>, state: TaskStatus) -> KeepTime {
        let rule = workflow.and_then(|workflow| self.workflows.get(workflow));
        rule.and_then(|rule| rule.of(state))
            .or_else(|| self.tasks.of(state))
            .unwrap_or(KeepTime::Forever)
    }

    /// Returns the times for which tasks are kept, the shortest first. Empty if all tasks are kept forever.
    pub fn periods(&self) -> Vec<Span> {
        let workflows = self.workflows.keys().map(Some).chain([None]);
        let keeps = workflows.flat_map(|workflow| {
            let states = TaskStatus::ENDED.into_iter();
            states.map(move |state| self.keep(workflow, state))
        });
        let periods: BTreeSet<Span> = keeps
            .filter_map(|keep| match keep {
                KeepTime::For(period) => Some(period),
                KeepTime::Forever => None,
            })
            .collect();
        periods.into_iter().collect()
    }

    /// Returns whether every task is kept for the same time, so that workflows and states need not be looked at.
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

    /// Returns the same retention for the named workflows and end states; all others are kept forever. An empty list
    /// names all.
    pub fn only(&self, workflows: &[WorkflowName], states: &[TaskStatus]) -> Self {
        let rule = |workflow: Option<&WorkflowName>| {
            let is_named =
                workflows.is_empty() || workflow.is_some_and(|name| workflows.contains(name));
            let keep = |state| {
                let is_named = is_named && (states.is_empty() || states.contains(&state));
                Some(match is_named {
                    true => self.keep(workflow, state),
                    false => KeepTime::Forever,
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

    /// Returns the retention of a purge that a person requested: tasks that ended longer than `older_than` ago are
    /// deleted. A workflow with a rule of its own is kept for the time of that rule all the same, unless the person
    /// names the workflow. If workflows or states are named, all others are kept.
    pub fn for_purge(
        &self,
        older_than: Span,
        workflows: &[WorkflowName],
        states: &[TaskStatus],
    ) -> Self {
        let is_named = |state| states.is_empty() || states.contains(&state);
        let rule = |least: &dyn Fn(TaskStatus) -> Option<KeepTime>| {
            let keep = |state| {
                let asked = match is_named(state) {
                    true => KeepTime::For(older_than),
                    false => KeepTime::Forever,
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
            tasks: rule(&|_| Some(KeepTime::Forever)),
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

    fn days(days: u64) -> KeepTime {
        KeepTime::For(Span::from_secs(days * 86_400))
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
        assert_eq!(Retention::all(KeepTime::Forever).periods(), []);
    }

    #[test]
    fn rules_that_say_the_same_are_uniform() {
        assert!(Retention::all(days(30)).is_uniform());
        assert!(!retention().is_uniform());
        let mut same = Retention::all(days(30));
        same.tasks.undone = Some(days(30));
        same.workflows.insert(ship(), KeepRule::default());
        assert!(same.is_uniform());
        // The states differ, and the rule of the workflow equals that of the first state.
        same.tasks.undone = Some(days(1));
        assert!(!same.is_uniform());
        // An end state without a value in the workflow's rule has the general value.
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
        let asked = retention().for_purge(DAY, &[], &[]);
        assert_eq!(asked.keep(None, TaskStatus::Undone), days(1));
        assert_eq!(asked.keep(Some(&ship()), TaskStatus::Undone), days(365));
        assert_eq!(asked.keep(Some(&ship()), TaskStatus::Cancelled), days(1));
        // A rule of a workflow never shortens the requested time.
        let later = retention().for_purge(Span::from_secs(40 * 86_400), &[], &[]);
        assert_eq!(later.keep(Some(&ship()), TaskStatus::Cancelled), days(40));
    }

    #[test]
    fn who_names_a_workflow_or_a_state_purges_nothing_else() {
        let asked = retention().for_purge(DAY, &[ship()], &[TaskStatus::Undone]);
        assert_eq!(asked.keep(Some(&ship()), TaskStatus::Undone), days(1));
        assert_eq!(
            asked.keep(Some(&ship()), TaskStatus::Processed),
            KeepTime::Forever
        );
        assert_eq!(asked.keep(None, TaskStatus::Undone), KeepTime::Forever);
        let asked = retention().for_purge(DAY, &[], &[TaskStatus::Undone]);
        assert_eq!(asked.keep(None, TaskStatus::Undone), days(1));
        assert_eq!(asked.keep(None, TaskStatus::Processed), KeepTime::Forever);
    }
}
