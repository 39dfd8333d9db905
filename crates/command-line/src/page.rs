//! The pages for people that the API responds with, where it has no JSON.

use crate::outcome::ProblemJson;

/// Returns what a page of Provost says is wrong: its heading and its alerts, or else the text below the heading.
pub fn problem(status: u16, html: &str) -> Option<ProblemJson> {
    let main = between(html, "<main", "</main>")?;
    let title = words(between(main, "<h1>", "</h1>")?);
    let below = main.split_once("</h1>")?.1;
    let alerts = below.split("role=\"alert\">").skip(1);
    let mut faults: Vec<_> = alerts
        .filter_map(|alert| Some(words(alert.split_once("</p>")?.0)))
        .collect();
    if faults.is_empty() {
        faults.extend(between(below, "<p>", "</p>").map(words));
    }
    Some(ProblemJson {
        title,
        status,
        detail: faults.join("; "),
        ..ProblemJson::default()
    })
}

fn between<'t>(text: &'t str, begin: &str, end: &str) -> Option<&'t str> {
    let from = text.split_once(begin)?.1;
    Some(from.split_once(end)?.0)
}

/// Returns the text without its elements, and with the characters that were escaped.
fn words(html: &str) -> String {
    let mut text = String::new();
    for part in html.split('<') {
        // The text before the first element has no end of one.
        text.push_str(part.split_once('>').map_or(part, |(_, after)| after));
    }
    let escapes = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ];
    let escapes = escapes.iter();
    let text = escapes.fold(text, |text, (escaped, plain)| text.replace(escaped, plain));
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_what_is_wrong_in_its_alerts_or_below_its_heading() {
        let page = "<head><title>x</title></head><main class=\"ask\"><h1>Refund &lt;b&gt;?</h1>\n<p class=\"note error\" \
            role=\"alert\"><strong>choice</strong>: must be approve &amp; so on</p><p>Order 1</p></main>";
        let refused = problem(422, page).unwrap();
        assert_eq!(
            (refused.title.as_str(), refused.detail.as_str()),
            ("Refund <b>?", "choice: must be approve & so on")
        );
        let unknown = problem(
            404,
            "<main><h1>This link is not known</h1><p>Use it.</p></main>",
        );
        assert_eq!(unknown.unwrap().detail, "Use it.");
        assert!(problem(502, "<h1>Bad gateway</h1>").is_none());
    }
}
