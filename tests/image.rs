//! Checks that the container image is built of everything that the build needs: `.dockerignore` leaves out all files
//! that it does not name.

#![allow(
    clippy::unwrap_used,
    reason = "a test that fails by a panic says where"
)]

use std::{collections::BTreeSet, fs};

#[test]
fn all_that_the_image_is_built_of_is_sent_to_the_build() {
    let ignore = fs::read_to_string(".dockerignore").unwrap();
    let sent: BTreeSet<_> = ignore
        .lines()
        .filter_map(|line| line.strip_prefix('!'))
        .collect();
    let dockerfile = fs::read_to_string("Dockerfile").unwrap();
    let copies = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
        .filter(|copy| !copy.starts_with("--from"));
    let mut needed: BTreeSet<&str> = BTreeSet::new();
    for copy in copies {
        let (sources, _) = copy.rsplit_once(' ').unwrap();
        needed.extend(sources.split(' ').filter(|source| *source != "."));
    }
    // These are compiled into the binary.
    needed.extend([
        "src",
        "crates",
        "migrations",
        "openapi",
        "provost.toml.example",
    ]);
    assert!(needed.contains("vendor") && needed.contains(".cargo"));
    for source in needed {
        let top = source.split('/').next().unwrap();
        assert!(
            sent.contains(top),
            "{source} is left out by .dockerignore: name {top} there"
        );
    }
}
