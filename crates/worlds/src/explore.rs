//! The search: breadth first, so that the first breach that is found has a shortest path.

use std::{
    collections::{HashMap, HashSet, VecDeque, hash_map::Entry},
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::{
    action::WorldAction,
    breach::{Breach, keep},
    fingerprint::Fingerprinter,
    state::WorldState,
    world::SmallWorld,
};

/// Runs begin at so many states of the frontier.
const MOST_RUNS: usize = 20_000;

/// The result of a search.
#[derive(Debug)]
pub struct WorldReport {
    /// The most troubles of a path.
    pub most_troubles: u8,
    /// The number of distinct states.
    pub states: usize,
    /// The number of those of which all that can follow was explored.
    pub expanded: usize,
    pub transitions: usize,
    /// The number of actions on the shortest path to the last state.
    pub depth: u32,
    pub at_rest: usize,
    /// The number of states from which rest was reached by a run without trouble, beside those from which the explored
    /// states lead there.
    pub runs: usize,
    /// The number of expanded states that lead to rest only by way of the frontier.
    pub unproven: usize,
    pub counterexample: Option<Counterexample>,
}

#[derive(Debug)]
pub struct Counterexample {
    pub breach: Breach,
    /// A sentence for each action, with the state after it.
    pub path: Vec<String>,
}

struct FoundState {
    parent: u32,
    action: WorldAction,
    depth: u32,
}

/// The states that were found, and the way to each.
struct Search<'w> {
    world: &'w SmallWorld,
    most_troubles: u8,
    known: HashMap<u128, u32>,
    visits: Vec<FoundState>,
    /// The positions in `successors` at which those of each expanded state begin.
    first: Vec<usize>,
    successors: Vec<u32>,
    is_rest: Vec<bool>,
    queue: VecDeque<WorldState>,
    prints: Fingerprinter,
}

/// Explores a world in rounds: first all paths without trouble, then those with at most one, and so on. It ends
/// with the second round that found so many states that it was not completed, or once something is wrong.
pub fn explore(world: &SmallWorld, most: usize) -> Vec<WorldReport> {
    let mut reports: Vec<WorldReport> = Vec::new();
    for most_troubles in 0..=world.troubles.most() {
        let report = explore_round(world, most_troubles, most);
        let is_broken = report.counterexample.is_some();
        reports.push(report);
        let unfinished = reports.iter().filter(|report| report.states >= most);
        if is_broken || unfinished.count() == 2 {
            break;
        }
    }
    reports
}

fn explore_round(world: &SmallWorld, most_troubles: u8, most: usize) -> WorldReport {
    let mut search = Search {
        world,
        most_troubles,
        known: HashMap::new(),
        visits: Vec::new(),
        first: Vec::new(),
        successors: Vec::new(),
        is_rest: Vec::new(),
        queue: VecDeque::new(),
        // With copies it matters which of the instances supervises.
        prints: Fingerprinter::new(!world.has_caches),
    };
    let start = world.start(most_troubles);
    search.add(start, None);
    let mut found = None;
    let mut moves = Vec::new();
    while found.is_none()
        && search.visits.len() < most
        && let Some(state) = search.queue.pop_front()
    {
        found = search.expand(&state, &mut moves).err();
    }
    let expanded = search.first.len();
    let (mut unproven, mut runs) = (0, 0);
    if found.is_none() {
        match search.rest_is_reached() {
            Ok(only_by_frontier) => unproven = only_by_frontier,
            Err(stuck) => found = Some(stuck),
        }
    }
    if found.is_none() {
        match search.run_frontier() {
            Ok(count) => runs = count,
            Err(stuck) => found = Some(stuck),
        }
    }
    WorldReport {
        most_troubles,
        states: search.visits.len(),
        expanded,
        transitions: search.successors.len(),
        depth: search.visits.last().map_or(0, |visit| visit.depth),
        at_rest: search.is_rest.iter().filter(|is_rest| **is_rest).count(),
        runs,
        unproven,
        counterexample: found,
    }
}

/// Returns the state after an action. A panic of the decision is a breach too.
fn step(
    world: &SmallWorld,
    state: &WorldState,
    action: WorldAction,
) -> Result<Option<WorldState>, Breach> {
    let result = catch_unwind(AssertUnwindSafe(|| state.after(world, action)));
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Breach {
            rule: "no decision panics",
            detail: text.unwrap_or_default().to_owned(),
        })
    })
}

impl Search<'_> {
    fn add(&mut self, state: WorldState, from: Option<(u32, WorldAction)>) -> u32 {
        let print = self.prints.of(&state);
        let number = self.visits.len() as u32;
        match self.known.entry(print) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(free) => {
                free.insert(number);
                let (parent, action) = from.unwrap_or((0, WorldAction::Tick));
                let depth = match from {
                    Some((parent, _)) => self.visits[parent as usize].depth + 1,
                    None => 0,
                };
                self.visits.push(FoundState {
                    parent,
                    action,
                    depth,
                });
                self.is_rest.push(state.is_at_rest());
                self.queue.push_back(state);
                number
            }
        }
    }

    fn expand(
        &mut self,
        state: &WorldState,
        moves: &mut Vec<WorldAction>,
    ) -> Result<(), Counterexample> {
        let number = self.first.len() as u32;
        self.first.push(self.successors.len());
        moves.clear();
        state.moves(self.world, moves);
        for action in moves.iter().copied() {
            match step(self.world, state, action) {
                Ok(None) => {}
                Ok(Some(next)) => {
                    let next = self.add(next, Some((number, action)));
                    self.successors.push(next);
                }
                Err(breach) => {
                    let mut path = self.path_to(number);
                    path.push(action);
                    return Err(self.counterexample(&path, breach));
                }
            }
        }
        Ok(())
    }

    fn successors_of(&self, number: usize) -> &[u32] {
        let end = self
            .first
            .get(number + 1)
            .copied()
            .unwrap_or(self.successors.len());
        &self.successors[self.first[number]..end]
    }

    /// Checks that from each expanded state a state at rest can be reached, or one of the frontier. Returns how many reach
    /// only the frontier.
    fn rest_is_reached(&self) -> Result<usize, Counterexample> {
        let expanded = self.first.len();
        let to_rest = self.leads_to(|number| self.is_rest[number]);
        let to_any = self.leads_to(|number| self.is_rest[number] || number >= expanded);
        if let Some(stuck) = (0..expanded).find(|number| !to_any[*number]) {
            let breach = Breach {
                rule: "from every state a state at rest can be reached",
                detail: "nothing that can follow ends the task".to_owned(),
            };
            return Err(self.counterexample(&self.path_to(stuck as u32), breach));
        }
        Ok((0..expanded).filter(|number| !to_rest[*number]).count())
    }

    /// Returns the states from which one of these can be reached.
    fn leads_to(&self, is_goal: impl Fn(usize) -> bool) -> Vec<bool> {
        let states = self.visits.len();
        let mut counts = vec![0u32; states + 1];
        for next in &self.successors {
            counts[*next as usize + 1] += 1;
        }
        for number in 0..states {
            counts[number + 1] += counts[number];
        }
        let mut free = counts.clone();
        let mut before = vec![0u32; self.successors.len()];
        for number in 0..self.first.len() {
            for next in self.successors_of(number) {
                let slot = &mut free[*next as usize];
                before[*slot as usize] = number as u32;
                *slot += 1;
            }
        }
        let mut leads: Vec<_> = (0..states).map(&is_goal).collect();
        let mut open: Vec<_> = (0..states).filter(|number| leads[*number]).collect();
        while let Some(number) = open.pop() {
            let range = counts[number] as usize..counts[number + 1] as usize;
            for earlier in &before[range] {
                let earlier = *earlier as usize;
                if !std::mem::replace(&mut leads[earlier], true) {
                    open.push(earlier);
                }
            }
        }
        leads
    }

    /// Lets states of the frontier go on without any trouble, until they are at rest.
    fn run_frontier(&mut self) -> Result<usize, Counterexample> {
        let expanded = self.first.len();
        let every = self.queue.len().div_ceil(MOST_RUNS).max(1);
        let mut runs = 0;
        let mut prints = Fingerprinter::new(false);
        for (at, begin) in self.queue.iter().enumerate().step_by(every) {
            let mut state = begin.clone();
            let (mut taken, mut seen) = (Vec::new(), HashSet::new());
            let result = loop {
                if state.is_at_rest() {
                    break Ok(());
                }
                let Some(action) = state.fair_move(self.world) else {
                    break stuck("nothing more happens");
                };
                if !seen.insert(prints.of(&state)) {
                    break stuck("it goes on without an end");
                }
                taken.push(action);
                match step(self.world, &state, action) {
                    Ok(Some(next)) => state = next,
                    Ok(None) => break stuck("what is due changes nothing"),
                    Err(breach) => break Err(breach),
                }
            };
            if let Err(breach) = result {
                let mut path = self.path_to((expanded + at) as u32);
                path.append(&mut taken);
                return Err(self.counterexample(&path, breach));
            }
            runs += 1;
        }
        Ok(runs)
    }

    fn path_to(&self, number: u32) -> Vec<WorldAction> {
        let mut path = Vec::new();
        let mut at = number;
        while at > 0 {
            let visit = &self.visits[at as usize];
            path.push(visit.action);
            at = visit.parent;
        }
        path.reverse();
        path
    }

    /// Takes the path once more, and says what happens.
    fn counterexample(&self, path: &[WorldAction], breach: Breach) -> Counterexample {
        let mut state = self.world.start(self.most_troubles);
        let mut sentences = vec![format!("The world begins: {}.", state.in_words())];
        for action in path {
            let sentence = action.in_words(&state);
            match step(self.world, &state, *action) {
                Ok(Some(next)) => {
                    sentences.push(format!("{sentence}\n      {}", next.in_words()));
                    state = next;
                }
                _ => sentences.push(sentence),
            }
        }
        Counterexample {
            breach,
            path: sentences,
        }
    }
}

fn stuck(why: &str) -> Result<(), Breach> {
    keep(
        false,
        "a state gets to rest without further trouble",
        || why.to_owned(),
    )
}
