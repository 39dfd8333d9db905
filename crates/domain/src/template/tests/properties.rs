//! Properties that hold for all data and all sources.

use proptest::prelude::*;

use super::*;

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        // Quarters, because other fractions can lose their last bit each time that they are read.
        any::<i32>().prop_map(|quarters| (f64::from(quarters) / 4.0).into()),
        "[^{]*".prop_map(Into::into),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::btree_map(".*", inner, 0..6)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn literal_json_renders_to_itself(value in any_json()) {
        let document = Payload::from_value(&value);
        let rendered = JsonTemplate::parse(&document, Origin::Submitted(&Budget::evaluation())).unwrap().render(&data().scope()).unwrap();
        prop_assert_eq!(rendered, document.as_json());
    }

    #[test]
    fn a_value_passed_through_by_an_expression_is_equal(value in any_json()) {
        let document = serde_json::json!({ "x": value });
        let mut data = data();
        data.input = Payload::from_value(&document);
        for template in [r#""{{ input.x }}""#, r#""{{ input['x'] }}""#] {
            let rendered = JsonTemplate::parse(&payload(template), Origin::Submitted(&Budget::evaluation())).unwrap().render(&data.scope()).unwrap();
            let rendered: serde_json::Value = serde_json::from_str(&rendered).unwrap();
            let reference: serde_json::Value = serde_json::from_str(&document.to_string()).unwrap();
            prop_assert_eq!(&rendered, &reference["x"]);
        }
    }

    #[test]
    fn no_source_panics(source in "([{}%#'\"|.*(\\[\\])a-c 0-9_-]|\\{\\{|\\}\\}|steps|input|is |not |\\*\\*|é){0,24}") {
        let _ = Template::parse(&source, Origin::Submitted(&Budget::evaluation())).map(|template| template.render_text(&data().scope()));
        let _ = Expression::parse(&source, Origin::Submitted(&Budget::evaluation())).map(|condition| condition.truth(&data().scope()));
    }

    #[test]
    fn no_path_leaves_its_segments(text in ".{1,40}") {
        let mut data = data();
        data.input = Payload::from_string(&text);
        let rendered = Template::parse("/a/{{ input }}/b", Origin::Submitted(&Budget::evaluation())).unwrap().render_path(&data.scope()).unwrap();
        let inner = &rendered[3..rendered.len() - 2];
        prop_assert!(inner.chars().all(|c| c.is_ascii_alphanumeric() || "-_.~%".contains(c)), "{}", inner);
    }
}
