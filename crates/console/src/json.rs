//! JSON for reading: bodies with one member a line, and the differences of two of them. Numbers and texts stay as they
//! came, because nothing is made of them.

use serde::de::IgnoredAny;

/// Deeper values stay in one line.
const DEEPEST: usize = 64;

/// A value whose numbers and texts are slices of the body.
enum Value<'b> {
    Plain(&'b str),
    List(Vec<Value<'b>>),
    /// The names have their quotation marks.
    Object(Vec<(&'b str, Value<'b>)>),
}

/// A line of a body. `mark` is `+` or `-` where it differs from another body.
#[derive(Debug, PartialEq)]
pub struct Line {
    pub mark: char,
    pub text: String,
}

/// Returns the body with one member a line. A body that is not JSON stays as it is.
pub fn pretty(body: &str) -> String {
    let Some(value) = parse(body) else {
        return body.to_owned();
    };
    let mut lines = Vec::new();
    write(&value, "", 0, "", ' ', &mut lines);
    let lines = lines.into_iter().map(|line| line.text);
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the lines of a body, with those that only one of the two has. The order of members does not matter.
pub fn difference(before: &str, after: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    match (parse(before), parse(after)) {
        (Some(before), Some(after)) => compare(&before, &after, "", 0, "", &mut lines),
        _ => {
            let line = |mark, text: &str| Line {
                mark,
                text: text.to_owned(),
            };
            match before == after {
                true => lines.push(line(' ', before)),
                false => lines.extend([line('-', before), line('+', after)]),
            }
        }
    }
    lines
}

/// The lines that are shown around a difference.
const AROUND: usize = 3;

/// Returns the lines that differ, with a few around them. An ellipsis is in the place of the others.
pub fn only_changes(lines: Vec<Line>) -> Vec<Line> {
    let changed: Vec<_> = lines.iter().map(|line| line.mark != ' ').collect();
    let is_near = |at: usize| {
        let end = (at + AROUND + 1).min(changed.len());
        changed[at.saturating_sub(AROUND)..end].contains(&true)
    };
    let mut shown = Vec::new();
    let mut is_left_out = false;
    for (at, line) in lines.into_iter().enumerate() {
        if is_near(at) {
            shown.push(line);
        } else if !is_left_out {
            push(&mut shown, ' ', 0, String::from("…"));
        }
        is_left_out = !is_near(at);
    }
    shown
}

fn compare<'b>(
    before: &Value<'b>,
    after: &Value<'b>,
    name: &str,
    depth: usize,
    end: &str,
    lines: &mut Vec<Line>,
) {
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            let find = |members: &[(&'b str, Value<'b>)], name: &str| {
                members.iter().position(|(known, _)| *known == name)
            };
            push(lines, ' ', depth, format!("{name}{{"));
            let added: Vec<_> = new
                .iter()
                .filter(|(name, _)| find(old, name).is_none())
                .collect();
            for (at, (name, value)) in old.iter().enumerate() {
                let end = comma(at + 1 < old.len() + added.len());
                let label = format!("{name}: ");
                match find(new, name) {
                    Some(found) => compare(value, &new[found].1, &label, depth + 1, end, lines),
                    None => write(value, &label, depth + 1, end, '-', lines),
                }
            }
            for (at, (name, value)) in added.iter().enumerate() {
                let end = comma(at + 1 < added.len());
                write(value, &format!("{name}: "), depth + 1, end, '+', lines);
            }
            push(lines, ' ', depth, format!("}}{end}"));
        }
        _ if text(before) == text(after) => write(after, name, depth, end, ' ', lines),
        _ => {
            write(before, name, depth, end, '-', lines);
            write(after, name, depth, end, '+', lines);
        }
    }
}

fn comma(is_followed: bool) -> &'static str {
    match is_followed {
        true => ",",
        false => "",
    }
}

fn text(value: &Value<'_>) -> String {
    let mut lines = Vec::new();
    write(value, "", 0, "", ' ', &mut lines);
    lines.into_iter().map(|line| line.text).collect()
}

fn push(lines: &mut Vec<Line>, mark: char, depth: usize, text: String) {
    let text = format!("{}{text}", "  ".repeat(depth));
    lines.push(Line { mark, text });
}

fn write(
    value: &Value<'_>,
    name: &str,
    depth: usize,
    end: &str,
    mark: char,
    lines: &mut Vec<Line>,
) {
    match value {
        Value::Plain(text) => push(lines, mark, depth, format!("{name}{text}{end}")),
        Value::List(items) if items.is_empty() => {
            push(lines, mark, depth, format!("{name}[]{end}"))
        }
        Value::Object(members) if members.is_empty() => {
            push(lines, mark, depth, format!("{name}{{}}{end}"));
        }
        Value::List(items) => {
            push(lines, mark, depth, format!("{name}["));
            for (at, item) in items.iter().enumerate() {
                write(
                    item,
                    "",
                    depth + 1,
                    comma(at + 1 < items.len()),
                    mark,
                    lines,
                );
            }
            push(lines, mark, depth, format!("]{end}"));
        }
        Value::Object(members) => {
            push(lines, mark, depth, format!("{name}{{"));
            for (at, (key, member)) in members.iter().enumerate() {
                let label = format!("{key}: ");
                write(
                    member,
                    &label,
                    depth + 1,
                    comma(at + 1 < members.len()),
                    mark,
                    lines,
                );
            }
            push(lines, mark, depth, format!("}}{end}"));
        }
    }
}

fn parse(body: &str) -> Option<Value<'_>> {
    // The parser below relies on a body that is JSON.
    serde_json::from_str::<IgnoredAny>(body).ok()?;
    Reader { body, at: 0 }.value(0)
}

struct Reader<'b> {
    body: &'b str,
    at: usize,
}

impl<'b> Reader<'b> {
    fn skip_space(&mut self) {
        let rest = self.body[self.at..].trim_start();
        self.at = self.body.len() - rest.len();
    }

    fn peek(&mut self) -> Option<u8> {
        self.skip_space();
        self.body.as_bytes().get(self.at).copied()
    }

    fn value(&mut self, depth: usize) -> Option<Value<'b>> {
        match self.peek()? {
            _ if depth > DEEPEST => None,
            b'{' => {
                let mut members = Vec::new();
                self.at += 1;
                while self.peek()? != b'}' {
                    let name = self.plain();
                    self.peek()?;
                    // The colon.
                    self.at += 1;
                    members.push((name, self.value(depth + 1)?));
                    if self.peek()? == b',' {
                        self.at += 1;
                    }
                }
                self.at += 1;
                Some(Value::Object(members))
            }
            b'[' => {
                let mut items = Vec::new();
                self.at += 1;
                while self.peek()? != b']' {
                    items.push(self.value(depth + 1)?);
                    if self.peek()? == b',' {
                        self.at += 1;
                    }
                }
                self.at += 1;
                Some(Value::List(items))
            }
            _ => Some(Value::Plain(self.plain())),
        }
    }

    /// Reads a text with its quotation marks, a number or a word.
    fn plain(&mut self) -> &'b str {
        self.skip_space();
        let rest = &self.body[self.at..];
        let length = match rest.strip_prefix('"') {
            Some(inner) => {
                let mut is_escaped = false;
                let end = inner.find(|c| {
                    let is_end = c == '"' && !is_escaped;
                    is_escaped = c == '\\' && !is_escaped;
                    is_end
                });
                end.map_or(rest.len(), |end| end + 2)
            }
            None => {
                let ends = |c: char| matches!(c, ',' | '}' | ']') || c.is_ascii_whitespace();
                rest.find(ends).unwrap_or(rest.len())
            }
        };
        self.at += length;
        &rest[..length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_one_member_a_line_and_its_numbers_as_they_came() {
        let body = r#"{"a":1.0,"b":[10000000000000000000001,{}],"c":"x\"}, y","d":{"e":null}}"#;
        let text = "{\n  \"a\": 1.0,\n  \"b\": [\n    10000000000000000000001,\n    {}\n  ],\n  \"c\": \"x\\\"}, y\",\n  \"d\": {\n    \"e\": null\n  }\n}";
        assert_eq!(pretty(body), text);
        assert_eq!(pretty(text), text);
        for other in ["", "no json", "{\"a\":", "\u{e4}<b>"] {
            assert_eq!(pretty(other), other);
        }
    }

    #[test]
    fn a_difference_shows_what_only_one_of_two_bodies_has() {
        let lines = difference(
            r#"{"order":"o-1","amount":1}"#,
            r#"{"amount":2,"currency":"EUR","order":"o-1"}"#,
        );
        let lines: Vec<_> = lines
            .iter()
            .map(|line| format!("{}{}", line.mark, line.text))
            .collect();
        let expected = [
            " {",
            "   \"order\": \"o-1\",",
            "-  \"amount\": 1,",
            "+  \"amount\": 2,",
            "+  \"currency\": \"EUR\"",
            " }",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn lines_far_from_a_difference_are_left_out() {
        let body = |last: u32| {
            let members: Vec<_> = (0..10).map(|n| format!("\"m{n}\":{n}")).collect();
            format!("{{{},\"last\":{last}}}", members.join(","))
        };
        let shown = only_changes(difference(&body(1), &body(2)));
        assert_eq!(shown[0].text, "…");
        assert_eq!(shown.len(), 1 + 3 + 2 + 1, "{shown:?}");
        assert_eq!(only_changes(difference(&body(1), &body(1))).len(), 1);
    }

    #[test]
    fn bodies_that_are_not_json_are_compared_as_a_whole() {
        assert_eq!(difference("a", "b").len(), 2);
        assert_eq!(difference("a", "a")[0].mark, ' ');
        let deep = "[".repeat(100) + &"]".repeat(100);
        assert_eq!(pretty(&deep), deep);
    }
}
