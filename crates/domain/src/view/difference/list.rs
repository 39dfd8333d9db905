//! Lists of differences that are made to be shown: bounded in number, in bytes and in work.

use std::{cell::Cell, ops::ControlFlow};

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    task::aggregate::Details,
    template::{Budget, JsonDifference, each_difference, payload::Payload},
    values::{ids::TaskId, shortened::shortened},
};

/// The most differences of one list.
const MOST: usize = 30;
/// The most bytes of the differences of all lists together, approximately.
const MOST_BYTES: usize = 128 << 10;
/// The longest value that is shown whole, in bytes.
const LONGEST_VALUE: usize = 256;
/// The longest excerpt of another value, in bytes.
const LONGEST_EXCERPT: usize = 200;
/// The bytes of an excerpt that come before the first difference.
const BEFORE: usize = 40;
/// The longest JSON pointer, in bytes.
const LONGEST_POINTER: usize = 200;
/// The longest text in which ids and keys are looked for, in bytes.
const LONGEST_SEARCHED: usize = 1_000;
/// The shortest key that is looked for within longer texts: a shorter one occurs by chance.
const SHORTEST_KEY: usize = 4;
/// The most differences from which others may follow.
const MOST_SOURCES: usize = 200;
/// The evaluations whose budgets the comparison of two tasks may use.
const EVALUATIONS: u64 = 4;

/// The differences of one part.
#[derive(Clone, PartialEq, Debug, Default, Serialize, ToSchema)]
pub struct DifferenceList {
    /// At most 30, members by their names and items by their indexes.
    pub items: Vec<ValueDifference>,
    /// True if there are more, or if comparing the rest would cost too much.
    #[schema(example = false)]
    pub more: bool,
}

/// A value that two tasks do not share.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct ValueDifference {
    /// A JSON pointer (RFC 6901). A long one is shortened, and ends with an ellipsis.
    #[schema(example = "/body/currency")]
    pub pointer: String,
    pub change: MemberChange,
    /// Null if it was added.
    #[schema(required)]
    pub a: Option<ComparedValue>,
    /// Null if it was removed.
    #[schema(required)]
    pub b: Option<ComparedValue>,
    /// The part of the tasks that explains the difference, as a JSON pointer into both: `/id` or `/key`, if the values
    /// differ only in the ids or keys of their tasks; a pointer such as `/input/amount` or `/steps/reserve/output/id`, if
    /// the inputs or the outputs of an earlier step differ there in the same two values. Null if no such part is known.
    #[schema(required, example = "/input/amount")]
    pub follows_from: Option<String>,
    /// True if both values are texts, or both are numbers.
    #[serde(skip)]
    is_alike: bool,
}

/// `added`: only `b` has the value. `removed`: only `a` has it. `changed`: both have one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemberChange {
    Added,
    Removed,
    Changed,
}

/// One of two values that differ.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct ComparedValue {
    /// The value as it was written. Left out if it takes more than 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Payload)]
    value: Option<Payload>,
    /// A part of a longer value, as text, from shortly before the first difference; an ellipsis stands for what is
    /// missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "…\"currency\":\"EUR\",\"card\":…")]
    excerpt: Option<String>,
    /// The length of the whole value, as JSON text.
    #[schema(value_type = u64, example = 5)]
    bytes: usize,
}

impl ComparedValue {
    fn new(json: &str, other: Option<&str>) -> Self {
        let bytes = json.len();
        if bytes <= LONGEST_VALUE {
            return Self {
                value: Payload::parse(json.to_owned()),
                excerpt: None,
                bytes,
            };
        }
        let pairs = json.bytes().zip(other.unwrap_or_default().bytes());
        let shared = pairs.take_while(|(a, b)| a == b).count();
        let start = json.floor_char_boundary(shared.saturating_sub(BEFORE));
        let excerpt = shortened(&json[start..], LONGEST_EXCERPT);
        Self {
            value: None,
            excerpt: Some(match start {
                0 => excerpt,
                _ => format!("…{excerpt}"),
            }),
            bytes,
        }
    }

    fn shown_bytes(&self) -> usize {
        let value = self.value.as_ref().map(|value| value.as_json().len());
        // Quotes and backslashes of an excerpt are escaped once more.
        let excerpt = self.excerpt.as_ref().map(|excerpt| 2 * excerpt.len());
        value.or(excerpt).unwrap_or(0)
    }
}

/// The names of a task that occur in its requests.
pub(super) struct TaskNames<'t> {
    /// `None`: the task has not been submitted.
    pub id: Option<TaskId>,
    pub key: Option<&'t str>,
}

impl<'t> TaskNames<'t> {
    pub fn of(details: &'t Details) -> Self {
        Self {
            id: Some(details.id),
            key: details.key.as_deref(),
        }
    }
}

/// A difference of the inputs, or of the outputs of a step, from which others may follow.
struct DifferenceSource {
    pointer: String,
    values: [Option<Payload>; 2],
}

/// Compares parts of two tasks, within one bound.
pub(super) struct Comparer<'t> {
    names: [TaskNames<'t>; 2],
    budget: Budget,
    /// The bytes that are left for differences.
    room: Cell<usize>,
    sources: Vec<DifferenceSource>,
}

impl<'t> Comparer<'t> {
    pub fn new(names: [TaskNames<'t>; 2]) -> Self {
        Self {
            names,
            budget: Budget::of_several(EVALUATIONS * Budget::EVALUATION),
            room: Cell::new(MOST_BYTES),
            sources: Vec::new(),
        }
    }

    pub fn list(&self, a: &Payload, b: &Payload) -> DifferenceList {
        let mut items = Vec::new();
        self.budget.next();
        let is_all = each_difference(a, b, &self.budget, |found| {
            let item = self.item(&found);
            let sides = [&item.a, &item.b].into_iter().flatten();
            let bytes: usize = sides.map(ComparedValue::shown_bytes).sum();
            let Some(room) = (self.room.get()).checked_sub(bytes + item.pointer.len()) else {
                return ControlFlow::Break(());
            };
            if items.len() == MOST {
                return ControlFlow::Break(());
            }
            self.room.set(room);
            items.push(item);
            ControlFlow::Continue(())
        });
        DifferenceList {
            items,
            more: !is_all,
        }
    }

    /// Remembers the differences of values that requests are rendered from. `pointer` leads to these values, in both tasks.
    pub fn add_sources(&mut self, pointer: &str, list: &DifferenceList) {
        let sources = list.items.iter().filter_map(|item| {
            let sides = [&item.a, &item.b].map(Option::as_ref);
            let values = sides.map(|side| side.and_then(|side| side.value.clone()));
            // A value of which only an excerpt is kept cannot be recognised.
            let are_whole = (0..2).all(|side| sides[side].is_some() == values[side].is_some());
            are_whole.then(|| DifferenceSource {
                pointer: format!("{pointer}{}", item.pointer),
                values,
            })
        });
        let room = MOST_SOURCES - self.sources.len();
        self.sources.extend(sources.take(room));
    }

    fn item(&self, found: &JsonDifference<'_>) -> ValueDifference {
        let change = match (found.a, found.b) {
            (Some(_), Some(_)) => MemberChange::Changed,
            (Some(_), None) => MemberChange::Removed,
            (None, _) => MemberChange::Added,
        };
        ValueDifference {
            pointer: shortened(found.pointer, LONGEST_POINTER),
            change,
            a: found.a.map(|a| ComparedValue::new(a, found.b)),
            b: found.b.map(|b| ComparedValue::new(b, found.a)),
            follows_from: self.follows_from(found),
            is_alike: is_alike(found),
        }
    }

    fn follows_from(&self, found: &JsonDifference<'_>) -> Option<String> {
        let sides = [found.a, found.b];
        let lengths = sides.into_iter().flatten().map(str::len);
        if lengths.max() > Some(LONGEST_SEARCHED) {
            return None;
        }
        let is_text = |json: &str| json.starts_with('"');
        if let [Some(a), Some(b)] = sides
            && is_text(a)
            && is_text(b)
            && let Some(name) = self.named(a, b)
        {
            return Some(name.to_owned());
        }
        // Texts and numbers are seldom alike by chance. Others must also have the same name.
        let is_alike = is_alike(found);
        let last = |pointer: &str| pointer.rsplit('/').next().map(str::to_owned);
        let name = last(found.pointer);
        let mut sources = self.sources.iter();
        let source = sources.find(|source| {
            let values = [0, 1].map(|side| source.values[side].as_ref().map(Payload::as_json));
            values == sides && (is_alike || last(&source.pointer) == name)
        });
        source.map(|source| source.pointer.clone())
    }

    /// Returns the name in which alone two texts differ.
    fn named(&self, a: &str, b: &str) -> Option<&'static str> {
        let [own, other] = &self.names;
        if let (Some(key), Some(other)) = (own.key, other.key) {
            // A key that needs escapes is not found.
            let is_whole = |text: &str, key: &str| &text[1..text.len() - 1] == key;
            let is_in = |text: &str, key: &str| key.len() >= SHORTEST_KEY && text.contains(key);
            let is_key = is_whole(a, key) && is_whole(b, other);
            let is_part = is_in(a, key) && is_in(b, other);
            if is_key || (is_part && a.replace(key, "\0") == b.replace(other, "\0")) {
                return Some("/key");
            }
        }
        let (id, other) = (own.id?.to_string(), other.id?.to_string());
        let is_part = a.contains(&id) && b.contains(&other);
        (is_part && a.replace(&id, "\0") == b.replace(&other, "\0")).then_some("/id")
    }
}

impl DifferenceList {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && !self.more
    }

    /// Returns the differences below a pointer, which they are relative to.
    pub(super) fn below(&self, pointer: &str) -> Self {
        let items = self.items.iter().filter_map(|item| {
            let rest = item.pointer.strip_prefix(pointer)?;
            let pointer = rest.to_owned();
            (rest.is_empty() || rest.starts_with('/')).then(|| ValueDifference {
                pointer,
                ..item.clone()
            })
        });
        Self {
            items: items.collect(),
            more: self.more,
        }
    }

    /// Returns whether a difference follows from no other.
    pub(super) fn is_telling(&self) -> bool {
        self.more || self.items.iter().any(ValueDifference::is_telling)
    }

    /// Returns whether there is more to it than other texts and numbers, which services return every time.
    pub(super) fn has_other_form(&self) -> bool {
        let is_other = |item: &ValueDifference| item.is_telling() && !item.is_alike;
        self.more || self.items.iter().any(is_other)
    }
}

impl ValueDifference {
    pub(super) fn is_telling(&self) -> bool {
        self.follows_from.is_none()
    }
}

/// Returns whether both values are texts, or both are numbers.
fn is_alike(found: &JsonDifference<'_>) -> bool {
    let kinds = [found.a, found.b].map(|json| match json?.as_bytes().first() {
        Some(b'"') => Some("text"),
        Some(b'-' | b'0'..=b'9') => Some("number"),
        _ => None,
    });
    kinds[0].is_some() && kinds[0] == kinds[1]
}
