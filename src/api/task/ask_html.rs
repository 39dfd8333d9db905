//! The HTML of the pages on which people decide. They work without scripts and styles. All text from data is escaped,
//! and the headers keep the address, which is a credential, from other sites and from caches.

use std::fmt::{self, Write};

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

use crate::domain::{
    definition::{AskField, AskFieldKind, AskRule},
    task::{AnswerFault, Decision, LONGEST_COMMENT, OpenAsk, Task},
    values::Timestamp,
};

/// The page loads nothing, runs no script, cannot be framed, and its form posts to this service only.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; \
     frame-ancestors 'none'";

const STYLE: &str = "\
:root { color-scheme: light dark; }
body { max-width: 36rem; margin: 0 auto; padding: 1rem; font: 18px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; line-height: 1.25; }
.text { white-space: pre-wrap; }
.choice, button, input, select, textarea { font: inherit; }
.choice { display: block; margin: .5rem 0; padding: .9rem; border: 1px solid #8888; border-radius: .5rem; }
input[type=text], select, textarea { box-sizing: border-box; width: 100%; padding: .6rem; }
button { width: 100%; margin-top: 1rem; padding: 1rem; border-radius: .5rem; }
.fault { border-left: .3rem solid #c00; padding-left: .7rem; }
footer { margin-top: 2rem; font-size: .8rem; opacity: .75; }
";

/// The subject of a person's link: the task, its step, and the question.
pub(in crate::api) struct AskSubject<'t> {
    pub task: &'t Task,
    pub rule: &'t AskRule,
    pub ask: &'t OpenAsk,
    pub step: &'t str,
    /// The end of the time to decide; `None` if the question is closed.
    pub until: Option<Timestamp>,
}

/// A page that a person sees.
pub(in crate::api) enum AskPage<'a> {
    Form {
        asked: &'a AskSubject<'a>,
        person: &'a str,
        /// The values that the person filled in before.
        given: &'a [(String, String)],
        faults: &'a [AnswerFault],
    },
    Decided {
        asked: &'a AskSubject<'a>,
        decision: &'a Decision,
        /// True if the person has now chosen something else, which is refused.
        is_refused: bool,
    },
    Closed {
        asked: &'a AskSubject<'a>,
    },
    TooLate {
        asked: &'a AskSubject<'a>,
    },
    AskedAgain,
    Unknown,
    Failed(&'a str),
}

pub(in crate::api) fn respond(status: StatusCode, page: &AskPage<'_>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        // Without `Origin`, the page's own form would look as if it came from another site.
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ];
    let mut response = (status, headers, page.html()).into_response();
    let robots = HeaderValue::from_static("noindex, nofollow");
    response.headers_mut().insert("x-robots-tag", robots);
    response
}

/// Text in HTML, also within a quoted attribute.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // These direction marks could make a text look like another.
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => f.write_char('\u{fffd}')?,
                letter => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

impl AskPage<'_> {
    fn html(&self) -> String {
        let mut html = String::with_capacity(4096);
        // Writing to a String cannot fail.
        let _ = self.write(&mut html);
        html
    }

    fn title(&self) -> &str {
        match self {
            AskPage::Form { asked, .. } => &asked.ask.text.title,
            AskPage::Decided { .. } => "Your decision is recorded",
            AskPage::Closed { .. } | AskPage::TooLate { .. } => "This question is closed",
            AskPage::AskedAgain => "This link is no longer valid",
            AskPage::Unknown => "This link is not known",
            AskPage::Failed(_) => "This did not work",
        }
    }

    fn write(&self, html: &mut String) -> fmt::Result {
        let title = Escaped(self.title());
        write!(
            html,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"robots\" content=\"noindex\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n\
             </head>\n<body>\n<h1>{title}</h1>\n"
        )?;
        match self {
            AskPage::Form {
                asked,
                person,
                given,
                faults,
            } => form(html, asked, person, given, faults)?,
            AskPage::Decided {
                asked,
                decision,
                is_refused,
            } => decided(html, asked, decision, *is_refused)?,
            AskPage::Closed { asked } => {
                writeln!(
                    html,
                    "<p>\u{201c}{}\u{201d} needs no decision any more: others have decided, or the task has ended or \
                     gone on without it.</p>",
                    Escaped(&asked.ask.text.title)
                )?;
                decisions(html, asked)?;
            }
            AskPage::TooLate { asked } => writeln!(
                html,
                "<p>The time to decide on \u{201c}{}\u{201d} is over.</p>",
                Escaped(&asked.ask.text.title)
            )?,
            AskPage::AskedAgain => html.push_str(
                "<p>The question was closed or asked again since. If it was asked again, use the newest link that you \
                 got.</p>\n",
            ),
            AskPage::Unknown => html.push_str(
                "<p>Use the link as you got it, whole and unchanged. Links of tasks that have been deleted are not known \
                 any more.</p>\n",
            ),
            AskPage::Failed(detail) => writeln!(
                html,
                "<p class=\"fault\">{}</p>\n<p>Nothing was decided. Go back and try again.</p>",
                Escaped(detail)
            )?,
        }
        html.push_str("</body>\n</html>\n");
        Ok(())
    }
}

fn form(
    html: &mut String,
    asked: &AskSubject<'_>,
    person: &str,
    given: &[(String, String)],
    faults: &[AnswerFault],
) -> fmt::Result {
    for fault in faults {
        writeln!(
            html,
            "<p class=\"fault\"><strong>{}</strong>: {}</p>",
            Escaped(&fault.field),
            Escaped(&fault.message)
        )?;
    }
    if let Some(text) = &asked.ask.text.text {
        writeln!(html, "<div class=\"text\">{}</div>", Escaped(text))?;
    }
    decisions(html, asked)?;
    let of = |name: &str| {
        let mut found = given.iter().filter(|(field, _)| field == name);
        found.next().map_or("", |(_, value)| value.as_str())
    };
    html.push_str("<form method=\"post\" accept-charset=\"utf-8\">\n");
    for field in &asked.rule.fields {
        one_field(html, field, of(&format!("field.{}", field.name)))?;
    }
    html.push_str("<fieldset>\n<legend>Your decision</legend>\n");
    for choice in &asked.rule.choices {
        let checked = if of("choice") == choice {
            " checked"
        } else {
            ""
        };
        let choice = Escaped(choice);
        writeln!(
            html,
            "<label class=\"choice\"><input type=\"radio\" name=\"choice\" value=\"{choice}\" required{checked}> \
             {choice}</label>"
        )?;
    }
    writeln!(
        html,
        "</fieldset>\n<p><label>Comment (optional)<br>\n<textarea name=\"comment\" rows=\"3\" \
         maxlength=\"{LONGEST_COMMENT}\">\n{}</textarea></label></p>\n<button type=\"submit\">Send the decision</button>\n\
         </form>",
        Escaped(of("comment"))
    )?;
    let until = asked.until.map(|until| until.to_string());
    let key = asked.task.details.key.as_deref();
    writeln!(
        html,
        "<footer><p>You are asked as {}, until {} (UTC). This link is yours alone: do not pass it on. Your first decision \
         counts.</p>\n<p>Step {} of task {}</p></footer>",
        Escaped(person),
        Escaped(until.as_deref().unwrap_or_default()),
        Escaped(asked.step),
        Escaped(&key.map_or_else(|| asked.task.id().to_string(), str::to_owned)),
    )
}

fn one_field(html: &mut String, field: &AskField, given: &str) -> fmt::Result {
    let label = Escaped(field.shown());
    let (name, value) = (Escaped(&field.name), Escaped(given));
    let required = if field.required { " required" } else { "" };
    let optional = if field.required { "" } else { " (optional)" };
    match field.kind {
        AskFieldKind::Boolean => {
            let checked = if given.is_empty() { "" } else { " checked" };
            writeln!(
                html,
                "<p><label class=\"choice\"><input type=\"checkbox\" name=\"field.{name}\" value=\"true\"{required}\
                 {checked}> {label}</label></p>"
            )
        }
        AskFieldKind::Choice => {
            writeln!(
                html,
                "<p><label>{label}{optional}<br>\n<select name=\"field.{name}\"{required}>\n<option value=\"\"></option>"
            )?;
            for option in &field.options {
                let selected = if option.trim() == given {
                    " selected"
                } else {
                    ""
                };
                let option = Escaped(option);
                writeln!(
                    html,
                    "<option value=\"{option}\"{selected}>{option}</option>"
                )?;
            }
            html.push_str("</select></label></p>\n");
            Ok(())
        }
        AskFieldKind::String | AskFieldKind::Number => {
            let mode = match field.kind {
                AskFieldKind::Number => " inputmode=\"decimal\"",
                _ => " maxlength=\"1000\"",
            };
            writeln!(
                html,
                "<p><label>{label}{optional}<br>\n<input type=\"text\" name=\"field.{name}\" value=\"{value}\"{mode}\
                 {required}></label></p>"
            )
        }
    }
}

fn decided(
    html: &mut String,
    asked: &AskSubject<'_>,
    decision: &Decision,
    is_refused: bool,
) -> fmt::Result {
    if is_refused {
        html.push_str(
            "<p class=\"fault\">You had decided before, and the first decision counts: nothing has changed.</p>\n",
        );
    }
    writeln!(
        html,
        "<p>On \u{201c}{}\u{201d} you decided <strong>{}</strong> at {} (UTC).</p>",
        Escaped(&asked.ask.text.title),
        Escaped(&decision.answer.choice),
        decision.at
    )?;
    if let Some(comment) = &decision.answer.comment {
        writeln!(html, "<div class=\"text\">{}</div>", Escaped(comment))?;
    }
    let approvals = asked.ask.approvals(asked.rule);
    if asked.until.is_some() && (approvals as u32) < asked.rule.approvals {
        writeln!(
            html,
            "<p>{approvals} of {} people have chosen {} so far: the others are still asked.</p>",
            asked.rule.approvals,
            Escaped(asked.rule.approval())
        )?;
    }
    Ok(())
}

/// Writes the decisions of the others.
fn decisions(html: &mut String, asked: &AskSubject<'_>) -> fmt::Result {
    for decision in &asked.ask.decisions {
        write!(
            html,
            "<p>{} chose <strong>{}</strong> at {} (UTC)",
            Escaped(asked.ask.person(decision.person).unwrap_or_default()),
            Escaped(&decision.answer.choice),
            decision.at
        )?;
        match &decision.answer.comment {
            Some(comment) => writeln!(
                html,
                ": <span class=\"text\">{}</span></p>",
                Escaped(comment)
            )?,
            None => html.push_str(".</p>\n"),
        }
    }
    Ok(())
}
