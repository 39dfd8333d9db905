//! An object of JSON, declared once. The derive makes of the declaration a reader that finds all faults with their
//! pointers, a writer, the checks of bounds, the defaults, a JSON Schema and the rows of the documentation.
//!
//! ```
//! use provost_object::{Definitions, Object, Span, serde_json::{self, json, value::RawValue}};
//!
//! /// When a breaker opens.
//! #[derive(Object, Debug, PartialEq)]
//! #[object(name = "Breaker", default)]
//! struct BreakerSpec {
//!     /// With fewer calls in the window it does not open.
//!     #[field(1..=10_000, default = 20)]
//!     min_calls: u32,
//!     /// The time that counts, 1 s to 1 h.
//!     #[field("1s"..="1h", default = "30s")]
//!     window: Span,
//!     /// A call that takes longer is slow. Default: no call is.
//!     #[field("1ms"..="1h")]
//!     slow_after: Option<Span>,
//! }
//!
//! let read = |json: &str| {
//!     let body = RawValue::from_string(json.to_owned()).unwrap();
//!     BreakerSpec::read_object(&body, "/breaker")
//! };
//!
//! // What is left out has its default, and what has none is left out when it is written.
//! let spec = read(r#"{"window": "1m"}"#).unwrap();
//! assert_eq!(spec, BreakerSpec { window: Span::from_secs(60), ..BreakerSpec::default() });
//! assert_eq!(serde_json::to_string(&spec).unwrap(), r#"{"min_calls":20,"window":"1m"}"#);
//!
//! // All faults are found at once, each with its pointer.
//! let faults = read(r#"{"min_call": 5, "window": "2h"}"#).unwrap_err();
//! let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
//! assert!(faults[0].starts_with("/breaker/window: must be a duration"));
//! assert_eq!(faults[1], "/breaker/min_call: unknown field `min_call`; did you mean `min_calls`?");
//!
//! // The JSON Schema, and the row of the documentation.
//! let mut definitions = Definitions::default();
//! definitions.object::<BreakerSpec>();
//! let document = definitions.document("Breaker");
//! let min_calls = &document["$defs"]["Breaker"]["properties"]["min_calls"];
//! assert_eq!(min_calls["maximum"], 10_000);
//! assert_eq!(min_calls["default"], 20);
//! let row = &definitions.tables[0].rows[0];
//! assert_eq!((&*row.form, &*row.default), ("whole number, 1 to 10000", "20"));
//! ```
//!
//! # What a field says
//!
//! | in `#[field(…)]` | means |
//! | --- | --- |
//! | `1..=100`, `1..`, `..=100` | the bounds: of a number itself, of a text its characters, of a list or a map its items. Those of durations are written as durations: `"1s"..="1h"` |
//! | `default = 20`, `default` | it may be left out, and is this then, or the default of its type |
//! | `required = "give a path"` | it must be there, and the fault says this remedy |
//! | `rename = "for"` | its name in JSON |
//! | `late` | the bounds are checked when all of the object was read, by [`Object::check_fields`], and not while it is read |
//! | `check = path` | a function of the value and [`Faults`] that is called in place of the check of the bounds, for rules of its own |
//! | `items = " windows"` | of a list: how the fault of its bounds continues; `{count}` is the count of its items |
//! | `read = path` | a function of [`Fields`] and the field's name that reads it |
//! | `omit_default` | it is left out when it is written, if it is its default |
//! | `written_if = path` | a function of the object: whether the field is written |
//! | `pattern = "^/"`, `example = 20` | for the schema |
//!
//! An `Option`, a list and a map may be left out without more words. `#[object(…)]` has `name` (in the schema, by default
//! that of the type), `default` (implements [`Default`]), `before = path` (a function of [`Fields`] that is called first) and
//! `check = path` (a function of the object and [`Faults`], for rules between fields).
//!
//! An enum whose variants hold one object each is an object with exactly one field. One whose variants hold nothing is a
//! word.

pub mod bounds;
mod fault;
pub mod fields;
mod json;
mod map;
mod markdown;
pub mod nearest;
pub mod schema;
pub mod span;
pub mod value;

pub use provost_object_derive::Object;
pub use serde;
pub use serde_json;
use serde_json::value::RawValue;

pub use self::{
    bounds::Bounds,
    fault::FieldFault,
    fields::Fields,
    json::{entries, escape, text},
    nearest::nearest,
    schema::{DEFINITIONS, Definitions, DocsRow, Property, Table},
    span::{DURATION, SPAN_FORMS, Span},
    value::{Faults, FieldValue, Place, Unfit, check_items, read_text, read_word, text_schema},
};

/// An object of JSON. It is derived.
pub trait Object: Sized {
    /// The name in schemas.
    const NAME: &'static str;
    const ABOUT: &'static str;
    /// True if the object has exactly one of its fields.
    const HAS_ONE_FIELD: bool = false;

    /// Takes its fields. `None` if something is at fault; the faults found are among those of `fields`.
    fn read_fields(fields: &mut Fields<'_>) -> Option<Self>;

    /// Checks the bounds of all fields and the rules between them.
    fn check_fields(&self, faults: &mut Faults);

    fn properties(definitions: &mut Definitions) -> Vec<Property>;

    /// Reads the object from JSON, or returns all faults.
    fn read_object(value: &RawValue, pointer: &str) -> Result<Self, Vec<FieldFault>> {
        let mut fields = Fields::of(value, pointer)?;
        let read = Self::read_fields(&mut fields);
        fields.finish()?;
        // Without a value there was a fault.
        read.ok_or_else(Vec::new)
    }

    /// Reads the object from JSON and checks it.
    fn parse(value: &RawValue) -> Result<Self, Vec<FieldFault>> {
        let read = Self::read_object(value, "")?;
        let faults = read.object_faults("");
        if faults.is_empty() {
            Ok(read)
        } else {
            Err(faults)
        }
    }

    /// Checks one that was read elsewhere and stands at this pointer.
    fn object_faults(&self, pointer: &str) -> Vec<FieldFault> {
        let mut faults = Faults::below(pointer);
        self.check_fields(&mut faults);
        faults.found
    }
}
