//! Places the steps of a task from left to right: a step is right of all that it follows. Ranks are longest paths,
//! sweeps by barycentres order each column, and an edge that passes a column has a lane of its own there, so that it
//! runs around the nodes. Where there would be too many lanes to read or to compute, the longest edges run along one bus
//! below all nodes. Only places are computed here; a template draws them.

use std::collections::{BTreeSet, HashMap, VecDeque};

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
const LANE_HEIGHT: i32 = 10;
const LEFT: i32 = 4;
const TOP: i32 = 6;
/// The sweeps of each kind: further ones hardly change the order of graphs that people define.
const SWEEPS: usize = 4;
/// The most lanes of a graph.
const MOST_LANES: usize = 2_000;
/// The most lanes that all edges pass: each has two corners.
const MOST_PASSED: usize = 10_000;
/// The most visits of slots and links in the sweeps of a layout. A graph that has more of them gets fewer sweeps.
const MOST_VISITS: usize = 200_000;

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

/// A slot in a column holds a node, or the lane of edges that pass it.
struct Slot {
    node: Option<usize>,
    height: i32,
    left: Vec<usize>,
    right: Vec<usize>,
    y: i32,
}

impl Slot {
    fn centre(&self) -> i32 {
        self.y + self.height / 2
    }
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

/// Returns the number of slots and links, which one sweep visits.
fn visits(slots: &[Slot]) -> usize {
    let links = slots.iter().map(|slot| slot.left.len() + slot.right.len());
    slots.len() + links.sum::<usize>()
}

/// Returns the number of sweeps of each kind: two by which a column is ordered for one that levels it.
fn sweeps(slots: &[Slot]) -> usize {
    (MOST_VISITS / (3 * visits(slots)).max(1)).clamp(1, SWEEPS)
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

fn without_garbage(vertices: &[Vertex]) -> Vec<Vec<usize>> {
    let clean = |(to, vertex): (usize, &Vertex)| {
        let valid = vertex
            .after
            .iter()
            .copied()
            .filter(|&from| from != to && from < vertices.len());
        let mut valid: Vec<_> = valid.collect();
        valid.sort_unstable();
        valid.dedup();
        valid
    };
    vertices.iter().enumerate().map(clean).collect()
}

/// Returns the length of the longest path to each vertex. Where only cycles remain, the first vertex begins.
fn ranks(after: &[Vec<usize>]) -> Vec<usize> {
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); after.len()];
    for (to, list) in after.iter().enumerate() {
        for &from in list {
            before[from].push(to);
        }
    }
    let mut open: Vec<usize> = after.iter().map(Vec::len).collect();
    let mut ranks = vec![0; after.len()];
    let mut begun = vec![false; after.len()];
    let mut ready: Vec<usize> = (0..after.len())
        .filter(|&vertex| open[vertex] == 0)
        .collect();
    let mut first_open = 0;
    loop {
        let Some(vertex) = ready.pop() else {
            while first_open < after.len() && begun[first_open] {
                first_open += 1;
            }
            if first_open == after.len() {
                return ranks;
            }
            open[first_open] = 0;
            ready.push(first_open);
            continue;
        };
        if std::mem::replace(&mut begun[vertex], true) {
            continue;
        }
        for &to in &before[vertex] {
            if begun[to] {
                continue;
            }
            ranks[to] = ranks[to].max(ranks[vertex] + 1);
            open[to] = open[to].saturating_sub(1);
            if open[to] == 0 {
                ready.push(to);
            }
        }
    }
}

/// Returns the vertices in the order in which a walk in depth finds them. So begin the columns of a tree: nothing crosses, and
/// what follows one step stays together where a rank takes several columns. The sweeps alone do not find that order.
fn discovered(after: &[Vec<usize>]) -> Vec<usize> {
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); after.len()];
    for (to, list) in after.iter().enumerate() {
        for &from in list {
            before[from].push(to);
        }
    }
    let (first, others): (Vec<usize>, Vec<usize>) =
        (0..after.len()).partition(|&vertex| after[vertex].is_empty());
    let mut is_found = vec![false; after.len()];
    let mut found = Vec::with_capacity(after.len());
    for begin in first.into_iter().chain(others) {
        let mut open = vec![begin];
        while let Some(vertex) = open.pop() {
            if !std::mem::replace(&mut is_found[vertex], true) {
                found.push(vertex);
                open.extend(before[vertex].iter().rev());
            }
        }
    }
    found
}

/// Returns the column of each vertex: a rank takes as many as it needs.
fn columns(ranks: &[usize], found: &[usize]) -> Vec<usize> {
    let last = ranks.iter().max().copied().unwrap_or(0);
    let mut in_rank = vec![0_usize; last + 1];
    let mut places = vec![0; ranks.len()];
    for &vertex in found {
        let rank = ranks[vertex];
        places[vertex] = in_rank[rank];
        in_rank[rank] += 1;
    }
    let mut first = vec![0; last + 1];
    for rank in 1..=last {
        first[rank] = first[rank - 1] + in_rank[rank - 1].div_ceil(MOST_IN_A_COLUMN);
    }
    let column = |(&rank, place): (&usize, usize)| first[rank] + place / MOST_IN_A_COLUMN;
    ranks.iter().zip(places).map(column).collect()
}

/// The slots that an edge passes, its node at the left first. Of an edge that runs along the bus they are its two nodes.
struct Way {
    from: usize,
    to: usize,
    slots: Vec<usize>,
    is_on_bus: bool,
}

/// Edges share a lane if they have one source, or one target and no other edge at their sources: a step that two
/// hundred follow would have two hundred lanes otherwise.
#[derive(Clone, Copy)]
enum LaneOf {
    Source(usize),
    Target(usize),
}

impl LaneOf {
    fn new(from: usize, to: usize, leaving: &[usize]) -> Self {
        match leaving[from] {
            1 => Self::Target(to),
            _ => Self::Source(from),
        }
    }
}

/// Returns the length from which on edges run along the bus: shorter ones have all lanes that they need.
fn bus_from(after: &[Vec<usize>], columns: &[usize], leaving: &[usize]) -> usize {
    let edges = after.iter().enumerate().flat_map(|(to, list)| {
        let forward = move |from: &&usize| columns[**from] + 1 < columns[to];
        list.iter().filter(forward).map(move |&from| (from, to))
    });
    let mut edges: Vec<_> = edges
        .map(|(from, to)| (columns[to] - columns[from] - 1, from, to))
        .collect();
    edges.sort_unstable();
    let mut longest: HashMap<(bool, usize), usize> = HashMap::new();
    let (mut lanes, mut all) = (0, 0);
    for (passed, from, to) in edges {
        let shared = match LaneOf::new(from, to, leaving) {
            LaneOf::Source(from) => (true, from),
            LaneOf::Target(to) => (false, to),
        };
        let known = longest.entry(shared).or_default();
        lanes += passed - *known;
        *known = passed;
        all += passed;
        if lanes > MOST_LANES || all > MOST_PASSED {
            return passed;
        }
    }
    usize::MAX
}

fn slots(
    vertices: &[Vertex],
    after: &[Vec<usize>],
    columns: &[usize],
    found: &[usize],
) -> (Vec<Slot>, Vec<Vec<usize>>, Vec<Way>) {
    let width = columns.iter().max().map_or(0, |last| last + 1);
    let mut grid = vec![Vec::new(); width];
    let mut slots = Vec::new();
    for &vertex in found {
        grid[columns[vertex]].push(vertex);
    }
    for vertex in vertices {
        let height = if vertex.tall {
            TALL_HEIGHT
        } else {
            NODE_HEIGHT
        };
        slots.push(Slot {
            node: Some(slots.len()),
            height,
            left: vec![],
            right: vec![],
            y: 0,
        });
    }
    let mut leaving = vec![0; after.len()];
    for &from in after.iter().flatten() {
        leaving[from] += 1;
    }
    let bus_from = bus_from(after, columns, &leaving);
    let mut lanes_of_source = vec![Vec::new(); after.len()];
    let mut lanes_of_target = vec![Vec::new(); after.len()];
    let mut ways = Vec::new();
    // The columns of a tree begin in the order of the walk. A lane is where the walk finds the step that it leads to, so that
    // it is below all that was found before it: no edges cross then.
    let mut keys = vec![0; after.len()];
    for (key, &vertex) in found.iter().enumerate() {
        keys[vertex] = key;
    }
    for (to, list) in after.iter().enumerate() {
        for &from in list.iter().filter(|&&from| columns[from] < columns[to]) {
            let lane_of = LaneOf::new(from, to, &leaving);
            let passed = columns[from] + 1..columns[to];
            if passed.len() >= bus_from {
                ways.push(Way {
                    from,
                    to,
                    slots: vec![from, to],
                    is_on_bus: true,
                });
                continue;
            }
            // Lanes of a source are listed from the left, those of a target from the right: each list has no holes.
            let lanes: &mut Vec<usize> = match lane_of {
                LaneOf::Source(from) => &mut lanes_of_source[from],
                LaneOf::Target(to) => &mut lanes_of_target[to],
            };
            for made in lanes.len()..passed.len() {
                let column = match lane_of {
                    LaneOf::Source(_) => passed.start + made,
                    LaneOf::Target(_) => passed.end - 1 - made,
                };
                grid[column].push(slots.len());
                keys.push(keys[to]);
                lanes.push(slots.len());
                slots.push(Slot {
                    node: None,
                    height: LANE_HEIGHT,
                    left: vec![],
                    right: vec![],
                    y: 0,
                });
            }
            let mut way = vec![from];
            match lane_of {
                LaneOf::Source(_) => way.extend(&lanes[..passed.len()]),
                LaneOf::Target(_) => way.extend(lanes[..passed.len()].iter().rev()),
            }
            way.push(to);
            for pair in way.windows(2) {
                slots[pair[0]].right.push(pair[1]);
                slots[pair[1]].left.push(pair[0]);
            }
            ways.push(Way {
                from,
                to,
                slots: way,
                is_on_bus: false,
            });
        }
    }
    if after.iter().all(|list| list.len() < 2) {
        for column in &mut grid {
            column.sort_by_key(|&slot| keys[slot]);
        }
    }
    for slot in &mut slots {
        for beside in [&mut slot.left, &mut slot.right] {
            beside.sort_unstable();
            beside.dedup();
        }
    }
    (slots, grid, ways)
}

/// Returns the number of crossings between neighbouring columns.
fn crossings(slots: &[Slot], grid: &[Vec<usize>]) -> usize {
    let mut places = vec![0; slots.len()];
    for column in grid {
        for (place, &slot) in column.iter().enumerate() {
            places[slot] = place;
        }
    }
    let mut count = 0;
    for column in grid {
        // The ends of the edges so far, sorted: an edge crosses those that begin above it and end below it.
        let mut ends: Vec<usize> = Vec::new();
        for &slot in column {
            let mut own: Vec<usize> = slots[slot].right.iter().map(|&to| places[to]).collect();
            own.sort_unstable();
            for &end in &own {
                count += ends.len() - ends.partition_point(|&other| other <= end);
            }
            for end in own {
                ends.insert(ends.partition_point(|&other| other <= end), end);
            }
        }
    }
    count
}

/// Orders each column by the mean place of its neighbours, from the left and from the right in turns.
fn order(slots: &mut [Slot], grid: &mut [Vec<usize>], sweeps: usize) {
    let mut places = vec![0.0; slots.len()];
    let number = |column: &[usize], places: &mut Vec<f64>| {
        for (place, &slot) in column.iter().enumerate() {
            // Columns of different lengths are compared by what lies beside their middle.
            places[slot] = place as f64 - (column.len() as f64 - 1.0) / 2.0;
        }
    };
    for column in grid.iter() {
        number(column, &mut places);
    }
    for sweep in 0..sweeps * 2 {
        let from_left = sweep % 2 == 0;
        for step in 0..grid.len() {
            let column = if from_left {
                step
            } else {
                grid.len() - 1 - step
            };
            let mean = |slot: usize| {
                let beside = if from_left {
                    &slots[slot].left
                } else {
                    &slots[slot].right
                };
                let sum: f64 = beside.iter().map(|&other| places[other]).sum();
                let mean = if beside.is_empty() {
                    places[slot]
                } else {
                    sum / beside.len() as f64
                };
                (mean * 2.0).round() / 2.0
            };
            let mut keyed: Vec<_> = grid[column]
                .iter()
                .map(|&slot| (mean(slot), slot))
                .collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            grid[column] = keyed
                .chunk_by(|a, b| a.0 == b.0)
                .flat_map(|equals| lanes_in_the_middle(slots, equals))
                .collect();
            number(&grid[column], &mut places);
        }
    }
}

/// Puts the lanes of slots without another preference between their nodes. Lanes below all nodes would draw the next
/// column down, and so on.
fn lanes_in_the_middle(slots: &[Slot], equals: &[(f64, usize)]) -> Vec<usize> {
    let (nodes, lanes): (Vec<usize>, Vec<usize>) = equals
        .iter()
        .map(|&(_, slot)| slot)
        .partition(|&slot| slots[slot].node.is_some());
    let (above, below) = nodes.split_at(nodes.len() / 2);
    [above, &lanes, below].concat()
}

/// Gives each slot a height that is near those of its neighbours. The order of a column stays, and no two overlap.
fn level(slots: &mut [Slot], grid: &[Vec<usize>], sweeps: usize) {
    for column in grid {
        let wanted: Vec<f64> = vec![0.0; column.len()];
        fit(slots, column, &wanted);
    }
    for sweep in 0..sweeps {
        for step in 0..grid.len() {
            let column = if sweep % 2 == 0 {
                step
            } else {
                grid.len() - 1 - step
            };
            let wanted: Vec<f64> = grid[column]
                .iter()
                .map(|&slot| {
                    // The first sweeps follow one side, the last both.
                    let left = slots[slot].left.iter().filter(|_| sweep != 1);
                    let right = slots[slot].right.iter().filter(|_| sweep != 0);
                    let (sum, count) = left.chain(right).fold((0, 0), |(sum, count), &other| {
                        (sum + slots[other].centre(), count + 1)
                    });
                    if count == 0 {
                        f64::from(slots[slot].centre())
                    } else {
                        f64::from(sum) / f64::from(count)
                    }
                })
                .collect();
            fit(slots, &grid[column], &wanted);
        }
    }
    let top = slots.iter().map(|slot| slot.y).min().unwrap_or(0);
    for slot in slots {
        slot.y += TOP - top;
    }
}

/// Moves the slots of a column as near to the wanted centres as their order and the room between them allow: least
/// squares, by pooling adjacent violators.
fn fit(slots: &mut [Slot], column: &[usize], wanted: &[f64]) {
    let mut offsets = Vec::with_capacity(column.len());
    let mut bottom = 0;
    for &slot in column {
        offsets.push(bottom + slots[slot].height / 2);
        bottom += slots[slot].height + BETWEEN_NODES;
    }
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for (&centre, &offset) in wanted.iter().zip(&offsets) {
        let mut pool = (centre - f64::from(offset), 1);
        while let Some(&(sum, count)) = pools.last()
            && sum / count as f64 >= pool.0 / pool.1 as f64
        {
            pools.pop();
            pool = (pool.0 + sum, pool.1 + count);
        }
        pools.push(pool);
    }
    let shifts = pools
        .iter()
        .flat_map(|&(sum, count)| vec![(sum / count as f64).round() as i32; count]);
    for ((&slot, &offset), shift) in column.iter().zip(&offsets).zip(shifts) {
        slots[slot].y = shift + offset - slots[slot].height / 2;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(after: &[&[usize]]) -> Vec<Vertex> {
        after
            .iter()
            .map(|list| Vertex {
                after: list.to_vec(),
                tall: false,
            })
            .collect()
    }

    /// The order of the shop: three in parallel, a join, three in parallel, and so on.
    fn order_of_the_shop() -> Vec<Vertex> {
        graph(&[
            &[],
            &[0],
            &[0],
            &[0],
            &[1, 2, 3],
            &[4],
            &[4],
            &[4],
            &[6],
            &[8, 5, 7],
            &[9],
            &[9],
        ])
    }

    /// Graphs of many shapes, from a small generator with a fixed seed. Some have cycles and indexes out of range.
    fn many() -> impl Iterator<Item = Vec<Vertex>> {
        let mut state = 7_u64;
        let mut draw = move |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below.max(1)
        };
        (0..300).map(move |round| {
            let nodes = 1 + draw(60);
            let garbage = round % 3 == 0;
            (0..nodes)
                .map(|to| {
                    let from = |draw: &mut dyn FnMut(usize) -> usize| {
                        if garbage { draw(nodes + 2) } else { draw(to) }
                    };
                    let count = if to == 0 && !garbage { 0 } else { draw(4) };
                    Vertex {
                        after: (0..count).map(|_| from(&mut draw)).collect(),
                        tall: draw(7) == 0,
                    }
                })
                .collect()
        })
    }

    /// Fails if nodes overlap, lie outside, or an edge passes through one or goes to the left.
    fn check(vertices: &[Vertex]) -> Layout {
        let layout = layout(vertices);
        assert_eq!(layout.places.len(), vertices.len());
        for (index, a) in layout.places.iter().enumerate() {
            assert!(a.x >= 0 && a.y >= 0, "{index} begins outside: {a:?}");
            assert!(
                a.x + NODE_WIDTH <= layout.width && a.y + a.height <= layout.height,
                "{index} ends outside: {a:?}"
            );
            for b in &layout.places[index + 1..] {
                let apart = a.x != b.x || a.y + a.height < b.y || b.y + b.height < a.y;
                assert!(apart, "{a:?} and {b:?} overlap");
            }
        }
        for edge in &layout.edges {
            let Edge { from, to, corners } = edge;
            let (source, target) = (layout.places[*from], layout.places[*to]);
            assert_eq!(
                corners.first(),
                Some(&(source.x + NODE_WIDTH, source.y + source.height / 2))
            );
            assert_eq!(
                corners.last(),
                Some(&(target.x, target.y + target.height / 2))
            );
            for pair in corners.windows(2) {
                let ((x, y), (next_x, next_y)) = (pair[0], pair[1]);
                assert!(x < next_x, "an edge from {from} to {to} goes to the left");
                for place in &layout.places {
                    let beside = next_x <= place.x || x >= place.x + NODE_WIDTH;
                    let clear = y.max(next_y) < place.y || y.min(next_y) > place.y + place.height;
                    assert!(
                        beside || clear,
                        "an edge from {from} to {to} passes through {place:?}"
                    );
                }
            }
        }
        layout
    }

    #[test]
    fn steps_in_parallel_stand_below_each_other_and_a_join_stands_right_of_all() {
        let layout = check(&order_of_the_shop());
        let x = |index: usize| layout.places[index].x;
        assert_eq!((x(0), x(1), x(2), x(3), x(4)), (4, 176, 176, 176, 348));
        assert_eq!(
            x(9),
            x(8) + 172,
            "a step stands right of the longest way to it"
        );
        assert_eq!(
            layout.places[0].y, layout.places[2].y,
            "the middle one of three is level with their source"
        );
        assert_eq!(layout.edges.len(), 15);
        assert_eq!(layout.width, 7 * 172 - 30 + 8);
    }

    /// Returns how many pairs of edges between two columns cross.
    fn crossed(layout: &Layout) -> usize {
        let ends = |edge: &Edge| {
            let (from, to) = (layout.places[edge.from], layout.places[edge.to]);
            ((from.x, to.x), from.y, to.y)
        };
        let edges: Vec<_> = layout.edges.iter().map(ends).collect();
        let pairs = edges.iter().enumerate();
        pairs
            .flat_map(|(at, one)| edges[at + 1..].iter().map(move |other| (one, other)))
            .filter(|((columns, from, to), (others, begin, end))| {
                columns == others && (from - begin).signum() * (to - end).signum() < 0
            })
            .count()
    }

    #[test]
    fn a_tree_has_no_crossing_whatever_the_order_of_its_steps() {
        // Each step but the first follows one that comes anywhere in the list.
        for (children, count) in [(3, 13), (2, 15), (5, 11), (11, 12)] {
            let place = |number: usize| number * 7 % count;
            let mut vertices = vec![Vertex::default(); count];
            for number in 1..count {
                vertices[place(number)].after = vec![place((number - 1) / children)];
            }
            assert_eq!(crossed(&check(&vertices)), 0, "{children} of {count}");
        }
        let large = |number: usize| number * 7 % 480;
        let mut vertices = vec![Vertex::default(); 480];
        for number in 1..480 {
            vertices[large(number)].after = vec![large((number - 1) / 3)];
        }
        assert_eq!(crossed(&check(&vertices)), 0);
        // A drawing in which nothing crosses stays low.
        let fan = |to: usize| vec![0; to.min(1)];
        let fan: Vec<_> = (0..49)
            .map(|to| Vertex {
                after: fan(to),
                tall: false,
            })
            .collect();
        let layout = check(&fan);
        let most = (MOST_IN_A_COLUMN as i32 * (NODE_HEIGHT + BETWEEN_NODES)) * 3 / 2;
        assert!(layout.height <= most, "{}", layout.height);
    }

    #[test]
    fn no_nodes_overlap_and_no_edge_passes_through_one() {
        for vertices in many() {
            check(&vertices);
        }
    }

    #[test]
    fn the_same_steps_are_drawn_the_same_way() {
        for vertices in many() {
            assert_eq!(layout(&vertices), layout(&vertices.clone()));
        }
    }

    #[test]
    fn an_edge_that_passes_a_column_runs_around_its_nodes() {
        // Both ways lead from the first to the last, and the short one passes the column of the second.
        let layout = check(&graph(&[&[], &[0], &[0, 1]]));
        let long = layout
            .edges
            .iter()
            .find(|edge| (edge.from, edge.to) == (0, 2))
            .unwrap();
        assert_eq!(long.corners.len(), 4);
        let paths = layout.paths(|to| to == 2);
        assert!(
            paths
                .iter()
                .any(|(path, is_dashed)| path.contains('H') && *is_dashed),
            "{paths:?}"
        );
        assert!(
            paths
                .iter()
                .any(|(path, is_dashed)| path.contains('C') && *is_dashed),
            "{paths:?}"
        );
    }

    #[test]
    fn cycles_and_indexes_out_of_range_neither_hang_nor_panic() {
        assert_eq!(check(&graph(&[&[0]])).edges, []);
        assert_eq!(check(&graph(&[&[1], &[0]])).edges.len(), 1);
        assert_eq!(check(&graph(&[&[2], &[0], &[1]])).edges.len(), 2);
        assert_eq!(
            check(&graph(&[&[9, usize::MAX], &[0, 0, 0]])).edges.len(),
            1
        );
        assert_eq!(layout(&[]), Layout::default());
        let all: Vec<usize> = (0..80).collect();
        check(&vec![
            Vertex {
                after: all,
                tall: false
            };
            80
        ]);
    }

    #[test]
    fn a_rank_of_many_steps_wraps() {
        let mut vertices = vec![Vertex::default()];
        vertices.resize(
            41,
            Vertex {
                after: vec![0],
                tall: false,
            },
        );
        vertices.push(Vertex {
            after: (1..41).collect(),
            tall: false,
        });
        let layout = check(&vertices);
        let columns: BTreeSet<i32> = layout.places.iter().map(|place| place.x).collect();
        assert_eq!(columns.len(), 1 + 4 + 1);
        // Edges share lanes: with a lane for each of them, the columns would be three times as high as their nodes.
        let most = (MOST_IN_A_COLUMN as i32 * (NODE_HEIGHT + BETWEEN_NODES)) * 3 / 2;
        assert!(
            layout.height <= most,
            "{} is more than {most}",
            layout.height
        );
    }

    /// Five hundred steps in a chain, with other edges besides.
    fn chain_with(more: impl Fn(usize) -> Vec<usize>) -> Vec<Vertex> {
        let one = |to: usize| {
            let mut after = more(to);
            after.extend(to.checked_sub(1));
            Vertex { after, tall: false }
        };
        (0..500).map(one).collect()
    }

    #[test]
    fn a_large_graph_with_many_long_edges_takes_few_operations() {
        // Each visit takes some nanoseconds: a layout is far below ten milliseconds.
        let half = |to: usize| vec![to / 2];
        let many = |to: usize| (0..to).step_by(7).collect();
        let first = |to: usize| (0..to.min(3)).collect();
        let all = |to: usize| (0..to).collect();
        let shapes: [(&str, Vec<Vertex>); 4] = [
            ("half", chain_with(half)),
            ("many", chain_with(many)),
            ("first", chain_with(first)),
            ("all", chain_with(all)),
        ];
        for (name, vertices) in shapes {
            let after = without_garbage(&vertices);
            let found = discovered(&after);
            let columns = columns(&ranks(&after), &found);
            let (slots, _, ways) = slots(&vertices, &after, &columns, &found);
            assert!(slots.len() <= 500 + MOST_LANES, "{name}: {}", slots.len());
            let visited = 3 * sweeps(&slots) * visits(&slots);
            assert!(visited <= MOST_VISITS, "{name}: {visited} visits");
            let passed: usize = ways.iter().map(|way| way.slots.len()).sum();
            let edges: usize = after.iter().map(Vec::len).sum();
            assert!(
                passed <= 2 * edges + MOST_PASSED,
                "{name}: {passed} corners"
            );
        }
    }

    #[test]
    fn the_longest_edges_of_a_large_graph_run_below_all_nodes() {
        let layout = check(&chain_with(|to| vec![to / 2]));
        let bottom = |place: &NodePlace| place.y + place.height;
        let bottom = layout.places.iter().map(bottom).max().unwrap();
        let is_on_bus = |edge: &&Edge| edge.corners.iter().any(|(_, y)| *y > bottom);
        let on_bus: Vec<_> = layout.edges.iter().filter(is_on_bus).collect();
        assert!(!on_bus.is_empty());
        let columns = |edge: &Edge| edge.to - edge.from;
        let shortest = on_bus.iter().map(|edge| columns(edge)).min().unwrap();
        let others = layout.edges.iter().filter(|edge| !is_on_bus(edge));
        assert!(others.map(columns).max().unwrap() <= shortest);
        assert!(layout.height > bottom);
        let bus = format!("{}H", layout.bus.unwrap());
        let paths = layout.paths(|_| false);
        let on_bus = paths.iter().filter(|(path, _)| path.contains(&bus));
        assert_eq!(on_bus.count(), 1, "edges share one line");
    }

    #[test]
    fn a_neighbourhood_has_the_step_and_those_nearest_to_it() {
        let chain: Vec<_> = (0..500_usize)
            .map(|to| Vertex {
                after: to.checked_sub(1).into_iter().collect(),
                tall: false,
            })
            .collect();
        let kept = neighbourhood(&chain, 250, 5);
        assert_eq!(kept, [248, 249, 250, 251, 252]);
        let part = part(&chain, &kept);
        assert_eq!(part[0].after, [] as [usize; 0]);
        assert_eq!(part[1].after, [0]);
        check(&part);
        assert_eq!(neighbourhood(&chain, 900, 5), [] as [usize; 0]);
    }
}
