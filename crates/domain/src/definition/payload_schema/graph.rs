//! A schema as a graph of its parts: the edges say which parts apply to the same value, or to the values in it.

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::pattern::{MOST_STATES, Pattern};
use crate::values::fields::{FieldFault, escape};

/// The largest number of parts of a schema.
const MOST_PARTS: usize = 2000;
/// The largest number of patterns, and of the states of all patterns together.
const MOST_PATTERNS: usize = 100;
const MOST_STATES_OF_ALL: u64 = 5000;

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

#[derive(Default)]
pub(super) struct SchemaGraph {
    /// The parts. The first is the schema itself.
    pub parts: Vec<Part>,
    pub has_unique: bool,
}

/// A subschema.
#[derive(Default)]
pub(super) struct Part {
    pub pointer: String,
    /// The parts that apply to the same value.
    pub of_same_value: Vec<AppliedPart>,
    /// The parts that apply to the members of an object. At most one part of each group applies to a member.
    pub of_members: Vec<Vec<usize>>,
    /// The parts that apply to the items of an array, in groups as in `of_members`.
    pub of_items: Vec<Vec<usize>>,
    /// The cost of applying it without its parts, and the cost for each byte of a string.
    pub weight: u64,
    pub per_byte: u64,
}

pub(super) struct AppliedPart {
    pub part: usize,
    /// The number of times that it is applied.
    pub times: u64,
    pub alternative: Alternative,
}

/// Decides how the faults of a part are used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Alternative {
    /// The faults are faults of the whole.
    Required,
    /// The faults are collected only if no other alternative matches.
    Choice,
    /// The faults are never reported.
    Silent,
}

/// The cost of one keyword.
const KEYWORD: u64 = 16;
/// The cost of `multipleOf`: a number must be a multiple of another.
const MULTIPLE_OF: u64 = 1000;
/// The cost of one active state of a pattern, for each byte.
const STATE: u64 = 5;

impl SchemaGraph {
    pub fn of(schema: &Value) -> Result<Self, FieldFault> {
        let mut reader = SchemaReader {
            root: schema,
            graph: SchemaGraph::default(),
            known: HashMap::new(),
            unread: Vec::new(),
            anchors: HashMap::new(),
            patterns: 0,
            states: 0,
        };
        reader.anchors(schema);
        reader.part(schema, String::new())?;
        while let Some((index, value)) = reader.unread.pop() {
            if let Value::Object(members) = value {
                reader.read(index, members)?;
            }
        }
        Ok(reader.graph)
    }
}

struct SchemaReader<'s> {
    root: &'s Value,
    graph: SchemaGraph,
    /// The parts by the address of their value, which is stable as long as the document is borrowed.
    known: HashMap<*const Value, usize>,
    unread: Vec<(usize, &'s Value)>,
    anchors: HashMap<&'s str, &'s Value>,
    patterns: usize,
    states: u64,
}

impl<'s> SchemaReader<'s> {
    fn anchors(&mut self, value: &'s Value) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(anchor)) = members.get("$anchor") {
                    self.anchors.entry(anchor).or_insert(value);
                }
                members.values().for_each(|member| self.anchors(member));
            }
            Value::Array(items) => items.iter().for_each(|item| self.anchors(item)),
            _ => {}
        }
    }

    fn part(&mut self, value: &'s Value, pointer: String) -> Result<usize, FieldFault> {
        if let Some(index) = self.known.get(&std::ptr::from_ref(value)) {
            return Ok(*index);
        }
        let index = self.graph.parts.len();
        if index >= MOST_PARTS {
            return Err(FieldFault::new(
                "",
                format!("has more than {MOST_PARTS} subschemas: simplify it"),
            ));
        }
        self.known.insert(std::ptr::from_ref(value), index);
        self.unread.push((index, value));
        self.graph.parts.push(Part {
            pointer,
            weight: KEYWORD,
            ..Part::default()
        });
        Ok(index)
    }

    fn read(&mut self, index: usize, members: &'s Map<String, Value>) -> Result<(), FieldFault> {
        let own = self.graph.parts[index].pointer.clone();
        let (mut one_of_members, mut one_of_items) = (Vec::new(), Vec::new());
        for (keyword, value) in members {
            let pointer = format!("{own}/{}", escape(keyword));
            let weight = self.weight(keyword, value, &pointer)?;
            let part = &mut self.graph.parts[index];
            part.weight = part.weight.saturating_add(weight.0);
            part.per_byte = part.per_byte.saturating_add(weight.1);
            match keyword.as_str() {
                "$ref" => {
                    if let Value::String(target) = value {
                        let (target, at) = self.target(target, &pointer)?;
                        let target = self.part(target, at)?;
                        self.apply(index, target, Alternative::Required);
                    }
                }
                "allOf" => self.apply_each(index, value, &pointer, Alternative::Required)?,
                "anyOf" | "oneOf" => {
                    self.apply_each(index, value, &pointer, Alternative::Choice)?;
                }
                "dependentSchemas" | "dependencies" => {
                    self.apply_each(index, value, &pointer, Alternative::Required)?;
                }
                "then" | "else" => self.apply_one(index, value, pointer, Alternative::Required)?,
                "if" | "not" => self.apply_one(index, value, pointer, Alternative::Silent)?,
                "properties" => {
                    for (name, value) in entries(value) {
                        let pointer = format!("{pointer}/{}", escape(name));
                        one_of_members.push(self.part(value, pointer)?);
                    }
                }
                "additionalProperties" | "unevaluatedProperties" => {
                    one_of_members.push(self.part(value, pointer)?);
                }
                "propertyNames" => {
                    let names = self.part(value, pointer)?;
                    self.graph.parts[index].of_members.push(vec![names]);
                }
                "patternProperties" => {
                    for (pattern, value) in entries(value) {
                        let pointer = format!("{pointer}/{}", escape(pattern));
                        let per_byte = self.pattern(pattern, &pointer)?;
                        let member = self.part(value, pointer.clone())?;
                        // The pattern is matched with the names of all members.
                        self.graph.parts.push(Part {
                            pointer,
                            weight: KEYWORD,
                            per_byte,
                            ..Part::default()
                        });
                        let names = self.graph.parts.len() - 1;
                        let groups = [vec![member], vec![names]];
                        self.graph.parts[index].of_members.extend(groups);
                    }
                }
                "prefixItems" => {
                    for (at, value) in value.as_array().into_iter().flatten().enumerate() {
                        one_of_items.push(self.part(value, format!("{pointer}/{at}"))?);
                    }
                }
                "items" | "unevaluatedItems" | "additionalItems" => {
                    one_of_items.push(self.part(value, pointer)?);
                }
                "contains" => {
                    let item = self.part(value, pointer)?;
                    self.graph.parts[index].of_items.push(vec![item]);
                }
                _ => {}
            }
        }
        let looks_again = ["unevaluatedProperties", "unevaluatedItems"]
            .iter()
            .any(|keyword| members.contains_key(*keyword));
        let part = &mut self.graph.parts[index];
        if looks_again {
            // The parts are applied again to find out which members they cover.
            part.of_same_value
                .iter_mut()
                .for_each(|here| here.times *= 3);
        }
        part.of_members.push(one_of_members);
        part.of_items.push(one_of_items);
        Ok(())
    }

    fn apply(&mut self, to: usize, part: usize, alternative: Alternative) {
        self.graph.parts[to].of_same_value.push(AppliedPart {
            part,
            times: 1,
            alternative,
        });
    }

    fn apply_one(
        &mut self,
        to: usize,
        value: &'s Value,
        pointer: String,
        alternative: Alternative,
    ) -> Result<(), FieldFault> {
        let part = self.part(value, pointer)?;
        self.apply(to, part, alternative);
        Ok(())
    }

    /// Applies each subschema in an array or an object.
    fn apply_each(
        &mut self,
        to: usize,
        value: &'s Value,
        pointer: &str,
        alternative: Alternative,
    ) -> Result<(), FieldFault> {
        for (at, item) in value.as_array().into_iter().flatten().enumerate() {
            self.apply_one(to, item, format!("{pointer}/{at}"), alternative)?;
        }
        for (name, member) in entries(value) {
            let pointer = format!("{pointer}/{}", escape(name));
            self.apply_one(to, member, pointer, alternative)?;
        }
        Ok(())
    }

    /// Returns the cost of a keyword each time, and for each byte of a string. Refuses keywords that are not supported.
    fn weight(
        &mut self,
        keyword: &str,
        value: &Value,
        pointer: &str,
    ) -> Result<(u64, u64), FieldFault> {
        let fault = |message: &str| Err(FieldFault::new(pointer, message));
        match keyword {
            "$schema"
                if value
                    .as_str()
                    .is_none_or(|dialect| dialect.trim_end_matches('#') != DIALECT) =>
            {
                return fault(&format!(
                    "must be {DIALECT:?}: no other dialect is supported"
                ));
            }
            "$id" if pointer != "/$id" => {
                return fault("is only allowed at the top: refer to subschemas by `#/$defs/…`");
            }
            "$dynamicRef" | "$dynamicAnchor" | "$recursiveRef" | "$recursiveAnchor" => {
                return fault("is not supported: use `$ref`");
            }
            "enum" | "const" | "required" | "dependentRequired" => {
                return Ok((KEYWORD + 2 * value.to_string().len() as u64, 2));
            }
            "minLength" | "maxLength" => return Ok((KEYWORD, 1)),
            "multipleOf" => return Ok((MULTIPLE_OF, 0)),
            "uniqueItems" => self.graph.has_unique = true,
            "pattern" => {
                if let Value::String(pattern) = value {
                    return Ok((KEYWORD, self.pattern(pattern, pointer)?));
                }
            }
            "properties" => return Ok((KEYWORD * (1 + entries(value).count() as u64), 0)),
            // These keywords only describe.
            "title" | "description" | "default" | "examples" | "$comment" | "$defs"
            | "definitions" => return Ok((0, 0)),
            _ => {}
        }
        Ok((KEYWORD, 0))
    }

    /// Returns the cost of matching a pattern, for each byte.
    fn pattern(&mut self, source: &str, pointer: &str) -> Result<u64, FieldFault> {
        let pattern = Pattern::of(source);
        self.patterns += 1;
        self.states = self.states.saturating_add(pattern.states);
        if pattern.states > MOST_STATES {
            return Err(FieldFault::new(
                pointer,
                "is too large: its counted repetitions multiply, so shorten them, or use minLength and maxLength",
            ));
        }
        if self.patterns > MOST_PATTERNS || self.states > MOST_STATES_OF_ALL {
            return Err(FieldFault::new(
                pointer,
                format!(
                    "makes the patterns of the schema too many, or too large together: at most {MOST_PATTERNS}, with shorter counted repetitions"
                ),
            ));
        }
        Ok(STATE * pattern.active)
    }

    /// Returns the target of a reference, and its JSON pointer.
    fn target(&self, target: &str, pointer: &str) -> Result<(&'s Value, String), FieldFault> {
        let Some(fragment) = target.strip_prefix('#') else {
            return Err(FieldFault::new(
                pointer,
                format!(
                    "must lead to a place in this schema, as `#/$defs/…` does, not to {target:?}: nothing is fetched"
                ),
            ));
        };
        let fragment = percent_decode_str(fragment).decode_utf8_lossy();
        let found = match &*fragment {
            "" => Some((self.root, String::new())),
            path if path.starts_with('/') => self
                .root
                .pointer(path)
                .map(|found| (found, path.to_owned())),
            anchor => self
                .anchors
                .get(anchor)
                .map(|found| (*found, format!("#{anchor}"))),
        };
        found.ok_or_else(|| {
            FieldFault::new(
                pointer,
                format!("leads to {target:?}, which is not in this schema"),
            )
        })
    }
}

fn entries(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let members = value.as_object().into_iter().flatten();
    members.map(|(name, value)| (name.as_str(), value))
}
