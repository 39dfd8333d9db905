//! Judges the observations of a check: makes the finding of each point.

use std::fmt;

use super::{
    CheckAnswer, CheckFinding, CheckObservations, CheckPoint, CheckStatus, CheckedCall,
    CheckedStep,
    output_comparison::{OutputDifference, own_part, repeats_request},
};
use crate::template::payload::Payload;

use CheckStatus::{Failed, Inconclusive, NotApplicable, Passed};

/// A response should leave time for a second attempt within the step's time.
const ATTEMPTS_IN_TIME: u64 = 2;

/// Returns one finding for each point, in the order of the points.
pub fn judge(seen: &CheckObservations) -> Vec<CheckFinding> {
    let points = CheckPoint::ALL.iter();
    points.map(|point| seen.judge_point(*point)).collect()
}

/// The status, the observed behaviour, and the numbers of the exchanges.
type PointResult = (CheckStatus, String, Vec<u32>);

fn point_result(
    status: CheckStatus,
    seen: impl Into<String>,
    calls: &[&CheckedCall],
) -> PointResult {
    let exchanges = calls.iter().flat_map(|call| call.exchanges.iter().copied());
    (status, seen.into(), exchanges.collect())
}

fn not_applicable(why: &str) -> PointResult {
    (NotApplicable, why.to_owned(), Vec::new())
}

const NO_UNDO: &str = "the request names no `undo`";
const NO_PROBE: &str = "the request names no `probe`";
const NO_ID: &str = "so had another key, apart from times and the key itself, so it does not show whether the work was done twice: let the output contain an id that the service gives to what it did, or let the probe return how often the work was done, and name that in `count`";
const ECHO: &str = "one request under two keys had the same output, apart from times and the keys, so the output only repeats what was sent and does not show whether the work was done twice: let it contain an id that the service gives to what it did, or let the probe return how often the work was done, and name that in `count`";

impl CheckObservations {
    fn judge_point(&self, name: CheckPoint) -> CheckFinding {
        let (status, seen, exchanges) = match name {
            CheckPoint::Work => self.work(),
            CheckPoint::Again => self.again(),
            CheckPoint::TwiceAtOnce => self.twice_at_once(),
            CheckPoint::AfterDroppedAnswer => self.after_dropped_answer(),
            CheckPoint::AfterCompleteBy => self.after_complete_by(),
            CheckPoint::LateRequest => self.late_request(),
            CheckPoint::Undo => self.undo(),
            CheckPoint::UndoTwice => self.undo_twice(),
            CheckPoint::UndoBeforeWork => self.undo_before_work(),
            CheckPoint::WorkAfterUndo => self.work_after_undo(),
            CheckPoint::ProbeBeforeWork => self.probe_before_work(),
            CheckPoint::ProbeDuringWork => self.probe_during_work(),
            CheckPoint::ProbeAfterWork => self.probe_after_work(),
            CheckPoint::ProbeOutput => self.probe_output(),
            CheckPoint::ProbeAfterUndo => self.probe_after_undo(),
            CheckPoint::ErrorClasses => self.error_classes(),
            CheckPoint::RetryAfter => self.retry_after(),
            CheckPoint::Size => self.size(),
            CheckPoint::Latency => self.latency(),
        };
        CheckFinding {
            name,
            status,
            seen,
            exchanges,
        }
    }

    /// Returns the result of a point that was not reached, with the reason.
    fn not_reached(&self) -> PointResult {
        let why = match (&self.cut_short, &self.work) {
            (Some(why), _) => format!("not checked: {why}"),
            (None, Some(work)) if work.output().is_none() => {
                "not checked: the work itself did not succeed".to_owned()
            }
            _ => "not checked".to_owned(),
        };
        (Inconclusive, why, Vec::new())
    }

    fn work(&self) -> PointResult {
        let Some(work) = &self.work else {
            return self.not_reached();
        };
        match &work.answer {
            CheckAnswer::Output(_) => point_result(Passed, work.answer.to_string(), &[work]),
            CheckAnswer::TooLarge => {
                point_result(Inconclusive, "its response is too large: see size", &[work])
            }
            CheckAnswer::Promised => point_result(
                Failed,
                "it promised to reply later (202): a check needs the reply in the response",
                &[work],
            ),
            answer => point_result(Failed, answer.to_string(), &[work]),
        }
    }

    /// Returns the calls that had an output, under any key.
    fn with_output(&self) -> impl Iterator<Item = (&CheckedCall, &Payload)> {
        let late = self.late.iter();
        let late = late.flat_map(|late| [Some(&late.call), late.in_time.as_ref()]);
        let repeat = self.dropped.as_ref().map(|dropped| &dropped.repeat);
        let calls = [self.work.as_ref(), repeat].into_iter().chain(late);
        let calls = calls
            .flatten()
            .chain(self.at_once.iter().flatten())
            .chain(self.complete_by.iter().flatten());
        calls.filter_map(|call| Some((call, call.output()?)))
    }

    /// Returns the reason why an output proves nothing, if so. Equal outputs prove that work was done once only if no
    /// other key has the same output.
    fn shows_nothing(&self, call: &CheckedCall, output: &Payload) -> Option<&'static str> {
        if self.repeats_requests() {
            return Some(ECHO);
        }
        let own = own_part(call, output);
        let mut others = { self.with_output() }
            .filter(|(other, _)| other.task != call.task)
            .map(|(other, output)| own_part(other, output))
            .peekable();
        if others.peek().is_none() {
            return Some("no request under another key had an output to compare it with");
        }
        others.any(|other| other == own).then_some(NO_ID)
    }

    /// Returns whether outputs only repeat what the service was sent.
    fn repeats_requests(&self) -> bool {
        self.two_keys.as_ref().is_some_and(repeats_request)
    }

    /// Judges by the number of times that the service did the work for a key, if the check reads it from its probe.
    fn by_count(&self, probe: Option<&CheckedCall>) -> Option<(CheckStatus, String)> {
        let before = self.probe_before.as_ref()?.count.as_ref();
        let (status, seen) = match (before, probe?.count.as_ref()?) {
            (Some(Ok(before @ 1..)), _) => (
                Inconclusive,
                format!("`count` was {before} before the work: it must be about one key"),
            ),
            (_, Ok(0)) => (Inconclusive, "`count` is 0 after the work".to_owned()),
            (_, Ok(1)) => (Passed, "by `count` the work was done once".to_owned()),
            (_, Ok(count)) => (
                Failed,
                format!("by `count` the work was done {count} times"),
            ),
            (_, Err(why)) => (Inconclusive, format!("`count` cannot be used: {why}")),
        };
        Some((status, seen))
    }

    /// Judges two calls with the same key: both must have the output of the first. `counted` is a probe after both.
    fn once(
        &self,
        first: &CheckedCall,
        second: &CheckedCall,
        counted: Option<&CheckedCall>,
    ) -> PointResult {
        let mut calls = vec![first, second];
        let (one, other) = match (&first.answer, &second.answer) {
            (CheckAnswer::Output(one), CheckAnswer::Output(other)) => (one, other),
            (CheckAnswer::Output(_), other) => {
                let seen = format!("one succeeded, the other did not: {other}");
                return point_result(Failed, seen, &calls);
            }
            (other, _) => return point_result(Failed, other.to_string(), &calls),
        };
        let same = match OutputDifference::between(one, other) {
            OutputDifference::None => "both had the same output".to_owned(),
            OutputDifference::OnlyTimes(places) => {
                format!(
                    "both had the same output except for times{}",
                    places.shown()
                )
            }
            OutputDifference::Some(places) => {
                let seen = format!(
                    "both succeeded, with different outputs{}: the work was done twice, or the first response is not remembered",
                    places.shown()
                );
                return point_result(Failed, seen, &calls);
            }
        };
        calls.extend(counted);
        match (self.by_count(counted), self.shows_nothing(first, one)) {
            (Some((Failed, why)), _) => point_result(Failed, format!("{same}, but {why}"), &calls),
            (Some((Passed, why)), _) => point_result(Passed, format!("{same}, and {why}"), &calls),
            (_, None) => point_result(Passed, same, &calls),
            (Some((_, why)), Some(_)) => {
                point_result(Inconclusive, format!("{same}, but {why}"), &calls)
            }
            (None, Some(why)) => point_result(Inconclusive, format!("{same}, but {why}"), &calls),
        }
    }

    fn again(&self) -> PointResult {
        match (&self.work, &self.again) {
            (Some(work), Some(again)) => self.once(work, again, self.count_after_again.as_ref()),
            _ => self.not_reached(),
        }
    }

    fn twice_at_once(&self) -> PointResult {
        match &self.at_once {
            Some([one, other]) => {
                let (one, other) = match one.output() {
                    Some(_) => (one, other),
                    None => (other, one),
                };
                let (status, seen, exchanges) =
                    self.once(one, other, self.count_after_both.as_ref());
                let is_repeat = one.exchanges.len().max(other.exchanges.len()) > 1;
                if status == Failed && is_repeat && self.again().0 == Failed {
                    let seen =
                        "the second had to be repeated after the response to the first: see again";
                    return (Inconclusive, seen.to_owned(), exchanges);
                }
                (status, seen, exchanges)
            }
            None => self.not_reached(),
        }
    }

    fn after_dropped_answer(&self) -> PointResult {
        if !self.step.has_probe {
            return not_applicable(
                "the request names no `probe`, without which nobody sees what the dropped call did",
            );
        }
        let Some(dropped) = &self.dropped else {
            return self.not_reached();
        };
        let mut calls = vec![&dropped.repeat];
        calls.extend(&dropped.probe);
        calls.extend(&dropped.probe_after);
        let counted = self.by_count(dropped.probe_after.as_ref());
        let (status, seen) = if dropped.repeat.output().is_none() {
            (
                Failed,
                format!(
                    "the repeated request did not succeed: {}",
                    dropped.repeat.answer
                ),
            )
        } else if let Some((Failed, why)) = counted {
            (Failed, format!("after the repeat, {why}"))
        } else if !self.knows_what_is_done() {
            (
                Inconclusive,
                "the probe does not tell what is done".to_owned(),
            )
        } else {
            let before = dropped.probe.as_ref().map(|probe| &probe.answer);
            let after = dropped.probe_after.as_ref().map(|probe| &probe.answer);
            match (before, after) {
                (Some(CheckAnswer::Done(before)), Some(CheckAnswer::Done(after))) => {
                    if let OutputDifference::Some(places) = OutputDifference::between(before, after)
                    {
                        (
                            Failed,
                            format!(
                                "the probe found the work of the dropped call done, and after the repeat another one: its output differs{}",
                                places.shown()
                            ),
                        )
                    } else if let Some((Passed, why)) = counted {
                        (Passed, format!("the dropped call did the work, and {why}"))
                    } else if self.finds_same_for_other_key(&dropped.repeat, before) {
                        (Inconclusive, "the probe finds the same for another key, apart from times and the key itself, so it does not show whether the work was done twice: let its `output` contain an id that the service gives to what it did, or name in `count` how often the work was done".to_owned())
                    } else if self.repeats_requests() && { dropped.repeat.output() }
                        .is_some_and(|output| is_same(output, before))
                    {
                        (
                            Inconclusive,
                            format!("the probe finds the output, and {ECHO}"),
                        )
                    } else {
                        (
                            Passed,
                            "the dropped call did the work, and the repeat found it".to_owned(),
                        )
                    }
                }
                (Some(CheckAnswer::NotDone), Some(CheckAnswer::Done(_))) => (
                    Passed,
                    "the dropped call did nothing, and the repeat did the work".to_owned(),
                ),
                (Some(probe), _) => (Inconclusive, format!("by the probe: {probe}")),
                (None, _) => return self.not_reached(),
            }
        };
        let (status, seen, mut exchanges) = point_result(status, seen, &calls);
        exchanges.push(dropped.exchange);
        exchanges.sort_unstable();
        (status, seen, exchanges)
    }

    fn finds_same_for_other_key(&self, call: &CheckedCall, found: &Payload) -> bool {
        let Some(other) = &self.probe_after else {
            return false;
        };
        match &other.answer {
            CheckAnswer::Done(output) => own_part(other, output) == own_part(call, found),
            _ => false,
        }
    }

    fn after_complete_by(&self) -> PointResult {
        let Some([first, again]) = &self.complete_by else {
            return self.not_reached();
        };
        if self.again().0 == Failed {
            return point_result(
                Inconclusive,
                "the same key does its work again anyway: see again",
                &[first, again],
            );
        }
        match first.output() {
            Some(_) => self.once(first, again, self.count_after_complete_by.as_ref()),
            None => point_result(Inconclusive, first.answer.to_string(), &[first]),
        }
    }

    fn late_request(&self) -> PointResult {
        let Some(late) = &self.late else {
            return self.not_reached();
        };
        let mut calls = vec![&late.call];
        calls.extend(&late.probe);
        calls.extend(&late.in_time);
        let is_done = late.probe.as_ref().is_some_and(CheckedCall::is_done);
        let (status, seen) = match &late.call.answer {
            CheckAnswer::Output(_)
            | CheckAnswer::TooLarge
            | CheckAnswer::Promised
            | CheckAnswer::Unusable(_) => (
                Failed,
                "it took a request whose Provost-Complete-By had passed a minute before".to_owned(),
            ),
            CheckAnswer::Refused(_) | CheckAnswer::Transient(_)
                if is_done && self.knows_what_is_done() =>
            {
                (
                    Failed,
                    "it refused the request, but by the probe the work was done".to_owned(),
                )
            }
            CheckAnswer::Refused(status) | CheckAnswer::Transient(status) => {
                match late.in_time.as_ref().map(|call| &call.answer) {
                    Some(CheckAnswer::Output(_)) => (
                        Passed,
                        format!(
                            "it refused the request ({status}), and did the work when it came with time left"
                        ),
                    ),
                    Some(other) => (
                        Failed,
                        format!(
                            "it refused the request ({status}), but also when it came with time left: {other}"
                        ),
                    ),
                    None => return self.not_reached(),
                }
            }
            other => (Inconclusive, other.to_string()),
        };
        point_result(status, seen, &calls)
    }

    fn undo(&self) -> PointResult {
        if !self.step.has_undo {
            return not_applicable(NO_UNDO);
        }
        let Some(undo) = &self.undo else {
            return self.not_reached();
        };
        match &undo.answer {
            CheckAnswer::Output(_) => point_result(Passed, undo.answer.to_string(), &[undo]),
            CheckAnswer::Refused(status @ (404 | 410)) => point_result(
                Failed,
                format!(
                    "it responded {status}, which means that nothing was left to undo, to the undo of work that was done"
                ),
                &[undo],
            ),
            answer => point_result(Failed, answer.to_string(), &[undo]),
        }
    }

    fn undo_twice(&self) -> PointResult {
        if !self.step.has_undo {
            return not_applicable(NO_UNDO);
        }
        let (Some(undo), Some(again)) = (&self.undo, &self.undo_again) else {
            return self.not_reached();
        };
        if self.undo().0 == Failed {
            return point_result(Inconclusive, "the first undo failed: see undo", &[undo]);
        }
        match &again.answer {
            CheckAnswer::Output(_) => point_result(Passed, "both succeeded", &[undo, again]),
            CheckAnswer::Refused(404 | 410) if self.step.undo_is_delete => point_result(
                Passed,
                "the second found nothing left to undo, which counts as success of a DELETE",
                &[undo, again],
            ),
            answer => point_result(
                Failed,
                format!("the second did not succeed: {answer}"),
                &[undo, again],
            ),
        }
    }

    fn undo_before_work(&self) -> PointResult {
        if !self.step.has_undo {
            return not_applicable(NO_UNDO);
        }
        let Some(undo) = &self.undo_before else {
            return self.not_reached();
        };
        match &undo.answer {
            CheckAnswer::Output(_) => point_result(Passed, undo.answer.to_string(), &[undo]),
            CheckAnswer::Refused(status @ (404 | 410)) => point_result(
                Passed,
                format!("it responded {status}, which counts as success if the outcome is unknown"),
                &[undo],
            ),
            CheckAnswer::Unmakeable(_) if self.step.has_probe => point_result(
                NotApplicable,
                "the undo needs the output of the work: the probe comes first, and the undo is skipped if nothing was done",
                &[undo],
            ),
            answer => point_result(Failed, answer.to_string(), &[undo]),
        }
    }

    fn work_after_undo(&self) -> PointResult {
        let undo_first = self.undo_before_work();
        if undo_first.0 == NotApplicable {
            return (NotApplicable, undo_first.1, Vec::new());
        }
        let Some((work, probe)) = &self.work_after_undo else {
            return self.not_reached();
        };
        let mut calls: Vec<_> = self.undo_before.iter().collect();
        calls.push(work);
        calls.extend(probe);
        if undo_first.0 == Failed {
            return point_result(
                Inconclusive,
                "the undo failed: see undo_before_work",
                &calls,
            );
        }
        let is_done = probe.as_ref().is_some_and(CheckedCall::is_done);
        let (status, seen) = match &work.answer {
            CheckAnswer::Output(_)
            | CheckAnswer::TooLarge
            | CheckAnswer::Promised
            | CheckAnswer::Unusable(_) => (
                Failed,
                "it took work whose key an undo had named in Provost-Undoes".to_owned(),
            ),
            CheckAnswer::Refused(_) | CheckAnswer::Transient(_)
                if is_done && self.knows_what_is_done() =>
            {
                (
                    Failed,
                    "it refused the work, but by the probe it was done".to_owned(),
                )
            }
            CheckAnswer::Refused(status) => (Passed, format!("it refused the work ({status})")),
            CheckAnswer::Transient(status @ (408 | 425 | 429 | 503)) => {
                (Passed, format!("it did not begin ({status})"))
            }
            other => (Inconclusive, other.to_string()),
        };
        point_result(status, seen, &calls)
    }

    /// Returns whether the probe is reliable enough for the points that use its results.
    fn knows_what_is_done(&self) -> bool {
        self.probe_before_work().0 == Passed && self.probe_after_work().0 == Passed
    }

    fn probe(
        &self,
        call: Option<&CheckedCall>,
        is_true: impl Fn(&CheckAnswer) -> bool,
    ) -> PointResult {
        if !self.step.has_probe {
            return not_applicable(NO_PROBE);
        }
        let Some(call) = call else {
            return self.not_reached();
        };
        let status = if is_true(&call.answer) {
            Passed
        } else {
            Failed
        };
        point_result(status, call.answer.to_string(), &[call])
    }

    fn probe_before_work(&self) -> PointResult {
        let nothing = |answer: &CheckAnswer| *answer == CheckAnswer::NotDone;
        self.probe(self.probe_before.as_ref(), nothing)
    }

    fn probe_after_work(&self) -> PointResult {
        let done = |answer: &CheckAnswer| matches!(answer, CheckAnswer::Done(_));
        self.probe(self.probe_after.as_ref(), done)
    }

    fn probe_during_work(&self) -> PointResult {
        if !self.step.has_probe {
            return not_applicable(NO_PROBE);
        }
        let Some((probe, was_running)) = &self.probe_during else {
            return self.not_reached();
        };
        if !was_running {
            return point_result(
                NotApplicable,
                "the work ended before the probe had its response",
                &[probe],
            );
        }
        let mut calls = vec![probe];
        calls.extend(self.at_once.iter().flatten());
        match &probe.answer {
            CheckAnswer::InProgress | CheckAnswer::Transient(_) | CheckAnswer::Silent => {
                point_result(Passed, probe.answer.to_string(), &calls)
            }
            // The work was done, and its response had not arrived yet.
            CheckAnswer::Done(_) => point_result(Passed, probe.answer.to_string(), &calls),
            answer => point_result(
                Failed,
                format!("while the work was running: {answer}"),
                &calls,
            ),
        }
    }

    fn probe_output(&self) -> PointResult {
        if !self.step.has_probe {
            return not_applicable(NO_PROBE);
        }
        let (Some(work), Some(probe)) = (&self.work, &self.probe_after) else {
            return self.not_reached();
        };
        match (work.output(), &probe.answer) {
            (Some(output), CheckAnswer::Done(found)) if is_same(output, found) => point_result(
                Passed,
                "the probe found the output of the response",
                &[work, probe],
            ),
            (Some(_), CheckAnswer::Done(_)) => point_result(
                Failed,
                "the probe found another output than the response had: let the probe have an `output` that gives it",
                &[work, probe],
            ),
            _ => point_result(
                Inconclusive,
                "the probe did not find the work done",
                &[probe],
            ),
        }
    }

    fn probe_after_undo(&self) -> PointResult {
        if !self.step.has_undo {
            return not_applicable(NO_UNDO);
        }
        if self.step.has_probe && self.undo.is_some() && self.undo().0 == Failed {
            return (
                Inconclusive,
                "the undo failed: see undo".to_owned(),
                Vec::new(),
            );
        }
        let nothing = |answer: &CheckAnswer| *answer == CheckAnswer::NotDone;
        self.probe(self.probe_after_undo.as_ref(), nothing)
    }

    fn error_classes(&self) -> PointResult {
        if !self.step.sends_body {
            return not_applicable("the request has no body that could be wrong");
        }
        let Some(call) = &self.invalid else {
            return self.not_reached();
        };
        match &call.answer {
            CheckAnswer::Refused(status) => point_result(
                Passed,
                format!("it refused a body that it cannot use ({status})"),
                &[call],
            ),
            CheckAnswer::Transient(status) => point_result(
                Failed,
                format!(
                    "it responded {status}, which is retried, to a body that it cannot use: refuse it with 400 or 422"
                ),
                &[call],
            ),
            CheckAnswer::Output(_) if !self.step.names_invalid => point_result(
                Inconclusive,
                "it accepted a body that is only a text: name one in `invalid` that it must refuse",
                &[call],
            ),
            answer => point_result(
                Failed,
                format!("to a body that it cannot use: {answer}"),
                &[call],
            ),
        }
    }

    fn retry_after(&self) -> PointResult {
        if self.waits.is_empty() {
            return not_applicable("no response asked to be called later");
        }
        let exchanges = self.waits.iter().map(|wait| wait.exchange).collect();
        let within = self.step.complete_within_millis;
        for asked in &self.waits {
            match &asked.wait {
                Err(text) => {
                    let why = format!(
                        "a response {} had the Retry-After {text:?}, which is neither a number of seconds nor a date",
                        asked.status
                    );
                    return (Failed, why, vec![asked.exchange]);
                }
                Ok(wait) if *wait > within => {
                    let why = format!(
                        "a response {} asked for {wait} ms, and the step has {within} ms",
                        asked.status
                    );
                    return (Failed, why, vec![asked.exchange]);
                }
                Ok(_) => {}
            }
        }
        (
            Passed,
            "what it asks for can be read, and fits into the time of the step".to_owned(),
            exchanges,
        )
    }

    fn size(&self) -> PointResult {
        let CheckedStep { max_output, .. } = self.step;
        let too_large = self
            .every_call()
            .find(|call| call.answer == CheckAnswer::TooLarge);
        if let Some(call) = too_large {
            return point_result(
                Failed,
                format!(
                    "a response was longer than an output may be ({max_output} bytes: the setting limits.max_output)"
                ),
                &[call],
            );
        }
        match self.largest {
            Some((bytes, exchange)) => (
                Passed,
                format!("the largest response had {bytes} of {max_output} bytes"),
                vec![exchange],
            ),
            None => self.not_reached(),
        }
    }

    fn latency(&self) -> PointResult {
        let within = self.step.complete_within_millis;
        let silent = self
            .every_call()
            .find(|call| call.answer == CheckAnswer::Silent);
        if let Some(call) = silent {
            return point_result(Failed, "there was no response by the complete-by", &[call]);
        }
        let Some((millis, exchange)) = self.slowest else {
            return self.not_reached();
        };
        let seen = format!("the slowest response took {millis} ms of {within} ms");
        let is_slow = millis.saturating_mul(ATTEMPTS_IN_TIME) > within;
        let status = if is_slow { Failed } else { Passed };
        (status, seen, vec![exchange])
    }

    /// Returns the calls whose responses a step would get.
    fn every_call(&self) -> impl Iterator<Item = &CheckedCall> {
        let single = [
            &self.probe_before,
            &self.work,
            &self.probe_after,
            &self.again,
            &self.undo,
            &self.probe_after_undo,
            &self.undo_again,
            &self.undo_before,
        ];
        // The first of the two calls around a complete-by had less time than the step has.
        let later = self.complete_by.as_ref().map(|[_, again]| again);
        single
            .into_iter()
            .flatten()
            .chain(self.at_once.iter().flatten())
            .chain(later)
    }
}

impl CheckedCall {
    pub fn output(&self) -> Option<&Payload> {
        match &self.answer {
            CheckAnswer::Output(output) => Some(output),
            _ => None,
        }
    }

    fn is_done(&self) -> bool {
        matches!(self.answer, CheckAnswer::Done(_))
    }
}

impl fmt::Display for CheckAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Output(_) => f.write_str("it succeeded"),
            Self::Done(_) => f.write_str("the probe found it done"),
            Self::NotDone => f.write_str("the probe found it not done"),
            Self::InProgress => f.write_str("the probe found it in progress"),
            Self::BadOutcome(why)
            | Self::Unusable(why)
            | Self::Broken(why)
            | Self::Unmakeable(why) => f.write_str(why),
            Self::Refused(status) => write!(f, "it responded {status}, a permanent error"),
            Self::Transient(status) => write!(f, "it responded {status}, which is retried"),
            Self::Promised => f.write_str("it promised to reply later"),
            Self::TooLarge => f.write_str("its response is longer than an output may be"),
            Self::Silent => f.write_str("there was no response by the complete-by"),
        }
    }
}

fn is_same(one: &Payload, other: &Payload) -> bool {
    OutputDifference::between(one, other) == OutputDifference::None
}
