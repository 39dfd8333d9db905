//! A parsed expression. Operands of one level are one flat node, so that the tree is no deeper than the brackets in the
//! source: evaluating it needs no more of the thread's stack than that.

use super::registry::{Filter, Function, Test};

#[derive(Debug)]
pub(super) enum Expr {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Box<str>),
    List(Box<[Expr]>),
    Map(Box<[(Expr, Expr)]>),
    /// A name of the scope. The names that are known depend on the kind of template, and are checked when it is parsed.
    Name(Box<str>),
    Chain(Box<Chain>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    And(Box<[Expr]>),
    Or(Box<[Expr]>),
    Compare(Box<Expr>, Box<[(Comparison, Expr)]>),
    Binary(Box<Expr>, Box<[(Operator, Expr)]>),
    If(Box<If>),
    Call(&'static Function, Args),
}

#[derive(Debug)]
pub(super) struct Chain {
    pub base: Expr,
    pub links: Box<[Link]>,
}

#[derive(Debug)]
pub(super) struct Link {
    pub what: LinkKind,
    /// The begin and the end of the source from the base up to this link: it names a missing value. A u16 is enough for
    /// the length of an expression.
    pub span: (u16, u16),
}

#[derive(Debug)]
pub(super) enum LinkKind {
    Member(Box<str>),
    Item(Expr),
    Slice(Box<[Option<Expr>; 3]>),
    Filter(FilterCall),
    Is(TestCall, bool),
}

/// One argument for each parameter.
pub(super) type Args = Box<[Option<Expr>]>;

#[derive(Debug)]
pub(super) enum FilterCall {
    Plain(&'static Filter, Args),
    /// `map(attribute=…, default=…)`.
    MapAttribute(Args),
    /// `map('name', …)`.
    Map(Box<FilterCall>),
    /// `select`, `reject`, `selectattr` and `rejectattr`.
    Keep {
        attribute: Option<Expr>,
        test: Option<TestCall>,
        wanted: bool,
    },
}

#[derive(Debug)]
pub(super) struct TestCall {
    pub test: &'static Test,
    pub args: Args,
}

#[derive(Debug)]
pub(super) struct If {
    pub then: Expr,
    pub test: Expr,
    pub otherwise: Option<Expr>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operator {
    Arithmetic(super::number::Arithmetic),
    /// `~`
    Concatenate,
}

impl Link {
    pub fn named<'s>(&self, source: &'s str) -> &'s str {
        let (start, end) = self.span;
        source
            .get(usize::from(start)..usize::from(end))
            .unwrap_or_default()
    }
}

impl Expr {
    /// Calls `see` with this node and every node in it.
    pub fn walk<'e>(&'e self, see: &mut dyn FnMut(&'e Expr)) {
        see(self);
        match self {
            Expr::Null
            | Expr::Bool(_)
            | Expr::Int(_)
            | Expr::Float(_)
            | Expr::Text(_)
            | Expr::Name(_) => {}
            Expr::List(items) | Expr::And(items) | Expr::Or(items) => {
                items.iter().for_each(|item| item.walk(see));
            }
            Expr::Map(members) => members.iter().for_each(|(key, value)| {
                key.walk(see);
                value.walk(see);
            }),
            Expr::Chain(chain) => {
                chain.base.walk(see);
                chain.links.iter().for_each(|link| link.what.walk(see));
            }
            Expr::Not(inner) | Expr::Negate(inner) => inner.walk(see),
            Expr::Compare(first, rest) => {
                first.walk(see);
                rest.iter().for_each(|(_, operand)| operand.walk(see));
            }
            Expr::Binary(first, rest) => {
                first.walk(see);
                rest.iter().for_each(|(_, operand)| operand.walk(see));
            }
            Expr::If(choice) => {
                choice.then.walk(see);
                choice.test.walk(see);
                choice.otherwise.iter().for_each(|expr| expr.walk(see));
            }
            Expr::Call(_, args) => args.iter().flatten().for_each(|arg| arg.walk(see)),
        }
    }
}

impl LinkKind {
    fn walk<'e>(&'e self, see: &mut dyn FnMut(&'e Expr)) {
        match self {
            LinkKind::Member(_) => {}
            LinkKind::Item(item) => item.walk(see),
            LinkKind::Slice(parts) => parts.iter().flatten().for_each(|part| part.walk(see)),
            LinkKind::Filter(call) => call.walk(see),
            LinkKind::Is(call, _) => call.args.iter().flatten().for_each(|arg| arg.walk(see)),
        }
    }
}

impl FilterCall {
    fn walk<'e>(&'e self, see: &mut dyn FnMut(&'e Expr)) {
        match self {
            FilterCall::Plain(_, args) | FilterCall::MapAttribute(args) => {
                args.iter().flatten().for_each(|arg| arg.walk(see));
            }
            FilterCall::Map(call) => call.walk(see),
            FilterCall::Keep {
                attribute, test, ..
            } => {
                attribute.iter().for_each(|attribute| attribute.walk(see));
                let args = test.iter().flat_map(|test| test.args.iter().flatten());
                args.for_each(|arg| arg.walk(see));
            }
        }
    }
}
