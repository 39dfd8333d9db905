//! The header `RateLimit` of a response (draft-ietf-httpapi-ratelimit-headers): a service says that its quota is used
//! up before it refuses a call.

use std::time::Duration;

use ::http::HeaderMap;
use sfv::{BareItem, List, ListEntry, Parameters, Parser};

/// Returns how long the service should get no calls, if one of its quotas is used up. If several are, the longest
/// time.
pub(in crate::agent) fn used_up(headers: &HeaderMap) -> Option<Duration> {
    let mut fields = headers.get_all("ratelimit").iter();
    let first = fields.next()?.to_str().ok()?;
    // Services send one field. Several fields would form one list, and are ignored.
    let quotas: List = match fields.next() {
        None => Parser::new(first).parse().ok()?,
        Some(_) => return None,
    };
    let waits = quotas.iter().filter_map(|quota| match quota {
        ListEntry::Item(item) => wait(&item.params),
        ListEntry::InnerList(_) => None,
    });
    waits.max()
}

/// Returns the wait of one quota. `r` is the remaining quota, `t` the number of seconds until there is more.
fn wait(quota: &Parameters) -> Option<Duration> {
    let number = |name| match quota.get(name)? {
        BareItem::Integer(number) => Some(i64::from(*number)),
        _ => None,
    };
    let wait = u64::try_from(number("t")?).ok()?;
    (number("r")? <= 0).then(|| Duration::from_secs(wait))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> Option<u64> {
        let mut headers = HeaderMap::new();
        headers.insert("ratelimit", value.parse().unwrap());
        used_up(&headers).map(|wait| wait.as_secs())
    }

    #[test]
    fn a_quota_that_is_used_up_says_for_how_long() {
        assert_eq!(read(r#""default";r=0;t=30"#), Some(30));
        assert_eq!(
            read(r#""a";r=5;t=60, "b, c";r=0;t=7, "d";r=0;t=3"#),
            Some(7)
        );
    }

    #[test]
    fn a_quota_that_has_calls_left_and_what_is_no_quota_ask_for_nothing() {
        for value in [
            r#""default";r=1;t=30"#,
            r#""default";r=0"#,
            r#""default";t=30"#,
            r#""default";r=0;t=-1"#,
            r#""default";r=0;t=soon"#,
            r#"("a" "b");r=0;t=5"#,
            "limit=100, remaining=0, reset=30",
            ";;;",
            "",
        ] {
            assert_eq!(read(value), None, "{value}");
        }
    }
}
