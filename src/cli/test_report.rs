//! The results of `provost test`: for people, as TAP and as JUnit XML.

use std::{fmt::Write as _, path::PathBuf, time::Duration};

use serde_json::Value;

use super::sources::{FileNote, in_one_line};
use crate::output::say;

/// The results of a file of cases.
pub struct FileResult {
    pub path: PathBuf,
    pub cases: Vec<CaseReport>,
    pub warnings: Vec<FileNote>,
}

/// The result of a case, with the location of the case in its file.
pub struct CaseReport {
    pub name: String,
    pub case: FileNote,
    pub failures: Vec<FileNote>,
    pub timeline: Vec<String>,
    pub took: Duration,
}

impl CaseReport {
    pub fn has_passed(&self) -> bool {
        self.failures.is_empty()
    }
}

pub fn print(results: &[FileResult]) {
    for file in results {
        say!("{}", file.path.display());
        for case in &file.cases {
            match case.has_passed() {
                true => say!("  passed  {}", in_one_line(&case.name)),
                false => print_failure(case),
            }
        }
        say!("");
    }
    for warning in results.iter().flat_map(|file| &file.warnings) {
        let mut warning = warning.clone();
        warning.message.insert_str(0, "warning: ");
        say!("{warning}");
    }
    let (passed, failed) = counts(results);
    say!(
        "{} cases: {passed} passed, {failed} failed",
        passed + failed
    );
}

fn print_failure(case: &CaseReport) {
    say!("  FAILED  {}", in_one_line(&case.name));
    for failure in &case.failures {
        say!("    {failure}");
    }
    say!("    what happened:");
    for line in &case.timeline {
        say!("      {}", in_one_line(line));
    }
}

fn counts(results: &[FileResult]) -> (usize, usize) {
    let cases = results.iter().flat_map(|file| &file.cases);
    let (passed, failed): (Vec<_>, Vec<_>) = cases.partition(|case| case.has_passed());
    (passed.len(), failed.len())
}

/// Prints the results in the Test Anything Protocol, version 14.
pub fn print_tap(results: &[FileResult]) {
    let (passed, failed) = counts(results);
    say!("TAP version 14\n1..{}", passed + failed);
    let cases = results.iter().flat_map(|file| &file.cases);
    for (index, case) in cases.enumerate() {
        let result = if case.has_passed() { "ok" } else { "not ok" };
        // In TAP, a `#` would begin a directive.
        let name = in_one_line(&case.name)
            .replace('\\', "\\\\")
            .replace('#', "\\#");
        say!("{result} {} - {name}", index + 1);
        if case.has_passed() {
            continue;
        }
        // A text in JSON is valid YAML.
        let list = |lines: &mut dyn Iterator<Item = String>| {
            for line in lines {
                say!("    - {}", Value::from(line));
            }
        };
        say!("  ---\n  failures:");
        list(&mut case.failures.iter().map(ToString::to_string));
        say!("  happened:");
        list(&mut case.timeline.iter().cloned());
        say!("  ...");
    }
    for warning in results.iter().flat_map(|file| &file.warnings) {
        say!("# warning: {warning}");
    }
}

/// Returns the results as JUnit XML, in the form that the large CI systems read.
pub fn junit(results: &[FileResult]) -> String {
    let (passed, failed) = counts(results);
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a String cannot fail.
    let _ = writeln!(
        xml,
        "<testsuites name=\"provost test\" tests=\"{}\" failures=\"{failed}\">",
        passed + failed
    );
    for file in results {
        let suite = escaped(&file.path.display().to_string());
        let failures = file.cases.iter().filter(|case| !case.has_passed()).count();
        let seconds: f64 = file.cases.iter().map(|case| case.took.as_secs_f64()).sum();
        let _ = writeln!(
            xml,
            "  <testsuite name=\"{suite}\" tests=\"{}\" failures=\"{failures}\" errors=\"0\" skipped=\"0\" time=\"{seconds:.3}\">",
            file.cases.len()
        );
        for case in &file.cases {
            junit_case(&mut xml, &suite, case);
        }
        if !file.warnings.is_empty() {
            xml.push_str("    <system-out>");
            for warning in &file.warnings {
                let _ = writeln!(xml, "{}", escaped(&warning.to_string()));
            }
            xml.push_str("</system-out>\n");
        }
        xml.push_str("  </testsuite>\n");
    }
    xml.push_str("</testsuites>\n");
    xml
}

fn junit_case(xml: &mut String, suite: &str, case: &CaseReport) {
    let (name, line) = (escaped(&case.name), case.case.location.line);
    let seconds = case.took.as_secs_f64();
    let _ = write!(
        xml,
        "    <testcase name=\"{name}\" classname=\"{suite}\" file=\"{suite}\" line=\"{line}\" time=\"{seconds:.3}\""
    );
    let Some(first) = case.failures.first() else {
        xml.push_str("/>\n");
        return;
    };
    let _ = writeln!(
        xml,
        ">\n      <failure message=\"{}\">",
        escaped(&first.message)
    );
    for failure in &case.failures {
        let _ = writeln!(xml, "{}", escaped(&failure.to_string()));
    }
    xml.push_str("what happened:\n");
    for line in &case.timeline {
        let _ = writeln!(xml, "  {}", escaped(line));
    }
    xml.push_str("</failure>\n    </testcase>\n");
}

/// Escapes text for the content and the attributes of XML, and removes characters that XML does not allow.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rehearsal::SourceLocation;

    #[test]
    fn junit_is_xml_whatever_a_case_is_called() {
        let note = |message: &str| FileNote {
            path: PathBuf::from("a&b.yaml"),
            location: SourceLocation { line: 3, column: 5 },
            message: message.to_owned(),
        };
        let file = FileResult {
            path: PathBuf::from("a&b.yaml"),
            cases: vec![CaseReport {
                name: "<\"x\" & ]]>\u{0}\u{1b}".to_owned(),
                case: note(""),
                failures: vec![note("1 < 2\nnext")],
                timeline: vec!["+0s a -> 200".to_owned()],
                took: Duration::from_millis(7),
            }],
            warnings: vec![note("w")],
        };
        let xml = junit(&[file]);
        let expected = "<testcase name=\"&lt;&quot;x&quot; &amp; ]]&gt;\u{fffd}\u{fffd}\" classname=\"a&amp;b.yaml\" file=\"a&amp;b.yaml\" line=\"3\" time=\"0.007\">";
        assert!(xml.contains(expected), "{xml}");
        assert!(xml.contains("<failure message=\"1 &lt; 2 next\">"), "{xml}");
        assert!(xml.contains("+0s a -&gt; 200"), "{xml}");
        assert!(
            xml.contains("<system-out>a&amp;b.yaml:3:5: w\n</system-out>"),
            "{xml}"
        );
    }
}
