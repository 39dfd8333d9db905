//! Reads a JSON object field by field and collects every fault with its JSON pointer, so that the caller can fix
//! all of them at once. An unknown field is refused by name: a typing error never changes behaviour.

use std::{borrow::Cow, collections::BTreeMap, fmt, ops::RangeInclusive};

use serde_json::value::RawValue;

use crate::{
    bounds::Bounds,
    fault::FieldFault,
    json::{Entries, Field, escape, excerpt, kind, text, within},
    nearest::nearest,
    span::{SPAN_FORMS, Span},
    value::{FieldValue, Place, Unfit},
};

/// The most faults of one kind that are reported for one object.
const MOST_FAULTS: usize = 50;

/// Many more fields than any object has that is read by the names of its fields. The fields are looked for one by one,
/// and each unknown one is compared with the known ones: a million would take minutes.
const MOST_FIELDS: usize = 200;

/// A JSON object being read. Each method takes one field; a field that is left out or null gives `None`,
/// and so does one at fault, which is then among the faults of [`Fields::finish`].
#[derive(Default)]
pub struct Fields<'a> {
    pointer: String,
    entries: Vec<Field<'a>>,
    asked: Vec<Box<str>>,
    faults: Vec<FieldFault>,
}

impl<'a> Fields<'a> {
    /// The values of the fields stay raw text until they are taken.
    pub fn of(value: &'a RawValue, pointer: &str) -> Result<Self, Vec<FieldFault>> {
        let Ok(Entries(entries)) = serde_json::from_str(value.get()) else {
            let message = format!("must be an object, not {}", kind(value));
            return Err(vec![FieldFault::new(pointer, message)]);
        };
        if entries.len() > MOST_FIELDS {
            let count = entries.len();
            let message =
                format!("has {count} fields, but no object here has more than {MOST_FIELDS}");
            return Err(vec![FieldFault::new(pointer, message)]);
        }
        let mut fields = Self {
            pointer: pointer.to_owned(),
            entries: Vec::with_capacity(entries.len()),
            asked: Vec::new(),
            faults: Vec::new(),
        };
        for entry in entries {
            if !fields.has(&entry.name) {
                fields.entries.push(entry);
            } else if fields.faults.len() < MOST_FAULTS {
                fields.fault(&entry.name, "is given twice: remove one");
            }
        }
        Ok(fields)
    }

    /// Returns whether the field is present and has not been taken.
    pub fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.name == name)
    }

    /// Returns whether the field is present as an object, where other forms are possible.
    pub fn is_object(&self, name: &str) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.name == name && entry.value.get().starts_with('{'))
    }

    /// The pointer of a field of this object.
    pub fn pointer(&self, name: &str) -> String {
        format!("{}/{}", self.pointer, escape(name))
    }

    pub fn fault(&mut self, name: &str, message: impl Into<String>) {
        let pointer = self.pointer(name);
        self.faults.push(FieldFault::new(pointer, message));
    }

    /// A field that must be there is not: `remedy` says what to give.
    pub fn missing(&mut self, name: &str, remedy: impl fmt::Display) {
        self.fault(name, format!("is missing: {remedy}"));
    }

    /// Takes in faults found elsewhere, with whole pointers.
    pub fn extend(&mut self, faults: impl IntoIterator<Item = FieldFault>) {
        self.faults.extend(faults);
    }

    /// The field as it was written, null included.
    pub fn raw(&mut self, name: &str) -> Option<Box<RawValue>> {
        self.value(name).map(ToOwned::to_owned)
    }

    /// As [`Fields::raw`], borrowed.
    pub fn value(&mut self, name: &str) -> Option<&'a RawValue> {
        self.asked.push(name.into());
        let at = self.entries.iter().position(|entry| entry.name == name)?;
        Some(self.entries.swap_remove(at).value)
    }

    /// As it was written, left where it is. `None` where it is missing or null.
    pub fn peek(&self, name: &str) -> Option<&'a str> {
        let entry = self.entries.iter().find(|entry| entry.name == name)?;
        Some(entry.value.get()).filter(|value| *value != "null")
    }

    /// Takes a field by its type, if it stands here and is not null.
    pub fn take<T: FieldValue>(&mut self, name: &str, bounds: &Bounds<T::Bound>) -> Option<T> {
        let value = self.present(name)?;
        let place = Place::new(&self.pointer, name);
        match T::read(value, place, bounds) {
            Ok(found) => Some(found),
            Err(Unfit::Value(message)) => {
                self.fault(name, message);
                None
            }
            Err(Unfit::Parts(faults)) => {
                self.extend(faults);
                None
            }
        }
    }

    /// As [`Fields::take`], of a field that must be there: `remedy` says what to give.
    pub fn required<T: FieldValue>(
        &mut self,
        name: &str,
        remedy: &str,
        bounds: &Bounds<T::Bound>,
    ) -> Option<T> {
        if self.peek(name).is_none() {
            self.missing(name, remedy);
        }
        self.take(name, bounds)
    }

    /// Returns the position in `names` of the one field that is present. It is a fault of the object if not exactly
    /// one is present.
    pub fn only_one(&mut self, names: &[&str]) -> Option<usize> {
        let present = |name: &&str| self.peek(name).is_some();
        if names.iter().filter(|name| present(name)).count() == 1 {
            return names.iter().position(present);
        }
        // Unknown fields are reported instead.
        for name in names {
            let _ = self.value(name);
        }
        if self.entries.is_empty() && self.faults.is_empty() {
            let message = format!("must have one of the fields: {}", names.join(", "));
            self.faults.push(FieldFault::new(&self.pointer, message));
        }
        None
    }

    fn present(&mut self, name: &str) -> Option<&'a RawValue> {
        self.value(name).filter(|value| value.get() != "null")
    }

    /// Takes a field with `read`, or records the fault that it `must_be` something else.
    fn read<T>(
        &mut self,
        name: &str,
        must_be: impl fmt::Display,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Option<T> {
        let value = self.present(name)?;
        let found = read(value.get());
        if found.is_none() {
            self.fault(name, format!("must be {must_be}, not {}", excerpt(value)));
        }
        found
    }

    /// Takes a text of at most `longest` characters.
    pub fn string(&mut self, name: &str, longest: usize) -> Option<String> {
        let text = self.read(name, "a string", text)?;
        match within(&text, longest) {
            Ok(()) => Some(text.into_owned()),
            Err(message) => {
                self.fault(name, message);
                None
            }
        }
    }

    pub fn boolean(&mut self, name: &str) -> Option<bool> {
        self.read(name, "true or false", |json| {
            serde_json::from_str(json).ok()
        })
    }

    pub fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Option<i64> {
        let must_be = format_args!("a whole number from {} to {}", range.start(), range.end());
        self.read(name, must_be, |json| {
            serde_json::from_str(json)
                .ok()
                .filter(|number| range.contains(number))
        })
    }

    pub fn span(&mut self, name: &str, range: RangeInclusive<Span>) -> Option<Span> {
        let must_be = format_args!("{SPAN_FORMS}, from {} to {}", range.start(), range.end());
        self.read(name, must_be, |json| {
            Span::parse(&text(json)?).filter(|span| range.contains(span))
        })
    }

    /// One of the words that stand for something.
    pub fn choice<T: Copy + Into<&'static str>>(&mut self, name: &str, choices: &[T]) -> Option<T> {
        self.choice_or(name, choices, "")
    }

    /// [`Fields::choice`] of a field that may also be `or`, which is read elsewhere.
    pub fn choice_or<T: Copy + Into<&'static str>>(
        &mut self,
        name: &str,
        choices: &[T],
        or: &str,
    ) -> Option<T> {
        let words = fmt::from_fn(|f| {
            for (at, choice) in choices.iter().enumerate() {
                let or = if at == 0 { "" } else { " or " };
                write!(f, "{or}{:?}", (*choice).into())?;
            }
            f.write_str(or)
        });
        self.read(name, words, |json| {
            let word = text(json)?;
            choices
                .iter()
                .copied()
                .find(|choice| (*choice).into() == word)
        })
    }

    /// The items of an array, raw.
    pub fn array(&mut self, name: &str) -> Option<Vec<&'a RawValue>> {
        self.read(name, "an array", |json| serde_json::from_str(json).ok())
    }

    /// An array of strings of at most `longest` characters. Items at fault are left out.
    pub fn string_list(&mut self, name: &str, longest: usize) -> Option<Vec<String>> {
        let items = self.array(name)?;
        let mut texts = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            let pointer = format!("{}/{index}", self.pointer(name));
            self.short_text(item, pointer, longest, |text| texts.push(text));
        }
        Some(texts)
    }

    /// An object with fields of its own; give their faults back by [`Fields::extend`].
    pub fn object(&mut self, name: &str) -> Option<Fields<'a>> {
        let value = self.present(name)?;
        match Fields::of(value, &self.pointer(name)) {
            Ok(fields) => Some(fields),
            Err(faults) => {
                self.extend(faults);
                None
            }
        }
    }

    /// An object whose names are the sender's own, such as headers: name, pointer and value.
    pub fn entries(&mut self, name: &str) -> Vec<(String, String, &'a RawValue)> {
        let Some(mut fields) = self.object(name) else {
            return Vec::new();
        };
        self.faults.append(&mut fields.faults);
        std::mem::take(&mut fields.entries)
            .into_iter()
            .map(|Field { name, value }| {
                let pointer = fields.pointer(&name);
                (name.into_owned(), pointer, value)
            })
            .collect()
    }

    /// All fields, where their names are the sender's own.
    pub(crate) fn take_all(&mut self) -> Vec<(Cow<'a, str>, &'a RawValue)> {
        let entries = std::mem::take(&mut self.entries).into_iter();
        entries.map(|entry| (entry.name, entry.value)).collect()
    }

    /// An object of strings under the sender's own names; both of at most `longest` characters.
    pub fn string_map(&mut self, name: &str, longest: usize) -> BTreeMap<String, String> {
        let mut map = BTreeMap::new();
        for (key, pointer, value) in self.entries(name) {
            if let Err(message) = within(&key, longest) {
                self.faults
                    .push(FieldFault::new(pointer, format!("its name {message}")));
                continue;
            }
            self.short_text(value, pointer, longest, |text| {
                map.insert(key, text);
            });
        }
        map
    }

    fn short_text(
        &mut self,
        value: &'a RawValue,
        pointer: String,
        longest: usize,
        take: impl FnOnce(String),
    ) {
        let message = match text(value.get()) {
            None => format!("must be a string, not {}", excerpt(value)),
            Some(text) => match within(&text, longest) {
                Ok(()) => return take(text.into_owned()),
                Err(message) => message,
            },
        };
        self.faults.push(FieldFault::new(pointer, message));
    }

    /// Refuses the fields that were not asked for. Returns every fault found.
    pub fn finish(mut self) -> Result<(), Vec<FieldFault>> {
        let entries = std::mem::take(&mut self.entries);
        let more = entries.len().saturating_sub(MOST_FAULTS);
        for entry in entries.iter().take(MOST_FAULTS) {
            let name = &*entry.name;
            let asked = || self.asked.iter().map(|asked| &**asked);
            let meant = called_elsewhere(name)
                .find(|meant| asked().any(|asked| asked == *meant))
                .or_else(|| nearest(name, asked()));
            let message = match meant {
                Some(meant) => format!("unknown field `{name}`; did you mean `{meant}`?"),
                None => format!(
                    "unknown field `{name}`; the fields are: {}",
                    self.asked.join(", ")
                ),
            };
            self.fault(name, message);
        }
        if more > 0 {
            let message = format!("has {more} more unknown fields: remove them");
            self.faults.push(FieldFault::new(&self.pointer, message));
        }
        if self.faults.is_empty() {
            Ok(())
        } else {
            Err(self.faults)
        }
    }
}

/// Returns the names in Provost of the fields that other schedulers and workflow languages call `name`.
fn called_elsewhere(name: &str) -> impl Iterator<Item = &'static str> + use<> {
    const NAMES: &[(&[&str], &[&str])] = &[
        (
            &[
                "depends_on",
                "dependsOn",
                "depends",
                "needs",
                "requires",
                "dependencies",
                "upstream",
            ],
            &["after"],
        ),
        (
            &[
                "timeout",
                "timeout_seconds",
                "deadline",
                "time_limit",
                "ttl",
                "start_to_close_timeout",
            ],
            &["complete_within"],
        ),
        (
            &[
                "retries",
                "max_retries",
                "max_tries",
                "attempts",
                "maximum_attempts",
                "retry_count",
                "retry_limit",
            ],
            &["max_attempts"],
        ),
        (&["if", "condition", "only_if", "run_if"], &["when"]),
        (
            &["compensate", "compensation", "rollback", "compensated_by"],
            &["undo"],
        ),
        (
            &[
                "service",
                "queue",
                "task_queue",
                "worker",
                "activity",
                "handler",
            ],
            &["agent"],
        ),
        (&["uri", "endpoint", "address", "href"], &["url"]),
        (
            &[
                "method", "path", "headers", "body", "http", "call", "payload", "params",
            ],
            &["request", "input", "body"],
        ),
        (
            &[
                "inputs",
                "data",
                "args",
                "arguments",
                "variables",
                "context",
            ],
            &["input"],
        ),
        (&["id", "title", "step"], &["name"]),
        (&["on_failure", "on_error", "catch"], &["on_permanent"]),
        (&["tags", "metadata", "annotations"], &["labels"]),
        (
            &["callback", "callback_url", "webhook", "notify"],
            &["reply_to"],
        ),
        (
            &["tasks", "stages", "jobs", "states", "activities"],
            &["steps"],
        ),
        (&["query", "search"], &["path"]),
    ];
    let found = NAMES.iter().find(|(names, _)| names.contains(&name));
    found.into_iter().flat_map(|(_, meant)| *meant).copied()
}

#[cfg(test)]
mod tests;
