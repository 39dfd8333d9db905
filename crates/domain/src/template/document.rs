//! A JSON document that expressions look into: its text, and beside it an index of where each value begins and
//! ends. The index is one flat allocation of twelve bytes a value, and values are read from the text when an
//! expression reaches them. So what a document costs is known before it is indexed, however it is nested.

use std::{borrow::Cow, sync::OnceLock};

use serde_json::value::RawValue;

use super::{
    budget::{Budget, ITEM},
    eval_error::{EvalError, EvalResult},
};

pub struct Document {
    json: Box<RawValue>,
    index: OnceLock<Box<[NodeSpan]>>,
}

/// One value. The members of an object are a key and a value in turn.
#[derive(Clone, Copy)]
struct NodeSpan {
    /// Where its text begins and ends.
    start: u32,
    end: u32,
    /// The entry after this value and all that is in it.
    next: u32,
}

/// One value of a document.
#[derive(Clone, Copy)]
pub(super) struct Node<'v> {
    document: &'v Document,
    index: &'v [NodeSpan],
    at: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NodeKind {
    Null,
    True,
    False,
    Number,
    Text,
    Array,
    Object,
}

impl Document {
    pub fn new(json: Box<RawValue>) -> Self {
        Self {
            json,
            index: OnceLock::new(),
        }
    }

    pub fn raw(&self) -> &RawValue {
        &self.json
    }

    pub fn json(&self) -> &str {
        self.json.get()
    }

    /// In bytes, with what was made of it so far.
    pub fn memory(&self) -> usize {
        let index = self.index.get().map_or(0, |index| size_of_val(&**index));
        self.json().len() + index
    }

    /// Indexed on first use.
    pub(super) fn root(&self, budget: &Budget) -> EvalResult<Node<'_>> {
        let index = match self.index.get() {
            Some(index) => index,
            None => {
                let built = index(self.json(), budget)?;
                self.index.get_or_init(|| built)
            }
        };
        Ok(Node {
            document: self,
            index,
            at: 0,
        })
    }
}

impl<'v> Node<'v> {
    fn entry(self) -> NodeSpan {
        self.index[self.at]
    }

    fn node(self, at: usize) -> Self {
        Self { at, ..self }
    }

    /// As it stands in the document.
    pub fn json(self) -> &'v str {
        let NodeSpan { start, end, .. } = self.entry();
        &self.document.json()[start as usize..end as usize]
    }

    pub fn kind(self) -> NodeKind {
        match self.json().as_bytes().first() {
            Some(b'{') => NodeKind::Object,
            Some(b'[') => NodeKind::Array,
            Some(b'"') => NodeKind::Text,
            Some(b't') => NodeKind::True,
            Some(b'f') => NodeKind::False,
            Some(b'n') => NodeKind::Null,
            _ => NodeKind::Number,
        }
    }

    pub fn is_same(self, other: Self) -> bool {
        std::ptr::eq(self.document, other.document) && self.at == other.at
    }

    /// Of an array. Each item is charged for when it is reached.
    pub fn items(self) -> Items<'v> {
        Items {
            node: self.node(self.at + 1),
            end: self.entry().next as usize,
        }
    }

    /// Of an object: keys and values in turn.
    pub fn members(
        self,
        budget: &Budget,
    ) -> impl Iterator<Item = EvalResult<(Node<'v>, Node<'v>)>> {
        let mut nodes = self.items();
        std::iter::from_fn(move || {
            let (key, value) = (nodes.next()?, nodes.next()?);
            let charged = budget.charge(ITEM).map_err(EvalError::from);
            Some(charged.map(|()| (key, value)))
        })
    }

    /// The member of that name; of several the last, as JSON readers commonly have it.
    pub fn member(self, name: &str, budget: &Budget) -> EvalResult<Option<Node<'v>>> {
        let mut found = None;
        for member in self.members(budget) {
            let (key, value) = member?;
            let json = key.json();
            if json.len() < name.len() + 2 {
                continue;
            }
            budget.charge(json.len() as u64 / 4)?;
            // Most keys have no escapes, and so the length of their text plus two quotes.
            let is_it = match json.len() == name.len() + 2 {
                true => &json[1..json.len() - 1] == name,
                false => json.as_bytes().contains(&b'\\') && key.text(budget)? == name,
            };
            if is_it {
                found = Some(value);
            }
        }
        Ok(found)
    }

    /// A string without its quotes and escapes.
    pub fn text(self, budget: &Budget) -> EvalResult<Cow<'v, str>> {
        let json = self.json();
        budget.charge(json.len() as u64 / 8)?;
        let inside = &json[1..json.len() - 1];
        if !inside.as_bytes().contains(&b'\\') {
            return Ok(Cow::Borrowed(inside));
        }
        // The text is never longer than its JSON; serde_json works in a buffer that grows by doubling.
        budget.allocate(json.len() * 4)?;
        match serde_json::from_str(json) {
            Ok(text) => Ok(Cow::Owned(text)),
            Err(_) => Err(EvalError::Other(
                "a text contains an escape that is not a character, such as half of a surrogate pair"
                    .to_owned(),
            )),
        }
    }
}

pub(super) struct Items<'v> {
    node: Node<'v>,
    end: usize,
}

impl<'v> Iterator for Items<'v> {
    type Item = Node<'v>;

    fn next(&mut self) -> Option<Node<'v>> {
        if self.node.at >= self.end {
            return None;
        }
        let node = self.node;
        self.node.at = node.entry().next as usize;
        Some(node)
    }
}

/// The text is valid JSON: it was checked when it arrived.
fn index(json: &str, budget: &Budget) -> EvalResult<Box<[NodeSpan]>> {
    // Twice over the text: to count, then to fill exactly what was counted.
    budget.charge_each(json.len(), 3)?;
    if u32::try_from(json.len()).is_err() {
        return Err(EvalError::Exhausted);
    }
    let (mut count, mut depth, mut deepest) = (0usize, 0usize, 0usize);
    walk(json, |token| match token {
        JsonToken::Open(_) => {
            count += 1;
            depth += 1;
            deepest = deepest.max(depth);
        }
        JsonToken::Close(_) => depth = depth.saturating_sub(1),
        JsonToken::Scalar(..) => count += 1,
    });
    budget.allocate(count * size_of::<NodeSpan>())?;
    budget.allocate(deepest * size_of::<u32>())?;
    budget.charge_each(count, 4)?;
    let mut entries: Vec<NodeSpan> = Vec::with_capacity(count);
    let mut open: Vec<u32> = Vec::with_capacity(deepest);
    walk(json, |token| {
        // The text is no longer than a u32 counts, and has no more values than bytes.
        let at = entries.len() as u32;
        match token {
            JsonToken::Open(start) => {
                open.push(at);
                entries.push(NodeSpan {
                    start: start as u32,
                    end: start as u32,
                    next: at + 1,
                });
            }
            JsonToken::Close(end) => {
                let container = open.pop().and_then(|open| entries.get_mut(open as usize));
                if let Some(container) = container {
                    container.end = end as u32;
                    container.next = at;
                }
            }
            JsonToken::Scalar(start, end) => entries.push(NodeSpan {
                start: start as u32,
                end: end as u32,
                next: at + 1,
            }),
        }
    });
    Ok(entries.into_boxed_slice())
}

enum JsonToken {
    /// Where the bracket is.
    Open(usize),
    /// The index after the bracket.
    Close(usize),
    Scalar(usize, usize),
}

/// Keeps no stack, so that no document is too deep.
fn walk(json: &str, mut see: impl FnMut(JsonToken)) {
    let bytes = json.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'{' | b'[' => see(JsonToken::Open(start)),
            b'}' | b']' => see(JsonToken::Close(at)),
            b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' => {}
            b'"' => {
                at = end_of_string(bytes, at);
                see(JsonToken::Scalar(start, at));
            }
            _ => {
                while bytes.get(at).is_some_and(|byte| {
                    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
                }) {
                    at += 1;
                }
                see(JsonToken::Scalar(start, at));
            }
        }
    }
}

/// The index after the closing quote of the string whose content begins at `at`.
pub(super) fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}
