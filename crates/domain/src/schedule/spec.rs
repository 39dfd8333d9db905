//! The specification of a schedule: its fire times, and what happens at them. The task that it submits is read as any
//! submission.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::{
    schedule::{
        cron::Cron,
        policies::{CatchUp, Dst, Overlap},
        timing::Timing,
    },
    values::{
        fields::Fields,
        time::{Span, Timestamp},
    },
};

/// The fire times of a schedule, and what happens at them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScheduleSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    pub timezone: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
    pub overlap: Overlap,
    pub catch_up: CatchUp,
    pub dst: Dst,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Span>,
    /// The last time that may be a fire time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Returns the shortest time between two consecutive fire times, among enough fire times to show the pattern of a cron
/// expression. A jitter that is longer is refused: a run could then begin after the next one should.
fn shortest_gap(timing: &Timing, now: Timestamp) -> Option<Span> {
    const LOOKED_AT: usize = 400;
    let times: Vec<_> = timing.after(now).take(LOOKED_AT).collect();
    let gaps = times.windows(2).map(|pair| pair[1].at.since(pair[0].at));
    gaps.min().map(Span::from)
}

impl Timing {
    /// Returns the rule, or the faults, each as the name of the field and a message.
    pub fn of(spec: &ScheduleSpec) -> Result<Self, Vec<(&'static str, String)>> {
        match (&spec.cron, spec.every) {
            (Some(cron), None) => Ok(Self::Cron(Cron::read(cron, &spec.timezone)?, spec.dst)),
            (None, Some(every)) if every >= Span::from_millis(1) => Ok(Self::Every(every)),
            _ => Err(vec![("cron", "give `cron` or `every`".to_owned())]),
        }
    }
}

impl ScheduleSpec {
    pub const EVERY: RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(366 * 24 * 3600);
    pub const JITTER: RangeInclusive<Span> = Span::from_secs(0)..=Span::from_secs(24 * 3600);
    pub const LONGEST_DESCRIPTION: usize = 4096;

    /// Takes the fields of a specification. Its faults are added to those of `fields`.
    pub fn read(fields: &mut Fields<'_>, now: Timestamp) -> Self {
        let has_cron = fields.peek("cron").is_some();
        let has_every = fields.peek("every").is_some();
        let cron = fields.string("cron", Cron::LONGEST);
        let every = fields.span("every", Self::EVERY);
        let timezone = fields.string("timezone", 64);
        let dst = fields.choice("dst", Dst::ALL);
        match (has_cron, has_every) {
            (false, false) => fields.missing(
                "cron",
                "give when it fires, such as \"cron\": \"0 2 * * *\", or \"every\": \"10m\"",
            ),
            (true, true) => fields.fault("every", "give either `cron` or `every`, not both"),
            (false, true) => {
                for (name, is_given) in [("timezone", timezone.is_some()), ("dst", dst.is_some())] {
                    if is_given {
                        fields.fault(
                            name,
                            "is only for `cron`: a duration is the same everywhere; omit it",
                        );
                    }
                }
            }
            (true, false) => {}
        }
        let until = fields.string("until", 100);
        let until = until.and_then(|text| {
            let until = Timestamp::parse(&text);
            match until {
                None => fields.fault(
                    "until",
                    "must be a time in RFC 3339, such as \"2026-12-31T23:00:00Z\"",
                ),
                Some(until) if until <= now => {
                    fields.fault("until", format!("must be later than now, which is {now}"));
                }
                Some(_) => {}
            }
            until
        });
        let spec = Self {
            cron,
            timezone: timezone.unwrap_or_else(|| "UTC".to_owned()),
            every,
            overlap: fields.choice("overlap", Overlap::ALL).unwrap_or_default(),
            catch_up: fields.choice("catch_up", CatchUp::ALL).unwrap_or_default(),
            dst: dst.unwrap_or_default(),
            jitter: fields
                .span("jitter", Self::JITTER)
                .filter(|jitter| *jitter > Span::default()),
            until,
            description: fields.string("description", Self::LONGEST_DESCRIPTION),
        };
        if has_cron == has_every {
            return spec;
        }
        if let (Some(every), Some(jitter)) = (spec.every, spec.jitter)
            && jitter > every
        {
            fields.fault(
                "jitter",
                format!("must be at most `every`, which is {every}"),
            );
        }
        let timing = match Timing::of(&spec) {
            // A field with a fault cannot be checked further.
            _ if (has_cron && spec.cron.is_none()) || (has_every && spec.every.is_none()) => {
                return spec;
            }
            Ok(timing) => timing,
            Err(faults) => {
                for (name, message) in faults {
                    fields.fault(name, message);
                }
                return spec;
            }
        };
        if let (Some(_), Some(jitter), Some(gap)) =
            (&spec.cron, spec.jitter, shortest_gap(&timing, now))
            && jitter > gap
        {
            let message =
                format!("must be at most the shortest time between two fire times, which is {gap}");
            fields.fault("jitter", message);
        }
        match (timing.after(now).next(), spec.until) {
            (None, _) => fields.fault("cron", "never comes: no year has such a day"),
            (Some(next), Some(until)) if next.at > until && until > now => fields.fault(
                "until",
                format!("is before the first fire time, which is {}", next.at),
            ),
            _ => {}
        }
        spec
    }

    /// Returns whether both specifications have the same fire times.
    pub fn fires_with(&self, other: &Self) -> bool {
        let of = |spec: &Self| {
            (
                spec.cron.clone(),
                spec.timezone.clone(),
                spec.every,
                spec.dst,
            )
        };
        of(self) == of(other)
    }
}
