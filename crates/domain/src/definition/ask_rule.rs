//! `ask`: the question to people whose decision is the signal of a step.

use std::borrow::Cow;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, value::RawValue};
use utoipa::ToSchema;

use super::KnownAgents;
use crate::{
    definition::ask_text::{
        AskText, LONGEST_TEXT, LONGEST_TITLE, MOST_ASKED, hidden_letter, people, person_fault,
        title_fault,
    },
    template::{JsonTemplate, Origin, Reads, Scope, payload::Payload},
    values::fields::{FieldFault, Fields, text},
};

const MOST_CHOICES: usize = 10;
const MOST_FIELDS: usize = 20;
const MOST_OPTIONS: usize = 50;
const MOST_RECEIVERS: usize = 10;
/// The longest name of a receiver.
const LONGEST_RECEIVER: usize = 64;
/// The longest choice, and the longest name of a field.
const LONGEST_WORD: usize = 40;
/// The longest label of a field, or option of one, in characters.
const LONGEST_LABEL: usize = 200;

/// The rule for asking people. One of them decides, or `approvals` of them must agree.
#[derive(Debug)]
pub struct AskRule {
    /// `title`, `text` and `of`, as one document.
    template: JsonTemplate,
    /// The first choice is the approval. Any other choice decides at once.
    pub choices: Vec<String>,
    pub fields: Vec<AskField>,
    /// The number of different people who must choose the first choice.
    pub approvals: u32,
    pub send_to: LinkReceivers,
}

/// The receivers that get the links for the people who are asked, and pass them on. With a link one can decide in the
/// name of its person, so the definition names the receivers, and the submission cannot.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum LinkReceivers {
    /// The alert webhooks; and the `reply_to` of a task whose steps its submitter has written.
    #[default]
    WebhooksAndReplyTo,
    /// These alert webhooks and receivers of the configuration, and [`REPLY_TO`] if it is among them.
    Named(Vec<String>),
}

/// This name in `send_to` means the `reply_to` of the task.
pub const REPLY_TO: &str = "reply_to";

impl LinkReceivers {
    /// `is_inline` is true if the submitter of the task has written its steps.
    pub fn has_reply_to(&self, is_inline: bool) -> bool {
        match self {
            Self::WebhooksAndReplyTo => is_inline,
            Self::Named(_) => self.names(REPLY_TO),
        }
    }

    /// Returns the names in `send_to`, without the `reply_to` of the task.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        let named = match self {
            Self::WebhooksAndReplyTo => &[][..],
            Self::Named(names) => names,
        };
        named
            .iter()
            .map(String::as_str)
            .filter(|name| *name != REPLY_TO)
    }

    fn names(&self, name: &str) -> bool {
        matches!(self, Self::Named(names) if names.iter().any(|known| known == name))
    }
}

/// A field of the page that people decide on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[schema(example = json!({ "name": "amount", "type": "number", "label": "Amount to refund" }))]
pub struct AskField {
    /// The name of the value in the step's output: letters, digits, `_` and `-`.
    #[schema(max_length = 40, example = "amount")]
    pub name: String,
    /// The text that the page shows for the field; null: the name.
    #[schema(max_length = 200, example = "Amount to refund")]
    pub label: Option<String>,
    #[serde(rename = "type", serialize_with = "word")]
    #[schema(value_type = Option<AskFieldKind>, default = "string")]
    pub kind: AskFieldKind,
    /// True if the field must be filled in, for every choice; a boolean must be ticked.
    #[schema(value_type = Option<bool>, default = false)]
    pub required: bool,
    /// The choices of a field of the type `choice`.
    #[serde(rename = "choices", skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<String>>, max_items = 50)]
    pub options: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum AskFieldKind {
    String,
    Number,
    Boolean,
    Choice,
}

impl AskFieldKind {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

fn word<S: Serializer>(kind: &AskFieldKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.as_str())
}

/// The document that the template renders to.
#[derive(Deserialize)]
struct RenderedAsk {
    title: Value,
    #[serde(default)]
    text: Value,
    of: Value,
}

impl AskRule {
    /// The choice that counts as an approval.
    pub fn approval(&self) -> &str {
        self.choices.first().map_or("", String::as_str)
    }

    /// Returns the question, and the people who are asked. The error text is for an operator: the definition or the
    /// data is wrong.
    pub fn text(&self, scope: &Scope<'_>) -> Result<AskText, String> {
        let rendered = self.template.render(scope);
        let rendered =
            rendered.map_err(|error| format!("`ask` could not be evaluated: {error}"))?;
        let rendered: RenderedAsk = serde_json::from_str(&rendered)
            .map_err(|error| format!("`ask` could not be evaluated: {error}"))?;
        let asked = AskText::new(&rendered.title, &rendered.text, &rendered.of)?;
        if asked.of.len() < self.approvals as usize {
            return Err(format!(
                "`ask.of` gives {} of the {} people that `approvals` needs",
                asked.of.len(),
                self.approvals
            ));
        }
        Ok(asked)
    }
}

/// Reads `ask` of a signal, if it has one, and collects the names that its expressions read.
pub(super) fn read(
    signal: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
    known: &dyn KnownAgents,
) -> Option<AskRule> {
    let mut fields = signal.object("ask")?;
    if let Err(message) = known.reaches_people() {
        signal.fault("ask", message);
    }
    for (name, instead) in [
        (
            "schema",
            "the answer of a person is checked by `ask.fields`: remove it",
        ),
        ("match", "the link of a person is what decides: remove it"),
    ] {
        if signal.peek(name).is_some() {
            signal.fault(name, instead);
        }
    }
    let named = fields.peek("of").and_then(count_people);
    if matches!(origin, Origin::Submitted(_)) {
        check_literals(&mut fields);
    }
    let template = template(&mut fields, origin, reads);
    let choices = choices(&mut fields);
    let asked = asked_fields(&mut fields);
    let send_to = send_to(&mut fields, known);
    // The value is between 1 and MOST_ASKED.
    let approvals = fields
        .integer("approvals", 1..=MOST_ASKED as i64)
        .unwrap_or(1) as u32;
    if matches!(origin, Origin::Submitted(_))
        && let Some(people) = named
        && people < approvals as usize
    {
        let message = format!(
            "needs {approvals} different people, and `of` names {people} (upper and lower case, and the composition of letters, make no difference): name more, or need fewer"
        );
        fields.fault("approvals", message);
    }
    if let Err(faults) = fields.finish() {
        signal.extend(faults);
        return None;
    }
    Some(AskRule {
        template: template?,
        choices,
        fields: asked,
        approvals,
        send_to,
    })
}

fn template(
    fields: &mut Fields<'_>,
    origin: Origin<'_>,
    reads: &mut Vec<(String, Reads)>,
) -> Option<JsonTemplate> {
    let base = fields.pointer("");
    let base = base.trim_end_matches('/').to_owned();
    let mut document = Vec::new();
    for (name, remedy) in [
        ("title", "say in one line what is asked"),
        ("text", ""),
        (
            "of",
            "name the people that are asked, such as [\"ops@example.com\"]",
        ),
    ] {
        let Some(value) = fields.value(name).filter(|value| value.get() != "null") else {
            if !remedy.is_empty() {
                fields.missing(name, remedy);
            }
            continue;
        };
        match name {
            "of" => check_of(fields, value),
            _ => check_text(fields, name, value),
        }
        document.push(format!("{name:?}:{}", value.get()));
    }
    let document = Payload::parse(format!("{{{}}}", document.join(",")))?;
    match JsonTemplate::parse(&document, origin) {
        Ok(template) => {
            for (inside, read) in template.reads() {
                if !read.names.is_empty() {
                    reads.push((format!("{base}{inside}"), read));
                }
            }
            Some(template)
        }
        Err(faults) => {
            fields.extend(
                faults.into_iter().map(|fault| {
                    FieldFault::new(format!("{base}{}", fault.pointer), fault.message)
                }),
            );
            None
        }
    }
}

/// Checks as much of the text as does not depend on data.
fn check_text(fields: &mut Fields<'_>, name: &str, value: &RawValue) {
    let longest = if name == "title" {
        LONGEST_TITLE
    } else {
        LONGEST_TEXT
    };
    match text(value.get()) {
        None => fields.fault(name, "must be a string"),
        Some(text) if !text.contains("{{") && text.chars().count() > longest => {
            fields.fault(name, format!("must be at most {longest} characters long"));
        }
        Some(_) => {}
    }
}

/// Finds texts that would fail with any data when the step begins. Only new definitions are checked: earlier versions
/// of Provost have stored definitions with such texts.
fn check_literals(fields: &mut Fields<'_>) {
    let is_literal = |text: &Cow<'_, str>| !text.contains("{{");
    let title = fields.peek("title").and_then(text).filter(is_literal);
    if let Some(fault) = title.as_deref().and_then(title_fault) {
        fields.fault("title", fault);
    }
    let shown = fields.peek("text").and_then(text).filter(is_literal);
    if shown.is_some_and(|shown| shown.contains('\0')) {
        fields.fault("text", "must not contain the character U+0000: remove it");
    }
    let of = fields.peek("of").unwrap_or_default();
    let items = serde_json::from_str::<Vec<&RawValue>>(of);
    let mut faults = Vec::new();
    let people = match &items {
        Ok(items) => items.iter().map(|item| item.get()).enumerate().collect(),
        Err(_) => vec![(0, of)],
    };
    for (at, person) in people.into_iter().take(MOST_ASKED) {
        let Some(fault) = text(person).and_then(|person| literal_fault(&person)) else {
            continue;
        };
        let pointer = match items {
            Ok(_) => format!("{}/{at}", fields.pointer("of")),
            Err(_) => fields.pointer("of"),
        };
        faults.push(FieldFault::new(pointer, fault));
    }
    fields.extend(faults);
}

/// Returns the fault of a person, as far as it does not depend on data.
fn literal_fault(person: &str) -> Option<String> {
    if !person.contains("{{") {
        return person_fault(person);
    }
    // Only the text around the expressions is known. The value of an expression may have blanks at its ends.
    let mut parts = person.split("{{");
    let first = parts.next();
    let after = parts.filter_map(|part| part.split_once("}}").map(|(_, after)| after));
    first.into_iter().chain(after).find_map(hidden_letter)
}

fn check_of(fields: &mut Fields<'_>, value: &RawValue) {
    if text(value.get()).is_some() {
        return;
    }
    let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(value.get()) else {
        return fields.fault(
            "of",
            "must be an array of strings, or an expression that gives one",
        );
    };
    if items.is_empty() || items.len() > MOST_ASKED {
        let count = items.len();
        fields.fault(
            "of",
            format!("must name 1 to {MOST_ASKED} people, names {count}"),
        );
    }
    if items.iter().any(|item| text(item.get()).is_none()) {
        fields.fault("of", "must hold strings only: addresses or names");
    }
}

/// Returns the number of different people in `of`; `None` if that depends on data, or if `of` has a fault.
fn count_people(of: &str) -> Option<usize> {
    let of: Value = serde_json::from_str(of).ok()?;
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.contains("{{"));
    let is_known = match &of {
        Value::Array(items) => items.iter().all(is_text),
        one => is_text(one),
    };
    Some(people(&of).ok().filter(|_| is_known)?.len())
}

fn send_to(fields: &mut Fields<'_>, known: &dyn KnownAgents) -> LinkReceivers {
    let Some(names) = fields.string_list("send_to", LONGEST_RECEIVER) else {
        return LinkReceivers::WebhooksAndReplyTo;
    };
    if names.is_empty() || names.len() > MOST_RECEIVERS {
        let count = names.len();
        let message = format!("must name 1 to {MOST_RECEIVERS} receivers, names {count}");
        fields.fault("send_to", message);
    }
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            fields.fault("send_to", format!("{name:?} is there twice: remove one"));
        } else if name != REPLY_TO
            && let Err(message) = known.passes_links_on(name)
        {
            fields.fault("send_to", message);
        }
    }
    LinkReceivers::Named(names)
}

fn choices(fields: &mut Fields<'_>) -> Vec<String> {
    let Some(choices) = fields.string_list("choices", LONGEST_WORD) else {
        return ["approve", "reject"].map(str::to_owned).into();
    };
    if choices.is_empty() || choices.len() > MOST_CHOICES {
        let count = choices.len();
        fields.fault(
            "choices",
            format!("must hold 1 to {MOST_CHOICES} choices, holds {count}"),
        );
    }
    check_words(fields, "choices", choices.iter());
    choices
}

fn check_words<'w>(
    fields: &mut Fields<'_>,
    name: &str,
    words: impl Iterator<Item = &'w String> + Clone,
) {
    for (at, word) in words.clone().enumerate() {
        let mut letters = word.chars();
        let begins = letters
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic());
        if !begins || !letters.all(|next| next.is_ascii_alphanumeric() || "_-".contains(next)) {
            fields.fault(
                name,
                format!("{word:?} is not a word of letters, digits, `_` and `-` that begins with a letter"),
            );
        } else if words.clone().take(at).any(|before| before == word) {
            fields.fault(name, format!("{word:?} is there twice: remove one"));
        }
    }
}

fn asked_fields(fields: &mut Fields<'_>) -> Vec<AskField> {
    let given = fields.array("fields").unwrap_or_default();
    if given.len() > MOST_FIELDS {
        let message = format!(
            "must hold at most {MOST_FIELDS} fields, holds {}",
            given.len()
        );
        fields.fault("fields", message);
    }
    let mut asked = Vec::new();
    for (at, value) in given.into_iter().enumerate().take(MOST_FIELDS) {
        let pointer = format!("{}/{at}", fields.pointer("fields"));
        match read_field(value, &pointer) {
            Ok(field) => asked.extend(field),
            Err(faults) => fields.extend(faults),
        }
    }
    check_words(fields, "fields", asked.iter().map(|field| &field.name));
    asked
}

fn read_field(value: &RawValue, pointer: &str) -> Result<Option<AskField>, Vec<FieldFault>> {
    let mut field = Fields::of(value, pointer)?;
    if field.peek("name").is_none() {
        field.missing("name", "it is the name of the value in the step's output");
    }
    let name = field.string("name", LONGEST_WORD);
    let label = field.string("label", LONGEST_LABEL);
    let kind = field.choice("type", AskFieldKind::ALL);
    let required = field.boolean("required").unwrap_or_default();
    let options = field.string_list("choices", LONGEST_LABEL);
    let kind = kind.unwrap_or(AskFieldKind::String);
    match (&options, kind) {
        (None, AskFieldKind::Choice) => {
            field.missing("choices", "list what can be chosen");
        }
        (Some(options), AskFieldKind::Choice) => {
            if options.is_empty() || options.len() > MOST_OPTIONS {
                let count = options.len();
                let message = format!("must hold 1 to {MOST_OPTIONS} choices, holds {count}");
                field.fault("choices", message);
            }
        }
        (Some(_), _) => field.fault("choices", "belongs to fields of type \"choice\": remove it"),
        (None, _) => {}
    }
    field.finish()?;
    Ok(name.map(|name| AskField {
        name,
        label,
        kind,
        required,
        options: options.unwrap_or_default(),
    }))
}
