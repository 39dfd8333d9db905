//! The largest cost of validating a payload: it follows from the parts of the schema that apply at each depth, and from
//! the number of values that the payload has there. A schema that refers to itself twice applies twice as many parts at
//! each further depth.

use serde_json::Value;

use super::graph::{Alternative, Part, SchemaGraph};
use crate::{
    template::payload::Payload,
    values::{depth::DEEPEST, fields::FieldFault},
};

/// The number of depths: the top, and each depth below.
const DEPTHS: usize = DEEPEST + 2;

/// The largest number of parts that may apply within each other while one value is validated, because each takes stack.
const MOST_NESTED: u64 = 1200;

/// The cost of building and formatting a fault, in units of one applied part.
const FAULT: u64 = 64;

/// Whole numbers up to this one are equal if their hashes are equal.
const EXACT: u64 = 1 << 53;

/// The cost of one value at each depth.
pub(super) struct Costs {
    values: Vec<u64>,
    bytes: Vec<u64>,
    faults: Vec<u64>,
    /// The number of parts that are applied within each other, down to each depth.
    nested_counts: Vec<u64>,
    has_unique: bool,
}

/// The number of values and bytes of a payload at each depth.
pub(super) struct PayloadProfile {
    values: Vec<u64>,
    bytes: Vec<u64>,
    /// The cost of finding out whether the items of its arrays are unique.
    unique: Vec<u64>,
    deepest: usize,
}

/// The purpose for which parts are applied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CostPurpose {
    Check,
    Faults,
}

impl Costs {
    pub fn of(graph: &SchemaGraph) -> Result<Self, FieldFault> {
        let order = order(graph)?;
        let values = table(graph, &order, |part| part.weight, CostPurpose::Check);
        let bytes = table(graph, &order, |part| part.per_byte, CostPurpose::Check);
        let faults = table(graph, &order, |part| part.weight, CostPurpose::Faults);
        Ok(Self {
            values,
            bytes,
            faults,
            nested_counts: nested_counts(graph, &order),
            has_unique: graph.has_unique,
        })
    }

    /// Returns an upper bound that depends only on the length of the payload and its brackets.
    pub fn at_most(&self, payload: &Payload) -> u64 {
        let length = payload.as_json().len() as u64;
        // The number of opening brackets bounds the depth.
        let opens = payload
            .as_json()
            .bytes()
            .filter(|byte| matches!(byte, b'{' | b'['));
        let depth = opens.take(DEPTHS - 1).count();
        let most = |costs: &[u64]| costs.iter().take(depth + 1).copied().max().unwrap_or(0);
        let each = most(&self.values).saturating_add(most(&self.bytes));
        length.saturating_mul(each.max(50))
    }

    pub fn of_check(&self, profile: &PayloadProfile) -> u64 {
        if self.nested_counts[profile.deepest] > MOST_NESTED {
            return u64::MAX;
        }
        sum(&self.values, &profile.values)
            .saturating_add(sum(&self.bytes, &profile.bytes))
            .saturating_add(sum(&self.values, &profile.unique))
    }

    pub fn of_faults(&self, profile: &PayloadProfile) -> u64 {
        sum(&self.faults, &profile.values)
            .saturating_add(sum(&self.bytes, &profile.bytes))
            .saturating_add(sum(&self.values, &profile.unique))
    }
}

fn sum(costs: &[u64], counts: &[u64]) -> u64 {
    let products = costs.iter().zip(counts);
    products.fold(0, |sum, (cost, count)| {
        sum.saturating_add(cost.saturating_mul(*count))
    })
}

/// Returns the parts in an order in which each comes after the parts that apply to the same value with it. Refuses a
/// schema in which a part applies to a value because it already applies to it.
fn order(graph: &SchemaGraph) -> Result<Vec<usize>, FieldFault> {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        Not,
        Open,
        Done,
    }
    let mut seen = vec![Seen::Not; graph.parts.len()];
    let mut order = Vec::with_capacity(graph.parts.len());
    for first in 0..graph.parts.len() {
        // Each entry is a part, with the number of its parts that were visited.
        let mut path = vec![(first, 0)];
        if seen[first] != Seen::Not {
            continue;
        }
        seen[first] = Seen::Open;
        while let Some((part, looked)) = path.last_mut() {
            match graph.parts[*part].of_same_value.get(*looked) {
                Some(here) => {
                    *looked += 1;
                    match seen[here.part] {
                        Seen::Done => {}
                        Seen::Open => {
                            return Err(FieldFault::new(
                                graph.parts[here.part].pointer.clone(),
                                "refers to itself for the same value, so no value could ever be checked: refer to it from `properties` or `items`",
                            ));
                        }
                        Seen::Not => {
                            seen[here.part] = Seen::Open;
                            path.push((here.part, 0));
                        }
                    }
                }
                None => {
                    seen[*part] = Seen::Done;
                    order.push(*part);
                    path.pop();
                }
            }
        }
    }
    Ok(order)
}

/// Returns the sum of the costs of all parts that apply to one value, for each depth.
fn table(
    graph: &SchemaGraph,
    order: &[usize],
    weight: impl Fn(&Part) -> u64,
    mode: CostPurpose,
) -> Vec<u64> {
    let count = graph.parts.len();
    let own = |part: &Part| match mode {
        CostPurpose::Check => weight(part),
        CostPurpose::Faults => weight(part).saturating_add(FAULT),
    };
    // The costs at the depth above for a value of any type: `checked` if it is only validated, `found` if its faults
    // are collected.
    let (mut checked, mut found) = (vec![0u64; count], vec![0u64; count]);
    let mut costs = Vec::with_capacity(DEPTHS);
    for depth in 0..DEPTHS {
        let mut tables = [0; 4].map(|_: u64| vec![0u64; count]);
        for index in order {
            let part = &graph.parts[*index];
            let below = |groups: &[Vec<usize>], above: &[u64]| match depth {
                0 => 0,
                _ => groups.iter().fold(0u64, |sum, group| {
                    let heaviest = group.iter().map(|part| above[*part]).max();
                    sum.saturating_add(heaviest.unwrap_or(0))
                }),
            };
            let weigh = |weight: u64| if depth == 0 { weight } else { 0 };
            let mut of_object =
                weigh(weight(part)).saturating_add(below(&part.of_members, &checked));
            let mut of_array = weigh(weight(part)).saturating_add(below(&part.of_items, &checked));
            let mut found_object = weigh(own(part)).saturating_add(below(&part.of_members, &found));
            let mut found_array = weigh(own(part)).saturating_add(below(&part.of_items, &found));
            for here in &part.of_same_value {
                let add = |sum: &mut u64, cost: u64| {
                    *sum = sum.saturating_add(cost.saturating_mul(here.times));
                };
                add(&mut of_object, tables[0][here.part]);
                add(&mut of_array, tables[1][here.part]);
                if here.alternative != Alternative::Required {
                    add(&mut found_object, tables[0][here.part]);
                    add(&mut found_array, tables[1][here.part]);
                }
                if here.alternative != Alternative::Silent {
                    add(&mut found_object, tables[2][here.part]);
                    add(&mut found_array, tables[3][here.part]);
                }
            }
            for (table, cost) in
                tables
                    .iter_mut()
                    .zip([of_object, of_array, found_object, found_array])
            {
                table[*index] = cost;
            }
        }
        let [objects, arrays, found_objects, found_arrays] = tables;
        let larger =
            |a: Vec<u64>, b: Vec<u64>| a.into_iter().zip(b).map(|(a, b)| a.max(b)).collect();
        checked = larger(objects, arrays);
        found = larger(found_objects, found_arrays);
        costs.push(match mode {
            CostPurpose::Check => checked[0],
            CostPurpose::Faults => found[0],
        });
    }
    costs
}

/// Returns the number of parts that apply within each other, down to each depth.
fn nested_counts(graph: &SchemaGraph, order: &[usize]) -> Vec<u64> {
    let mut above = vec![0u64; graph.parts.len()];
    let mut nested = Vec::with_capacity(DEPTHS);
    for _ in 0..DEPTHS {
        let mut now = vec![0u64; graph.parts.len()];
        for index in order {
            let part = &graph.parts[*index];
            let here = part.of_same_value.iter().map(|here| now[here.part]);
            let below = part.of_members.iter().chain(&part.of_items).flatten();
            let below = below.map(|part| above[*part]);
            now[*index] = 1 + here.chain(below).max().unwrap_or(0);
        }
        nested.push(now[0]);
        above = now;
    }
    nested
}

impl PayloadProfile {
    pub fn of(value: &Value, costs: &Costs) -> Self {
        let mut profile = Self {
            values: vec![0; DEPTHS],
            bytes: vec![0; DEPTHS],
            unique: vec![0; DEPTHS],
            deepest: 0,
        };
        profile.add(value, 0, costs.has_unique);
        profile
    }

    /// Returns the size of the value, and whether it may contain different whole numbers with equal hashes.
    fn add(&mut self, value: &Value, depth: usize, has_unique: bool) -> (u64, bool) {
        // Parsing has bounded the depth of the payload.
        let depth = depth.min(DEPTHS - 1);
        self.deepest = self.deepest.max(depth);
        self.values[depth] += 1;
        let (mut count, mut collides) = (1, false);
        match value {
            Value::Array(items) => {
                for item in items {
                    let (more, collide) = self.add(item, depth + 1, has_unique);
                    (count, collides) = (count + more, collides | collide);
                }
                if has_unique {
                    // Large numbers may all have the same hash.
                    let each = if collides { items.len() as u64 } else { 15 };
                    self.unique[depth] += count.saturating_mul(each.max(15)) / 8;
                }
            }
            Value::Object(members) => {
                for (name, member) in members {
                    // Names are validated as values are.
                    self.bytes[(depth + 1).min(DEPTHS - 1)] += name.len() as u64;
                    self.values[(depth + 1).min(DEPTHS - 1)] += 1;
                    let (more, collide) = self.add(member, depth + 1, has_unique);
                    (count, collides) = (count + more, collides | collide);
                }
            }
            Value::String(text) => {
                self.bytes[depth] += text.len() as u64;
                count += text.len() as u64 / 16;
            }
            Value::Number(number) => {
                let size = number.as_u64();
                let size = size.or_else(|| number.as_i64().map(i64::unsigned_abs));
                collides = size.is_some_and(|size| size > EXACT);
            }
            Value::Null | Value::Bool(_) => {}
        }
        (count, collides)
    }
}
