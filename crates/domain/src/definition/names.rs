//! Checks the names that an expression reads: each must be defined for the expression, or be the name of a step.

use std::{borrow::Cow, collections::HashMap};

use crate::{
    template::Reads,
    values::{fields::FieldFault, nearest::nearest},
};

/// The indexes of the steps, by their names.
#[derive(Default)]
pub(super) struct Names<'a>(HashMap<&'a str, usize>);

impl<'a> Names<'a> {
    /// Adds a name. Returns the step that has it already, if one has.
    pub fn add(&mut self, name: &'a str, index: usize) -> Option<usize> {
        match self.0.get(name) {
            Some(first) => Some(*first),
            None => self.0.insert(name, index),
        }
    }

    /// Returns the step that a name means in a block: one in the block, or else in the blocks around it.
    pub fn find(&self, block: &str, name: &str) -> Option<usize> {
        around(block).find_map(|block| self.0.get(&*whole_name(block, name)).copied())
    }

    fn all(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.0.keys().copied()
    }
}

/// Returns the name of a step with that of the block that it is in.
pub(crate) fn whole_name<'n>(block: &str, name: &'n str) -> Cow<'n, str> {
    match block.is_empty() {
        true => name.into(),
        false => format!("{block}{name}").into(),
    }
}

/// Returns a block and those around it, from the inside out: `a.b.`, `a.` and the empty text.
pub(crate) fn around(block: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(block), |block| {
        let inside = block.strip_suffix('.')?;
        Some(&block[..inside.rfind('.').map_or(0, |dot| dot + 1)])
    })
}

/// The names under which an expression's reads have the times of the task.
const TASK_TIMES: [&str; 2] = ["task.created_at", "task.started_at"];

/// The names that the expressions of a request and of a condition see.
pub(super) const SCOPE_NAMES: [&str; 3] = ["input", "task", "steps"];

/// The name under which a request that is replied to later sees the address for the reply.
pub(super) const REPLY: &str = "reply";

pub(super) fn unknown_step_message(name: &str, names: &Names<'_>) -> String {
    match nearest(name, names.all()) {
        Some(meant) => format!("there is no step `{name}`; did you mean `{meant}`?"),
        None => format!("there is no step `{name}` in this definition"),
    }
}

/// Returns whether the other names and steps of the expression should be checked as well. They should not if a `-` was
/// probably meant as a hyphen, because the expression then reads other names than it was meant to.
pub(super) fn check_names(
    pointer: &str,
    reads: &Reads,
    seen: &[&str],
    names: &Names<'_>,
    faults: &mut Vec<FieldFault>,
) -> bool {
    let is_seen = |name: &str| match TASK_TIMES.contains(&name) {
        // Where an expression sees steps, its task has begun.
        true => seen.contains(&"steps"),
        false => seen.contains(&name),
    };
    let meant = reads.hyphens.iter().find(|(behind, (whole, _))| {
        !seen.contains(&behind.as_str()) || names.find("", whole).is_some()
    });
    if let Some((_, (_, meant))) = meant {
        faults.push(FieldFault::new(
            pointer,
            format!("`-` means subtraction here: write `{meant}` if the name has a hyphen"),
        ));
        return false;
    }
    let unknown = reads.names.iter();
    for name in unknown.filter(|name| !is_seen(name)) {
        faults.push(FieldFault::new(pointer, unknown_name_message(name, seen)));
    }
    true
}

fn unknown_name_message(name: &str, seen: &[&str]) -> String {
    let only_in = match name {
        "task.state" | "task.error" => "an undo and in the steps of `finally`",
        "reply" => "the request of a step, or of an undo, with `\"reply\": \"callback\"`",
        "item" => "what a step with `for_each` does for each item",
        "previous" => "what a step with `repeat` does, and in its `until`",
        "index" => "what a step with `for_each` or `repeat` does for each item or each time",
        _ => "",
    };
    if !only_in.is_empty() {
        return format!("`{name}` is defined only in {only_in}: not here");
    }
    let names = seen.iter().filter(|name| !name.contains('.'));
    let seen: Vec<_> = names
        .map(|seen| match *seen {
            "steps" => "`steps.<name>.output`".to_owned(),
            seen => format!("`{seen}`"),
        })
        .collect();
    let Some((last, others)) = seen.split_last() else {
        return String::new();
    };
    format!(
        "`{name}` is not defined here: expressions can use {} and {last}",
        others.join(", ")
    )
}
