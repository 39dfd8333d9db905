//! The parameters of a page: the only state that the console has. Forms and links are made of them.

use http::StatusCode;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::service::Refusal;

/// The characters that have a meaning in a path or a query.
const RESERVED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'&')
    .add(b'+')
    .add(b'/')
    .add(b'<')
    .add(b'=')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b']')
    .add(b'`')
    .add(b'{')
    .add(b'}');

/// Returns the text as one part of a path, or as a value of a query.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Parameters in their order. A name may repeat.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Params(Vec<(String, String)>);

impl Params {
    /// Reads a query, or the body of a form.
    pub fn read(text: &str) -> Self {
        Self(
            form_urlencoded::parse(text.as_bytes())
                .into_owned()
                .collect(),
        )
    }

    /// Returns the value, unless it is empty: a form sends its empty fields too.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).find(|value| !value.is_empty())
    }

    /// Returns the value, or an empty text, for the field of a form.
    pub fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub fn all<'p>(&'p self, name: &str) -> impl Iterator<Item = &'p str> {
        self.0
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the parameters with these names that have a value.
    #[must_use]
    pub fn only(&self, names: &[&str]) -> Self {
        let kept = self
            .0
            .iter()
            .filter(|(key, value)| names.contains(&key.as_str()) && !value.is_empty());
        Self(kept.cloned().collect())
    }

    #[must_use]
    pub fn without(&self, name: &str) -> Self {
        Self(
            self.0
                .iter()
                .filter(|(key, _)| key != name)
                .cloned()
                .collect(),
        )
    }

    /// Returns the parameters without this one value of a name.
    #[must_use]
    pub fn without_value(&self, name: &str, value: &str) -> Self {
        let kept = self
            .0
            .iter()
            .filter(|(key, held)| key != name || held != value);
        Self(kept.cloned().collect())
    }

    #[must_use]
    pub fn with(&self, name: &str, value: &str) -> Self {
        let mut next = self.without(name);
        next.0.push((name.to_owned(), value.to_owned()));
        next
    }

    /// Returns the query with its question mark, or an empty text.
    pub fn query(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(&self.0);
        format!("?{}", query.finish())
    }
}

impl<'t> FromIterator<(&'t str, &'t str)> for Params {
    fn from_iter<I: IntoIterator<Item = (&'t str, &'t str)>>(pairs: I) -> Self {
        Self(
            pairs
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        )
    }
}

/// The names that any page of the console may have: the place and the look of a list.
const OF_EVERY_PAGE: [&str; 6] = ["live", "after", "cursor", "limit", "sort", "col"];

/// The names of the parameters of a page. `routes.rs` declares them, and `Visit` refuses others.
#[derive(Clone, Copy)]
pub struct ParamNames(pub &'static [&'static [&'static str]]);

/// Refuses parameters that a page does not know. Without one that is misspelt, a filter would select everything.
pub fn refuse_unknown(given: &Params, known: &[&[&str]]) -> Result<(), Refusal> {
    let is_known = |name: &str| {
        let mut all = known.iter().copied().flatten().chain(&OF_EVERY_PAGE);
        all.any(|known| *known == name)
    };
    let mut unknown: Vec<&str> = Vec::new();
    for (name, _) in given.iter() {
        if !is_known(name) && !unknown.contains(&name) {
            unknown.push(name);
        }
    }
    if unknown.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = known.iter().copied().flatten().copied().collect();
    let sentences = unknown.iter().take(5).map(|name| {
        let near = names.iter().map(|known| (distance(name, known), known));
        match near
            .min()
            .filter(|(steps, _)| *steps <= 2 && *steps < name.len())
        {
            Some((_, known)) => format!("{name:?} is not known here: did you mean {known:?}?"),
            None => format!("{name:?} is not known here."),
        }
    });
    let sentences: Vec<_> = sentences.collect();
    let has = match names.is_empty() {
        true => String::from("This page has no parameters"),
        false => format!("This page has {}", names.join(", ")),
    };
    Err(Refusal::new(
        StatusCode::BAD_REQUEST,
        "Unknown parameter",
        format!("{} {has}.", sentences.join(" ")),
    ))
}

/// Returns how many letters have to be typed, left out, replaced or swapped to make one name of another.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) =
        (from.chars().take(64).collect(), to.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for (i, typed) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, meant) in to.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(typed != meant);
            let mut least = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *typed == to[j - 1] && from[i - 1] == *meant {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_and_written_without_a_loss() {
        let params = Params::read("state=error&label=a%3Ab&label=c&text=%3Cb%3E+%26");
        assert_eq!(params.get("text"), Some("<b> &"));
        assert_eq!(params.all("label").collect::<Vec<_>>(), ["a:b", "c"]);
        assert_eq!(Params::read(&params.query()[1..]), params);
        assert_eq!(params.without_value("label", "c").all("label").count(), 1);
        assert_eq!(params.only(&["state"]).query(), "?state=error");
        assert_eq!(Params::default().query(), "");
    }

    #[test]
    fn a_name_in_a_path_cannot_leave_its_part() {
        assert_eq!(encoded("a/../b?c#d e%"), "a%2F..%2Fb%3Fc%23d%20e%25");
    }

    #[test]
    fn a_name_that_is_not_known_is_refused_with_the_one_that_was_meant() {
        let refused = |query: &str| {
            let known: &[&[&str]] = &[&["state", "workflow"], &["do"]];
            let refused = refuse_unknown(&Params::read(query), known);
            refused.map_err(|refusal| refusal.detail)
        };
        assert_eq!(refused("state=&do=x&do=y&live=5s&after=c"), Ok(()));
        for (query, sentence) in [
            (
                "sate=error",
                r#""sate" is not known here: did you mean "state"? This page has state, workflow, do."#,
            ),
            (
                "State=error",
                r#""State" is not known here: did you mean "state"? This page has state, workflow, do."#,
            ),
            (
                "wrokflow=a&x%22=1&x%22=2",
                "\"wrokflow\" is not known here: did you mean \"workflow\"? \"x\\\"\" is not known here. This page has state, workflow, do.",
            ),
            (
                "colour=red",
                r#""colour" is not known here. This page has state, workflow, do."#,
            ),
        ] {
            assert_eq!(refused(query), Err(sentence.to_owned()), "{query}");
        }
        let nothing = refuse_unknown(&Params::read("a=1"), &[]).unwrap_err();
        assert!(nothing.detail.ends_with("This page has no parameters."));
    }
}
