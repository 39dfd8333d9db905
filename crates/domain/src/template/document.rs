//! A JSON document whose values expressions read: its text, and an index of the begin and the end of each value. The
//! index is one flat allocation of twelve bytes for each value, and values are read from the text when an expression
//! reaches them. So the cost of a document is known before it is indexed, whatever its nesting.

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

/// The index entry of one value. The members of an object are entries of a key and a value in turn.
#[derive(Clone, Copy)]
struct NodeSpan {
    /// The begin and the end of its text.
    start: u32,
    end: u32,
    /// The index of the entry after this value and all values in it.
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

    /// Returns the memory, in bytes, with the index if it was built.
    pub fn memory(&self) -> usize {
        let index = self.index.get().map_or(0, |index| size_of_val(&**index));
        self.json().len() + index
    }

    /// Returns the root value. The document is indexed on first use.
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

    /// Returns the text of the value as it is in the document.
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

    /// Returns the items of an array. Each item is charged when it is reached.
    pub fn items(self) -> Items<'v> {
        Items {
            node: self.node(self.at + 1),
            end: self.entry().next as usize,
        }
    }

    /// Returns the members of an object.
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

    /// Returns the member of this name; of several the last, as most JSON readers do.
    pub fn member(self, name: &str, budget: &Budget) -> EvalResult<Option<Node<'v>>> {
        let mut found = None;
        for member in self.members(budget) {
            let (key, value) = member?;
            let json = key.json();
            if json.len() < name.len() + 2 {
                continue;
            }
            budget.charge(json.len() as u64 / 4)?;
            // Most keys have no escapes, and therefore the length of their text plus two quotes.
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

    /// Returns a string without its quotes and escapes.
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

/// Builds the index. The text is valid JSON: it was checked when it was received.
fn index(json: &str, budget: &Budget) -> EvalResult<Box<[NodeSpan]>> {
    // The text is read twice: to count the values, and to fill an index of exactly this size.
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
        // The length of the text fits in a u32, and the text has no more values than bytes.
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
    /// The index of the bracket.
    Open(usize),
    /// The index after the bracket.
    Close(usize),
    Scalar(usize, usize),
}

/// Reads the tokens of a document. It keeps no stack, so that no document is too deep.
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

/// Returns the index after the closing quote of the string whose content begins at `at`.
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
