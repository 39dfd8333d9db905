//! W3C Trace Context: the trace that the submitter of a task is part of, and its continuation in the task's calls.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::values::{
    hex::push_hex,
    ids::{Attempt, StepRef},
};

/// The length that every party must pass on by the specification. This code passes on no more.
const LONGEST_STATE: usize = 512;
const MOST_MEMBERS: usize = 32;
/// Members that are longer are left out first if the whole is too long.
const LONG_MEMBER: usize = 128;
const SAMPLED: u8 = 0b01;
/// A flag of level 2: the trace's id is random. It stays true while the id is kept, so it is passed on.
const RANDOM: u8 = 0b10;

/// The trace that a submitter is part of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    pub id: u128,
    /// The flags, with the submitter's decision if the trace is recorded.
    pub flags: u8,
    pub state: Option<Arc<str>>,
}

impl Trace {
    /// Reads the trace from the values of all headers of these names. Returns `None` if a new trace begins: there is no
    /// `traceparent`, more than one, or one that cannot be read. The `tracestate` is ignored then.
    pub fn join(parents: &[&str], states: &[&str]) -> Option<Self> {
        let [parent] = parents else {
            return None;
        };
        let (id, flags) = parent_of(parent)?;
        let state = state_of(&states.join(","));
        Some(Self { id, flags, state })
    }
}

fn parent_of(value: &str) -> Option<(u128, u8)> {
    let mut parts = value.split('-');
    let mut hex = |length: usize| {
        let text = parts.next()?;
        let is_hex = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let is_whole = text.len() == length && is_hex;
        is_whole.then(|| u128::from_str_radix(text, 16).ok())?
    };
    let (version, id, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    // Later versions may have more fields after these; version 0 has no more.
    let has_more = parts.next().is_some();
    if version == 0xff || id == 0 || span == 0 || version == 0 && has_more {
        return None;
    }
    let known = if version == 0 {
        SAMPLED | RANDOM
    } else {
        SAMPLED
    };
    Some((id, u8::try_from(flags).ok()? & known))
}

/// Returns the part of a `tracestate` that is passed on. Returns `None` if a member cannot be read.
fn state_of(value: &str) -> Option<Arc<str>> {
    let members = value
        .split(',')
        .map(|member| member.trim_matches([' ', '\t']));
    let mut members: Vec<_> = members.filter(|member| !member.is_empty()).collect();
    let mut keys = Vec::with_capacity(members.len());
    for member in &members {
        let (key, value) = member.split_once('=')?;
        if !is_key(key) || !is_value(value) || keys.contains(&key) || keys.len() == MOST_MEMBERS {
            return None;
        }
        keys.push(key);
    }
    let length = |members: &[&str]| members.iter().map(|member| member.len() + 1).sum::<usize>();
    if length(&members) > LONGEST_STATE + 1 {
        members.retain(|member| member.len() <= LONG_MEMBER);
    }
    while length(&members) > LONGEST_STATE + 1 {
        members.pop();
    }
    (!members.is_empty()).then(|| members.join(",").into())
}

/// `vendor`, or `tenant@vendor`.
fn is_key(key: &str) -> bool {
    let lower = |b: u8| b.is_ascii_lowercase();
    let inner = |b: u8| lower(b) || b.is_ascii_digit() || matches!(b, b'_' | b'-' | b'*' | b'/');
    let part = |text: &str, most: usize, first: fn(u8) -> bool| {
        (1..=most).contains(&text.len()) && text.bytes().all(inner) && first(text.as_bytes()[0])
    };
    let any = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    match key.split_once('@') {
        Some((tenant, vendor)) => {
            part(tenant, 241, any) && part(vendor, 14, |b| b.is_ascii_lowercase())
        }
        None => part(key, 256, any),
    }
}

fn is_value(value: &str) -> bool {
    let legal = |b: u8| (0x20..=0x7e).contains(&b) && b != b'=' && b != b',';
    (1..=256).contains(&value.len()) && value.bytes().all(legal)
}

/// The data with which one call continues the trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallTrace {
    pub id: u128,
    pub flags: u8,
    pub state: Option<Arc<str>>,
    pub step: StepRef,
    pub attempt: Attempt,
}

impl CallTrace {
    /// Makes the trace of a task's call: it continues the submitter's trace, or the task's own.
    pub fn of(joined: Option<&Trace>, step: StepRef, attempt: Attempt) -> Self {
        let own = step.task.0.as_u128();
        Self {
            id: joined.map_or(own, |trace| trace.id),
            flags: joined.map_or(SAMPLED, |trace| trace.flags),
            state: joined.and_then(|trace| trace.state.clone()),
            step,
            attempt,
        }
    }

    /// Returns the `traceparent` with a span for this call. Other tasks, steps and attempts in the same trace have
    /// other spans.
    pub fn parent(&self) -> String {
        let hash = Sha256::new()
            .chain_update(self.step.task.0.as_bytes())
            .chain_update(self.step.step.0.to_be_bytes())
            .chain_update(self.attempt.0.to_be_bytes())
            .finalize();
        let span = hash[..8]
            .iter()
            .fold(0, |span, byte| span << 8 | u64::from(*byte));
        let mut parent = String::with_capacity(PARENT);
        parent.push_str("00-");
        push_hex(&mut parent, &self.id.to_be_bytes());
        parent.push('-');
        push_hex(&mut parent, &span.max(1).to_be_bytes());
        parent.push('-');
        push_hex(&mut parent, &[self.flags]);
        parent
    }
}

/// The length of a `traceparent`.
const PARENT: usize = 55;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use uuid::Uuid;

    use super::*;
    use crate::values::ids::{StepIndex, TaskId};

    const ID: u128 = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c;

    fn parent(flags: &str) -> String {
        format!("00-{ID:032x}-b7ad6b7169203331-{flags}")
    }

    #[test]
    fn a_trace_is_joined_with_its_sampling_flag() {
        for (flags, kept) in [("00", 0), ("01", 1), ("03", 3), ("ff", 3), ("04", 0)] {
            let trace = Trace::join(&[&parent(flags)], &[]).unwrap();
            assert_eq!((trace.id, trace.flags), (ID, kept), "{flags}");
        }
        let later = parent("01").replacen("00", "cc", 1) + "-what-is-new";
        assert_eq!(Trace::join(&[&later], &[]).unwrap().flags, 1);
    }

    #[test]
    fn what_is_no_one_parent_begins_a_new_trace() {
        let good = parent("01");
        assert_eq!(Trace::join(&[], &["a=1"]), None);
        assert_eq!(Trace::join(&[&good, &good], &[]), None);
        for broken in [
            "",
            "nonsense",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(Trace::join(&[broken], &["a=1"]), None, "{broken}");
        }
    }

    fn state(lines: &[&str]) -> Option<String> {
        let trace = Trace::join(&[&parent("01")], lines).unwrap();
        trace.state.map(|state| state.to_string())
    }

    #[test]
    fn a_state_is_passed_on_in_its_order_and_bounded() {
        assert_eq!(state(&[]), None);
        assert_eq!(state(&["", " , "]), None);
        let kept = "rojo=00f067aa0ba902b7,congo@v=t61 rcW/kgM:E,0*/-_=~!";
        assert_eq!(state(&[kept]).as_deref(), Some(kept));
        assert_eq!(state(&["b=2 ,", "\ta=1"]).as_deref(), Some("b=2,a=1"));
        let members: Vec<_> = (0..32).map(|n| format!("k{n}=1")).collect();
        assert!(state(&[&members.join(",")]).is_some());
        assert_eq!(state(&[&members.join(","), "one=more"]), None);
        for broken in [
            "a", "=1", "A=1", "a=1,a=2", "a=\u{e9}", "a=1=2", "a b=1", "a=", "@v=1", "a@1=1",
        ] {
            assert_eq!(state(&[broken]), None, "{broken}");
        }
        let (short, long) = (
            "s=".to_owned() + &"x".repeat(100),
            "l=".to_owned() + &"x".repeat(200),
        );
        let many: Vec<_> = (0..5).map(|n| format!("k{n}{short}")).collect();
        let cut = state(&[&long, &many.join(",")]).unwrap();
        assert_eq!(cut, many[..4].join(","));
        assert!(cut.len() <= LONGEST_STATE);
        let exact = format!("a={},b={}", "x".repeat(256), "x".repeat(251));
        assert_eq!(exact.len(), LONGEST_STATE);
        assert_eq!(state(&[&exact]), Some(exact));
    }

    #[test]
    fn every_call_in_a_trace_has_a_span_of_its_own() {
        let trace = Trace::join(&[&parent("00")], &["a=1"]).unwrap();
        let mut spans = HashSet::new();
        for task in 1..5 {
            for step in 0..5 {
                for attempt in 1..5 {
                    let task = TaskId(Uuid::from_u128(task));
                    let step = StepRef {
                        task,
                        step: StepIndex(step),
                    };
                    let call = CallTrace::of(Some(&trace), step, Attempt(attempt));
                    let parent = call.parent();
                    assert_eq!(Trace::join(&[&parent], &["a=1"]), Some(trace.clone()));
                    assert!(spans.insert(parent));
                }
            }
        }
    }

    #[test]
    fn without_a_submitters_trace_a_task_is_one() {
        let step = StepRef {
            task: TaskId(Uuid::from_u128(7)),
            step: StepIndex(0),
        };
        let call = CallTrace::of(None, step, Attempt(1));
        assert!(
            call.parent()
                .starts_with("00-00000000000000000000000000000007-")
        );
        assert!(call.parent().ends_with("-01"));
        assert_eq!(call.state, None);
    }
}
