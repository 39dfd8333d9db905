//! The tasks of a workflow by version, and whether the active version does worse than the one before.

use serde::Deserialize;

use crate::parts::{counted, number};

/// The fewest tasks in error that a comparison is made of: a few failures are no sign of a bad version.
const FEWEST_IN_ERROR: u64 = 5;
/// The active version does worse if its share of tasks in error is so many times that of the version before.
const WORSE: u64 = 3;

#[derive(Deserialize, Default)]
pub struct Usage {
    pub tasks: u64,
    pub more: bool,
    pub more_in_error: bool,
    pub versions: Vec<VersionUsage>,
}

#[derive(Deserialize, Clone, Copy)]
pub struct VersionUsage {
    pub version: u32,
    pub tasks: u64,
    pub error: u64,
    pub in_error: u64,
}

impl Usage {
    pub fn of(&self, version: u32) -> Option<&VersionUsage> {
        self.versions.iter().find(|usage| usage.version == version)
    }

    /// Returns what the numbers of the versions are of.
    pub fn basis(&self) -> String {
        let tasks = match self.more {
            true => format!("tasks of the latest {}", number(self.tasks)),
            false => "all tasks on record".to_owned(),
        };
        match self.more_in_error {
            true => format!("{tasks}; in error of the latest {}", number(1000)),
            false => tasks,
        }
    }

    /// Returns the version before the active one that has tasks, and a sentence, if the active one does worse.
    pub fn worse(&self, active: u32) -> Option<(u32, String)> {
        let now = self.of(active)?;
        let earlier = self.versions.iter().filter(|usage| usage.version < active);
        let before = earlier.max_by_key(|usage| usage.version)?;
        let is_worse = now.error >= FEWEST_IN_ERROR
            && before.tasks > 0
            && now.error * before.tasks > WORSE * before.error * now.tasks;
        let of = |usage: &VersionUsage| {
            let tasks = counted(usage.tasks, "task", "tasks");
            format!("{} of {tasks}", number(usage.error))
        };
        is_worse.then(|| {
            let sentence = format!(
                "{} of version {active} are in error; with version {} it was {}.",
                of(now),
                before.version,
                of(before)
            );
            (before.version, sentence)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(versions: &[(u32, u64, u64)]) -> Usage {
        let versions = versions.iter().map(|(version, tasks, error)| VersionUsage {
            version: *version,
            tasks: *tasks,
            error: *error,
            in_error: *error,
        });
        Usage {
            versions: versions.collect(),
            ..Usage::default()
        }
    }

    #[test]
    fn a_version_does_worse_if_its_share_of_tasks_in_error_is_much_greater() {
        let (version, sentence) = usage(&[(14, 511, 465), (13, 489, 1)]).worse(14).unwrap();
        assert_eq!(version, 13);
        assert_eq!(
            sentence,
            "465 of 511 tasks of version 14 are in error; with version 13 it was 1 of 489 tasks."
        );
        // The version before may have failed never, and not be the next one in number.
        assert_eq!(usage(&[(14, 10, 5), (9, 2, 0)]).worse(14).unwrap().0, 9);
        for equal in [
            &[(14, 511, 465), (13, 489, 400)][..],
            &[(14, 511, 4), (13, 489, 0)],
            &[(14, 511, 465)],
            &[(14, 511, 465), (13, 0, 0)],
            &[(15, 511, 465), (14, 300, 1)],
            &[],
        ] {
            assert!(usage(equal).worse(14).is_none(), "{equal:?}");
        }
    }
}
