//! Named schemas of the OpenAPI document that only the API has: enumerations, and the filter for labels. Those of the
//! words that the domain has are in [`crate::domain::view`].

use std::borrow::Cow;

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{ObjectBuilder, Ref, RefOr, Schema, Type},
};

use crate::domain::definition::Policy;
// The shapes of requests have these under other names.
pub use crate::domain::{
    agent::BreakerAction as BreakerActionSchema,
    definition::{
        AskFieldKind as AskFieldTypeSchema, EarlySignal as EarlySignalSchema,
        Method as MethodSchema, OnChildError as OnChildErrorSchema, OnConflict as OnConflictSchema,
        OnParentUndo as OnParentUndoSchema, OnUndo as OnUndoSchema, Policy as PolicySchema,
        RaceRest as RaceRestSchema, RepeatOutput as RepeatOutputSchema,
        ReplyMode as ReplyModeSchema, StopState as StopStateSchema,
    },
    schedule::{CatchUp as CatchUpSchema, Dst as DstSchema, Overlap as OverlapSchema},
    task::TaskStatus as TaskStateSchema,
    template::Payload as JsonSchema,
    view::{DurationSchema, LabelsSchema},
};

/// Declares the schema of a type whose values are words.
macro_rules! words {
    ($($type:ty = $name:literal, $about:literal, $words:expr;)*) => {
        $(
            impl utoipa::PartialSchema for $type {
                fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                    $crate::domain::view::words_schema($about, $words)
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
pub(in crate::api) use words;

/// The actions when an undo step has no retries left.
pub struct UndoPolicySchema;
/// The actions after an error with a certain status.
pub struct StatusPolicySchema;
/// The actions after an error of an undo with a certain status.
pub struct UndoStatusPolicySchema;
/// The actions when the task's own complete-by passes.
pub struct DeadlinePolicySchema;
/// The states of a schedule.
pub struct ScheduleStatusSchema;
/// The ways in which the runs of a backfill may overlap.
pub struct BackfillOverlapSchema;

fn policies(allowed: &'static [Policy]) -> impl Iterator<Item = &'static str> {
    allowed.iter().map(|policy| policy.as_str())
}

words! {
    BackfillOverlapSchema = "BackfillOverlap", "`queue`, the default: one after the other; `allow`: all at once", ["queue", "allow"];
    ScheduleStatusSchema = "ScheduleState", "`active`: it fires; `paused`: an operator has paused it; `ended`: it fires no more; `unreadable`: its record is damaged", ["active", "paused", "ended", "unreadable"];
    UndoPolicySchema = "UndoPolicy", "`error` stops the task until an operator acts, `skip` leaves the effect of the step", policies(&[Policy::Error, Policy::Skip]);
    StatusPolicySchema = "StatusPolicy", "as `Policy`; `success` counts the error as a success", policies(Policy::ALL).chain(["success"]);
    UndoStatusPolicySchema = "UndoStatusPolicy", "as `UndoPolicy`; `success` counts the error as a success", policies(&[Policy::Error, Policy::Skip]).chain(["success"]);
    DeadlinePolicySchema = "DeadlinePolicy", "`error` stops the task until an operator acts, `undo` undoes the whole task", policies(&[Policy::Error, Policy::Undo]);
}

/// The pattern of the names of policies by status.
pub const STATUS_NAME: &str = "^(else|[1-5](xx|[0-9]{2}))$";

/// The policies of a step by the status of a response.
pub struct StatusPoliciesSchema;
/// The policies of an undo by the status of a response.
pub struct UndoStatusPoliciesSchema;

fn by_status<T: ToSchema>(about: &str) -> RefOr<Schema> {
    let names = ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(STATUS_NAME));
    let policy = Ref::from_schema_name(T::name());
    let schema = ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some(about))
        .property_names(Some(names.build()))
        .additional_properties(Some(policy))
        .examples([serde_json::json!({ "404": "skip", "5xx": "error" })]);
    schema.build().into()
}

macro_rules! by_status {
    ($($type:ty = $name:literal, $policy:ty, $about:literal;)*) => {
        $(
            impl PartialSchema for $type {
                fn schema() -> RefOr<Schema> {
                    by_status::<$policy>($about)
                }
            }

            impl ToSchema for $type {
                fn name() -> Cow<'static, str> {
                    $name.into()
                }

                fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
                    schemas.push((<$policy>::name().into_owned(), <$policy>::schema()));
                    <$policy>::schemas(schemas);
                }
            }
        )*
    };
}

by_status! {
    StatusPoliciesSchema = "StatusPolicies", StatusPolicySchema, "Policies by the status of a response: for statuses such as `404`, for classes such as `4xx`, and `else` for all others";
    UndoStatusPoliciesSchema = "UndoStatusPolicies", UndoStatusPolicySchema, "Policies of an undo by the status of a response, as `StatusPolicies`";
}

/// A label for filtering tasks.
pub struct LabelFilterSchema;

impl PartialSchema for LabelFilterSchema {
    fn schema() -> RefOr<Schema> {
        let schema = ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("A label's name and value, with a colon between them"))
            .pattern(Some("^[^:]+:"))
            .examples(["customer:acme"]);
        schema.build().into()
    }
}

impl ToSchema for LabelFilterSchema {
    fn name() -> Cow<'static, str> {
        "LabelFilter".into()
    }
}
