//! The slots of the columns: one for each node, and lanes for the edges that pass a column.

use super::*;

const LANE_HEIGHT: i32 = 10;
/// The most lanes of a graph.
pub(super) const MOST_LANES: usize = 2_000;
/// The most lanes that all edges pass: each has two corners.
pub(super) const MOST_PASSED: usize = 10_000;

/// A slot in a column holds a node, or the lane of edges that pass it.
pub(super) struct Slot {
    pub(super) node: Option<usize>,
    pub(super) height: i32,
    pub(super) left: Vec<usize>,
    pub(super) right: Vec<usize>,
    pub(super) y: i32,
}

impl Slot {
    pub(super) fn centre(&self) -> i32 {
        self.y + self.height / 2
    }
}

/// The slots that an edge passes, its node at the left first. Of an edge that runs along the bus they are its two nodes.
pub(super) struct Way {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) slots: Vec<usize>,
    pub(super) is_on_bus: bool,
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

pub(super) fn slots(
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
