//! The graph of a definition as a diagram: its steps, their order and their undos; for a task also the state of each
//! step. In Mermaid for pages and tickets, in DOT for Graphviz.

use std::fmt::Write;

use crate::{
    definition::{Definition, StepDefinition, StepKind},
    task::{aggregate::Task, step::StepStatus},
    values::ids::StepIndex,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum DiagramFormat {
    Mermaid,
    Dot,
}

impl DiagramFormat {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// Draws a definition; with a task, its steps in the colours of their states. The title is a plain name.
pub fn draw(
    title: &str,
    definition: &Definition,
    task: Option<&Task>,
    form: DiagramFormat,
) -> String {
    let flat = definition.with_one_item_each();
    let picture = Picture {
        groups: definition,
        definition: flat.as_ref().unwrap_or(definition),
        task,
    };
    match form {
        DiagramFormat::Mermaid => picture.mermaid(title),
        DiagramFormat::Dot => picture.dot(title),
    }
}

/// The longest line of a label, in characters.
const LONGEST_LINE: usize = 60;

/// Returns the colour of a state. It is light, so that the text on it can be read.
fn colour(status: StepStatus) -> &'static str {
    match status {
        StepStatus::Waiting => "#f8f9fa",
        StepStatus::Pending => "#fff3bf",
        StepStatus::Processing => "#d0ebff",
        StepStatus::Processed => "#d3f9d8",
        StepStatus::Error => "#ffc9c9",
        StepStatus::Skipped => "#e9ecef",
        StepStatus::Cancelled => "#ced4da",
        StepStatus::Undone => "#e5dbff",
    }
}

struct Picture<'d> {
    /// The definition as it is written.
    groups: &'d Definition,
    /// The definition with each group as one step.
    definition: &'d Definition,
    task: Option<&'d Task>,
}

impl Picture<'_> {
    fn indexes(&self) -> impl Iterator<Item = StepIndex> {
        self.definition.listed().chain(self.definition.undos())
    }

    /// Returns the state of a step. `None` for an undo before the task is to be undone.
    fn status(&self, index: StepIndex) -> Option<StepStatus> {
        let task = self.task?;
        // The step is found by its name: in a task, items are between the steps of the definition and their undos.
        let found = task.find(self.definition.step(index).name.as_str())?;
        Some(task.step(found).status())
    }

    fn lines(&self, index: StepIndex) -> Vec<String> {
        let step = self.definition.step(index);
        let mut lines = vec![step.name.to_string()];
        if step.undoes.is_none() {
            let kind = step.work.kind().as_str();
            lines.push(match (step.agent(), step.child_rule()) {
                (Some(agent), _) => agent.to_string(),
                (None, Some(rule)) => format!("{kind} {}", rule.source.in_words()),
                (None, None) => kind.to_owned(),
            });
        }
        if index.at() < self.groups.steps.len() && self.groups.step(index).group_rule().is_some() {
            lines.push(self.items(index));
        }
        if let Some(condition) = &step.when {
            lines.push(format!("when {}", condition.source()));
        }
        if let Some(rule) = &step.while_rule {
            lines.push(format!("while {}", rule.condition.source()));
        }
        if let Some(race) = &step.race {
            lines.push(format!("needs {} of {}", race.any, race.of.len()));
        }
        if step.pivot {
            lines.push("point of no return".to_owned());
        }
        lines.extend(self.status(index).map(|status| status.as_str().to_owned()));
        lines.iter().map(|line| shortened(line)).collect()
    }

    /// Returns the number of items of a group in each state, once the items are known.
    fn items(&self, index: StepIndex) -> String {
        let group = self.task.and_then(|task| Some((task, task.group(index)?)));
        let repeat = self.groups.step(index).repeat();
        let Some((task, group)) = group else {
            return match repeat {
                Some(rule) => format!(
                    "at most {} times until {}",
                    rule.at_most,
                    rule.until.source()
                ),
                None => "for each item".to_owned(),
            };
        };
        let counts = task.steps.counts_of(&group.items);
        let states = StepStatus::ALL.iter();
        let states = states.filter(|status| counts.count(**status) > 0);
        let states = states.map(|status| format!("{} {}", counts.count(*status), status.as_str()));
        let states: Vec<_> = states.collect();
        let (count, states) = (group.items.len(), states.join(", "));
        match repeat {
            Some(_) => format!("iteration {count} of {}: {states}", group.most_items()),
            None => format!("for each of {count}: {states}"),
        }
    }

    fn mermaid(&self, title: &str) -> String {
        let mut text = format!("---\ntitle: \"{}\"\n---\nflowchart TD\n", plain(title));
        self.grouped(&mut |part, depth| {
            let indent = "    ".repeat(depth + 1);
            let index = match part {
                DiagramPart::Node(index) => index,
                DiagramPart::Open(frame) => {
                    let (id, name) = frame.names();
                    let _ = writeln!(text, "{indent}subgraph {id}[\"{}\"]", encoded(name));
                    return;
                }
                DiagramPart::Close => {
                    let _ = writeln!(text, "{indent}end");
                    return;
                }
            };
            let lines: Vec<_> = self.lines(index).iter().map(|line| encoded(line)).collect();
            let label = lines.join("<br/>");
            let (open, close) = match shape(self.definition.step(index)) {
                Shape::Step => ("[", "]"),
                Shape::Pivot => ("{{", "}}"),
                Shape::Undo => ("([", "])"),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{indent}s{}{open}\"{label}\"{close}", index.0);
        });
        for (from, to, edge) in self.edges() {
            let arrow = match edge {
                Edge::After => "-->",
                Edge::Undo => "-. undo .->",
            };
            let _ = writeln!(text, "    s{} {arrow} s{}", from.0, to.0);
        }
        for &status in StepStatus::ALL {
            let of_status = self
                .indexes()
                .filter(|index| self.status(*index) == Some(status));
            let nodes: Vec<_> = of_status.map(|index| format!("s{}", index.0)).collect();
            if !nodes.is_empty() {
                let (name, fill) = (status.as_str(), colour(status));
                let _ = writeln!(
                    text,
                    "    classDef {name} fill:{fill},stroke:#495057,color:#212529"
                );
                let _ = writeln!(text, "    class {} {name}", nodes.join(","));
            }
        }
        text
    }

    fn dot(&self, title: &str) -> String {
        let mut text = format!(
            "digraph \"{}\" {{\n    node [shape=box, fontname=\"sans-serif\", style=filled, fillcolor=white];\n    edge [fontname=\"sans-serif\"];\n",
            quoted(title)
        );
        self.grouped(&mut |part, depth| {
            let indent = "    ".repeat(depth + 1);
            let index = match part {
                DiagramPart::Node(index) => index,
                DiagramPart::Open(frame) => {
                    let (id, name) = frame.names();
                    let name = quoted(name);
                    let _ = writeln!(text, "{indent}subgraph \"cluster_{id}\" {{");
                    let _ = writeln!(
                        text,
                        "{indent}    label=\"{name}\"; style=\"rounded,dashed\";"
                    );
                    return;
                }
                DiagramPart::Close => {
                    let _ = writeln!(text, "{indent}}}");
                    return;
                }
            };
            let lines: Vec<_> = self.lines(index).iter().map(|line| quoted(line)).collect();
            let shape = match shape(self.definition.step(index)) {
                Shape::Step => "",
                Shape::Pivot => ", shape=hexagon",
                Shape::Undo => ", style=\"filled,rounded,dashed\"",
            };
            let fill = self.status(index).map_or_else(String::new, |status| {
                format!(", fillcolor=\"{}\"", colour(status))
            });
            let label = lines.join("\\n");
            let _ = writeln!(
                text,
                "{indent}s{} [label=\"{label}\"{shape}{fill}];",
                index.0
            );
        });
        for (from, to, edge) in self.edges() {
            let style = match edge {
                Edge::After => "",
                Edge::Undo => " [style=dashed, label=\"undo\"]",
            };
            let _ = writeln!(text, "    s{} -> s{}{style};", from.0, to.0);
        }
        text.push_str("}\n");
        text
    }

    /// Returns the block that a step is in, the innermost one. A block itself, which ends it, is the last step in it.
    fn block_of(&self, index: StepIndex) -> Option<StepIndex> {
        let step = self.definition.step(index);
        let step = step
            .undoes
            .map_or(step, |forward| self.definition.step(forward));
        let blocks = self.definition.listed().filter(|block| {
            let block = self.definition.step(*block);
            let rest = step.name.as_str().strip_prefix(block.name.as_str());
            let is_in = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            block.work.kind() == StepKind::Block && is_in
        });
        blocks.max_by_key(|block| self.definition.step(*block).name.as_str().len())
    }

    /// Returns the block around a block.
    fn block_around(&self, block: StepIndex) -> Option<StepIndex> {
        let own = self.definition.step(block).name.as_str();
        let (outer, _) = own.rsplit_once('.')?;
        let mut blocks = self.definition.listed();
        blocks.find(|other| {
            let other = self.definition.step(*other);
            other.work.kind() == StepKind::Block && other.name.as_str() == outer
        })
    }

    /// Calls `write` with all nodes, those of a block and those of `finally` between the begin and the end of their frame.
    fn grouped(&self, write: &mut impl FnMut(DiagramPart<'_>, usize)) {
        let is_finally = |index: &StepIndex| {
            let step = self.definition.step(*index);
            let forward = step.undoes.unwrap_or(*index);
            self.definition.step(forward).is_finally
        };
        let (last, own): (Vec<_>, Vec<_>) = self.indexes().partition(is_finally);
        self.frame(None, &own, 0, write);
        if !last.is_empty() {
            write(DiagramPart::Open(Frame::Finally), 0);
            self.frame(None, &last, 1, write);
            write(DiagramPart::Close, 0);
        }
    }

    fn frame(
        &self,
        block: Option<StepIndex>,
        all: &[StepIndex],
        depth: usize,
        write: &mut impl FnMut(DiagramPart<'_>, usize),
    ) {
        for &index in all {
            if self.block_of(index) == block {
                write(DiagramPart::Node(index), depth);
            }
        }
        for &inner in all {
            let step = self.definition.step(inner);
            let is_block = step.work.kind() == StepKind::Block && step.undoes.is_none();
            if is_block && self.block_around(inner) == block {
                let name = step.name.as_str();
                write(DiagramPart::Open(Frame::Block(inner, name)), depth);
                self.frame(Some(inner), all, depth + 1, write);
                write(DiagramPart::Close, depth);
            }
        }
    }

    fn edges(&self) -> impl Iterator<Item = (StepIndex, StepIndex, Edge)> {
        let steps = self.definition.listed();
        steps.flat_map(|index| {
            let step = self.definition.step(index);
            let after = self.definition.follows(index).into_iter();
            let after = after.map(move |before| (before, index, Edge::After));
            after.chain(step.undo.map(|undo| (index, undo, Edge::Undo)))
        })
    }
}

/// A part of a diagram.
enum DiagramPart<'d> {
    Node(StepIndex),
    Open(Frame<'d>),
    Close,
}

/// A frame around the steps of a block, or around those of `finally`.
enum Frame<'d> {
    Block(StepIndex, &'d str),
    Finally,
}

impl<'d> Frame<'d> {
    /// Returns the id in the diagram, and the name that people see.
    fn names(&self) -> (String, &'d str) {
        match self {
            Frame::Block(index, name) => (format!("b{}", index.0), name),
            Frame::Finally => ("finally".to_owned(), "finally"),
        }
    }
}

enum Edge {
    After,
    Undo,
}

enum Shape {
    Step,
    Pivot,
    Undo,
}

fn shape(step: &StepDefinition) -> Shape {
    match (step.undoes, step.pivot) {
        (Some(_), _) => Shape::Undo,
        (None, true) => Shape::Pivot,
        (None, false) => Shape::Step,
    }
}

fn shortened(line: &str) -> String {
    let mut short: String = line.chars().take(LONGEST_LINE).collect();
    if short.len() < line.len() {
        short.push('…');
    }
    short
}

/// Encodes a text for Mermaid: characters that may be part of its syntax, or of HTML, become entities.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_alphanumeric() || " _-.,…".contains(c) {
            out.push(c);
        } else {
            let _ = write!(out, "#{};", u32::from(c));
        }
    }
    out
}

/// Escapes a text inside quotes for DOT.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Returns a text for a title in quotes, where entities are not decoded.
fn plain(text: &str) -> String {
    text.replace(|c: char| c == '"' || c == '\\' || c.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        definition::{Accepted, Limits, Policies, parse_steps},
        template::payload::Payload,
    };

    fn definition(steps: &Value) -> Definition {
        let steps = Payload::from_value(steps);
        parse_steps(
            &steps,
            "",
            &Policies::default(),
            &Limits::default(),
            &Accepted,
        )
        .unwrap()
    }

    fn order() -> Definition {
        definition(&json!([
            { "name": "reserve", "agent": "inventory",
              "undo": { "request": { "method": "DELETE", "path": "/{{ output.id }}" } } },
            { "name": "charge", "agent": "payments", "when": "input.total > 0 and input['a\"b'] != '<x>'" },
            { "name": "ship", "agent": "shipping", "after": ["reserve", "charge"], "pivot": true },
        ]))
    }

    #[test]
    fn a_definition_is_drawn_in_mermaid() {
        assert_eq!(
            draw("order, version 3", &order(), None, DiagramFormat::Mermaid),
            r##"---
title: "order, version 3"
---
flowchart TD
    s0["reserve<br/>inventory"]
    s1["charge<br/>payments<br/>when input.total #62; 0 and input#91;#39;a#34;b#39;#93; #33;#61; #39;#60;x#62;#39;"]
    s2{{"ship<br/>shipping<br/>point of no return"}}
    s3(["reserve.undo"])
    s0 -. undo .-> s3
    s0 --> s1
    s0 --> s2
    s1 --> s2
"##
        );
    }

    #[test]
    fn the_steps_of_a_block_have_a_frame_with_its_name() {
        let steps = json!([
            { "name": "check", "agent": "risk" },
            { "name": "pay", "steps": [
                { "name": "charge", "agent": "payments" },
                { "name": "tell", "steps": [{ "name": "mail", "agent": "post" }] },
            ] },
            { "name": "payout", "agent": "payments" },
        ]);
        let mermaid = draw("t", &definition(&steps), None, DiagramFormat::Mermaid);
        let lines: Vec<_> = mermaid.lines().map(str::trim).collect();
        let at = |start: &str| {
            let found = lines.iter().position(|line| line.contains(start));
            found.unwrap_or_else(|| panic!("{start}: {mermaid}"))
        };
        let (pay, tell) = (at("[\"pay\"]"), at("[\"pay.tell\"]"));
        assert!(lines[pay].starts_with("subgraph ") && lines[tell].starts_with("subgraph "));
        let ends: Vec<_> = (0..lines.len())
            .filter(|line| lines[*line] == "end")
            .collect();
        assert_eq!(ends.len(), 2, "{mermaid}");
        let is_in = |node: usize, frame: usize, end: usize| frame < node && node < end;
        assert!(is_in(at("\"pay.charge<"), pay, ends[1]), "{mermaid}");
        assert!(is_in(at("\"pay.tell.mail<"), tell, ends[0]), "{mermaid}");
        for outside in ["\"check<", "\"payout<"] {
            assert!(!is_in(at(outside), pay, ends[1]), "{mermaid}");
        }
        let dot = draw("t", &definition(&steps), None, DiagramFormat::Dot);
        assert_eq!(dot.matches("subgraph \"cluster_b").count(), 2, "{dot}");
        assert_eq!(dot.matches('{').count(), dot.matches('}').count(), "{dot}");
    }

    #[test]
    fn a_definition_is_drawn_in_dot() {
        assert_eq!(
            draw("order", &order(), None, DiagramFormat::Dot),
            r##"digraph "order" {
    node [shape=box, fontname="sans-serif", style=filled, fillcolor=white];
    edge [fontname="sans-serif"];
    s0 [label="reserve\ninventory"];
    s1 [label="charge\npayments\nwhen input.total > 0 and input['a\"b'] != '<x>'"];
    s2 [label="ship\nshipping\npoint of no return", shape=hexagon];
    s3 [label="reserve.undo", style="filled,rounded,dashed"];
    s0 -> s3 [style=dashed, label="undo"];
    s0 -> s1;
    s0 -> s2;
    s1 -> s2;
}
"##
        );
    }

    #[test]
    fn a_long_or_hostile_condition_cannot_break_out() {
        let long = format!("input.x == '{}'", "y".repeat(500));
        let hostile = r#"input.a == '"]; s0 -->|x| s9 \\ <script>`end`#35;'"#;
        for condition in [long.as_str(), hostile] {
            let steps = json!([{ "name": "a", "agent": "x", "when": condition }]);
            let mermaid = draw("t", &definition(&steps), None, DiagramFormat::Mermaid);
            let node = mermaid.lines().last().unwrap();
            assert!(node.chars().count() < 60 * 8, "{node}");
            let inside = &node["    s0[\"".len()..node.len() - "\"]".len()];
            let inside = inside.replace("<br/>", "");
            assert!(
                !inside.contains(['"', '<', '>', '[', ']', '|', '`']),
                "{inside}"
            );
            let dot = draw("t", &definition(&steps), None, DiagramFormat::Dot);
            let label = dot.lines().nth(3).unwrap();
            let ends = label.replace("\\\\", "").replace("\\\"", "");
            assert_eq!(ends.matches('"').count(), 2, "{label}");
        }
    }
}
