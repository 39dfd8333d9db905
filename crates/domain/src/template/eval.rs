//! Evaluates an expression. Every node charges the budget before it does anything, and recursion is bounded by the
//! depth that the parser allows.

use super::{
    Budget, Scope,
    ast::{Args, Chain, Comparison, Expr, FilterCall, Link, LinkKind, Operator, TestCall},
    attribute::Path,
    budget::NODE,
    compare,
    eval_error::{EvalResult, other},
    indexing, judging,
    number::{Number, negate},
    texts::text_of,
    value::{ChargedVec, Value},
    write::Out,
};

/// The most parameters of a filter, test or function.
const PARAMS: usize = 3;

pub(super) struct Evaluation<'v, 's> {
    pub source: &'v str,
    pub scope: &'s Scope<'v>,
    pub budget: &'s Budget,
}

impl<'v> Evaluation<'v, '_> {
    pub fn value(&self, expr: &'v Expr) -> EvalResult<Value<'v>> {
        let budget = self.budget;
        budget.charge(NODE)?;
        Ok(match expr {
            Expr::Null => Value::Null,
            Expr::Bool(truth) => Value::Bool(*truth),
            Expr::Int(number) => Value::Number(Number::int(*number)),
            Expr::Float(number) => Value::Number(Number::Float(*number)),
            Expr::Text(text) => Value::Text(text),
            Expr::List(items) => {
                budget.allocate(items.len() * size_of::<Value<'_>>())?;
                let items = items.iter().map(|item| self.value(item));
                Value::list(items.collect::<EvalResult<_>>()?)
            }
            Expr::Map(members) => {
                let mut map = ChargedVec::new(budget);
                for (key, value) in members {
                    let key = self.value(key)?;
                    if key.as_text().is_none() {
                        return other(format!(
                            "the names of an object's members are texts, not {}",
                            key.kind()
                        ));
                    }
                    map.push((key, self.value(value)?))?;
                }
                Value::Map(map.items.into())
            }
            Expr::Name(name) => self.scope.named(name, budget)?,
            Expr::Chain(chain) => self.chain(chain)?,
            Expr::Not(inner) => Value::Bool(!self.value(inner)?.truth()?),
            Expr::Negate(inner) => {
                let value = self.value(inner)?.present()?;
                match value.as_number() {
                    Some(number) => Value::Number(negate(number)?),
                    None => return other(format!("`-` takes a number, not {}", value.kind())),
                }
            }
            Expr::And(all) => self.until(all, false)?,
            Expr::Or(all) => self.until(all, true)?,
            Expr::Compare(first, rest) => Value::Bool(self.compare(first, rest)?),
            Expr::Binary(first, rest) => self.binary(first, rest)?,
            Expr::If(choice) => match self.value(&choice.test)?.truth()? {
                true => self.value(&choice.then)?,
                false => match &choice.otherwise {
                    Some(otherwise) => self.value(otherwise)?,
                    None => Value::Missing(""),
                },
            },
            Expr::Call(function, args) => {
                self.with(args, |given| (function.make)(given, budget))?
            }
        })
    }

    /// Returns the first value whose truth is `wanted`, or the last value.
    fn until(&self, all: &'v [Expr], wanted: bool) -> EvalResult<Value<'v>> {
        let mut last = Value::Null;
        for expr in all {
            last = self.value(expr)?;
            if last.truth()? == wanted {
                break;
            }
        }
        Ok(last)
    }

    fn with<T>(
        &self,
        args: &'v Args,
        call: impl FnOnce(&[Option<Value<'v>>]) -> EvalResult<T>,
    ) -> EvalResult<T> {
        let mut given: [Option<Value<'v>>; PARAMS] = [const { None }; PARAMS];
        for (position, arg) in given.iter_mut().zip(args) {
            if let Some(arg) = arg {
                *position = Some(self.value(arg)?);
            }
        }
        call(&given[..args.len().min(PARAMS)])
    }

    fn compare(&self, first: &'v Expr, rest: &'v [(Comparison, Expr)]) -> EvalResult<bool> {
        let mut left = self.value(first)?.present()?;
        for (comparison, expr) in rest {
            let right = self.value(expr)?.present()?;
            let budget = self.budget;
            let holds = match comparison {
                Comparison::Equal => compare::equal(&left, &right, budget)?,
                Comparison::NotEqual => !compare::equal(&left, &right, budget)?,
                Comparison::Less => compare::ordered(&left, &right, budget)?.is_lt(),
                Comparison::LessOrEqual => compare::ordered(&left, &right, budget)?.is_le(),
                Comparison::Greater => compare::ordered(&left, &right, budget)?.is_gt(),
                Comparison::GreaterOrEqual => compare::ordered(&left, &right, budget)?.is_ge(),
                Comparison::In => judging::contains(&right, &left, budget)?,
                Comparison::NotIn => !judging::contains(&right, &left, budget)?,
            };
            if !holds {
                return Ok(false);
            }
            left = right;
        }
        Ok(true)
    }

    fn binary(&self, first: &'v Expr, rest: &'v [(Operator, Expr)]) -> EvalResult<Value<'v>> {
        let mut left = self.value(first)?.present()?;
        let mut rest = rest.iter().peekable();
        while let Some((operator, expr)) = rest.next() {
            let right = self.value(expr)?.present()?;
            self.budget.charge(NODE)?;
            left = match operator {
                Operator::Arithmetic(arithmetic) => {
                    let is_sum = arithmetic.symbol() == "+";
                    match (left.as_number(), right.as_number()) {
                        (Some(a), Some(b)) => Value::Number(arithmetic.apply(a, b)?),
                        _ if is_sum && left.is_list() && right.is_list() => {
                            let mut joined = ChargedVec::new(self.budget);
                            for list in [&left, &right] {
                                for item in list.iter(self.budget)? {
                                    joined.push(item.take(self.budget)?)?;
                                }
                            }
                            Value::list(joined.items)
                        }
                        _ if is_sum && left.as_text().is_some() && right.as_text().is_some() => {
                            self.joined(vec![left, right])?
                        }
                        _ => {
                            return other(format!(
                                "`{}` takes two numbers, not {} and {}; join texts with `~`",
                                arithmetic.symbol(),
                                left.kind(),
                                right.kind()
                            ));
                        }
                    }
                }
                // A chain of `~` is concatenated once, not link by link.
                Operator::Concatenate => {
                    let mut parts = vec![left, right];
                    while let Some((_, expr)) =
                        rest.next_if(|(operator, _)| *operator == Operator::Concatenate)
                    {
                        parts.push(self.value(expr)?.present()?);
                    }
                    self.joined(parts)?
                }
            };
        }
        Ok(left)
    }

    fn joined(&self, parts: Vec<Value<'v>>) -> EvalResult<Value<'v>> {
        let mut out = Out::new(self.budget);
        for part in &parts {
            out.interpolate(part)?;
        }
        Value::built(&out.text, self.budget)
    }

    fn chain(&self, chain: &'v Chain) -> EvalResult<Value<'v>> {
        match self.step(chain)? {
            Some((value, taken)) => self.links(value, &chain.links[taken..]),
            None => self.links(self.value(&chain.base)?, &chain.links),
        }
    }

    /// Evaluates a member of `steps.<name>` without making an object of all steps.
    fn step(&self, chain: &'v Chain) -> EvalResult<Option<(Value<'v>, usize)>> {
        let Expr::Name(name) = &chain.base else {
            return Ok(None);
        };
        let Some(LinkKind::Member(member)) = chain.links.first().map(|link| &link.what) else {
            return Ok(None);
        };
        match &**name {
            "steps" => {
                let Some((step, output)) = self.scope.step(member, self.budget)? else {
                    return Ok(Some((Value::Missing(chain.links[0].named(self.source)), 1)));
                };
                let (scope, budget) = (self.scope, self.budget);
                Ok(Some(match chain.links.get(1).map(|link| &link.what) {
                    Some(LinkKind::Member(what)) if **what == *"output" => {
                        (scope.output_value(output, budget)?, 2)
                    }
                    Some(LinkKind::Member(what)) => {
                        let found = scope.step_value(step, output, what, budget)?;
                        let path = chain.links[1].named(self.source);
                        (found.unwrap_or(Value::Missing(path)), 2)
                    }
                    _ => (scope.step_object(step, output, budget)?, 1),
                }))
            }
            "task" => {
                let part = self.scope.task_value(member, self.budget)?;
                let part = part.unwrap_or(Value::Missing(chain.links[0].named(self.source)));
                Ok(Some((part, 1)))
            }
            _ => Ok(None),
        }
    }

    fn links(&self, mut value: Value<'v>, links: &'v [Link]) -> EvalResult<Value<'v>> {
        let budget = self.budget;
        for link in links {
            budget.charge(NODE)?;
            let found = match &link.what {
                LinkKind::Member(name) => value.present()?.member(name, budget)?,
                LinkKind::Item(item) => {
                    let (value, item) = (value.present()?, self.value(item)?.present()?);
                    match (item.as_text(), item.as_number().and_then(Number::as_int)) {
                        (Some(name), _) => value.member(name, budget)?,
                        (_, Some(at)) if value.is_list() || value.as_text().is_some() => {
                            indexing::item_at(&value, at, budget)?
                        }
                        _ => None,
                    }
                }
                LinkKind::Slice(parts) => {
                    let value = value.present()?;
                    let mut given = [const { None }; 3];
                    for (position, part) in given.iter_mut().zip(parts.iter()) {
                        if let Some(part) = part {
                            *position = Some(self.value(part)?);
                        }
                    }
                    Some(indexing::slice(&value, &given, budget)?)
                }
                LinkKind::Filter(call) => Some(self.filter(value, call)?),
                LinkKind::Is(call, wanted) => {
                    Some(Value::Bool(self.test(&value, call)? == *wanted))
                }
            };
            value = match found {
                None | Some(Value::Missing("")) => Value::Missing(link.named(self.source)),
                Some(found) => found,
            };
        }
        Ok(value)
    }

    fn test(&self, value: &Value<'v>, call: &'v TestCall) -> EvalResult<bool> {
        self.with(&call.args, |given| {
            (call.test.judge)(value, given, self.budget)
        })
    }

    fn filter(&self, value: Value<'v>, call: &'v FilterCall) -> EvalResult<Value<'v>> {
        let budget = self.budget;
        match call {
            FilterCall::Plain(filter, args) => {
                self.with(args, |given| (filter.call)(value, given, budget))
            }
            // The arguments are evaluated once, not for each item.
            FilterCall::Map(call) => match &**call {
                FilterCall::Plain(filter, args) => self.with(args, |given| {
                    let mut mapped = ChargedVec::new(budget);
                    for item in value.iter(budget)? {
                        budget.charge(NODE)?;
                        mapped.push((filter.call)(item.take(budget)?, given, budget)?)?;
                    }
                    Ok(Value::list(mapped.items))
                }),
                _ => other("`map` takes a filter for single values"),
            },
            FilterCall::MapAttribute(args) => self.with(args, |given| {
                let (name, default) = (given[0].clone(), given.get(1).cloned().flatten());
                let name = attribute_name(name, budget)?;
                let path = Path::parse(name.as_text().unwrap_or_default(), budget)?;
                let mut mapped = ChargedVec::new(budget);
                for item in value.iter(budget)? {
                    let item = item.take(budget)?;
                    let part = path.of(item, budget)?;
                    mapped.push(match (part, &default) {
                        (Value::Missing(_), Some(default)) => default.clone(),
                        (part, _) => part,
                    })?;
                }
                Ok(Value::list(mapped.items))
            }),
            FilterCall::Keep {
                attribute,
                test,
                wanted,
            } => {
                let name = match attribute {
                    Some(name) => Some(attribute_name(Some(self.value(name)?), budget)?),
                    None => None,
                };
                let name = name.as_ref().and_then(Value::as_text);
                let path = name.map(|name| Path::parse(name, budget)).transpose()?;
                let keep = |given: &[Option<Value<'v>>]| {
                    let mut kept = ChargedVec::new(budget);
                    for item in value.iter(budget)? {
                        budget.charge(NODE)?;
                        let item = item.take(budget)?;
                        let part = match &path {
                            Some(path) => path.of(item.clone(), budget)?,
                            None => item.clone(),
                        };
                        let holds = match test {
                            Some(call) => (call.test.judge)(&part, given, budget)?,
                            None => !part.is_missing() && part.truth()?,
                        };
                        if holds == *wanted {
                            kept.push(item)?;
                        }
                    }
                    Ok(Value::list(kept.items))
                };
                match test {
                    Some(call) => self.with(&call.args, keep),
                    None => keep(&[]),
                }
            }
        }
    }
}

/// Returns the name of an attribute: a member by its name, or an item by its index.
fn attribute_name<'v>(name: Option<Value<'v>>, budget: &Budget) -> EvalResult<Value<'v>> {
    match name {
        Some(name) => text_of(name, budget),
        None => other("the name of an attribute is missing"),
    }
}
