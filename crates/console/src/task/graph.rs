//! Places the steps of a task from left to right: a step is right of all that it follows. Ranks are longest paths,
//! sweeps by barycentres order each column, and an edge that passes a column has a lane of its own there, so that it
//! runs around the nodes. Where there would be too many lanes to read or to compute, the longest edges run along one bus
//! below all nodes. Only places are computed here; a template draws them.

mod columns;
mod lanes;
mod sweeps;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};

use columns::{columns, discovered, ranks, without_garbage};
use lanes::{Slot, Way, slots};
use sweeps::{crossings, level, order, sweeps};

pub const NODE_WIDTH: i32 = 142;
pub const NODE_HEIGHT: i32 = 42;
/// A node of a list of items has a bar below its words.
pub const TALL_HEIGHT: i32 = 54;
/// A rank with more nodes than this takes several columns.
pub const MOST_IN_A_COLUMN: usize = 12;
/// A larger graph opens at one step with its neighbourhood.
pub const MOST_NODES: usize = 300;
/// The number of steps of a neighbourhood.
pub const NEIGHBOURS: usize = 60;

const BETWEEN_COLUMNS: i32 = 30;
const BETWEEN_NODES: i32 = 16;
const LEFT: i32 = 4;
const TOP: i32 = 6;

/// A step as the layout sees it. What it follows are indexes into the same list.
#[derive(Clone, Debug, Default)]
pub struct Vertex {
    pub after: Vec<usize>,
    pub tall: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePlace {
    pub x: i32,
    pub y: i32,
    pub height: i32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    pub from: usize,
    pub to: usize,
    /// The way of the edge as corners: at each, a horizontal part begins or ends.
    pub corners: Vec<(i32, i32)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// One place for each vertex.
    pub places: Vec<NodePlace>,
    pub edges: Vec<Edge>,
    pub width: i32,
    pub height: i32,
    /// The height of the bus, if edges run along it.
    pub bus: Option<i32>,
}

impl Layout {
    /// Returns the parts of all edges, each as the data of an SVG path: a cubic curve between two columns, a straight
    /// line through one. Edges that share a lane have one part there. `is_dashed` says it of the edges to a vertex; a
    /// part is dashed if all of its edges are.
    pub fn paths(&self, is_dashed: impl Fn(usize) -> bool) -> Vec<(String, bool)> {
        let mut parts: HashMap<EdgePart, bool> = HashMap::new();
        let mut on_bus = None;
        for edge in &self.edges {
            let is_dashed = is_dashed(edge.to);
            for pair in edge.corners.windows(2) {
                let ((from_x, from_y), (x, y)) = (pair[0], pair[1]);
                if Some(from_y) == self.bus && from_y == y {
                    // The edges on the bus have one line there.
                    let (left, right, all) = on_bus.unwrap_or((from_x, x, true));
                    on_bus = Some((left.min(from_x), right.max(x), all & is_dashed));
                } else {
                    *parts.entry((pair[0], pair[1])).or_insert(true) &= is_dashed;
                }
            }
        }
        if let (Some(y), Some((left, right, is_dashed))) = (self.bus, on_bus) {
            parts.insert(((left, y), (right, y)), is_dashed);
        }
        let mut parts: Vec<_> = parts.into_iter().collect();
        parts.sort_unstable();
        let parts = parts.into_iter();
        parts
            .map(|(part, is_dashed)| (path(part), is_dashed))
            .collect()
    }
}

/// A part of an edge, between two of its corners.
type EdgePart = ((i32, i32), (i32, i32));

fn path(((from_x, from_y), (x, y)): EdgePart) -> String {
    if from_y == y {
        return format!("M{from_x} {y}H{x}");
    }
    let middle = i32::midpoint(from_x, x);
    format!("M{from_x} {from_y}C{middle} {from_y} {middle} {y} {x} {y}")
}

/// Places all vertices. Edges that would close a cycle, and indexes out of range, are left out: a definition has none,
/// and what comes from elsewhere must not stop a page.
pub fn layout(vertices: &[Vertex]) -> Layout {
    if vertices.is_empty() {
        return Layout::default();
    }
    let after = without_garbage(vertices);
    let is_forest = after.iter().all(|list| list.len() < 2);
    let found = match is_forest {
        true => discovered(&after),
        false => (0..after.len()).collect(),
    };
    let columns = columns(&ranks(&after), &found);
    let (mut slots, mut grid, ways) = slots(vertices, &after, &columns, &found);
    let sweeps = sweeps(&slots);
    let walked = is_forest.then(|| grid.clone());
    order(&mut slots, &mut grid, sweeps);
    // The sweeps make a drawing lower, and in a large tree they make edges cross, which the order of the walk does not have.
    if let Some(walked) = walked
        && crossings(&slots, &walked) < crossings(&slots, &grid)
    {
        grid = walked;
    }
    level(&mut slots, &grid, sweeps);
    finish(vertices.len(), &slots, &columns, ways)
}

/// Returns the indexes of the vertices around one of them, nearest first found, in the order of the list.
pub fn neighbourhood(vertices: &[Vertex], focus: usize, most: usize) -> Vec<usize> {
    let after = without_garbage(vertices);
    let mut beside = after.clone();
    for (to, list) in after.iter().enumerate() {
        for &from in list {
            beside[from].push(to);
        }
    }
    let mut found = BTreeSet::new();
    let mut queue = VecDeque::from_iter((focus < after.len()).then_some(focus));
    while let Some(next) = queue.pop_front() {
        if found.len() == most {
            break;
        }
        if found.insert(next) {
            queue.extend(&beside[next]);
        }
    }
    found.into_iter().collect()
}

/// Returns a part of a graph: the vertices at these indexes, with the edges between them.
pub fn part(vertices: &[Vertex], kept: &[usize]) -> Vec<Vertex> {
    let places: HashMap<_, _> = kept.iter().zip(0..).collect();
    let one = |&index: &usize| Vertex {
        after: vertices[index]
            .after
            .iter()
            .filter_map(|from| places.get(from).copied())
            .collect(),
        tall: vertices[index].tall,
    };
    kept.iter().map(one).collect()
}

fn finish(nodes: usize, slots: &[Slot], columns: &[usize], ways: Vec<Way>) -> Layout {
    let x_of = |column: usize| LEFT + column as i32 * (NODE_WIDTH + BETWEEN_COLUMNS);
    let place = |slot: &Slot| {
        let vertex = slot.node?;
        Some(NodePlace {
            x: x_of(columns[vertex]),
            y: slot.y,
            height: slot.height,
        })
    };
    let places: Vec<NodePlace> = slots[..nodes].iter().filter_map(place).collect();
    let bottom = slots.iter().map(|slot| slot.y + slot.height).max();
    let bottom = bottom.unwrap_or(0);
    let bus = bottom + BETWEEN_NODES;
    let has_bus = ways.iter().any(|way| way.is_on_bus);
    let edge = |way: Way| {
        let first = columns[way.from];
        if way.is_on_bus {
            let (begin, end) = (slots[way.from].centre(), slots[way.to].centre());
            let (left, right) = (x_of(first), x_of(columns[way.to]));
            let corners = vec![
                (left + NODE_WIDTH, begin),
                (left + NODE_WIDTH + BETWEEN_COLUMNS, bus),
                (right - BETWEEN_COLUMNS, bus),
                (right, end),
            ];
            return Edge {
                from: way.from,
                to: way.to,
                corners,
            };
        }
        let mut corners = Vec::new();
        for (step, &slot) in way.slots.iter().enumerate() {
            let (x, y) = (x_of(first + step), slots[slot].centre());
            if step > 0 {
                corners.push((x, y));
            }
            if step + 1 < way.slots.len() {
                corners.push((x + NODE_WIDTH, y));
            }
        }
        Edge {
            from: way.from,
            to: way.to,
            corners,
        }
    };
    let right = columns
        .iter()
        .max()
        .map_or(0, |&last| x_of(last) + NODE_WIDTH + LEFT);
    let height = match has_bus {
        true => bus + TOP,
        false => bottom + TOP,
    };
    Layout {
        places,
        edges: ways.into_iter().map(edge).collect(),
        width: right,
        height,
        bus: has_bus.then_some(bus),
    }
}
