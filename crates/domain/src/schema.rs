//! Named schemas of the OpenAPI document: the enumerations of the domain, and the values that many bodies share.
//! The document lists the same words that the code uses.

use std::borrow::Cow;

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        ObjectBuilder, RefOr, Schema, Type,
        schema::{AdditionalProperties, SchemaType},
    },
};

use crate::{
    alert::AlertKind,
    definition::{Method, OnUndo, Policy},
    drawing::DiagramFormat,
    reply_to::REPLIES,
    step::StepStatus,
    task::TaskStatus,
    view::LabelsView,
};

/// Declares the schema of a type whose values are words.
#[macro_export]
macro_rules! words {
    ($($type:ty = $name:literal, $about:literal, $words:expr;)*) => {
        $(
            impl utoipa::PartialSchema for $type {
                fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                    $crate::one_of_words($about, $words)
                }
            }

            impl utoipa::ToSchema for $type {
                fn name() -> std::borrow::Cow<'static, str> {
                    $name.into()
                }
            }
        )*
    };
}

/// For [`words`].
pub fn one_of_words(about: &str, words: impl IntoIterator<Item = &'static str>) -> RefOr<Schema> {
    let words: Vec<_> = words.into_iter().collect();
    let schema = ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(about))
        .enum_values(Some(words));
    schema.build().into()
}

/// What happens when an undo step has no retries left.
pub struct UndoPolicy;
/// What happens when the task's own complete-by passes.
pub struct DeadlinePolicy;
/// The events that a submitter can receive about a task.
pub struct ReplyEvent;

fn policies(allowed: &'static [Policy]) -> impl Iterator<Item = &'static str> {
    allowed.iter().map(|policy| policy.as_str())
}

words! {
    TaskStatus = "TaskState", "The state of a task",
        TaskStatus::ALL.iter().map(|word| word.as_str());
    StepStatus = "StepState", "The state of a step",
        StepStatus::ALL.iter().map(|word| word.as_str());
    Method = "Method", "The method of a request",
        Method::ALL.iter().map(|word| word.as_str());
    DiagramFormat = "PictureFormat", "The format of a diagram",
        DiagramFormat::ALL.iter().map(|word| word.as_str());
    AlertKind = "AlertKind", "The cause of an alert",
        AlertKind::ALL.iter().map(|word| word.as_str());
    ReplyEvent = "ReplyEvent", "An event about a task",
        REPLIES;
    Policy = "Policy",
        "`error` stops the task until an operator acts, `undo` undoes the whole task, `skip` continues without the step",
        Policy::ALL.iter().map(|word| word.as_str());
    UndoPolicy = "UndoPolicy",
        "`error` stops the task until an operator acts, `skip` leaves the effect of the step",
        policies(&[Policy::Error, Policy::Skip]);
    DeadlinePolicy = "DeadlinePolicy",
        "`error` stops the task until an operator acts, `undo` undoes the whole task",
        policies(&[Policy::Error, Policy::Undo]);
    OnUndo = "OnUndo",
        "`wait` for a call in flight until its complete-by, so that its outcome is known, or `drop` it at once",
        OnUndo::ALL.iter().map(|word| word.as_str());
}

/// Any JSON value.
pub struct Json;

impl PartialSchema for Json {
    fn schema() -> RefOr<Schema> {
        let schema = ObjectBuilder::new()
            .schema_type(SchemaType::AnyValue)
            .description(Some("Any JSON value"))
            .examples([serde_json::json!({"id": "ch_1"})]);
        schema.build().into()
    }
}

impl ToSchema for Json {}

/// A duration, as [`super::Span`] parses it.
pub struct DurationText;

/// The syntax that [`super::Span::parse`] accepts.
pub const DURATION: &str = "^([0-9]+(ms|s|m|h|d))+$";

impl PartialSchema for DurationText {
    fn schema() -> RefOr<Schema> {
        let schema = ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some(
                "A duration: `250ms`, `30s`, `15m`, `24h`, `30d`, or several units as in `1h30m`",
            ))
            .pattern(Some(DURATION))
            .examples(["30s"]);
        schema.build().into()
    }
}

impl ToSchema for DurationText {
    fn name() -> Cow<'static, str> {
        "Duration".into()
    }
}

/// The most labels of a task.
pub const MOST_LABELS: usize = 32;
/// The longest key, label name or label value.
pub const LONGEST_NAME: usize = 255;

impl PartialSchema for LabelsView<'_> {
    fn schema() -> RefOr<Schema> {
        let text = || {
            ObjectBuilder::new()
                .schema_type(Type::String)
                .max_length(Some(LONGEST_NAME))
        };
        // A colon separates name and value in `?label=`.
        let name = text().pattern(Some("^[^:]*$")).build();
        let schema = ObjectBuilder::new()
            .schema_type(Type::Object)
            .description(Some("Names and values by which tasks can be found"))
            .property_names(Some(name))
            .additional_properties(Some(AdditionalProperties::from(text())))
            .max_properties(Some(MOST_LABELS))
            .examples([serde_json::json!({"customer": "acme"})]);
        schema.build().into()
    }
}

impl ToSchema for LabelsView<'_> {
    fn name() -> Cow<'static, str> {
        "Labels".into()
    }
}

/// A label for filtering tasks.
pub struct LabelFilter;

impl PartialSchema for LabelFilter {
    fn schema() -> RefOr<Schema> {
        let schema = ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("A label's name and value, with a colon between them"))
            .pattern(Some("^[^:]+:"))
            .examples(["customer:acme"]);
        schema.build().into()
    }
}

impl ToSchema for LabelFilter {}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, string::string_regex};

    use super::*;
    use crate::time::Span;

    /// What matches the pattern, in numbers that are no longer than ten years.
    fn durations() -> impl Strategy<Value = String> {
        let pattern = DURATION.trim_matches(['^', '$']);
        let short = pattern
            .replace("[0-9]+", "[0-9]{1,3}")
            .replace(")+", "){1,3}");
        string_regex(&short).unwrap()
    }

    proptest! {
        #[test]
        fn what_matches_the_pattern_is_read_as_a_duration(text in durations()) {
            prop_assert!(Span::parse(&text).is_some(), "{text}");
        }
    }
}
