use super::*;
use std::collections::BTreeMap;
#[derive(Debug)]
pub struct Template;
#[derive(Debug)]
pub struct JsonTemplate;
#[derive(Debug)]
pub struct Expression;
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct RenderError;
pub struct Scope<'a> {
    pub task_id: TaskId,
    pub key: Option<&'a str>,
    pub labels: &'a BTreeMap<String, String>,
    pub input: &'a Payload,
    pub steps: Vec<(&'a StepName, Option<&'a Payload>)>,
    pub output: Option<&'a Payload>,
}
impl Expression {
    pub fn truth(&self, _: &Scope<'_>) -> Result<bool, RenderError> {
        Ok(true)
    }
}
