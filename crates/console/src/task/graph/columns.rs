//! The columns of a layout: ranks by longest path, and the order in which the steps of a rank are found.

use super::*;

pub(super) fn without_garbage(vertices: &[Vertex]) -> Vec<Vec<usize>> {
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
pub(super) fn ranks(after: &[Vec<usize>]) -> Vec<usize> {
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
pub(super) fn discovered(after: &[Vec<usize>]) -> Vec<usize> {
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
pub(super) fn columns(ranks: &[usize], found: &[usize]) -> Vec<usize> {
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
