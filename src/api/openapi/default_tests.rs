//! The document's defaults are those that the domain applies.

use serde_json::{Value, json};

use crate::domain::{
    agent::AgentSpec,
    definition::{KnownAgents, Limits, Policies, parse_steps},
    template::Payload,
    values::AgentName,
};

/// Knows every agent.
struct AnyAgent;

impl KnownAgents for AnyAgent {
    fn knows(&self, _: &AgentName) -> bool {
        true
    }

    fn allows_url(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
}

fn parsed(step: &Value) -> String {
    let definition = parse_steps(
        &Payload::from_value(&json!([step])),
        "",
        &Policies::default(),
        &Limits::default(),
        &AnyAgent,
    )
    .unwrap();
    format!("{:?} {:?}", definition.steps, definition.undos)
}

#[test]
fn the_defaults_of_a_definition_are_those_of_its_schemas() {
    let document = serde_json::to_value(crate::api::openapi()).unwrap();
    let request = json!({ "path": "/" });
    let extend = json!({ "extend": "1m" });
    let base = json!({
        "name": "a", "agent": "x", "request": request, "probe": { "request": request },
        "undo": { "request": request, "on_exhausted": extend }, "on_exhausted": extend,
    });
    let mut seen = 0;
    for (way, schema) in [
        ("", "StepDefinition"),
        ("/request", "StepRequest"),
        ("/on_exhausted", "Extend"),
        ("/probe", "Probe"),
        ("/undo", "Undo"),
        ("/undo/request", "StepRequest"),
        ("/undo/on_exhausted", "UndoExtend"),
    ] {
        let schema = &document["components"]["schemas"][schema]["properties"];
        for (name, property) in schema.as_object().unwrap() {
            // Beside null: see `move_defaults_inside`.
            let choices = property["oneOf"].as_array().into_iter().flatten();
            let Some(default) = choices.filter_map(|one| one.get("default")).next() else {
                continue;
            };
            seen += 1;
            let mut step = base.clone();
            step.pointer_mut(way).unwrap()[name] = default.clone();
            assert_eq!(parsed(&step), parsed(&base), "{way}/{name} = {default}");
        }
    }
    assert!(seen >= 15, "{seen}");
}

#[test]
fn the_defaults_of_an_agent_are_those_of_its_schemas() {
    let document = serde_json::to_value(crate::api::openapi()).unwrap();
    let base = json!({ "endpoints": [{ "url": "http://a" }], "retry": {} });
    let parsed = |agent: &Value| serde_json::from_value::<AgentSpec>(agent.clone());
    let mut seen = 0;
    for (way, schema) in [("/endpoints/0", "Endpoint"), ("/retry", "Retry")] {
        let schema = &document["components"]["schemas"][schema]["properties"];
        for (name, property) in schema.as_object().unwrap() {
            let choices = property["oneOf"].as_array().into_iter().flatten();
            let Some(default) = choices.filter_map(|one| one.get("default")).next() else {
                continue;
            };
            seen += 1;
            let mut agent = base.clone();
            agent.pointer_mut(way).unwrap()[name] = default.clone();
            assert_eq!(
                parsed(&agent).unwrap(),
                parsed(&base).unwrap(),
                "{way}/{name} = {default}"
            );
        }
    }
    assert!(seen >= 4, "{seen}");
}
