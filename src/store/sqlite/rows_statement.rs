//! Statements over many rows. Each is kept in a few sizes, so that it is prepared once and then found
//! again: preparing again would cost more than the rows do. A form that is larger than its rows is
//! filled up with NULLs, which the statement passes over.

use std::{
    cell::RefCell,
    pin::pin,
    sync::{Arc, OnceLock},
    task::Poll,
};

use sqlx::{
    Arguments, AssertSqlSafe, SqlSafeStr, SqlStr, SqliteConnection, sqlite::SqliteArguments,
};
use uuid::Uuid;

use crate::store::{
    StoreError,
    record::{SqlColumn, names, set_all},
};

/// Numbers of rows that have a form of their own. The next larger one is at most half again as large.
const SIZES: [usize; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];

/// The most rows of one go.
const MOST_ROWS: usize = SIZES[SIZES.len() - 1];

/// SQL with room for rows of these columns.
pub struct RowsStatement {
    sql: &'static str,
    columns: &'static [&'static [SqlColumn]],
    forms: [OnceLock<SqlStr>; SIZES.len()],
}

impl RowsStatement {
    /// In the SQL stand `{columns}`, `{rows}`, and where all but the two key columns of the first record are set,
    /// `{excluded}` or `{new}`.
    pub const fn new(sql: &'static str, columns: &'static [&'static [SqlColumn]]) -> Self {
        Self {
            sql,
            columns,
            forms: [const { OnceLock::new() }; SIZES.len()],
        }
    }

    /// Takes in all rows, in as few goes as the largest form allows.
    pub fn over<T: Clone>(
        &self,
        rows: impl Iterator<Item = T> + Clone,
        write: impl Fn(&mut Rows, T),
    ) -> Vec<Filled> {
        let mut filled = Vec::new();
        let mut rows = rows.peekable();
        while rows.peek().is_some() {
            let mut values = Rows::default();
            let expected = rows.clone().take(MOST_ROWS).count();
            values.0.reserve(expected * self.width(), 0);
            let mut count = 0;
            for row in rows.by_ref().take(MOST_ROWS) {
                write(&mut values, row);
                count += 1;
            }
            filled.push(Filled {
                sql: self.sql(count),
                values,
            });
        }
        filled
    }

    fn width(&self) -> usize {
        self.columns.iter().map(|columns| columns.len()).sum()
    }

    /// The smallest form for so many rows.
    fn sql(&self, rows: usize) -> SqlStr {
        let at = SIZES.partition_point(|size| *size < rows);
        let at = at.min(SIZES.len() - 1);
        let form = self.forms[at].get_or_init(|| {
            let row = format!("({})", vec!["?"; self.width()].join(","));
            let rows = vec![row; SIZES[at]].join(",");
            let set = self.columns[0].iter().enumerate().skip(2);
            let new = set.map(|(at, (name, _))| format!("{name} = new.column{}", at + 1));
            let sql = self
                .sql
                .replace("{columns}", &names(self.columns))
                .replace("{rows}", &rows)
                .replace("{excluded}", &set_all(&self.columns[0][2..], "excluded"))
                .replace("{new}", &new.collect::<Vec<_>>().join(", "));
            // Made of this program's own text alone; every value is bound.
            AssertSqlSafe(Arc::<str>::from(sql)).into_sql_str()
        });
        form.clone()
    }
}

/// Rows on their way into a statement, value by value.
#[derive(Default)]
pub struct Rows(SqliteArguments);

impl Rows {
    pub fn id(&mut self, id: Uuid) {
        self.add(id.into_bytes().to_vec());
    }

    pub fn maybe_id(&mut self, id: Option<Uuid>) {
        self.add(id.map(|id| id.into_bytes().to_vec()));
    }

    /// What is shared already is not copied: the connection has a thread of its own, and memory that one
    /// thread asks for and another gives back costs more than the row.
    pub fn text(&mut self, text: impl Into<Arc<str>>) {
        self.add(text.into());
    }

    pub fn maybe_text(&mut self, text: Option<impl Into<Arc<str>>>) {
        self.add(text.map(Into::into));
    }

    /// A word that the program itself says, such as a state.
    pub fn word(&mut self, word: &'static str) {
        self.add(shared(word));
    }

    pub fn number(&mut self, number: i64) {
        self.add(number);
    }

    pub fn maybe_number(&mut self, number: Option<i64>) {
        self.add(number);
    }

    fn add<'t>(
        &mut self,
        value: impl sqlx::Encode<'t, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite> + 't,
    ) {
        // Text, bytes and integers encode without fail.
        let _ = self.0.add(value);
    }
}

/// The program's words, each made once. There are few, and each is bound again and again.
fn shared(word: &'static str) -> Arc<str> {
    thread_local! {
        static WORDS: RefCell<Vec<Arc<str>>> = const { RefCell::new(Vec::new()) };
    }
    WORDS.with_borrow_mut(|words| {
        if let Some(known) = words.iter().find(|known| &***known == word) {
            return known.clone();
        }
        let new: Arc<str> = word.into();
        words.push(new.clone());
        new
    })
}

/// A statement with its rows, ready to be run.
pub struct Filled {
    sql: SqlStr,
    values: Rows,
}

/// Runs statements one after the other; answers how many rows they affected.
pub async fn run(tx: &mut SqliteConnection, statements: Vec<Filled>) -> Result<u64, StoreError> {
    let mut affected = 0;
    for Filled { sql, values } in statements {
        let done = sqlx::query_with(sql, values.0).execute(&mut *tx).await?;
        affected += done.rows_affected();
    }
    Ok(affected)
}

/// [`run`], and `prepare` while the connection's thread is at it.
pub async fn run_and<T>(
    tx: &mut SqliteConnection,
    statements: Vec<Filled>,
    prepare: impl FnOnce() -> T,
) -> Result<(u64, T), StoreError> {
    let mut running = pin!(run(tx, statements));
    // Polled once, it has handed the first statement over.
    let begun = futures::poll!(running.as_mut());
    let prepared = prepare();
    let affected = match begun {
        Poll::Ready(done) => done,
        Poll::Pending => running.await,
    };
    Ok((affected?, prepared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_has_room_for_its_rows_and_is_made_once() {
        static PAIRS: RowsStatement = RowsStatement::new(
            "({columns}) VALUES {rows};",
            &[&[("first", "bigint"), ("second", "bigint")]],
        );
        assert_eq!(PAIRS.sql(1).as_str(), "(first, second) VALUES (?,?);");
        let three = PAIRS.sql(3);
        assert!(three.as_str().ends_with(" VALUES (?,?),(?,?),(?,?);"));
        assert_eq!(PAIRS.sql(5).as_str().matches("(?,?)").count(), 6);
        let most = PAIRS.sql(MOST_ROWS);
        assert_eq!(most.as_str().matches("(?,?)").count(), MOST_ROWS);
        assert!(std::ptr::eq(PAIRS.sql(5).as_str(), PAIRS.sql(6).as_str()));
    }

    #[test]
    fn rows_beyond_the_largest_form_go_in_another_go() {
        static PAIRS: RowsStatement =
            RowsStatement::new("VALUES {rows}", &[&[("one", "bigint"), ("two", "bigint")]]);
        let filled = PAIRS.over(0..MOST_ROWS as i64 + 2, |rows, n| {
            rows.number(n);
            rows.number(n);
        });
        let forms: Vec<_> = filled
            .iter()
            .map(|go| go.sql.as_str().matches("(?,?)").count())
            .collect();
        assert_eq!(forms, [MOST_ROWS, 2]);
    }
}
