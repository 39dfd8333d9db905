//! Finds texts in which each letter may be encoded in another way.
//!
//! A text is read in layers. The first layer is the text itself, and each further layer has the encoded letters of the
//! one before it decoded, so that encodings of encodings are found too. In a layer an automaton (Aho-Corasick) takes
//! one step for each letter. At an encoded letter the usual state continues with the decoded letter, and some further
//! states continue with each other reading: a secret may contain `%2F` itself, begin within an escape by accident, or
//! contain a backslash before a letter that is an escape. Those states are few, each of them reads the letter at its
//! own position in every way, and they never follow failure links, so that the time is linear in the length of a text
//! for any text and any secrets.
//!
//! At the end, each part of the innermost layer that could be base64 or hexadecimal is decoded and searched in the same
//! way.

use std::{collections::HashMap, ops::Range};

use aho_corasick::{
    Anchored,
    automaton::{Automaton, StateID},
    nfa::contiguous::NFA,
};

use super::{
    digits::{DigitRun, runs},
    layer::{ByteOrigin, Layer},
    letters::{EncodedLetter, LetterReading, QUOTED, may_begin, read, read_quoted},
};

/// The largest number of nested encodings of letters that are decoded.
const MOST_LAYERS: usize = 6;
/// The largest number of nested levels of base64 and hexadecimal that are decoded.
const MOST_NESTED: usize = 2;
/// The largest number of states besides the usual one.
const MOST_OTHERS: usize = 8;
/// The depth up to which a state follows failure links at another reading. Deeper states do not, because the failure
/// links of a periodic secret would make it slow.
const MOST_FALLEN: u32 = 256;
/// The longest part of a secret, in bytes, that may remain where it was cut off at the end of an excerpt.
const LONGEST_REST: u32 = 3;

/// The automaton of some secrets.
pub(super) struct Matcher {
    automaton: NFA,
    start: StateID,
    /// The number of letters of a secret that have been read in each state.
    depths: HashMap<StateID, u32>,
    /// For each byte: true if a state other than the start follows it, or if it may begin an encoded letter.
    matters: Box<[bool; 256]>,
    shortest: usize,
    longest: usize,
}

/// The findings of a search for secrets.
#[derive(Default)]
pub(super) struct Findings {
    /// The ranges of the secrets in the original text, not in order.
    pub ranges: Vec<Range<u32>>,
    /// The position where a secret may begin whose rest was cut off.
    pub cut_off_at: Option<u32>,
    /// The number of steps that were made, which is a measure of the time.
    pub steps: u64,
}

impl Findings {
    fn add_range(&mut self, range: Range<u32>) {
        match self.ranges.last_mut() {
            Some(last) if (last.start..=last.end).contains(&range.start) => {
                last.end = last.end.max(range.end);
            }
            _ => self.ranges.push(range),
        }
    }

    fn note_cut_off(&mut self, at: u32) {
        self.cut_off_at = Some(self.cut_off_at.map_or(at, |known| known.min(at)));
    }
}

/// Maps `+` to a blank: forms write a blank as `+`, and a decoded text has lost which of them it was.
fn fold_plus(byte: u8) -> u8 {
    if byte == b'+' { b' ' } else { byte }
}

/// Returns the forms of a secret with letters beyond ASCII in UTF-16, without their zero bytes, which are never read.
/// They are also the forms in Latin-1, whose bytes are the same then.
fn wide_forms(secret: &[u8]) -> Vec<Vec<u8>> {
    match std::str::from_utf8(secret) {
        Ok(text) if !text.is_ascii() => [u16::to_le_bytes, u16::to_be_bytes]
            .into_iter()
            .map(|bytes| {
                let all = text.encode_utf16().flat_map(bytes);
                all.filter(|byte| *byte != 0).collect()
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// A state that was reached by another reading than the usual one.
#[derive(Clone, Copy)]
struct OtherState {
    state: StateID,
    /// The position in the layer of the next byte that the state reads.
    next: usize,
    /// `since` is the number of letters of the next layer that were read when it left the usual state. `read` is the
    /// number of letters that it has read itself since.
    since: usize,
    read: usize,
    /// The position in the original text where its own letters begin.
    at: u32,
}

impl OtherState {
    /// Returns where the last `letters` letters begin in the original text. `start` returns the same for a letter of
    /// the next layer.
    fn first(&self, letters: usize, start: impl Fn(usize) -> u32) -> u32 {
        match letters.checked_sub(self.read) {
            Some(shared @ 1..) => start(self.since.saturating_sub(shared)),
            _ => self.at,
        }
    }
}

/// One pass over one layer.
struct Pass<'p, 'l> {
    matcher: &'p Matcher,
    layer: &'p Layer<'l>,
    findings: &'p mut Findings,
    state: StateID,
    /// The position in the layer of the next byte that the state reads.
    next: usize,
    others: Vec<OtherState>,
}

/// The layer that follows, with the ranges of its bytes in the original text.
#[derive(Default)]
struct DecodedLayer {
    bytes: Vec<u8>,
    ranges: Vec<Range<u32>>,
}

impl Matcher {
    /// Returns `None` if there is nothing to search for.
    pub fn of(secrets: &[&[u8]]) -> Option<Self> {
        let mut patterns: Vec<Vec<u8>> = Vec::new();
        for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
            let shortest = secret.len().min(super::SHORTEST_SECRET);
            let wide = wide_forms(secret).into_iter();
            let wide = wide.filter(|form| form.len() >= shortest);
            patterns.extend(wide.map(|form| form.into_iter().map(fold_plus).collect()));
            let mut form = secret.to_vec();
            for _ in 0..MOST_LAYERS {
                patterns.push(form.iter().copied().map(fold_plus).collect());
                // A secret that looks encoded is decoded in each further layer.
                let decoded = decoded(&form);
                if decoded == form || decoded.len() < shortest {
                    break;
                }
                form = decoded;
            }
        }
        patterns.sort();
        patterns.dedup();
        let shortest = patterns.iter().map(Vec::len).min()?;
        let longest = patterns.iter().map(Vec::len).max()?;
        // It fails for more states than 31 bits can count, which secrets of 64 KiB do not have.
        let automaton = NFA::new(&patterns).ok()?;
        let start = automaton.start_state(Anchored::No).ok()?;
        let anchored = automaton.start_state(Anchored::Yes).ok()?;
        let mut depths = HashMap::new();
        for pattern in &patterns {
            let mut state = anchored;
            for (byte, depth) in pattern.iter().zip(1..) {
                state = automaton.next_state(Anchored::Yes, state, *byte);
                depths.insert(state, depth);
            }
        }
        let mut matters = Box::new([false; 256]);
        for byte in 0..=u8::MAX {
            let next = automaton.next_state(Anchored::No, start, fold_plus(byte));
            matters[usize::from(byte)] = next != start || may_begin(byte);
        }
        Some(Self {
            automaton,
            start,
            depths,
            matters,
            shortest,
            longest,
        })
    }

    /// Returns the length of the longest text that is searched for, in bytes.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// `is_cut` is true if the text may have been longer.
    pub fn find(&self, text: &[u8], is_cut: bool) -> Findings {
        let mut findings = Findings::default();
        let layer = Layer {
            bytes: text,
            origin: ByteOrigin::Same,
        };
        self.search(&layer, is_cut, 0, &mut findings);
        findings
    }

    fn search(&self, layer: &Layer<'_>, is_cut: bool, nested: usize, findings: &mut Findings) {
        if layer.bytes.len() < self.shortest && !is_cut {
            return;
        }
        let mut known: Option<DecodedLayer> = None;
        for _ in 0..MOST_LAYERS {
            let next = match &known {
                None => self.pass(layer, is_cut, findings),
                Some(decoded) => self.pass(&decoded.layer(), is_cut, findings),
            };
            match next {
                Some(next) => known = Some(next),
                None => break,
            }
        }
        if nested == MOST_NESTED {
            return;
        }
        match &known {
            None => self.search_runs(layer, is_cut, nested, findings),
            Some(decoded) => self.search_runs(&decoded.layer(), is_cut, nested, findings),
        }
    }

    fn search_runs(&self, layer: &Layer<'_>, is_cut: bool, nested: usize, findings: &mut Findings) {
        // A run that was cut off is decoded if it is longer than what may remain of a secret.
        let cut = is_cut.then_some(LONGEST_REST as usize + 1);
        runs(layer.bytes, self.shortest, cut, |run: DigitRun<'_>| {
            let ends_cut = is_cut && run.is_last;
            for phase in 0..run.phases {
                let letters = &run.digit_offsets[phase.min(run.digit_offsets.len())..];
                let decoded = run.decode(letters, layer.bytes);
                findings.steps += decoded.len() as u64;
                let inner = Layer {
                    bytes: &decoded,
                    origin: ByteOrigin::Digits {
                        below: layer,
                        letters,
                        bits: run.bits,
                    },
                };
                self.search(&inner, ends_cut, nested + 1, findings);
            }
        });
    }

    /// Searches a layer and the letters encoded in it. Returns the layer that follows; `None` if nothing is encoded.
    fn pass(
        &self,
        layer: &Layer<'_>,
        is_cut: bool,
        findings: &mut Findings,
    ) -> Option<DecodedLayer> {
        let mut pass = Pass {
            matcher: self,
            layer,
            findings,
            state: self.start,
            next: 0,
            others: Vec::new(),
        };
        pass.run(is_cut)
    }

    fn next(&self, state: StateID, byte: u8) -> StateID {
        self.automaton
            .next_state(Anchored::No, state, fold_plus(byte))
    }

    /// Returns the next state if the letter continues what has been read.
    fn next_directly(&self, state: StateID, byte: u8) -> Option<StateID> {
        if state == self.start {
            return Some(self.next(state, byte)).filter(|next| *next != self.start);
        }
        let next = self
            .automaton
            .next_state(Anchored::Yes, state, fold_plus(byte));
        (!self.automaton.is_dead(next)).then_some(next)
    }

    /// The length of the longest secret that ends in a state.
    fn match_length(&self, state: StateID) -> Option<usize> {
        if !self.automaton.is_match(state) {
            return None;
        }
        let matched = 0..self.automaton.match_len(state);
        let lengths = matched.map(|at| {
            let pattern = self.automaton.match_pattern(state, at);
            self.automaton.pattern_len(pattern)
        });
        lengths.max()
    }

    fn depth(&self, state: StateID) -> u32 {
        self.depths.get(&state).copied().unwrap_or(0)
    }
}

impl DecodedLayer {
    fn layer(&self) -> Layer<'_> {
        Layer {
            bytes: &self.bytes,
            origin: ByteOrigin::Each(&self.ranges),
        }
    }
}

impl Pass<'_, '_> {
    fn run(&mut self, is_cut: bool) -> Option<DecodedLayer> {
        let bytes = self.layer.bytes;
        if !bytes.iter().any(|byte| may_begin(*byte) || *byte == QUOTED) {
            self.search_plain(bytes);
            if is_cut {
                let layer = self.layer;
                self.note_cut_secrets(|at| layer.origin_of(at).start, bytes.len());
            }
            return None;
        }
        let mut decoded = DecodedLayer {
            bytes: Vec::with_capacity(bytes.len()),
            ranges: Vec::with_capacity(bytes.len()),
        };
        let mut is_encoded = false;
        for (at, byte) in bytes.iter().enumerate() {
            let is_usual = self.next == at;
            if !is_usual && self.others.is_empty() {
                continue;
            }
            self.findings.steps += 1;
            let reading = match byte {
                &QUOTED => read_quoted(&bytes[at..]),
                byte if may_begin(*byte) => read(&bytes[at..]),
                _ => LetterReading::Plain,
            };
            if reading == LetterReading::CutOff && is_cut {
                let start = |at: usize| decoded.ranges.get(at).map(|range| range.start);
                let here = self.layer.origin_of(at).start;
                self.note_cut_secrets(|at| start(at).unwrap_or(here), decoded.bytes.len());
            }
            let others = std::mem::take(&mut self.others);
            let (due, later): (Vec<_>, Vec<_>) =
                others.into_iter().partition(|other| other.next == at);
            self.others = later;
            let usual = (self.state, decoded.bytes.len());
            if is_usual {
                match reading {
                    LetterReading::Encoded(taken, letter) if *byte != QUOTED => {
                        self.read_encoded(at..at + taken, letter, &mut decoded);
                        is_encoded = true;
                    }
                    _ => {
                        let range = self.layer.origin_of(at);
                        decoded.push(*byte, range.clone());
                        self.step(*byte, range.end, &decoded);
                    }
                }
            }
            for other in due {
                self.go_on(other, &[*byte], 1, &decoded);
                self.go_on_encoded(other, reading, &decoded);
            }
            if is_usual
                && let LetterReading::Encoded(taken, letter) = reading
                && *byte != 0
            {
                let (state, since) = usual;
                let other = OtherState {
                    state,
                    next: at,
                    since,
                    read: 0,
                    at: self.layer.origin_of(at).start,
                };
                if *byte == QUOTED {
                    self.branch(other, letter.bytes(), taken, &decoded);
                } else {
                    self.branch(other, &[*byte], 1, &decoded);
                }
                if let Some(letter) = letter.as_latin_1() {
                    self.branch(other, letter.bytes(), taken, &decoded);
                }
                if *byte != QUOTED {
                    self.begin_within(at..at + taken, since, &decoded);
                }
            }
        }
        if is_cut {
            let end = self.layer.origin_of(bytes.len() - 1).end;
            let start = |at: usize| decoded.ranges.get(at).map_or(end, |range| range.start);
            self.note_cut_secrets(start, decoded.bytes.len());
        }
        is_encoded.then_some(decoded)
    }

    /// Searches a layer in which no letter is encoded.
    fn search_plain(&mut self, bytes: &[u8]) {
        let matcher = self.matcher;
        let mut state = matcher.start;
        let mut at = 0;
        self.findings.steps += bytes.len() as u64;
        while at < bytes.len() {
            if state == matcher.start {
                let rest = &bytes[at..];
                let Some(next) = rest
                    .iter()
                    .position(|byte| matcher.matters[usize::from(*byte)])
                else {
                    break;
                };
                at += next;
            }
            state = matcher.next(state, bytes[at]);
            if let Some(length) = matcher.match_length(state) {
                let first = self.layer.origin_of(at + 1 - length);
                let last = self.layer.origin_of(at);
                self.findings.add_range(first.start..last.end);
            }
            at += 1;
        }
        self.state = state;
    }

    /// Has the usual state read a letter that is not encoded, and that has been added to the next layer.
    fn step(&mut self, byte: u8, end: u32, decoded: &DecodedLayer) {
        let matcher = self.matcher;
        self.next += 1;
        self.state = matcher.next(self.state, byte);
        if let Some(length) = matcher.match_length(self.state) {
            let first = decoded.bytes.len() - length;
            self.findings.add_range(decoded.ranges[first].start..end);
        }
    }

    /// Has the usual state read the usual reading of an encoded letter, which is the decoded letter.
    fn read_encoded(
        &mut self,
        at: Range<usize>,
        letter: EncodedLetter,
        decoded: &mut DecodedLayer,
    ) {
        let matcher = self.matcher;
        let range = self.layer.origin_of(at.start).start..self.layer.origin_of(at.end - 1).end;
        self.next = at.end;
        for byte in letter.bytes() {
            decoded.push(*byte, range.clone());
            self.state = matcher.next(self.state, *byte);
            self.findings.steps += 1;
            if let Some(length) = matcher.match_length(self.state) {
                let first = decoded.bytes.len() - length;
                self.findings
                    .add_range(decoded.ranges[first].start..range.end);
            }
        }
    }

    /// Has another state read from within an encoded letter. A secret may begin with the last bytes of an encoded
    /// letter, as one that begins with `n` does after a backslash, or with an encoded letter that begins there.
    fn begin_within(&mut self, within: Range<usize>, since: usize, decoded: &DecodedLayer) {
        let matcher = self.matcher;
        let bytes = self.layer.bytes;
        let start = self.layer.origin_of(within.start).start;
        let mut other = OtherState {
            state: matcher.start,
            next: within.start + 1,
            since,
            read: 1,
            at: start,
        };
        while other.next < within.end {
            let byte = bytes[other.next];
            if may_begin(byte) {
                let reading = read(&bytes[other.next..]);
                self.go_on_encoded(other, reading, decoded);
            }
            other.state = matcher.next(other.state, byte);
            other.next += 1;
            other.read += 1;
            self.findings.steps += 1;
            if matcher.match_length(other.state).is_some() {
                self.findings
                    .add_range(start..self.layer.origin_of(within.end - 1).end);
            }
        }
        self.keep(other);
    }

    /// Has a copy of the usual state read another reading. The letters before may be the beginning of a secret that
    /// this reading does not continue, and may end with the beginning of a secret that it continues.
    fn branch(
        &mut self,
        mut other: OtherState,
        bytes: &[u8],
        taken: usize,
        decoded: &DecodedLayer,
    ) {
        let matcher = self.matcher;
        let Some((first, others)) = bytes.split_first() else {
            return self.go_on(other, bytes, taken, decoded);
        };
        if matcher.next_directly(other.state, *first).is_some() {
            return self.go_on(other, bytes, taken, decoded);
        }
        if matcher.depth(other.state) > MOST_FALLEN {
            other.state = matcher.start;
            return self.go_on(other, bytes, taken, decoded);
        }
        other.state = matcher.next(other.state, *first);
        other.read += 1;
        self.findings.steps += 1;
        if let Some(length) = matcher.match_length(other.state) {
            let first = other.first(length, |at| decoded.ranges[at].start);
            let end = self.layer.origin_of(other.next + taken - 1).end;
            self.findings.add_range(first..end);
        }
        if other.state != matcher.start {
            self.go_on(other, others, taken, decoded);
        }
    }

    /// Has a state read an encoded letter in every way in which it can be decoded.
    fn go_on_encoded(&mut self, other: OtherState, reading: LetterReading, decoded: &DecodedLayer) {
        if let LetterReading::Encoded(taken, letter) = reading {
            self.go_on(other, letter.bytes(), taken, decoded);
            if let Some(letter) = letter.as_latin_1() {
                self.go_on(other, letter.bytes(), taken, decoded);
            }
        }
    }

    /// Has a state read further bytes, as long as they are the ones that it expects. `taken` bytes of the layer are
    /// their encoding.
    fn go_on(&mut self, mut other: OtherState, bytes: &[u8], taken: usize, decoded: &DecodedLayer) {
        let matcher = self.matcher;
        other.next += taken;
        let end = self.layer.origin_of(other.next - 1).end;
        for byte in bytes {
            self.findings.steps += 1;
            let Some(next) = matcher.next_directly(other.state, *byte) else {
                return;
            };
            other.state = next;
            other.read += 1;
            if let Some(length) = matcher.match_length(next) {
                let first = other.first(length, |at| decoded.ranges[at].start);
                self.findings.add_range(first..end);
            }
        }
        self.keep(other);
    }

    fn keep(&mut self, other: OtherState) {
        let is_same = |state: StateID, next: usize| (state, next) == (other.state, other.next);
        let is_known = |known: &OtherState| is_same(known.state, known.next);
        let is_needless = other.state == self.matcher.start || is_same(self.state, self.next);
        if !is_needless && self.others.len() < MOST_OTHERS && !self.others.iter().any(is_known) {
            self.others.push(other);
        }
    }

    /// Records, at a position after which the text may continue, that the part of a secret read so far may have been
    /// cut off. `start` returns where a letter of the next layer begins, and `letters` is the number of those letters.
    fn note_cut_secrets(&mut self, start: impl Fn(usize) -> u32, letters: usize) {
        let matcher = self.matcher;
        let depth = matcher.depth(self.state);
        if depth > LONGEST_REST {
            self.findings.note_cut_off(start(letters - depth as usize));
        }
        for other in &self.others {
            let depth = matcher.depth(other.state);
            if depth > LONGEST_REST {
                self.findings
                    .note_cut_off(other.first(depth as usize, &start));
            }
        }
    }
}

impl DecodedLayer {
    fn push(&mut self, byte: u8, range: Range<u32>) {
        self.bytes.push(byte);
        self.ranges.push(range);
    }
}

/// Returns a text with its encoded letters decoded once.
fn decoded(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        match read(&text[at..]) {
            LetterReading::Encoded(taken, letter) => {
                decoded.extend_from_slice(letter.bytes());
                at += taken;
            }
            LetterReading::CutOff | LetterReading::Plain => {
                decoded.push(text[at]);
                at += 1;
            }
        }
    }
    decoded
}
