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
    /// A command must name exactly one task, of those that have not ended if there are several.
    Command,
}

const ENDED: [&str; 3] = ["processed", "undone", "cancelled"];

/// Returns the id of the task with this id or key.
pub async fn find_id(api: &Api, name: &str, purpose: Purpose) -> Result<String, ClientError> {
    if Uuid::try_parse(name).is_ok() {
        return Ok(name.to_owned());
    }
    let query = [("key", name.to_owned())];
    let listing = api.list(&LIST_TASKS, &[], &query, 20).await?;
    let tasks: Vec<TaskSummaryJson> = listing.read()?;
    choose(name, &tasks, purpose)
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
        (_, Purpose::Command) => match open.as_slice() {
            [only] => Ok(only.id.clone()),
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
    let id = find_id(api, name, purpose).await?;
    read(api, &id).await
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
        let both = [task("b", "error"), task("a", "error")];
        let refused = choose("k", &both, Purpose::Command)
            .unwrap_err()
            .to_string();
        assert!(refused.contains("give the id"), "{refused}");
        assert!(choose("k", &[], Purpose::Show).is_err());
        assert_eq!(
            choose("k", &[task("a", "processed")], Purpose::Command).unwrap(),
            "a"
        );
    }
}
