//! The content of the pages.

use super::{dom::Dom, failed_page, fixture, read, shell, sources, undo_page};
use crate::{
    params::Params,
    service::Role,
    task::{compare::ComparePage, page::OneTaskPage, record::History},
    workflows::page::{OnePage, WorkflowSources},
};

fn page(task: &str, history: &str, query: &str) -> Dom {
    Dom::of(&OneTaskPage::new(
        shell(Role::Operate),
        &Params::read(query),
        sources(task, history),
    ))
}

#[test]
fn the_first_sentence_says_where_it_stopped_and_why() {
    let dom = Dom::of(&failed_page(""));
    assert!(
        dom.text("h1").starts_with("order-20871"),
        "{}",
        dom.text("h1")
    );
    let note = &dom.classed("note")[0].text;
    assert!(note.starts_with("It stopped at charge 31 min ago: payments refused permanently with 422 Unprocessable Entity, “currency is required”."), "{note}");
    assert!(
        note.contains("charge did not take effect. Nothing runs"),
        "{note}"
    );
    let cause = dom.link("2 tasks have this cause: fix them together");
    assert_eq!(cause, "/p/console/causes/bcdeddcb504cd843");
}

#[test]
fn the_failed_step_shows_what_was_sent_and_what_came_as_it_was() {
    let dom = Dom::of(&failed_page(""));
    let texts: Vec<_> = dom
        .all("pre")
        .into_iter()
        .map(|pre| pre.text.as_str())
        .collect();
    assert!(texts[0].contains("\"amount\": 12900,\n"), "{}", texts[0]);
    assert!(
        texts
            .iter()
            .any(|text| text.contains("\"message\": \"currency is required\"")),
        "{texts:?}"
    );
    assert!(
        texts
            .iter()
            .any(|text| text.contains("\"big\": 123456789012345678901234567890")),
        "every digit of the input"
    );
    let http: Vec<_> = dom
        .classed("http")
        .into_iter()
        .map(|line| line.text.as_str())
        .collect();
    assert_eq!(
        http,
        [
            "POST http://127.0.0.1:9304/v1/charges",
            "422 Unprocessable Entity"
        ]
    );
    assert!(
        texts
            .iter()
            .any(|text| text.starts_with("curl -s -X POST 'http://127.0.0.1:9304/v1/charges'"))
    );
}

#[test]
fn each_step_is_a_link_in_the_graph_with_its_state_as_word_shape_and_colour() {
    let dom = Dom::of(&failed_page(""));
    let nodes: Vec<_> = dom
        .all("a")
        .into_iter()
        .filter(|link| link.is_inside("svg"))
        .collect();
    assert_eq!(nodes.len(), 12);
    let charge = nodes
        .iter()
        .find(|node| node.text.starts_with("charge"))
        .unwrap();
    assert!(charge.has_class("error") && charge.has_class("on"));
    assert!(
        charge.text.contains("payments · error 422"),
        "{}",
        charge.text
    );
    assert!(charge.get("href").unwrap().ends_with("?step=charge#step"));
    assert_eq!(dom.classed("pivot").len(), 1, "a thick line before ship");
    assert!(
        dom.classed("todo").len() >= 7,
        "edges to steps that have not begun are dashed"
    );
    assert_eq!(
        dom.all("tbody")[0].text.matches("waits for").count(),
        7,
        "a table beside it says it too"
    );
}

#[test]
fn what_can_be_done_leads_to_a_preview_and_what_cannot_says_why() {
    let dom = Dom::of(&failed_page(""));
    let id = "01a2240c-692d-7565-bb7d-e6c519dd0744";
    assert_eq!(
        dom.link("Retry charge…"),
        format!("/p/console/tasks/{id}/retry?step=charge")
    );
    assert_eq!(dom.link("Cancel…"), format!("/p/console/tasks/{id}/cancel"));
    let menu = dom
        .all("details")
        .into_iter()
        .find(|menu| menu.has_class("menu"))
        .unwrap();
    assert!(
        menu.text.contains("resume (the task is not paused)"),
        "{}",
        menu.text
    );
    assert!(
        dom.all("button")
            .iter()
            .all(|button| button.text == "Compare"),
        "nothing acts without a preview"
    );
}

#[test]
fn a_role_that_only_reads_has_no_buttons() {
    let sources = sources(fixture!("task-error"), fixture!("history-error"));
    let dom = Dom::of(&OneTaskPage::new(
        shell(Role::Read),
        &Params::default(),
        sources,
    ));
    assert!(
        dom.all("a").iter().all(|link| !link.has_class("b")),
        "no command is a button"
    );
    assert!(
        dom.link("Retry charge…").contains("/retry?"),
        "but its preview can be reached"
    );
}

#[test]
fn names_full_of_markup_are_text() {
    let dom = page(fixture!("task-secret"), fixture!("history-error"), "");
    assert!(
        dom.text("h1").starts_with("<i>order</i>&\"'"),
        "{}",
        dom.text("h1")
    );
    let foreign = ["i", "img", "b"].map(|name| {
        dom.all(name)
            .iter()
            .filter(|element| element.text == "order")
            .count()
    });
    assert_eq!(foreign, [0, 0, 0]);
    assert!(
        dom.all("script")
            .iter()
            .all(|script| script.get("src").is_some())
    );
    assert!(
        dom.all("pre")
            .iter()
            .any(|pre| pre.text.contains("</pre><script>x</script>"))
    );
}

#[test]
fn a_task_that_goes_on_by_itself_says_what_it_waits_for() {
    let dom = page(fixture!("task-waiting"), fixture!("history-waiting"), "");
    let note = &dom.classed("note")[0];
    assert!(note.has_class("processing"));
    assert!(note.text.starts_with("It waits at ship: shipping responded 503 Service Unavailable, “label printer is offline” on attempt"), "{}", note.text);
    assert!(
        note.text.contains("Nothing needs to be done for it"),
        "{}",
        note.text
    );
    assert!(
        dom.all("h2")
            .iter()
            .any(|title| title.text == "Why it is not running")
    );
    assert!(
        dom.link("task of invoice")
            .starts_with("/p/console/tasks/01a2240c-6dfb")
    );
    let followed = dom
        .0
        .iter()
        .find_map(|element| element.get("data-events"))
        .unwrap();
    assert!(followed.starts_with("/p/console/tasks/"), "{followed}");
}

#[test]
fn the_history_is_sentences_the_newest_first_and_leaves_details_out_until_asked() {
    let dom = Dom::of(&failed_page(""));
    let log = dom
        .all("ol")
        .into_iter()
        .find(|list| list.has_class("log"))
        .unwrap();
    assert!(
        log.text.contains(
            "charge failed permanently: 422 Unprocessable Entity, “currency is required”"
        ),
        "{}",
        log.text
    );
    assert!(log.text.contains("fraud-check processed on attempt 3"));
    assert!(!log.text.contains("reserve: ready"));
    let all = Dom::of(&failed_page("raw=1"));
    let entries = all
        .all("li")
        .into_iter()
        .filter(|line| line.text.contains("submitter"))
        .count();
    assert_eq!(entries, 2, "task.accepted and step.ready");
}

#[test]
fn a_list_of_items_is_one_node_with_a_bar_and_its_failures_come_first() {
    let mut sources = sources(fixture!("task-items"), fixture!("history-items"));
    sources.items = Some(Ok(read(fixture!("steps-rows"))));
    let dom = Dom::of(&OneTaskPage::new(
        shell(Role::Operate),
        &Params::read("step=rows"),
        sources,
    ));
    let nodes: Vec<_> = dom
        .all("a")
        .into_iter()
        .filter(|link| link.is_inside("svg"))
        .collect();
    assert_eq!(nodes.len(), 4);
    assert!(
        nodes[1].text.contains("error 33 of 300"),
        "{}",
        nodes[1].text
    );
    assert!(
        dom.all("h2")
            .iter()
            .any(|title| title.text == "rows, for each of 300 items")
    );
    let note = &dom.classed("note")[0].text;
    assert!(note.starts_with("33 of 300 items of rows are in error: catalog refused permanently with 422 Unprocessable Entity, “row has no sku”."), "{note}");
    assert!(dom.link("rows[8]").ends_with("?step=rows%5B8%5D#step"));
    assert!(
        dom.link("next").contains("state=error&after="),
        "{}",
        dom.link("next")
    );
}

#[test]
fn a_part_that_cannot_be_read_says_so_and_the_rest_stays() {
    let mut sources = sources(fixture!("task-error"), fixture!("history-error"));
    sources.history = Err(crate::service::Refusal::new(
        http::StatusCode::SERVICE_UNAVAILABLE,
        "Busy",
        "too many reads",
    ));
    let dom = Dom::of(&OneTaskPage::new(
        shell(Role::Operate),
        &Params::default(),
        sources,
    ));
    let history = dom
        .0
        .iter()
        .find(|element| element.get("id") == Some("history"))
        .unwrap();
    assert!(
        history
            .text
            .contains("The history cannot be read: too many reads"),
        "{}",
        history.text
    );
    assert!(
        !dom.classed("tl").is_empty(),
        "the timeline is drawn from the times of the steps"
    );
}

#[test]
fn the_plan_of_an_undo_has_every_call_in_its_stage() {
    let dom = Dom::of(&undo_page(Role::Operate));
    assert_eq!(
        dom.text("h1"),
        "Undo order-20702: 6 calls to 4 services, in 4 stages"
    );
    let plan = dom
        .all("ol")
        .into_iter()
        .find(|list| list.has_class("plan"))
        .unwrap();
    let at = |words: &str| {
        plan.text
            .find(words)
            .unwrap_or_else(|| panic!("{words} is not in {}", plan.text))
    };
    assert!(at("First, at the same time") < at("pack.undo"));
    assert!(at("pack.undo DELETE warehouse /packages/of/order-20702") < at("pick.undo"));
    assert!(at("charge.undo DELETE payments /charges/ch_77120") < at("reserve.undo"));
    assert_eq!(dom.classed("stage").len(), 4);
    let stays = dom
        .all("tr")
        .into_iter()
        .find(|row| row.text.starts_with("fraud-check"))
        .unwrap();
    assert!(
        stays.text.contains("0.040000000000000000001") && stays.text.contains("its effect remains"),
        "{}",
        stays.text
    );
}

#[test]
fn two_tasks_are_compared_by_what_matters() {
    let difference = read(fixture!("diff"));
    let dom = Dom::of(&ComparePage {
        page: shell(Role::Read),
        id: String::from("1"),
        with: String::from("order-20866"),
        difference,
    });
    assert!(
        dom.text("h1")
            .starts_with("order-20871 failed at charge, order-20866 did not"),
        "{}",
        dom.text("h1")
    );
    let rows: Vec<_> = dom
        .all("tr")
        .into_iter()
        .map(|row| row.text.as_str())
        .collect();
    assert!(
        rows.iter().any(|row| row.starts_with("/body/currency")
            && row.contains("absent")
            && row.contains("EUR")),
        "{rows:?}"
    );
    assert!(
        !rows.iter().any(|row| row.starts_with("/body/order")),
        "what follows from the key is left out"
    );
}

#[test]
fn a_workflow_shows_how_its_versions_differ_and_what_a_dry_run_says() {
    let sources = WorkflowSources {
        shown: read(fixture!("order-2")),
        versions: read(fixture!("versions")),
        usage: read(
            r#"{ "tasks": 1000, "more": true, "more_in_error": false, "versions": [
            { "version": 2, "tasks": 511, "error": 465, "in_error": 465 }, { "version": 1, "tasks": 489, "error": 1, "in_error": 14 }] }"#,
        ),
        compared: Some(Ok((read(fixture!("order-1")), read(fixture!("order-2"))))),
        report: Some(Ok(read(fixture!("dry-run")))),
    };
    let dom = Dom::of(&OnePage::new(
        shell(Role::Read),
        &Params::read("input=%7B%7D"),
        sources,
    ));
    let of_tasks: Vec<_> = dom
        .all("td")
        .into_iter()
        .filter(|cell| cell.has_class("num") && cell.is_inside("section"))
        .map(|cell| cell.text.as_str())
        .take(4)
        .collect();
    assert_eq!(of_tasks, ["511", "465", "489", "14"]);
    let notes: Vec<_> = dom.all("b").iter().map(|bold| bold.text.clone()).collect();
    assert!(
        notes
            .iter()
            .any(|note| note.starts_with("465 of 511 tasks of version 2 are in error;")),
        "{notes:?}"
    );
    let removed: Vec<_> = dom
        .all("del")
        .into_iter()
        .map(|line| line.text.as_str())
        .collect();
    assert!(
        removed
            .iter()
            .any(|line| line.contains("\"currency\": \"{{ input.currency }}\"")),
        "{removed:?}"
    );
    assert!(
        dom.0
            .iter()
            .any(|element| element.text.ends_with("11 steps are the same."))
    );
    let changed: Vec<_> = dom
        .all("a")
        .into_iter()
        .filter(|link| link.is_inside("svg") && link.has_class("on"))
        .collect();
    assert_eq!(changed.len(), 1);
    assert!(changed[0].text.starts_with("charge"));
    assert!(
        dom.0
            .iter()
            .any(|element| element.text == "would be accepted")
    );
}

#[test]
fn a_difference_of_versions_has_what_is_beside_the_steps_too() {
    let order = |more: &str| read(&fixture!("order-2").replacen('{', &format!("{{{more}"), 1));
    let sources = WorkflowSources {
        shown: read(fixture!("order-2")),
        versions: read(fixture!("versions")),
        usage: read(
            r#"{ "tasks": 1000, "more": true, "more_in_error": false, "versions": [
            { "version": 2, "tasks": 511, "error": 465, "in_error": 465 }, { "version": 1, "tasks": 489, "error": 1, "in_error": 14 }] }"#,
        ),
        compared: Some(Ok((
            order(r#""hide_bodies":false,"limits":{"max_open":1},"#),
            order(r#""hide_bodies":true,"limits":{"max_open":1},"finally":[{"name":"clean"}],"#),
        ))),
        report: None,
    };
    let query = Params::read("raw=1");
    let dom = Dom::of(&OnePage::new(shell(Role::Read), &query, sources));
    let titles: Vec<_> = dom
        .all("h3")
        .iter()
        .map(|title| title.text.as_str())
        .collect();
    assert_eq!(
        titles,
        ["finally of the workflow", "hide_bodies of the workflow"]
    );
    let added: Vec<_> = dom
        .all("ins")
        .iter()
        .map(|line| line.text.as_str())
        .collect();
    assert!(
        added.contains(&"+ true") && added.iter().any(|line| line.contains("clean")),
        "{added:?}"
    );
    let titles: Vec<_> = dom
        .all("h2")
        .iter()
        .map(|title| title.text.as_str())
        .collect();
    assert!(
        titles
            .iter()
            .any(|title| title.ends_with("the steps are the same")),
        "{titles:?}"
    );
}

#[test]
fn a_task_whose_agent_is_not_registered_says_what_to_do() {
    let mut task: serde_json::Value = read(fixture!("task-waiting"));
    for step in task["steps"].as_array_mut().unwrap() {
        step["blocked_by"] = serde_json::Value::Null;
        if step["state"] == "processing" {
            step["state"] = "pending".into();
        }
    }
    let steps = task["steps"].as_array_mut().unwrap();
    let first = steps
        .iter_mut()
        .find(|step| step["state"] == "pending")
        .unwrap();
    first["blocked_by"] = serde_json::json!({"reason": "agent", "agent": "gone"});
    let dom = page(&task.to_string(), fixture!("history-error"), "");
    let note = &dom.classed("note")[0].text;
    assert!(note.contains("agent gone is not registered"), "{note}");
    assert!(note.contains("Register the agent"), "{note}");
    assert!(!note.contains("goes on by itself."), "{note}");
}

#[test]
fn the_time_since_a_failure_is_marked_so_that_it_goes_on() {
    let dom = Dom::of(&failed_page(""));
    let since: Vec<_> = dom
        .0
        .iter()
        .filter(|part| part.get("data-since").is_some())
        .collect();
    assert_eq!(since.len(), 1);
    assert_eq!(since[0].text, "31 min ago");
}

#[test]
fn a_task_that_is_paused_while_in_error_says_both_and_offers_to_resume_it() {
    let text = fixture!("task-error").replacen('{', "{\"paused\":true,", 1);
    let dom = page(&text, fixture!("history-error"), "");
    let pills: Vec<_> = dom.classed("pill").into_iter().collect();
    let words: Vec<_> = pills.iter().map(|pill| pill.text.as_str()).collect();
    assert_eq!(words, ["error", "paused"]);
    assert!(dom.link("Resume…").ends_with("/resume"));
    let not_now = dom.all("p").into_iter();
    let not_now: String = not_now.map(|line| line.text.as_str()).collect();
    assert!(
        not_now.contains("pause (the task is paused already)"),
        "{not_now}"
    );
    let note = &dom.classed("note")[0].text;
    assert!(
        note.contains("An operator has paused the task, too"),
        "{note}"
    );
}

#[test]
fn a_state_of_a_later_version_is_shown_by_its_word() {
    let text = fixture!("task-error").replace("\"state\":\"waiting\"", "\"state\":\"hibernating\"");
    let dom = page(&text, fixture!("history-error"), "");
    assert!(dom.all("td").iter().any(|cell| cell.text == "hibernating"));
}

#[test]
fn an_empty_history_and_a_task_without_steps_make_a_page() {
    let mut sources = sources(fixture!("task-later"), fixture!("history-error"));
    sources.history = Ok(History::default());
    sources.task.steps.clear();
    let dom = Dom::of(&OneTaskPage::new(
        shell(Role::Operate),
        &Params::default(),
        sources,
    ));
    assert!(
        dom.classed("note")[0].text.starts_with("It begins in"),
        "{}",
        dom.classed("note")[0].text
    );
}

#[test]
fn one_thing_has_a_verb_of_one_and_an_agent_that_is_a_url_no_link() {
    let why = |blocked: &str| crate::task::words::why(&read(blocked)).words;
    assert_eq!(
        why(r#"{"reason":"items","running":1,"waiting":1,"error":1}"#),
        "waits for its items: 1 running, 1 waiting, 1 in error"
    );
    assert_eq!(
        why(r#"{"reason":"items","running":2,"waiting":0,"error":3}"#),
        "waits for its items: 2 running, 3 in error"
    );
    assert_eq!(
        why(r#"{"reason":"max_parallel","max_parallel":1}"#),
        "at most 1 item runs at once"
    );
    let frame = shell(Role::Read);
    assert_eq!(
        frame.agent_page("payments").as_deref(),
        Some("/p/console/agents/payments")
    );
    for other in ["http://127.0.0.1:9000", "(url)", "(other)"] {
        assert_eq!(frame.agent_page(other), None, "{other}");
    }
    let text = fixture!("task-waiting").replace(r#""agent":"shipping""#, r#""agent":"http://a:1""#);
    assert_ne!(text, fixture!("task-waiting"));
    let dom = page(&text, fixture!("history-waiting"), "");
    let mut links = dom.all("a").into_iter().filter_map(|link| link.get("href"));
    assert!(!links.any(|link| link.contains("/agents/http")));
}

#[test]
fn a_step_that_has_lost_is_not_said_to_run() {
    let note = |lost: &[&str]| {
        let mut task: serde_json::Value = read(fixture!("task-later"));
        task["start_at"] = serde_json::Value::Null;
        for (step, name) in [(1, "reserve"), (2, "fraud-check")] {
            let step = &mut task["steps"][step];
            assert_eq!(step["name"], name);
            step["state"] = "processing".into();
            step["blocked_by"] = serde_json::Value::Null;
            if lost.contains(&name) {
                step["lost"] = "undo".into();
            }
        }
        let dom = page(&task.to_string(), fixture!("history-error"), "step=reserve");
        let mut facts = dom.all("dd").into_iter();
        let lost = facts.any(|fact| fact.text == "its end is awaited, and what it did is undone");
        (dom.classed("note")[0].text.clone(), lost)
    };
    let (none, is_said) = note(&[]);
    assert!(none.starts_with("reserve, fraud-check run"), "{none}");
    assert!(!is_said);
    let (one, is_said) = note(&["reserve"]);
    assert!(one.starts_with("fraud-check runs"), "{one}");
    assert!(
        one.contains("reserve has lost: its end is awaited, and what it did is undone."),
        "{one}"
    );
    assert!(is_said);
    let (both, _) = note(&["reserve", "fraud-check"]);
    assert!(
        both.starts_with("reserve, fraud-check have lost: their ends are awaited"),
        "{both}"
    );
}
