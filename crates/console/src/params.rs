//! The parameters of a page: the only state that the console has. Forms and links are made of them.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

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
}
