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

/// A string: literal, exactly one `{{ expression }}` (which keeps its type where the position has types),
/// or text with expressions inside.
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

/// How a value is written into its surroundings.
type Interpolate = for<'v> fn(Value<'v>, &mut Out<'_>) -> EvalResult<()>;

impl Template {
    pub fn literal(text: &str) -> Self {
        Self(TemplateKind::Literal(text.into()))
    }

    /// The error says what is wrong with the source and what to write instead.
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

    /// Whether it can give nothing but a text, because there is more in it than one expression.
    pub(super) fn is_text(&self) -> bool {
        !matches!(self.0, TemplateKind::Whole(_))
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

/// Whether a string holds anything but literal text.
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
        // `/orders/` often means all of them.
        return refused("an empty text");
    }
    percent_encode(&text.text, "-_.~", out)
}
