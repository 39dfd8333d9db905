//! Reads `#[object(…)]` and `#[field(…)]`.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::quote;
use syn::{
    Attribute, Error, Expr, ExprLit, ExprRange, Ident, Lit, LitStr, Meta, Path, Result, Token,
    parse::{ParseStream, Parser},
};

/// The arguments of `#[object(…)]`.
#[derive(Default)]
pub struct ObjectRules {
    pub name: Option<LitStr>,
    pub has_default: bool,
    pub before: Option<Path>,
    pub check: Option<Path>,
}

/// The value of a field that is left out.
pub enum Absent {
    /// An expression, which is part of the documentation.
    Default(Expr),
    /// The default of its type.
    TypeDefault,
    /// It must be there: the remedy.
    Required(LitStr),
}

/// The arguments of `#[field(…)]`.
#[derive(Default)]
pub struct FieldRules {
    pub bounds: Option<ExprRange>,
    pub absent: Option<Absent>,
    pub rename: Option<LitStr>,
    pub is_late: bool,
    pub omits_default: bool,
    pub items: Option<LitStr>,
    pub check: Option<Path>,
    pub read: Option<Path>,
    pub written_if: Option<Path>,
    pub pattern: Option<Expr>,
    pub example: Option<TokenStream>,
}

const FIELD_WORDS: &str = "a range, default, required, rename, late, omit_default, items, check, read, written_if, pattern, example";

pub fn object_rules(attributes: &[Attribute]) -> Result<ObjectRules> {
    let mut rules = ObjectRules::default();
    for tokens in contents(attributes, "object")? {
        let parse = |input: ParseStream<'_>| {
            while !input.is_empty() {
                let word: Ident = input.parse()?;
                match word.to_string().as_str() {
                    "name" => rules.name = Some(value(input)?),
                    "default" => rules.has_default = true,
                    "before" => rules.before = Some(value(input)?),
                    "check" => rules.check = Some(value(input)?),
                    other => {
                        let message = format!("`{other}` is none of: name, default, before, check");
                        return Err(Error::new(word.span(), message));
                    }
                }
                comma(input)?;
            }
            Ok(())
        };
        parse.parse2(tokens)?;
    }
    Ok(rules)
}

pub fn field_rules(attributes: &[Attribute]) -> Result<FieldRules> {
    let mut rules = FieldRules::default();
    for tokens in contents(attributes, "field")? {
        (|input: ParseStream<'_>| {
            while !input.is_empty() {
                field_rule(input, &mut rules)?;
                comma(input)?;
            }
            Ok(())
        })
        .parse2(tokens)?;
    }
    Ok(rules)
}

fn field_rule(input: ParseStream<'_>, rules: &mut FieldRules) -> Result<()> {
    if !is_word(input) {
        let bounds: Expr = input.parse()?;
        let Expr::Range(range) = bounds else {
            let message = format!("this is no range; a field has: {FIELD_WORDS}");
            return Err(Error::new_spanned(bounds, message));
        };
        rules.bounds = Some(range);
        return Ok(());
    }
    let word: Ident = input.parse()?;
    match word.to_string().as_str() {
        "default" if input.peek(Token![=]) => {
            rules.absent = Some(Absent::Default(value(input)?));
        }
        "default" => rules.absent = Some(Absent::TypeDefault),
        "required" => rules.absent = Some(Absent::Required(value(input)?)),
        "rename" => rules.rename = Some(value(input)?),
        "late" => rules.is_late = true,
        "omit_default" => rules.omits_default = true,
        "items" => rules.items = Some(value(input)?),
        "check" => rules.check = Some(value(input)?),
        "read" => rules.read = Some(value(input)?),
        "written_if" => rules.written_if = Some(value(input)?),
        "pattern" => rules.pattern = Some(value(input)?),
        "example" => {
            input.parse::<Token![=]>()?;
            rules.example = Some(until_comma(input)?);
        }
        other => {
            let message = format!("`{other}` is none of: {FIELD_WORDS}");
            return Err(Error::new(word.span(), message));
        }
    }
    Ok(())
}

/// Returns whether an option comes next, and not a range that begins with a name.
fn is_word(input: ParseStream<'_>) -> bool {
    let fork = input.fork();
    fork.parse::<Ident>().is_ok()
        && (fork.is_empty()
            || fork.peek(Token![,])
            || (fork.peek(Token![=]) && !fork.peek(Token![==])))
}

fn value<T: syn::parse::Parse>(input: ParseStream<'_>) -> Result<T> {
    input.parse::<Token![=]>()?;
    input.parse()
}

fn comma(input: ParseStream<'_>) -> Result<()> {
    if !input.is_empty() {
        input.parse::<Token![,]>()?;
    }
    Ok(())
}

/// JSON, as it is written.
fn until_comma(input: ParseStream<'_>) -> Result<TokenStream> {
    let mut tokens = TokenStream::new();
    while !input.is_empty() && !input.peek(Token![,]) {
        tokens.extend([input.parse::<TokenTree>()?]);
    }
    Ok(tokens)
}

fn contents(attributes: &[Attribute], name: &str) -> Result<Vec<TokenStream>> {
    let named = attributes.iter().filter(|one| one.path().is_ident(name));
    named
        .map(|one| Ok(one.meta.require_list()?.tokens.clone()))
        .collect()
}

/// The text of the doc comment, line by line.
pub fn about(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|one| match &one.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit {
                lit: Lit::Str(line),
                ..
            }) => Some(line.value()),
            _ => None,
        },
        _ => None,
    });
    let lines: Vec<_> = lines.map(|line| line.trim().to_owned()).collect();
    lines.join("\n").trim().to_owned()
}

/// A literal such as `"30s"` as an expression of a duration.
pub fn span(literal: &LitStr) -> Result<TokenStream> {
    let millis = millis(&literal.value()).ok_or_else(|| {
        let message = "must be a duration such as \"250ms\", \"30s\", \"15m\", \"24h\" or \"30d\"";
        Error::new(literal.span(), message)
    })?;
    Ok(quote!(::provost_object::Span::from_millis(#millis)))
}

fn millis(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total = 0u64;
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let end = tail.find(|c: char| c.is_ascii_digit());
        let (unit, tail) = tail.split_at(end.unwrap_or(tail.len()));
        let scale = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(scale)?)?;
        rest = tail;
    }
    (!text.is_empty()).then_some(total)
}

/// The bounds, as an expression.
pub fn bounds(range: Option<&ExprRange>) -> Result<TokenStream> {
    let Some(range) = range else {
        return Ok(quote!(::provost_object::Bounds::ANY));
    };
    let side = |side: &Option<Box<Expr>>| match side.as_deref() {
        None => Ok(quote!()),
        Some(expr) => match text_of(expr) {
            Some(literal) => span(literal),
            None => Ok(quote!(#expr)),
        },
    };
    let (start, limits, end) = (side(&range.start)?, &range.limits, side(&range.end)?);
    Ok(quote!(::provost_object::Bounds::from(#start #limits #end)))
}

pub fn text_of(expr: &Expr) -> Option<&LitStr> {
    match expr {
        Expr::Lit(ExprLit {
            lit: Lit::Str(literal),
            ..
        }) => Some(literal),
        _ => None,
    }
}

fn number_of(expr: &Expr) -> Option<u64> {
    match expr {
        Expr::Lit(ExprLit {
            lit: Lit::Int(literal),
            ..
        }) => literal.base10_parse().ok(),
        Expr::Lit(ExprLit {
            lit: Lit::Str(literal),
            ..
        }) => millis(&literal.value()),
        _ => None,
    }
}

/// Refuses a default that the bounds do not allow, as far as both are literals.
pub fn default_within(default: &Expr, range: &ExprRange) -> Result<()> {
    let Some(value) = number_of(default) else {
        return Ok(());
    };
    let side = |side: &Option<Box<Expr>>| side.as_deref().and_then(number_of);
    let is_below = side(&range.start).is_some_and(|least| value < least);
    let is_above = side(&range.end).is_some_and(|most| value > most);
    match is_below || is_above {
        true => Err(Error::new_spanned(
            default,
            "this default is outside the bounds of the field",
        )),
        false => Ok(()),
    }
}

/// An error at the name of a field.
pub fn at(name: &Ident, message: impl std::fmt::Display) -> Error {
    Error::new(name.span(), message)
}

/// Where nothing better is known.
pub fn everywhere(message: &str) -> Error {
    Error::new(Span::call_site(), message)
}
