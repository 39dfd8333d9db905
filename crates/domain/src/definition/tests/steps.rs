//! Tests of single steps: targets, requests, limits and policies.

use super::*;

#[test]
fn a_step_has_one_target() {
    refused(json!([{ "name": "a" }]), "/steps/0/agent", "is missing");
    refused(
        json!([{ "name": "a", "agent": "inventory", "url": "http://allowed" }]),
        "/steps/0/url",
        "not both",
    );
    refused(
        only(json!({ "agent": "" })),
        "/steps/0/agent",
        "not a valid agent name",
    );
    // An origin would be taken for the agent of that origin, and bypass the policy for URLs.
    refused(
        only(json!({ "agent": "http://10.0.0.1:80" })),
        "/steps/0/agent",
        "not a valid agent name",
    );
}

#[test]
fn a_wait_says_how_long_and_nothing_of_a_call() {
    let waits = |wait: Value| json!([{ "name": "a", "wait": wait }]);
    for (wait, pointer, message) in [
        (json!({}), "/for", "is missing: give a duration such as"),
        (
            json!({ "for": null }),
            "/for",
            "is missing: give a duration",
        ),
        (
            json!({ "for": "1h", "until": "2026-01-31T09:30:00Z" }),
            "/until",
            "not both",
        ),
        (json!({ "for": "an hour" }), "/for", "must give a duration"),
        (json!({ "for": "3651d" }), "/for", "of at most 3650d"),
        (json!({ "for": 3600 }), "/for", "must be a string"),
        (json!({ "until": "tomorrow" }), "/until", "must give a time"),
        (json!({ "for": "{{ input." }), "/for", ""),
        (
            json!({ "for": "{{ steps.b.output }}" }),
            "/for",
            "no step `b`",
        ),
        (
            json!({ "fro": "1h", "for": "1h" }),
            "/fro",
            "did you mean `for`",
        ),
        (json!("1h"), "", "must be an object"),
    ] {
        refused(waits(wait), &format!("/steps/0/wait{pointer}"), message);
    }
    for field in [
        "agent",
        "url",
        "request",
        "complete_within",
        "undo",
        "pivot",
    ] {
        let mut step = json!({ "name": "a", "wait": { "for": "1h" } });
        step[field] = json!(null);
        refused(
            json!([step]),
            &format!("/steps/0/{field}"),
            "belongs to steps that call a service",
        );
    }
    refused(
        json!([{ "name": "a", "wait": { "for": "1h" }, "waits": 1 }]),
        "/steps/0/waits",
        "did you mean `wait`",
    );
}

#[test]
fn a_signal_says_how_long_it_is_awaited() {
    let signals = |signal: Value| json!([{ "name": "a", "signal": signal }]);
    for (signal, pointer, message) in [
        (json!({}), "/within", "is missing: say how long"),
        (json!({ "within": "0s" }), "/within", "from 1s to 3650d"),
        (
            json!({ "within": "1h", "on_timeout": "retry" }),
            "/on_timeout",
            "must be \"error\"",
        ),
        (
            json!({ "within": "1h", "for": "1h" }),
            "/for",
            "unknown field",
        ),
    ] {
        refused(
            signals(signal),
            &format!("/steps/0/signal{pointer}"),
            message,
        );
    }
    let both = json!([{ "name": "a", "signal": { "within": "1h" }, "wait": { "for": "1h" } }]);
    refused(both, "/steps/0/signal", "not both");
    let behind = json!([
        { "name": "a", "agent": "inventory", "pivot": true },
        { "name": "b", "signal": { "within": "1h", "on_timeout": "undo" } },
    ]);
    refused(
        behind,
        "/steps/1/signal/on_timeout",
        "comes after the pivot",
    );
    let call = json!([{ "name": "a", "signal": { "within": "1h" }, "agent": "x" }]);
    refused(call, "/steps/0/agent", "or remove `signal`");
}

#[test]
fn only_plain_urls_are_called() {
    for (url, message) in [
        ("http://elsewhere", "may not be called"),
        ("ftp://allowed", "not a URL to call"),
        ("/allowed", "not a URL to call"),
        ("allowed", "not a URL to call"),
        ("http://", "not a URL"),
        ("http://user:secret@allowed/", "user name"),
        ("http://allowed/#part", "fragment"),
        ("http://allowed/{{ input.x }}", "cannot contain expressions"),
        ("http://allowed/../x", "`..`"),
    ] {
        refused(
            json!([{ "name": "a", "url": url }]),
            "/steps/0/url",
            message,
        );
    }
    refused(
        json!([{ "name": "a", "url": "http://allowed/?x=1", "request": { "path": "/y" } }]),
        "/steps/0/url",
        "query",
    );
}

#[test]
fn requests_are_checked() {
    for (request, pointer, message) in [
        (json!([]), "", "must be an object"),
        (
            json!({ "method": "HEAD" }),
            "/method",
            "must be \"GET\" or \"POST\"",
        ),
        (json!({ "path": "orders" }), "/path", "starts with `/`"),
        (
            json!({ "path": "{{ input.path }}" }),
            "/path",
            "starts with `/`",
        ),
        (json!({ "path": "/a/../b" }), "/path", "`..`"),
        (json!({ "path": "/a/%2E%2e" }), "/path", "`..`"),
        (json!({ "path": "/a#b" }), "/path", "`#`"),
        (json!({ "path": "/a b" }), "/path", "no spaces"),
        (json!({ "path": "/{{ x" }), "/path", "no closing"),
        (
            json!({ "headers": { "Idempotency-Key": "x" } }),
            "/headers/Idempotency-Key",
            "set by Provost",
        ),
        (
            json!({ "headers": { "provost-step": "x" } }),
            "/headers/provost-step",
            "set by Provost",
        ),
        (
            json!({ "headers": { "x": 1 } }),
            "/headers/x",
            "must be a string",
        ),
        (
            json!({ "headers": { "x": "a\nb" } }),
            "/headers/x",
            "line break",
        ),
        (
            json!({ "headers": { "x": "1", "X": "2" } }),
            "/headers/X",
            "twice",
        ),
        (
            json!({ "method": "GET", "body": {} }),
            "/body",
            "GET has no body",
        ),
        (
            json!({ "body": ["{{ input. }}"] }),
            "/body/0",
            "not an expression",
        ),
        (json!({ "query": "x" }), "/query", "unknown field"),
    ] {
        refused(
            only(json!({ "request": request })),
            &format!("/steps/0/request{pointer}"),
            message,
        );
    }
}

#[test]
fn what_is_sent_follows_from_method_and_body() {
    let body = |request: Value| {
        let definition = parse(&only(json!({ "request": request }))).unwrap();
        match &definition.steps[0].request().unwrap().body {
            Body::None => "none",
            Body::Input => "input",
            Body::Json(_) => "json",
        }
    };
    assert_eq!(body(json!({})), "input");
    assert_eq!(body(json!({ "method": "PATCH" })), "input");
    assert_eq!(body(json!({ "method": "GET" })), "none");
    assert_eq!(body(json!({ "method": "DELETE" })), "none");
    assert_eq!(body(json!({ "method": "DELETE", "body": [1] })), "json");
    assert_eq!(body(json!({ "method": "PUT", "body": null })), "none");
    assert_eq!(body(json!({ "method": "GET", "body": null })), "none");
}

#[test]
fn limits_and_policies_are_checked() {
    for (own, pointer, message) in [
        (
            json!({ "complete_within": "99ms" }),
            "/complete_within",
            "from 100ms to 30d",
        ),
        (
            json!({ "complete_within": 30 }),
            "/complete_within",
            "must be a duration",
        ),
        (
            json!({ "max_failures": -1 }),
            "/max_failures",
            "from 0 to 1000",
        ),
        (
            json!({ "max_failures": 1.5 }),
            "/max_failures",
            "whole number",
        ),
        (
            json!({ "on_exhausted": "retry" }),
            "/on_exhausted",
            "must be \"error\", \"undo\" or \"skip\" or {",
        ),
        (
            json!({ "on_exhausted": 1 }),
            "/on_exhausted",
            "must be \"error\", \"undo\" or \"skip\" or {",
        ),
        (
            json!({ "on_exhausted": {} }),
            "/on_exhausted/extend",
            "is missing",
        ),
        (
            json!({ "on_exhausted": { "extend": "1m", "times": 0 } }),
            "/on_exhausted/times",
            "from 1 to 1000",
        ),
        (
            json!({ "on_exhausted": { "extend": "1m", "then": "extend" } }),
            "/on_exhausted/then",
            "must be \"error\", \"undo\" or \"skip\"",
        ),
        (
            json!({ "on_exhausted": { "extend": "1m", "time": 1 } }),
            "/on_exhausted/time",
            "did you mean `times`?",
        ),
        (
            json!({ "on_permanent": "retry" }),
            "/on_permanent",
            "must be \"error\", \"undo\" or \"skip\"",
        ),
        (
            json!({ "undo": {} }),
            "/undo/request",
            "give the action that undoes the step",
        ),
        (
            json!({ "undo": { "request": {}, "on_permanent": "undo" } }),
            "/undo/on_permanent",
            "must be \"error\" or \"skip\"",
        ),
        (
            json!({ "undo": { "request": { "path": "/{{ response.status }}" } } }),
            "/undo/request/path",
            "`response` is not defined here: expressions can use `input`, `task`, `steps.<name>.output`, `output` and `request`",
        ),
        (
            json!({ "request": { "path": "/{{ output.id }}" } }),
            "/request/path",
            "`output` is not defined here",
        ),
        (json!({ "probe": {} }), "/probe/request", "give the GET"),
        (
            json!({ "probe": { "request": { "method": "POST" } } }),
            "/probe/request",
            "its method is GET",
        ),
        (
            json!({ "probe": { "request": {}, "outcome": "output.state" } }),
            "/probe/outcome",
            "`output` is not defined here: expressions can use `input`, `task`, `steps.<name>.output` and `response`",
        ),
        (
            json!({ "pivot": true, "undo": { "request": {} } }),
            "/undo",
            "nothing is undone once the pivot is done",
        ),
        (json!({ "on_undo": "stop" }), "/on_undo", "wait"),
        (
            json!({ "reply_to": {} }),
            "/reply_to",
            "unknown field `reply_to`",
        ),
        (
            json!({ "when": "{{ input.a }}" }),
            "/when",
            "a condition has no braces",
        ),
        (json!({ "when": true }), "/when", "must be a string"),
    ] {
        refused(only(own), &format!("/steps/0{pointer}"), message);
    }
}

#[test]
fn the_list_of_items_is_one_expression_or_an_array() {
    for list in [
        json!("{{ input.orders }}"),
        json!(["x{{ input }}", 2]),
        json!([]),
    ] {
        let steps = only(json!({ "for_each": list }));
        assert_eq!(faults(&steps), Vec::<String>::new(), "{list}");
    }
    let one = "the whole string must be one expression";
    for list in ["x{{ input }}", "{{ input.a }}{{ input.b }}", " {{ input }}"] {
        refused(only(json!({ "for_each": list })), "/steps/0/for_each", one);
        // Earlier versions may have accepted such a list.
        let limits = Limits {
            is_stored: true,
            ..Limits::default()
        };
        let steps = Payload::from_value(&only(json!({ "for_each": list })));
        let stored = parse_steps(&steps, "/steps", &Policies::default(), &limits, &Some2);
        assert!(stored.is_ok(), "{list}");
    }
    for list in [json!("orders"), json!(3), json!({})] {
        let steps = only(json!({ "for_each": list }));
        refused(steps, "/steps/0/for_each", "must be an array");
    }
}

#[test]
fn a_time_that_a_definition_names_is_checked_against_the_present() {
    let steps = json!([
        { "name": "a", "wait": { "until": "2036-01-01T00:00:00Z" } },
        { "name": "b", "wait": { "until": "{{ input.end }}" } },
        { "name": "c", "wait": { "for": "3650d" } },
        { "name": "d", "for_each": [1], "wait": { "until": "2036-01-03T00:00:00Z" } },
    ]);
    let definition = parse(&steps).unwrap();
    assert!(definition.names_times());
    let faults = |now: &str| {
        let now = Timestamp::parse(now).unwrap();
        let faults = definition.time_faults(now).into_iter();
        faults.map(|fault| fault.to_string()).collect::<Vec<_>>()
    };
    // The limit is ten years of 365 days.
    assert_eq!(faults("2026-01-05T00:00:00Z"), [""; 0]);
    assert_eq!(
        faults("2026-01-03T00:00:00Z"),
        [
            "/steps/3/wait/until: `wait.until` gives 2036-01-03T00:00:00Z, which is more than 3650d away"
        ]
    );
    assert_eq!(faults("2026-01-01T00:00:00Z").len(), 2);
    let other = parse(&json!([{ "name": "a", "wait": { "for": "1h" } }])).unwrap();
    assert!(!other.names_times());
}

#[test]
fn what_is_wrong_with_a_question_whatever_the_data_is_is_refused_with_the_definition() {
    let asking = |title: &str, of: Value| json!([{ "name": "approval", "signal": { "within": "1h", "ask": { "title": title, "of": of } } }]);
    for (hidden, named) in [
        ("\u{200b}", "U+200B"),
        ("\u{ad}", "U+00AD"),
        ("\u{2800}", "U+2800"),
        ("\u{202e}", "U+202E"),
        ("\0", "U+0000"),
    ] {
        let person = format!("an{hidden}n@example.com");
        let message = format!("and this one has {named}: remove it");
        let of = "/steps/0/signal/ask/of";
        refused(asking("t", json!([person])), &format!("{of}/0"), &message);
        refused(asking("t", json!(person)), of, &message);
        let partly = json!(["ann", format!("{{{{ input.name }}}}{hidden}@example.com")]);
        refused(asking("t", partly), &format!("{of}/1"), &message);
    }
    let title = "/steps/0/signal/ask/title";
    refused(asking(" ", json!(["a"])), title, "must not be empty");
    refused(asking("a\nb", json!(["a"])), title, "must give one line");
    refused(
        asking("t", json!(["a", " "])),
        "/steps/0/signal/ask/of/1",
        "of 1 to 255",
    );
    for well in [
        json!([" ann ", "{{ input.name }}\n"]),
        json!("{{ input.list }}"),
        json!(["{{ '\u{200b}' }}"]),
        json!(["日本 太郎", "Ann O'Hara"]),
    ] {
        assert_eq!(
            faults(&asking("Refund {{ input.amount }}?\n", well)),
            [""; 0]
        );
    }
}

#[test]
fn only_the_request_of_a_reply_that_comes_later_reads_its_address() {
    let body = json!({ "body": { "cb": "{{ reply.url }}" } });
    let only_here = "`reply` is defined only in the request of a step, or of an undo";
    parse(&only(
        json!({ "agent": "inventory", "reply": "callback", "request": body,
        "undo": { "reply": "callback", "request": body } }),
    ))
    .unwrap();
    refused(
        only(json!({ "agent": "inventory", "request": body })),
        "/steps/0/request/body/cb",
        only_here,
    );
    refused(
        only(json!({ "agent": "inventory", "reply": "callback", "undo": { "request": body } })),
        "/steps/0/undo/request/body/cb",
        only_here,
    );
    refused(
        only(json!({ "agent": "inventory", "reply": "callback", "when": "reply.url != ''" })),
        "/steps/0/when",
        only_here,
    );
    refused(
        only(
            json!({ "agent": "inventory", "reply": "callback", "probe": { "request": { "path": "/{{ reply.url }}" } } }),
        ),
        "/steps/0/probe/request/path",
        only_here,
    );
    refused(
        only(
            json!({ "agent": "inventory", "reply": "callback", "request": { "path": "/{{ reply.token }}" } }),
        ),
        "/steps/0/request/path",
        "`reply` has no `token`: use `reply.url`",
    );
}

#[test]
fn an_unknown_name_of_a_choice_is_told_where_it_stands() {
    let choice = json!({ "one_of": ["inventory", "nobody"], "by": "{{ input.x }}" });
    let step = json!({ "name": "s", "agent": choice });
    refused(
        json!([step]),
        "/steps/0/agent/one_of/1",
        "no agent `nobody`",
    );
    refused(
        json!([{ "name": "b", "steps": [{ "name": "first", "agent": "inventory" }, step] }]),
        "/steps/0/steps/1/agent/one_of/1",
        "no agent `nobody`",
    );
}
