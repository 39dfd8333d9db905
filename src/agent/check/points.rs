//! The points of a check: the calls that show each of them, in order. Every point has a subject of its own, and
//! undoes its work at its end.

use std::time::Duration;

use super::{bounds::CutShort, call_options::CallOptions, run::CheckRun};
use crate::{
    chance,
    clock::{self, sleep},
    domain::{
        agent::{CheckAnswer, CheckObservations, CheckSubject, DroppedAnswer, LateArrival},
        definition::Method,
        task::{CallBody, Purpose, render::Rendered},
        template::Payload,
        values::Timestamp,
    },
};

/// The complete-by of the late request passed this long ago, which is more than clocks usually differ.
const LATE_BY: Duration = Duration::from_secs(60);
/// The check that waits until the complete-by has passed gives the call at least this time, unless the step has less.
/// The check of a closed connection closes it after at most this time.
const SHORT_COMPLETE_BY: Duration = Duration::from_secs(1);
/// The work is sent at least this long before the probe that asks about it.
const HEAD_START: Duration = Duration::from_millis(50);
/// The maximum number of probes that ask whether work with a closed connection has ended.
const PROBES: u32 = 10;

fn new_subject() -> CheckSubject {
    CheckSubject::new(chance::id())
}

/// Makes the calls of all points, as far as they apply to the step.
pub(super) async fn check_points(
    run: &CheckRun<'_>,
    seen: &mut CheckObservations,
) -> Result<(), CutShort> {
    let first = new_subject();
    if run.has_probe() {
        seen.probe_before = Some(run.probe(&first).await?);
    }
    let work = run.work(&first).await?;
    let latency = Duration::from_millis(work.millis);
    let output = work.output().cloned();
    seen.work = Some(work);
    let Some(output) = output else {
        return Ok(());
    };
    two_keys(run, seen).await?;
    repeats(run, &first, &output, seen).await?;
    at_once(run, latency, seen).await?;
    if run.has_probe() {
        dropped_answer(run, latency, seen).await?;
    }
    after_complete_by(run, latency, seen).await?;
    late_request(run, seen).await?;
    if run.requests.undo.is_some() {
        undo_before_work(run, seen).await?;
    }
    if run.requests.step.method().is_some_and(Method::sends_body) {
        invalid_body(run, seen).await?;
    }
    Ok(())
}

/// One request under two keys: a service whose outputs are equal then shows by none of them what it did.
async fn two_keys(run: &CheckRun<'_>, seen: &mut CheckObservations) -> Result<(), CutShort> {
    let one = new_subject();
    let other = one.under_other_keys(chance::id());
    let calls = [run.work(&one).await?, run.work(&other).await?];
    let outputs = calls.each_ref().map(|call| call.output().cloned());
    seen.two_keys = Some(calls);
    for (subject, output) in [one, other].iter().zip(outputs) {
        clean_up(run, subject, output.as_ref()).await?;
    }
    Ok(())
}

/// The same again, its undo, and that again.
async fn repeats(
    run: &CheckRun<'_>,
    subject: &CheckSubject,
    output: &Payload,
    seen: &mut CheckObservations,
) -> Result<(), CutShort> {
    if run.has_probe() {
        seen.probe_after = Some(run.probe(subject).await?);
    }
    seen.again = Some(run.work(subject).await?);
    seen.count_after_again = run.probe_to_count(subject).await?;
    if run.requests.undo.is_none() {
        return Ok(());
    }
    seen.undo = Some(run.undo(subject, Some(output), "undo").await?);
    if run.has_probe() {
        seen.probe_after_undo = Some(run.probe(subject).await?);
    }
    seen.undo_again = Some(run.undo(subject, Some(output), "undo").await?);
    Ok(())
}

/// The same key twice at the same moment, and a probe while both run.
async fn at_once(
    run: &CheckRun<'_>,
    latency: Duration,
    seen: &mut CheckObservations,
) -> Result<(), CutShort> {
    let subject = new_subject();
    let timed = async || {
        let call = run.work(&subject).await?;
        Ok::<_, CutShort>((call, clock::instant()))
    };
    let probe = async || {
        if !run.has_probe() {
            return Ok(None);
        }
        // The work must have arrived before the probe does.
        sleep((latency / 2).max(HEAD_START)).await;
        let mut call = run.probe_once(&subject).await?;
        // It may have been delayed: what counts is what the service goes on to say.
        if call.answer == CheckAnswer::NotDone {
            call = run.probe_once(&subject).await?;
        }
        Ok::<_, CutShort>(Some((call, clock::instant())))
    };
    let (one, other, probe) = tokio::join!(timed(), timed(), probe());
    let ((one, one_ended), (other, other_ended)) = (one?, other?);
    if let Some((call, ended)) = probe? {
        let ends = [(&one, one_ended), (&other, other_ended)];
        let succeeded = ends.into_iter().filter(|(call, _)| call.output().is_some());
        let first = succeeded.map(|(_, ended)| ended).min();
        let was_running = first.is_some_and(|first| ended < first);
        seen.probe_during = Some((call, was_running));
    }
    let output = one.output().or(other.output()).cloned();
    seen.at_once = Some([one, other]);
    seen.count_after_both = run.probe_to_count(&subject).await?;
    clean_up(run, &subject, output.as_ref()).await
}

/// The same key again, after a call whose connection was closed before the response.
async fn dropped_answer(
    run: &CheckRun<'_>,
    latency: Duration,
    seen: &mut CheckObservations,
) -> Result<(), CutShort> {
    let subject = new_subject();
    let soon = (latency / 2).clamp(Duration::from_millis(5), SHORT_COMPLETE_BY);
    let exchange = run.send_and_close(&subject, soon).await?;
    let pause = (latency * 2).max(Duration::from_millis(100));
    run.time.pause(pause).await?;
    let mut probe = run.probe_once(&subject).await?;
    for _ in 1..PROBES {
        if !matches!(
            probe.answer,
            CheckAnswer::InProgress | CheckAnswer::Transient(_)
        ) {
            break;
        }
        run.time.pause(pause).await?;
        probe = run.probe_once(&subject).await?;
    }
    let repeat = run.work(&subject).await?;
    let probe_after = run.probe(&subject).await?;
    let output = repeat.output().cloned();
    seen.dropped = Some(DroppedAnswer {
        exchange,
        probe: Some(probe),
        repeat,
        probe_after: Some(probe_after),
    });
    clean_up(run, &subject, output.as_ref()).await
}

/// The same key again, after the complete-by of the first call.
async fn after_complete_by(
    run: &CheckRun<'_>,
    latency: Duration,
    seen: &mut CheckObservations,
) -> Result<(), CutShort> {
    let subject = new_subject();
    let within = (latency * 4).max(SHORT_COMPLETE_BY);
    let within = within.min(run.requests.step.complete_within.duration());
    let begun = clock::instant();
    let first = run
        .work_with(
            &subject,
            CallOptions {
                within,
                ..run.usual()
            },
        )
        .await?;
    let passed = begun + within + Duration::from_millis(50);
    run.time
        .pause(passed.saturating_duration_since(clock::instant()))
        .await?;
    let again = run.work(&subject).await?;
    let output = first.output().or(again.output()).cloned();
    seen.complete_by = Some([first, again]);
    seen.count_after_complete_by = run.probe_to_count(&subject).await?;
    clean_up(run, &subject, output.as_ref()).await
}

/// A request that arrives after its complete-by.
async fn late_request(run: &CheckRun<'_>, seen: &mut CheckObservations) -> Result<(), CutShort> {
    let subject = new_subject();
    let late_by = i64::try_from(LATE_BY.as_millis()).unwrap_or(i64::MAX);
    let complete_by = Timestamp::from_millis(run.time.now().as_millis() - late_by);
    let call = run
        .work_with(
            &subject,
            CallOptions {
                purpose: "late work",
                complete_by: Some(complete_by),
                retries: 0,
                is_usual: false,
                ..run.usual()
            },
        )
        .await?;
    let is_refused = matches!(
        call.answer,
        CheckAnswer::Refused(_) | CheckAnswer::Transient(_)
    );
    let (mut probe, mut in_time) = (None, None);
    if is_refused {
        if run.has_probe() {
            probe = Some(run.probe(&subject).await?);
        }
        in_time = Some(run.work(&subject).await?);
    }
    let output = in_time.as_ref().unwrap_or(&call).output().cloned();
    seen.late = Some(LateArrival {
        call,
        probe,
        in_time,
    });
    clean_up(run, &subject, output.as_ref()).await
}

/// An undo for work that was never done, and the work after it.
async fn undo_before_work(
    run: &CheckRun<'_>,
    seen: &mut CheckObservations,
) -> Result<(), CutShort> {
    let subject = new_subject();
    let undo = run.undo(&subject, None, "undo").await?;
    let was_made = !matches!(undo.answer, CheckAnswer::Unmakeable(_));
    seen.undo_before = Some(undo);
    if !was_made {
        return Ok(());
    }
    let work = run
        .work_with(
            &subject,
            CallOptions {
                purpose: "work after its undo",
                retries: 0,
                is_usual: false,
                ..run.usual()
            },
        )
        .await?;
    let mut probe = None;
    if run.has_probe() {
        probe = Some(run.probe(&subject).await?);
    }
    let output = work.output().cloned();
    seen.work_after_undo = Some((work, probe));
    clean_up(run, &subject, output.as_ref()).await
}

/// A request that the service must refuse.
async fn invalid_body(run: &CheckRun<'_>, seen: &mut CheckObservations) -> Result<(), CutShort> {
    let subject = new_subject();
    let body = run.invalid.cloned();
    let body = body.unwrap_or_else(|| Payload::from_string("provost agent check: not a request"));
    let rendered = run.requests.work(&subject).map(|rendered| Rendered {
        body: Some(CallBody::Whole(body)),
        ..rendered
    });
    let call = run
        .make(
            &subject,
            Purpose::Work,
            rendered,
            CallOptions {
                purpose: "invalid work",
                retries: 0,
                is_usual: false,
                ..run.usual()
            },
        )
        .await?;
    let output = call.output().cloned();
    seen.invalid = Some(call);
    clean_up(run, &subject, output.as_ref()).await
}

/// Undoes what was done for this key.
async fn clean_up(
    run: &CheckRun<'_>,
    subject: &CheckSubject,
    output: Option<&Payload>,
) -> Result<(), CutShort> {
    if output.is_some() && run.requests.undo.is_some() {
        run.undo(subject, output, "clean-up").await?;
    }
    Ok(())
}
