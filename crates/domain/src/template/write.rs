//! Writes a value as JSON text, bounded and strict: a missing value inside a list or an object is an error.

use super::{
    Budget, MAX_RENDERED,
    budget::{ITEM, NODE},
    compare::{DEEPEST, too_deep},
    document::end_of_string,
    eval_error::{EvalError, EvalResult},
    value::Value,
};

/// The rendered text: it grows up to [`MAX_RENDERED`], and every byte is charged.
pub(super) struct Out<'b> {
    pub text: String,
    pub budget: &'b Budget,
}

impl<'b> Out<'b> {
    pub fn new(budget: &'b Budget) -> Self {
        Self {
            text: String::new(),
            budget,
        }
    }

    pub fn push(&mut self, text: &str) -> EvalResult<()> {
        self.reserve(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    fn reserve(&mut self, more: usize) -> EvalResult<()> {
        self.charge(more)?;
        let length = self.text.len() + more;
        if length > self.text.capacity() {
            let capacity = length.max(self.text.capacity() * 2).clamp(64, MAX_RENDERED);
            self.budget.allocate(capacity)?;
            self.text.reserve_exact(capacity - self.text.len());
        }
        Ok(())
    }

    /// Charges this many more bytes, which may be held anywhere.
    pub fn charge(&self, more: usize) -> EvalResult<()> {
        if self.text.len() + more > MAX_RENDERED {
            return Err(EvalError::TooLarge);
        }
        self.budget.charge(more as u64 / 2)?;
        Ok(())
    }

    /// Writes a text as it is, any other value as JSON.
    pub fn interpolate(&mut self, value: &Value<'_>) -> EvalResult<()> {
        match value.as_text() {
            Some(text) => self.push(text),
            None => self.json(value),
        }
    }

    pub fn json(&mut self, value: &Value<'_>) -> EvalResult<()> {
        self.json_at(value, 0)
    }

    fn json_at(&mut self, value: &Value<'_>, depth: usize) -> EvalResult<()> {
        if depth == DEEPEST {
            return Err(too_deep());
        }
        self.budget.charge(NODE)?;
        match value {
            Value::Missing(path) => return Err(EvalError::Missing((*path).to_owned())),
            Value::Null => self.push("null")?,
            Value::Bool(true) => self.push("true")?,
            Value::Bool(false) => self.push("false")?,
            Value::Number(number) => {
                let mut text = String::new();
                self.budget.allocate(64)?;
                number.write(&mut text)?;
                self.push(&text)?;
            }
            Value::Text(text) => self.string(text)?,
            Value::Built(text) => self.string(text)?,
            Value::Node(node) => self.compact(node.json())?,
            Value::List(items) => {
                self.push("[")?;
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        self.push(",")?;
                    }
                    self.json_at(item, depth + 1)?;
                }
                self.push("]")?;
            }
            Value::Map(_) => {
                self.push("{")?;
                for (index, (name, item)) in value.members(self.budget)?.iter().enumerate() {
                    if index > 0 {
                        self.push(",")?;
                    }
                    self.json_at(name, depth + 1)?;
                    self.push(":")?;
                    self.json_at(item, depth + 1)?;
                }
                self.push("}")?;
            }
        }
        Ok(())
    }

    fn string(&mut self, text: &str) -> EvalResult<()> {
        self.budget.charge(text.len() as u64)?;
        self.push("\"")?;
        let mut copied = 0;
        for (at, byte) in text.bytes().enumerate() {
            let escape = match byte {
                b'"' => "\\\"",
                b'\\' => "\\\\",
                b'\n' => "\\n",
                b'\r' => "\\r",
                b'\t' => "\\t",
                0x08 => "\\b",
                0x0c => "\\f",
                0x00..0x20 => {
                    self.push(&text[copied..at])?;
                    self.budget.charge(ITEM * 4)?;
                    self.push(&format!("\\u{byte:04x}"))?;
                    copied = at + 1;
                    continue;
                }
                _ => continue,
            };
            self.push(&text[copied..at])?;
            self.budget.charge(ITEM)?;
            self.push(escape)?;
            copied = at + 1;
        }
        self.push(&text[copied..])?;
        self.push("\"")
    }

    /// Writes JSON from a document without the blanks between its parts: a header must not contain line breaks.
    fn compact(&mut self, json: &str) -> EvalResult<()> {
        self.budget.charge_each(json.len(), 2)?;
        let bytes = json.as_bytes();
        let (mut at, mut copied) = (0, 0);
        while let Some(byte) = bytes.get(at) {
            match byte {
                b'"' => at = end_of_string(bytes, at + 1),
                b' ' | b'\t' | b'\n' | b'\r' => {
                    self.budget.charge(ITEM)?;
                    self.push(&json[copied..at])?;
                    at += 1;
                    copied = at;
                }
                _ => at += 1,
            }
        }
        self.push(&json[copied..])
    }
}
