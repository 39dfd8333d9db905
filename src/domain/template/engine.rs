//! One compiled expression, and the environment that all of them share.

use std::{fmt, sync::LazyLock};

use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value};

use super::{MAX_EXPRESSION, Reads, RenderError, Scope, filters, path::Path, scan};

/// Instructions per evaluation. A condition takes about ten.
const FUEL: u64 = 10_000;

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(FUEL));
    // Lets errors name what is undefined. It costs nothing until something is.
    environment.set_debug(true);
    filters::bound(&mut environment);
    environment
});

/// The source between the braces, compiled.
pub(super) struct Code {
    source: Box<str>,
    reads: Reads,
    kind: Kind,
}

enum Kind {
    /// A plain dotted path is followed without the machine: the most common expression by far.
    Path(Path),
    Compiled(minijinja::Expression<'static, 'static>),
}

impl Code {
    pub fn parse(source: &str) -> Result<Self, String> {
        let source = source.trim();
        if source.is_empty() {
            return Err("the expression is empty: name what it should read".to_owned());
        }
        if source.len() > MAX_EXPRESSION {
            return Err(format!(
                "the expression is longer than {MAX_EXPRESSION} bytes: compute it in a service"
            ));
        }
        let tokens = scan::tokens(source);
        let kind = match Path::parse(source) {
            Some(path) => Kind::Path(path),
            None => Kind::Compiled(compile(source, &tokens)?),
        };
        let mut reads = scan::reads(
            &tokens,
            |name| !is_known_filter(name),
            |name| !is_known_test(name),
        )?;
        match &kind {
            Kind::Path(path) => {
                reads.names.insert(path.root().to_owned());
            }
            Kind::Compiled(compiled) => {
                let names = compiled.undeclared_variables(false);
                reads.names.extend(
                    names
                        .into_iter()
                        .filter(|name| ENVIRONMENT.globals().all(|(global, _)| global != name)),
                );
            }
        }
        Ok(Self {
            source: source.into(),
            reads,
            kind,
        })
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn reads(&self) -> &Reads {
        &self.reads
    }

    pub fn path(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Path(path) => Some(path),
            Kind::Compiled(_) => None,
        }
    }

    /// Never undefined.
    pub fn evaluate(&self, scope: &Scope<'_>) -> Result<Value, RenderError> {
        match &self.kind {
            Kind::Path(path) => path
                .follow(scope)
                .map_err(|reason| RenderError::new(&self.source, reason)),
            Kind::Compiled(compiled) => {
                let value = compiled
                    .eval(scope.root(self.reads.names.contains("task")))
                    .map_err(|error| RenderError::new(&self.source, reason(&error)))?;
                if value.is_undefined() {
                    return Err(RenderError::new(
                        &self.source,
                        "it reads something that is not there; give it a default with `| default(…)`",
                    ));
                }
                Ok(value)
            }
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

fn compile(
    source: &str,
    tokens: &[scan::Token<'_>],
) -> Result<minijinja::Expression<'static, 'static>, String> {
    // The source as written is compiled first, so that faults speak of it and not of the guards.
    let compile = |source: String| {
        ENVIRONMENT
            .compile_expression_owned(source)
            .map_err(|error| {
                format!(
                    "`{}` is not an expression: {}",
                    source_of(&error),
                    reason(&error)
                )
            })
    };
    let plain = compile(source.to_owned())?;
    match scan::guard_products(source, tokens) {
        Some(guarded) => compile(guarded),
        None => Ok(plain),
    }
}

fn source_of(error: &minijinja::Error) -> &str {
    error.template_source().unwrap_or_default()
}

/// minijinja's words, without the file and line that mean nothing to somebody who wrote one expression.
pub(super) fn reason(error: &minijinja::Error) -> String {
    let detail = error.detail();
    match error.kind() {
        ErrorKind::OutOfFuel => format!("it takes more than {FUEL} instructions"),
        ErrorKind::UndefinedError => match detail {
            Some(detail) => {
                format!("{detail}: it is not there; give it a default with `| default(…)`")
            }
            None => "it reads something that is not there".to_owned(),
        },
        kind => match detail {
            Some(detail) => format!("{kind}: {detail}"),
            None => kind.to_string(),
        },
    }
}

fn is_known_filter(name: &str) -> bool {
    let called = ENVIRONMENT.empty_state().apply_filter(name, &[]);
    !matches!(called, Err(error) if error.kind() == ErrorKind::UnknownFilter)
}

fn is_known_test(name: &str) -> bool {
    let called = ENVIRONMENT.empty_state().perform_test(name, &[]);
    !matches!(called, Err(error) if error.kind() == ErrorKind::UnknownTest)
}
