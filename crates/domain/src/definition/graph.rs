//! The order of steps: which steps come before which.

/// The order that `after` gives to steps. Each step is known by its index.
pub(super) struct Graph {
    /// The indices in an order in which each step comes after those that it waits for.
    order: Vec<usize>,
    cycles: Vec<Vec<usize>>,
    /// For each step the set of all steps that come before it, as bits.
    before: Vec<Vec<u64>>,
}

impl Graph {
    pub fn of(after: &[Vec<usize>]) -> Self {
        let (order, cycles) = walk(after);
        let mut before = vec![vec![0u64; after.len().div_ceil(64)]; after.len()];
        // Without cycles, one round visits everything. With cycles more rounds are needed, because the steps of a cycle
        // come before each other.
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

    /// Returns the cycles, each as the indices of its steps. Every step waits for the next one, and the last for the
    /// first.
    pub fn cycles(&self) -> &[Vec<usize>] {
        &self.cycles
    }

    /// Returns the indices in an order in which each step comes after those that it waits for.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    pub fn comes_before(&self, position: usize, index: usize) -> bool {
        self.before[index][position / 64] >> (position % 64) & 1 == 1
    }
}

/// Returns the indices in an order in which each step comes after those that it waits for, and the cycles that were
/// found. Has a stack of its own, because a chain may be as long as a definition.
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
        // Each entry is a step on the path, with the number of its predecessors that have been visited.
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

/// Returns for each step the steps that wait for it: the same edges in the other direction.
pub(super) fn followers(after: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut followers = vec![Vec::new(); after.len()];
    for (index, indices) in after.iter().enumerate() {
        for position in indices {
            followers[*position].push(index);
        }
    }
    followers
}

/// Writes a cycle as `a -> b -> a`, from a step to the one that waits for it.
pub(super) fn format_cycle<'n>(cycle: &[usize], name: impl Fn(usize) -> &'n str) -> String {
    let mut names: Vec<_> = cycle.iter().rev().map(|index| name(*index)).collect();
    names.extend(names.first().copied());
    names.join(" -> ")
}
