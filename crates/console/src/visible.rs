//! Characters that change the direction of the text after them. A key may have one, and would turn the rest of its line around,
//! so that people read other words than those that are there. A page shows each by its code.

/// Returns the code of a character that changes the direction of text, as JSON writes it.
fn code(c: char) -> Option<&'static str> {
    Some(match c {
        '\u{061c}' => "\\u061c",
        '\u{200e}' => "\\u200e",
        '\u{200f}' => "\\u200f",
        '\u{202a}' => "\\u202a",
        '\u{202b}' => "\\u202b",
        '\u{202c}' => "\\u202c",
        '\u{202d}' => "\\u202d",
        '\u{202e}' => "\\u202e",
        '\u{2066}' => "\\u2066",
        '\u{2067}' => "\\u2067",
        '\u{2068}' => "\\u2068",
        '\u{2069}' => "\\u2069",
        _ => return None,
    })
}

/// The part of a page that a character is in.
#[derive(Clone, Copy, PartialEq)]
enum PagePart {
    Text,
    /// The content of a `textarea`, which is sent back as it is.
    Typed,
    Tag,
    /// The value of an attribute that people see or hear.
    Shown,
    /// The value of an attribute that is sent back, or that leads to another page.
    Kept,
}

/// Returns a page with these characters written as their codes, wherever people see them. The values of forms stay as they are:
/// what a person sends back is what is stored.
pub fn visible(html: String) -> String {
    if !html.chars().any(|c| code(c).is_some()) {
        return html;
    }
    let mut shown = String::with_capacity(html.len() + 64);
    let mut part = PagePart::Text;
    let mut rest = html.as_str();
    while let Some(c) = rest.chars().next() {
        part = match (part, c) {
            (PagePart::Text, '<') => PagePart::Tag,
            (PagePart::Typed, '<') if rest.starts_with("</textarea") => PagePart::Tag,
            (PagePart::Tag, '>') => {
                let tag = shown.rfind('<').and_then(|at| shown.get(at..));
                match tag.is_some_and(|tag| tag.starts_with("<textarea")) {
                    true => PagePart::Typed,
                    false => PagePart::Text,
                }
            }
            (PagePart::Tag, '"') => {
                let is_shown = ["aria-label=", "title=", "placeholder=", "alt="];
                match is_shown.iter().any(|name| shown.ends_with(name)) {
                    true => PagePart::Shown,
                    false => PagePart::Kept,
                }
            }
            (PagePart::Shown | PagePart::Kept, '"') => PagePart::Tag,
            (part, _) => part,
        };
        match code(c).filter(|_| matches!(part, PagePart::Text | PagePart::Shown)) {
            Some(code) => shown.push_str(code),
            None => shown.push(c),
        }
        rest = &rest[c.len_utf8()..];
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_turns_text_around_is_shown_by_its_code_and_kept_in_forms_and_links() {
        let page = |c: &str| {
            format!(
                r#"<td title="a{c}b"><a href="/x?{c}">ab{c}"c</a></td><input type="hidden" value="k{c}"><textarea rows="2">t{c}<</textarea><p>{c}</p>"#
            )
        };
        let shown = visible(page("\u{202e}"));
        assert!(shown.starts_with(r#"<td title="a\u202eb">"#), "{shown}");
        assert!(shown.contains("<a href=\"/x?\u{202e}\">"), "{shown}");
        assert!(shown.contains(r#"ab\u202e"c</a>"#), "{shown}");
        assert!(shown.contains("value=\"k\u{202e}\""), "{shown}");
        assert!(
            shown.contains(">t\u{202e}<</textarea><p>\\u202e</p>"),
            "{shown}"
        );
        assert_eq!(visible(page("é")), page("é"));
    }
}
