//! Blocks: several steps in the place of one. A step with `steps` runs these, one with `switch` the steps of the first
//! branch whose condition is true, and one whose `agent` or `task.workflow` is a choice runs itself with the one chosen.
//!
//! A block is no step of its own at run time. Its steps are steps of the task, with the name of the block before theirs and
//! a dot between; its condition is a part of theirs; and a last step that calls nothing has the name of the block, follows
//! all of them, and has the output of the block. So everything that holds for a step holds in a block.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::value::RawValue;

use super::{
    Definition, MOST_STEPS, Policies,
    block_output::BlockOutput,
    condition::{ConditionPart, ConditionTest},
    finally::{self, FINALLY},
    inline, json_template,
    place::{After, StepPlace},
    policies::{on_exhausted, on_permanent},
    step_name::{LONGEST_NAME, is_name_of_step, name_of_step, names_of_steps},
};
use crate::{
    definition::Policy,
    template::{Expression, Origin, Reads, Template},
    values::{
        fields::{FieldFault, Fields, entries, text},
        ids::StepName,
    },
};

/// Blocks lie in blocks at most so deep.
pub(super) const MOST_DEPTH: usize = 8;
/// The most branches of a switch, and the most names of a choice.
const MOST_BRANCHES: usize = 100;
/// The members of a step that belong to it as a whole where its agent or its workflow is a choice.
const OF_THE_WHOLE: [&str; 3] = ["name", "after", "when"];

/// The fields that people give to a block and that only a step can have, and what to do instead.
const OF_STEPS: [(&str, &str); 4] = [
    (
        "for_each",
        "a block is run several times as a task of its own, \"task\": { \"steps\": [ … ] }",
    ),
    (
        "repeat",
        "a block is run several times as a task of its own, \"task\": { \"steps\": [ … ] }",
    ),
    ("while", "give it to the steps in the block"),
    (
        "limits",
        "register a workflow of these steps with `limits`, and run it by \"task\": { \"workflow\": … }",
    ),
];

/// The steps of a definition in a row, those of blocks included.
pub(super) struct WrittenSteps<'s> {
    pub steps: Vec<WrittenStep<'s>>,
    pub blocks: Vec<WrittenBlock>,
    /// True if the steps were too many, and the last are left out.
    pub are_cut: bool,
    most: usize,
    /// The number of steps of the tasks that stand in these steps.
    inside: usize,
}

/// A step at the place that it has among all steps, or the end of a block.
pub(super) struct WrittenStep<'s> {
    pub source: Cow<'s, RawValue>,
    /// The JSON pointer in the list that has the step.
    pub pointer: String,
    pub is_finally: bool,
    /// The block that the step is in, and its branch; for the end of a block what the block itself is in.
    pub place: Option<BlockBranch>,
    pub above: Above,
    /// The block that the step is the end of.
    pub ends: Option<usize>,
}

/// A branch of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockBranch {
    pub block: usize,
    pub branch: usize,
}

/// The step that one without `after` follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Above {
    Nothing,
    /// The step at this position.
    Step(usize),
    /// The steps that the block follows, because the step is the first one in it.
    Block(usize),
}

pub(super) struct WrittenBlock {
    kind: BlockKind,
    /// The block that it is in.
    pub place: Option<BlockBranch>,
    /// The names of the blocks that it is in and its own, each with a dot behind it.
    pub prefix: Arc<str>,
    /// The position of the first step in it.
    pub first: usize,
    /// The position of its end.
    pub end: usize,
    pub above: Above,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum BlockKind {
    Steps,
    /// The number of branches.
    Switch(usize),
    /// The agents or workflows of which one is chosen.
    Choice(Choice),
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Choice {
    /// The chosen field, in its parts: `agent`, or `task` and `workflow`.
    field: &'static [&'static str],
    names: Vec<String>,
}

impl<'s> WrittenSteps<'s> {
    /// Lays the steps out in a row. `most`: the number of steps after which it stops.
    pub fn of(lists: [(&[&'s RawValue], bool); 2], most: usize) -> WrittenSteps<'s> {
        let mut all = Self {
            steps: Vec::new(),
            blocks: Vec::new(),
            are_cut: false,
            most,
            inside: 0,
        };
        for (items, is_finally) in lists {
            all.add_list(items, "", is_finally, None, Above::Nothing);
        }
        all.are_cut |= all.steps.len() + all.inside > most;
        all
    }

    fn add_list(
        &mut self,
        items: &[&'s RawValue],
        pointer: &str,
        is_finally: bool,
        place: Option<BlockBranch>,
        first: Above,
    ) {
        let mut above = first;
        for (at, item) in items.iter().enumerate() {
            if self.steps.len() + self.inside >= self.most {
                self.are_cut = true;
                return;
            }
            let pointer = format!("{pointer}/{at}");
            above = self.add(item, pointer, is_finally, place, above);
        }
    }

    /// Adds a step, or the steps of a block. Returns what the step below follows.
    fn add(
        &mut self,
        item: &'s RawValue,
        pointer: String,
        is_finally: bool,
        place: Option<BlockBranch>,
        above: Above,
    ) -> Above {
        let depth = std::iter::successors(place, |place| self.blocks[place.block].place).count();
        let branches = match depth < MOST_DEPTH {
            true => branches(item),
            false => None,
        };
        let Some((kind, branches)) = branches else {
            self.inside += inline::steps_inside(item);
            self.steps.push(WrittenStep {
                source: Cow::Borrowed(item),
                pointer,
                is_finally,
                place,
                above,
                ends: None,
            });
            return Above::Step(self.steps.len() - 1);
        };
        let block = self.blocks.len();
        let outer = place.map_or("", |place| &self.blocks[place.block].prefix);
        self.blocks.push(WrittenBlock {
            kind: kind.clone(),
            place,
            prefix: format!("{outer}{}.", name_in(item)).into(),
            first: self.steps.len(),
            end: 0,
            above,
        });
        for (branch, (field, items)) in branches.into_iter().enumerate() {
            let place = BlockBranch { block, branch };
            let pointer = format!("{pointer}{field}");
            let first = Above::Block(block);
            self.add_list(&items, &pointer, is_finally, Some(place), first);
        }
        if let BlockKind::Choice(choice) = &kind {
            for (branch, name) in choice.names.iter().enumerate() {
                let place = BlockBranch { block, branch };
                self.steps.push(WrittenStep {
                    source: Cow::Owned(chosen(item, choice, name)),
                    pointer: pointer.clone(),
                    is_finally,
                    place: Some(place),
                    above: Above::Block(block),
                    ends: None,
                });
            }
        }
        self.blocks[block].end = self.steps.len();
        self.steps.push(WrittenStep {
            source: Cow::Borrowed(item),
            pointer,
            is_finally,
            place,
            above,
            ends: Some(block),
        });
        Above::Step(self.steps.len() - 1)
    }

    /// Returns the JSON pointer of a chosen name in its step, and that of the field in its place; `None` for a step that is not one
    /// of a choice.
    pub fn chosen_name(&self, step: &WrittenStep<'_>) -> Option<(String, String)> {
        let place = step.place?;
        let BlockKind::Choice(choice) = &self.blocks[place.block].kind else {
            return None;
        };
        let field = choice.field.join("/");
        Some((
            format!("/{field}/one_of/{}", place.branch),
            format!("/{field}"),
        ))
    }

    /// Returns the steps in the block that a step ends, without the ends of the blocks in it. Another step ends none.
    pub fn steps_ended_by(&self, step: usize) -> Vec<usize> {
        let Some(block) = self.steps[step].ends else {
            return Vec::new();
        };
        let first = self.blocks[block].first;
        (first..step)
            .filter(|inside| self.steps[*inside].ends.is_none())
            .collect()
    }

    /// Returns whether a step is in a block, or in a block that is in it.
    pub fn is_in(&self, step: usize, block: usize) -> bool {
        let places = std::iter::successors(self.steps[step].place, |place| {
            self.blocks[place.block].place
        });
        { places }.any(|place| place.block == block)
    }
}

impl WrittenStep<'_> {
    /// Returns its JSON pointer in the request's body, where `steps` is that of the steps of the task.
    pub fn pointer_in(&self, steps: &str) -> String {
        let list = match self.is_finally {
            true => FINALLY,
            false => steps,
        };
        format!("{list}{}", self.pointer)
    }
}

/// The steps of a branch, with the end of their JSON pointer.
type Branch<'s> = (String, Vec<&'s RawValue>);

/// Returns the kind of block that a step is, with the steps of each branch and where they stand. `None`: it is a step.
fn branches(item: &RawValue) -> Option<(BlockKind, Vec<Branch<'_>>)> {
    let members = entries(item)?;
    let member = |name: &str| {
        let mut found = members.iter().filter(|(own, _)| own == name);
        let value = found.next().map(|(_, value)| *value)?;
        (value.get() != "null").then_some(value)
    };
    fn items(value: &RawValue) -> Option<Vec<&RawValue>> {
        serde_json::from_str(value.get()).ok()
    }
    if let Some(steps) = member("steps") {
        let steps = items(steps).unwrap_or_default();
        return Some((BlockKind::Steps, vec![("/steps".to_owned(), steps)]));
    }
    if let Some(switch) = member("switch") {
        let branches = items(switch).unwrap_or_default();
        let branches: Vec<_> = { branches.iter().take(MOST_BRANCHES) }
            .enumerate()
            .map(|(at, branch)| {
                let members = entries(branch).unwrap_or_default();
                let steps = { members.iter() }.find(|(name, _)| name == "steps" || name == "else");
                let (field, steps) = match steps {
                    Some((name, value)) => (&**name, items(value).unwrap_or_default()),
                    None => ("steps", Vec::new()),
                };
                (format!("/switch/{at}/{field}"), steps)
            })
            .collect();
        return Some((BlockKind::Switch(branches.len()), branches));
    }
    let one_of = |value: &RawValue| {
        // Any object is a choice: its faults are found when it is read.
        let members = entries(value)?;
        let names = members.iter().find(|(name, _)| name == "one_of");
        let names = names.and_then(|(_, names)| serde_json::from_str(names.get()).ok());
        let mut names: Vec<String> = names.unwrap_or_default();
        names.truncate(MOST_BRANCHES);
        // A name that stands there twice is a fault of the list, and none of the steps.
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Some(names)
    };
    let of_task = || {
        let members = entries(member("task")?)?;
        let (_, workflow) = members.iter().find(|(name, _)| name == "workflow")?;
        one_of(workflow)
    };
    let choice = match member("agent").and_then(one_of) {
        Some(names) => Choice {
            field: &["agent"],
            names,
        },
        None => Choice {
            names: of_task()?,
            field: &["task", "workflow"],
        },
    };
    Some((BlockKind::Choice(choice), Vec::new()))
}

fn name_in(item: &RawValue) -> String {
    let members = entries(item).unwrap_or_default();
    let name = members.iter().find(|(name, _)| name == "name");
    let name = name.and_then(|(_, value)| text(value.get()));
    name.map(Cow::into_owned).unwrap_or_default()
}

/// Returns the step with one name in the place of a choice. The name is also that of the step.
fn chosen(item: &RawValue, choice: &Choice, name: &str) -> Box<RawValue> {
    fn with(value: &RawValue, path: &[&str], name: &str, left_out: &[&str]) -> String {
        let quoted = serde_json::Value::from(name);
        let [field, rest @ ..] = path else {
            return quoted.to_string();
        };
        let members = entries(value).unwrap_or_default().into_iter();
        let members = members.filter(|(name, _)| !left_out.contains(&&**name));
        let members = members.map(|(own, value)| {
            let member = match own == *field {
                true => with(value, rest, name, &[]),
                false => value.get().to_owned(),
            };
            format!("{}:{member}", serde_json::Value::from(&*own))
        });
        let own = (!left_out.is_empty()).then(|| format!("\"name\":{quoted}"));
        let members: Vec<_> = own.into_iter().chain(members).collect();
        format!("{{{}}}", members.join(","))
    }
    let json = with(item, choice.field, name, &OF_THE_WHOLE);
    // Each part was JSON before.
    RawValue::from_string(json).unwrap_or_else(|_| item.to_owned())
}

/// A step of a definition as it was written, or the block that a step ends.
pub struct StepSource<'d> {
    /// The whole name of the step.
    pub name: String,
    pub source: Cow<'d, RawValue>,
    /// True for a block. Its source has its steps.
    pub is_block: bool,
}

impl Definition {
    /// Returns the sources of the steps in the order of the definition itself, without those that undo others.
    pub fn sources(&self) -> Vec<StepSource<'_>> {
        let own = serde_json::from_str::<Vec<&RawValue>>(self.source.as_json());
        let own = own.unwrap_or_default();
        let finally = finally::items(&self.policies);
        let written = WrittenSteps::of([(&own, false), (&finally, true)], MOST_STEPS);
        let prefixes: Vec<_> = { written.steps.iter() }
            .map(|step| {
                step.place
                    .map(|place| written.blocks[place.block].prefix.clone())
            })
            .collect();
        let steps = written.steps.into_iter().zip(prefixes);
        steps
            .map(|(step, prefix)| StepSource {
                name: format!("{}{}", prefix.unwrap_or_default(), name_in(&step.source)),
                is_block: step.ends.is_some(),
                source: step.source,
            })
            .collect()
    }
}

/// The fields of a block as they were read.
pub(super) struct BlockDraft {
    /// The name of the end, which is that of the block.
    pub name: Option<StepName>,
    pub after: After,
    /// The condition under which the block runs, without those of the blocks that it is in.
    pub when: Option<ConditionPart>,
    /// The conditions of each branch.
    pub branches: Vec<Vec<ConditionPart>>,
    /// The policies for the steps in it.
    pub policies: Policies,
    /// True if the block itself sets `on_exhausted`, and `on_permanent`.
    pub has_own_policy: [bool; 2],
    pub output: BlockOutput,
    /// The names that its conditions read, with their pointers.
    pub reads: Vec<(String, Reads)>,
    /// The names that its output reads, which sees the steps in it.
    pub output_reads: Vec<(String, Reads)>,
}

/// Reads a block at its place, which is that of the steps beside it.
pub(super) fn read(
    written: &WrittenStep<'_>,
    block: &WrittenBlock,
    place: &StepPlace,
    policies: &Policies,
    origin: Origin<'_>,
    faults: &mut Vec<FieldFault>,
) -> BlockDraft {
    let prefix = &place.prefix;
    let mut draft = BlockDraft {
        name: None,
        after: After::StepAbove,
        when: None,
        branches: Vec::new(),
        policies: policies.clone(),
        has_own_policy: [false; 2],
        output: BlockOutput::Null,
        reads: Vec::new(),
        output_reads: Vec::new(),
    };
    let mut fields = match Fields::of(&written.source, &place.pointer) {
        Ok(fields) => fields,
        Err(found) => {
            faults.extend(found);
            return draft;
        }
    };
    draft.name = name_of_step(&mut fields, prefix);
    if fields.is_object("after") {
        fields.value("after");
        fields.fault(
            "after",
            "a block has no race of its own: give the race to a step before it, such as a `set`",
        );
    } else if let Some(after) = names_of_steps(&mut fields, "after") {
        draft.after = After::Named(after);
    }
    draft.when = condition(&mut fields, "when", prefix, origin, &mut draft.reads);
    match &block.kind {
        BlockKind::Steps | BlockKind::Switch(_) => {
            draft.read_fields(&mut fields, block, prefix, origin);
        }
        BlockKind::Choice(choice) => {
            draft.read_choice(&mut fields, choice, prefix, origin);
            // The other fields are those of the step for each name, which reports their faults.
            for (name, value) in entries(&written.source).unwrap_or_default() {
                if name == "on_permanent" {
                    draft.policies.on_permanent = policy_of(value).or(policies.on_permanent);
                }
                fields.value(&name);
            }
        }
    }
    if let Err(found) = fields.finish() {
        faults.extend(found);
    }
    draft
}

impl BlockDraft {
    fn read_fields(
        &mut self,
        fields: &mut Fields<'_>,
        block: &WrittenBlock,
        prefix: &Arc<str>,
        origin: Origin<'_>,
    ) {
        for (field, remedy) in OF_STEPS {
            // A field that is not there is not one of those that a block can have.
            if !fields.has(field) {
                continue;
            }
            if fields
                .value(field)
                .is_some_and(|value| value.get() != "null")
            {
                fields.fault(field, format!("belongs to a step: {remedy}"));
            }
        }
        self.has_own_policy =
            ["on_exhausted", "on_permanent"].map(|name| fields.peek(name).is_some());
        if let Some(policy) = on_exhausted(fields, Policy::ALL) {
            self.policies.on_exhausted = Some(policy);
        }
        if let Some(policy) = on_permanent(fields, Policy::ALL) {
            self.policies.on_permanent = Some(policy);
        }
        let output = json_template::read(fields, "output", origin, &mut self.output_reads);
        self.output = output.map_or(BlockOutput::Null, BlockOutput::Template);
        if fields.peek("steps").is_some() && fields.peek("switch").is_some() {
            fields.fault("switch", "give either `steps` or `switch`, not both");
        }
        let steps = |fields: &mut Fields<'_>, field: &str| match fields.array(field) {
            Some(steps) if steps.is_empty() => {
                fields.fault(field, "is empty: give at least one step");
            }
            _ => {}
        };
        if block.kind == BlockKind::Steps {
            steps(fields, "steps");
            fields.value("switch");
            self.branches.push(Vec::new());
            return;
        }
        let pointer = fields.pointer("switch");
        let branches = fields.array("switch").unwrap_or_default();
        if branches.is_empty() || branches.len() > MOST_BRANCHES {
            fields.fault("switch", format!("must have 1 to {MOST_BRANCHES} branches"));
        }
        let mut before: Vec<ConditionPart> = Vec::new();
        let last = branches.len().saturating_sub(1);
        for (at, branch) in branches.iter().enumerate() {
            let mut branch = match Fields::of(branch, &format!("{pointer}/{at}")) {
                Ok(branch) => branch,
                Err(found) => {
                    fields.extend(found);
                    continue;
                }
            };
            let mut own = before.clone();
            if branch.peek("else").is_some() {
                steps(&mut branch, "else");
                if at < last {
                    branch.fault(
                        "else",
                        "must be the last branch: no branch after it would run",
                    );
                }
            } else {
                if branch.peek("when").is_none() {
                    branch.missing(
                        "when",
                        "give the condition of the branch, or name its steps `else`",
                    );
                }
                if branch.peek("steps").is_none() {
                    branch.missing("steps", "give the steps of the branch");
                }
                steps(&mut branch, "steps");
                let when = condition(&mut branch, "when", prefix, origin, &mut self.reads);
                if let Some(when) = when {
                    before.extend(when.opposite());
                    own.push(when);
                }
            }
            self.branches.push(own);
            if let Err(found) = branch.finish() {
                fields.extend(found);
            }
        }
    }

    fn read_choice(
        &mut self,
        fields: &mut Fields<'_>,
        choice: &Choice,
        prefix: &Arc<str>,
        origin: Origin<'_>,
    ) {
        let mut outer = match choice.field {
            [_, _] => fields.object("task"),
            _ => None,
        };
        let field = choice.field[choice.field.len() - 1];
        let holder = outer.as_mut().unwrap_or(fields);
        let Some(mut own) = holder.object(field) else {
            return;
        };
        if own.peek("by").is_none() {
            own.missing(
                "by",
                "give the text that names one of them, such as \"{{ input.region }}\"",
            );
        }
        if own.peek("one_of").is_none() {
            own.missing("one_of", "list the names of which one is chosen");
        }
        let names = own.string_list("one_of", LONGEST_NAME);
        let is_list = names.is_some();
        let names = names.unwrap_or_default();
        let is_name = |name: &&String| !is_name_of_step(name);
        let mut sorted: Vec<_> = names.iter().collect();
        sorted.sort_unstable();
        sorted.dedup();
        if !is_list {
            // That is a fault already.
        } else if sorted.len() < names.len() || names.len() < 2 || names.len() > MOST_BRANCHES {
            own.fault(
                "one_of",
                format!("must have 2 to {MOST_BRANCHES} different names"),
            );
        } else if let Some(name) = names.iter().find(is_name) {
            own.fault(
                "one_of",
                format!("{name:?} cannot be the name of a step: only letters, digits, `_` and `-` can, after a letter"),
            );
        }
        let source = own.string("by", usize::MAX);
        let by = source.and_then(|source| match Template::parse(&source, origin) {
            Ok(template) => {
                let reads = template.reads();
                let of_items = ["item", "index", "previous"];
                if let Some(name) = of_items.into_iter().find(|name| reads.names.contains(*name)) {
                    own.fault("by", format!("`{name}` is not known to a choice, which is made once for the whole step: put the step into a task of its own, \"task\": {{ \"steps\": [ … ] }}, whose input `by` reads"));
                } else {
                    self.reads.push((own.pointer("by"), reads));
                }
                // It would name none of them, whatever the data are.
                if template.is_literal() && !names.contains(&source) && is_new(origin) {
                    own.fault(
                        "by",
                        "is a text without an expression, and none of the names: write it in braces, such as \"{{ input.region }}\"",
                    );
                }
                Some(template)
            }
            Err(message) => {
                own.fault("by", message);
                None
            }
        });
        let found = own.finish();
        if let Some(outer) = outer {
            // Its other fields belong to the step for each name.
            drop(outer);
        }
        if let Err(found) = found {
            fields.extend(found);
        }
        let Some(by) = by.map(Arc::new) else {
            return;
        };
        self.branches = (choice.names.iter())
            .map(|name| {
                vec![ConditionPart {
                    test: ConditionTest::Gives(by.clone(), name.as_str().into()),
                    block: prefix.clone(),
                }]
            })
            .collect();
        let mut outputs = BTreeMap::new();
        for name in &choice.names {
            let expression = Expression::parse(&format!("steps['{name}'].output"), Origin::Stored);
            if let Ok(expression) = expression {
                let pointer = fields.pointer(choice.field[0]);
                self.output_reads
                    .push((pointer, expression.reads().clone()));
                outputs.insert(name.clone(), expression);
            }
        }
        self.output = BlockOutput::Chosen {
            by,
            block: prefix.clone(),
            outputs,
        };
    }
}

/// Returns whether the definition is submitted now, so that what can only fail may be refused.
fn is_new(origin: Origin<'_>) -> bool {
    matches!(origin, Origin::Submitted(_))
}

/// Returns the policy for what has no status. `None`: there is none, or it has a fault.
fn policy_of(value: &RawValue) -> Option<Policy> {
    let otherwise = entries(value).and_then(|members| {
        let found = members.into_iter().find(|(name, _)| name == "else");
        found.map(|(_, value)| value)
    });
    let word = text(otherwise.unwrap_or(value).get())?;
    { Policy::ALL.iter() }
        .find(|policy| policy.as_str() == word)
        .copied()
}

fn condition(
    fields: &mut Fields<'_>,
    field: &str,
    prefix: &Arc<str>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<ConditionPart> {
    let source = fields.string(field, usize::MAX)?;
    match Expression::parse(&source, origin) {
        Ok(expression) => {
            reads.push((fields.pointer(field), expression.reads().clone()));
            Some(ConditionPart {
                test: ConditionTest::Is(Arc::new(expression), true),
                block: prefix.clone(),
            })
        }
        Err(message) => {
            fields.fault(field, message);
            None
        }
    }
}
