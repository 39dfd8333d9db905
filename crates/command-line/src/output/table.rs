//! Aligned columns within the width of the terminal: sentences are cut, and columns are left out, so that ids and names are
//! whole.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::Color;
use crate::plain::plain;

/// The columns between two columns.
const GAP: usize = 2;
/// A column is not cut below this.
const NARROWEST: usize = 8;
/// A column whose sentences continue in further lines is not narrower than this.
const NARROWEST_WRAPPED: usize = 32;
/// A text of several words that is wider than this is a sentence, whose beginning is of use. Names, ids, numbers and times
/// are not cut.
const SENTENCE: usize = 24;

#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    color: Color,
    is_number: bool,
}

impl Cell {
    pub fn new(text: impl AsRef<str>) -> Self {
        Self {
            text: plain(text.as_ref()),
            color: Color::Plain,
            is_number: false,
        }
    }

    pub fn state(state: &str) -> Self {
        Self::new(state).in_color(Color::of_state(state))
    }

    /// Returns a cell that is aligned to the right.
    pub fn number(number: u64) -> Self {
        Self {
            is_number: true,
            ..Self::new(number.to_string())
        }
    }

    /// Returns a number of at least so many, as in `1001+`.
    pub fn at_least(number: u64, more: bool) -> Self {
        let sign = if more { "+" } else { "" };
        Self {
            is_number: true,
            ..Self::new(format!("{number}{sign}"))
        }
    }

    pub fn optional(text: Option<&str>) -> Self {
        Self::new(text.unwrap_or_default())
    }

    pub fn in_color(mut self, color: Color) -> Self {
        self.color = color;
        self
    }
}

#[derive(Clone, Debug)]
pub struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
    /// The columns that are left out before others, the least important one first.
    expendable: Vec<&'static str>,
    /// True if a sentence of the last column continues in lines of its own, and is not cut.
    wraps: bool,
}

/// A table as it is shown.
#[derive(Debug)]
pub struct TableText {
    pub lines: String,
    /// The columns that have no room.
    pub left_out: Vec<&'static str>,
}

impl Table {
    pub fn new(head: &[&'static str]) -> Self {
        Self {
            head: head.to_vec(),
            rows: Vec::new(),
            expendable: Vec::new(),
            wraps: false,
        }
    }

    /// Has a sentence of the last column continue in lines of its own where it has no room: its end tells it from others.
    pub fn wrap_last(&mut self) {
        self.wraps = true;
    }

    /// Sets the columns that a narrow terminal leaves out before others, the least important one first.
    pub fn leave_out_first(&mut self, columns: &[&'static str]) {
        self.expendable = columns.to_vec();
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the lines. Without a width nothing is cut. Columns that are empty in every row are left out.
    pub fn layout(&self, width: Option<usize>, paint: impl Fn(Color, &str) -> String) -> TableText {
        let used = |column: usize| {
            let mut cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.any(|cell| !cell.text.is_empty())
        };
        let all: Vec<_> = (0..self.head.len()).filter(|c| used(*c)).collect();
        let mut columns = all.clone();
        let widths = self.fit(&mut columns, width.unwrap_or(usize::MAX));
        let mut text = String::new();
        let head: Vec<_> = self
            .head
            .iter()
            .map(|name| Cell::new(name).in_color(Color::Dim))
            .collect();
        for row in std::iter::once(&head).chain(&self.rows) {
            let mut line = String::new();
            let mut continued = Vec::new();
            for (at, (column, width)) in columns.iter().zip(&widths).enumerate() {
                let Some(cell) = row.get(*column) else {
                    continue;
                };
                let is_last = at + 1 == columns.len();
                let shown = match is_last && self.wraps {
                    true => {
                        let mut lines = wrapped(&cell.text, *width).into_iter();
                        let first = lines.next().unwrap_or_default();
                        continued.extend(lines.map(|rest| paint(cell.color, &rest)));
                        first
                    }
                    false => cut(&cell.text, *width),
                };
                let pad = " ".repeat(width - shown.width());
                let painted = paint(cell.color, &shown);
                // The head of a column of numbers is aligned as they are.
                let is_number = self
                    .rows
                    .iter()
                    .all(|row| row.get(*column).is_none_or(|cell| cell.is_number));
                match (is_number, is_last) {
                    (true, _) => line.push_str(&format!("{pad}{painted}")),
                    (false, true) => line.push_str(&painted),
                    (false, false) => line.push_str(&format!("{painted}{pad}")),
                }
                if !is_last {
                    line.push_str(&" ".repeat(GAP));
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
            let before: usize = widths.iter().rev().skip(1).map(|width| width + GAP).sum();
            for rest in continued {
                text.push_str(&format!("{}{rest}\n", " ".repeat(before)));
            }
        }
        let left_out = all.iter().filter(|column| !columns.contains(column));
        TableText {
            lines: text,
            left_out: left_out.map(|column| self.head[*column]).collect(),
        }
    }

    /// Leaves columns out until the others fit, those that may be missed and then from the right, and returns their widths.
    /// One stays.
    fn fit(&self, columns: &mut Vec<usize>, most: usize) -> Vec<usize> {
        loop {
            let mut widths: Vec<_> = columns.iter().map(|column| self.width(*column)).collect();
            let sentences = columns.iter().map(|column| self.has_sentences(*column));
            let narrowest = if self.wraps {
                NARROWEST_WRAPPED
            } else {
                NARROWEST
            };
            let fits = narrow(&mut widths, &sentences.collect::<Vec<_>>(), narrowest, most);
            if fits || columns.len() <= 1 {
                return widths;
            }
            let index_of = |name: &&str| columns.iter().position(|at| self.head[*at] == *name);
            let expendable = self.expendable.iter().find_map(index_of);
            columns.remove(expendable.unwrap_or(columns.len() - 1));
        }
    }

    fn has_sentences(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.any(|cell| cell.text.contains(' ') && cell.text.width() > SENTENCE)
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.text.width()).max().unwrap_or(0);
        widest.max(self.head[column].width())
    }
}

/// Narrows the columns that have sentences until all fit: the last one first, which has the longest text, and then the widest.
/// Returns whether they fit.
fn narrow(widths: &mut [usize], sentences: &[bool], narrowest: usize, most: usize) -> bool {
    let gaps = GAP * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>().saturating_add(gaps) > most {
        let last = widths.len() - 1;
        let columns = (0..widths.len()).filter(|at| sentences[*at] && widths[*at] > narrowest);
        match columns.max_by_key(|at| (*at == last, widths[*at])) {
            Some(at) => widths[at] -= 1,
            None => return false,
        }
    }
    true
}

/// Returns the text, or its beginning with an ellipsis if it is wider.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    let mut used = 0;
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if used + wide + 1 > width {
            break;
        }
        used += wide;
        shown.push(c);
    }
    shown.push('…');
    shown
}

/// Returns the lines of a text, which break between words; a word that is wider than a line is cut into parts.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        let gap = usize::from(!line.is_empty());
        if line.width() + gap + word.width() <= width {
            line.push_str(&" ".repeat(gap));
            line.push_str(word);
            continue;
        }
        if !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        for c in word.chars() {
            if !line.is_empty() && line.width() + c.width().unwrap_or(0) > width {
                lines.push(std::mem::take(&mut line));
            }
            line.push(c);
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["KEY", "TASKS", "NOTHING", "CAUSE"]);
        table.row([
            Cell::new("order-1"),
            Cell::number(7),
            Cell::new(""),
            Cell::new("payments refused with 422"),
        ]);
        table.row([
            Cell::new("漢字"),
            Cell::number(403),
            Cell::new(""),
            Cell::new("late\u{1b}[2J"),
        ]);
        table
    }

    fn layout(width: Option<usize>) -> String {
        table().layout(width, |_, text| text.to_owned()).lines
    }

    #[test]
    fn columns_are_aligned_and_empty_ones_left_out() {
        assert_eq!(
            layout(None),
            "KEY      TASKS  CAUSE\norder-1      7  payments refused with 422\n漢字       403  late\\u{1b}[2J\n"
        );
    }

    #[test]
    fn lines_are_not_wider_than_the_terminal() {
        for line in layout(Some(30)).lines() {
            assert!(line.width() <= 30, "{line}");
        }
        assert!(
            layout(Some(30)).contains("payments refu…"),
            "{}",
            layout(Some(30))
        );
    }

    #[test]
    fn a_sentence_of_the_last_column_continues_in_further_lines() {
        let mut table = Table::new(&["CAUSE", "LAST", "WHAT"]);
        table.row([
            Cell::new("5f1d0a7c93b2e846"),
            Cell::new("3 min ago"),
            Cell::new("the step charge of order fails: payments refused with 422 currency_missing"),
        ]);
        table.wrap_last();
        table.leave_out_first(&["LAST"]);
        let shown = |width| table.layout(Some(width), |_, text| text.to_owned());
        assert_eq!(
            shown(64).lines,
            "CAUSE             LAST       WHAT\n\
             5f1d0a7c93b2e846  3 min ago  the step charge of order fails:\n\
             \x20                            payments refused with 422\n\
             \x20                            currency_missing\n"
        );
        assert_eq!(shown(52).left_out, ["LAST"]);
        assert!(shown(52).lines.contains("currency_missing"));
        assert_eq!(shown(200).lines.lines().count(), 2);
        assert_eq!(wrapped("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
    }

    #[test]
    fn columns_that_may_be_missed_are_left_out_before_the_reason() {
        let mut table = Table::new(&["ID", "KEY", "STATE", "SUBMITTED", "ENDED", "WHY"]);
        table.row([
            Cell::new("019c7a5e-0000-7000-8000-000000000000"),
            Cell::new("order-1001"),
            Cell::state("error"),
            Cell::new("3 min ago"),
            Cell::new("2 min ago"),
            Cell::new("payments refused with 422: the currency is missing"),
        ]);
        table.leave_out_first(&["ENDED", "ID", "SUBMITTED"]);
        let shown = table.layout(Some(80), |_, text| text.to_owned());
        assert!(
            shown.left_out.is_empty() || shown.left_out == ["ENDED"],
            "{shown:?}"
        );
        let shown = table.layout(Some(60), |_, text| text.to_owned());
        assert_eq!(shown.left_out, ["ID", "ENDED"], "{shown:?}");
        assert!(shown.lines.contains("payments refused"), "{shown:?}");
        assert!(
            table
                .layout(None, |_, text| text.to_owned())
                .left_out
                .is_empty()
        );
    }

    #[test]
    fn a_narrow_terminal_shows_fewer_columns_and_no_part_of_a_name() {
        let id = "019c7a5e-0000-7000-8000-000000000000";
        let mut table = Table::new(&["TASK", "STATE", "AT", "WHY"]);
        table.row([
            Cell::new(id),
            Cell::state("error"),
            Cell::new("3 minutes ago"),
            Cell::new("payments refused with 422: the currency is missing"),
        ]);
        let shown = |width: usize| table.layout(Some(width), |_, text| text.to_owned()).lines;
        assert!(shown(90).contains("payments refused with"), "{}", shown(90));
        let at = |width: usize| shown(width).lines().next().unwrap().to_owned();
        assert!(
            at(70).contains("WHY") && shown(70).contains('…'),
            "{}",
            shown(70)
        );
        assert_eq!(
            at(60).split_whitespace().collect::<Vec<_>>(),
            ["TASK", "STATE", "AT"]
        );
        assert_eq!(
            at(45).split_whitespace().collect::<Vec<_>>(),
            ["TASK", "STATE"]
        );
        assert_eq!(at(40), "TASK");
        for width in [90, 70, 60, 45, 40, 3] {
            assert!(shown(width).contains(id), "{}", shown(width));
            assert!(
                shown(width)
                    .lines()
                    .all(|line| line.width() <= width.max(36))
            );
        }
    }
}
