use super::*;

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

/// Returns the faults that `read` finds, as `pointer: message`.
fn faults(json: &str, read: impl FnOnce(&mut Fields<'_>)) -> Vec<String> {
    let body = raw(json);
    let mut fields = Fields::of(&body, "/at").unwrap();
    read(&mut fields);
    let faults = fields.finish().err().unwrap_or_default();
    faults.iter().map(ToString::to_string).collect()
}

#[test]
fn an_object_of_very_many_fields_is_one_fault() {
    let fields: Vec<String> = (0..100_000).map(|n| format!("\"f{n}\":1")).collect();
    let json = format!("{{{}}}", fields.join(","));
    let json = RawValue::from_string(json).unwrap();
    let Err(faults) = Fields::of(&json, "/at") else {
        panic!("it was taken");
    };
    assert_eq!(faults.len(), 1);
    assert!(
        faults[0].to_string().contains("100000 fields"),
        "{}",
        faults[0]
    );
}

#[test]
fn fields_are_taken_by_name_and_kind() {
    let body = raw(
        r#"{"text":"a\u0062","number":7,"flag":true,"span":"30s","raw":{ "x" : 1.0 },"list":["a"],"map":{"k":"v"},"none":null}"#,
    );
    let mut fields = Fields::of(&body, "").unwrap();
    assert_eq!(fields.string("text", 2).as_deref(), Some("ab"));
    assert_eq!(fields.integer("number", 0..=7), Some(7));
    assert_eq!(fields.boolean("flag"), Some(true));
    assert_eq!(
        fields.span("span", Span::default()..=Span::LONGEST),
        Some(Span::from_secs(30))
    );
    assert_eq!(fields.raw("raw").unwrap().get(), r#"{ "x" : 1.0 }"#);
    assert_eq!(fields.string_list("list", 1), Some(vec!["a".to_owned()]));
    assert_eq!(fields.string_map("map", 1)["k"], "v");
    assert_eq!(fields.string("none", 1), None);
    assert_eq!(fields.string("left_out", 1), None);
    assert_eq!(fields.finish(), Ok(()));
}

#[test]
fn each_fault_tells_its_place_and_what_would_do() {
    let found = faults(
        r#"{"text":"abc","number":8,"flag":"yes","span":"5","list":["a",1,"abc"],"map":{"/~":1,"abc":"v"},"choice":"c"}"#,
        |fields| {
            fields.string("text", 2);
            fields.integer("number", 0..=7);
            fields.boolean("flag");
            fields.span("span", Span::from_secs(1)..=Span::from_secs(60));
            fields.string_list("list", 2);
            fields.string_map("map", 2);
            fields.choice("choice", &["a", "b"]);
            fields.missing("name", "give one");
        },
    );
    assert_eq!(
        found,
        [
            "/at/text: must be at most 2 characters long",
            "/at/number: must be a whole number from 0 to 7, not 8",
            "/at/flag: must be true or false, not \"yes\"",
            "/at/span: must be a duration such as \"250ms\", \"30s\", \"15m\", \"24h\" or \"30d\", from 1s to 1m, not \"5\"",
            "/at/list/1: must be a string, not 1",
            "/at/list/2: must be at most 2 characters long",
            "/at/map/~1~0: must be a string, not 1",
            "/at/map/abc: its name must be at most 2 characters long",
            "/at/choice: must be \"a\" or \"b\", not \"c\"",
            "/at/name: is missing: give one",
        ]
    );
}

#[test]
fn what_nobody_asked_for_is_refused_by_name() {
    let found = faults(
        r#"{"priorty":1,"colour":2,"key":"a","key":"b"}"#,
        |fields| {
            fields.integer("priority", 0..=9);
            fields.string("key", 9);
        },
    );
    assert_eq!(
        found,
        [
            "/at/key: is given twice: remove one",
            "/at/priorty: unknown field `priorty`; did you mean `priority`?",
            "/at/colour: unknown field `colour`; the fields are: priority, key",
        ]
    );
}

#[test]
fn what_is_not_an_object_has_no_fields() {
    for json in ["[]", "1", "null", "\"{}\""] {
        let body = raw(json);
        let faults = Fields::of(&body, "/at").err().unwrap();
        assert!(
            faults[0].message.starts_with("must be an object, not "),
            "{json}"
        );
    }
}
