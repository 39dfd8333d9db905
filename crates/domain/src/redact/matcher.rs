//! Finds texts whose letters may each be encoded in another way.
//!
//! A text is read in layers: the first as it is, each further one with the encoded letters of the one before it decoded, so
//! that encodings of encodings are found too. In a layer an automaton (Aho-Corasick) takes one step for each letter. At an
//! encoded letter it goes on with what that means, and some further states with each other reading: a secret may contain
//! `%2F` itself, begin within an escape by accident, or contain a backslash before a letter that is an escape. Those states are few, each
//! reads the letter at its own position in every way, and they never follow failure links, so that the time is
//! linear in the length of a text, whatever the text and the secrets are.
//!
//! At last, whatever in the innermost layer could be base64 or hexadecimal is decoded and searched in the same way.

use std::{collections::HashMap, ops::Range};

use aho_corasick::{
    Anchored,
    automaton::{Automaton, StateID},
    nfa::contiguous::NFA,
};

use super::{
    digits::{DigitRun, runs},
    layer::{ByteOrigin, Layer},
    letters::{EncodedLetter, QUOTED, Reading, may_begin, read, read_quoted},
};

/// The most encodings of encodings that are decoded.
const MOST_LAYERS: usize = 6;
/// The most levels of base64 and hexadecimal that are decoded.
const MOST_NESTED: usize = 2;
/// States beside the usual one.
const MOST_OTHERS: usize = 8;
/// A deeper state does not follow failure links at another reading, so that those of a periodic secret do not make it slow.
const MOST_FALLEN: u32 = 256;
/// Of a secret that was cut off at the end of an excerpt, so many bytes may remain.
const LONGEST_REST: u32 = 3;

/// The automaton of some secrets.
pub(super) struct Matcher {
    automaton: NFA,
    start: StateID,
    /// How many letters of a secret have been read in each state.
    depths: HashMap<StateID, u32>,
    /// By byte: whether something else than the start follows on it, or it may begin an encoded letter.
    matters: Box<[bool; 256]>,
    shortest: usize,
    longest: usize,
}

/// Where secrets were found.
#[derive(Default)]
pub(super) struct Findings {
    /// In the original text, not in order.
    pub ranges: Vec<Range<u32>>,
    /// A secret may begin here whose rest was cut off.
    pub cut_off_at: Option<u32>,
    /// How much was done: a measure of the time.
    pub steps: u64,
}

impl Findings {
    fn found(&mut self, range: Range<u32>) {
        match self.ranges.last_mut() {
            Some(last) if (last.start..=last.end).contains(&range.start) => {
                last.end = last.end.max(range.end);
            }
            _ => self.ranges.push(range),
        }
    }

    fn cut_off(&mut self, at: u32) {
        self.cut_off_at = Some(self.cut_off_at.map_or(at, |known| known.min(at)));
    }
}

/// In forms a blank is written as `+`; and what is decoded has lost which of them it was.
fn folded(byte: u8) -> u8 {
    if byte == b'+' { b' ' } else { byte }
}

/// Forms of a secret with letters beyond ASCII, without their zeros, which are never read: UTF-16, and with that Latin-1, whose bytes are
/// the same then.
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

/// A state that is reached by another reading than the usual one.
#[derive(Clone, Copy)]
struct OtherState {
    state: StateID,
    /// The position in the layer of what it reads next.
    next: usize,
    /// How many letters of the next layer it shares with the usual state, and how many it has read by itself since.
    since: usize,
    read: usize,
    /// Where those begin in the original text.
    at: u32,
}

impl OtherState {
    /// Where the last so many letters begin in the original text. `start` says it of a letter of the next layer.
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
    /// The position in the layer of what that state reads next.
    next: usize,
    others: Vec<OtherState>,
}

/// The layer that follows.
#[derive(Default)]
struct Decoded {
    bytes: Vec<u8>,
    ranges: Vec<Range<u32>>,
}

impl Matcher {
    /// `None` if there is nothing to look for.
    pub fn of(secrets: &[&[u8]]) -> Option<Self> {
        let mut patterns: Vec<Vec<u8>> = Vec::new();
        for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
            let shortest = secret.len().min(super::SHORTEST_SECRET);
            let wide = wide_forms(secret).into_iter();
            let wide = wide.filter(|form| form.len() >= shortest);
            patterns.extend(wide.map(|form| form.into_iter().map(folded).collect()));
            let mut form = secret.to_vec();
            for _ in 0..MOST_LAYERS {
                patterns.push(form.iter().copied().map(folded).collect());
                // What a layer makes of a secret that looks encoded itself.
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
            let next = automaton.next_state(Anchored::No, start, folded(byte));
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

    /// Bytes of the longest text that is looked for.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// `is_cut`: the text may go on.
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
        let mut known: Option<Decoded> = None;
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
        // Of one that is cut off, as much as may not remain.
        let cut = is_cut.then_some(LONGEST_REST as usize + 1);
        runs(layer.bytes, self.shortest, cut, |run: DigitRun<'_>| {
            let ends_cut = is_cut && run.is_last;
            for phase in 0..run.phases {
                let letters = &run.letters[phase.min(run.letters.len())..];
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
    fn pass(&self, layer: &Layer<'_>, is_cut: bool, findings: &mut Findings) -> Option<Decoded> {
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
        self.automaton.next_state(Anchored::No, state, folded(byte))
    }

    /// The state, if the letter is the next one of what has been read.
    fn next_directly(&self, state: StateID, byte: u8) -> Option<StateID> {
        if state == self.start {
            return Some(self.next(state, byte)).filter(|next| *next != self.start);
        }
        let next = self
            .automaton
            .next_state(Anchored::Yes, state, folded(byte));
        (!self.automaton.is_dead(next)).then_some(next)
    }

    /// The length of the longest secret that ends in a state.
    fn matched(&self, state: StateID) -> Option<usize> {
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

impl Decoded {
    fn layer(&self) -> Layer<'_> {
        Layer {
            bytes: &self.bytes,
            origin: ByteOrigin::Each(&self.ranges),
        }
    }
}

impl Pass<'_, '_> {
    fn run(&mut self, is_cut: bool) -> Option<Decoded> {
        let bytes = self.layer.bytes;
        if !bytes.iter().any(|byte| may_begin(*byte) || *byte == QUOTED) {
            self.plain(bytes);
            if is_cut {
                let layer = self.layer;
                self.end(|at| layer.origin_of(at).start, bytes.len());
            }
            return None;
        }
        let mut decoded = Decoded {
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
                _ => Reading::Plain,
            };
            if reading == Reading::CutOff && is_cut {
                let start = |at: usize| decoded.ranges.get(at).map(|range| range.start);
                let here = self.layer.origin_of(at).start;
                self.end(|at| start(at).unwrap_or(here), decoded.bytes.len());
            }
            let others = std::mem::take(&mut self.others);
            let (due, later): (Vec<_>, Vec<_>) =
                others.into_iter().partition(|other| other.next == at);
            self.others = later;
            let usual = (self.state, decoded.bytes.len());
            if is_usual {
                match reading {
                    Reading::Encoded(taken, letter) if *byte != QUOTED => {
                        self.encoded(at..at + taken, letter, &mut decoded);
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
                && let Reading::Encoded(taken, letter) = reading
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
            self.end(start, decoded.bytes.len());
        }
        is_encoded.then_some(decoded)
    }

    /// A layer in which no letter is encoded.
    fn plain(&mut self, bytes: &[u8]) {
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
            if let Some(length) = matcher.matched(state) {
                let first = self.layer.origin_of(at + 1 - length);
                let last = self.layer.origin_of(at);
                self.findings.found(first.start..last.end);
            }
            at += 1;
        }
        self.state = state;
    }

    /// A letter that means itself, which has been added to the next layer.
    fn step(&mut self, byte: u8, end: u32, decoded: &Decoded) {
        let matcher = self.matcher;
        self.next += 1;
        self.state = matcher.next(self.state, byte);
        if let Some(length) = matcher.matched(self.state) {
            let first = decoded.bytes.len() - length;
            self.findings.found(decoded.ranges[first].start..end);
        }
    }

    /// The usual reading of an encoded letter: what it means.
    fn encoded(&mut self, at: Range<usize>, letter: EncodedLetter, decoded: &mut Decoded) {
        let matcher = self.matcher;
        let range = self.layer.origin_of(at.start).start..self.layer.origin_of(at.end - 1).end;
        self.next = at.end;
        for byte in letter.bytes() {
            decoded.push(*byte, range.clone());
            self.state = matcher.next(self.state, *byte);
            self.findings.steps += 1;
            if let Some(length) = matcher.matched(self.state) {
                let first = decoded.bytes.len() - length;
                self.findings.found(decoded.ranges[first].start..range.end);
            }
        }
    }

    /// A secret may begin with the last bytes of an encoded letter, as one that begins with `n` does after a backslash, or with an
    /// encoded letter that begins there.
    fn begin_within(&mut self, within: Range<usize>, since: usize, decoded: &Decoded) {
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
            if matcher.matched(other.state).is_some() {
                self.findings
                    .found(start..self.layer.origin_of(within.end - 1).end);
            }
        }
        self.keep(other);
    }

    /// Has the usual state read another reading. What it has read may be the beginning of a secret that this reading does not
    /// continue, and end with the beginning of one that it does.
    fn branch(&mut self, mut other: OtherState, bytes: &[u8], taken: usize, decoded: &Decoded) {
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
        if let Some(length) = matcher.matched(other.state) {
            let first = other.first(length, |at| decoded.ranges[at].start);
            let end = self.layer.origin_of(other.next + taken - 1).end;
            self.findings.found(first..end);
        }
        if other.state != matcher.start {
            self.go_on(other, others, taken, decoded);
        }
    }

    /// Has a state read an encoded letter, in all ways that there are.
    fn go_on_encoded(&mut self, other: OtherState, reading: Reading, decoded: &Decoded) {
        if let Reading::Encoded(taken, letter) = reading {
            self.go_on(other, letter.bytes(), taken, decoded);
            if let Some(letter) = letter.as_latin_1() {
                self.go_on(other, letter.bytes(), taken, decoded);
            }
        }
    }

    /// Has a state read some more, as long as that is what it expects. `taken` bytes of the layer are an encoding of it.
    fn go_on(&mut self, mut other: OtherState, bytes: &[u8], taken: usize, decoded: &Decoded) {
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
            if let Some(length) = matcher.matched(next) {
                let first = other.first(length, |at| decoded.ranges[at].start);
                self.findings.found(first..end);
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

    /// The text may go on after this, so what has been read of a secret is one that was cut off. `start` says where a letter
    /// of the next layer begins, which has so many.
    fn end(&mut self, start: impl Fn(usize) -> u32, letters: usize) {
        let matcher = self.matcher;
        let depth = matcher.depth(self.state);
        if depth > LONGEST_REST {
            self.findings.cut_off(start(letters - depth as usize));
        }
        for other in &self.others {
            let depth = matcher.depth(other.state);
            if depth > LONGEST_REST {
                self.findings.cut_off(other.first(depth as usize, &start));
            }
        }
    }
}

impl Decoded {
    fn push(&mut self, byte: u8, range: Range<u32>) {
        self.bytes.push(byte);
        self.ranges.push(range);
    }
}

/// A text with its encoded letters decoded once.
fn decoded(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        match read(&text[at..]) {
            Reading::Encoded(taken, letter) => {
                decoded.extend_from_slice(letter.bytes());
                at += taken;
            }
            Reading::CutOff | Reading::Plain => {
                decoded.push(text[at]);
                at += 1;
            }
        }
    }
    decoded
}
