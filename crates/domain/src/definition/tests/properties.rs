//! Properties that hold for any JSON.

use proptest::prelude::*;

use super::*;

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("{{ input.a }}".to_owned()),
        Just("{{ steps.a.output".to_owned()),
        Just("30s".to_owned()),
        Just("error".to_owned()),
        Just("a".to_owned()),
        "[a-z{}/%. ]{0,6}",
    ]
}

fn any_json() -> impl Strategy<Value = Value> {
    let keys = prop::sample::select(vec![
        "name",
        "agent",
        "url",
        "after",
        "when",
        "request",
        "method",
        "path",
        "headers",
        "body",
        "complete_within",
        "max_failures",
        "on_exhausted",
        "on_permanent",
        "extend",
        "times",
        "then",
        "x",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Into::into),
        word().prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 60, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map(keys.clone().prop_map(str::to_owned), inner, 0..12)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_json_panics(steps in any_json()) {
        let _ = parse(&steps);
        let _ = parse(&json!([steps]));
    }

    #[test]
    fn every_fault_points_into_the_body(steps in any_json()) {
        let body = json!({ "steps": [steps] });
        for fault in parse(&body["steps"]).err().unwrap_or_default() {
            // The pointer of a missing field has a parent that exists.
            let parent = fault.pointer.rsplit_once('/').unwrap().0;
            prop_assert!(body.pointer(parent).is_some(), "{}", fault);
        }
    }
}
