//! From JSON to a [`Definition`], with every fault reported at once.

use std::collections::HashMap;

use serde_json::value::RawValue;

use super::{
    Definition, Policies,
    graph::{self, Graph},
    output,
    repeat::SEEN_BY_UNTIL,
    step::{After, Edges, ParsedStep},
};
use crate::{
    fields::FieldFault,
    ids::{AgentName, StepIndex, StepName},
    nearest::nearest,
    payload::Payload,
    payload_schema::PayloadSchema,
    template::{Budget, Origin, Reads},
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    pub max_steps: usize,
    /// Whether it was accepted before.
    pub is_stored: bool,
}

impl Limits {
    /// A definition that was accepted under other limits is not refused when it is read again.
    pub fn stored() -> Self {
        Self {
            max_steps: MOST_STEPS,
            is_stored: true,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_steps: 500,
            is_stored: false,
        }
    }
}

/// No limit can be set higher: steps are counted in 16 bits, each with what undoes it.
pub const MOST_STEPS: usize = (u16::MAX / 2) as usize;

/// What reading all expressions of a definition may cost, and evaluating those that read nothing: each of them has
/// what one evaluation may cost.
pub const WHOLE_DEFINITION: u64 = 4 * Budget::EVALUATION;

/// Who may be called, as policy and registration stand now. What is asked here is asked again of a definition that was
/// compiled before: [`Definition::is_still_allowed`].
pub trait KnownAgents {
    fn knows(&self, agent: &AgentName) -> bool;

    /// The one that was probably meant.
    fn nearest(&self, _: &AgentName) -> Option<AgentName> {
        None
    }

    /// The error says why not, and what to do instead.
    fn allows_url(&self, url: &str) -> Result<(), String>;

    /// Whether services can reply later. The error says what to do.
    fn takes_later_replies(&self) -> Result<(), String> {
        Ok(())
    }

    /// Whether people can be asked. The error says what to do.
    fn reaches_people(&self) -> Result<(), String> {
        Ok(())
    }

    /// Checks that a receiver or an alert webhook with this name is configured. The error says what to do.
    fn passes_links_on(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
}

/// For definitions that were accepted before: who is registered today is no matter.
pub struct Accepted;

impl KnownAgents for Accepted {
    fn knows(&self, _: &AgentName) -> bool {
        true
    }

    fn allows_url(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
}

/// Reads the JSON array `steps` that stands at `pointer` in the request's body. `policies` hold for
/// the steps that say nothing else.
pub fn parse_steps(
    source: &Payload,
    pointer: &str,
    policies: &Policies,
    limits: &Limits,
    known: &dyn KnownAgents,
) -> Result<Definition, Vec<FieldFault>> {
    let budget = Budget::of_several(WHOLE_DEFINITION);
    parse_steps_within(source, pointer, policies, limits, known, &budget)
}

/// Refuses also what costs more than the budget to read.
pub fn parse_steps_within(
    source: &Payload,
    pointer: &str,
    policies: &Policies,
    limits: &Limits,
    known: &dyn KnownAgents,
    budget: &Budget,
) -> Result<Definition, Vec<FieldFault>> {
    let refuse = |message: String| Err(vec![FieldFault::new(pointer, message)]);
    let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(source.as_json()) else {
        return refuse("must be an array of steps".to_owned());
    };
    let most = limits.max_steps.min(MOST_STEPS);
    if items.is_empty() {
        return refuse("is empty: give at least one step".to_owned());
    }
    if items.len() > most {
        return refuse(format!(
            "{} steps are too many: at most {most}; split the task, or raise limits.max_steps",
            items.len()
        ));
    }
    let origin = match limits.is_stored {
        true => Origin::Stored,
        false => Origin::Submitted(budget),
    };
    let mut faults = Vec::new();
    let mut drafts: Vec<ParsedStep> = items
        .into_iter()
        .enumerate()
        .map(|(index, item)| {
            let pointer = format!("{pointer}/{index}");
            ParsedStep::read(item, pointer, known, policies, origin, &mut faults)
        })
        .collect();
    let names = names(&drafts, &mut faults);
    let after = resolve(&drafts, &names, &mut faults);
    let graph = Graph::of(&after);
    for cycle in graph.cycles() {
        faults.push(FieldFault::new(
            format!("{}/after", drafts[cycle[0]].pointer),
            format!(
                "the steps wait for each other: {}; remove one of these dependencies",
                graph::written(cycle, |index| drafts[index].label())
            ),
        ));
    }
    let reads: Vec<_> = (0..drafts.len())
        .map(|index| check_reads(index, &drafts, &names, &graph, &mut faults))
        .collect();
    let output = policies
        .output
        .as_ref()
        .and_then(|source| output::read(source, &names, origin, &mut faults));
    let input_schema = policies.input_schema.as_ref().and_then(|schema| {
        PayloadSchema::read(schema.raw(), "/input_schema", origin)
            .map_err(|found| faults.extend(found))
            .ok()
    });
    check_pivots(&mut drafts, &graph, &mut faults);
    if !faults.is_empty() {
        return Err(faults);
    }
    let followers = graph::followers(&after);
    let (count, order) = (drafts.len(), indices(graph.order().to_vec()));
    let (mut steps, mut undos) = (Vec::with_capacity(count), Vec::new());
    for (((draft, after), followers), reads) in
        drafts.into_iter().zip(after).zip(followers).zip(reads)
    {
        let edges = Edges {
            after: indices(after),
            followers: indices(followers),
            reads: indices(reads.own),
            undo_reads: indices(reads.undo),
            group_reads: indices(reads.group),
        };
        // At most MOST_STEPS of each.
        let index = StepIndex(steps.len() as u16);
        let undo_index = StepIndex((count + undos.len()) as u16);
        match draft.finish(index, undo_index, edges) {
            Some((step, undo)) => {
                steps.push(step);
                undos.extend(undo);
            }
            // Whatever a draft lacks was reported as a fault above.
            None => return refuse("is not a definition".to_owned()),
        }
    }
    Ok(Definition {
        steps,
        undos,
        order,
        policies: policies.clone(),
        input_schema,
        output,
        source: source.clone(),
        laid_out: None,
    })
}

/// Nothing is undone once a pivot is done.
fn check_pivots(drafts: &mut [ParsedStep], graph: &Graph, faults: &mut Vec<FieldFault>) {
    for pivot in 0..drafts.len() {
        if !drafts[pivot].pivot {
            continue;
        }
        let name = drafts[pivot].label().to_owned();
        for (index, draft) in drafts.iter_mut().enumerate() {
            if index != pivot && graph.comes_before(pivot, index) {
                draft.follow_pivot(&name, faults);
            }
        }
    }
}

fn indices(indices: Vec<usize>) -> Vec<StepIndex> {
    // There are at most MOST_STEPS indices.
    indices
        .into_iter()
        .map(|position| StepIndex(position as u16))
        .collect()
}

pub(super) type Names<'a> = HashMap<&'a str, usize>;

fn names<'a>(drafts: &'a [ParsedStep], faults: &mut Vec<FieldFault>) -> Names<'a> {
    let mut names = HashMap::with_capacity(drafts.len());
    for (index, draft) in drafts.iter().enumerate() {
        let Some(name) = draft.name.as_ref().map(StepName::as_str) else {
            continue;
        };
        if let Some(first) = names.get(name) {
            faults.push(FieldFault::new(
                format!("{}/name", draft.pointer),
                format!(
                    "step {first} already has the name `{name}`: names are unique within a task"
                ),
            ));
        } else {
            names.insert(name, index);
        }
    }
    names
}

/// The indices of the steps that each step waits for.
fn resolve(
    drafts: &[ParsedStep],
    names: &Names<'_>,
    faults: &mut Vec<FieldFault>,
) -> Vec<Vec<usize>> {
    drafts
        .iter()
        .enumerate()
        .map(|(index, draft)| match &draft.after {
            After::StepAbove => index.checked_sub(1).into_iter().collect(),
            After::Named(wanted) => {
                let mut after = Vec::with_capacity(wanted.len());
                for (pointer, name) in wanted {
                    match names.get(name.as_str()) {
                        None => faults.push(FieldFault::new(pointer, no_step(name, names))),
                        Some(position) if *position == index => faults.push(FieldFault::new(
                            pointer,
                            "a step cannot wait for itself: remove it",
                        )),
                        Some(position) if after.contains(position) => faults.push(FieldFault::new(
                            pointer,
                            format!("`{name}` is listed twice: remove one"),
                        )),
                        Some(position) => after.push(*position),
                    }
                }
                after
            }
        })
        .collect()
}

pub(super) fn no_step(name: &str, names: &Names<'_>) -> String {
    match nearest(name, names.keys().copied()) {
        Some(meant) => format!("there is no step `{name}`; did you mean `{meant}`?"),
        None => format!("there is no step `{name}` in this definition"),
    }
}

/// What the expressions of a request and of a condition see.
pub(super) const SEEN: [&str; 3] = ["input", "task", "steps"];
/// What those of an undo see.
const SEEN_BY_UNDO: [&str; 5] = ["input", "task", "steps", "output", "request"];
/// What those of a poll for the reply to an undo see.
const SEEN_BY_UNDO_POLL: [&str; 5] = ["input", "task", "steps", "output", "response"];
/// What those of a probe see.
const SEEN_BY_PROBE: [&str; 4] = ["input", "task", "steps", "response"];

/// What the condition of a signal sees.
const SEEN_BY_SIGNAL: [&str; 4] = ["input", "task", "steps", "signal"];

/// The steps that the expressions of a step read.
#[derive(Default)]
struct StepReads {
    /// The step and its probe: all of them must have ended before it starts.
    own: Vec<usize>,
    /// Its undo, which may also look at the step itself.
    undo: Vec<usize>,
    /// The list and the conditions of a group.
    group: Vec<usize>,
}

fn check_reads(
    index: usize,
    drafts: &[ParsedStep],
    names: &Names<'_>,
    graph: &Graph,
    faults: &mut Vec<FieldFault>,
) -> StepReads {
    let draft = &drafts[index];
    let mut check = |given: &[(String, Reads)],
                     seen: &[&str],
                     own: bool,
                     indices: &mut Vec<usize>| {
        for (pointer, looks) in given {
            if !check_names(pointer, looks, seen, names, faults) {
                continue;
            }
            for name in &looks.steps {
                match names.get(name.as_str()) {
                    None => faults.push(FieldFault::new(pointer, no_step(name, names))),
                    Some(position) if own && *position == index => indices.push(index),
                    Some(position) if !graph.comes_before(*position, index) => {
                        faults.push(FieldFault::new(
                            pointer,
                            format!(
                                "`{name}` does not come before `{}`, so its output may not exist yet: add it to `after`",
                                draft.label()
                            ),
                        ));
                    }
                    Some(position) => indices.push(*position),
                }
            }
        }
        indices.sort_unstable();
        indices.dedup();
    };
    let mut reads = StepReads::default();
    let seen = |seen: &[&'static str]| match &draft.group {
        Some(group) => [seen, group.seen_by_item()].concat(),
        None => seen.to_vec(),
    };
    check(&draft.group_reads, &SEEN, false, &mut reads.group);
    check(&draft.until_reads, &SEEN_BY_UNTIL, false, &mut reads.group);
    check(&draft.reads, &seen(&SEEN), false, &mut reads.own);
    check(
        &draft.probe_reads,
        &seen(&SEEN_BY_PROBE),
        false,
        &mut reads.own,
    );
    check(
        &draft.signal_reads,
        &seen(&SEEN_BY_SIGNAL),
        false,
        &mut reads.own,
    );
    if let Some(undo) = &draft.undo {
        let undo_reads = &mut reads.undo;
        check(&undo.reads, &seen(&SEEN_BY_UNDO), true, undo_reads);
        check(
            &undo.reply_reads,
            &seen(&SEEN_BY_UNDO_POLL),
            true,
            undo_reads,
        );
    }
    reads
}

/// Whether an expression reads only what is there. Otherwise the names that it reads may not be what was meant.
pub(super) fn check_names(
    pointer: &str,
    reads: &Reads,
    seen: &[&str],
    names: &Names<'_>,
    faults: &mut Vec<FieldFault>,
) -> bool {
    let meant = reads.hyphens.iter().find(|(behind, (whole, _))| {
        !seen.contains(&behind.as_str()) || names.contains_key(whole.as_str())
    });
    if let Some((_, (_, meant))) = meant {
        faults.push(FieldFault::new(
            pointer,
            format!("`-` means subtraction here: write `{meant}` if the name has a hyphen"),
        ));
        return false;
    }
    let unknown = reads.names.iter();
    for name in unknown.filter(|name| !seen.contains(&name.as_str())) {
        faults.push(FieldFault::new(pointer, not_seen(name, seen)));
    }
    true
}

fn not_seen(name: &str, seen: &[&str]) -> String {
    let only_in = match name {
        "item" => "what a step with `for_each` does for each item",
        "previous" => "what a step with `repeat` does, and in its `until`",
        "index" => "what a step with `for_each` or `repeat` does for each item or each time",
        _ => "",
    };
    if !only_in.is_empty() {
        return format!("`{name}` is defined only in {only_in}: not here");
    }
    let seen: Vec<_> = seen
        .iter()
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
