//! A string with expressions in it.

use minijinja::Value;

use super::{Reads, RenderError, Scope, engine::Code, path::Path, scan, write};
use crate::domain::Payload;

/// A string: literal, exactly one `{{ expression }}` (which keeps its type where the place has types),
/// or text with expressions inside.
#[derive(Debug)]
pub struct Template(Kind);

#[derive(Debug)]
enum Kind {
    Literal(Box<str>),
    Whole(Code),
    Mixed(Box<[Part]>),
}

#[derive(Debug)]
enum Part {
    Literal(Box<str>),
    Code(Code),
}

/// How a value is written into its surroundings.
type Interpolate = fn(&Value, &str, &mut String) -> Result<(), RenderError>;

impl Template {
    pub fn literal(text: &str) -> Self {
        Self(Kind::Literal(text.into()))
    }

    /// The error says what is wrong with the source and how to mend it.
    pub fn parse(source: &str) -> Result<Self, String> {
        if !is_template(source) {
            return Ok(Self::literal(source));
        }
        let mut parts = Vec::new();
        for piece in scan::pieces(source)? {
            parts.push(match piece {
                scan::Piece::Literal(text) => Part::Literal(text.into()),
                scan::Piece::Code(code) => Part::Code(Code::parse(code)?),
            });
        }
        Ok(Self(match <[Part; 1]>::try_from(parts) {
            Ok([Part::Code(code)]) => Kind::Whole(code),
            Ok([Part::Literal(text)]) => Kind::Literal(text),
            Err(parts) => Kind::Mixed(parts.into()),
        }))
    }

    /// A string stands as it is, anything else as JSON.
    pub fn render_text(&self, scope: &Scope<'_>) -> Result<String, RenderError> {
        self.render_with(scope, write_text)
    }

    /// Values are percent-encoded, so that data can neither add a segment or a query to a URL nor end
    /// it. Only a text, a number or a boolean can stand in a path.
    pub fn render_path(&self, scope: &Scope<'_>) -> Result<String, RenderError> {
        self.render_with(scope, write_path)
    }

    fn render_with(&self, scope: &Scope<'_>, write: Interpolate) -> Result<String, RenderError> {
        let mut out = String::new();
        match &self.0 {
            Kind::Literal(text) => out.push_str(text),
            Kind::Whole(code) => write(&code.evaluate(scope)?, code.source(), &mut out)?,
            Kind::Mixed(parts) => {
                for part in parts {
                    match part {
                        Part::Literal(text) => write::text(text, text, &mut out)?,
                        Part::Code(code) => write(&code.evaluate(scope)?, code.source(), &mut out)?,
                    }
                }
            }
        }
        Ok(out)
    }

    /// Appends this template's value as JSON.
    pub(super) fn render_json(
        &self,
        scope: &Scope<'_>,
        out: &mut String,
    ) -> Result<(), RenderError> {
        match &self.0 {
            Kind::Whole(code) => match whole_document(code.path(), scope) {
                Some(document) => write::text(document.as_json(), code.source(), out),
                None => write::json(&code.evaluate(scope)?, code.source(), out),
            },
            Kind::Literal(text) => write::json(&Value::from(&**text), text, out),
            Kind::Mixed(_) => {
                let text = self.render_text(scope)?;
                write::json(&Value::from(text), "the rendered text", out)
            }
        }
    }

    /// What all expressions in it look at.
    pub fn reads(&self) -> Reads {
        let mut reads = Reads::default();
        for code in self.codes() {
            reads.extend(code.reads());
        }
        reads
    }

    /// The literal text, with `hole` where the expressions are.
    pub fn outline(&self, hole: &str) -> String {
        match &self.0 {
            Kind::Literal(text) => text.to_string(),
            Kind::Whole(_) => hole.to_owned(),
            Kind::Mixed(parts) => parts
                .iter()
                .map(|part| match part {
                    Part::Literal(text) => text,
                    Part::Code(_) => hole,
                })
                .collect(),
        }
    }

    pub fn is_literal(&self) -> bool {
        matches!(self.0, Kind::Literal(_))
    }

    fn codes(&self) -> impl Iterator<Item = &Code> {
        let (one, parts) = match &self.0 {
            Kind::Whole(code) => (Some(code), &[][..]),
            Kind::Mixed(parts) => (None, &**parts),
            Kind::Literal(_) => (None, &[][..]),
        };
        one.into_iter()
            .chain(parts.iter().filter_map(|part| match part {
                Part::Code(code) => Some(code),
                Part::Literal(_) => None,
            }))
    }
}

/// Whether a string holds anything but literal text.
pub(super) fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("{%") || text.contains("{#")
}

fn whole_document<'a>(path: Option<&Path>, scope: &Scope<'a>) -> Option<&'a Payload> {
    path?.whole(scope)
}

fn write_text(value: &Value, expression: &str, out: &mut String) -> Result<(), RenderError> {
    match value.as_str() {
        Some(text) => write::text(text, expression, out),
        None => write::json(value, expression, out),
    }
}

fn write_path(value: &Value, expression: &str, out: &mut String) -> Result<(), RenderError> {
    let refused = |what: &str| {
        Err(RenderError::new(
            expression,
            format!("{what} cannot stand in a path; it takes a text, a number or a boolean"),
        ))
    };
    if value.is_none() {
        return refused("null");
    }
    let mut text = String::new();
    write_text(value, expression, &mut text)?;
    if value.as_object().is_some() {
        return refused("a list or an object");
    }
    if text.is_empty() {
        // `/orders/` often means all of them.
        return refused("an empty text");
    }
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            write::text(char::from(byte).encode_utf8(&mut [0; 4]), expression, out)?;
        } else {
            write::text(&format!("%{byte:02X}"), expression, out)?;
        }
    }
    Ok(())
}
