//! Makes expressions, and data for them, that cost as much as possible: they nest all parts of the language, over long
//! lists and texts.

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use super::super::registry::{FILTERS, FUNCTIONS, OF_EACH, TESTS};

pub struct Generator(StdRng);

const PATHS: &[&str] = &[
    "input",
    "input.l",
    "input.s",
    "input.n",
    "input.o",
    "input.t",
    "input.d",
    "input.e",
    "input.l[0]",
    "input.b",
    "input.b",
    "input.l[-1]",
    "input.t | list",
    "steps.a.output",
    "steps.a.output.l",
    "task",
    "task.labels",
    "input.missing",
];

const OPERATORS: &[&str] = &[
    "+", "-", "*", "/", "//", "%", "**", "~", "~", "==", "!=", "<", "<=", ">", ">=", "in",
    "not in", "and", "or",
];

impl Generator {
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of.choose(&mut self.0).copied().unwrap_or_default()
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.0.random_range(0..limit)
    }

    /// Returns an expression of at most the allowed length.
    pub fn expression(&mut self) -> String {
        loop {
            let depth = 1 + self.below(6);
            let expression = self.value(depth);
            if expression.len() <= super::MAX_EXPRESSION {
                return expression;
            }
        }
    }

    fn leaf(&mut self) -> String {
        match self.below(12) {
            0 => format!("'{}'", "x".repeat(self.below(60) as usize)),
            1 if self.below(8) == 0 => "2.5148473515491005546397e-304".to_owned(),
            1 => self
                .one(&["0", "1", "-1", "7", "1.5", "1e300", "99999999999999999999"])
                .to_owned(),
            2 => self
                .one(&["true", "false", "none", "''", "' '", "'a'", "[]", "{}"])
                .to_owned(),
            3 => format!(
                "range({})",
                self.one(&["9", "1000", "100000", "5, 90000, 2"])
            ),
            _ => self.one(PATHS).to_owned(),
        }
    }

    fn value(&mut self, depth: u32) -> String {
        if depth == 0 {
            return self.leaf();
        }
        let inner = |generator: &mut Self| generator.value(depth - 1);
        match self.below(14) {
            0 | 1 => {
                let mut chain = format!("({})", inner(self));
                for _ in 0..=self.below(3) {
                    let operator = self.one(OPERATORS);
                    chain.push_str(&format!(" {operator} ({})", inner(self)));
                }
                chain
            }
            2 => format!("[{}, {}]", inner(self), inner(self)),
            3 => format!("{{'a': {}, 'b': {}}}", inner(self), inner(self)),
            4 => format!(
                "({})[{}:{}]",
                inner(self),
                self.below(9),
                self.one(&["", "5", "99999", "-1", ":-1", ":7"])
            ),
            5 => format!("({} if {} else {})", inner(self), inner(self), inner(self)),
            6 => {
                let test = self.test(depth);
                format!("({}) is {test}", inner(self))
            }
            7 => {
                let function = FUNCTIONS.choose(&mut self.0).unwrap();
                match function.is_dict() {
                    true => format!("dict(a={})", inner(self)),
                    false => format!("{}({})", function.name, inner(self)),
                }
            }
            8 => {
                let name = self.one(&OF_EACH);
                let what = match name {
                    "map" if self.below(2) == 0 => {
                        let filter = FILTERS.choose(&mut self.0).unwrap();
                        let args = self.args(filter.params.len(), depth);
                        format!(
                            "'{}'{}{args}",
                            filter.name,
                            if args.is_empty() { "" } else { ", " }
                        )
                    }
                    "map" => {
                        let default = match self.below(2) {
                            0 => String::new(),
                            _ => format!(", default={}", self.leaf()),
                        };
                        format!("attribute={}{default}", self.attribute())
                    }
                    "select" | "reject" => self.test_args(depth),
                    _ => format!("{}, {}", self.attribute(), self.test_args(depth)),
                };
                format!("({}) | {name}({what})", inner(self))
            }
            _ => {
                let mut chain = format!("({})", inner(self));
                for _ in 0..=self.below(4) {
                    let filter = FILTERS.choose(&mut self.0).unwrap();
                    let args = match filter.params.contains(&"attribute") && self.below(2) == 0 {
                        true => format!("attribute={}", self.attribute()),
                        false => self.args(filter.params.len(), depth),
                    };
                    chain.push_str(&format!(" | {}({args})", filter.name));
                }
                chain
            }
        }
    }

    /// Returns the path of a member, usually of one that exists.
    fn attribute(&mut self) -> &'static str {
        const NAMES: &[&str] = &[
            "'k'", "'k'", "'a.b'", "0", "'k.a'", "input.b", "input.s", "task.key",
        ];
        NAMES.choose(&mut self.0).copied().unwrap_or("'k'")
    }

    /// Returns a long text, in JSON, of `size` bytes or some more.
    fn long(&mut self, size: usize) -> String {
        let part = self.one(&[
            "x", "x", "x", "X", "a.", ".", "0", "é", "Σ'", "\\u00e9", "\\n", "\\\\", "1", " ", "k",
            "ab ",
        ]);
        part.repeat(size / part.len() + 1)
    }

    /// Decimals between two floating-point numbers, or near to the middle: they are rounded by the slow method.
    fn decimals(&mut self, size: usize) -> String {
        let digits = *[21, 27, 60, 200, 800].choose(&mut self.0).unwrap_or(&27);
        let exponent = *[-307, -300, -150, -20, 0, 150, 300]
            .choose(&mut self.0)
            .unwrap_or(&0);
        let item = |generator: &mut Self| {
            // The middle of two neighbours, and slightly more.
            let float = f64::from_bits(
                format!("{}e{exponent}", 1 + generator.below(9))
                    .parse::<f64>()
                    .unwrap_or(1.0)
                    .to_bits()
                    + u64::from(generator.0.next_u32()),
            );
            let next = f64::from_bits(float.to_bits() + 1);
            let (low, high) = (format!("{float:.40e}"), format!("{next:.40e}"));
            middle(&low, &high, digits)
        };
        let some: Vec<_> = (0..20).map(|_| item(self)).collect();
        let count = size / (some[0].len() + 1);
        let items: Vec<_> = (0..count)
            .map(|at| some[at % some.len()].as_str())
            .collect();
        format!("[{}]", items.join(","))
    }

    fn args(&mut self, most: usize, depth: u32) -> String {
        let count = self.0.random_range(0..=most);
        let args: Vec<_> = (0..count).map(|_| self.value(depth - 1)).collect();
        args.join(", ")
    }

    fn test(&mut self, depth: u32) -> String {
        let test = TESTS.choose(&mut self.0).unwrap();
        match test.params.len() {
            0 => test.name.to_owned(),
            _ => format!("{}({})", test.name, self.value(depth - 1)),
        }
    }

    fn test_args(&mut self, depth: u32) -> String {
        let test = TESTS.choose(&mut self.0).unwrap();
        match test.params.len() {
            0 => format!("'{}'", test.name),
            _ => format!("'{}', {}", test.name, self.value(depth - 1)),
        }
    }

    /// Returns a JSON document of about `size` bytes, of a shape that some operation is slow with.
    pub fn document(&mut self, size: usize) -> String {
        let size = size.max(1000);
        let list = |item: &str, share: usize| {
            let count = size / share / (item.len() + 1);
            format!("[{}]", vec![item; count].join(","))
        };
        let long = "x".repeat(size / 4);
        let big = match self.below(3) {
            0 => self.long(size),
            _ => "k".to_owned(),
        };
        let (l, o, t) = match self.0.next_u32() % 9 {
            0 => (list("1", 2), "{}".to_owned(), "\"\"".to_owned()),
            1 => (list("\"ab\"", 2), "{}".to_owned(), format!("\"{long}\"")),
            2 => (
                list("[]", 3),
                list("{\"k\":1}", 3),
                format!("\"{}\"", "\\u00e9".repeat(size / 40)),
            ),
            3 => (
                list("{\"k\":{\"a\":\"x\"}}", 2),
                "{}".to_owned(),
                "\"Aa\"".to_owned(),
            ),
            4 => {
                let names = (0..size / 24).map(|at| format!("\"name{at:06}\":{at}"));
                (
                    list("1.5", 6),
                    format!("{{{}}}", names.collect::<Vec<_>>().join(",")),
                    "1".to_owned(),
                )
            }
            5 => (
                self.decimals(size / 2),
                "{\"k\":1}".to_owned(),
                "\"2.5148473515491005546397e-304\"".to_owned(),
            ),
            6 => {
                let name = self.long(size / 3);
                (
                    format!("[{}]", vec!["{\"k\":1}"; 40].join(",")),
                    format!("{{\"{name}\":1,\"{name}y\":2,\"k\":[]}}"),
                    format!("\"{name}\""),
                )
            }
            7 => {
                let name = self.long(size / 100);
                (
                    list(&format!("{{\"{name}\":1,\"k\":\"{name}\"}}"), 2),
                    format!("{{\"{name}\":1}}"),
                    format!("\"{name}\""),
                )
            }
            _ => {
                let texts = (0..size / 40).map(|at| format!("\"{at:x>24}\""));
                let texts = texts.collect::<Vec<_>>().join(",");
                (
                    format!("[{texts}]"),
                    "{\"a\":1}".to_owned(),
                    format!("\"{}\"", "\\n".repeat(size / 8)),
                )
            }
        };
        let depth = 60;
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!(
            "{{\"l\":{l},\"o\":{o},\"t\":{t},\"s\":\"{}\",\"b\":\"{big}\",\"n\":3,\"d\":{open}1{close},\"e\":\"a\\\"b\"}}",
            "y".repeat(size / 8)
        )
    }
}

/// Returns the decimal in the middle of two that begin with the same digits, with about `digits` digits.
fn middle(low: &str, high: &str, digits: usize) -> String {
    let (low, exponent) = low.split_once('e').unwrap_or((low, "0"));
    let high = high.split('e').next().unwrap_or(high);
    let number = |text: &str| {
        let digits: String = text.chars().filter(char::is_ascii_digit).take(36).collect();
        digits.parse::<u128>().unwrap_or(1)
    };
    let middle = (number(low) + number(high)) / 2;
    let middle = middle.to_string();
    let tail = "0".repeat(digits.saturating_sub(middle.len()));
    let (first, rest) = middle.split_at(1);
    let kept = digits.min(rest.len() + tail.len());
    let rest: String = rest.chars().chain(tail.chars()).take(kept).collect();
    format!("{first}.{rest}1e{exponent}")
}
