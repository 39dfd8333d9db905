//! What matching a regular expression may cost: for each byte of a text, the states that it can be in at once.

/// No pattern has more states. Counted repetitions multiply them.
pub(super) const MOST_STATES: u64 = 2500;

/// What is known of a pattern without compiling it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pattern {
    pub states: u64,
    /// How many of them may be active after a byte.
    pub active: u64,
}

/// A group that is being read.
#[derive(Default)]
struct Group {
    /// Of the parts before the last one.
    before: u64,
    last: u64,
    /// Whether a part can match texts of several lengths: then all that follows may be active together.
    varies: bool,
    /// The states from the first such part on.
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

    /// The last part, so many times.
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
    /// A coarse reading, on the high side: the compiler refuses what is no pattern.
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
                    // A class by name, such as \p{Greek}.
                    if matches!(escaped, Some('p' | 'P' | 'u' | 'x')) && chars.peek() == Some(&'{')
                    {
                        chars.by_ref().find(|c| *c == '}');
                    }
                    // Classes of characters of several bytes are small automata.
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
