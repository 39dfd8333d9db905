//! A string with expressions in it.

use super::{
    Origin, Reads, RenderError, Scope,
    code::Code,
    eval_error::{EvalResult, other},
    scan,
    texts::percent_encode,
    value::Value,
    write::Out,
};

/// A string: literal, exactly one `{{ expression }}` (which keeps its type in a JSON document), or text with
/// expressions in it.
#[derive(Debug)]
pub struct Template(TemplateKind);

#[derive(Debug)]
enum TemplateKind {
    Literal(Box<str>),
    Whole(Code),
    Mixed(Box<[TemplatePart]>),
}

#[derive(Debug)]
enum TemplatePart {
    Literal(Box<str>),
    Code(Code),
}

/// Writes a value into the text around it.
type Interpolate = for<'v> fn(Value<'v>, &mut Out<'_>) -> EvalResult<()>;

impl Template {
    pub fn literal(text: &str) -> Self {
        Self(TemplateKind::Literal(text.into()))
    }

    /// Parses a template. The error describes the fault of the source, and the remedy.
    pub fn parse(source: &str, origin: Origin<'_>) -> Result<Self, String> {
        if !is_template(source) {
            return Ok(Self::literal(source));
        }
        let mut parts = Vec::new();
        for piece in scan::pieces(source)? {
            parts.push(match piece {
                scan::Piece::Literal(text) => TemplatePart::Literal(text.into()),
                scan::Piece::Code(code) => TemplatePart::Code(Code::parse(code, origin)?),
            });
        }
        Ok(Self(match <[TemplatePart; 1]>::try_from(parts) {
            Ok([TemplatePart::Code(code)]) => TemplateKind::Whole(code),
            Ok([TemplatePart::Literal(text)]) => TemplateKind::Literal(text),
            Err(parts) => TemplateKind::Mixed(parts.into()),
        }))
    }

    /// Renders a text: a string is written as it is, any other value as JSON.
    pub fn render_text(&self, scope: &Scope<'_>) -> Result<String, RenderError> {
        self.render_with(scope, write_text)
    }

    /// Renders a path. Values are percent-encoded, so that data can neither add a segment or a query to a URL nor end
    /// it. Only a text, a number or a boolean is allowed in a path.
    pub fn render_path(&self, scope: &Scope<'_>) -> Result<String, RenderError> {
        self.render_with(scope, write_path)
    }

    fn render_with(&self, scope: &Scope<'_>, write: Interpolate) -> Result<String, RenderError> {
        let mut out = Out::new(scope.budget);
        match &self.0 {
            TemplateKind::Literal(text) => literal(text, &mut out)?,
            TemplateKind::Whole(code) => code.with(scope, |value| write(value, &mut out))?,
            TemplateKind::Mixed(parts) => {
                for part in parts {
                    match part {
                        TemplatePart::Literal(text) => literal(text, &mut out)?,
                        TemplatePart::Code(code) => {
                            code.with(scope, |value| write(value, &mut out))?
                        }
                    }
                }
            }
        }
        Ok(out.text)
    }

    /// Appends this template's value as JSON.
    pub(super) fn render_json(
        &self,
        scope: &Scope<'_>,
        out: &mut Out<'_>,
    ) -> Result<(), RenderError> {
        let string = |text: &str, what: &str, out: &mut Out<'_>| {
            let spent = out.budget.spent();
            out.json(&Value::Text(text))
                .map_err(|trouble| RenderError::new(what, trouble.in_words(out.budget, spent)))
        };
        match &self.0 {
            TemplateKind::Whole(code) => match code.whole(scope) {
                Some(document) => {
                    let spent = out.budget.spent();
                    out.push(document.as_json()).map_err(|trouble| {
                        RenderError::new(code.source(), trouble.in_words(out.budget, spent))
                    })
                }
                None => code.with(scope, |value| out.json(&value)),
            },
            TemplateKind::Literal(text) => string(text, text, out),
            TemplateKind::Mixed(_) => string(&self.render_text(scope)?, "the rendered text", out),
        }
    }

    /// Returns whether its value is always a text, because it is not a single expression.
    pub(super) fn is_text(&self) -> bool {
        !matches!(self.0, TemplateKind::Whole(_))
    }

    /// Returns the values that all of its expressions read.
    pub fn reads(&self) -> Reads {
        let mut reads = Reads::default();
        for code in self.codes() {
            reads.extend(code.reads());
        }
        reads
    }

    /// Returns the literal text, with `hole` in place of the expressions.
    pub fn outline(&self, hole: &str) -> String {
        match &self.0 {
            TemplateKind::Literal(text) => text.to_string(),
            TemplateKind::Whole(_) => hole.to_owned(),
            TemplateKind::Mixed(parts) => parts
                .iter()
                .map(|part| match part {
                    TemplatePart::Literal(text) => text,
                    TemplatePart::Code(_) => hole,
                })
                .collect(),
        }
    }

    pub fn is_literal(&self) -> bool {
        matches!(self.0, TemplateKind::Literal(_))
    }

    fn codes(&self) -> impl Iterator<Item = &Code> {
        let (one, parts) = match &self.0 {
            TemplateKind::Whole(code) => (Some(code), &[][..]),
            TemplateKind::Mixed(parts) => (None, &**parts),
            TemplateKind::Literal(_) => (None, &[][..]),
        };
        one.into_iter()
            .chain(parts.iter().filter_map(|part| match part {
                TemplatePart::Code(code) => Some(code),
                TemplatePart::Literal(_) => None,
            }))
    }
}

/// Returns whether a string has more than literal text.
pub(super) fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("{%") || text.contains("{#")
}

fn literal(text: &str, out: &mut Out<'_>) -> Result<(), RenderError> {
    let spent = out.budget.spent();
    out.push(text)
        .map_err(|trouble| RenderError::new(text, trouble.in_words(out.budget, spent)))
}

fn write_text(value: Value<'_>, out: &mut Out<'_>) -> EvalResult<()> {
    out.interpolate(&value)
}

fn write_path(value: Value<'_>, out: &mut Out<'_>) -> EvalResult<()> {
    let refused = |what: &str| {
        other(format!(
            "{what} cannot be part of a path; use a text, a number or a boolean"
        ))
    };
    if matches!(value, Value::Null) {
        return refused("null");
    }
    if value.is_list() || value.is_map() {
        return refused("a list or an object");
    }
    let mut text = Out::new(out.budget);
    text.interpolate(&value)?;
    if text.text.is_empty() {
        // `/orders/` often means all orders.
        return refused("an empty text");
    }
    percent_encode(&text.text, "-_.~", out)
}
