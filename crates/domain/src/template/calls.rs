//! Calls of filters, tests and functions: their arguments, each at the position of its parameter.

use super::{
    ast::{Args, Expr, FilterCall, TestCall},
    registry,
};

/// An argument, with its name if it is given by name.
pub(super) type Argument<'a> = (Option<&'a str>, Expr);

pub(super) type ParseResult<T> = Result<T, String>;

/// Puts each argument at the position of its parameter.
pub(super) fn bind(
    of: &str,
    params: &[&str],
    required: usize,
    given: Vec<Argument<'_>>,
) -> ParseResult<Args> {
    let mut args: Vec<Option<Expr>> = params.iter().map(|_| None).collect();
    for (at, (name, value)) in given.into_iter().enumerate() {
        let position = match name {
            None => at,
            Some(name) => {
                let position = params.iter().position(|param| *param == name);
                position
                    .ok_or_else(|| format!("`{of}` has no argument `{name}`: {}", takes(params)))?
            }
        };
        match args.get_mut(position) {
            Some(arg @ None) => *arg = Some(value),
            Some(Some(_)) => {
                return Err(format!(
                    "`{of}` has its argument `{}` twice",
                    params[position]
                ));
            }
            None => {
                return Err(format!("`{of}` has too many arguments: {}", takes(params)));
            }
        }
    }
    if let Some(missing) = (0..required).find(|at| args[*at].is_none()) {
        return Err(format!("`{of}` lacks its argument `{}`", params[missing]));
    }
    Ok(args.into())
}

fn takes(params: &[&str]) -> String {
    match params {
        [] => "it takes none".to_owned(),
        params => format!("it takes {}", params.join(", ")),
    }
}

/// Takes the first argument, which is a name that must be known before anything is evaluated.
fn literal(of: &str, what: &str, args: &mut Vec<Argument<'_>>) -> ParseResult<Option<Box<str>>> {
    if args.first().is_none_or(|(name, _)| name.is_some()) {
        return Ok(None);
    }
    match args.remove(0).1 {
        Expr::Text(name) => Ok(Some(name)),
        _ => Err(format!("`{of}` takes the name of {what} as a literal text")),
    }
}

pub(super) fn filter_call(name: &str, mut args: Vec<Argument<'_>>) -> ParseResult<FilterCall> {
    let (by_attribute, wanted) = match name {
        "map" => {
            let Some(filter) = literal("map", "a filter", &mut args)? else {
                let args = bind("map", &["attribute", "default"], 1, args)?;
                return Ok(FilterCall::MapAttribute(args));
            };
            if ["map", "select", "reject", "selectattr", "rejectattr"].contains(&&*filter) {
                return Err(format!("`map` cannot use the filter `{filter}`"));
            }
            return Ok(FilterCall::Map(Box::new(filter_call(&filter, args)?)));
        }
        "select" => (false, true),
        "reject" => (false, false),
        "selectattr" => (true, true),
        "rejectattr" => (true, false),
        _ => {
            let filter = registry::filter_or_fault(name)?;
            let args = bind(name, filter.params, filter.required, args)?;
            return Ok(FilterCall::Plain(filter, args));
        }
    };
    let attribute = match by_attribute {
        true if args.first().is_none_or(|(name, _)| name.is_some()) => {
            return Err(format!(
                "`{name}` takes the name of an attribute as its first argument"
            ));
        }
        true => Some(args.remove(0).1),
        false => None,
    };
    let test = literal(name, "a test", &mut args)?;
    let test = match test {
        Some(test) => Some(test_call(&test, args)?),
        None if args.is_empty() => None,
        None => {
            return Err(format!(
                "`{name}` takes the name of a test and its arguments"
            ));
        }
    };
    Ok(FilterCall::Keep {
        attribute,
        test,
        wanted,
    })
}

pub(super) fn test_call(name: &str, args: Vec<Argument<'_>>) -> ParseResult<TestCall> {
    let test = registry::test_or_fault(name)?;
    let args = bind(name, test.params, test.required, args)?;
    Ok(TestCall { test, args })
}
