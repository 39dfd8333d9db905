//! The differences of two JSON documents, value by value. Strings are compared by their characters, everything else as it
//! was written: a service may well tell `1.0` from `1`.

use std::{borrow::Cow, collections::BTreeMap, ops::ControlFlow};

use super::{
    Budget, Payload,
    budget::ITEM,
    compare::DEEPEST,
    document::{Document, Node, NodeKind},
    eval_error::{EvalError, EvalResult},
};
use crate::values::fields::escape;

/// A value that two documents do not share: the JSON text in each of them, `None` where there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JsonDifference<'v> {
    /// A JSON pointer (RFC 6901).
    pub pointer: &'v str,
    pub a: Option<&'v str>,
    pub b: Option<&'v str>,
}

/// Calls `see` with each difference, members by their names and items by their indexes, until it breaks or the budget is
/// used up. Returns whether all of them were reached. Values that are written alike are not indexed, so equal documents
/// cost next to nothing.
pub fn each_difference(
    a: &Payload,
    b: &Payload,
    budget: &Budget,
    see: impl FnMut(JsonDifference<'_>) -> ControlFlow<()>,
) -> bool {
    if a == b {
        return true;
    }
    let (a, b) = (a.document(), b.document());
    let mut walk = DifferenceWalk {
        budget,
        see,
        pointer: String::new(),
    };
    matches!(walk.documents(a, b), Ok(ControlFlow::Continue(())))
}

struct DifferenceWalk<'b, F> {
    budget: &'b Budget,
    see: F,
    /// The pointer to the values that are compared now.
    pointer: String,
}

/// The members of an object by their names; of several with one name the last.
type NamedMembers<'v> = BTreeMap<Cow<'v, str>, Node<'v>>;

impl<F> DifferenceWalk<'_, F>
where
    F: FnMut(JsonDifference<'_>) -> ControlFlow<()>,
{
    fn documents(&mut self, a: &Document, b: &Document) -> EvalResult<ControlFlow<()>> {
        self.values(a.root(self.budget)?, b.root(self.budget)?, 0)
    }

    fn values(&mut self, a: Node<'_>, b: Node<'_>, depth: usize) -> EvalResult<ControlFlow<()>> {
        let (text_a, text_b) = (a.json(), b.json());
        self.budget.charge(ITEM)?;
        self.budget
            .charge(text_a.len().min(text_b.len()) as u64 / 8)?;
        if text_a == text_b {
            return Ok(ControlFlow::Continue(()));
        }
        match (a.kind(), b.kind()) {
            (NodeKind::Object, NodeKind::Object) if depth < DEEPEST => self.members(a, b, depth),
            (NodeKind::Array, NodeKind::Array) if depth < DEEPEST => self.items(a, b, depth),
            (NodeKind::Text, NodeKind::Text) if self.is_same_text(a, b)? => {
                Ok(ControlFlow::Continue(()))
            }
            _ => Ok(self.report(Some(a), Some(b))),
        }
    }

    fn members(&mut self, a: Node<'_>, b: Node<'_>, depth: usize) -> EvalResult<ControlFlow<()>> {
        let (a, mut b) = (self.by_name(a)?, self.by_name(b)?);
        for (name, value) in a {
            let other = b.remove(&name);
            if self
                .pair(&escape(&name), Some(value), other, depth)?
                .is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        for (name, value) in b {
            if self
                .pair(&escape(&name), None, Some(value), depth)?
                .is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn items(&mut self, a: Node<'_>, b: Node<'_>, depth: usize) -> EvalResult<ControlFlow<()>> {
        let (mut a, mut b) = (a.items(), b.items());
        for index in 0usize.. {
            let pair = (a.next(), b.next());
            if pair.0.is_none() && pair.1.is_none() {
                break;
            }
            self.budget.charge(ITEM)?;
            if self
                .pair(&index.to_string(), pair.0, pair.1, depth)?
                .is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn pair(
        &mut self,
        token: &str,
        a: Option<Node<'_>>,
        b: Option<Node<'_>>,
        depth: usize,
    ) -> EvalResult<ControlFlow<()>> {
        let length = self.pointer.len();
        self.budget.charge(token.len() as u64 / 8)?;
        self.pointer.push('/');
        self.pointer.push_str(token);
        let walked = match (a, b) {
            (Some(a), Some(b)) => self.values(a, b, depth + 1),
            (a, b) => Ok(self.report(a, b)),
        };
        self.pointer.truncate(length);
        walked
    }

    fn report(&mut self, a: Option<Node<'_>>, b: Option<Node<'_>>) -> ControlFlow<()> {
        (self.see)(JsonDifference {
            pointer: &self.pointer,
            a: a.map(Node::json),
            b: b.map(Node::json),
        })
    }

    fn by_name<'v>(&self, object: Node<'v>) -> EvalResult<NamedMembers<'v>> {
        let mut members = NamedMembers::new();
        for member in object.members(self.budget) {
            let (name, value) = member?;
            self.budget
                .allocate(size_of::<(Cow<'_, str>, Node<'_>)>())?;
            let name = match name.text(self.budget) {
                Err(EvalError::Exhausted) => return Err(EvalError::Exhausted),
                // A name with an escape that is no character is compared as it was written.
                text => text.unwrap_or(Cow::Borrowed(name.json())),
            };
            members.insert(name, value);
        }
        Ok(members)
    }

    fn is_same_text(&self, a: Node<'_>, b: Node<'_>) -> EvalResult<bool> {
        let has_escape = |node: Node<'_>| node.json().as_bytes().contains(&b'\\');
        if !has_escape(a) && !has_escape(b) {
            return Ok(false);
        }
        match (a.text(self.budget), b.text(self.budget)) {
            (Ok(a), Ok(b)) => Ok(a == b),
            (Err(EvalError::Exhausted), _) | (_, Err(EvalError::Exhausted)) => {
                Err(EvalError::Exhausted)
            }
            // Texts that cannot be read are compared as they were written.
            _ => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn payload(json: &str) -> Payload {
        Payload::parse(json.to_owned()).unwrap()
    }

    /// Returns the differences as text, and whether they are all.
    fn of(a: &str, b: &str) -> (Vec<String>, bool) {
        let mut found = Vec::new();
        let is_all = each_difference(&payload(a), &payload(b), &Budget::evaluation(), |one| {
            let [a, b] = [one.a, one.b].map(|side| side.unwrap_or("none").to_owned());
            found.push(format!("{} {a} {b}", one.pointer));
            ControlFlow::Continue(())
        });
        (found, is_all)
    }

    #[test]
    fn members_and_items_that_differ_are_found_by_their_pointers() {
        for (a, b, expected) in [
            ("{}", "{}", &[][..]),
            (r#"{"a":1,"b":2}"#, r#"{ "b": 2, "a": 1 }"#, &[]),
            (r#"{"a":1}"#, r#"{"a":2}"#, &["/a 1 2"]),
            (
                r#"{"a":1,"c":{"d":[1,2]}}"#,
                r#"{"b":1,"c":{"d":[1,3,4]}}"#,
                &["/a 1 none", "/c/d/1 2 3", "/c/d/2 none 4", "/b none 1"],
            ),
            (
                r#"{"a/b":{"~":1}}"#,
                r#"{"a/b":{"~":2}}"#,
                &["/a~1b/~0 1 2"],
            ),
            ("[1]", r#"{"0":1}"#, &[r#" [1] {"0":1}"#]),
            ("null", "false", &[" null false"]),
            // The last of two members with one name counts.
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#, &[]),
        ] {
            let (found, is_all) = of(a, b);
            assert_eq!(found, expected, "{a} {b}");
            assert!(is_all);
        }
    }

    #[test]
    fn numbers_are_compared_as_they_were_written_and_texts_by_their_characters() {
        assert_eq!(of("[1.50]", "[1.5]").0, ["/0 1.50 1.5"]);
        let big = "123456789012345678901234567890";
        assert_eq!(of(big, &format!("{big}1")).0, [format!(" {big} {big}1")]);
        assert!(of(r#""\u00fc""#, "\"\u{fc}\"").0.is_empty());
        assert!(of(r#"{"\u0061":1}"#, r#"{"a":1}"#).0.is_empty());
        assert_eq!(of(r#""\ud800""#, r#""\ud801""#).0.len(), 1);
    }

    #[test]
    fn the_walk_ends_where_its_caller_breaks_it_and_where_its_budget_ends() {
        let list = |first: usize| {
            let items: Vec<Value> = (first..first + 10_000).map(Value::from).collect();
            Payload::from_value(&Value::from(items))
        };
        let (a, b) = (list(0), list(1));
        let mut found = 0;
        let budget = Budget::evaluation();
        let is_all = each_difference(&a, &b, &budget, |_| {
            found += 1;
            match found < 3 {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        assert!(!is_all);
        assert_eq!(found, 3);
        let none = |_: JsonDifference<'_>| ControlFlow::Continue(());
        assert!(!each_difference(&a, &b, &Budget::new(1_000), none));
        // Equal documents cost nothing.
        assert!(each_difference(&a, &list(0), &Budget::new(0), none));
    }

    #[test]
    fn deep_values_are_compared_as_a_whole() {
        let deep = |inner: &str| {
            let (open, close) = ("[".repeat(500), "]".repeat(500));
            format!("{open}{inner}{close}")
        };
        let (found, is_all) = of(&deep("1"), &deep("2"));
        assert_eq!(found.len(), 1);
        assert!(is_all);
    }
}
