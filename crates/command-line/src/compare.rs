//! `provost diff` of two tasks: why one failed and the other did not.

use crate::{
    find_task::{self, Purpose},
    operations::COMPARE_TASKS,
    outcome::{ClientError, Outcome},
    output::{Cell, Table},
    plain::{counted, plain},
    session::Session,
    shapes::{ComparedValueJson, DifferenceListJson, TaskDifferenceJson},
};

/// The longest value that is shown, in characters.
const LONGEST: usize = 80;

pub async fn run(session: &Session, one: &str, other: &str) -> Result<Outcome, ClientError> {
    let a = find_task::find_id(&session.api, one, Purpose::Show).await?;
    let b = find_task::find_id(&session.api, other, Purpose::Show).await?;
    let response = session
        .api
        .request(&COMPARE_TASKS, &[&a, &b])
        .send()
        .await?;
    let difference: TaskDifferenceJson = response.read()?;
    let out = &session.out;
    if !out.is_for_people() {
        out.object(&response.text, &a)?;
        return Ok(Outcome::Done);
    }
    out.say(plain(&difference.sentence))?;
    let mut table = Table::new(&["WHERE", "A", "B", "FOLLOWS FROM"]);
    if !difference.definition.same {
        rows(&mut table, "definition", &difference.definition.differences);
    }
    rows(&mut table, "submission", &difference.submission);
    rows(&mut table, "input", &difference.input);
    for step in &difference.steps {
        let state = |side: &Option<crate::shapes::ComparedSideJson>| match side {
            Some(side) => {
                let reason = side.reason.as_deref().map(|reason| format!(": {reason}"));
                format!(
                    "{} after {}{}",
                    side.state,
                    counted(side.attempts, "attempt"),
                    reason.unwrap_or_default()
                )
            }
            None => "(not there)".to_owned(),
        };
        if step
            .differs
            .iter()
            .any(|part| part == "state" || part == "reason")
        {
            table.row([
                Cell::new(&step.name),
                Cell::new(state(&step.a)),
                Cell::new(state(&step.b)),
            ]);
        }
        for (part, list) in [("request", &step.request), ("response", &step.response)] {
            if let Some(list) = list {
                rows(&mut table, &format!("{} {part}", step.name), list);
            }
        }
    }
    out.table("", &table)?;
    if difference.more_steps {
        out.say("there are more steps: -o json has those that are compared")?;
    }
    Ok(Outcome::Done)
}

fn rows(table: &mut Table, part: &str, list: &DifferenceListJson) {
    for item in &list.items {
        table.row([
            Cell::new(format!("{part} {}", item.pointer)),
            Cell::new(shown(item.a.as_ref())),
            Cell::new(shown(item.b.as_ref())),
            Cell::optional(item.follows_from.as_deref()),
        ]);
    }
    if list.more {
        table.row([Cell::new(format!("{part} …"))]);
    }
}

fn shown(value: Option<&ComparedValueJson>) -> String {
    let Some(value) = value else {
        return "(not there)".to_owned();
    };
    let text = match (&value.value, &value.excerpt) {
        (Some(value), _) => value.to_string(),
        (None, Some(excerpt)) => format!("{excerpt}… ({} bytes)", value.bytes),
        (None, None) => "null".to_owned(),
    };
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
