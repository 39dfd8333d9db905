//! How many cases a property is tried with.

use proptest::test_runner::Config;

/// What proptest tries unless `PROPTEST_CASES` says otherwise.
const USUAL: u32 = 256;

/// For a property of which the usual number of cases says too little, or takes too long: so many, and as many times as many
/// as `PROPTEST_CASES` is more than usual.
pub fn cases(count: u32) -> Config {
    let config = Config::default();
    let cases = u64::from(count) * u64::from(config.cases) / u64::from(USUAL);
    Config {
        cases: u32::try_from(cases).unwrap_or(u32::MAX).max(1),
        ..config
    }
}
