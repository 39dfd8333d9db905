//! Parses the source of an expression into its tree, with hints if the author writes another language.

use super::{
    Budget,
    ast::{Chain, Comparison, Expr, FilterCall, If, Link, LinkKind, Operator, TestCall},
    calls::{Argument, ParseResult, bind, filter_call, test_call},
    lexer::{Token, TokenKind, token_at, unescape},
    number::{Arithmetic, rounding},
    registry,
};

/// The deepest nesting of brackets, `not`, `-` and `… if … else …`: they are evaluated by recursion, which must fit
/// into the thread's stack.
pub(super) const DEEPEST: usize = 40;

/// Parses an expression. The budget is charged only for numbers: everything else takes time in proportion to the
/// source.
pub(super) fn parse(source: &str, budget: &Budget) -> Result<Expr, String> {
    let mut parser = Parser {
        source,
        budget,
        current: token_at(source, 0, None),
        end: 0,
        depth: 0,
    };
    let expr = parser.expression()?;
    match parser.current {
        None => Ok(expr),
        Some(token) => Err(parser.unexpected(token)),
    }
}

struct Parser<'a> {
    source: &'a str,
    budget: &'a Budget,
    current: Option<Token<'a>>,
    /// The index at which the token before the current one ends.
    end: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<Token<'a>> {
        let token = self.current?;
        self.end = token.end;
        self.current = token_at(self.source, token.end, Some(token));
        Some(token)
    }

    fn is(&self, symbol: &str) -> bool {
        self.current.is_some_and(|token| token.is(symbol))
    }

    fn is_word(&self, word: &str) -> bool {
        self.current.is_some_and(|token| token.is_word(word))
    }

    fn skip(&mut self, symbol: &str) -> bool {
        let is_it = self.is(symbol);
        if is_it {
            self.next();
        }
        is_it
    }

    fn skip_word(&mut self, word: &str) -> bool {
        let is_it = self.is_word(word);
        if is_it {
            self.next();
        }
        is_it
    }

    fn expect(&mut self, symbol: &str) -> ParseResult<()> {
        if self.skip(symbol) {
            return Ok(());
        }
        Err(match self.current {
            Some(token) => format!("{}; expected `{symbol}`", self.unexpected(token)),
            None => format!(
                "`{}` is not an expression: it ends before its `{symbol}`",
                self.source
            ),
        })
    }

    fn fault(&self, why: impl std::fmt::Display) -> String {
        format!("`{}` is not an expression: {why}", self.source)
    }

    fn unexpected(&self, token: Token<'_>) -> String {
        let written = &self.source[token.start..token.end];
        let before = self.source[..token.start].trim_end();
        self.fault(match written {
            _ if token.kind == TokenKind::Unclosed => "a text has no closing quote".to_owned(),
            "&&" => "write `and` for `&&`".to_owned(),
            "||" => "write `or` for `||`".to_owned(),
            "|" if before.ends_with('|') => "write `or` for `||`".to_owned(),
            "!" => "write `not` for `!`".to_owned(),
            "?" => "write `a if condition else b` for `condition ? a : b`".to_owned(),
            "=" if before.ends_with("==") || before.ends_with("!=") => {
                "compare values of any type with `==` and `!=`".to_owned()
            }
            "=" => "write `==` to compare".to_owned(),
            "$" => "write `{{ … }}` for `${…}`, and names without `$`".to_owned(),
            "{" | "}" => {
                format!("`{written}` is not allowed here: write the expression without braces")
            }
            _ => format!("`{written}` is not allowed after `{before}`"),
        })
    }

    /// Parses one level deeper, if the bound allows it.
    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> ParseResult<T>) -> ParseResult<T> {
        if self.depth == DEEPEST {
            return Err(self.fault(format_args!(
                "it is nested deeper than {DEEPEST} levels: compute it in a service"
            )));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Parses `a if b else c`.
    fn expression(&mut self) -> ParseResult<Expr> {
        self.deeper(|parser| {
            let mut expr = parser.or()?;
            if parser.skip_word("if") {
                let test = parser.or()?;
                let otherwise = match parser.skip_word("else") {
                    true => Some(parser.expression()?),
                    false => None,
                };
                expr = Expr::If(Box::new(If {
                    then: expr,
                    test,
                    otherwise,
                }));
            }
            Ok(expr)
        })
    }

    fn or(&mut self) -> ParseResult<Expr> {
        let first = self.and()?;
        let mut all = vec![first];
        while self.skip_word("or") {
            all.push(self.and()?);
        }
        Ok(one_or(all, Expr::Or))
    }

    fn and(&mut self) -> ParseResult<Expr> {
        let first = self.not()?;
        let mut all = vec![first];
        while self.skip_word("and") {
            all.push(self.not()?);
        }
        Ok(one_or(all, Expr::And))
    }

    fn not(&mut self) -> ParseResult<Expr> {
        if self.skip_word("not") {
            return self.deeper(|parser| Ok(Expr::Not(Box::new(parser.not()?))));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> ParseResult<Expr> {
        let first = self.binary(0)?;
        let mut rest = Vec::new();
        while let Some(token) = self.current {
            let comparison = match token.text {
                _ if token.is_word("in") => Comparison::In,
                _ if token.is_word("not") => {
                    self.next();
                    if !self.is_word("in") {
                        return Err(self.fault("after a value, `not` must be followed by `in`"));
                    }
                    Comparison::NotIn
                }
                _ if token.kind != TokenKind::Symbol => break,
                "==" => Comparison::Equal,
                "!=" => Comparison::NotEqual,
                "<" => Comparison::Less,
                "<=" => Comparison::LessOrEqual,
                ">" => Comparison::Greater,
                ">=" => Comparison::GreaterOrEqual,
                _ => break,
            };
            self.next();
            rest.push((comparison, self.binary(0)?));
        }
        Ok(match rest.is_empty() {
            true => first,
            false => Expr::Compare(Box::new(first), rest.into()),
        })
    }

    /// Parses binary operators level by level, from the weakest binding: `+ -`, `~`, `* / // %`, `**`.
    fn binary(&mut self, level: usize) -> ParseResult<Expr> {
        const LEVELS: [&[(&str, Operator)]; 4] = [
            &[
                ("+", Operator::Arithmetic(Arithmetic::Add)),
                ("-", Operator::Arithmetic(Arithmetic::Subtract)),
            ],
            &[("~", Operator::Concatenate)],
            &[
                ("*", Operator::Arithmetic(Arithmetic::Multiply)),
                ("/", Operator::Arithmetic(Arithmetic::Divide)),
                ("//", Operator::Arithmetic(Arithmetic::FloorDivide)),
                ("%", Operator::Arithmetic(Arithmetic::Remainder)),
            ],
            &[("**", Operator::Arithmetic(Arithmetic::Power))],
        ];
        let Some(operators) = LEVELS.get(level) else {
            return self.filtered();
        };
        let first = self.binary(level + 1)?;
        let mut rest = Vec::new();
        while let Some((_, operator)) = operators.iter().find(|(symbol, _)| self.is(symbol)) {
            self.next();
            rest.push((*operator, self.binary(level + 1)?));
        }
        Ok(match rest.is_empty() {
            true => first,
            false => Expr::Binary(Box::new(first), rest.into()),
        })
    }

    /// Parses a value with all links after it: members, items, filters, tests.
    fn filtered(&mut self) -> ParseResult<Expr> {
        let start = self.start();
        let (base, mut links) = self.signed()?;
        loop {
            let what = if self.skip("|") {
                LinkKind::Filter(self.filter()?)
            } else if self.skip_word("is") {
                let wanted = !self.skip_word("not");
                LinkKind::Is(self.test()?, wanted)
            } else {
                break;
            };
            links.push(self.link(start, what));
        }
        Ok(chain(base, links))
    }

    fn start(&self) -> usize {
        self.current.map_or(self.source.len(), |token| token.start)
    }

    fn link(&self, start: usize, what: LinkKind) -> Link {
        Link {
            what,
            span: (start as u16, self.end as u16),
        }
    }

    fn signed(&mut self) -> ParseResult<(Expr, Vec<Link>)> {
        if self.skip("-") {
            let (base, links) = self.deeper(Self::signed)?;
            return Ok((Expr::Negate(Box::new(chain(base, links))), Vec::new()));
        }
        let start = self.start();
        let base = self.primary()?;
        let mut links = Vec::new();
        loop {
            let what = if self.skip(".") {
                match self.next() {
                    Some(token) if token.kind == TokenKind::Name => {
                        LinkKind::Member(token.text.into())
                    }
                    Some(token) if token.kind == TokenKind::Number => {
                        LinkKind::Item(number(token.text, self.budget)?)
                    }
                    _ => {
                        return Err(
                            self.fault("a `.` must be followed by a name, as in `input.total`")
                        );
                    }
                }
            } else if self.skip("[") {
                self.subscript()?
            } else if self.is("(") {
                return Err(
                    self.fault("values have no methods: use a filter, as in `input.name | upper`")
                );
            } else {
                break;
            };
            links.push(self.link(start, what));
        }
        Ok((base, links))
    }

    fn subscript(&mut self) -> ParseResult<LinkKind> {
        let mut parts = [None, None, None];
        let mut colons = 0;
        loop {
            if self.is(":") && colons < 2 {
                self.next();
                colons += 1;
            } else if self.is("]") {
                break;
            } else if parts[colons].is_none() {
                parts[colons] = Some(self.expression()?);
            } else {
                break;
            }
        }
        self.expect("]")?;
        if colons > 0 {
            return Ok(LinkKind::Slice(Box::new(parts)));
        }
        let [item, ..] = parts;
        let item = item.ok_or_else(|| self.fault("`[]` is empty: give an index or a name"))?;
        Ok(match item {
            Expr::Text(name) => LinkKind::Member(name),
            item => LinkKind::Item(item),
        })
    }

    fn primary(&mut self) -> ParseResult<Expr> {
        let Some(token) = self.next() else {
            return Err(self.fault("it ends where a value is expected"));
        };
        match (token.kind, token.text) {
            (TokenKind::Text, text) => Ok(Expr::Text(
                unescape(text).map_err(|why| self.fault(why))?.into(),
            )),
            (TokenKind::Number, text) => number(text, self.budget).map_err(|why| self.fault(why)),
            (TokenKind::Name, name) => self.name(name),
            (TokenKind::Symbol, "(") => {
                let inner = self.expression()?;
                if self.is(",") {
                    return Err(self.fault("write a list in brackets: `[a, b]`"));
                }
                self.expect(")")?;
                Ok(inner)
            }
            (TokenKind::Symbol, "[") => {
                let mut items = Vec::new();
                while !self.skip("]") {
                    items.push(self.expression()?);
                    if !self.is("]") {
                        self.expect(",")?;
                    }
                }
                Ok(Expr::List(items.into()))
            }
            (TokenKind::Symbol, "{") => {
                let mut members = Vec::new();
                while !self.skip("}") {
                    let key = self.expression()?;
                    self.expect(":")?;
                    members.push((key, self.expression()?));
                    if !self.is("}") {
                        self.expect(",")?;
                    }
                }
                Ok(Expr::Map(members.into()))
            }
            _ => Err(self.unexpected(token)),
        }
    }

    fn name(&mut self, name: &str) -> ParseResult<Expr> {
        match name {
            "true" | "True" => return Ok(Expr::Bool(true)),
            "false" | "False" => return Ok(Expr::Bool(false)),
            "none" | "None" => return Ok(Expr::Null),
            "null" | "nil" | "undefined" => {
                return Err(self.fault(format_args!("write `none` for `{name}`")));
            }
            "and" | "or" | "not" | "in" | "is" | "if" | "else" => {
                return Err(self.fault(format_args!(
                    "`{name}` is not allowed where a value is expected"
                )));
            }
            _ => {}
        }
        if !self.is("(") {
            return Ok(Expr::Name(name.into()));
        }
        let function = registry::function_or_fault(name)?;
        let args = self.arguments()?;
        if function.is_dict() {
            let mut members = Vec::new();
            for (name, value) in args {
                let name = name.ok_or_else(|| {
                    self.fault("`dict` takes named values, as in `dict(a=1)`; or write `{'a': 1}`")
                })?;
                members.push((Expr::Text(name.into()), value));
            }
            return Ok(Expr::Map(members.into()));
        }
        let args = bind(name, function.params, function.required, args)?;
        Ok(Expr::Call(function, args))
    }

    /// Parses the arguments in their brackets, each with its name if it has one. Without brackets there are no
    /// arguments.
    fn arguments(&mut self) -> ParseResult<Vec<Argument<'a>>> {
        let mut args = Vec::new();
        if !self.skip("(") {
            return Ok(args);
        }
        while !self.skip(")") {
            if self.is("*") || self.is("**") {
                return Err(self.fault("write arguments one by one: `*` is not supported"));
            }
            let mut name = None;
            if let Some(token) = self.current
                && token.kind == TokenKind::Name
                && token_at(self.source, token.end, Some(token)).is_some_and(|next| next.is("="))
            {
                self.next();
                self.next();
                name = Some(token.text);
            } else if args
                .last()
                .is_some_and(|(name, _): &Argument<'_>| name.is_some())
            {
                return Err(self.fault("an argument without a name follows one with a name"));
            }
            args.push((name, self.expression()?));
            if !self.is(")") {
                self.expect(",")?;
            }
        }
        Ok(args)
    }

    fn named(&mut self, what: &str) -> ParseResult<&'a str> {
        match self.next() {
            Some(token) if token.kind == TokenKind::Name => Ok(token.text),
            Some(token) if token.is("|") => Err(self.fault("write `or` for `||`")),
            _ => Err(self.fault(format_args!("the name of a {what} is missing"))),
        }
    }

    fn filter(&mut self) -> ParseResult<FilterCall> {
        let name = self.named("filter")?;
        let args = self.arguments()?;
        filter_call(name, args)
    }

    fn test(&mut self) -> ParseResult<TestCall> {
        let name = self.named("test")?;
        let takes_one = self.current.is_some_and(|token| match token.kind {
            TokenKind::Name => {
                !["and", "or", "else", "is", "if", "in", "not"].contains(&token.text)
            }
            TokenKind::Text | TokenKind::Number => true,
            TokenKind::Symbol => ["-", "[", "{"].contains(&token.text),
            TokenKind::Unclosed => false,
        });
        let test = registry::test_or_fault(name)?;
        let args = if takes_one && !test.params.is_empty() {
            let (base, links) = self.signed()?;
            vec![(None, chain(base, links))]
        } else {
            self.arguments()?
        };
        test_call(name, args)
    }
}

fn one_or(mut all: Vec<Expr>, several: fn(Box<[Expr]>) -> Expr) -> Expr {
    match all.pop() {
        Some(one) if all.is_empty() => one,
        last => {
            all.extend(last);
            several(all.into())
        }
    }
}

fn chain(base: Expr, links: Vec<Link>) -> Expr {
    if links.is_empty() {
        return base;
    }
    Expr::Chain(Box::new(Chain {
        base,
        links: links.into(),
    }))
}

fn number(text: &str, budget: &Budget) -> ParseResult<Expr> {
    let plain = text.replace('_', "");
    let radix = match plain.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => 16,
        Some("0o") => 8,
        Some("0b") => 2,
        _ => 10,
    };
    let whole = match radix {
        10 => plain.parse().ok(),
        radix => i128::from_str_radix(&plain[2..], radix).ok(),
    };
    if let Some(whole) = whole {
        return Ok(Expr::Int(whole));
    }
    if plain.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "`{text}` is a whole number that 128 bits do not hold: write it with an exponent if it may be rounded"
        ));
    }
    if budget.charge(rounding(&plain)).is_err() {
        return Err("its numbers are too long: write fewer digits".to_owned());
    }
    match plain.parse::<f64>() {
        Ok(float) if float.is_finite() && radix == 10 => Ok(Expr::Float(float)),
        _ => Err(format!("`{text}` is not a number that supports arithmetic")),
    }
}
