//! Reads the values of one row by the names of its columns, the same for every database.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use sqlx::{Row as _, postgres::PgRow};
use uuid::Uuid;

use crate::domain::{
    agent::AgentSpec,
    task::{StepStatus, TaskStatus, Turn},
    template::Payload,
    values::{
        AgentName, Attempt, Destination, Fault, Incarnation, InstanceId, Priority, ReceiverName,
        Span, StepIndex, StepName, TaskId, Term, Timestamp, WorkerName, WorkflowName,
    },
};
use crate::store::{
    AlertId, AlertState, BulkJobId, MessageId, MessageState, StoreError, error::corrupt,
    sqlite::SqliteRow,
};

/// One row, whose values are read by the names of its columns.
pub trait Columns {
    fn text(&self, column: &str) -> Result<Option<String>, StoreError>;
    fn integer(&self, column: &str) -> Result<Option<i64>, StoreError>;
    fn uuid(&self, column: &str) -> Result<Option<Uuid>, StoreError>;
    fn flag(&self, column: &str) -> Result<bool, StoreError>;

    /// Returns the value of a column, as an `Option` if it may be NULL.
    fn get<T: FromColumn>(&self, column: &str) -> Result<T, StoreError>
    where
        Self: Sized,
    {
        T::get(self, column)
    }
}

impl Columns for PgRow {
    fn text(&self, column: &str) -> Result<Option<String>, StoreError> {
        Ok(self.try_get(column)?)
    }

    fn integer(&self, column: &str) -> Result<Option<i64>, StoreError> {
        Ok(self.try_get(column)?)
    }

    fn uuid(&self, column: &str) -> Result<Option<Uuid>, StoreError> {
        Ok(self.try_get(column)?)
    }

    fn flag(&self, column: &str) -> Result<bool, StoreError> {
        Ok(self.try_get(column)?)
    }
}

/// A row of any of the databases.
pub enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

macro_rules! of_either_row {
    ($($kind:ident -> $Type:ty),*) => {
        impl Columns for Row {
            $(fn $kind(&self, column: &str) -> Result<$Type, StoreError> {
                match self {
                    Row::Sqlite(row) => row.$kind(column),
                    Row::Postgres(row) => row.$kind(column),
                }
            })*
        }
    };
}

of_either_row!(text -> Option<String>, integer -> Option<i64>, uuid -> Option<Uuid>, flag -> bool);

/// A type to which the value of a column can be converted.
pub trait FromColumn: Sized {
    fn read(row: &impl Columns, column: &str) -> Result<Option<Self>, StoreError>;

    fn get(row: &impl Columns, column: &str) -> Result<Self, StoreError> {
        required(Self::read(row, column)?, column)
    }
}

impl<T: FromColumn> FromColumn for Option<T> {
    fn read(row: &impl Columns, column: &str) -> Result<Option<Self>, StoreError> {
        T::read(row, column).map(Some)
    }

    fn get(row: &impl Columns, column: &str) -> Result<Self, StoreError> {
        T::read(row, column)
    }
}

macro_rules! read_as {
    ($(|$row:ident, $column:ident| $read:expr => $($Type:ty),*;)*) => { $($(
        impl FromColumn for $Type {
            fn read($row: &impl Columns, $column: &str) -> Result<Option<Self>, StoreError> {
                $read
            }
        }
    )*)* };
}

read_as! {
    |row, column| row.text(column) => String;
    |row, column| row.integer(column) => i64;
    |row, column| row.uuid(column) => Uuid;
    |row, column| row.flag(column).map(Some) => bool;
    |row, column| Ok(row.text(column)?.map(Self::new)) =>
        AgentName, Destination, InstanceId, ReceiverName, StepName, WorkerName, WorkflowName;
    |row, column| Ok(row.text(column)?.map(Self::from)) => Arc<str>;
    |row, column| Ok(row.uuid(column)?.map(Self)) => TaskId, AlertId, BulkJobId, MessageId, Incarnation;
    |row, column| Ok(row.get::<Option<_>>(column)?.map(Self)) => Attempt, StepIndex, Term;
    |row, column| Ok(row.integer(column)?.map(Self::from_millis)) => Timestamp;
    |row, column| Ok(row.get::<Option<_>>(column)?.map(Self::from_millis)) => Span;
    |row, column| row.text(column)?.map(|word| {
        Self::parse(&word).ok_or_else(|| corrupt(format!("{column} {word}")))
    }).transpose() => TaskStatus, StepStatus, AlertState, MessageState;
    |row, column| row.integer(column)?.map(|number| {
        Self::try_from(number).map_err(|_| corrupt(format!("{column} is {number}")))
    }).transpose() => u8, u16, u32, u64, usize;
    |row, column| row.integer(column)?.map(|number| {
        Self::new(number).ok_or_else(|| corrupt(format!("{column} is {number}")))
    }).transpose() => Priority;
    |row, column| Ok(row.integer(column)?.map(Self::from_millis)) => Turn;
    |row, column| row.text(column)?.map(|text| {
        Self::parse(text).ok_or_else(|| corrupt(format!("{column} is not JSON")))
    }).transpose() => Payload;
    |row, column| json(row, column) => AgentSpec, Fault, Box<RawValue>;
}

/// Returns the value of a column with JSON, or `None` if it is NULL.
pub fn json<T: DeserializeOwned>(
    row: &impl Columns,
    column: &str,
) -> Result<Option<T>, StoreError> {
    let text = row.text(column)?;
    text.map(|text| serde_json::from_str(&text).map_err(corrupt))
        .transpose()
}

pub(super) fn required<T>(value: Option<T>, column: &str) -> Result<T, StoreError> {
    value.ok_or_else(|| corrupt(format!("{column} is missing")))
}
