//! The numbers of a run of the operated chaos, which say what it has shown.

use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
};

use super::super::audit::{Evidence, Kind};

pub struct Summary {
    states: BTreeMap<String, usize>,
    calls: usize,
    effects: usize,
    deliveries: usize,
    suspensions: usize,
    replies: usize,
    /// The later replies that came in time.
    pub taken: usize,
    heartbeats: usize,
    pub polls: usize,
    cancellations: usize,
    pub fetched: usize,
    /// The requests that came from a queue.
    pub queued: usize,
    queued_replies: usize,
    /// The items of lists.
    pub items: usize,
    repeats: usize,
    pub children: usize,
    pub moves: usize,
    pub decided: usize,
    /// The runs of schedules that have a task.
    fired: usize,
    triggered: usize,
    /// The tasks with a `start_at`.
    later: usize,
}

impl Summary {
    pub fn of(evidence: &Evidence) -> Self {
        let mut states: BTreeMap<String, usize> = BTreeMap::new();
        for record in evidence.records.values() {
            *states.entry(record.state.clone()).or_default() += 1;
        }
        let ledger = &evidence.ledger;
        let of = |kind: Kind| ledger.calls.iter().filter(|call| call.kind == kind).count();
        let taken = ledger.replies.iter().filter(|reply| reply.status == 204);
        let queued = ledger.calls.iter().filter(|c| c.waited_until.is_some());
        let plans = evidence.accepted.iter().map(|task| &task.plan.steps);
        let groups = plans.flatten().filter_map(|step| step.items);
        let (lists, repeats): (Vec<_>, Vec<_>) =
            groups.partition(|items| items.iterations.is_none());
        let children = evidence.records.values();
        let decided = evidence.decisions.iter();
        let runs = evidence
            .schedules
            .iter()
            .flat_map(|schedule| &schedule.runs);
        let later = evidence.accepted.iter();
        Self {
            calls: ledger.calls.len(),
            effects: ledger.effects.len(),
            deliveries: evidence.deliveries.len(),
            suspensions: evidence.suspensions.len(),
            replies: ledger.replies.len(),
            taken: taken.count(),
            heartbeats: ledger.heartbeats.len(),
            polls: of(Kind::Poll),
            cancellations: of(Kind::Cancel),
            fetched: ledger.fetched.len(),
            queued: queued.count(),
            queued_replies: ledger.queued_replies.len(),
            items: lists.iter().map(|items| items.count).sum(),
            repeats: repeats.len(),
            children: children.filter(|record| record.parent.is_some()).count(),
            moves: { evidence.accepted.iter() }
                .map(|task| task.earlier.len())
                .sum(),
            decided: decided.filter(|decision| decision.status == 200).count(),
            fired: runs.clone().filter(|run| run.task.is_some()).count(),
            triggered: runs.filter(|run| run.is_triggered).count(),
            later: later.filter(|task| task.plan.start_at.is_some()).count(),
            states,
        }
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:?}; {} calls, {} effects, {} deliveries, {} suspensions",
            self.states, self.calls, self.effects, self.deliveries, self.suspensions
        )?;
        writeln!(
            f,
            "{} replies came later, {} of them in time; {} heartbeats, {} polls, {} cancellations",
            self.replies, self.taken, self.heartbeats, self.polls, self.cancellations
        )?;
        writeln!(
            f,
            "{} steps were fetched; {} requests came from a queue; {} replies went to one",
            self.fetched, self.queued, self.queued_replies
        )?;
        writeln!(
            f,
            "{} items of lists, {} repeats, {} children, {} moves, {} decisions",
            self.items, self.repeats, self.children, self.moves, self.decided
        )?;
        write!(
            f,
            "{} runs of schedules, {} of them triggered; {} tasks for later",
            self.fired, self.triggered, self.later
        )
    }
}
