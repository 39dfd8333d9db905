//! A statement for any database, with the values that are bound to it.

use uuid::Uuid;

use super::{AlertId, BulkJobId, MessageId};
use crate::domain::{
    task::Turn,
    values::{
        AgentName, Attempt, Destination, InstanceId, ReceiverName, StepIndex, StepName, TaskId,
        Timestamp, WorkerName, WorkflowName,
    },
};

/// A statement with its values.
pub struct Statement {
    pub sql: String,
    pub values: Vec<BindValue>,
}

pub enum BindValue {
    Text(Option<String>),
    Integer(Option<i64>),
    Uuid(Option<Uuid>),
}

impl Statement {
    pub fn new(sql: impl Into<String>) -> Self {
        Self {
            sql: sql.into(),
            values: Vec::new(),
        }
    }

    pub fn bind(mut self, value: impl Into<BindValue>) -> Self {
        self.values.push(value.into());
        self
    }

    /// Appends `sql`, in which `?` is replaced by the value's parameter.
    pub(super) fn push(&mut self, sql: &str, value: impl Into<BindValue>) {
        self.values.push(value.into());
        let number = format!("${}", self.values.len());
        self.sql.push_str(&sql.replace('?', &number));
    }
}

/// A type whose values, or NULL, can be bound to a statement.
pub trait Bindable: Sized {
    fn bound(value: Option<Self>) -> BindValue;
}

impl<T: Bindable> From<T> for BindValue {
    fn from(value: T) -> Self {
        T::bound(Some(value))
    }
}

impl<T: Bindable> From<Option<T>> for BindValue {
    fn from(value: Option<T>) -> Self {
        T::bound(value)
    }
}

macro_rules! bindable {
    ($($Type:ty, $Kind:ident: |$value:ident| $bound:expr;)*) => { $(
        impl Bindable for $Type {
            fn bound(value: Option<Self>) -> BindValue {
                BindValue::$Kind(value.map(|$value| $bound))
            }
        }
    )* };
}

bindable! {
    String, Text: |text| text;
    &str, Text: |text| text.to_owned();
    &AgentName, Text: |name| name.to_string();
    &Destination, Text: |name| name.to_string();
    &WorkerName, Text: |name| name.to_string();
    &InstanceId, Text: |name| name.to_string();
    &ReceiverName, Text: |name| name.to_string();
    &StepName, Text: |name| name.to_string();
    &WorkflowName, Text: |name| name.to_string();
    bool, Integer: |flag| flag.into();
    i64, Integer: |number| number;
    u32, Integer: |number| number.into();
    u64, Integer: |number| i64::try_from(number).unwrap_or(i64::MAX);
    usize, Integer: |number| i64::try_from(number).unwrap_or(i64::MAX);
    Attempt, Integer: |attempt| attempt.0.into();
    Turn, Integer: |turn| turn.as_millis();
    StepIndex, Integer: |step| step.0.into();
    Timestamp, Integer: |at| at.as_millis();
    Uuid, Uuid: |id| id;
    AlertId, Uuid: |id| id.0;
    BulkJobId, Uuid: |id| id.0;
    MessageId, Uuid: |id| id.0;
    TaskId, Uuid: |id| id.0;
}
