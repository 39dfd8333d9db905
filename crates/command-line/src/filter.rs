//! The filters that select tasks: of `tasks` as arguments each, of commands for many tasks as `--filter name=value`.

use clap::Args;
use clap_complete::ArgValueCompleter;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{completion, files::name_value, outcome::ClientError, values};

/// The filters of `GET /v1/tasks`.
#[derive(Args, Clone, Debug, Default)]
pub struct TaskFilters {
    /// Only tasks in this state
    #[arg(long, value_name = "STATE", value_parser = values::TASK_STATES)]
    pub state: Option<String>,

    /// Only tasks of this workflow
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::workflows))]
    pub workflow: Option<String>,

    /// Only tasks with this key
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,

    /// Only tasks with a step of this agent; with --state error, those of which a step failed there
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::agents))]
    pub agent: Option<String>,

    /// Only tasks that this alert is about
    #[arg(long, value_name = "ID", value_parser = values::uuid, add = ArgValueCompleter::new(completion::alerts))]
    pub alert: Option<String>,

    /// Only tasks that need a person for this cause
    #[arg(long, value_name = "FINGERPRINT", value_parser = values::fingerprint, add = ArgValueCompleter::new(completion::causes))]
    pub cause: Option<String>,

    /// Only tasks with this text in their key or in the message of a failed step
    #[arg(long, value_name = "TEXT")]
    pub text: Option<String>,

    /// Only tasks with this label; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_value)]
    pub label: Vec<(String, String)>,

    /// Only tasks that were submitted after this time, or in this last time: 2026-03-01T00:00:00Z or 2h
    #[arg(long, value_name = "TIME", value_parser = values::past)]
    pub created_after: Option<String>,

    /// Only tasks that were submitted before this time, or longer ago than this: 2026-03-01T00:00:00Z or 2h
    #[arg(long, value_name = "TIME", value_parser = values::past)]
    pub created_before: Option<String>,

    /// Only tasks that will be late by what is known
    #[arg(long)]
    pub at_risk: bool,

    /// Only tasks of this bulk job
    #[arg(long, value_name = "ID", value_parser = values::uuid, add = ArgValueCompleter::new(completion::bulk_jobs))]
    pub bulk: Option<String>,

    /// With --bulk: those that accepted the command, refused it, or accepted it and failed again [default: accepted]
    #[arg(long, value_name = "RESULT", requires = "bulk", value_parser = values::BULK_RESULTS)]
    pub bulk_result: Option<String>,

    /// Only the tasks of steps of this task
    #[arg(long, value_name = "ID", value_parser = values::uuid, add = ArgValueCompleter::new(completion::task_ids))]
    pub parent: Option<String>,
}

impl TaskFilters {
    /// Returns the parameters of the list.
    pub fn query(&self, now: Timestamp) -> Result<Vec<(&'static str, String)>, ClientError> {
        let mut query = Vec::new();
        let texts = [
            ("state", &self.state),
            ("workflow", &self.workflow),
            ("key", &self.key),
            ("agent", &self.agent),
            ("alert", &self.alert),
            ("cause", &self.cause),
            ("text", &self.text),
            ("bulk", &self.bulk),
            ("bulk_result", &self.bulk_result),
            ("parent", &self.parent),
        ];
        for (name, value) in texts {
            query.extend(value.clone().map(|value| (name, value)));
        }
        for (name, value) in &self.label {
            query.push(("label", format!("{name}:{value}")));
        }
        for (name, value) in [
            ("created_after", &self.created_after),
            ("created_before", &self.created_before),
        ] {
            if let Some(value) = value {
                query.push((name, time(value, now)?));
            }
        }
        if self.at_risk {
            query.push(("at_risk", "true".to_owned()));
        }
        Ok(query)
    }
}

/// Returns a time of the API from a time, or from how long ago it was.
pub fn time(text: &str, now: Timestamp) -> Result<String, ClientError> {
    values::past_at(text, now).map_err(ClientError::usage)
}

/// The tasks of a command for many.
#[derive(Args, Clone, Debug, Default)]
pub struct Selection {
    /// Instead of a task: all tasks that need a person for this cause, as a bulk job
    #[arg(long, value_name = "FINGERPRINT", value_parser = values::fingerprint, help_heading = "Many tasks", conflicts_with = "task", add = ArgValueCompleter::new(completion::causes))]
    pub cause: Option<String>,

    /// Instead of a task: all tasks that match, as a bulk job; may be repeated. The names are those of `provost tasks`,
    /// such as workflow=order, state=error, label=country:DE or created_after=2h
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Many tasks", conflicts_with = "task", value_parser = filter, add = ArgValueCompleter::new(completion::filters))]
    pub filter: Vec<(String, String)>,

    /// Instead of a task: all tasks that the command is for
    #[arg(long, help_heading = "Many tasks", conflicts_with_all = ["task", "cause", "filter"])]
    pub all: bool,
}

const TIMES: [&str; 2] = ["created_after", "created_before"];

fn filter(text: &str) -> Result<(String, String), String> {
    let (name, value) = name_value(text)?;
    if !values::FILTERS.contains(&name.as_str()) {
        let names = values::FILTERS.join(", ");
        return Err(format!("{name} is no filter: there are {names}"));
    }
    let checked = match name.as_str() {
        "state" => values::word(&value, &values::TASK_STATES),
        "bulk_result" => values::word(&value, &values::BULK_RESULTS),
        "at_risk" => values::word(&value, &["true", "false"]),
        "cause" => values::fingerprint(&value).map(drop),
        "alert" | "bulk" => values::uuid(&value).map(drop),
        "label" => name_value(&value).map(drop),
        name if TIMES.contains(&name) => values::past(&value).map(drop),
        _ => Ok(()),
    };
    checked.map_err(|error| format!("{name}: {error}"))?;
    Ok((name, value))
}

impl Selection {
    pub fn is_given(&self) -> bool {
        self.cause.is_some() || !self.filter.is_empty() || self.all
    }

    /// Returns the members of the body that select the tasks.
    pub fn members(&self, now: Timestamp) -> Result<Map<String, Value>, ClientError> {
        let mut members = Map::new();
        let mut labels = Map::new();
        if let Some(cause) = &self.cause {
            members.insert("cause".to_owned(), json!(cause));
        }
        for (name, value) in &self.filter {
            let value = match name.as_str() {
                "label" => {
                    let (label, value) = name_value(value).map_err(ClientError::usage)?;
                    labels.insert(label, json!(value));
                    continue;
                }
                "at_risk" => json!(value == "true"),
                name if TIMES.contains(&name) => json!(time(value, now)?),
                _ => json!(value),
            };
            if members.insert(name.clone(), value).is_some() {
                return Err(ClientError::usage(format!(
                    "the filter {name} is given twice"
                )));
            }
        }
        if !labels.is_empty() {
            members.insert("labels".to_owned(), Value::Object(labels));
        }
        if self.all {
            members.insert("all".to_owned(), json!(true));
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn filters_become_members_of_the_body() {
        let selection = Selection {
            cause: Some("5f1d".to_owned()),
            filter: vec![
                filter("workflow=order").unwrap(),
                filter("label=country:DE").unwrap(),
                filter("created_after=2h").unwrap(),
                filter("at_risk=true").unwrap(),
            ],
            all: false,
        };
        let expected = json!({ "cause": "5f1d", "workflow": "order", "created_after": "2026-03-01T10:00:00Z", "at_risk": true,
            "labels": { "country": "DE" } });
        assert_eq!(Value::Object(selection.members(now()).unwrap()), expected);
    }

    #[test]
    fn an_unknown_filter_and_one_given_twice_are_refused() {
        assert!(filter("worflow=order").unwrap_err().contains("workflow"));
        for wrong in [
            "state=bad",
            "at_risk=maybe",
            "created_after=soon",
            "cause=zzz",
        ] {
            assert!(filter(wrong).is_err(), "{wrong}");
        }
        let twice = Selection {
            filter: vec![filter("key=a").unwrap(), filter("key=b").unwrap()],
            ..Selection::default()
        };
        assert!(twice.members(now()).is_err());
    }

    #[test]
    fn parameters_of_the_list_have_the_names_of_the_api() {
        let filters = TaskFilters {
            state: Some("error".to_owned()),
            label: vec![("country".to_owned(), "DE".to_owned())],
            created_before: Some("2026-01-01T00:00:00Z".to_owned()),
            at_risk: true,
            ..TaskFilters::default()
        };
        let query = filters.query(now()).unwrap();
        let shown: Vec<_> = query
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            shown,
            [
                "state=error",
                "label=country:DE",
                "created_before=2026-01-01T00:00:00Z",
                "at_risk=true"
            ]
        );
    }
}
