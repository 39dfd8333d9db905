//! Finds the task that an argument names: by its id, or by its key.

use uuid::Uuid;

use crate::{
    api::Api,
    operations::{GET_TASK, LIST_TASKS},
    outcome::ClientError,
    output::note,
    plain::{plain, shell_word},
    shapes::{TaskJson, TaskSummaryJson},
};

/// A task as it was read.
#[derive(Debug)]
pub struct FoundTask {
    pub task: TaskJson,
    /// The response.
    pub json: String,
}

/// The use of a task that is looked for by its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The latest task with the key is shown.
    Show,
    /// A command must name exactly one task. Of several it is the latest one, if that alone has not ended.
    Command,
}

/// The most tasks with one key that are looked at.
const MOST: usize = 20;

const ENDED: [&str; 3] = ["processed", "undone", "cancelled"];

/// Returns the id of the task with this id or key.
pub async fn find_id(api: &Api, name: &str, purpose: Purpose) -> Result<String, ClientError> {
    if name.is_empty() {
        return Err(ClientError::usage(
            "the name of the task is empty: give its id or its key",
        ));
    }
    if Uuid::try_parse(name).is_ok() {
        return Ok(find_uuid(api, name, purpose).await?.task.id);
    }
    choose(name, &with_key(api, name, MOST).await?, purpose)
}

/// Returns the latest tasks with a key.
async fn with_key(api: &Api, key: &str, most: usize) -> Result<Vec<TaskSummaryJson>, ClientError> {
    let query = [("key", key.to_owned())];
    api.list(&LIST_TASKS, &[], &query, most).await?.read()
}

/// Returns the name for a task in commands that people copy: its key if that means this task alone, and its id otherwise.
pub async fn name_in_commands(api: &Api, task: &TaskJson) -> Result<String, ClientError> {
    if let Some(key) = &task.key
        && is_word(key)
        && with_key(api, key, 2).await?.len() == 1
    {
        return Ok(key.clone());
    }
    Ok(task.id.clone())
}

/// Returns whether a key is a word that neither a shell nor this program reads as something else.
fn is_word(key: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    !key.starts_with('-') && key.chars().all(is_plain) && Uuid::try_parse(key).is_err()
}

fn choose(name: &str, tasks: &[TaskSummaryJson], purpose: Purpose) -> Result<String, ClientError> {
    let open: Vec<_> = tasks
        .iter()
        .filter(|task| !ENDED.contains(&task.state.as_str()))
        .collect();
    match (tasks, purpose) {
        ([], _) => Err(ClientError::NotFound(format!(
            "no task has the id or the key {name:?}: provost tasks --text {} searches",
            shell_word(name)
        ))),
        ([task], _) => Ok(task.id.clone()),
        ([latest, ..], Purpose::Show) => {
            note(format_args!(
                "{} tasks have the key {}; this is the latest one: provost tasks --key {} lists them",
                tasks.len(),
                plain(name),
                shell_word(name)
            ));
            Ok(latest.id.clone())
        }
        ([latest, ..], Purpose::Command) => match open.as_slice() {
            [only] if only.id == latest.id => {
                note(format_args!(
                    "{} tasks have the key {}; this is about {}, the latest one, and the others have ended",
                    tasks.len(),
                    plain(name),
                    plain(&latest.id)
                ));
                Ok(only.id.clone())
            }
            _ => {
                let ids: Vec<_> = tasks
                    .iter()
                    .map(|task| format!("\n  {}  {}", task.id, task.state))
                    .collect();
                Err(ClientError::usage(format!(
                    "{} tasks have the key {name}: give the id of one of them{}",
                    tasks.len(),
                    ids.concat()
                )))
            }
        },
    }
}

/// Reads the task with this id or key.
pub async fn find(api: &Api, name: &str, purpose: Purpose) -> Result<FoundTask, ClientError> {
    match Uuid::try_parse(name) {
        Ok(_) => find_uuid(api, name, purpose).await,
        Err(_) => read(api, &find_id(api, name, purpose).await?).await,
    }
}

async fn find_uuid(api: &Api, name: &str, purpose: Purpose) -> Result<FoundTask, ClientError> {
    match read(api, name).await {
        // The key of a task may look like an id too.
        Err(error) if error.problem(404).is_some() => {
            let tasks = with_key(api, name, MOST).await?;
            match tasks.is_empty() {
                true => Err(error),
                false => read(api, &choose(name, &tasks, purpose)?).await,
            }
        }
        found => found,
    }
}

/// Reads the task with this id.
pub async fn read(api: &Api, id: &str) -> Result<FoundTask, ClientError> {
    let response = api.request(&GET_TASK, &[id]).send().await?;
    Ok(FoundTask {
        task: response.read()?,
        json: response.text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: &str, state: &str) -> TaskSummaryJson {
        TaskSummaryJson {
            id: id.to_owned(),
            state: state.to_owned(),
            ..TaskSummaryJson::default()
        }
    }

    #[test]
    fn a_command_takes_a_key_only_if_one_task_can_be_meant() {
        let two = [task("b", "error"), task("a", "processed")];
        assert_eq!(choose("k", &two, Purpose::Command).unwrap(), "b");
        assert_eq!(choose("k", &two, Purpose::Show).unwrap(), "b");
        // The command `provost task k` shows the task b of these.
        for states in [
            ["error", "error"],
            ["processed", "error"],
            ["processed", "processed"],
        ] {
            let both = [task("b", states[0]), task("a", states[1])];
            let refused = choose("k", &both, Purpose::Command);
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("give the id"), "{refused}");
        }
        assert!(choose("k", &[], Purpose::Show).is_err());
        assert_eq!(
            choose("k", &[task("a", "processed")], Purpose::Command).unwrap(),
            "a"
        );
    }

    #[test]
    fn a_key_that_would_be_read_as_something_else_is_not_in_a_command() {
        assert!(is_word("order-1.a:b_c"));
        let id = "019c7a5e-0000-7000-8000-000000000000";
        for other in ["a b; rm", "-n", "größe", id] {
            assert!(!is_word(other), "{other}");
        }
    }
}
