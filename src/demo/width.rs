//! The width of the terminal, and text that fits into it.

use std::io;

use rustix::termios::tcgetwinsize;

/// The width if it is unknown, and the maximum: longer lines are hard to read.
const WIDE: usize = 108;
const NARROWEST: usize = 20;

/// Returns the current columns of the terminal.
pub fn columns() -> usize {
    let size = tcgetwinsize(io::stdout()).ok();
    let columns = size.map(|size| usize::from(size.ws_col));
    let columns = columns.filter(|columns| *columns > 0);
    columns.unwrap_or(WIDE).clamp(NARROWEST, WIDE)
}

/// Truncates a line that is too long, with a sign. Colours take no columns.
pub fn cut(line: &str, columns: usize) -> String {
    if length(line) <= columns {
        return line.to_owned();
    }
    let mut shown = 0;
    let mut in_colour = false;
    let mut kept = String::with_capacity(line.len());
    for sign in line.chars() {
        match (in_colour, sign) {
            (false, '\x1b') => in_colour = true,
            (true, 'm') => in_colour = false,
            (true, _) => {}
            (false, _) if shown + 1 >= columns => break,
            (false, _) => shown += 1,
        }
        kept.push(sign);
    }
    kept.push('…');
    if line.contains('\x1b') {
        kept.push_str("\x1b[0m");
    }
    kept
}

/// Returns the visible length of a line: every character of the demo takes one column.
fn length(line: &str) -> usize {
    let mut in_colour = false;
    let is_seen = |sign: &char| match (in_colour, *sign) {
        (false, '\x1b') => {
            in_colour = true;
            false
        }
        (true, sign) => {
            in_colour = sign != 'm';
            false
        }
        (false, _) => true,
    };
    line.chars().filter(is_seen).count()
}

/// Wraps at words; each line after the first is indented. The first line starts at `column`.
pub fn wrapped(text: &str, column: usize, indent: usize, columns: usize) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at = column;
    for (place, word) in text.split(' ').enumerate() {
        let width = length(word);
        if place > 0 {
            if at + 1 + width > columns {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent));
                at = indent;
            } else {
                out.push(' ');
                at += 1;
            }
        }
        out.push_str(word);
        at += width;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_cut_before_the_edge_and_says_so() {
        assert_eq!(cut("reserve ✓", 9), "reserve ✓");
        assert_eq!(cut("reserve ✓  ship", 9), "reserve …");
    }

    #[test]
    fn colours_take_no_columns_and_end_with_the_line() {
        let line = "\x1b[32mgood\x1b[0m and \x1b[31mbad\x1b[0m";
        assert_eq!(cut(line, 12), line);
        assert_eq!(cut(line, 6), "\x1b[32mgood\x1b[0m …\x1b[0m");
        assert_eq!(cut(line, 11), "\x1b[32mgood\x1b[0m and \x1b[31mb…\x1b[0m");
    }

    #[test]
    fn text_is_wrapped_between_words_behind_its_indent() {
        let text = wrapped("one two three four", 4, 2, 11);
        assert_eq!(text, "one two\n  three\n  four");
        assert_eq!(wrapped("short", 30, 2, 40), "short");
        // A word that fits into no line is not broken, so that it can still be copied.
        assert_eq!(
            wrapped("a http://127.0.0.1:8080", 0, 2, 10),
            "a\n  http://127.0.0.1:8080"
        );
    }
}
