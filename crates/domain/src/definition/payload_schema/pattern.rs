//! The largest cost of matching a regular expression: for each byte of a text, the number of states that may be active
//! at once.

/// The largest number of states of a pattern. Counted repetitions multiply the states.
pub(super) const MOST_STATES: u64 = 2500;

/// The size of a pattern, as it is known without compiling it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pattern {
    pub states: u64,
    /// The largest number of states that may be active after a byte.
    pub active: u64,
}

/// A group of the pattern that is being read.
#[derive(Default)]
struct Group {
    /// The states of the parts before the last one.
    before: u64,
    last: u64,
    /// True if a part can match texts of several lengths. All states that follow may then be active together.
    varies: bool,
    /// The number of states from the first such part on.
    varying: u64,
}

impl Group {
    fn push(&mut self, states: u64) {
        self.before = self.before.saturating_add(self.last);
        self.last = states;
        if self.varies {
            self.varying = self.varying.saturating_add(states);
        }
    }

    fn states(&self) -> u64 {
        self.before.saturating_add(self.last)
    }

    /// Repeats the last part.
    fn repeat(&mut self, times: u64, varies: bool) {
        let states = self.last.saturating_mul(times.max(1));
        let more = states - self.last;
        self.last = states;
        if self.varies {
            self.varying = self.varying.saturating_add(more);
        } else if varies {
            self.varies = true;
            self.varying = states;
        }
    }

    fn vary(&mut self) {
        self.varies = true;
        self.varying = self.states();
    }
}

impl Pattern {
    /// Returns an estimate that is never too low. Invalid patterns are refused by the compiler.
    pub fn of(source: &str) -> Self {
        let mut groups = vec![Group::default()];
        let mut chars = source.chars().peekable();
        let is_anchored = source.starts_with('^');
        let mut alternates = false;
        while let Some(c) = chars.next() {
            let depth = groups.len();
            let Some(group) = groups.last_mut() else {
                break;
            };
            match c {
                '\\' => {
                    let escaped = chars.next();
                    // The escape names a class, such as \p{Greek}.
                    if matches!(escaped, Some('p' | 'P' | 'u' | 'x')) && chars.peek() == Some(&'{')
                    {
                        chars.by_ref().find(|c| *c == '}');
                    }
                    // A class whose characters have several bytes is a small automaton.
                    let of_class = matches!(escaped, Some('p' | 'P' | 'w' | 'W' | 'S' | 'D'));
                    group.push(if of_class { 8 } else { 1 });
                }
                '[' => {
                    let mut escaped = false;
                    let mut length = 0u64;
                    for c in chars.by_ref() {
                        match c {
                            ']' if !escaped && length > 0 => break,
                            '\\' if !escaped => escaped = true,
                            _ => escaped = false,
                        }
                        length += 1;
                    }
                    group.push(1 + length / 16);
                }
                '(' => groups.push(Group::default()),
                ')' if depth > 1 => {
                    if let (Some(inner), Some(outer)) = (groups.pop(), groups.last_mut()) {
                        outer.push(inner.states());
                        if inner.varies {
                            outer.repeat(1, true);
                        }
                    }
                }
                '|' => {
                    alternates |= depth == 1;
                    group.vary();
                }
                '*' | '+' | '?' => group.repeat(if c == '+' { 2 } else { 1 }, true),
                '{' => {
                    let counts: String = chars.by_ref().take_while(|c| *c != '}').collect();
                    let mut numbers = counts
                        .split(',')
                        .map(|number| number.trim().parse::<u64>().ok());
                    let least = numbers.next().flatten();
                    let most = numbers.next();
                    let times = most.flatten().or(least.map(|least| least + 1));
                    group.repeat(times.unwrap_or(1), most.is_some());
                }
                '^' | '$' => {}
                _ => group.push(1),
            }
        }
        let (mut states, mut varying) = (0u64, 0u64);
        for group in groups {
            states = states.saturating_add(group.states());
            varying = varying.saturating_add(group.varying);
        }
        let active = match is_anchored && !alternates {
            true => 1 + varying,
            false => states.max(1),
        };
        Self { states, active }
    }
}
