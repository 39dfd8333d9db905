//! One step of a definition: everything that can be said of it without the others.

use serde_json::value::RawValue;

use super::{
    OnExhausted, OnPermanent, StepDefinition, Target,
    parse::KnownAgents,
    request::{self, RequestDraft},
};
use crate::domain::{
    AgentName, FieldFault, Fields, LONGEST_URL, Span, StepIndex, StepName, WebAddress,
    fields::text,
    template::{Expression, Reads},
};

const LONGEST_NAME: usize = 64;
const SHORTEST_TRY: Span = Span::from_millis(100);
const LONGEST_TRY: Span = Span::from_secs(30 * 86_400);
const DEFAULT_TRY: Span = Span::from_secs(30);
const DEFAULT_MAX_FAILURES: u32 = 3;

/// What was read of a step. What is at fault is `None` and has been reported.
pub(super) struct Draft {
    pub pointer: String,
    pub name: Option<StepName>,
    pub after: After,
    /// What each expression looks at, with its place in the body.
    pub reads: Vec<(String, Reads)>,
    target: Option<Target>,
    when: Option<Expression>,
    request: Option<RequestDraft>,
    complete_within: Span,
    max_failures: u32,
    on_exhausted: OnExhausted,
    on_permanent: OnPermanent,
}

pub(super) enum After {
    StepAbove,
    /// Each with its place in the body.
    Named(Vec<(String, String)>),
}

impl Draft {
    pub fn read(
        value: &RawValue,
        pointer: String,
        known: &dyn KnownAgents,
        faults: &mut Vec<FieldFault>,
    ) -> Self {
        let mut draft = Self {
            pointer,
            name: None,
            after: After::StepAbove,
            reads: Vec::new(),
            target: None,
            when: None,
            request: None,
            complete_within: DEFAULT_TRY,
            max_failures: DEFAULT_MAX_FAILURES,
            on_exhausted: OnExhausted::Error,
            on_permanent: OnPermanent::Error,
        };
        match Fields::of(value, &draft.pointer) {
            Ok(fields) => {
                if let Err(found) = draft.read_fields(fields, known) {
                    faults.extend(found);
                }
            }
            Err(found) => faults.extend(found),
        }
        draft
    }

    fn read_fields(
        &mut self,
        mut fields: Fields<'_>,
        known: &dyn KnownAgents,
    ) -> Result<(), Vec<FieldFault>> {
        self.name = name(&mut fields);
        self.target = target(&mut fields, known);
        if let Some(after) = after(&mut fields) {
            self.after = After::Named(after);
        }
        self.when = self.condition(&mut fields);
        self.request = request::read(&mut fields, &mut self.reads);
        if let (Some(Target::Url { url, .. }), Some(request)) = (&self.target, &self.request)
            && url.contains('?')
            && !request.path.outline("x").is_empty()
        {
            fields.fault(
                "url",
                "has a query, behind which no `request.path` can stand: leave one of them out",
            );
        }
        if let Some(span) = fields.span("complete_within", SHORTEST_TRY..=LONGEST_TRY) {
            self.complete_within = span;
        }
        if let Some(failures) = fields.integer("max_failures", 0..=1000) {
            // Within 0 to 1000.
            self.max_failures = failures as u32;
        }
        if let Some(policy) = on_exhausted(&mut fields) {
            self.on_exhausted = policy;
        }
        if let Some(policy) = on_permanent(&mut fields) {
            self.on_permanent = policy;
        }
        fields.finish()
    }

    fn condition(&mut self, fields: &mut Fields<'_>) -> Option<Expression> {
        let source = fields.string("when", usize::MAX)?;
        match Expression::parse(&source) {
            Ok(expression) => {
                self.reads
                    .push((fields.pointer("when"), expression.reads().clone()));
                Some(expression)
            }
            Err(message) => {
                fields.fault("when", message);
                None
            }
        }
    }

    /// How faults speak of this step.
    pub fn label(&self) -> &str {
        self.name.as_ref().map_or("?", StepName::as_str)
    }

    pub fn finish(
        self,
        after: Vec<StepIndex>,
        followers: Vec<StepIndex>,
        reads: Vec<StepIndex>,
    ) -> Option<StepDefinition> {
        Some(StepDefinition {
            name: self.name?,
            target: self.target?,
            after,
            followers,
            when: self.when,
            request: self.request?.finish(),
            reads,
            complete_within: self.complete_within,
            max_failures: self.max_failures,
            on_exhausted: self.on_exhausted,
            on_permanent: self.on_permanent,
        })
    }
}

fn name(fields: &mut Fields<'_>) -> Option<StepName> {
    const REMEDY: &str = "give 1 to 64 letters, digits, `_` or `-`, a letter first";
    if !fields.has("name") {
        fields.missing("name", REMEDY);
    }
    let name = fields.string("name", usize::MAX)?;
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic());
    let holds = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if starts && name.len() <= LONGEST_NAME && name.chars().all(holds) {
        Some(StepName::new(name))
    } else {
        fields.fault("name", format!("is not a step's name: {REMEDY}"));
        None
    }
}

fn target(fields: &mut Fields<'_>, known: &dyn KnownAgents) -> Option<Target> {
    let (has_agent, has_url) = (fields.has("agent"), fields.has("url"));
    if has_agent && has_url {
        fields.fault("url", "give either `agent` or `url`, not both");
    } else if !has_agent && !has_url {
        fields.missing("agent", "name a registered agent, or give a `url`");
    }
    let agent = fields.string("agent", usize::MAX);
    let url = fields.string("url", LONGEST_URL);
    let agent = agent.and_then(|name| match agent_named(&name, known) {
        Ok(agent) => Some(agent),
        Err(message) => {
            fields.fault("agent", message);
            None
        }
    });
    let url = url.and_then(|url| match url_target(&url, known) {
        Ok(target) => Some(target),
        Err(message) => {
            fields.fault("url", message);
            None
        }
    });
    agent.or(url)
}

fn agent_named(name: &str, known: &dyn KnownAgents) -> Result<Target, String> {
    // An origin stands in for an agent where a step names a URL. Taken by name it would get past the
    // policy for URLs.
    if name.is_empty() || name.len() > LONGEST_NAME || name.contains([':', '/', '{']) {
        return Err(format!(
            "{name:?} is not the name of an agent; to call an address, give `url`"
        ));
    }
    let agent = AgentName::new(name);
    if known.knows(&agent) {
        Ok(Target::Agent(agent))
    } else {
        Err(format!(
            "no agent `{name}` is registered: register it with PUT /v1/agents/{name} or in the configuration file"
        ))
    }
}

fn url_target(url: &str, known: &dyn KnownAgents) -> Result<Target, String> {
    if url.contains(['{', '}']) {
        return Err("is taken as it stands: put expressions into `request.path`".to_owned());
    }
    let address = WebAddress::parse(url)?;
    known.allows_url(url)?;
    Ok(Target::Url {
        url: address.url,
        origin: AgentName::new(address.origin),
    })
}

fn after(fields: &mut Fields<'_>) -> Option<Vec<(String, String)>> {
    let items = fields.array("after")?;
    let mut named = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let pointer = format!("{}/{index}", fields.pointer("after"));
        match text(item.get()) {
            Some(name) => named.push((pointer, name.into_owned())),
            None => fields.extend([FieldFault::new(pointer, "must be the name of a step")]),
        }
    }
    Some(named)
}

fn on_exhausted(fields: &mut Fields<'_>) -> Option<OnExhausted> {
    const FORMS: &str = "must be \"error\" or { \"extend\": \"10m\", \"times\": 5 }";
    if !fields.is_object("on_exhausted") {
        return policy(
            fields,
            "on_exhausted",
            FORMS,
            &[("error", OnExhausted::Error)],
        );
    }
    let mut extend = fields.object("on_exhausted")?;
    if !extend.has("extend") {
        extend.missing("extend", "say how long to wait, such as \"10m\"");
    }
    let wait = extend.span("extend", SHORTEST_TRY..=LONGEST_TRY);
    let times = extend.integer("times", 1..=1000).unwrap_or(1);
    policy(&mut extend, "then", "must be \"error\"", &[("error", ())]);
    if let Err(faults) = extend.finish() {
        fields.extend(faults);
    }
    Some(OnExhausted::Extend {
        wait: wait?,
        // Within 1 to 1000.
        times: times as u32,
    })
}

fn on_permanent(fields: &mut Fields<'_>) -> Option<OnPermanent> {
    policy(
        fields,
        "on_permanent",
        "must be \"error\" or \"skip\"",
        &[("error", OnPermanent::Error), ("skip", OnPermanent::Skip)],
    )
}

/// A policy given by a word. `undo` is a word of the language, but nothing here can do it yet.
fn policy<T: Clone>(
    fields: &mut Fields<'_>,
    name: &str,
    forms: &str,
    choices: &[(&str, T)],
) -> Option<T> {
    let value = fields.value(name).filter(|value| value.get() != "null")?;
    let word = text(value.get());
    let found = choices
        .iter()
        .find(|(choice, _)| word.as_deref() == Some(*choice));
    if found.is_none() {
        let words: Vec<_> = choices
            .iter()
            .map(|(word, _)| format!("{word:?}"))
            .collect();
        fields.fault(
            name,
            match word.as_deref() {
                Some("undo") => format!(
                    "\"undo\" is not available in this version; use {}",
                    words.join(" or ")
                ),
                _ => forms.to_owned(),
            },
        );
    }
    found.map(|(_, policy)| policy.clone())
}
