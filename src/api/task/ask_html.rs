//! The HTML of the pages on which people decide. They have the stylesheet of the console, and work without it and without
//! scripts. All text from data is escaped, and the headers keep the address, which is a credential, from other sites and from
//! caches.

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

/// The page loads the stylesheet of this service only, runs no script, cannot be framed, and its form posts to this service
/// only.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; \
     frame-ancestors 'none'";

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

/// Returns the page. `base` is the path of the public URL: the address of the stylesheet begins with it.
pub(in crate::api) fn respond(status: StatusCode, page: &AskPage<'_>, base: &str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        // Without `Origin`, the page's own form would look as if it came from another site.
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ];
    let mut response = (status, headers, page.html(base)).into_response();
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
    fn html(&self, base: &str) -> String {
        let mut html = String::with_capacity(4096);
        // Writing to a String cannot fail.
        let _ = self.write(&mut html, base);
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

    fn write(&self, html: &mut String, base: &str) -> fmt::Result {
        let title = Escaped(self.title());
        let [stylesheet, icon] =
            ["console.css", "icon.svg"].map(|name| provost_console::asset_address(base, name));
        write!(
            html,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"robots\" content=\"noindex\">\n<title>{title}</title>\n\
             <link rel=\"stylesheet\" href=\"{}\">\n<link rel=\"icon\" href=\"{}\">\n\
             </head>\n<body>\n<main class=\"solo ask\">\n",
            Escaped(&stylesheet),
            Escaped(&icon),
        )?;
        if let AskPage::Form { person, .. } = self {
            writeln!(
                html,
                "<p class=\"q\">You are asked as <b>{}</b></p>",
                Escaped(person)
            )?;
        }
        writeln!(html, "<h1>{title}</h1>")?;
        match self {
            AskPage::Form {
                asked,
                given,
                faults,
                ..
            } => form(html, asked, given, faults)?,
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
                "<p class=\"note error\" role=\"alert\">{}</p>\n<p>Nothing was decided. Go back and try again.</p>",
                Escaped(detail)
            )?,
        }
        html.push_str("</main>\n</body>\n</html>\n");
        Ok(())
    }
}

fn form(
    html: &mut String,
    asked: &AskSubject<'_>,
    given: &[(String, String)],
    faults: &[AnswerFault],
) -> fmt::Result {
    for fault in faults {
        writeln!(
            html,
            "<p class=\"note error\" role=\"alert\"><strong>{}</strong>: {}</p>",
            Escaped(&fault.field),
            Escaped(&fault.message)
        )?;
    }
    if let Some(text) = &asked.ask.text.text {
        writeln!(html, "<p class=\"said\">{}</p>", Escaped(text))?;
    }
    decisions(html, asked)?;
    let of = |name: &str| {
        let mut found = given.iter().filter(|(field, _)| field == name);
        found.next().map_or("", |(_, value)| value.as_str())
    };
    html.push_str("<form method=\"post\" accept-charset=\"utf-8\">\n");
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
    html.push_str("</fieldset>\n");
    for field in &asked.rule.fields {
        one_field(html, field, of(&format!("field.{}", field.name)))?;
    }
    writeln!(
        html,
        "<p class=\"row\"><label class=\"f\" for=\"comment\">Comment (optional)</label>\
         <textarea id=\"comment\" name=\"comment\" rows=\"3\" maxlength=\"{LONGEST_COMMENT}\">\n{}</textarea></p>\n\
         <p class=\"row\"><button class=\"go\" type=\"submit\">Send the decision</button></p>\n</form>",
        Escaped(of("comment"))
    )?;
    html.push_str("<p class=\"q\">");
    if asked.rule.approvals > 1 {
        write!(
            html,
            "{} of the {} approvals that are needed are there. ",
            asked.ask.approvals(asked.rule),
            asked.rule.approvals
        )?;
    }
    if let Some(until) = asked.until {
        html.push_str("Decide until ");
        time(html, until)?;
        html.push_str(". ");
    }
    let key = asked.task.details.key.as_deref();
    writeln!(
        html,
        "Your first decision counts. This link is yours alone: do not pass it on.</p>\n\
         <p class=\"q\">Step {} of task {}</p>",
        Escaped(asked.step),
        Escaped(&key.map_or_else(|| asked.task.id().to_string(), str::to_owned)),
    )
}

/// Writes a time as 2026-11-26 04:00 UTC.
fn time(html: &mut String, at: Timestamp) -> fmt::Result {
    let whole = at.to_string();
    let short = match (whole.get(..10), whole.get(11..16)) {
        (Some(day), Some(minute)) => format!("{day} {minute}"),
        _ => whole.clone(),
    };
    write!(html, "<time datetime=\"{whole}\">{short} UTC</time>")
}

fn one_field(html: &mut String, field: &AskField, given: &str) -> fmt::Result {
    let label = Escaped(field.shown());
    let (name, value) = (Escaped(&field.name), Escaped(given));
    let required = if field.required { " required" } else { "" };
    let optional = if field.required { "" } else { " (optional)" };
    let labelled = |html: &mut String| {
        write!(
            html,
            "<p class=\"row\"><label class=\"f\" for=\"field.{name}\">{label}{optional}</label>"
        )
    };
    match field.kind {
        AskFieldKind::Boolean => {
            let checked = if given.is_empty() { "" } else { " checked" };
            writeln!(
                html,
                "<p class=\"row\"><label class=\"choice\"><input type=\"checkbox\" name=\"field.{name}\" \
                 value=\"true\"{required}{checked}> {label}</label></p>"
            )
        }
        AskFieldKind::Choice => {
            labelled(html)?;
            writeln!(
                html,
                "<select id=\"field.{name}\" name=\"field.{name}\"{required}>\n<option value=\"\"></option>"
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
            html.push_str("</select></p>\n");
            Ok(())
        }
        AskFieldKind::String | AskFieldKind::Number => {
            let mode = match field.kind {
                AskFieldKind::Number => " inputmode=\"decimal\"",
                _ => " maxlength=\"1000\"",
            };
            labelled(html)?;
            writeln!(
                html,
                "<input type=\"text\" id=\"field.{name}\" name=\"field.{name}\" value=\"{value}\"{mode}{required}></p>"
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
            "<p class=\"note error\" role=\"alert\">You had decided before, and the first decision counts: nothing has changed.</p>\n",
        );
    }
    write!(
        html,
        "<p>On \u{201c}{}\u{201d} you decided <strong>{}</strong> at ",
        Escaped(&asked.ask.text.title),
        Escaped(&decision.answer.choice),
    )?;
    time(html, decision.at)?;
    html.push_str(".</p>\n");
    if let Some(comment) = &decision.answer.comment {
        writeln!(html, "<p class=\"said\">{}</p>", Escaped(comment))?;
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
            "<p class=\"note\">{} chose <strong>{}</strong> at ",
            Escaped(asked.ask.person(decision.person).unwrap_or_default()),
            Escaped(&decision.answer.choice),
        )?;
        time(html, decision.at)?;
        match &decision.answer.comment {
            Some(comment) => writeln!(
                html,
                ": <span class=\"said\">{}</span></p>",
                Escaped(comment)
            )?,
            None => html.push_str(".</p>\n"),
        }
    }
    Ok(())
}
