//! Splits templates into literal text and expressions.

use super::lexer::{TokenKind, token_at};

/// A literal part of a template, or the source of one expression.
pub(super) enum Piece<'a> {
    Literal(&'a str),
    Code(&'a str),
}

/// Splits a template. `{{-` and `-}}` trim the text beside them; comments are left out.
pub(super) fn pieces(source: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut pieces = Vec::new();
    let mut rest = source;
    let mut trim = false;
    while !rest.is_empty() {
        let open = mark_in(rest).unwrap_or(rest.len());
        let (literal, tail) = rest.split_at(open);
        let mut literal = if trim { literal.trim_start() } else { literal };
        trim = false;
        if tail.starts_with("{{-") {
            literal = literal.trim_end();
        }
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal));
        }
        if tail.starts_with("{%") {
            return Err(
                "statements (`{% … %}`) are not available: write `{{ a if b else c }}` or use a filter"
                    .to_owned(),
            );
        } else if tail.starts_with("{#") {
            let end = tail
                .find("#}")
                .ok_or("the comment `{#` has no closing `#}`")?;
            rest = &tail[end + 2..];
        } else if let Some(inside) = tail.strip_prefix("{{") {
            let inside = inside.strip_prefix('-').unwrap_or(inside);
            let end = end_of_code(inside)
                .ok_or("an expression has no closing braces: `{{` without `}}`")?;
            let code = &inside[..end];
            trim = code.ends_with('-');
            pieces.push(Piece::Code(code.strip_suffix('-').unwrap_or(code)));
            rest = &inside[end + 2..];
        } else {
            rest = tail;
        }
    }
    Ok(pieces)
}

/// The index of the first opening mark. Searching for each mark separately would search to the end of the text
/// again after every other mark.
fn mark_in(text: &str) -> Option<usize> {
    let mut braces = text.match_indices('{').map(|(at, _)| at);
    braces.find(|at| text[at + 1..].starts_with(['{', '%', '#']))
}

/// Returns the index of the `}}` that closes the expression: it is not in a string, nor closes an object in the
/// expression.
fn end_of_code(source: &str) -> Option<usize> {
    let mut depth = 0usize;
    let (mut at, mut before) = (0, None);
    while let Some(token) = token_at(source, at, before) {
        match token.text {
            _ if token.kind != TokenKind::Symbol => {}
            "(" | "[" | "{" => depth += 1,
            "}" if depth == 0 => {
                return source[token.end..].starts_with('}').then_some(token.start);
            }
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        (at, before) = (token.end, Some(token));
    }
    None
}
