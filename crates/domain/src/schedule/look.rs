//! A look at a schedule: what fires now, what is left out, which runs begin, and when to look again.

use std::collections::BTreeMap;

use super::{
    KNOWN_FIRED, MOST_CAUGHT_UP, MOST_QUEUED, MOST_RUNNING, STEPPED_BACK, ScheduleState,
    run::{RunSource, RunState, ScheduleRun, SkipReason},
    spec::{CatchUp, Overlap, ScheduleSpec},
    timing::{FireTime, Timing, jitter},
};
use crate::{
    ids::TaskId,
    time::{Span, Timestamp},
};

/// How often it is looked whether runs may begin that wait for others: the longer they wait, the more seldom.
const POLL: (Span, Span) = (Span::from_secs(1), Span::from_secs(30));
/// Of why a run failed, in characters: the record of the schedule has it.
const LONGEST_REASON: usize = 1000;
/// When a task is submitted again that could not be submitted now.
const AGAIN: Span = Span::from_secs(2);

/// What does not change from look to look.
#[derive(Clone, Debug)]
pub struct ScheduleRule {
    pub name: String,
    pub spec: ScheduleSpec,
    pub timing: Timing,
    /// A fire time that is past for longer is missed: [`super::MISSED_AFTER`], or more where looks are seldom.
    pub missed_after: Span,
}

/// What a look came to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ScheduleLook {
    /// Runs that are new or have changed, to be saved; by number.
    pub records: BTreeMap<u64, ScheduleRun>,
    /// Runs whose tasks are to be submitted once this is saved.
    pub begin: Vec<ScheduleRun>,
    /// Tasks that are to be cancelled for the run of this fire time.
    pub cancel: Vec<(TaskId, Timestamp)>,
    pub next_at: Option<Timestamp>,
    /// How many fire times were left out, by the reason.
    pub skipped: BTreeMap<SkipReason, u64>,
    /// The clock was set back: what it has handled too early is not handled again.
    pub is_stepped_back: bool,
}

/// What came of submitting the task of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Begun {
    Task(TaskId),
    /// Its fire time has a task of another run.
    Repeated,
    /// It cannot be submitted, and would not be later.
    Failed(String),
}

impl ScheduleRule {
    /// When the run of this fire time begins.
    pub fn starts_at(&self, at: Timestamp) -> Timestamp {
        at + jitter(&self.name, at, self.spec.jitter)
    }

    fn is_before_end(&self, at: Timestamp) -> bool {
        self.spec.until.is_none_or(|until| at <= until)
    }

    /// The next fire times whose runs are still to begin, of those after `handled_at`.
    pub fn next(&self, handled_at: Timestamp, now: Timestamp, most: usize) -> Vec<Timestamp> {
        let jitter = self.spec.jitter.unwrap_or_default().as_millis();
        let earliest = Timestamp::from_millis(now.as_millis().saturating_sub(jitter));
        let times = self.timing.after(handled_at.max(earliest));
        let times = times.take_while(|fire| self.is_before_end(fire.at));
        let fires = times.filter(|fire| !fire.is_left_out).map(|fire| fire.at);
        let fires = fires.filter(|at| self.starts_at(*at) > now);
        fires.take(most).collect()
    }

    /// The fire times in a range; `None` if there are more than so many.
    pub fn between(&self, from: Timestamp, to: Timestamp, most: usize) -> Option<Vec<Timestamp>> {
        let before = Timestamp::from_millis(from.as_millis().saturating_sub(1));
        let (found, is_more) = self.timing.last(before, to, most);
        let fires = found.into_iter().filter(|fire| !fire.is_left_out);
        (!is_more).then(|| fires.map(|fire| fire.at).collect())
    }
}

impl ScheduleState {
    /// `runs`: whether a task has not ended.
    pub fn look(
        &mut self,
        rule: &ScheduleRule,
        now: Timestamp,
        runs: impl Fn(TaskId) -> bool,
    ) -> ScheduleLook {
        let mut look = ScheduleLook::default();
        self.running.retain(|task| runs(*task));
        if self.handled_at > now + STEPPED_BACK {
            // The key of a fire time that was handled too early keeps it from having a second task.
            look.is_stepped_back = true;
            self.handled_at = now;
            self.paused_until = None;
        }
        if self.pause.is_none() {
            self.fire_due(rule, now, &mut look);
        }
        let ready = self.ready();
        look.begin = ready.iter().map(|&at| self.open[at].clone()).collect();
        self.starting = look.begin.iter().map(|run| run.number).collect();
        if let Some(head) = self.head()
            && head.overlap == Overlap::Replace
        {
            let fire_time = head.fire_time;
            look.cancel = self.running.iter().map(|task| (*task, fire_time)).collect();
        }
        look.next_at = self.next_look(rule, now, false);
        look
    }

    /// What came of the run's task. `None` where that was recorded before.
    pub fn begun(&mut self, number: u64, begun: Begun, now: Timestamp) -> Option<ScheduleRun> {
        let at = self.open.iter().position(|run| run.number == number)?;
        let run = self.open.remove(at);
        self.starting.retain(|starting| *starting != number);
        Some(match begun {
            Begun::Task(task) => {
                if !self.running.contains(&task) {
                    self.running.push(task);
                }
                let surplus = self.running.len().saturating_sub(MOST_RUNNING);
                self.running.drain(..surplus);
                self.failing = None;
                self.begun_at = Some(now);
                ScheduleRun {
                    state: RunState::Started,
                    task: Some(task),
                    started_at: Some(now),
                    ..run
                }
            }
            Begun::Repeated => {
                let reason = "this fire time has a task already".to_owned();
                run.left_out(SkipReason::Repeated, reason)
            }
            Begun::Failed(reason) => {
                let reason: String = reason.chars().take(LONGEST_REASON).collect();
                self.failing = Some(reason.clone());
                ScheduleRun {
                    state: RunState::Failed,
                    reason: Some(reason),
                    ..run
                }
            }
        })
    }

    /// When to look again; `has_failed`: a task that is to be submitted cannot be submitted now.
    pub fn next_look(
        &self,
        rule: &ScheduleRule,
        now: Timestamp,
        has_failed: bool,
    ) -> Option<Timestamp> {
        let ready = match (self.ready().is_empty(), has_failed) {
            (true, _) => None,
            (false, true) => Some(now + AGAIN),
            (false, false) => Some(now),
        };
        let waiting = self.head().map(|head| {
            // How long it has waited as the first of those that wait.
            let since = self.begun_at.unwrap_or(head.decided_at);
            let waited = Span::from(now.since(since.max(head.decided_at))).as_millis() / 10;
            let waited = Span::from_millis(waited.unsigned_abs());
            now + waited.clamp(POLL.0, POLL.1)
        });
        let fires = match self.pause {
            Some(_) => None,
            None => self.next_start(rule),
        };
        [ready, waiting, fires].into_iter().flatten().min()
    }

    /// When the next fire time begins a run.
    pub fn next_start(&self, rule: &ScheduleRule) -> Option<Timestamp> {
        let next = rule.timing.after(self.handled_at).next()?;
        rule.is_before_end(next.at).then(|| rule.starts_at(next.at))
    }

    /// The first of the runs that wait for others, if it may begin but for them.
    fn head(&self) -> Option<&ScheduleRun> {
        let mut open = self.open.iter();
        let head = open.find(|run| {
            run.overlap != Overlap::Allow && !self.is_starting(run) && !self.is_paused_for(run)
        })?;
        (!self.running.is_empty()).then_some(head)
    }

    /// Whether its task may be there already: then nothing takes its turn.
    pub(super) fn is_starting(&self, run: &ScheduleRun) -> bool {
        self.starting.contains(&run.number)
    }

    fn is_paused_for(&self, run: &ScheduleRun) -> bool {
        self.pause.is_some() && run.source != RunSource::Triggered
    }

    /// The indices of the open runs that begin now.
    fn ready(&self) -> Vec<usize> {
        let mut is_free = self.running.is_empty() && self.starting.is_empty();
        let mut ready = Vec::new();
        for (at, run) in self.open.iter().enumerate() {
            if self.is_starting(run) {
                ready.push(at);
                continue;
            }
            if self.is_paused_for(run) {
                continue;
            }
            match run.overlap {
                Overlap::Allow => ready.push(at),
                _ if is_free => {
                    is_free = false;
                    ready.push(at);
                }
                _ => {}
            }
        }
        ready
    }

    fn fire_due(&mut self, rule: &ScheduleRule, now: Timestamp, look: &mut ScheduleLook) {
        let until = rule.spec.until.map_or(now, |until| until.min(now));
        let from = self.handled_at;
        let jitter = rule.spec.jitter.unwrap_or_default();
        let is_missed = |fire: &FireTime| rule.starts_at(fire.at) + rule.missed_after < now;
        // Up to this time all are missed, whatever their jitter.
        let on_time = rule.missed_after.saturating_add(jitter).as_millis();
        let missed_until = now.as_millis().saturating_sub(on_time).saturating_sub(1);
        let missed_until = Timestamp::from_millis(missed_until).min(until).max(from);
        // A run never begins before that of an earlier fire time, whatever their jitter.
        let late = rule.timing.after(missed_until);
        let late = late.take_while(|fire| fire.at <= until && rule.starts_at(fire.at) <= now);
        let late: Vec<FireTime> = late.collect();
        let late_missed = late.iter().filter(|fire| is_missed(fire));
        let to_catch_up = late_missed.clone().filter(|fire| !fire.is_left_out).count();
        let late_missed = late_missed.count();
        let most = MOST_CAUGHT_UP.saturating_sub(to_catch_up);
        let (mut due, is_more) = rule.timing.last(from, missed_until, most);
        let missed = due.len() + late_missed;
        if is_more {
            let until = due.first().map_or(missed_until, |first| {
                Timestamp::from_millis(first.at.as_millis().saturating_sub(1))
            });
            self.leave_out_earlier(rule, until, now, look);
        }
        due.extend(late);
        let Some(last) = due.last() else { return };
        self.handled_at = last.at;
        let last_missed = due[..missed].iter().rposition(|fire| !fire.is_left_out);
        for (at, fire) in due.iter().enumerate() {
            if fire.is_left_out {
                self.skip(rule, fire.at, SkipReason::Dst, jump_reason(), now, look);
                continue;
            }
            if self.paused_until.is_some_and(|until| fire.at <= until) {
                let reason = "the schedule was paused".to_owned();
                self.skip(rule, fire.at, SkipReason::Paused, reason, now, look);
                continue;
            }
            if at >= missed {
                self.fire(rule, fire.at, RunSource::Scheduled, now, look);
                continue;
            }
            let is_caught_up = match rule.spec.catch_up {
                CatchUp::All => true,
                CatchUp::Last => missed == due.len() && Some(at) == last_missed,
                CatchUp::None => false,
            };
            if is_caught_up {
                self.fire(rule, fire.at, RunSource::CaughtUp, now, look);
            } else {
                self.skip(
                    rule,
                    fire.at,
                    SkipReason::Missed,
                    missed_reason(rule),
                    now,
                    look,
                );
            }
        }
        self.paused_until = None;
    }

    /// Leaves out the fire times after what was handled, up to this time: they come before the last that are caught up. They are
    /// counted, not looked at: there may be millions of them.
    fn leave_out_earlier(
        &mut self,
        rule: &ScheduleRule,
        until: Timestamp,
        now: Timestamp,
        look: &mut ScheduleLook,
    ) {
        let from = self.handled_at;
        let paused_until = self
            .paused_until
            .unwrap_or(from)
            .clamp(from, until.max(from));
        let paused = "the schedule was paused".to_owned();
        for (from, until, skipped, reason) in [
            (from, paused_until, SkipReason::Paused, paused),
            (paused_until, until, SkipReason::Missed, missed_reason(rule)),
        ] {
            let count = rule.timing.count(from, until);
            if let Some(times) = count.left_out_times {
                let reason = jump_reason();
                self.skip_several(
                    rule,
                    times,
                    count.left_out,
                    SkipReason::Dst,
                    reason,
                    now,
                    look,
                );
            }
            if count.fires == 0 {
                continue;
            }
            let first = rule.timing.after(from).find(|fire| !fire.is_left_out);
            let (last, _) = rule.timing.last(from, until, 1);
            let last = last.iter().rfind(|fire| !fire.is_left_out);
            if let (Some(first), Some(last)) = (first, last) {
                let times = (first.at, last.at);
                self.skip_several(rule, times, count.fires, skipped, reason, now, look);
            }
        }
    }

    fn fire(
        &mut self,
        rule: &ScheduleRule,
        at: Timestamp,
        source: RunSource,
        now: Timestamp,
        look: &mut ScheduleLook,
    ) {
        if self.fired.contains(&at) {
            let reason = "this fire time has a run already".to_owned();
            self.skip(rule, at, SkipReason::Repeated, reason, now, look);
            return;
        }
        match rule.spec.overlap {
            Overlap::Skip if self.is_busy() => {
                let reason = match self.running.first() {
                    Some(task) => format!("task {task} of this schedule has not ended"),
                    None => "a run of this schedule has not begun".to_owned(),
                };
                self.skip(rule, at, SkipReason::Overlap, reason, now, look);
                return;
            }
            Overlap::Replace => {
                let starting = &self.starting;
                let is_replaced =
                    |run: &mut ScheduleRun| !run.is_asked_for() && !starting.contains(&run.number);
                for run in self.open.extract_if(.., is_replaced) {
                    *look.skipped.entry(SkipReason::Replaced).or_default() += 1;
                    let reason = format!("the run of {at} has taken its turn");
                    let run = run.left_out(SkipReason::Replaced, reason);
                    look.records.insert(run.number, run);
                }
            }
            _ => {}
        }
        if self.open.len() >= MOST_QUEUED {
            let reason = format!("{MOST_QUEUED} runs of this schedule wait");
            self.skip(rule, at, SkipReason::QueueFull, reason, now, look);
            return;
        }
        self.fired.push(at);
        let surplus = self.fired.len().saturating_sub(KNOWN_FIRED);
        self.fired.drain(..surplus);
        let run = self.new_run(rule, at, source, now);
        look.records.insert(run.number, run.clone());
        self.queue(run);
    }

    /// One that replaces others goes before those that wait.
    pub(super) fn queue(&mut self, run: ScheduleRun) {
        match run.overlap {
            Overlap::Replace => self.open.insert(0, run),
            _ => self.open.push(run),
        }
    }

    fn new_run(
        &mut self,
        rule: &ScheduleRule,
        at: Timestamp,
        source: RunSource,
        now: Timestamp,
    ) -> ScheduleRun {
        let starts_at = match source {
            RunSource::Scheduled | RunSource::CaughtUp => rule.starts_at(at),
            RunSource::Backfilled | RunSource::Triggered => now,
        };
        self.numbered(at, source, rule.spec.overlap, starts_at, now)
    }

    pub(super) fn numbered(
        &mut self,
        fire_time: Timestamp,
        source: RunSource,
        overlap: Overlap,
        starts_at: Timestamp,
        now: Timestamp,
    ) -> ScheduleRun {
        let number = self.next_number;
        self.next_number += 1;
        ScheduleRun {
            number,
            fire_time,
            last_fire_time: None,
            count: 1,
            source,
            state: RunState::Queued,
            overlap,
            skipped: None,
            reason: None,
            by: None,
            task: None,
            starts_at,
            decided_at: now,
            started_at: None,
            request: None,
        }
    }

    /// Leaves a fire time out. Those that are left out one after the other for one reason are one run on record.
    fn skip(
        &mut self,
        rule: &ScheduleRule,
        at: Timestamp,
        skipped: SkipReason,
        reason: String,
        now: Timestamp,
        look: &mut ScheduleLook,
    ) {
        self.skip_several(rule, (at, at), 1, skipped, reason, now, look);
    }

    /// Leaves so many fire times out, of which the first and the last are given.
    #[allow(
        clippy::too_many_arguments,
        reason = "each of them is another fact about one decision"
    )]
    fn skip_several(
        &mut self,
        rule: &ScheduleRule,
        (first, last_one): (Timestamp, Timestamp),
        count: u64,
        skipped: SkipReason,
        reason: String,
        now: Timestamp,
        look: &mut ScheduleLook,
    ) {
        *look.skipped.entry(skipped).or_default() += count;
        let joins = |last: &ScheduleRun| {
            last.skipped == Some(skipped) && last.number + 1 == self.next_number
        };
        let run = match self.last_skip.take().filter(joins) {
            Some(last) => ScheduleRun {
                last_fire_time: Some(last_one),
                count: last.count.saturating_add(count),
                reason: Some(reason),
                decided_at: now,
                ..last
            },
            None => {
                let run = self.new_run(rule, first, RunSource::Scheduled, now);
                let run = ScheduleRun {
                    last_fire_time: (count > 1).then_some(last_one),
                    count,
                    ..run
                };
                run.left_out(skipped, reason)
            }
        };
        look.records.insert(run.number, run.clone());
        self.last_skip = Some(run);
    }
}

fn jump_reason() -> String {
    "the clock jumps over this time (\"dst\": \"skip\")".to_owned()
}

fn missed_reason(rule: &ScheduleRule) -> String {
    match rule.spec.catch_up {
        CatchUp::All => format!("no instance ran; only the last {MOST_CAUGHT_UP} are caught up"),
        word => format!("no instance ran (\"catch_up\": \"{}\")", word.as_str()),
    }
}
