//! The order of the slots in their columns, and their heights.

use super::{lanes::Slot, *};

/// The sweeps of each kind: further ones hardly change the order of graphs that people define.
const SWEEPS: usize = 4;
/// The most visits of slots and links in the sweeps of a layout. A graph that has more of them gets fewer sweeps.
pub(super) const MOST_VISITS: usize = 200_000;

/// Returns the number of slots and links, which one sweep visits.
pub(super) fn visits(slots: &[Slot]) -> usize {
    let links = slots.iter().map(|slot| slot.left.len() + slot.right.len());
    slots.len() + links.sum::<usize>()
}

/// Returns the number of sweeps of each kind: two by which a column is ordered for one that levels it.
pub(super) fn sweeps(slots: &[Slot]) -> usize {
    (MOST_VISITS / (3 * visits(slots)).max(1)).clamp(1, SWEEPS)
}

/// Returns the number of crossings between neighbouring columns.
pub(super) fn crossings(slots: &[Slot], grid: &[Vec<usize>]) -> usize {
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
pub(super) fn order(slots: &mut [Slot], grid: &mut [Vec<usize>], sweeps: usize) {
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
pub(super) fn level(slots: &mut [Slot], grid: &[Vec<usize>], sweeps: usize) {
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
