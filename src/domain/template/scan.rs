//! Reads templates as text: where the expressions are, what they name, and where they multiply.
//! What an expression means is minijinja's business alone.

use super::Reads;

/// A literal stretch of a template, or the source of one expression.
pub(super) enum Piece<'a> {
    Literal(&'a str),
    Code(&'a str),
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Token<'a> {
    pub kind: Kind,
    /// Of a string: what is between the quotes, escapes and all.
    pub text: &'a str,
    start: usize,
    end: usize,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Kind {
    Name,
    Text,
    Number,
    Symbol,
}

impl Token<'_> {
    fn is(&self, symbol: &str) -> bool {
        self.kind == Kind::Symbol && self.text == symbol
    }

    fn is_word(&self, words: &[&str]) -> bool {
        self.kind == Kind::Name && words.contains(&self.text)
    }
}

/// Splits a template. `{{-` and `-}}` trim the text beside them; comments are left out.
pub(super) fn pieces(source: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut pieces = Vec::new();
    let mut rest = source;
    let mut trim = false;
    while !rest.is_empty() {
        let open = ["{{", "{%", "{#"]
            .into_iter()
            .filter_map(|mark| rest.find(mark))
            .min()
            .unwrap_or(rest.len());
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
                .ok_or("the comment `{#` is not closed by `#}`")?;
            rest = &tail[end + 2..];
        } else if let Some(inside) = tail.strip_prefix("{{") {
            let inside = inside.strip_prefix('-').unwrap_or(inside);
            let end =
                end_of_code(inside).ok_or("an expression is not closed: `{{` without `}}`")?;
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

/// Where the `}}` is that closes the expression: behind strings and the braces of its own objects.
fn end_of_code(source: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut at = 0;
    while let Some(token) = token_at(source, at) {
        match token.text {
            _ if token.kind != Kind::Symbol => {}
            "(" | "[" | "{" => depth += 1,
            "}" if depth == 0 => {
                return source[token.end..].starts_with('}').then_some(token.start);
            }
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        at = token.end;
    }
    None
}

pub(super) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(token) = token_at(source, at) {
        at = token.end;
        tokens.push(token);
    }
    tokens
}

fn token_at(source: &str, at: usize) -> Option<Token<'_>> {
    let start = at + source[at..].find(|c: char| !c.is_whitespace())?;
    let rest = &source[start..];
    let first = rest.chars().next()?;
    let while_in = |allowed: fn(char) -> bool| rest.find(|c| !allowed(c)).unwrap_or(rest.len());
    let word = |c: char| c == '_' || c.is_alphanumeric();
    let (kind, length, text) = if first == '_' || first.is_alphabetic() {
        let length = while_in(word);
        (Kind::Name, length, &rest[..length])
    } else if first.is_ascii_digit() {
        let length = while_in(word);
        (Kind::Number, length, &rest[..length])
    } else if first == '"' || first == '\'' {
        let length = quoted(rest, first);
        let text = &rest[1..];
        (
            Kind::Text,
            length,
            text.get(..length.saturating_sub(2)).unwrap_or(text),
        )
    } else {
        let two = ["**", "==", "!=", "<=", ">=", "//"];
        let length = if two.iter().any(|symbol| rest.starts_with(symbol)) {
            2
        } else {
            first.len_utf8()
        };
        (Kind::Symbol, length, &rest[..length])
    };
    Some(Token {
        kind,
        text,
        start,
        end: start + length,
    })
}

/// The length of a string with its quotes; one that is not closed runs to the end.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (index, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return index + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The steps that an expression names, after a look at what no evaluation could find: filters and
/// tests that do not exist, and parts that no task has.
pub(super) fn reads(
    tokens: &[Token<'_>],
    unknown_filter: impl Fn(&str) -> bool,
    unknown_test: impl Fn(&str) -> bool,
) -> Result<Reads, String> {
    let mut reads = Reads::default();
    for (index, token) in tokens.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| &tokens[before]);
        let after = &tokens[index + 1..];
        if token.is("|") {
            if let [name, ..] = after
                && name.kind == Kind::Name
                && unknown_filter(name.text)
            {
                return Err(format!("there is no filter `{}`", name.text));
            }
            continue;
        }
        if token.kind != Kind::Name || before.is_some_and(|before| before.is(".")) {
            continue;
        }
        if token.text == "is" {
            let test = match after {
                [not, test, ..] if not.is_word(&["not"]) => Some(test),
                [test, ..] => Some(test),
                [] => None,
            };
            if let Some(test) = test
                && test.kind == Kind::Name
                && unknown_test(test.text)
            {
                return Err(format!("there is no test `{}`", test.text));
            }
        }
        let is_called_like = before.is_some_and(|before| before.is("|"))
            || matches!(after, [assign, ..] if assign.is("="));
        if is_called_like {
            continue;
        }
        match token.text {
            "steps" => {
                let (step, behind) = part(after).ok_or(
                    "`steps` stands alone: name the step, as in `steps.reserve.output` or `steps['a-b'].output`",
                )?;
                if let Some((what, _)) = part(behind)
                    && what != "output"
                {
                    return Err(format!(
                        "a step has no `{what}` here: read its `output`, as in `steps.{step}.output`"
                    ));
                }
                reads.steps.insert(step.to_owned());
            }
            "task" => {
                if let Some((what, _)) = part(after)
                    && !["id", "key", "labels"].contains(&what)
                {
                    return Err(format!(
                        "a task has no `{what}` here: there are `task.id`, `task.key` and `task.labels`"
                    ));
                }
            }
            _ => {}
        }
    }
    Ok(reads)
}

/// Reads `.name` or `['name']`, and gives what stands behind.
fn part<'t, 'a>(tokens: &'t [Token<'a>]) -> Option<(&'a str, &'t [Token<'a>])> {
    match tokens {
        [dot, name, behind @ ..] if dot.is(".") && name.kind == Kind::Name => {
            Some((name.text, behind))
        }
        [open, name, close, behind @ ..]
            if open.is("[") && name.kind == Kind::Text && close.is("]") =>
        {
            Some((name.text, behind))
        }
        _ => None,
    }
}

/// Keeps `*` to numbers: both factors are raised to the first power, which leaves a number as it is and
/// refuses everything else. minijinja's `*` also repeats texts and lists, up to 100 MB by one instruction.
/// `None` where nothing is multiplied.
pub(super) fn guard_products(source: &str, tokens: &[Token<'_>]) -> Option<String> {
    const GUARD: &str = " ** 1 ";
    const OPERATORS: [&str; 16] = [
        "+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "=", ",", ":",
    ];
    const WORDS: [&str; 6] = ["and", "or", "in", "not", "if", "else"];
    let mut guarded = String::new();
    let mut copied = 0;
    // For each open bracket: whether the right factor of a product is under way in it.
    let mut factors = vec![false];
    let mut expects_operand = true;
    let mut is_attribute = false;
    for token in tokens {
        let opens = ["(", "[", "{"].iter().any(|bracket| token.is(bracket));
        let closes = [")", "]", "}"].iter().any(|bracket| token.is(bracket));
        let operates = OPERATORS.iter().any(|operator| token.is(operator))
            || token.is_word(&WORDS) && !is_attribute;
        // Where an operand is expected, `-` is a sign and `*` passes a list as arguments.
        let ends_operand = closes || operates && !expects_operand;
        let multiplies = token.is("*") && ends_operand;
        if ends_operand && let Some(factor) = factors.last_mut() {
            if *factor || multiplies {
                guarded.push_str(&source[copied..token.start]);
                guarded.push_str(GUARD);
                copied = token.start;
            }
            *factor = multiplies;
        }
        if opens {
            factors.push(false);
        } else if closes {
            factors.pop();
        }
        expects_operand = opens || operates || token.is("**");
        is_attribute = token.is(".");
    }
    guarded.push_str(&source[copied..]);
    if factors.last() == Some(&true) {
        guarded.push_str(GUARD);
    }
    (guarded != source).then_some(guarded)
}
