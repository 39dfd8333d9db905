//! The graph of steps as an SVG: a link for each node, with its state as a word, a shape and a colour.

use askama::Template;

use super::{
    graph::{self, NodePlace, Vertex},
    record::{Step, clipped},
};
use crate::parts::{Html, number};

/// The characters that fit in a node, of its name and of the words below it.
const NAME: usize = 15;
const WORDS: usize = 22;

/// A node to be drawn.
pub struct Node {
    pub name: String,
    /// The class for the colour of its state, or `def` for a step of a definition.
    pub class: &'static str,
    /// The symbol of its state; none for a step of a definition.
    pub shape: Option<&'static str>,
    /// The line below the name.
    pub words: String,
    /// All of it in words.
    pub title: String,
    pub link: String,
    pub is_selected: bool,
    pub is_pivot: bool,
    /// False: edges to it are dashed.
    pub has_begun: bool,
    /// The numbers of a list of items, each with its class.
    pub bar: Vec<(&'static str, u64)>,
    pub after: Vec<usize>,
}

#[derive(Template)]
#[template(path = "task/graph.html")]
struct Drawing {
    label: String,
    width: i32,
    height: i32,
    edges: Vec<(String, bool)>,
    nodes: Vec<Placed>,
    blocks: Vec<BlockBox>,
}

/// The box around the nodes of a block.
#[derive(Debug, PartialEq, Eq)]
struct BlockBox {
    name: String,
    x: i32,
    y: i32,
    width: i32,
    height: i32,
}

struct Placed {
    node: Node,
    x: i32,
    y: i32,
    height: i32,
    short_name: String,
    short_words: String,
    bar: Vec<(&'static str, String, String)>,
}

impl Placed {
    fn plus(&self, base: &i32, more: i32) -> i32 {
        base + more
    }

    /// Returns where the name begins in the node: right of the shape, if there is one. The texts are in a picture of their
    /// own, which ends with the node, because no count of letters tells how wide they are.
    fn name_x(&self) -> i32 {
        if self.node.shape.is_some() { 28 } else { 10 }
    }
}

/// A drawing, with the number of steps that it leaves out.
pub struct Picture {
    pub svg: Html,
    pub left_out: usize,
}

/// Draws the nodes: all of them, or the neighbourhood of one if there are more than a page should have.
pub fn picture(
    label: String,
    mut nodes: Vec<Node>,
    focus: Option<usize>,
    draws_all: bool,
) -> Picture {
    let all: Vec<Vertex> = nodes
        .iter()
        .map(|node| Vertex {
            after: node.after.clone(),
            tall: !node.bar.is_empty(),
        })
        .collect();
    let count = nodes.len();
    let vertices = if count > graph::MOST_NODES && !draws_all {
        let kept = graph::neighbourhood(&all, focus.unwrap_or(0), graph::NEIGHBOURS);
        let mut index = 0;
        nodes.retain(|_| {
            index += 1;
            kept.binary_search(&(index - 1)).is_ok()
        });
        graph::part(&all, &kept)
    } else {
        all
    };
    let layout = graph::layout(&vertices);
    let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    let blocks = blocks(&names, &layout.places, (layout.width, layout.height));
    let edges = layout.paths(|to| !nodes[to].has_begun);
    let left_out = count - nodes.len();
    let placed = nodes
        .into_iter()
        .zip(&layout.places)
        .map(|(node, place)| Placed {
            short_name: clipped(
                &node.name,
                if node.shape.is_some() { NAME } else { NAME + 2 },
            ),
            short_words: clipped(&node.words, WORDS),
            bar: bar(&node.bar, place.x + 10, graph::NODE_WIDTH - 20),
            x: place.x,
            y: place.y,
            height: place.height,
            node,
        });
    let drawing = Drawing {
        label,
        width: layout.width,
        height: layout.height,
        nodes: placed.collect(),
        edges,
        blocks,
    };
    Picture {
        svg: Html::of(&drawing),
        left_out,
    }
}

/// Returns the boxes of the blocks: a step such as `pay.charge` is in the block `pay`. A block is left out if a step that is
/// not in it lies between its own.
fn blocks(names: &[&str], places: &[NodePlace], size: (i32, i32)) -> Vec<BlockBox> {
    /// The space between a box and the nodes in it.
    const MARGIN: i32 = 7;
    let is_in = |name: &str, block: &str| {
        let rest = name.strip_prefix(block);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let block = |name: &&&str| {
        let name = **name;
        let mut own = names
            .iter()
            .filter(|other| **other != name && is_in(other, name));
        let is_step = |other: &&str| !other.ends_with(".undo") && !other.ends_with(".revert");
        own.any(is_step)
    };
    let found = names.iter().filter(block).filter_map(|block| {
        let own = names.iter().zip(places);
        let (inside, outside): (Vec<_>, Vec<_>) = own.partition(|(name, _)| is_in(name, block));
        let right = |place: &NodePlace| place.x + graph::NODE_WIDTH;
        let low = |place: &NodePlace| place.y + place.height;
        let x = inside
            .iter()
            .map(|(_, place)| place.x - MARGIN)
            .min()?
            .max(1);
        let y = inside
            .iter()
            .map(|(_, place)| place.y - MARGIN)
            .min()?
            .max(1);
        let end_x = inside
            .iter()
            .map(|(_, place)| right(place) + MARGIN)
            .max()?;
        let end_y = inside.iter().map(|(_, place)| low(place) + MARGIN).max()?;
        let (end_x, end_y) = (end_x.min(size.0 - 1), end_y.min(size.1 - 1));
        let is_between = |place: &NodePlace| {
            place.x < end_x && right(place) > x && place.y < end_y && low(place) > y
        };
        let is_mixed = outside.iter().any(|(_, place)| is_between(place));
        (!is_mixed).then(|| BlockBox {
            name: (*block).to_owned(),
            x,
            y,
            width: end_x - x,
            height: end_y - y,
        })
    });
    found.collect()
}

/// Returns the parts of the bar of a list. A part with few items is wide enough to be seen.
#[expect(
    clippy::cast_precision_loss,
    reason = "a list has at most some ten thousand items"
)]
fn bar(counts: &[(&'static str, u64)], x: i32, width: i32) -> Vec<(&'static str, String, String)> {
    let whole = counts.iter().map(|(_, count)| count).sum::<u64>().max(1) as f64;
    let shown: Vec<_> = counts.iter().filter(|(_, count)| *count > 0).collect();
    let wide = |count: u64| (count as f64 / whole * f64::from(width)).max(2.0);
    let total: f64 = shown.iter().map(|(_, count)| wide(*count)).sum();
    let mut at = f64::from(x);
    let mut parts = Vec::new();
    for (class, count) in shown {
        let part = wide(*count) * f64::from(width) / total.max(1.0);
        parts.push((*class, format!("{at:.1}"), format!("{part:.1}")));
        at += part;
    }
    parts
}

/// Returns the class and the shape of the state of a step. A state of a later version has a ring.
pub fn look(state: &str) -> (&'static str, &'static str) {
    match state {
        "error" => ("error", "error"),
        "processed" => ("processed", "processed"),
        "processing" => ("processing", "processing"),
        "waiting" => ("waiting", "waiting"),
        "skipped" => ("skipped", "skipped"),
        "cancelled" => ("cancelled", "cancelled"),
        "undone" => ("undone", "undone"),
        "paused" => ("paused", "paused"),
        _ => ("pending", "pending"),
    }
}

/// Makes the nodes of a task's steps. `link` makes the address of a step, `is_pivot` says which may not be undone.
pub fn nodes_of_steps(
    steps: &[Step],
    selected: Option<&str>,
    is_pivot: impl Fn(&str) -> bool,
    link: impl Fn(&str) -> String,
) -> Vec<Node> {
    let forward: Vec<&Step> = steps.iter().filter(|step| step.undoes.is_none()).collect();
    let undo = |name: &str| {
        steps
            .iter()
            .find(|step| step.undoes.as_deref() == Some(name))
    };
    let node = |step: &&Step| {
        let undone =
            undo(&step.name).filter(|undo| undo.state != "waiting" && undo.state != "cancelled");
        let state = match undone.map(|undo| undo.state.as_str()) {
            Some("processed" | "undone") => "undone",
            Some("error") => "error",
            _ => step.state.as_str(),
        };
        let (class, shape) = look(state);
        let who = match step.kind.as_str() {
            "call" | "" => step.agent.as_deref().unwrap_or("call"),
            kind => kind,
        };
        let status = step
            .error
            .as_ref()
            .and_then(|fault| fault.status)
            .filter(|_| step.state == "error");
        let words = match (&step.items, status) {
            (Some(items), _) if items.in_state("error") > 0 => {
                format!(
                    "error {} of {}",
                    number(items.in_state("error")),
                    number(items.count())
                )
            }
            (Some(items), _) => format!(
                "{} of {}",
                number(items.in_state("processed")),
                number(items.count())
            ),
            (None, Some(status)) => format!("{} · {state} {status}", clipped(who, WORDS - 12)),
            (None, None) => format!("{} · {state}", clipped(who, WORDS - state.len() - 3)),
        };
        let follows = if step.after.is_empty() {
            String::new()
        } else {
            format!("; follows {}", step.after.join(", "))
        };
        let pivot = is_pivot(&step.name);
        let no_return = if pivot { "; point of no return" } else { "" };
        let items = step.items.as_ref();
        let bar = items.map_or_else(Vec::new, |items| {
            let idle = items.count().saturating_sub(
                ["processed", "processing", "error"]
                    .iter()
                    .map(|state| items.in_state(state))
                    .sum(),
            );
            vec![
                ("f-processed", items.in_state("processed")),
                ("f-processing", items.in_state("processing")),
                ("f-error", items.in_state("error")),
                ("f-idle", idle),
            ]
        });
        Node {
            title: format!("{}, {who}: {state}{follows}{no_return}", step.name),
            name: step.name.clone(),
            class,
            shape: Some(shape),
            words,
            link: link(&step.name),
            is_selected: selected == Some(&step.name),
            is_pivot: pivot,
            has_begun: !matches!(step.state.as_str(), "waiting"),
            bar,
            after: step
                .after
                .iter()
                .filter_map(|name| forward.iter().position(|other| other.name == *name))
                .collect(),
        }
    };
    forward.iter().map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_a_box_around_its_steps_where_no_other_step_lies_between() {
        let place = |x, y| NodePlace { x, y, height: 42 };
        let names = ["pay.check", "pay.charge", "pay", "ship", "ship.undo"];
        let places = [
            place(0, 0),
            place(200, 0),
            place(400, 0),
            place(600, 0),
            place(600, 60),
        ];
        let found = blocks(&names, &places, (2000, 200));
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].name.as_str(), found[0].x, found[0].y),
            ("pay", 1, 1)
        );
        assert_eq!(found[0].width, 400 + graph::NODE_WIDTH + 7 - 1);
        let between = [
            place(0, 0),
            place(400, 0),
            place(600, 0),
            place(200, 0),
            place(800, 0),
        ];
        assert_eq!(blocks(&names, &between, (2000, 200)), []);
    }
}
