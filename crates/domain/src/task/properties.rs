//! The number of cases with which a property is tested.

use proptest::test_runner::Config;

/// The number of cases that proptest uses unless `PROPTEST_CASES` is set.
const USUAL: u32 = 256;

/// Returns the configuration for a property that needs more cases than usual, or takes too long with that many. `count`
/// is multiplied by the ratio of `PROPTEST_CASES` to the usual number.
pub fn cases(count: u32) -> Config {
    let config = Config::default();
    let cases = u64::from(count) * u64::from(config.cases) / u64::from(USUAL);
    Config {
        cases: u32::try_from(cases).unwrap_or(u32::MAX).max(1),
        ..config
    }
}
