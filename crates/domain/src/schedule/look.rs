//! A look at a schedule decides which fire times fire now, which are left out, which runs begin, and when the next look
//! is due.

use std::collections::BTreeMap;

use super::{
    KNOWN_FIRED, MOST_CAUGHT_UP, MOST_QUEUED, MOST_RUNNING, STEPPED_BACK, ScheduleState,
    policies::{CatchUp, Overlap},
    run::{RunSource, RunState, ScheduleRun, SkipReason},
    spec::ScheduleSpec,
    timing::{FireTime, Timing, jitter},
};
use crate::values::{
    ids::TaskId,
    time::{Span, Timestamp},
};

/// The shortest and the longest time between looks at a schedule with runs that wait for others. The longer a run has
/// waited, the longer the time is.
const POLL: (Span, Span) = (Span::from_secs(1), Span::from_secs(30));
/// The longest reason of a failed run, in characters. It is kept in the record of the schedule.
const LONGEST_REASON: usize = 1000;
/// The time until a task that could not be submitted is submitted again.
const AGAIN: Span = Span::from_secs(2);

/// The part of a schedule that stays the same from look to look.
#[derive(Clone, Debug)]
pub struct ScheduleRule {
    pub name: String,
    pub spec: ScheduleSpec,
    pub timing: Timing,
    /// A fire time is missed if it is older than this: [`super::MISSED_AFTER`], or more if looks are rare.
    pub missed_after: Span,
}

/// The result of a look.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ScheduleDecision {
    /// The runs that are new or have changed, by their numbers. They must be saved.
    pub records: BTreeMap<u64, ScheduleRun>,
    /// The runs whose tasks must be submitted once the records are saved.
    pub begin: Vec<ScheduleRun>,
    /// The tasks that must be cancelled for the run of this fire time.
    pub cancel: Vec<(TaskId, Timestamp)>,
    pub next_at: Option<Timestamp>,
    /// The number of fire times that were left out, by the reason.
    pub skipped: BTreeMap<SkipReason, u64>,
    /// True if the clock was set back. Fire times that were handled too early are not handled again.
    pub is_stepped_back: bool,
}

/// The result of submitting the task of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RunSubmission {
    Task(TaskId),
    /// The fire time has the task of another run.
    Repeated,
    /// The task cannot be submitted, and could not be later.
    Rejected(String),
}

impl ScheduleRule {
    /// Returns the time at which the run of this fire time begins.
    pub fn starts_at(&self, at: Timestamp) -> Timestamp {
        at + jitter(&self.name, at, self.spec.jitter)
    }

    fn is_before_end(&self, at: Timestamp) -> bool {
        self.spec.until.is_none_or(|until| at <= until)
    }

    /// Returns the next fire times after `handled_at` whose runs have not begun.
    pub fn next(&self, handled_at: Timestamp, now: Timestamp, most: usize) -> Vec<Timestamp> {
        let jitter = self.spec.jitter.unwrap_or_default().as_millis();
        let earliest = Timestamp::from_millis(now.as_millis().saturating_sub(jitter));
        let times = self.timing.after(handled_at.max(earliest));
        let times = times.take_while(|fire| self.is_before_end(fire.at));
        let fires = times.filter(|fire| !fire.is_left_out).map(|fire| fire.at);
        let fires = fires.filter(|at| self.starts_at(*at) > now);
        fires.take(most).collect()
    }

    /// Returns the fire times in a range; `None` if there are more than `most`.
    pub fn between(&self, from: Timestamp, to: Timestamp, most: usize) -> Option<Vec<Timestamp>> {
        let before = Timestamp::from_millis(from.as_millis().saturating_sub(1));
        let (found, is_more) = self.timing.last(before, to, most);
        let fires = found.into_iter().filter(|fire| !fire.is_left_out);
        (!is_more).then(|| fires.map(|fire| fire.at).collect())
    }
}

impl ScheduleState {
    /// `runs` returns whether a task has not ended.
    pub fn decide(
        &mut self,
        rule: &ScheduleRule,
        now: Timestamp,
        runs: impl Fn(TaskId) -> bool,
    ) -> ScheduleDecision {
        let mut look = ScheduleDecision::default();
        self.running.retain(|task| runs(*task));
        if self.handled_at > now + STEPPED_BACK {
            // A fire time that was handled too early cannot get a second task, because both would have the same key.
            look.is_stepped_back = true;
            self.handled_at = now;
            self.paused_until = None;
        }
        if self.pause.is_none() {
            self.fire_due(rule, now, &mut look);
        }
        let ready = self.ready_indexes();
        look.begin = ready.iter().map(|&at| self.open[at].clone()).collect();
        self.starting = look.begin.iter().map(|run| run.number).collect();
        if let Some(head) = self.first_blocked()
            && head.overlap == Overlap::Replace
        {
            let fire_time = head.fire_time;
            look.cancel = self.running.iter().map(|task| (*task, fire_time)).collect();
        }
        look.next_at = self.next_decision(rule, now, false);
        look
    }

    /// Records the result of submitting the run's task. Returns `None` if it was recorded before.
    pub fn record_submission(
        &mut self,
        number: u64,
        begun: RunSubmission,
        now: Timestamp,
    ) -> Option<ScheduleRun> {
        let at = self.open.iter().position(|run| run.number == number)?;
        let run = self.open.remove(at);
        self.starting.retain(|starting| *starting != number);
        Some(match begun {
            RunSubmission::Task(task) => {
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
            RunSubmission::Repeated => {
                let reason = "this fire time has a task already".to_owned();
                run.into_skipped(SkipReason::Repeated, reason)
            }
            RunSubmission::Rejected(reason) => {
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

    /// Returns when the next look is due. `has_failed` is true if a task could not be submitted now and must be
    /// submitted again.
    pub fn next_decision(
        &self,
        rule: &ScheduleRule,
        now: Timestamp,
        has_failed: bool,
    ) -> Option<Timestamp> {
        let ready = match (self.ready_indexes().is_empty(), has_failed) {
            (true, _) => None,
            (false, true) => Some(now + AGAIN),
            (false, false) => Some(now),
        };
        let waiting = self.first_blocked().map(|head| {
            // A tenth of the time that the run has been the first of the waiting runs.
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

    /// Returns when the run of the next fire time begins.
    pub fn next_start(&self, rule: &ScheduleRule) -> Option<Timestamp> {
        let next = rule.timing.after(self.handled_at).next()?;
        rule.is_before_end(next.at).then(|| rule.starts_at(next.at))
    }

    /// Returns the first of the runs that wait for others, if only running tasks keep it from beginning.
    fn first_blocked(&self) -> Option<&ScheduleRun> {
        let mut open = self.open.iter();
        let head = open.find(|run| {
            run.overlap != Overlap::Allow && !self.is_starting(run) && !self.is_paused_for(run)
        })?;
        (!self.running.is_empty()).then_some(head)
    }

    /// Returns whether the run's task may exist already. No other run may replace such a run.
    pub(super) fn is_starting(&self, run: &ScheduleRun) -> bool {
        self.starting.contains(&run.number)
    }

    fn is_paused_for(&self, run: &ScheduleRun) -> bool {
        self.pause.is_some() && run.source != RunSource::Triggered
    }

    /// Returns the indices of the open runs that begin now.
    fn ready_indexes(&self) -> Vec<usize> {
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

    fn fire_due(&mut self, rule: &ScheduleRule, now: Timestamp, look: &mut ScheduleDecision) {
        let until = rule.spec.until.map_or(now, |until| until.min(now));
        let from = self.handled_at;
        let jitter = rule.spec.jitter.unwrap_or_default();
        let is_missed = |fire: &FireTime| rule.starts_at(fire.at) + rule.missed_after < now;
        // All fire times up to this one are missed, whatever their jitter.
        let on_time = rule.missed_after.saturating_add(jitter).as_millis();
        let missed_until = now.as_millis().saturating_sub(on_time).saturating_sub(1);
        let missed_until = Timestamp::from_millis(missed_until).min(until).max(from);
        // A run never begins before the run of an earlier fire time, whatever their jitter.
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

    /// Leaves out the fire times from `handled_at` to `until`, which come before the last ones that are caught up. They
    /// are counted and not enumerated, because there may be millions of them.
    fn leave_out_earlier(
        &mut self,
        rule: &ScheduleRule,
        until: Timestamp,
        now: Timestamp,
        look: &mut ScheduleDecision,
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
        look: &mut ScheduleDecision,
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
                    let run = run.into_skipped(SkipReason::Replaced, reason);
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

    /// Adds a run to the open runs. A run that replaces others goes before those that wait.
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

    /// Leaves a fire time out. Consecutive fire times that are left out for one reason are one run in the record.
    fn skip(
        &mut self,
        rule: &ScheduleRule,
        at: Timestamp,
        skipped: SkipReason,
        reason: String,
        now: Timestamp,
        look: &mut ScheduleDecision,
    ) {
        self.skip_several(rule, (at, at), 1, skipped, reason, now, look);
    }

    /// Leaves `count` fire times out, of which the first and the last are given.
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
        look: &mut ScheduleDecision,
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
                run.into_skipped(skipped, reason)
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
