//! The cures of problems. Those of `docs/problems.md`, which the server serves too, are for programs that use the API; people
//! at this client do the same with its commands.

const PROBLEMS: &str = include_str!("../../../docs/problems.md");

/// The cures in commands of this client.
const OF_COMMANDS: [(&str, &str); 20] = [
    (
        "invalid",
        "correct the option or the member that is named above: /first is --first or \"first\"; commands with --dry-run check without a change",
    ),
    (
        "unauthenticated",
        "give a token: provost login remembers it for a server; --token-file or PROVOST_TOKEN give it to one command",
    ),
    (
        "forbidden",
        "use a token with that role: provost login remembers it; --token-file or PROVOST_TOKEN give it to one command",
    ),
    (
        "invalid-query",
        "--help shows the options of the command and the values that they take",
    ),
    (
        "no-such-task",
        "provost tasks lists the tasks, and provost tasks --key KEY those with a key",
    ),
    ("no-such-step", "provost task TASK shows the steps"),
    (
        "no-such-workflow",
        "provost workflow list shows the workflows, and provost apply FILE registers one",
    ),
    (
        "no-such-schedule",
        "provost schedule list shows the schedules, and provost apply FILE makes one",
    ),
    (
        "no-such-agent",
        "provost agent list shows the agents, and provost apply FILE registers one",
    ),
    ("no-such-failure", "provost failures lists the causes"),
    ("no-such-message", "provost message list shows the messages"),
    ("no-such-bulk-job", "provost bulk list shows the jobs"),
    (
        "task-ended",
        "provost clone TASK submits a new task like it; provost undo TASK takes back what a processed task has done",
    ),
    (
        "wrong-task-state",
        "provost task TASK shows its state and the commands that apply",
    ),
    (
        "wrong-step-state",
        "provost task TASK shows the states of its steps and the commands that apply",
    ),
    (
        "cannot-migrate",
        "provost migrate TASK --to VERSION --dry-run shows the steps that prevent it",
    ),
    (
        "version-mismatch",
        "another client changed it meanwhile: look at it, and give the command again",
    ),
    (
        "precondition-failed",
        "another client changed it meanwhile: compare again with provost diff FILE",
    ),
    ("bulk-job-ended", "provost bulk show JOB shows its end"),
    (
        "idempotency-key-reused",
        "give another --idempotency-key, or the submission that it was used for",
    ),
];

/// The requests that the server names in its texts, each with the command that does the same.
const OF_REQUESTS: [(&str, &str); 14] = [
    (
        "GET /v1/workflows/{}/versions",
        "provost workflow history {}",
    ),
    ("PUT /v1/workflows/{}", "provost apply"),
    ("GET /v1/workflows", "provost workflow list"),
    ("PUT /v1/agents/{}", "provost apply"),
    ("POST /v1/agents/{}/pause", "provost agent pause {}"),
    ("GET /v1/agents/{}", "provost agent show {}"),
    ("GET /v1/agents", "provost agent list"),
    ("GET /v1/failures", "provost failures"),
    ("GET /v1/tasks/{}/history", "provost task {} --history"),
    ("GET /v1/tasks/{}/undo-plan", "provost undo {} --dry-run"),
    ("POST /v1/tasks/{}/undo", "provost undo {}"),
    ("GET /v1/tasks", "provost tasks"),
    ("GET /v1/schedules", "provost schedule list"),
    ("GET /v1/bulk/{}", "provost bulk show {}"),
];

/// Returns the cure of a kind of problem, in one line.
pub fn of(kind: &str) -> Option<String> {
    let mut known = OF_COMMANDS.iter();
    if let Some((_, cure)) = known.find(|(known, _)| *known == kind) {
        return Some((*cure).to_owned());
    }
    of_page(kind).map(|cure| in_commands(&cure))
}

/// Returns the cure in the page of the problem.
fn of_page(kind: &str) -> Option<String> {
    let mut sections = PROBLEMS.split("\n## ").skip(1);
    let section = sections.find_map(|section| {
        let (name, text) = section.split_once('\n')?;
        (name == kind).then_some(text)
    })?;
    let cure = section.split_once("**Cure**: ")?.1;
    let cure = cure.split("\n\n").next()?;
    Some(without_links(
        &cure.split_whitespace().collect::<Vec<_>>().join(" "),
    ))
}

/// Returns the text with the commands of this client for the requests that it names.
pub fn in_commands(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("/v1/") {
        let begin = rest[..at]
            .trim_end()
            .rfind(|c: char| !c.is_ascii_uppercase());
        let begin = begin.map_or(0, |before| {
            before + rest[before..].chars().next().map_or(1, char::len_utf8)
        });
        let is_of_path = |c: char| c.is_alphanumeric() || "/-_.{}".contains(c);
        let end = rest[at..]
            .find(|c| !is_of_path(c))
            .map_or(rest.len(), |end| at + end);
        // The end of a sentence is not one of the path.
        let end = begin + rest[begin..end].trim_end_matches('.').len();
        shown.push_str(&rest[..begin]);
        let request = &rest[begin..end];
        shown.push_str(&command_of(request).unwrap_or_else(|| request.to_owned()));
        rest = &rest[end..];
    }
    shown + rest
}

/// Returns the command that does the same as a request such as `GET /v1/agents/payments`.
fn command_of(request: &str) -> Option<String> {
    let mut known = OF_REQUESTS.iter();
    known.find_map(|(pattern, command)| {
        let (mut words, mut value) = (request.split('/'), None);
        for part in pattern.split('/') {
            let word = words.next()?;
            match part {
                "{}" => value = Some(word),
                part if part == word => {}
                _ => return None,
            }
        }
        let is_same = words.next().is_none();
        let name = value.unwrap_or_default().trim_matches(['{', '}']);
        is_same.then(|| command.replace("{}", name))
    })
}

/// Returns the text with the words of its links alone: a terminal cannot follow them.
fn without_links(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some((before, (words, after))) = rest.split_once('[').and_then(|(before, link)| {
        let (words, target) = link.split_once("](")?;
        Some((before, (words, target.split_once(')')?.1)))
    }) {
        shown.push_str(before);
        shown.push_str(words);
        rest = after;
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_problem_has_a_cure_in_one_line_without_links() {
        let kinds = PROBLEMS.split("\n## ").skip(1);
        let kinds: Vec<_> = kinds.filter_map(|section| section.lines().next()).collect();
        assert!(kinds.len() > 50, "{kinds:?}");
        for kind in kinds {
            let cure = of(kind).unwrap_or_else(|| panic!("{kind} has no cure"));
            assert!(
                !cure.contains('\n') && !cure.contains("]("),
                "{kind}: {cure}"
            );
        }
        assert_eq!(of("nothing"), None);
    }

    #[test]
    fn the_problems_of_this_client_are_those_of_the_page() {
        for (kind, _) in OF_COMMANDS {
            assert!(of_page(kind).is_some(), "{kind}");
        }
    }

    #[test]
    fn requests_become_commands_where_there_is_one() {
        for (text, expected) in [
            (
                "GET /v1/workflows/order/versions lists them",
                "provost workflow history order lists them",
            ),
            (
                "register it with PUT /v1/agents/payments.",
                "register it with provost apply.",
            ),
            ("see: GET /v1/failures", "see: provost failures"),
            ("POST /v1/hold/release does", "POST /v1/hold/release does"),
            (
                "use `POST /v1/tasks/{id}/undo` or not",
                "use `provost undo id` or not",
            ),
            ("größe /v1/tasks", "größe /v1/tasks"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(in_commands(text), expected);
        }
    }

    #[test]
    fn of_a_link_the_words_stay() {
        assert_eq!(
            without_links("see [agents](agents.md#a), or [b](c)."),
            "see agents, or b."
        );
        assert_eq!(without_links("items[0] is"), "items[0] is");
    }
}
