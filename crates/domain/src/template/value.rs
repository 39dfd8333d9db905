//! The values of an expression. They borrow from the documents and the expression where possible; built values are
//! shared, never copied.

use std::{borrow::Cow, rc::Rc};

use super::{
    Budget,
    budget::ITEM,
    document::{Items, Node, NodeKind},
    eval_error::{EvalError, EvalResult, other},
    number::{self, Number},
};

#[derive(Clone)]
pub(super) enum Value<'v> {
    /// A missing value; the text is its path, as it is written.
    Missing(&'v str),
    Null,
    Bool(bool),
    Number(Number),
    Text(&'v str),
    Built(Rc<str>),
    List(Rc<Vec<Value<'v>>>),
    Map(Rc<Vec<Member<'v>>>),
    /// An array or an object of a document. Any other value of a document is converted at once.
    Node(Node<'v>),
}

pub(super) type Member<'v> = (Value<'v>, Value<'v>);

impl<'v> Value<'v> {
    pub fn of(node: Node<'v>, budget: &Budget) -> EvalResult<Self> {
        Ok(match node.kind() {
            NodeKind::Null => Value::Null,
            NodeKind::True => Value::Bool(true),
            NodeKind::False => Value::Bool(false),
            NodeKind::Number => Value::Number(number::parse_json(node.json(), budget)?),
            NodeKind::Text => Self::cow(node.text(budget)?, budget)?,
            NodeKind::Array | NodeKind::Object => Value::Node(node),
        })
    }

    pub fn int(number: usize) -> Self {
        // No count is near the limit of the type.
        Value::Number(Number::int(number as i128))
    }

    /// Makes a value from a copy in shared memory, and charges for the copy.
    pub fn built(text: &str, budget: &Budget) -> EvalResult<Self> {
        budget.allocate(text.len())?;
        Ok(Value::Built(text.into()))
    }

    pub fn cow(text: Cow<'v, str>, budget: &Budget) -> EvalResult<Self> {
        match text {
            Cow::Borrowed(text) => Ok(Value::Text(text)),
            Cow::Owned(text) => Self::built(&text, budget),
        }
    }

    pub fn list(items: Vec<Value<'v>>) -> Self {
        Value::List(Rc::new(items))
    }

    /// Returns a part of a text: borrowed from it if possible.
    pub fn part(&self, part: &str, budget: &Budget) -> EvalResult<Self> {
        if let Value::Text(whole) = self {
            let offset = (part.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
            if let Some(part) = whole.get(offset..offset.saturating_add(part.len())) {
                return Ok(Value::Text(part));
            }
        }
        Self::built(part, budget)
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            Value::Built(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_number(&self) -> Option<Number> {
        match self {
            Value::Number(number) => Some(*number),
            // As in Python, on which Jinja is modelled, a boolean is a number.
            Value::Bool(truth) => Some(Number::int((*truth).into())),
            _ => None,
        }
    }

    pub fn is_list(&self) -> bool {
        match self {
            Value::List(_) => true,
            Value::Node(node) => node.kind() == NodeKind::Array,
            _ => false,
        }
    }

    pub fn is_map(&self) -> bool {
        match self {
            Value::Map(_) => true,
            Value::Node(node) => node.kind() == NodeKind::Object,
            _ => false,
        }
    }

    pub fn is_missing(&self) -> bool {
        matches!(self, Value::Missing(_))
    }

    /// Returns the value itself, or an error if it is missing.
    pub fn present(self) -> EvalResult<Self> {
        match self {
            Value::Missing(path) => Err(EvalError::Missing(path.to_owned())),
            value => Ok(value),
        }
    }

    /// Returns the kind of the value, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Missing(_) => "nothing",
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text(_) | Value::Built(_) => "a text",
            Value::List(_) => "a list",
            Value::Map(_) => "an object",
            Value::Node(node) => match node.kind() {
                NodeKind::Array => "a list",
                _ => "an object",
            },
        }
    }

    /// Returns the truth of the value: null, zero and empty values are false.
    pub fn truth(&self) -> EvalResult<bool> {
        Ok(match self {
            Value::Missing(path) => return Err(EvalError::Missing((*path).to_owned())),
            Value::Null => false,
            Value::Bool(truth) => *truth,
            Value::Number(number) => !number.is_zero(),
            Value::Text(text) => !text.is_empty(),
            Value::Built(text) => !text.is_empty(),
            Value::List(items) => !items.is_empty(),
            Value::Map(members) => !members.is_empty(),
            Value::Node(node) => node.items().next().is_some(),
        })
    }

    /// Returns the member of this name. `None` if the object has none, or the value is not an object.
    pub fn member(&self, name: &str, budget: &Budget) -> EvalResult<Option<Value<'v>>> {
        match self {
            Value::Node(node) if node.kind() == NodeKind::Object => {
                let found = node.member(name, budget)?;
                found.map(|node| Value::of(node, budget)).transpose()
            }
            Value::Map(members) => {
                for (key, value) in members.iter().rev() {
                    budget.charge(ITEM)?;
                    if same_name(key, name, budget)? {
                        return Ok(Some(value.clone()));
                    }
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// Iterates over the items of a list, the keys of an object, or the characters of a text.
    pub fn iter(&self, budget: &Budget) -> EvalResult<Iter<'_, 'v>> {
        Ok(match self {
            Value::Missing(path) => return Err(EvalError::Missing((*path).to_owned())),
            Value::List(items) => Iter::List(items.iter()),
            Value::Node(node) if node.kind() == NodeKind::Array => Iter::Array(node.items()),
            Value::Node(_) | Value::Map(_) => {
                let members = self.members(budget)?;
                budget.allocate(members.len() * size_of::<Value<'_>>())?;
                let keys: Vec<_> = members.into_iter().map(|(key, _)| key).collect();
                Iter::Keys(keys.into_iter())
            }
            Value::Text(_) | Value::Built(_) => {
                Iter::Characters(self.as_text().unwrap_or_default().chars())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {
                return other(format!("{} has no items: use a list", self.kind()));
            }
        })
    }

    /// Returns all items, in memory of their own.
    pub fn collect(&self, budget: &Budget) -> EvalResult<Vec<Value<'v>>> {
        let mut collected = ChargedVec::new(budget);
        for item in self.iter(budget)? {
            collected.push(item.take(budget)?)?;
        }
        Ok(collected.items)
    }

    /// Returns the number of items, members or characters.
    pub fn length(&self, budget: &Budget) -> EvalResult<Option<usize>> {
        Ok(Some(match self {
            Value::Missing(path) => return Err(EvalError::Missing((*path).to_owned())),
            Value::Text(_) | Value::Built(_) => {
                let text = self.as_text().unwrap_or_default();
                budget.charge(text.len() as u64)?;
                text.chars().count()
            }
            Value::List(items) => items.len(),
            Value::Node(node) if node.kind() == NodeKind::Array => {
                let mut count = 0;
                for _ in node.items() {
                    budget.charge(ITEM / 2)?;
                    count += 1;
                }
                count
            }
            Value::Node(_) | Value::Map(_) => self.members(budget)?.len(),
            _ => return Ok(None),
        }))
    }

    /// Returns the members of an object, each name once: of several the last value, at the position of the first.
    pub fn members(&self, budget: &Budget) -> EvalResult<Vec<Member<'v>>> {
        let mut members = ChargedVec::new(budget);
        match self {
            Value::Node(node) => {
                for member in node.members(budget) {
                    let (key, value) = member?;
                    members.push((Value::of(key, budget)?, Value::of(value, budget)?))?;
                }
            }
            Value::Map(map) => {
                for member in map.iter() {
                    members.push(member.clone())?;
                }
            }
            _ => {}
        }
        distinct(members.items, budget)
    }
}

/// A list that is charged for as it grows.
pub(super) struct ChargedVec<'b, T> {
    pub items: Vec<T>,
    budget: &'b Budget,
}

impl<'b, T> ChargedVec<'b, T> {
    pub fn new(budget: &'b Budget) -> Self {
        Self {
            items: Vec::new(),
            budget,
        }
    }

    pub fn push(&mut self, item: T) -> EvalResult<()> {
        self.budget.charge(ITEM)?;
        if self.items.len() == self.items.capacity() {
            let more = self.items.len().max(4);
            // The old and the new memory exist at the same time while the items are moved.
            self.budget
                .allocate((self.items.len() + more) * size_of::<T>())?;
            self.items.reserve_exact(more);
        }
        self.items.push(item);
        Ok(())
    }
}

/// Compares names. Only names of equal length are compared byte by byte.
fn same_name(key: &Value<'_>, name: &str, budget: &Budget) -> EvalResult<bool> {
    let key = key.as_text().unwrap_or_default();
    if key.len() != name.len() {
        return Ok(false);
    }
    budget.charge(name.len() as u64 / 8)?;
    Ok(key == name)
}

fn distinct<'v>(members: Vec<Member<'v>>, budget: &Budget) -> EvalResult<Vec<Member<'v>>> {
    /// Above this number the names are sorted.
    const FEW: usize = 8;
    let name = |at: usize| members[at].0.as_text().unwrap_or_default();
    let length: usize = members
        .iter()
        .map(|(key, _)| key.as_text().map_or(0, str::len))
        .sum();
    let is_distinct = if members.len() <= FEW {
        budget.charge_each(members.len() * members.len(), 2)?;
        budget.charge((length * members.len()) as u64 / 8)?;
        (0..members.len()).all(|at| (0..at).all(|before| name(before) != name(at)))
    } else {
        let rounds = members.len().ilog2() as usize + 1;
        budget.allocate(members.len() * size_of::<usize>())?;
        budget.charge_each(members.len() * rounds, ITEM)?;
        budget.charge_each(length, rounds as u64)?;
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_unstable_by(|one, other| name(*one).cmp(name(*other)));
        order.windows(2).all(|pair| name(pair[0]) != name(pair[1]))
    };
    if is_distinct {
        return Ok(members);
    }
    // Objects with repeated names are not intended, so this may be slow: the budget ends an evaluation that would take
    // too long.
    let mut kept: ChargedVec<'_, Member<'v>> = ChargedVec::new(budget);
    for (key, value) in members {
        budget.charge_each(kept.items.len(), ITEM)?;
        let name = key.as_text().unwrap_or_default();
        let mut before = None;
        for (at, (known, _)) in kept.items.iter().enumerate() {
            if same_name(known, name, budget)? {
                before = Some(at);
                break;
            }
        }
        match before.and_then(|at| kept.items.get_mut(at)) {
            Some((_, known)) => *known = value,
            None => kept.push((key, value))?,
        }
    }
    Ok(kept.items)
}

pub(super) enum Iter<'i, 'v> {
    List(std::slice::Iter<'i, Value<'v>>),
    Array(Items<'v>),
    Keys(std::vec::IntoIter<Value<'v>>),
    Characters(std::str::Chars<'i>),
}

/// An item that is not charged yet.
pub(super) enum UnchargedItem<'v> {
    Value(Value<'v>),
    Node(Node<'v>),
    Character(char),
}

impl<'v> UnchargedItem<'v> {
    pub fn take(self, budget: &Budget) -> EvalResult<Value<'v>> {
        budget.charge(ITEM)?;
        match self {
            UnchargedItem::Value(value) => Ok(value),
            UnchargedItem::Node(node) => Value::of(node, budget),
            UnchargedItem::Character(c) => Value::built(c.encode_utf8(&mut [0; 4]), budget),
        }
    }
}

impl<'v> Iterator for Iter<'_, 'v> {
    type Item = UnchargedItem<'v>;

    fn next(&mut self) -> Option<UnchargedItem<'v>> {
        match self {
            Iter::List(items) => items.next().cloned().map(UnchargedItem::Value),
            Iter::Array(nodes) => nodes.next().map(UnchargedItem::Node),
            Iter::Keys(keys) => keys.next().map(UnchargedItem::Value),
            Iter::Characters(characters) => characters.next().map(UnchargedItem::Character),
        }
    }
}
