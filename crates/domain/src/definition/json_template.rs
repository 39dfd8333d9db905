//! A field with any JSON whose texts may have expressions.

use serde_json::value::RawValue;

use crate::{
    template::{JsonTemplate, Origin, Reads, payload::Payload},
    values::fields::{FieldFault, Fields},
};

/// Returns the values that the expressions of a template read, each with the path of its field, in dots.
pub(super) fn paths(field: &str, template: &JsonTemplate) -> Vec<(String, Reads)> {
    let reads = template.reads();
    let reads =
        reads.map(|(inside, reads)| (format!("{field}{}", inside.replace('/', ".")), reads));
    reads.collect()
}

/// Reads the field, and collects the names that its expressions read.
pub(super) fn read(
    fields: &mut Fields<'_>,
    field: &str,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<JsonTemplate> {
    let raw = fields.raw(field)?;
    parse(fields, field, raw, origin, reads)
}

/// Does the same with a field that was taken before.
pub(super) fn parse(
    fields: &mut Fields<'_>,
    field: &str,
    raw: Box<RawValue>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<JsonTemplate> {
    let pointer = fields.pointer(field);
    match JsonTemplate::parse(&Payload::new(raw), origin) {
        Ok(template) => {
            let inside = template.reads();
            let inside = inside.filter(|(_, read)| !read.names.is_empty());
            reads.extend(inside.map(|(inside, read)| (format!("{pointer}{inside}"), read)));
            Some(template)
        }
        Err(faults) => {
            let faults = faults.into_iter();
            fields.extend(faults.map(|fault| {
                FieldFault::new(format!("{pointer}{}", fault.pointer), fault.message)
            }));
            None
        }
    }
}
