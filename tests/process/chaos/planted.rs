//! Checks that the known bugs that `scripts/prove-auditor` plants can still be applied to the present code.

use std::{path::Path, process::Command};

#[test]
fn every_planted_bug_still_applies_and_names_what_finds_it() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = project.join("tests/process/chaos/planted");
    let mut failed = Vec::new();
    let mut count = 0;
    for file in std::fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        count += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = text
            .lines()
            .find_map(|line| line.strip_prefix("Expected: "));
        assert!(expected.is_some(), "{} names no rule", path.display());
        let check = Command::new("git")
            .args(["apply", "--check"])
            .arg(&path)
            .current_dir(project)
            .output()
            .unwrap();
        if !check.status.success() {
            failed.push(String::from_utf8_lossy(&check.stderr).into_owned());
        }
    }
    assert!(count > 20, "{count}");
    assert!(failed.is_empty(), "update these patches: {failed:#?}");
}
