//! Every column that is loaded is read.

use std::{cell::RefCell, collections::BTreeSet};

use uuid::Uuid;

use super::{Columns, Loading, own_claim, step::step, task::task};
use crate::domain::task::{StepStatus, TaskStatus};
use crate::store::{
    CompiledDefinitions, StoreError,
    record::{DetailsRow, NewTaskRow, SqlColumn, StepRow, TaskRow, loaded_names},
};

/// A row in some state, which records the columns that were read.
struct AskedRow {
    state: &'static str,
    asked: RefCell<BTreeSet<String>>,
}

impl Columns for AskedRow {
    fn text(&self, column: &str) -> Result<Option<String>, StoreError> {
        self.asked.borrow_mut().insert(column.to_owned());
        let text = match column {
            "state" => self.state,
            "error" | "last_fault" => {
                r#"{"kind": "transient", "message": "busy", "at": "2026-01-01T00:00:00Z"}"#
            }
            "steps" => r#"[{"name": "charge", "agent": "payments"}]"#,
            "labels" => "{}",
            "trace_id" => "1",
            "workflow" | "locked_by" | "claimed_by" => "shop",
            "input" | "body" | "output" => "null",
            _ => return Ok(None),
        };
        Ok(Some(text.to_owned()))
    }

    fn integer(&self, column: &str) -> Result<Option<i64>, StoreError> {
        self.asked.borrow_mut().insert(column.to_owned());
        Ok(Some(1))
    }

    fn uuid(&self, column: &str) -> Result<Option<Uuid>, StoreError> {
        self.asked.borrow_mut().insert(column.to_owned());
        Ok(Some(Uuid::nil()))
    }

    fn flag(&self, column: &str) -> Result<bool, StoreError> {
        self.asked.borrow_mut().insert(column.to_owned());
        Ok(false)
    }
}

/// Reads a row in each state, and returns the columns that were read.
fn asked(states: impl Iterator<Item = &'static str>, read: impl Fn(&AskedRow)) -> BTreeSet<String> {
    let rows = states.map(|state| AskedRow {
        state,
        asked: RefCell::default(),
    });
    rows.flat_map(|row| {
        read(&row);
        row.asked.into_inner()
    })
    .collect()
}

fn loaded(columns: &[&[SqlColumn]], but_for: &[&str]) -> BTreeSet<String> {
    let names = loaded_names(columns).replace('"', "");
    let names = names.split(", ").filter(|name| !but_for.contains(name));
    names.map(str::to_owned).collect()
}

#[test]
fn every_column_of_a_step_that_is_loaded_is_read() {
    let asked = asked(StepStatus::ALL.iter().map(|s| s.as_str()), |row| {
        step(row).unwrap();
    });
    // The rows of a task are sorted by these two columns.
    assert_eq!(asked, loaded(&[StepRow::COLUMNS], &["task_id", "idx"]));
}

#[test]
fn every_column_of_a_task_that_is_loaded_is_read() {
    let definitions = CompiledDefinitions::new(std::num::NonZeroUsize::MIN);
    let asked = asked(TaskStatus::ALL.iter().map(|s| s.as_str()), |row| {
        let loading = Loading::<AskedRow>::new(Vec::new(), &definitions);
        task(row, loading.definition(row).unwrap()).unwrap();
        own_claim(row).unwrap();
    });
    let columns = [TaskRow::COLUMNS, NewTaskRow::COLUMNS, DetailsRow::COLUMNS];
    assert_eq!(asked, loaded(&columns, &["task_id"]));
}
