//! From JSON to a [`Definition`], with every fault reported at once.
pub struct FieldFault;
pub struct Fields;
pub struct Limits;
pub fn parse_steps() {}
