//! The question of a step to people, and their decisions: part of the record of the step.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    definition::{
        AskField, AskFieldKind, AskRule,
        ask_text::{AskText, LONGEST_PERSON},
    },
    template::payload::Payload,
    values::{
        ids::{Attempt, StepIndex},
        time::Timestamp,
    },
};

/// The longest comment, in characters.
pub const LONGEST_COMMENT: usize = 1000;
/// The longest value of a field, in characters.
const LONGEST_VALUE: usize = 1000;
/// The longest total of the values of all fields of one answer, in bytes of JSON.
const LONGEST_VALUES: usize = 16 * 1024;

/// The question of one attempt of a step. It is kept after it is answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct OpenAsk {
    pub attempt: Attempt,
    #[serde(flatten)]
    pub text: AskText,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
}

/// The decision of one person.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Decision {
    pub person: u16,
    #[serde(flatten)]
    pub answer: AskAnswer,
    pub at: Timestamp,
}

/// The choice of a person, with the comment and the fields.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AskAnswer {
    pub choice: String,
    pub comment: Option<String>,
    /// The value of each field of the rule, null if the field was left empty.
    pub fields: BTreeMap<String, Value>,
}

/// A change of the list of open questions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AskChange {
    Open(StepIndex),
    Closed(StepIndex),
    /// All questions of the task are closed, because the record of the task was damaged and is replaced.
    AllClosed,
}

/// The fault of a part of an answer, in words for the person.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnswerFault {
    /// `choice`, `comment`, or the label of a field.
    pub field: String,
    pub message: String,
}

impl OpenAsk {
    pub fn person(&self, person: u16) -> Option<&str> {
        self.text.of.get(usize::from(person)).map(String::as_str)
    }

    pub fn decision_of(&self, person: u16) -> Option<&Decision> {
        let mut decisions = self.decisions.iter();
        decisions.find(|decision| decision.person == person)
    }

    /// Returns the number of people who have chosen the approval.
    pub fn approvals(&self, rule: &AskRule) -> usize {
        let chosen = self
            .decisions
            .iter()
            .map(|decision| &decision.answer.choice);
        chosen.filter(|choice| *choice == rule.approval()).count()
    }

    /// Returns the output of the step once it is decided: the last decision, and the list of all.
    pub(crate) fn output(&self) -> Payload {
        #[derive(Serialize)]
        struct One<'a> {
            choice: &'a str,
            by: &'a str,
            comment: Option<&'a str>,
            fields: &'a BTreeMap<String, Value>,
            at: Timestamp,
        }
        #[derive(Serialize)]
        struct AskOutput<'a> {
            #[serde(flatten)]
            last: One<'a>,
            decisions: Vec<One<'a>>,
        }
        let mut all = self.decisions.iter().map(|decision| One {
            choice: &decision.answer.choice,
            by: self.person(decision.person).unwrap_or_default(),
            comment: decision.answer.comment.as_deref(),
            fields: &decision.answer.fields,
            at: decision.at,
        });
        let decisions: Vec<_> = all.clone().collect();
        let output = all.next_back().map(|last| AskOutput { last, decisions });
        // Strings, numbers and JSON always serialise.
        let json = serde_json::to_string(&output).unwrap_or_default();
        Payload::parse(json).unwrap_or_else(Payload::null)
    }
}

impl AskRule {
    /// Reads an answer as a form sends it: `choice`, `comment`, and each field under its name after `field.`. Returns
    /// all faults at once.
    pub fn read_answer(&self, form: &[(String, String)]) -> Result<AskAnswer, Vec<AnswerFault>> {
        let given = |name: &str| {
            let mut found = form.iter().filter(|(field, _)| field == name);
            found.next().map(|(_, value)| value.trim())
        };
        let mut faults = Vec::new();
        let mut fault = |field: &str, message: String| {
            faults.push(AnswerFault {
                field: field.to_owned(),
                message,
            });
        };
        let choice = given("choice").unwrap_or_default().to_owned();
        if !self.choices.contains(&choice) {
            fault(
                "choice",
                format!("choose one of {}", self.choices.join(", ")),
            );
        }
        let comment = given("comment").filter(|comment| !comment.is_empty());
        if let Some(message) = comment.and_then(|comment| too_long(comment, LONGEST_COMMENT)) {
            fault("comment", message);
        }
        let mut fields = BTreeMap::new();
        for field in &self.fields {
            let value = given(&format!("field.{}", field.name)).unwrap_or_default();
            match field.read(value) {
                Ok(value) => {
                    fields.insert(field.name.clone(), value);
                }
                Err(message) => fault(field.shown(), message),
            }
        }
        let length: usize = fields.values().map(|value| value.to_string().len()).sum();
        if length > LONGEST_VALUES {
            fault(
                "fields",
                "together they are too long: write less".to_owned(),
            );
        }
        let mut names = form.iter().enumerate();
        let repeated = names.find(|(at, (name, _))| {
            self.knows(name) && form[..*at].iter().any(|(earlier, _)| earlier == name)
        });
        if let Some((_, (name, _))) = repeated {
            let field = name.strip_prefix("field.");
            let mut fields = self.fields.iter();
            let field = field.and_then(|name| fields.find(|field| field.name == name));
            let shown = field.map_or(name.as_str(), AskField::shown);
            fault(shown, "is sent more than once: send one value".to_owned());
        }
        if let Some((unknown, _)) = form.iter().find(|(name, _)| !self.knows(name)) {
            let unknown: String = unknown.chars().take(LONGEST_PERSON).collect();
            fault(&unknown, "is not asked".to_owned());
        }
        match faults.is_empty() {
            true => Ok(AskAnswer {
                choice,
                comment: comment.map(str::to_owned),
                fields,
            }),
            false => Err(faults),
        }
    }

    fn knows(&self, name: &str) -> bool {
        let field = name.strip_prefix("field.");
        ["choice", "comment"].contains(&name)
            || field.is_some_and(|name| self.fields.iter().any(|field| field.name == name))
    }
}

impl AskField {
    /// Returns the name of the field that people see.
    pub fn shown(&self) -> &str {
        self.label.as_deref().unwrap_or(&self.name)
    }

    fn read(&self, value: &str) -> Result<Value, String> {
        if self.kind == AskFieldKind::Boolean {
            let is_set = !["", "false", "off", "0"].contains(&value);
            return match is_set || !self.required {
                true => Ok(Value::Bool(is_set)),
                false => Err("must be ticked".to_owned()),
            };
        }
        if value.is_empty() {
            return match self.required {
                true => Err("must be filled in".to_owned()),
                false => Ok(Value::Null),
            };
        }
        if let Some(message) = too_long(value, LONGEST_VALUE) {
            return Err(message);
        }
        match self.kind {
            AskFieldKind::Number => {
                let number = serde_json::from_str::<serde_json::Number>(value);
                number
                    .map(Value::Number)
                    .map_err(|_| "must be a number, such as 12.50".to_owned())
            }
            AskFieldKind::Choice if !self.options.iter().any(|option| option.trim() == value) => {
                Err(format!("choose one of {}", self.options.join(", ")))
            }
            _ => Ok(Value::String(value.to_owned())),
        }
    }
}

fn too_long(text: &str, longest: usize) -> Option<String> {
    if text.contains('\0') {
        return Some("cannot contain the character U+0000".to_owned());
    }
    let length = text.chars().count();
    (length > longest).then(|| format!("has {length} characters: at most {longest}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::definition::ask_text::people;
    use crate::definition::{Accepted, Limits, Policies, parse_steps};

    fn rule(ask: Value) -> Result<std::sync::Arc<AskRule>, Vec<String>> {
        let steps = json!([{ "name": "a", "signal": { "within": "1d", "ask": ask } }]);
        let steps = Payload::from_value(&steps);
        let (limits, policies) = (Limits::default(), Policies::default());
        let parsed = parse_steps(&steps, "", &policies, &limits, &Accepted);
        parsed
            .map(|parsed| parsed.steps[0].work.ask().unwrap().clone())
            .map_err(|faults| faults.iter().map(ToString::to_string).collect())
    }

    fn answer(rule: &AskRule, form: &[(&str, &str)]) -> Result<AskAnswer, Vec<AnswerFault>> {
        let form: Vec<_> = form
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        rule.read_answer(&form)
    }

    #[test]
    fn an_answer_is_read_by_the_types_of_its_fields_and_all_faults_are_said_at_once() {
        let rule = rule(json!({ "title": "t", "of": ["a"], "fields": [
            { "name": "amount", "type": "number", "required": true, "label": "Amount" },
            { "name": "why", "type": "choice", "choices": ["late", "broken"] },
            { "name": "sure", "type": "boolean" },
            { "name": "note" },
        ] }))
        .unwrap();
        let read = answer(
            &rule,
            &[
                ("choice", "approve"),
                ("comment", "  "),
                ("field.amount", " 12.50 "),
                ("field.why", ""),
                ("field.sure", "true"),
                ("field.note", "<b>"),
            ],
        );
        let read = read.unwrap();
        assert_eq!(read.comment, None);
        let fields = json!({ "amount": 12.50, "why": null, "sure": true, "note": "<b>" });
        assert_eq!(json!(read.fields), fields);
        let long = "x".repeat(LONGEST_VALUE + 1);
        let faults = answer(
            &rule,
            &[
                ("comment", &"ü".repeat(LONGEST_COMMENT + 1)),
                ("field.amount", "1e400"),
                ("field.why", "other"),
                ("field.note", &long),
                ("admin", "true"),
            ],
        );
        let faults: Vec<_> = faults.unwrap_err().into_iter().map(|f| f.field).collect();
        assert_eq!(
            faults,
            ["choice", "comment", "Amount", "why", "note", "admin"]
        );
    }

    #[test]
    fn nobody_is_two_people_by_letters_that_look_the_same() {
        let named = |names: &[&str]| people(&json!(names)).map(|people| people.len());
        for same in [
            ["Zoë", "Zoe\u{308}"],
            ["ops@example.com", "ｏｐｓ@example.com"],
            ["ﬁnn", "FINN"],
            ["K\u{e5}re", "K\u{212b}re"],
            ["STRASSE\u{307}", "strasse\u{307}"],
            ["straße@x", "STRASSE@x"],
            ["ẞ@x", "ss@x"],
            ["Σ@x", "ς@x"],
            ["ΟΔΥΣΣΕΥΣ", "οδυσσευς"],
            ["a b", "a  b"],
            ["a b", "a\u{2003}\u{a0}b"],
        ] {
            assert_eq!(named(&same), Ok(1), "{same:?}");
        }
        assert_eq!(named(&["Zoë", "Zoe"]), Ok(2));
        for invisible in [
            '\u{ad}',
            '\u{34f}',
            '\u{61c}',
            '\u{115f}',
            '\u{180b}',
            '\u{200b}',
            '\u{200e}',
            '\u{202e}',
            '\u{2065}',
            '\u{2066}',
            '\u{2069}',
            '\u{206a}',
            '\u{3164}',
            '\u{fe0f}',
            '\u{feff}',
            '\u{ffa0}',
            '\u{fff0}',
            '\u{1d173}',
            '\u{e0041}',
            '\u{e0100}',
            '\u{2800}',
            '\u{2028}',
            '\u{fff9}',
            '\u{fffb}',
            '\u{378}',
            '\u{e000}',
            '\u{ffff}',
            '\u{10fffd}',
        ] {
            let named = named(&["ops", &format!("op{invisible}s")]);
            assert!(named.unwrap_err().contains("visible"), "{invisible:?}");
        }
    }

    #[test]
    fn who_gets_the_links_is_named_in_the_definition_and_bounded() {
        let read = |send_to: Value| rule(json!({ "title": "t", "of": ["a"], "send_to": send_to }));
        let usual = read(Value::Null).unwrap();
        assert!(usual.send_to.has_reply_to(true) && !usual.send_to.has_reply_to(false));
        let named = read(json!(["mailer"])).unwrap();
        assert!(!named.send_to.has_reply_to(true) && !named.send_to.has_reply_to(false));
        let both = read(json!(["mailer", "reply_to"])).unwrap();
        assert!(both.send_to.has_reply_to(true) && both.send_to.has_reply_to(false));
        assert_eq!(both.send_to.named().collect::<Vec<_>>(), ["mailer"]);
        let many: Vec<_> = (0..11).map(|n| format!("r{n}")).collect();
        for (wrong, says) in [
            (json!([]), "1 to 10"),
            (json!(many), "1 to 10"),
            (json!(["a", "a"]), "twice"),
            (json!("a"), "array"),
            (json!(["x".repeat(65)]), "64"),
        ] {
            let faults = read(wrong).unwrap_err().join("; ");
            assert!(
                faults.contains("/send_to") && faults.contains(says),
                "{faults}"
            );
        }
    }

    #[test]
    fn a_value_that_is_sent_twice_is_refused_even_if_it_is_the_same() {
        let rule = rule(json!({ "title": "t", "of": ["a"], "fields": [
            { "name": "amount", "label": "Amount" }, { "name": "choice" },
        ] }))
        .unwrap();
        for (name, shown) in [
            ("choice", "choice"),
            ("comment", "comment"),
            ("field.amount", "Amount"),
            ("field.choice", "choice"),
        ] {
            let mut form = vec![("choice", "approve"), ("field.choice", "x")];
            form.extend([("comment", "y"), ("field.amount", "1")]);
            assert!(answer(&rule, &form).is_ok());
            form.push((name, "approve"));
            let fault = AnswerFault {
                field: shown.to_owned(),
                message: "is sent more than once: send one value".to_owned(),
            };
            assert_eq!(answer(&rule, &form), Err(vec![fault]), "{name}");
        }
    }

    #[test]
    fn a_definition_says_what_is_wrong_with_it_and_where() {
        for (ask, said) in [
            (json!({ "of": ["a"] }), "/0/signal/ask/title: is missing"),
            (json!({ "title": "t" }), "/0/signal/ask/of: is missing"),
            (
                json!({ "title": "t", "of": [] }),
                "/0/signal/ask/of: must name 1 to 20 people",
            ),
            (
                json!({ "title": "t", "of": 3 }),
                "/0/signal/ask/of: must be an array of strings",
            ),
            (
                json!({ "title": "x".repeat(201), "of": ["a"] }),
                "/0/signal/ask/title: must be at most 200 characters",
            ),
            (
                json!({ "title": 3, "of": ["a"] }),
                "/0/signal/ask/title: must be a string",
            ),
            (
                json!({ "title": "{{ input. }}", "of": ["a"] }),
                "/0/signal/ask/title: ",
            ),
            (
                json!({ "title": "t", "of": ["{{ nothing }}"] }),
                "/0/signal/ask/of/0: ",
            ),
            (
                json!({ "title": "t", "of": ["a"], "choices": [] }),
                "must hold 1 to 10 choices",
            ),
            (
                json!({ "title": "t", "of": ["a"], "choices": ["a b"] }),
                "is not a word",
            ),
            (
                json!({ "title": "t", "of": ["a"], "choices": ["a", "a"] }),
                "is there twice",
            ),
            (
                json!({ "title": "t", "of": ["a"], "approvals": 0 }),
                "/0/signal/ask/approvals: must be",
            ),
            (
                json!({ "title": "{{ input }}", "of": ["a@x", "b@y"], "approvals": 3 }),
                "/0/signal/ask/approvals: needs 3 different people, and `of` names 2",
            ),
            (
                json!({ "title": "t", "of": ["a@x", "A@X "], "approvals": 2 }),
                "and `of` names 1",
            ),
            (
                json!({ "title": "t", "of": "a@x", "approvals": 2 }),
                "and `of` names 1",
            ),
            (
                json!({ "title": "t", "of": ["a"], "fields": [{ "name": "x", "type": "choice" }] }),
                "/0/signal/ask/fields/0/choices: is missing",
            ),
            (
                json!({ "title": "t", "of": ["a"], "fields": [{ "name": "x", "choices": ["a"] }] }),
                "belongs to fields of type",
            ),
            (
                json!({ "title": "t", "of": ["a"], "timeout": 1 }),
                "unknown field `timeout`",
            ),
        ] {
            let faults = rule(ask.clone()).unwrap_err().join("\n");
            assert!(faults.contains(said), "{ask}: {faults}");
        }
    }

    #[test]
    fn how_many_people_expressions_give_is_known_later() {
        for of in [
            json!(["a@x", "b@y"]),
            json!(["a@x", "{{ input.others }}"]),
            json!("{{ input.people }}"),
        ] {
            let ask = json!({ "title": "t", "of": of, "approvals": 2 });
            assert_eq!(rule(ask).unwrap().approvals, 2, "{of}");
        }
    }

    #[test]
    fn a_schema_and_a_match_are_not_for_people() {
        for other in ["schema", "match"] {
            let mut signal = json!({ "within": "1d", "ask": { "title": "t", "of": ["a"] } });
            signal[other] = match other {
                "schema" => json!({}),
                _ => json!("true"),
            };
            let steps = Payload::from_value(&json!([{ "name": "a", "signal": signal }]));
            let (limits, policies) = (Limits::default(), Policies::default());
            let parsed = parse_steps(&steps, "", &policies, &limits, &Accepted);
            let faults = parsed.unwrap_err();
            assert_eq!(faults[0].pointer, format!("/0/signal/{other}"));
        }
    }
}
