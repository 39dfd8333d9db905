//! Typed minijinja templates, bounded.
#[derive(Debug)]
pub struct Template;
#[derive(Debug)]
pub struct JsonTemplate;
#[derive(Debug)]
pub struct Expression;
