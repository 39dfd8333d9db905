//! What comes before what.

/// The order that `after` gives to steps, each known by its position.
pub(super) struct Graph {
    /// In which everything waited for stands first.
    order: Vec<usize>,
    cycles: Vec<Vec<usize>>,
    /// For each step the set of all that come before it, as bits.
    before: Vec<Vec<u64>>,
}

impl Graph {
    pub fn of(after: &[Vec<usize>]) -> Self {
        let (order, cycles) = walk(after);
        let mut before = vec![vec![0u64; after.len().div_ceil(64)]; after.len()];
        // One round says all where there is no cycle; where there are, the steps of one come before each
        // other.
        let mut said_all = false;
        while !said_all {
            said_all = true;
            for &index in &order {
                let mut own = before[index].clone();
                for position in &after[index] {
                    own[position / 64] |= 1 << (position % 64);
                    for (mine, theirs) in own.iter_mut().zip(&before[*position]) {
                        *mine |= theirs;
                    }
                }
                said_all &= cycles.is_empty() || own == before[index];
                before[index] = own;
            }
        }
        Self {
            order,
            cycles,
            before,
        }
    }

    /// Each as the indices along it, every one waiting for the next and the last for the first.
    pub fn cycles(&self) -> &[Vec<usize>] {
        &self.cycles
    }

    /// The indices in an order in which everything waited for stands first.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    pub fn comes_before(&self, position: usize, index: usize) -> bool {
        self.before[index][position / 64] >> (position % 64) & 1 == 1
    }
}

/// The indices in an order in which everything waited for stands first, and the cycles met.
/// Keeps its own stack: a chain may be as long as a definition.
fn walk(after: &[Vec<usize>]) -> (Vec<usize>, Vec<Vec<usize>>) {
    #[derive(Clone, Copy, PartialEq)]
    enum Visit {
        Not,
        OnPath,
        Done,
    }
    let mut seen = vec![Visit::Not; after.len()];
    let mut order = Vec::with_capacity(after.len());
    let mut cycles = Vec::new();
    for start in 0..after.len() {
        if seen[start] != Visit::Not {
            continue;
        }
        seen[start] = Visit::OnPath;
        // Each step on the path, with how many of those it waits for have been visited.
        let mut path = vec![(start, 0)];
        while let Some((index, visited)) = path.last_mut() {
            let index = *index;
            match after[index].get(*visited) {
                Some(next) => {
                    *visited += 1;
                    match seen[*next] {
                        Visit::Not => {
                            seen[*next] = Visit::OnPath;
                            path.push((*next, 0));
                        }
                        Visit::OnPath => {
                            let from = path.iter().position(|(index, _)| index == next);
                            let cycle = &path[from.unwrap_or_default()..];
                            cycles.push(cycle.iter().map(|(index, _)| *index).collect());
                        }
                        Visit::Done => {}
                    }
                }
                None => {
                    seen[index] = Visit::Done;
                    order.push(index);
                    path.pop();
                }
            }
        }
    }
    (order, cycles)
}

/// The same edges, read forward.
pub(super) fn followers(after: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut followers = vec![Vec::new(); after.len()];
    for (index, indices) in after.iter().enumerate() {
        for position in indices {
            followers[*position].push(index);
        }
    }
    followers
}

/// `a -> b -> a`, from what must be done to what waits for it.
pub(super) fn written<'n>(cycle: &[usize], name: impl Fn(usize) -> &'n str) -> String {
    let mut names: Vec<_> = cycle.iter().rev().map(|index| name(*index)).collect();
    names.extend(names.first().copied());
    names.join(" -> ")
}
