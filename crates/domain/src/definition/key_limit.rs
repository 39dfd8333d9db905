//! A limit on the steps of one key: a workflow may declare it for its steps, and an agent for the steps that call it.

use provost_object::{Faults, Object};

use crate::{
    template::{Budget, Origin, Template},
    values::rate::{MOST_BURST, Rate, RateLimitSpec},
};

/// The longest template of a key, in bytes.
pub(crate) const LONGEST_SOURCE: usize = 500;

/// How many steps of one key may run at once, or how many may begin in a time. `max_in_flight`, `rate` or both.
#[derive(Clone, PartialEq, Eq, Debug, Object)]
#[object(name = "KeyLimit", check = KeyLimit::check_parts)]
pub struct KeyLimit {
    /// A template of the key, made of `task` and `input`, at most 500 bytes long. Tasks for which it cannot be made share the empty key.
    #[field(
        ..=LONGEST_SOURCE,
        required = "give a template of the key, such as \"{{ task.labels.customer }}\"",
        check = check_key,
        pattern = "[{][{]",
        example = "{{ task.labels.customer }}"
    )]
    pub by: String,
    /// The most steps of one key that run at once, all instances together. Steps whose reply is awaited count too.
    #[field(1..=KeyLimit::MOST_IN_FLIGHT, example = 5)]
    pub max_in_flight: Option<u32>,
    /// How many steps of one key may begin in a second (`s`), a minute (`m`) or an hour (`h`), all instances together.
    #[field(example = "10/s")]
    pub rate: Option<Rate>,
    /// How many may begin at once after a rest. Default: what the rate gives in a tenth of a second, at least 1.
    #[field(1..=MOST_BURST, example = 10)]
    pub burst: Option<u32>,
}

impl KeyLimit {
    pub(crate) const MOST_IN_FLIGHT: u32 = 10_000;

    fn check_parts(&self, faults: &mut Faults) {
        if self.max_in_flight.is_none() && self.rate.is_none() {
            faults.add("must have `max_in_flight`, `rate` or both");
        }
        if self.burst.is_some() && self.rate.is_none() {
            faults.field("burst", "needs a `rate`");
        }
    }

    pub fn rate_limit(&self) -> Option<RateLimitSpec> {
        let burst = self.burst;
        self.rate.map(|rate| RateLimitSpec { rate, burst })
    }
}

pub(crate) fn check_key(source: &str, faults: &mut Faults) {
    if let Err(message) = parse_key(source) {
        faults.add(message);
    }
}

pub(crate) fn parse_key(source: &str) -> Result<Template, String> {
    const FORM: &str = "such as \"{{ task.labels.customer }}\"";
    if source.len() > LONGEST_SOURCE {
        return Err(format!("must be at most {LONGEST_SOURCE} bytes long"));
    }
    let budget = Budget::evaluation();
    let template = Template::parse(source, Origin::Submitted(&budget))?;
    let reads = template.reads();
    if reads.names.is_empty() {
        return Err(format!("must hold an expression, {FORM}"));
    }
    match reads
        .names
        .iter()
        .find(|name| !["task", "input"].contains(&name.as_str()))
    {
        Some(name) => Err(format!(
            "must be made of `task` and `input`, {FORM}; the outputs of steps, and `{name}`, are not known to it"
        )),
        None => Ok(template),
    }
}
