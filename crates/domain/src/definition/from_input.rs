//! A limit that each task gives by its input: `{ "value": "{{ input.limit }}", "max": "1h" }`. Everything that is known
//! before a task exists goes by the maximum.

use std::ops::RangeInclusive;

use crate::{
    template::{Origin, Scope, Template},
    values::{
        fields::Fields,
        time::{SPAN_FORMS, Span},
    },
};

/// A limit that an expression gives, within its bounds.
#[derive(Debug)]
pub struct FromInput<T> {
    /// The field of the step, for messages.
    field: &'static str,
    template: Template,
    least: T,
    most: T,
}

impl<T> FromInput<T> {
    fn text(&self, scope: &Scope<'_>) -> Result<String, String> {
        let text = self.template.render_text(scope);
        text.map_err(|error| format!("`{}` could not be evaluated: {error}", self.field))
    }
}

impl FromInput<Span> {
    /// Returns the limit. The error text is for an operator: the definition or the data is wrong.
    pub fn span(&self, scope: &Scope<'_>) -> Result<Span, String> {
        let text = self.text(scope)?;
        match Span::parse(&text).filter(|span| (self.least..=self.most).contains(span)) {
            Some(span) => Ok(span),
            None => Err(format!(
                "`{}` gives {}, but must give {SPAN_FORMS}, from {} to {}",
                self.field,
                shown(&text),
                self.least,
                self.most
            )),
        }
    }
}

impl FromInput<u16> {
    /// Returns the limit. The error text is for an operator: the definition or the data is wrong.
    pub fn number(&self, scope: &Scope<'_>) -> Result<u16, String> {
        let text = self.text(scope)?;
        match text
            .parse()
            .ok()
            .filter(|number| (self.least..=self.most).contains(number))
        {
            Some(number) => Ok(number),
            None => Err(format!(
                "`{}` gives {}, but must give a whole number from {} to {}",
                self.field,
                shown(&text),
                self.least,
                self.most
            )),
        }
    }
}

/// Returns a value for a message.
fn shown(text: &str) -> String {
    const LONGEST: usize = 60;
    let short: String = text.chars().take(LONGEST).collect();
    match short.len() < text.len() {
        true => format!("{short:?}…"),
        false => format!("{short:?}"),
    }
}

/// Returns whether the field is an expression without a maximum, and reports it then. `max` is an example of one.
fn is_bare(step: &mut Fields<'_>, name: &str, max: &str) -> bool {
    let is_expression =
        { step.peek(name) }.is_some_and(|value| value.starts_with('"') && value.contains("{{"));
    if is_expression {
        step.value(name);
        step.fault(
            name,
            format!("must have a maximum if it is an expression: {{ \"value\": \"{{{{ … }}}}\", \"max\": {max} }}"),
        );
    }
    is_expression
}

/// Reads a duration, or an expression that gives one. Returns the duration or the maximum, and the expression.
pub(super) fn span(
    step: &mut Fields<'_>,
    name: &'static str,
    range: RangeInclusive<Span>,
    origin: Origin<'_>,
) -> (Option<Span>, Option<FromInput<Span>>) {
    if is_bare(step, name, "\"1h\"") {
        return (None, None);
    }
    if !step.is_object(name) {
        return (step.span(name, range), None);
    }
    let least = *range.start();
    let Some(mut fields) = step.object(name) else {
        return (None, None);
    };
    let template = template(&mut fields, origin);
    let max = fields.span("max", range);
    let read = finish(step, fields, name, template, least, max);
    (max, read)
}

/// Reads a number, or an expression that gives one. Returns the number or the maximum, and the expression.
pub(super) fn number(
    step: &mut Fields<'_>,
    name: &'static str,
    range: RangeInclusive<u16>,
    origin: Origin<'_>,
) -> (Option<u16>, Option<FromInput<u16>>) {
    let (least, most) = (*range.start(), *range.end());
    let whole = i64::from(least)..=i64::from(most);
    // A number within the range is one of the type.
    let narrow = |number: i64| number as u16;
    if is_bare(step, name, "10") {
        return (None, None);
    }
    if !step.is_object(name) {
        return (step.integer(name, whole).map(narrow), None);
    }
    let Some(mut fields) = step.object(name) else {
        return (None, None);
    };
    let template = template(&mut fields, origin);
    let max = fields.integer("max", whole).map(narrow);
    let read = finish(step, fields, name, template, least, max);
    (max, read)
}

/// Reads the expression, which may read nothing but the input and what else is known of a task when it is submitted.
fn template(fields: &mut Fields<'_>, origin: Origin<'_>) -> Option<Template> {
    const REMEDY: &str = "give an expression such as \"{{ input.limit }}\"";
    if !fields.has("value") {
        fields.missing("value", REMEDY);
    }
    if !fields.has("max") {
        fields.missing(
            "max",
            "give the largest value, which holds whatever the input says",
        );
    }
    let source = fields.string("value", usize::MAX)?;
    match Template::parse(&source, origin) {
        Ok(template) => {
            let reads = template.reads();
            let mut names = reads.names.iter();
            match names.find(|name| !["input", "task"].contains(&name.as_str())) {
                Some(name) => fields.fault(
                    "value",
                    format!(
                        "`{name}` is not defined here: the expression can use `input` and `task`"
                    ),
                ),
                None if reads.names.is_empty() && matches!(origin, Origin::Submitted(_)) => {
                    fields.fault("value", format!("has no expression: {REMEDY}"));
                }
                None => return Some(template),
            }
            None
        }
        Err(message) => {
            fields.fault("value", message);
            None
        }
    }
}

fn finish<T>(
    step: &mut Fields<'_>,
    fields: Fields<'_>,
    field: &'static str,
    template: Option<Template>,
    least: T,
    max: Option<T>,
) -> Option<FromInput<T>> {
    if let Err(faults) = fields.finish() {
        step.extend(faults);
        return None;
    }
    Some(FromInput {
        field,
        template: template?,
        least,
        most: max?,
    })
}
