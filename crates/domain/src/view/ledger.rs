//! The ledger: the changes of all tasks, and what people, definitions and agents changed, in one order. Here are its positions,
//! the compact list of changed tasks, the filter, and the record of a change that no history has. The events of tasks are read
//! from their histories.

use std::{fmt, ops::ControlFlow};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    template::{Budget, each_difference, payload::Payload},
    values::{
        ids::TaskId,
        shortened::shortened,
        time::{Span, Timestamp},
    },
};

/// The most differences of one record. The record of a definition that was rewritten says that there are more.
pub const MOST_DIFFERENCES: usize = 50;
/// The most bytes of a value in a difference.
const LONGEST_VALUE: usize = 512;
/// The most patterns of types in one filter.
pub const MOST_TYPES: usize = 32;

/// The number of one row of the ledger. Rows are in the order of their numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct LedgerRowNumber {
    /// Grows when the numbers of transactions begin again, because the database was restored on another server.
    pub epoch: u64,
    /// The transaction that wrote the row; 0 in a file, where one connection writes.
    pub transaction: u64,
    pub id: u64,
}

/// A position in the ledger: everything before it has been read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LedgerPosition {
    pub row: LedgerRowNumber,
    /// The time of the row. It shows that the row is still the one which was read: after a restore or a failover, another
    /// row may have its number.
    pub at: i64,
    /// The entry of the row up to which everything was read. `None`: the whole row was.
    pub within: Option<LedgerEntryIndex>,
}

/// The last entry of a row that was read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LedgerEntryIndex {
    /// The index among the records and changed tasks of the row.
    pub entry: usize,
    /// The index of the event within the change of the task.
    pub event: usize,
}

impl LedgerPosition {
    /// The position before everything.
    pub const OLDEST: Self = Self {
        row: LedgerRowNumber {
            epoch: 0,
            transaction: 0,
            id: 0,
        },
        at: 0,
        within: None,
    };

    /// Parses a position as [`fmt::Display`] writes it. No other text is a position.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| -> Option<u64> {
            let number = u64::from_str_radix(text, 36).ok()?;
            (base36(number) == text).then_some(number)
        };
        let parts: Vec<_> = text.split('-').map(number).collect::<Option<_>>()?;
        let index = |number: u64| usize::try_from(number).ok();
        let (row, at, within) = match parts[..] {
            [epoch, transaction, id, at] => ((epoch, transaction, id), at, None),
            [epoch, transaction, id, at, entry, event] => {
                let (entry, event) = (index(entry)?, index(event)?);
                let within = Some(LedgerEntryIndex { entry, event });
                ((epoch, transaction, id), at, within)
            }
            _ => return None,
        };
        let (epoch, transaction, id) = row;
        let is_stored = |number: u64| i64::try_from(number).is_ok();
        (is_stored(epoch) && is_stored(id)).then_some(())?;
        Some(Self {
            row: LedgerRowNumber {
                epoch,
                transaction,
                id,
            },
            at: i64::try_from(at).ok()?,
            within,
        })
    }

    /// Returns whether this event of a row has been read at this position.
    pub fn has_passed(self, row: LedgerRowNumber, index: LedgerEntryIndex) -> bool {
        match row.cmp(&self.row) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => self.within.is_none_or(|within| index <= within),
            std::cmp::Ordering::Greater => false,
        }
    }
}

impl fmt::Display for LedgerPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LedgerRowNumber {
            epoch,
            transaction,
            id,
        } = self.row;
        let (epoch, transaction, id) = (base36(epoch), base36(transaction), base36(id));
        let at = base36(u64::try_from(self.at).unwrap_or_default());
        write!(f, "{epoch}-{transaction}-{id}-{at}")?;
        match self.within {
            Some(LedgerEntryIndex { entry, event }) => {
                write!(f, "-{}-{}", base36(entry as u64), base36(event as u64))
            }
            None => Ok(()),
        }
    }
}

/// Returns the digits of a number to the base 36, so that positions stay short.
fn base36(mut number: u64) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut digits = Vec::new();
    loop {
        digits.push(char::from(DIGITS[(number % 36) as usize]));
        number /= 36;
        if number == 0 {
            break;
        }
    }
    digits.iter().rev().collect()
}

/// One change of a task that a row names: the entry of its history has the events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangedTask {
    pub task: TaskId,
    pub version: u64,
}

impl ChangedTask {
    /// Returns the changes in the form that is stored: for each the 16 bytes of the id, and the version with seven bits in
    /// a byte, the lowest first.
    pub fn pack(changes: impl Iterator<Item = Self>) -> Vec<u8> {
        let mut packed = Vec::with_capacity(18 * changes.size_hint().0);
        for Self { task, mut version } in changes {
            packed.extend_from_slice(task.0.as_bytes());
            while version >= 0x80 {
                packed.push(version as u8 | 0x80);
                version >>= 7;
            }
            packed.push(version as u8);
        }
        packed
    }

    /// Returns `None` if the bytes are not those of changes.
    pub fn unpack(mut packed: &[u8]) -> Option<Vec<Self>> {
        let mut changes = Vec::new();
        while !packed.is_empty() {
            let (id, rest) = packed.split_first_chunk()?;
            let length = 1 + rest.iter().position(|byte| byte & 0x80 == 0)?;
            let (digits, rest) = rest.split_at(length);
            let mut version = 0_u64;
            for (place, byte) in digits.iter().enumerate() {
                let digit = u64::from(byte & 0x7f);
                let shift = u32::try_from(7 * place).ok()?;
                version |= digit.checked_shl(shift)?;
            }
            changes.push(Self {
                task: TaskId(Uuid::from_bytes(*id)),
                version,
            });
            packed = rest;
        }
        Some(changes)
    }
}

/// The kind of thing that a record is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LedgerSubject {
    Task,
    Workflow,
    Schedule,
    Agent,
    Alert,
    Message,
    BulkJob,
    Instance,
    Ledger,
}

/// A change that no history of a task has: what a person, a definition or an instance changed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = LedgerRecord)]
pub struct LedgerRecord {
    /// `agent.put`, `agent.paused`, `workflow.registered`, `alert.raised`, `task.command` and so on. An open set: later versions
    /// of Provost may add types, which clients should ignore.
    #[serde(rename = "type")]
    #[schema(example = "agent.paused")]
    pub kind: String,
    pub subject: LedgerSubject,
    /// The name or the id of the subject.
    #[schema(example = "payments")]
    pub name: String,
    /// The step of the task, if the record is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "charge")]
    pub step: Option<String>,
    /// The command, for `task.command`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "retry")]
    pub command: Option<String>,
    /// `operator:` and the name of the caller, `person:` and the name of a person who was asked, or the instance that made the
    /// change, as in the history of a task.
    #[schema(example = "operator:ada")]
    pub by: String,
    /// The role of the caller's token. Absent if an instance made the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "operate")]
    pub role: Option<String>,
    /// The address from which the request came; that of a proxy, if there is one. Absent for a Unix socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "192.0.2.7")]
    pub address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "the bank is down until ten")]
    pub reason: Option<String>,
    /// What has changed, value by value. Texts of more than 512 bytes are shortened.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<LedgerDifference>,
    /// True if there are more differences than are listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more_differences: bool,
}

/// A value that differs before and after a change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = LedgerDifference)]
pub struct LedgerDifference {
    /// A JSON pointer (RFC 6901); empty for the whole document.
    #[schema(example = "/endpoints/0/max_in_flight")]
    pub pointer: String,
    /// The value before, as JSON text; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "8")]
    pub before: Option<String>,
    /// The value after, as JSON text; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "16")]
    pub after: Option<String>,
}

/// The party that made a change, as it is recorded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChangeOrigin {
    /// `operator:` and a name, or an instance.
    pub by: String,
    pub role: Option<String>,
    pub address: Option<String>,
    pub reason: Option<String>,
}

impl ChangeOrigin {
    /// The origin of changes that no caller requested.
    pub fn service() -> Self {
        Self {
            by: "provost".to_owned(),
            ..Self::default()
        }
    }
}

impl LedgerRecord {
    pub fn new(
        kind: impl Into<String>,
        subject: LedgerSubject,
        name: impl fmt::Display,
        origin: &ChangeOrigin,
    ) -> Self {
        Self {
            kind: kind.into(),
            subject,
            name: name.to_string(),
            step: None,
            command: None,
            by: origin.by.clone(),
            role: origin.role.clone(),
            address: origin.address.clone(),
            reason: (origin.reason.as_deref()).map(|reason| shortened(reason, LONGEST_VALUE)),
            differences: Vec::new(),
            more_differences: false,
        }
    }

    #[must_use]
    pub fn because(mut self, reason: Option<&str>) -> Self {
        self.reason = reason
            .map(|reason| shortened(reason, LONGEST_VALUE))
            .or(self.reason);
        self
    }

    /// Adds the differences of two documents; `None` if the subject did not exist before, or does not after.
    #[must_use]
    pub fn with_difference(mut self, before: Option<&str>, after: Option<&str>) -> Self {
        let parse = |json: Option<&str>| json.and_then(|json| Payload::parse(json.to_owned()));
        let (Some(a), Some(b)) = (parse(before), parse(after)) else {
            let value = |json: Option<&str>| json.map(|json| shortened(json, LONGEST_VALUE));
            if before != after {
                self.differences.push(LedgerDifference {
                    pointer: String::new(),
                    before: value(before),
                    after: value(after),
                });
            }
            return self;
        };
        let differences = &mut self.differences;
        let is_all = each_difference(&a, &b, &Budget::evaluation(), |found| {
            if differences.len() == MOST_DIFFERENCES {
                return ControlFlow::Break(());
            }
            let value = |json: Option<&str>| json.map(|json| shortened(json, LONGEST_VALUE));
            differences.push(LedgerDifference {
                pointer: shortened(found.pointer, LONGEST_VALUE),
                before: value(found.a),
                after: value(found.b),
            });
            ControlFlow::Continue(())
        });
        self.more_differences = !is_all;
        self
    }

    /// Returns whether the record belongs to the line of changes that people and definitions made, and to the states of
    /// agents. An alert follows from the events of tasks.
    pub fn is_audited(&self) -> bool {
        let is_by_operator = self.by.starts_with("operator:");
        is_by_operator || self.subject != LedgerSubject::Alert
    }
}

/// A filter of events. All of its parts must match.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LedgerFilter {
    /// The event has one of these types, or a type that begins as one of these that end with `.*`; if empty, any type.
    pub types: Vec<String>,
    pub workflow: Option<String>,
    pub labels: Vec<(String, String)>,
}

impl LedgerFilter {
    /// Parses the list of types, which commas separate. Returns the type that is none.
    pub fn parse_types(list: &str) -> Result<Vec<String>, String> {
        let types: Vec<_> = list.split(',').map(|one| one.trim().to_owned()).collect();
        let is_word = |letter: char| letter.is_ascii_lowercase() || "._".contains(letter);
        let is_type = |one: &&String| {
            let word = one.strip_suffix(".*").unwrap_or(one);
            word.is_empty() || !word.chars().all(is_word) || word.len() > 64
        };
        match types.iter().find(is_type) {
            Some(other) => Err(other.clone()),
            None => Ok(types),
        }
    }

    pub fn accepts_type(&self, kind: &str) -> bool {
        self.types.is_empty()
            || self.types.iter().any(|one| match one.strip_suffix('*') {
                Some(start) => kind.starts_with(start),
                None => one == kind,
            })
    }

    /// Returns whether only events of tasks match.
    pub fn is_of_tasks(&self) -> bool {
        self.workflow.is_some() || !self.labels.is_empty()
    }

    /// Returns whether the events of a task match, as far as the task decides that.
    pub fn accepts_task<'l>(
        &self,
        workflow: Option<&str>,
        label: impl Fn(&str) -> Option<&'l str>,
    ) -> bool {
        let is_of_workflow = |name: &String| workflow == Some(name.as_str());
        let mut labels = self.labels.iter();
        self.workflow.as_ref().is_none_or(is_of_workflow)
            && labels.all(|(name, value)| label(name) == Some(value.as_str()))
    }
}

/// The reasons why a position cannot be read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PositionFault {
    /// The events after it have been deleted, because their time is over.
    Expired,
    /// The ledger does not have the row: the database was restored from a backup, or has failed over to a server that
    /// lacked the last transactions.
    Rewound,
}

impl PositionFault {
    /// Checks a position against the rows that are kept. `floor` is the last row that was deleted, `found` the time of the
    /// row of the position, if the row is there.
    pub fn of(
        position: LedgerPosition,
        floor: LedgerRowNumber,
        found: Option<Timestamp>,
    ) -> Option<Self> {
        if position == LedgerPosition::OLDEST {
            return None;
        }
        // Nothing that the position has not passed was deleted with its row, unless a part of the row was still to be read.
        if position.row == floor && position.within.is_none() {
            return None;
        }
        if position.row <= floor {
            return Some(Self::Expired);
        }
        match found {
            Some(at) if at.as_millis() == position.at => None,
            _ => Some(Self::Rewound),
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Rewound => "rewound",
        }
    }
}

/// Returns the time before which rows of the ledger are deleted.
pub fn kept_from(now: Timestamp, keep: Span) -> Timestamp {
    Timestamp::from_millis(now.as_millis().saturating_sub(keep.as_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: u64) -> LedgerRowNumber {
        LedgerRowNumber {
            epoch: 1,
            transaction: 700 + id,
            id,
        }
    }

    fn at(id: u64, within: Option<(usize, usize)>) -> LedgerPosition {
        LedgerPosition {
            row: row(id),
            at: 1_764_364_687_000 + id as i64,
            within: within.map(|(entry, event)| LedgerEntryIndex { entry, event }),
        }
    }

    #[test]
    fn a_position_is_read_back_as_it_was_written_and_nothing_else_is_one() {
        for position in [
            LedgerPosition::OLDEST,
            at(3, None),
            at(u64::from(u32::MAX), Some((70, 3))),
        ] {
            let text = position.to_string();
            assert_eq!(LedgerPosition::parse(&text), Some(position), "{text}");
            assert!(text.len() <= 64, "{text}");
        }
        for wrong in [
            "",
            "1",
            "1-2-3",
            "1-2-3-4-5",
            "01-2-3-4",
            "1-2-3-4-5-6-7",
            "A-2-3-4",
            "1-2--3-4",
            "+1-2-3-4",
            "1-2-3-zzzzzzzzzzzzz",
        ] {
            assert_eq!(LedgerPosition::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_event_is_passed_up_to_the_entry_that_was_read() {
        let index = |entry, event| LedgerEntryIndex { entry, event };
        let position = at(3, Some((1, 2)));
        for (number, entry, passed) in [
            (2, index(9, 9), true),
            (3, index(0, 7), true),
            (3, index(1, 2), true),
            (3, index(1, 3), false),
            (3, index(2, 0), false),
            (4, index(0, 0), false),
        ] {
            assert_eq!(
                position.has_passed(row(number), entry),
                passed,
                "{number} {entry:?}"
            );
        }
        assert!(at(3, None).has_passed(row(3), index(100, 100)));
    }

    #[test]
    fn changed_tasks_are_unpacked_as_they_were_packed_and_damage_is_noticed() {
        let changes: Vec<_> = [1, 127, 128, 300, u64::from(u32::MAX), i64::MAX as u64]
            .into_iter()
            .map(|version| ChangedTask {
                task: TaskId(Uuid::from_u128(u128::from(version) << 64 | 0xfeed)),
                version,
            })
            .collect();
        let packed = ChangedTask::pack(changes.iter().copied());
        assert_eq!(ChangedTask::unpack(&packed).unwrap(), changes);
        assert_eq!(ChangedTask::pack(changes[..1].iter().copied()).len(), 17);
        for length in 1..17 {
            assert_eq!(ChangedTask::unpack(&packed[..length]), None, "{length}");
        }
        assert_eq!(ChangedTask::unpack(&[0xff; 40]), None);
    }

    #[test]
    fn a_position_is_refused_once_what_follows_it_is_deleted_or_is_another_row() {
        let found = |id: u64| Some(Timestamp::from_millis(at(id, None).at));
        for (position, floor, found, fault) in [
            (LedgerPosition::OLDEST, 5, None, None),
            (at(7, None), 5, found(7), None),
            (at(5, None), 5, None, None),
            (at(5, Some((0, 0))), 5, None, Some(PositionFault::Expired)),
            (at(4, None), 5, None, Some(PositionFault::Expired)),
            (at(7, None), 5, None, Some(PositionFault::Rewound)),
            (at(7, None), 5, found(8), Some(PositionFault::Rewound)),
        ] {
            assert_eq!(
                PositionFault::of(position, row(floor), found),
                fault,
                "{position}"
            );
        }
    }

    #[test]
    fn a_filter_knows_types_and_their_families() {
        let types = |list: &str| LedgerFilter {
            types: LedgerFilter::parse_types(list).unwrap(),
            ..LedgerFilter::default()
        };
        let some = types("task.processed, step.*");
        assert!(some.accepts_type("task.processed") && some.accepts_type("step.error"));
        assert!(!some.accepts_type("task.error") && !some.accepts_type("steps.error"));
        assert!(LedgerFilter::default().accepts_type("anything"));
        for wrong in ["", "a,,b", "*", "Step.error", "a b", "step.*.x"] {
            assert!(LedgerFilter::parse_types(wrong).is_err(), "{wrong}");
        }
        let labelled = LedgerFilter {
            workflow: Some("order".to_owned()),
            labels: vec![("customer".to_owned(), "acme".to_owned())],
            ..LedgerFilter::default()
        };
        let label = |name: &str| (name == "customer").then_some("acme");
        assert!(labelled.accepts_task(Some("order"), label));
        assert!(!labelled.accepts_task(Some("orders"), label));
        assert!(!labelled.accepts_task(Some("order"), |_| None));
    }

    #[test]
    fn a_record_has_the_difference_and_no_more_of_it_than_may_be() {
        let origin = ChangeOrigin::default();
        let record = || LedgerRecord::new("agent.put", LedgerSubject::Agent, "x", &origin);
        let changed = record().with_difference(Some(r#"{"a":1,"b":2}"#), Some(r#"{"a":1,"b":3}"#));
        let [difference] = &changed.differences[..] else {
            panic!("{changed:?}");
        };
        assert_eq!(difference.pointer, "/b");
        assert_eq!(difference.before.as_deref(), Some("2"));
        let all: Vec<_> = (0..=MOST_DIFFERENCES).collect();
        let none: Vec<_> = all.iter().map(|_| -1).collect();
        let json = |list: &[_]| serde_json::to_string(list).unwrap();
        let none = serde_json::to_string(&none).unwrap();
        let many = record().with_difference(Some(&json(&all)), Some(&none));
        assert_eq!(many.differences.len(), MOST_DIFFERENCES);
        assert!(many.more_differences);
        let new = record().with_difference(None, Some(&format!("\"{}\"", "x".repeat(9000))));
        assert!(new.differences[0].after.as_ref().unwrap().len() < 600);
    }
}
