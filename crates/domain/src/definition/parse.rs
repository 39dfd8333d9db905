//! Compiles JSON to a [`Definition`], and reports every fault at once.

use std::{collections::HashSet, sync::Arc};

use serde_json::value::RawValue;

use super::{
    Definition, Policies, StepDefinition,
    block::{self, Above, BlockBranch, WrittenSteps},
    condition::ConditionPart,
    finally,
    graph::{self, Graph},
    inline::Nesting,
    known_agents::KnownAgents,
    lanes::Races,
    names::{Names, REPLY, SCOPE_NAMES, check_names, unknown_step_message},
    output,
    place::{After, StepPlace},
    repeat::SEEN_BY_UNTIL,
    step::{Edges, ParsedStep},
};
use crate::{
    definition::payload_schema::PayloadSchema,
    template::{Budget, Origin, Reads, payload::Payload},
    values::{
        fields::FieldFault,
        ids::{StepIndex, StepName},
    },
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    pub max_steps: usize,
    /// True for a definition that was accepted before.
    pub is_stored: bool,
}

impl Limits {
    /// Returns the limits for a definition that was accepted before: it is not refused when it is read again, even if
    /// the limits were different then.
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

/// No limit can be set higher: step indices have 16 bits, and each step may have an undo with an index of its own.
pub const MOST_STEPS: usize = (u16::MAX / 2) as usize;

/// The total cost of reading all expressions of a definition, and of evaluating those that read nothing. Each single
/// expression may cost as much as one evaluation.
pub const DEFINITION_BUDGET: u64 = 4 * Budget::EVALUATION;

/// Reads the JSON array `steps`, whose JSON pointer in the request's body is `pointer`. `policies` apply to the steps
/// that do not set their own.
pub fn parse_steps(
    source: &Payload,
    pointer: &str,
    policies: &Policies,
    limits: &Limits,
    known: &dyn KnownAgents,
) -> Result<Definition, Vec<FieldFault>> {
    let budget = Budget::of_several(DEFINITION_BUDGET);
    parse_steps_within(source, pointer, policies, limits, known, &budget)
}

/// Does the same, and refuses steps that cost more than the budget to read.
pub fn parse_steps_within(
    source: &Payload,
    pointer: &str,
    policies: &Policies,
    limits: &Limits,
    known: &dyn KnownAgents,
    budget: &Budget,
) -> Result<Definition, Vec<FieldFault>> {
    let origin = match limits.is_stored {
        true => Origin::Stored,
        false => Origin::Submitted(budget),
    };
    let most = limits.max_steps.min(MOST_STEPS);
    parse_at(source, pointer, policies, most, known, origin, 0)
}

/// Reads the steps of a definition that lies in others.
fn parse_inside(
    source: &Payload,
    policies: &Policies,
    known: &dyn KnownAgents,
    origin: Origin<'_>,
    depth: usize,
) -> Result<Definition, Vec<FieldFault>> {
    parse_at(source, "/steps", policies, MOST_STEPS, known, origin, depth)
}

/// Does the same for a definition that lies in `depth` others. `most`: the most steps that it may have.
fn parse_at(
    source: &Payload,
    pointer: &str,
    policies: &Policies,
    most: usize,
    known: &dyn KnownAgents,
    origin: Origin<'_>,
    depth: usize,
) -> Result<Definition, Vec<FieldFault>> {
    let refuse = |message: String| Err(vec![FieldFault::new(pointer, message)]);
    let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(source.as_json()) else {
        return refuse("must be an array of steps".to_owned());
    };
    let mut faults = Vec::new();
    if items.is_empty() {
        return refuse("is empty: give at least one step".to_owned());
    }
    let finally = finally::items(policies);
    let count = items.len() + finally.len();
    if count > most {
        return refuse(format!(
            "{count} steps are too many: at most {most}; split the task, or raise limits.max_steps"
        ));
    }
    let lists = [(&*items, false), (&*finally, true)];
    let written = WrittenSteps::of(lists, most);
    if written.are_cut {
        return refuse(format!(
            "more than {most} steps, with those in blocks and tasks, are too many: split the task, or raise limits.max_steps"
        ));
    }
    let drafts = read_drafts(
        &written,
        pointer,
        policies,
        known,
        origin,
        depth,
        &mut faults,
    );
    let Some(mut drafts) = drafts else {
        return Err(faults);
    };
    for draft in drafts.iter_mut().filter(|draft| draft.is_finally) {
        draft.check_finally(&mut faults);
    }
    let names = names(&drafts, &mut faults);
    let after = predecessors(&drafts, &written, &names, &mut faults);
    let graph = Graph::of(&after);
    for cycle in graph.cycles() {
        faults.push(FieldFault::new(
            format!("{}/after", drafts[cycle[0]].pointer),
            format!(
                "the steps wait for each other: {}; remove one of these dependencies",
                graph::format_cycle(cycle, |index| drafts[index].label())
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
    let followers = graph::followers(&after);
    let races = Races::of(&drafts, &after, &followers, graph.order(), &mut faults);
    if !faults.is_empty() {
        return Err(faults);
    }
    // The steps that a race may have undone, each before those that it follows.
    let reverted = graph.order().iter().rev().copied();
    let reverted: Vec<usize> = reverted
        .filter(|step| races.has_undone(*step) && drafts[*step].is_undone())
        .collect();
    let count = drafts.len() + reverted.len();
    if count > MOST_STEPS {
        return refuse(format!(
            "{count} steps, those that undo the losers of races included, are too many: at most {MOST_STEPS}"
        ));
    }
    let mut reverts = Vec::with_capacity(reverted.len());
    for (at, undone) in reverted.iter().enumerate() {
        // The rule of a step is not shared, so the undo is read a second time.
        let policies = Policies::default();
        let (source, place) = (&written.steps[*undone].source, &drafts[*undone].place);
        let again = ParsedStep::read(source, place.clone(), known, &policies, origin, &mut faults);
        let block = drafts[*undone].place.block.clone();
        let name = again.name.clone();
        let rule = again.undo_rule(indices(reads[*undone].undo.clone()), block);
        let (Some(name), Some(rule), true) = (name, rule, faults.is_empty()) else {
            // The second reading went beyond the budget.
            return Err(faults);
        };
        let position = |at: usize| StepIndex((drafts.len() + at) as u16);
        let others = || reverted.iter().copied().enumerate();
        let later = others().filter(|(_, other)| graph.comes_before(*undone, *other));
        let earlier = others().filter(|(_, other)| graph.comes_before(*other, *undone));
        let own = StepIndex(*undone as u16);
        let after = [own].into_iter().chain(later.map(|(at, _)| position(at)));
        reverts.push(StepDefinition::of_revert(
            &name,
            own,
            after.collect(),
            earlier.map(|(at, _)| position(at)).collect(),
            Arc::new(rule),
        ));
        debug_assert_eq!(reverts.len(), at + 1);
    }
    let mut order = indices(graph.order().to_vec());
    order.extend((drafts.len()..count).map(|at| StepIndex(at as u16)));
    let forward = drafts.len();
    let (mut steps, mut undos) = (Vec::with_capacity(count), Vec::new());
    for (((draft, after), followers), reads) in
        drafts.into_iter().zip(after).zip(followers).zip(reads)
    {
        let edges = Edges {
            after: indices(after),
            followers: {
                let revert = reverted.iter().position(|undone| *undone == steps.len());
                let revert = revert.map(|at| forward + at);
                indices(followers.into_iter().chain(revert).collect())
            },
            lanes: races.of_step(steps.len()),
            in_block: indices(written.steps_ended_by(steps.len())),
            reads: indices(reads.own),
            undo_reads: indices(reads.undo),
            while_reads: indices(reads.whiles),
            group_reads: indices(reads.group),
        };
        // There are at most MOST_STEPS of each.
        let index = StepIndex(steps.len() as u16);
        let undo_index = StepIndex((count + undos.len()) as u16);
        match draft.finish(index, undo_index, edges) {
            Some((step, undo)) => {
                steps.push(step);
                undos.extend(undo);
            }
            // Everything that a draft lacks was reported as a fault above.
            None => return refuse("is not a definition".to_owned()),
        }
    }
    steps.extend(reverts);
    let stops = steps.iter().zip(0..);
    let stops = stops.filter(|(step, _)| step.stops_as_processed());
    let stops = stops.map(|(_, at)| StepIndex(at)).collect();
    let whiles = steps.iter().zip(0..);
    let whiles = whiles.filter(|(step, _)| step.while_rule.is_some());
    let whiles = whiles.map(|(_, at)| StepIndex(at)).collect();
    let finally = steps.iter().zip(0..).filter(|(step, _)| step.is_finally);
    let finally = finally.map(|(_, at)| StepIndex(at)).collect();
    Ok(Definition {
        stops,
        finally,
        whiles,
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

/// Applies the rule that nothing is undone once a pivot is done.
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

fn names<'a>(drafts: &'a [ParsedStep], faults: &mut Vec<FieldFault>) -> Names<'a> {
    let mut names = Names::default();
    for (index, draft) in drafts.iter().enumerate() {
        let Some(name) = draft.name.as_ref().map(StepName::as_str) else {
            continue;
        };
        if let Some(first) = names.add(name, index) {
            faults.push(FieldFault::new(
                format!("{}/name", draft.pointer),
                format!(
                    "step {first} already has the name `{name}`: names are unique within a task"
                ),
            ));
        }
    }
    names
}

/// The conditions of blocks and branches in all steps under them, in bytes of their texts. Each step has all of them.
const MOST_CONDITIONS: usize = 4 << 20;

/// The place, the policies and the conditions that a block gives to all that is in it.
struct GivenByBlock {
    place: StepPlace,
    policies: Policies,
    /// The conditions of each branch.
    branches: Vec<Vec<ConditionPart>>,
}

/// Returns what the steps in a place have in common, and the policies for them.
fn place_in(
    place: Option<BlockBranch>,
    blocks: &[GivenByBlock],
    policies: &Policies,
    nesting: Nesting,
) -> (StepPlace, Policies) {
    let Some(BlockBranch { block, branch }) = place else {
        return (StepPlace::outside(nesting), policies.clone());
    };
    let given = &blocks[block];
    let mut own = given.place.clone();
    let conditions = given.branches.get(branch).into_iter().flatten();
    own.conditions.extend(conditions.cloned());
    (own, given.policies.clone())
}

/// Reads all steps, and the ends of blocks.
fn read_drafts(
    written: &WrittenSteps<'_>,
    pointer: &str,
    policies: &Policies,
    known: &dyn KnownAgents,
    origin: Origin<'_>,
    depth: usize,
    faults: &mut Vec<FieldFault>,
) -> Option<Vec<ParsedStep>> {
    let nesting = Nesting {
        depth,
        read: parse_inside,
        hide_bodies: policies.hide_bodies,
    };
    let mut blocks = Vec::with_capacity(written.blocks.len());
    let mut given = Vec::with_capacity(written.blocks.len());
    // An outer block comes before those in it.
    for block in &written.blocks {
        let end = &written.steps[block.end];
        let (mut place, policies) = place_in(block.place, &given, policies, nesting);
        place.pointer = end.pointer_in(pointer);
        let draft = block::read(end, block, &place, &policies, origin, faults);
        place.conditions.extend(draft.when.clone());
        let reads = draft.reads.as_slice().into();
        place.outer_reads.push((place.prefix.clone(), reads));
        place.prefix = block.prefix.clone();
        given.push(GivenByBlock {
            place,
            policies: draft.policies.clone(),
            branches: draft.branches.clone(),
        });
        blocks.push(Some(draft));
    }
    let lengths = written.steps.iter().map(|step| {
        let (place, _) = place_in(step.place, &given, policies, nesting);
        let lengths = place.conditions.iter().map(ConditionPart::length);
        lengths.sum::<usize>()
    });
    if lengths.sum::<usize>() > MOST_CONDITIONS {
        faults.push(FieldFault::new(
            pointer,
            format!(
                "the conditions of blocks and branches, each counted for every step under it, have more than {MOST_CONDITIONS} bytes: shorten them, or give a `set` the value and compare that"
            ),
        ));
        return None;
    }
    let mut drafts = Vec::with_capacity(written.steps.len());
    let mut found = Vec::new();
    for step in &written.steps {
        let (mut place, policies) = place_in(step.place, &given, policies, nesting);
        place.block = place.prefix.clone();
        place.in_list = step.pointer.as_str().into();
        place.is_finally = step.is_finally;
        place.pointer = step.pointer_in(pointer);
        drafts.push(match step.ends.and_then(|block| blocks[block].take()) {
            Some(draft) => {
                if let Some(block) = step.ends {
                    place.block = written.blocks[block].prefix.clone();
                }
                ParsedStep::end_of_block(draft, place, known, &mut found)
            }
            None => ParsedStep::read(&step.source, place, known, &policies, origin, &mut found),
        });
        let chosen = written.chosen_name(step);
        // The steps of a choice are one step, and have the same faults, but for those of their own names.
        for mut fault in found.drain(..) {
            if let Some((name, field)) = &chosen
                && let Some(around) = fault.pointer.strip_suffix(field)
                && around == step.pointer_in(pointer)
            {
                fault.pointer = format!("{around}{name}");
            }
            if !faults.contains(&fault) {
                faults.push(fault);
            }
        }
    }
    Some(drafts)
}

/// Returns, for each step, the indices of the steps that it waits for.
fn predecessors(
    drafts: &[ParsedStep],
    written: &WrittenSteps<'_>,
    names: &Names<'_>,
    faults: &mut Vec<FieldFault>,
) -> Vec<Vec<usize>> {
    let mut edges = Predecessors {
        drafts,
        written,
        names,
        of_blocks: vec![None; written.blocks.len()],
    };
    let mut after: Vec<Vec<usize>> = (0..drafts.len())
        .map(|index| match written.steps[index].ends {
            None => edges.of_step(index, faults),
            Some(_) => Vec::new(),
        })
        .collect();
    for block in 0..written.blocks.len() {
        // Its fault is reported although nothing may follow what the block follows.
        edges.of_block(block, faults);
    }
    // The blocks in a block end before it: the innermost have the last numbers.
    for (block, own) in written.blocks.iter().enumerate().rev() {
        let inside = |index: &usize| written.is_in(*index, block);
        let followed: HashSet<usize> = (own.first..own.end)
            .filter(inside)
            .flat_map(|index| after[index].iter().copied())
            .collect();
        let direct = (own.first..own.end).filter(|index| {
            let place = written.steps[*index].place;
            place.is_some_and(|place| place.block == block)
        });
        after[own.end] = direct.filter(|index| !followed.contains(index)).collect();
        if after[own.end].is_empty() {
            after[own.end] = edges.of_block(block, faults);
        }
    }
    after
}

/// Finds the steps that others wait for.
struct Predecessors<'d> {
    drafts: &'d [ParsedStep],
    written: &'d WrittenSteps<'d>,
    names: &'d Names<'d>,
    /// The steps that each block follows, once they are known.
    of_blocks: Vec<Option<Vec<usize>>>,
}

impl Predecessors<'_> {
    fn of_step(&mut self, index: usize, faults: &mut Vec<FieldFault>) -> Vec<usize> {
        let step = &self.written.steps[index];
        self.find(
            index,
            step.above,
            step.place.map(|place| place.block),
            faults,
        )
    }

    /// Returns what the steps of a block follow that follow nothing in it.
    fn of_block(&mut self, block: usize, faults: &mut Vec<FieldFault>) -> Vec<usize> {
        if let Some(known) = &self.of_blocks[block] {
            return known.clone();
        }
        let own = &self.written.blocks[block];
        let around = own.place.map(|place| place.block);
        let found = self.find(own.end, own.above, around, faults);
        self.of_blocks[block].insert(found).clone()
    }

    /// `around`: the block that the step, or the block that it ends, is in.
    fn find(
        &mut self,
        index: usize,
        above: Above,
        around: Option<usize>,
        faults: &mut Vec<FieldFault>,
    ) -> Vec<usize> {
        let mut after = Vec::new();
        match &self.drafts[index].after {
            After::StepAbove => match above {
                Above::Nothing => {}
                Above::Step(step) => after.push(step),
                Above::Block(block) => return self.of_block(block, faults),
            },
            After::Named(wanted) => {
                for (pointer, name) in wanted {
                    match self.named(index, name, &after) {
                        Ok(step) => after.push(step),
                        Err(message) => faults.push(FieldFault::new(pointer, message)),
                    }
                }
            }
        }
        let Some(block) = around else {
            return after;
        };
        if !after.iter().any(|step| self.written.is_in(*step, block)) {
            // It begins with the block.
            for step in self.of_block(block, faults) {
                if !after.contains(&step) {
                    after.push(step);
                }
            }
        }
        after
    }

    fn named(&self, index: usize, name: &str, after: &[usize]) -> Result<usize, String> {
        let (drafts, own) = (self.drafts, &self.drafts[index]);
        let Some(position) = self.names.find(&own.place.prefix, name) else {
            return Err(unknown_step_message(name, self.names));
        };
        let named = &drafts[position];
        match self.written.steps[index].ends {
            _ if position == index => Err("a step cannot wait for itself: remove it".to_owned()),
            Some(block) if self.written.is_in(position, block) => {
                Err("a block cannot wait for a step in it: remove it".to_owned())
            }
            _ if after.contains(&position) => Err(format!("`{name}` is listed twice: remove one")),
            _ if named.is_finally && !own.is_finally => Err(format!(
                "`{name}` is a step of `finally`, which runs when all steps have ended: remove it"
            )),
            _ if own.is_finally && !named.is_finally => Err(format!(
                "`{name}` has ended when the steps of `finally` run: remove it"
            )),
            _ => Ok(position),
        }
    }
}

/// The names that the expressions of an undo see.
const UNDO_SCOPE_NAMES: [&str; 7] = [
    "input",
    "task",
    "steps",
    "output",
    "request",
    "task.state",
    "task.error",
];
/// The names that the expressions of a poll for the reply to an undo see.
const UNDO_POLL_SCOPE_NAMES: [&str; 7] = [
    "input",
    "task",
    "steps",
    "output",
    "response",
    "task.state",
    "task.error",
];
/// The names that the expressions of a step of `finally` see.
const FINALLY_SCOPE_NAMES: [&str; 5] = ["input", "task", "steps", "task.state", "task.error"];
/// The names that the expressions of a probe see.
const PROBE_SCOPE_NAMES: [&str; 4] = ["input", "task", "steps", "response"];

/// The names that the expressions of `failed` see.
const FAILED_SCOPE_NAMES: [&str; 4] = ["input", "task", "steps", "output"];

/// The names that the condition of a signal sees.
const SIGNAL_SCOPE_NAMES: [&str; 4] = ["input", "task", "steps", "signal"];

/// The steps that the expressions of a step read.
#[derive(Default)]
struct StepReads {
    /// The steps that the step and its probe read: all of them must have ended before the step starts.
    own: Vec<usize>,
    /// The steps that the undo reads; it may read the output of the step itself.
    undo: Vec<usize>,
    /// The steps that the list and the conditions of a group read.
    group: Vec<usize>,
    /// The steps that its `while` reads.
    whiles: Vec<usize>,
}

fn check_reads(
    index: usize,
    drafts: &[ParsedStep],
    names: &Names<'_>,
    graph: &Graph,
    faults: &mut Vec<FieldFault>,
) -> StepReads {
    let draft = &drafts[index];
    // The condition of a block is evaluated before its steps run.
    let is_inside = |position: usize| {
        let name = drafts[position].name.as_ref().map(StepName::as_str);
        draft.place.block != draft.place.prefix
            && name.is_some_and(|name| name.starts_with(&*draft.place.block))
    };
    let mut check_in = |block: &str,
                        given: &[(String, Reads)],
                        seen: &[&str],
                        own: bool,
                        indices: &mut Vec<usize>| {
        for (pointer, looks) in given {
            if !check_names(pointer, looks, seen, names, faults) {
                continue;
            }
            for name in &looks.steps {
                match names.find(block, name) {
                    None => {
                        faults.push(FieldFault::new(pointer, unknown_step_message(name, names)))
                    }
                    Some(position) if own && position == index => indices.push(index),
                    // The winners of the race before a step are known when it begins.
                    Some(position)
                        if position == index
                            && draft.race.is_some()
                            && !looks.records.contains(name) =>
                    {
                        indices.push(index);
                    }
                    Some(position)
                        if !graph.comes_before(position, index)
                            && (!draft.is_finally || drafts[position].is_finally)
                            || is_inside(position) && *block == *draft.place.prefix =>
                    {
                        faults.push(FieldFault::new(
                            pointer,
                            format!(
                                "`{name}` does not come before `{}`, so its output may not exist yet: add it to `after`",
                                draft.label()
                            ),
                        ));
                    }
                    Some(position) => {
                        if looks.responses.contains(name) && !drafts[position].keeps_response() {
                            faults.push(FieldFault::new(
                                pointer,
                                format!(
                                    "`{name}` keeps no status and no headers of its response: add `keep_headers` to it, which may be an empty list"
                                ),
                            ));
                        }
                        indices.push(position);
                    }
                }
            }
        }
        indices.sort_unstable();
        indices.dedup();
    };
    let mut reads = StepReads::default();
    let own_names: &[&str] = match draft.is_finally {
        true => &FINALLY_SCOPE_NAMES,
        false => &SCOPE_NAMES,
    };
    let (around, own) = (&draft.place.prefix, &draft.place.block);
    check_in(own, &draft.block_reads, own_names, false, &mut reads.own);
    let mut check =
        |given: &[(String, Reads)], seen: &[&str], own: bool, indices: &mut Vec<usize>| {
            check_in(around, given, seen, own, indices);
        };
    let seen = |seen: &[&'static str]| match &draft.group {
        Some(group) => [seen, group.seen_by_item()].concat(),
        None => seen.to_vec(),
    };
    check(&draft.group_reads, &SCOPE_NAMES, false, &mut reads.group);
    check(&draft.until_reads, &SEEN_BY_UNTIL, false, &mut reads.group);
    check(&draft.reads, &seen(own_names), false, &mut reads.own);
    let reply = |sees: bool| sees.then_some(REPLY);
    let [work, undo] = draft.sees_reply().map(reply);
    let seen_by_request = [&seen(own_names)[..], work.as_slice()].concat();
    check(
        &draft.request_reads,
        &seen_by_request,
        false,
        &mut reads.own,
    );
    let seen_by_undo = [&seen(&UNDO_SCOPE_NAMES)[..], undo.as_slice()].concat();
    check(
        &draft.probe_reads,
        &seen(&PROBE_SCOPE_NAMES),
        false,
        &mut reads.own,
    );
    check(
        &draft.failed_reads,
        &seen(&FAILED_SCOPE_NAMES),
        false,
        &mut reads.own,
    );
    check(
        &draft.signal_reads,
        &seen(&SIGNAL_SCOPE_NAMES),
        false,
        &mut reads.own,
    );
    if let Some(undo) = &draft.undo {
        let undo_reads = &mut reads.undo;
        check(&undo.reads, &seen(&UNDO_SCOPE_NAMES), true, undo_reads);
        check(&undo.request_reads, &seen_by_undo, true, undo_reads);
        check(
            &undo.reply_reads,
            &seen(&UNDO_POLL_SCOPE_NAMES),
            true,
            undo_reads,
        );
    }
    for (pointer, looks) in &draft.while_reads {
        check_names(pointer, looks, own_names, names, faults);
        let unknown = looks
            .steps
            .iter()
            .filter(|name| names.find(around, name).is_none());
        faults.extend(
            unknown.map(|name| FieldFault::new(pointer, unknown_step_message(name, names))),
        );
    }
    reads.whiles = reads_of_while(index, drafts, names, faults);
    // The end of the block reports their faults.
    for (around, given) in &draft.place.outer_reads {
        let named = given.iter().flat_map(|(_, looks)| &looks.steps);
        let found = named.filter_map(|name| names.find(around, name));
        reads
            .own
            .extend(found.filter(|read| graph.comes_before(*read, index)));
    }
    reads.own.sort_unstable();
    reads.own.dedup();
    reads
}

/// Returns the positions of the steps that the `while` of a step reads.
fn reads_of_while(
    index: usize,
    drafts: &[ParsedStep],
    names: &Names<'_>,
    faults: &mut Vec<FieldFault>,
) -> Vec<usize> {
    let draft = &drafts[index];
    let mut found = Vec::new();
    for (pointer, looks) in &draft.while_reads {
        for name in &looks.steps {
            match names.find(&draft.place.prefix, name) {
                Some(read) if read == index => faults.push(FieldFault::new(
                    pointer,
                    "reads the step itself: read the steps that say whether it is still needed",
                )),
                Some(read) if drafts[read].is_finally => faults.push(FieldFault::new(
                    pointer,
                    format!("`{name}` runs when all other steps have ended: read another step"),
                )),
                Some(read) => found.push(read),
                // Reported with the other names.
                None => {}
            }
        }
        if looks.steps.is_empty() {
            faults.push(FieldFault::new(
                pointer,
                "reads no step, and so it never changes while the step runs: use `when` instead",
            ));
        }
    }
    found
}
