use crate::domain::*;
pub struct FieldFault {
    pub pointer: String,
    pub message: String,
}
#[derive(Default)]
pub struct Limits {
    pub max_steps: usize,
}
impl Limits {
    pub fn stored() -> Self {
        Limits { max_steps: 65535 }
    }
}
pub trait KnownAgents {
    fn knows(&self, a: &AgentName) -> bool;
    fn allows_url(&self, u: &str) -> Result<(), String>;
}
pub struct Accepted;
impl KnownAgents for Accepted {
    fn knows(&self, _: &AgentName) -> bool {
        true
    }
    fn allows_url(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
}
pub fn parse_steps(
    _: &Payload,
    _: &str,
    _: &Limits,
    _: &dyn KnownAgents,
) -> Result<Definition, Vec<FieldFault>> {
    Err(vec![])
}
