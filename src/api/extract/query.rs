//! A strict parser of the query string: a misspelt parameter is always an error.

use std::{fmt::Display, ops::RangeInclusive};

use axum::{
    extract::FromRequestParts,
    http::{Uri, request::Parts},
};
use percent_encoding::percent_decode_str;
use utoipa::IntoParams;

use crate::{
    api::{
        cursor::{CursorFault, Cursors},
        problem::{Problem, ProblemKind},
    },
    domain::values::{MOST_LABELS, SPAN_FORMS, Span, Timestamp},
};

/// The longest time that a response is delayed: proxies time out at about this time.
pub const LONGEST_WAIT: Span = Span::from_secs(60);

const MOST_ITEMS: i64 = 500;
const USUAL_ITEMS: usize = 50;

/// The parameters of one request. Get each one that the route knows, then call [`Query::finish`].
#[derive(Debug)]
pub struct Query {
    uri: Uri,
    pairs: Vec<(String, String)>,
    known: Vec<&'static str>,
    /// A parameter that was repeated but may be given only once.
    repeated: Option<&'static str>,
}

/// The parameters of a list, for the OpenAPI document: `params(PageQuery)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only the OpenAPI document reads its fields")]
pub struct PageQuery {
    /// The most items on one page; the default is 50.
    #[param(minimum = 1, maximum = 500, example = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page. Without it the list starts at the beginning.
    #[param(pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// Refuses a query with bytes that are not UTF-8, which the parser of pairs would replace by a replacement character.
pub fn must_be_utf8(uri: &Uri) -> Result<(), Problem> {
    let raw = uri.query().unwrap_or_default();
    match percent_decode_str(raw).decode_utf8() {
        Ok(_) => Ok(()),
        Err(_) => Err(Problem::new(
            ProblemKind::InvalidQuery,
            "the query string is not UTF-8 after percent-decoding: encode text as UTF-8",
        )),
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let pairs = axum::extract::Query::try_from_uri(&parts.uri);
        let pairs =
            pairs.map_err(|error| Problem::new(ProblemKind::InvalidQuery, error.to_string()))?;
        Ok(Self {
            uri: parts.uri.clone(),
            pairs: pairs.0,
            known: Vec::new(),
            repeated: None,
        })
    }
}

impl Query {
    /// Returns all values of a parameter that may be repeated.
    pub fn repeated(&mut self, name: &'static str) -> Vec<String> {
        self.known.push(name);
        let named = self.pairs.extract_if(.., |(key, _)| key == name);
        named.map(|(_, value)| value).collect()
    }

    /// Returns the value of a parameter. If it is repeated, [`Query::finish`] refuses the request.
    pub fn string(&mut self, name: &'static str) -> Option<String> {
        let mut values = self.repeated(name);
        if values.len() > 1 {
            self.repeated = Some(name);
        }
        values.pop()
    }

    pub fn integer(
        &mut self,
        name: &'static str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, Problem> {
        let allowed = format!("a whole number, {} to {}", range.start(), range.end());
        self.value(name, allowed, |text| {
            text.parse().ok().filter(|number| range.contains(number))
        })
    }

    pub fn span(&mut self, name: &'static str) -> Result<Option<Span>, Problem> {
        self.value(name, SPAN_FORMS, Span::parse)
    }

    pub fn time(&mut self, name: &'static str) -> Result<Option<Timestamp>, Problem> {
        self.value(
            name,
            "a time such as \"2026-01-31T09:30:00Z\" (write + as %2B)",
            Timestamp::parse,
        )
    }

    /// Returns the one of `all` that the parameter names by the word that `word` returns for it.
    pub fn one_of<T: Copy>(
        &mut self,
        name: &'static str,
        all: impl IntoIterator<Item = T>,
        word: impl Fn(T) -> &'static str,
    ) -> Result<Option<T>, Problem> {
        let all: Vec<_> = all.into_iter().map(|value| (word(value), value)).collect();
        let words: Vec<_> = all.iter().map(|(word, _)| *word).collect();
        self.value(name, format!("one of {}", words.join(", ")), |text| {
            let found = all.iter().find(|(word, _)| *word == text);
            found.map(|(_, value)| *value)
        })
    }

    pub fn boolean(&mut self, name: &'static str) -> Result<Option<bool>, Problem> {
        self.value(name, "true or false", |text| text.parse().ok())
    }

    /// Returns `limit`, the most items on a page.
    pub fn limit(&mut self) -> Result<usize, Problem> {
        let limit = self.integer("limit", 1..=MOST_ITEMS)?;
        Ok(limit.map_or(USUAL_ITEMS, |limit| limit as usize))
    }

    /// Parses `cursor`, the last item of the previous page, and returns it with the encoder of the next cursor.
    pub fn cursor<T>(
        &mut self,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<(Option<T>, Cursors), Problem> {
        let cursors = Cursors::of(&self.uri);
        let Some(cursor) = self.string("cursor") else {
            return Ok((None, cursors));
        };
        let item = cursors.read(&cursor)?;
        // Only this service creates cursors, so that any other text was made up.
        let item = parse(&item).ok_or(CursorFault::Altered)?;
        Ok((Some(item), cursors))
    }

    /// Returns the value of a parameter, which `parse` must accept.
    pub fn value<T>(
        &mut self,
        name: &'static str,
        allowed: impl Display,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.string(name) else {
            return Ok(None);
        };
        match parse(&text) {
            Some(value) => Ok(Some(value)),
            None => Err(Problem::new(
                ProblemKind::InvalidQuery,
                format!("{name} is {text:?}, but must be {allowed}"),
            )),
        }
    }

    /// Refuses unknown and repeated parameters.
    pub fn finish(self) -> Result<(), Problem> {
        if let Some(name) = self.repeated {
            return Err(Problem::new(
                ProblemKind::InvalidQuery,
                format!("{name} is repeated: give it once"),
            ));
        }
        let Some((name, _)) = self.pairs.first() else {
            return Ok(());
        };
        let allowed = match self.known.as_slice() {
            [] => "this operation has none".to_owned(),
            known => format!("the parameters are {}", known.join(", ")),
        };
        Err(Problem::new(
            ProblemKind::InvalidQuery,
            format!("unknown query parameter {name:?}: {allowed}"),
        ))
    }
}

/// Returns the filter of labels: `label=name:value`, as often as a task has labels.
pub fn labels(query: &mut Query) -> Result<Vec<(String, String)>, Problem> {
    let labels = query.repeated("label");
    if labels.len() > MOST_LABELS {
        return Err(Problem::new(
            ProblemKind::InvalidQuery,
            format!(
                "label: {} labels are too many; at most {MOST_LABELS}, which is the most that a task has",
                labels.len()
            ),
        ));
    }
    let labels = labels.into_iter().map(|label| {
        let pair = label.split_once(':').filter(|(name, _)| !name.is_empty());
        let (name, value) = pair.ok_or_else(|| {
            Problem::new(
                ProblemKind::InvalidQuery,
                format!("label: {label:?} has no colon; write label=name:value"),
            )
        })?;
        Ok((name.to_owned(), value.to_owned()))
    });
    labels.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::TaskStatus;

    fn query(text: &str) -> Query {
        let uri: Uri = format!("/v1/tasks?{text}").parse().unwrap();
        Query {
            pairs: axum::extract::Query::try_from_uri(&uri).unwrap().0,
            uri,
            known: Vec::new(),
            repeated: None,
        }
    }

    #[test]
    fn each_value_is_read_as_what_it_is() {
        let mut query = query(
            "key=a%20b&limit=7&label=a:1&label=b:2&wait=1m30s&created_after=2026-01-31T09:30:00Z&state=error&dry_run=true",
        );
        assert_eq!(query.string("key").as_deref(), Some("a b"));
        assert_eq!(query.limit().unwrap(), 7);
        assert_eq!(query.repeated("label"), ["a:1", "b:2"]);
        assert_eq!(query.span("wait").unwrap(), Some(Span::from_secs(90)));
        let after = query.time("created_after").unwrap().unwrap();
        assert_eq!(after.to_string(), "2026-01-31T09:30:00.000Z");
        let state = query.one_of("state", TaskStatus::ALL.iter().copied(), TaskStatus::as_str);
        let state = state.unwrap();
        assert_eq!(state, Some(TaskStatus::Error));
        assert_eq!(query.boolean("dry_run").unwrap(), Some(true));
        let (cursor, _) = query.cursor(|text| Some(text.to_owned())).unwrap();
        assert_eq!(cursor, None);
        query.finish().unwrap();
    }

    #[test]
    fn what_is_left_out_has_its_usual_value() {
        let mut query = query("");
        assert_eq!(query.limit().unwrap(), 50);
        assert_eq!(query.boolean("dry_run").unwrap(), None);
        assert_eq!(query.integer("n", 0..=9).unwrap(), None);
        query.finish().unwrap();
    }

    #[test]
    fn a_wrong_value_is_refused_with_what_is_allowed() {
        for (refused, says) in [
            (query("limit=0").limit().map(drop), "1 to 500"),
            (query("limit=501").limit().map(drop), "1 to 500"),
            (query("wait=5").span("wait").map(drop), "30s"),
            (query("a=now").time("a").map(drop), "2026"),
            (
                query("state=err")
                    .one_of("state", TaskStatus::ALL.iter().copied(), TaskStatus::as_str)
                    .map(drop),
                "processing, paused",
            ),
            (
                query("dry_run=1").boolean("dry_run").map(drop),
                "true or false",
            ),
            (
                {
                    let mut query = query("key=a&key=b");
                    query.string("key");
                    query.finish()
                },
                "once",
            ),
        ] {
            let problem = refused.unwrap_err();
            assert_eq!(problem.kind(), ProblemKind::InvalidQuery);
            assert!(problem.detail().contains(says), "{problem:?}");
        }
    }

    #[test]
    fn an_unknown_parameter_is_refused_by_name_with_the_known_ones() {
        let mut query = query("stat=error&limit=5");
        query.string("state");
        query.limit().unwrap();
        let problem = query.finish().unwrap_err();
        assert_eq!(
            problem.detail(),
            "unknown query parameter \"stat\": the parameters are state, limit"
        );
    }
}
