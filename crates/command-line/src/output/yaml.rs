//! JSON as YAML 1.2 in block style. What is written reads back as the same JSON.

use serde_json::Value;

/// Returns the JSON as YAML; text that is not JSON as it is.
pub fn of_json(json: &str) -> String {
    let Ok(value) = serde_json::from_str::<Value>(json) else {
        return format!("{json}\n");
    };
    let mut text = String::new();
    write(&mut text, &value, 0, true);
    text
}

/// Writes a value. `is_line_start` is true if nothing precedes it on its line but the indentation.
fn write(text: &mut String, value: &Value, depth: usize, is_line_start: bool) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            if !is_line_start {
                text.push('\n');
            }
            for (at, (name, member)) in members.iter().enumerate() {
                if at > 0 || !is_line_start {
                    text.push_str(&"  ".repeat(depth));
                }
                text.push_str(&scalar(name));
                text.push(':');
                below(text, member, depth);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            if !is_line_start {
                text.push('\n');
            }
            for (at, item) in items.iter().enumerate() {
                if at > 0 || !is_line_start {
                    text.push_str(&"  ".repeat(depth));
                }
                text.push_str("- ");
                write(text, item, depth + 1, true);
            }
        }
        Value::String(string) => {
            text.push_str(&scalar(string));
            text.push('\n');
        }
        // `{}`, `[]`, numbers, true, false and null are the same in YAML.
        other => {
            text.push_str(&other.to_string());
            text.push('\n');
        }
    }
}

/// Writes the value of a member after its colon.
fn below(text: &mut String, value: &Value, depth: usize) {
    let is_block = match value {
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    if !is_block {
        text.push(' ');
    }
    write(text, value, depth + 1, false);
}

/// Returns a text as a plain scalar if no reader could take it for anything else, and quoted as in JSON otherwise.
fn scalar(string: &str) -> String {
    let is_word = string.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && string
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_/. ".contains(c))
        && !string.ends_with(' ');
    let is_ambiguous = matches!(
        string.to_ascii_lowercase().as_str(),
        "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n"
    );
    match is_word && !is_ambiguous {
        true => string.to_owned(),
        false => Value::from(string).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use provost_rehearsal::{SourceFormat, SourceText};

    use super::*;

    #[test]
    fn what_is_written_reads_back_as_the_same_json() {
        let json = r#"{"name":"order","empty":{},"none":[],"no":"no","time":"2026-03-01T03:04:00Z","n":1.50,
            "text":"a: b\n\"c\" {{ x }}","list":[{"a":1,"b":[1,[2,3],{"c":null}]},"x y",[]],"deep":{"er":{"x":true}}}"#;
        let yaml = of_json(json);
        let read = SourceText::parse(yaml.clone(), SourceFormat::Yaml).unwrap();
        let back: Value = serde_json::from_str(read.json().raw().get()).unwrap();
        assert_eq!(back, serde_json::from_str::<Value>(json).unwrap(), "{yaml}");
    }
}
