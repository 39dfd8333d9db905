//! A plain dotted path such as `steps.reserve.output.id`, followed without minijinja's machine.
//! It must give what minijinja gives: `tests.rs` holds the two against each other.

use minijinja::Value;

use super::{Scope, scope};
use crate::domain::Payload;

#[derive(Debug)]
pub(super) struct Path {
    root: Root,
    /// The parts behind the root.
    parts: Box<[Box<str>]>,
}

#[derive(Clone, Copy, Debug)]
enum Root {
    Input,
    Task,
    Steps,
    Output,
    Request,
    Response,
}

impl Path {
    /// `None` where the source is anything but a path from a name of the scope.
    pub fn parse(source: &str) -> Option<Self> {
        let mut parts = source.split('.').map(str::trim);
        let root = match parts.next()? {
            "input" => Root::Input,
            "task" => Root::Task,
            "steps" => Root::Steps,
            "output" => Root::Output,
            "request" => Root::Request,
            "response" => Root::Response,
            _ => return None,
        };
        let parts = parts
            .map(|part| is_identifier(part).then(|| part.into()))
            .collect::<Option<Box<[Box<str>]>>>()?;
        Some(Self { root, parts })
    }

    pub fn root(&self) -> &'static str {
        match self.root {
            Root::Input => "input",
            Root::Task => "task",
            Root::Steps => "steps",
            Root::Output => "output",
            Root::Request => "request",
            Root::Response => "response",
        }
    }

    /// The whole document that this path names, so that it can be passed on as it is, unparsed.
    pub fn whole<'a>(&self, scope: &Scope<'a>) -> Option<&'a Payload> {
        match (self.root, &*self.parts) {
            (Root::Input, []) => Some(scope.input),
            (Root::Output | Root::Request | Root::Response, []) => self.document(scope),
            (Root::Steps, [name, output]) if &**output == "output" => scope.step(name)?,
            _ => None,
        }
    }

    /// What only some scopes have.
    fn document<'a>(&self, scope: &Scope<'a>) -> Option<&'a Payload> {
        match self.root {
            Root::Output => scope.output,
            Root::Request => scope.request,
            Root::Response => scope.response,
            Root::Input | Root::Task | Root::Steps => None,
        }
    }

    /// The error says what is missing.
    pub fn follow(&self, scope: &Scope<'_>) -> Result<Value, String> {
        let (mut value, followed) = match (self.root, &*self.parts) {
            (Root::Input, _) => (scope.input.value().clone(), 0),
            (Root::Output | Root::Request | Root::Response, _) => (
                self.document(scope)
                    .ok_or_else(|| missing(self.root()))?
                    .value()
                    .clone(),
                0,
            ),
            (Root::Steps, [name, output, ..]) if &**output == "output" => {
                let step = scope
                    .step(name)
                    .ok_or_else(|| missing(&format!("steps.{name}")))?;
                (scope::output_value(step), 2)
            }
            (Root::Task, [key, ..]) if &**key != "labels" => (
                scope
                    .task_value(key)
                    .ok_or_else(|| missing(&self.upto(0)))?,
                1,
            ),
            _ => (
                scope
                    .root(matches!(self.root, Root::Task))
                    .get_attr(self.root())
                    .map_err(|error| error.to_string())?,
                0,
            ),
        };
        for (index, part) in self.parts.iter().enumerate().skip(followed) {
            // Only the attribute of something undefined is an error, and that has ended before.
            value = value.get_attr(part).unwrap_or(Value::UNDEFINED);
            if value.is_undefined() {
                return Err(missing(&self.upto(index)));
            }
        }
        Ok(value)
    }

    fn upto(&self, index: usize) -> String {
        let mut path = self.root().to_owned();
        for part in &self.parts[..=index] {
            path.push('.');
            path.push_str(part);
        }
        path
    }
}

fn missing(path: &str) -> String {
    format!("`{path}` is not there; give it a default with `| default(…)`")
}

fn is_identifier(part: &str) -> bool {
    let mut bytes = part.bytes();
    bytes
        .next()
        .is_some_and(|first| first == b'_' || first.is_ascii_alphabetic())
        && bytes.all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}
