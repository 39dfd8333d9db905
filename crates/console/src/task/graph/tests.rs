use super::{lanes::*, sweeps::*, *};

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
