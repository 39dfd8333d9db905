//! From a value to JSON text, bounded and strict: something undefined inside a list or an object is an
//! error here, where minijinja would write null.

use std::io;

use minijinja::{Value, value::ValueKind};
use serde::{
    Serialize, Serializer,
    ser::{Error as _, SerializeMap, SerializeSeq},
};

use super::{MAX_RENDERED, RenderError};

/// Appends the value as JSON.
pub(super) fn json(value: &Value, expression: &str, out: &mut String) -> Result<(), RenderError> {
    let mut bounded = Bounded {
        text: out,
        full: false,
    };
    let written = serde_json::to_writer(&mut bounded, &Strict(value));
    match written {
        Ok(()) => Ok(()),
        Err(_) if bounded.full => Err(RenderError::too_large(expression)),
        Err(error) => Err(RenderError::new(expression, error.to_string())),
    }
}

/// Appends text, as long as there is room for it.
pub(super) fn text(text: &str, expression: &str, out: &mut String) -> Result<(), RenderError> {
    if out.len() + text.len() > MAX_RENDERED {
        return Err(RenderError::too_large(expression));
    }
    out.push_str(text);
    Ok(())
}

struct Bounded<'a> {
    text: &'a mut String,
    full: bool,
}

impl io::Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > MAX_RENDERED {
            self.full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        // serde_json writes whole pieces of UTF-8.
        let piece = str::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData)?;
        self.text.push_str(piece);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Strict<'a>(&'a Value);

impl Serialize for Strict<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value = self.0;
        match value.kind() {
            ValueKind::Undefined => Err(S::Error::custom(
                "a part of the result is not there; give it a default with `| default(…)`",
            )),
            ValueKind::Seq | ValueKind::Iterable => {
                let mut seq = serializer.serialize_seq(value.len())?;
                for item in value.try_iter().map_err(S::Error::custom)? {
                    seq.serialize_element(&Strict(&item))?;
                }
                seq.end()
            }
            ValueKind::Map => {
                let mut map = serializer.serialize_map(None)?;
                for key in value.try_iter().map_err(S::Error::custom)? {
                    let item = value.get_item(&key).map_err(S::Error::custom)?;
                    map.serialize_entry(&key, &Strict(&item))?;
                }
                map.end()
            }
            ValueKind::Invalid => Err(S::Error::custom(value.to_string())),
            ValueKind::Plain => Err(S::Error::custom("the result is a function, not data")),
            ValueKind::Number
                if f64::try_from(value.clone()).is_ok_and(|number| !number.is_finite()) =>
            {
                Err(S::Error::custom("the result is not a finite number"))
            }
            _ => value.serialize(serializer),
        }
    }
}
