//! Cursors of lists. A cursor contains the last item of a page and a hash of the list and its filters. A cursor that
//! is used with another list or other filters, or was truncated or changed, is refused: otherwise it would silently
//! skip items.
//!
//! A cursor holds no secret, and every instance accepts it, also after a restart: a forged cursor only starts at
//! another position of a list that the caller may read anyway.

use std::fmt::Display;

use axum::http::Uri;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

use super::problem::{Problem, ProblemKind};

/// The longest possible cursor: for a name of 255 bytes.
pub const LONGEST: usize = 400;

const HASH: usize = 8;
/// Parameters that change how much of a list is read, and not which items are in it.
const NO_FILTERS: [&str; 2] = ["cursor", "limit"];

/// Encodes and decodes the cursors of one list with its filters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursors([u8; HASH]);

/// The reason why a cursor is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CursorFault {
    Altered,
    Elsewhere,
}

impl CursorFault {
    /// Returns the message for the caller.
    pub fn remedy(self) -> &'static str {
        match self {
            CursorFault::Altered => {
                "is not a cursor that the API returned: pass next_cursor of the previous page, unchanged; or omit it to start at the beginning"
            }
            CursorFault::Elsewhere => {
                "belongs to another list, or to this list with other filters: repeat all parameters of the previous page except limit; or omit the cursor to start at the beginning"
            }
        }
    }
}

impl From<CursorFault> for Problem {
    fn from(unusable: CursorFault) -> Self {
        let detail = format!("cursor {}", unusable.remedy());
        Problem::new(ProblemKind::InvalidQuery, detail)
    }
}

impl Cursors {
    /// Returns the cursors of the list at this URL. The order of its filters does not matter.
    pub fn of(uri: &Uri) -> Self {
        let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri);
        let mut pairs = pairs.map(|pairs| pairs.0).unwrap_or_default();
        pairs.retain(|(name, _)| !NO_FILTERS.contains(&name.as_str()));
        pairs.sort();
        Self::of_parts(
            std::iter::once(uri.path())
                .chain(pairs.iter().flat_map(|(name, value)| [&**name, &**value])),
        )
    }

    /// Returns the cursors of the list that these texts identify, in this order.
    pub fn of_parts<'a>(parts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        Self(start(hash))
    }

    /// Returns the cursor for the items after this one.
    pub fn after(self, item: impl Display) -> String {
        let item = item.to_string();
        let mut bytes = Vec::with_capacity(2 * HASH + item.len());
        bytes.extend(self.0);
        bytes.extend(self.check(item.as_bytes()));
        bytes.extend(item.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Returns the item before the cursor's page.
    pub fn read(self, cursor: &str) -> Result<String, CursorFault> {
        let bytes = URL_SAFE_NO_PAD.decode(cursor);
        let bytes = bytes.map_err(|_| CursorFault::Altered)?;
        let (list, rest) = bytes.split_first_chunk().ok_or(CursorFault::Altered)?;
        let (check, item) = rest.split_first_chunk().ok_or(CursorFault::Altered)?;
        if Self(*list).check(item) != *check {
            return Err(CursorFault::Altered);
        }
        if *list != self.0 {
            return Err(CursorFault::Elsewhere);
        }
        String::from_utf8(item.to_vec()).map_err(|_| CursorFault::Altered)
    }

    fn check(self, item: &[u8]) -> [u8; HASH] {
        start(Sha256::new().chain_update(self.0).chain_update(item))
    }
}

fn start(hash: Sha256) -> [u8; HASH] {
    let mut start = [0; HASH];
    start.copy_from_slice(&hash.finalize()[..HASH]);
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(uri: &str) -> Cursors {
        Cursors::of(&uri.parse().unwrap())
    }

    #[test]
    fn a_cursor_is_good_for_its_list_and_filters_whatever_the_size_of_a_page() {
        let cursors = list("/v1/tasks?state=error&label=a:1&label=b:2");
        let cursor = cursors.after("o-1");
        for same in [
            "/v1/tasks?label=b:2&state=error&label=a%3A1",
            "/v1/tasks?limit=7&label=b:2&state=error&label=a:1&cursor=x",
        ] {
            assert_eq!(list(same).read(&cursor), Ok("o-1".to_owned()), "{same}");
        }
        for other in [
            "/v1/alerts?state=error&label=a:1&label=b:2",
            "/v1/tasks?state=error&label=a:1",
            "/v1/tasks?state=error&label=a:1&label=b:3",
            "/v1/tasks",
        ] {
            assert_eq!(
                list(other).read(&cursor),
                Err(CursorFault::Elsewhere),
                "{other}"
            );
        }
    }

    #[test]
    fn a_cursor_that_was_touched_is_none() {
        let cursors = list("/v1/tasks");
        let cursor = cursors.after("0197a2b4-6c1e-7d52-9a07-3f6f0c1d2e3f");
        assert!(cursor.len() <= LONGEST);
        for at in 0..cursor.len() {
            let mut touched = cursor.clone().into_bytes();
            touched[at] = if touched[at] == b'A' { b'B' } else { b'A' };
            let touched = String::from_utf8(touched).unwrap();
            assert_eq!(
                cursors.read(&touched),
                Err(CursorFault::Altered),
                "{touched}"
            );
            assert_eq!(
                cursors.read(&cursor[..at]),
                Err(CursorFault::Altered),
                "{at}"
            );
        }
        for made_up in [
            "7",
            "0197a2b4-6c1e-7d52-9a07-3f6f0c1d2e3f",
            "ä",
            "=",
            "nonsense",
        ] {
            assert_eq!(
                cursors.read(made_up),
                Err(CursorFault::Altered),
                "{made_up}"
            );
        }
    }

    #[test]
    fn a_cursor_stays_the_same_over_versions_of_the_program() {
        let cursor = list("/v1/agents").after("payments");
        assert_eq!(cursor, "HTG_1QnndM43Q97Rkwmg_3BheW1lbnRz");
    }
}
