use super::{template::*, *};
pub struct Rendered {
    pub method: Method,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Option<String>,
}
pub fn render_request(_: &StepDefinition, _: &Scope<'_>) -> Result<Rendered, RenderError> {
    Err(RenderError)
}
