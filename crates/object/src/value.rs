//! The types that a field can have: each reads itself from JSON, checks its bounds, and describes itself.

use std::{
    borrow::Cow,
    fmt::{self, Write},
};

use serde_json::{Value, json, value::RawValue};

use crate::{
    bounds::Bounds,
    fault::FieldFault,
    json::{escape, excerpt, text, within},
    schema::Definitions,
    span::{DURATION, SPAN_FORMS, Span},
};

/// Where a value stands: the pointer of its object or list, and its name there. It is written only for a fault, and for
/// what has fields of its own.
#[derive(Clone, Copy)]
pub struct Place<'p> {
    object: &'p str,
    name: &'p str,
}

impl<'p> Place<'p> {
    pub fn new(object: &'p str, name: &'p str) -> Self {
        Self { object, name }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.object, escape(self.name))
    }
}

/// Why a value was not taken.
#[derive(Debug)]
pub enum Unfit {
    /// The value itself is at fault.
    Value(String),
    /// Parts of it are.
    Parts(Vec<FieldFault>),
}

impl Unfit {
    /// The faults, where the value stands at `place`.
    pub(crate) fn at(self, place: Place<'_>) -> Vec<FieldFault> {
        match self {
            Unfit::Value(message) => vec![FieldFault::new(place.to_string(), message)],
            Unfit::Parts(faults) => faults,
        }
    }

    fn not(must_be: impl fmt::Display, value: &RawValue) -> Self {
        Unfit::Value(format!("must be {must_be}, not {}", excerpt(value)))
    }
}

/// The faults of an object that exists already, each with its pointer.
#[derive(Default)]
pub struct Faults {
    pointer: String,
    pub found: Vec<FieldFault>,
}

impl Faults {
    /// Returns an empty list for the faults of an object at this pointer.
    pub fn below(pointer: &str) -> Self {
        Self {
            pointer: pointer.to_owned(),
            found: Vec::new(),
        }
    }

    /// The object itself is at fault.
    pub fn add(&mut self, message: impl Into<String>) {
        self.found.push(FieldFault::new(&self.pointer, message));
    }

    /// A field of it is, by its name or by a pointer below the object.
    pub fn field(&mut self, name: &str, message: impl Into<String>) {
        let pointer = format!("{}/{name}", self.pointer);
        self.found.push(FieldFault::new(pointer, message));
    }

    /// Collects the faults of a part.
    pub fn part(&mut self, name: &str, check: impl FnOnce(&mut Self)) {
        let length = self.pointer.len();
        // A string takes any text.
        let _ = write!(self.pointer, "/{}", escape(name));
        check(self);
        self.pointer.truncate(length);
    }

    /// Returns whether a fault was found at the pointer of a field.
    pub fn has(&self, name: &str) -> bool {
        let pointer = format!("{}/{name}", self.pointer);
        self.found.iter().any(|fault| is_below(fault, &pointer))
    }

    /// Forgets the faults at the pointer of a field.
    pub fn remove(&mut self, name: &str) {
        let pointer = format!("{}/{name}", self.pointer);
        self.found.retain(|fault| !is_below(fault, &pointer));
    }

    /// Where the object stands.
    pub fn pointer(&self) -> &str {
        &self.pointer
    }
}

/// Returns whether a fault concerns the value at the pointer, or a part of it.
fn is_below(fault: &FieldFault, pointer: &str) -> bool {
    let below = fault.pointer.strip_prefix(pointer);
    below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A type that a field can have.
pub trait FieldValue: Sized {
    /// The type of the quantity that bounds limit.
    type Bound: 'static;

    /// Reads a value that is not null.
    fn read(
        value: &RawValue,
        place: Place<'_>,
        bounds: &Bounds<Self::Bound>,
    ) -> Result<Self, Unfit>;

    /// Checks a value that was read without these bounds.
    fn check(&self, _: &Bounds<Self::Bound>, _: &mut Faults) {}

    /// Returns the JSON Schema of the type, with the bounds.
    fn schema(bounds: &Bounds<Self::Bound>, definitions: &mut Definitions) -> Value;

    /// Returns the form for a reader of the documentation, such as "whole number, 1 to 100".
    fn form(bounds: &Bounds<Self::Bound>) -> String;

    /// Returns whether the value stands for a field that is left out, and is left out itself when it is written.
    fn is_absent(&self) -> bool {
        false
    }
}

pub(crate) fn with_words<T: fmt::Display>(kind: &str, bounds: &Bounds<T>, unit: &str) -> String {
    match bounds.words() {
        Some(words) => format!("{kind}, {words}{unit}"),
        None => kind.to_owned(),
    }
}

/// Adds the bounds under the names that JSON Schema has for them.
pub(crate) fn bounded<T: Clone + Into<Value>>(
    mut schema: Value,
    bounds: &Bounds<T>,
    names: [&str; 2],
) -> Value {
    for (name, bound) in names.into_iter().zip([&bounds.least, &bounds.most]) {
        if let Some(bound) = bound {
            schema[name] = bound.clone().into();
        }
    }
    schema
}

macro_rules! whole_numbers {
    ($($type:ty, $format:literal, $least:expr;)*) => {$(
        impl FieldValue for $type {
            type Bound = $type;

            fn read(value: &RawValue, _: Place<'_>, bounds: &Bounds<$type>) -> Result<Self, Unfit> {
                let found = serde_json::from_str(value.get()).ok();
                found.filter(|number| bounds.contains(number)).ok_or_else(|| {
                    let least = bounds.least.unwrap_or(<$type>::MIN);
                    let most = bounds.most.unwrap_or(<$type>::MAX);
                    Unfit::not(format_args!("a whole number from {least} to {most}"), value)
                })
            }

            fn check(&self, bounds: &Bounds<$type>, faults: &mut Faults) {
                if let Some(words) = bounds.words().filter(|_| !bounds.contains(self)) {
                    faults.add(format!("must be {words}"));
                }
            }

            fn schema(bounds: &Bounds<$type>, _: &mut Definitions) -> Value {
                let least: Option<$type> = $least;
                let bounds = Bounds { least: bounds.least.or(least), most: bounds.most };
                let schema = json!({ "type": "integer", "format": $format });
                bounded(schema, &bounds, ["minimum", "maximum"])
            }

            fn form(bounds: &Bounds<$type>) -> String {
                with_words("whole number", bounds, "")
            }
        }
    )*};
}

whole_numbers! {
    u32, "int32", Some(0);
    u64, "int64", Some(0);
    i64, "int64", None;
}

impl FieldValue for bool {
    type Bound = bool;

    fn read(value: &RawValue, _: Place<'_>, _: &Bounds<bool>) -> Result<Self, Unfit> {
        serde_json::from_str(value.get()).map_err(|_| Unfit::not("true or false", value))
    }

    fn schema(_: &Bounds<bool>, _: &mut Definitions) -> Value {
        json!({ "type": "boolean" })
    }

    fn form(_: &Bounds<bool>) -> String {
        "true or false".to_owned()
    }
}

/// The text of a string, bounded by its characters. Too few are a fault of the check.
pub fn read_text<'v>(value: &'v RawValue, bounds: &Bounds<usize>) -> Result<Cow<'v, str>, Unfit> {
    let found = text(value.get()).ok_or_else(|| Unfit::not("a string", value))?;
    within(&found, bounds.most.unwrap_or(usize::MAX)).map_err(Unfit::Value)?;
    Ok(found)
}

fn text_fault(text: &str, bounds: &Bounds<usize>) -> Option<String> {
    if let Err(message) = within(text, bounds.most.unwrap_or(usize::MAX)) {
        return Some(message);
    }
    let least = bounds.least.filter(|least| text.chars().count() < *least)?;
    Some(format!("must be at least {least} characters long"))
}

/// Returns the JSON Schema of a text whose number of characters is within the bounds.
pub fn text_schema(bounds: &Bounds<usize>) -> Value {
    let schema = json!({ "type": "string" });
    bounded(schema, bounds, ["minLength", "maxLength"])
}

impl FieldValue for String {
    type Bound = usize;

    fn read(value: &RawValue, _: Place<'_>, bounds: &Bounds<usize>) -> Result<Self, Unfit> {
        Ok(read_text(value, bounds)?.into_owned())
    }

    fn check(&self, bounds: &Bounds<usize>, faults: &mut Faults) {
        if let Some(message) = text_fault(self, bounds) {
            faults.add(message);
        }
    }

    fn schema(bounds: &Bounds<usize>, _: &mut Definitions) -> Value {
        text_schema(bounds)
    }

    fn form(bounds: &Bounds<usize>) -> String {
        with_words("text", bounds, " characters")
    }
}

impl FieldValue for Span {
    type Bound = Span;

    fn read(value: &RawValue, _: Place<'_>, bounds: &Bounds<Span>) -> Result<Self, Unfit> {
        let found = text(value.get()).and_then(|text| Span::parse(&text));
        found.filter(|span| bounds.contains(span)).ok_or_else(|| {
            let least = bounds.least.unwrap_or_default();
            let most = bounds.most.unwrap_or(Span::LONGEST);
            Unfit::not(format_args!("{SPAN_FORMS}, from {least} to {most}"), value)
        })
    }

    fn check(&self, bounds: &Bounds<Span>, faults: &mut Faults) {
        if let Some(words) = bounds.words().filter(|_| !bounds.contains(self)) {
            faults.add(format!("must be {words}"));
        }
    }

    /// JSON Schema has no word for the bounds: the description of the field has them.
    fn schema(_: &Bounds<Span>, definitions: &mut Definitions) -> Value {
        definitions.refer("Duration", |_| {
            json!({
                "type": "string",
                "description": "A duration: `250ms`, `30s`, `15m`, `24h`, `30d`, or several units as in `1h30m`",
                "examples": ["30s"],
                "pattern": DURATION,
            })
        })
    }

    fn form(bounds: &Bounds<Span>) -> String {
        with_words("duration", bounds, "")
    }
}

/// The rest of a fault of a list or a map, where the field gives no other.
pub(crate) const ITEMS: &str = ", holds {count}";

/// Returns the fault of a list or a map with this count of items. `items`: the rest of the fault.
pub(crate) fn count_fault(count: usize, bounds: &Bounds<usize>, items: &str) -> Option<String> {
    let words = bounds.words().filter(|_| !bounds.contains(&count))?;
    let items = items.replace("{count}", &count.to_string());
    Some(format!("must hold {words}{items}"))
}

/// Checks a list whose fault says `items` after the bounds, such as ` windows`.
pub fn check_items<T: FieldValue>(
    list: &[T],
    bounds: &Bounds<usize>,
    items: &str,
    faults: &mut Faults,
) {
    if let Some(message) = count_fault(list.len(), bounds, items) {
        faults.add(message);
    }
    // Only as many are checked as there may be.
    let most = bounds.most.unwrap_or(usize::MAX);
    for (at, item) in list.iter().enumerate().take(most) {
        faults.part(&at.to_string(), |faults| item.check(&Bounds::ANY, faults));
    }
}

/// A list. The bounds of its items are their type's own.
impl<T: FieldValue> FieldValue for Vec<T> {
    type Bound = usize;

    fn read(value: &RawValue, place: Place<'_>, bounds: &Bounds<usize>) -> Result<Self, Unfit> {
        let items: Vec<&RawValue> =
            serde_json::from_str(value.get()).map_err(|_| Unfit::not("an array", value))?;
        if let Some(message) = count_fault(items.len(), bounds, ITEMS) {
            return Err(Unfit::Value(message));
        }
        let (mut found, mut faults) = (Vec::with_capacity(items.len()), Vec::new());
        let list = if items.is_empty() {
            String::new()
        } else {
            place.to_string()
        };
        for (at, item) in items.into_iter().enumerate() {
            let name = at.to_string();
            let place = Place::new(&list, &name);
            match T::read(item, place, &Bounds::ANY) {
                Ok(item) => found.push(item),
                Err(unfit) => faults.extend(unfit.at(place)),
            }
        }
        if faults.is_empty() {
            Ok(found)
        } else {
            Err(Unfit::Parts(faults))
        }
    }

    fn check(&self, bounds: &Bounds<usize>, faults: &mut Faults) {
        check_items(self, bounds, ITEMS, faults);
    }

    fn schema(bounds: &Bounds<usize>, definitions: &mut Definitions) -> Value {
        let items = T::schema(&Bounds::ANY, definitions);
        let schema = json!({ "type": "array", "items": items });
        bounded(schema, bounds, ["minItems", "maxItems"])
    }

    fn form(bounds: &Bounds<usize>) -> String {
        let items = format!("list of {}", T::form(&Bounds::ANY));
        with_words(&items, bounds, "")
    }

    fn is_absent(&self) -> bool {
        self.is_empty()
    }
}

/// A field that may be left out. For the reader it is as its value.
impl<T: FieldValue> FieldValue for Option<T> {
    type Bound = T::Bound;

    fn read(value: &RawValue, place: Place<'_>, bounds: &Bounds<T::Bound>) -> Result<Self, Unfit> {
        T::read(value, place, bounds).map(Some)
    }

    fn check(&self, bounds: &Bounds<T::Bound>, faults: &mut Faults) {
        if let Some(value) = self {
            value.check(bounds, faults);
        }
    }

    fn schema(bounds: &Bounds<T::Bound>, definitions: &mut Definitions) -> Value {
        T::schema(bounds, definitions)
    }

    fn form(bounds: &Bounds<T::Bound>) -> String {
        T::form(bounds)
    }

    fn is_absent(&self) -> bool {
        self.is_none()
    }
}

/// Reads a value that has fields of its own or is one of several forms.
pub fn read_word<T: Copy>(value: &RawValue, words: &[(&'static str, T)]) -> Result<T, Unfit> {
    let found = text(value.get());
    let found = found.and_then(|text| words.iter().find(|(word, _)| *word == text));
    found.map(|(_, one)| *one).ok_or_else(|| {
        let words = fmt::from_fn(|f| {
            for (at, (word, _)) in words.iter().enumerate() {
                let or = if at == 0 { "" } else { " or " };
                write!(f, "{or}{word:?}")?;
            }
            Ok(())
        });
        Unfit::not(words, value)
    })
}
