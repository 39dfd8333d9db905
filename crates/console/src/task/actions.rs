//! The commands that a page offers: buttons for those that are most likely, a menu for the others, and a reason for each
//! that does not apply now.

use super::{
    command::{Command, command_link},
    record::{Step, Task},
};
use crate::{parts::counted, shell::Shell};

/// A button, or an item under More.
pub struct TaskAction {
    pub link: String,
    pub title: String,
    pub is_main: bool,
}

type TaskActions = (Vec<TaskAction>, Vec<TaskAction>, Vec<(String, String)>);

pub fn actions(
    page: &Shell,
    task: &Task,
    shown: Option<&str>,
    undo: Option<&super::undo::Plan>,
) -> TaskActions {
    let (mut buttons, mut more, mut not_now) = (Vec::new(), Vec::new(), Vec::new());
    let about = shown.and_then(|name| task.step(name)).filter(|step| {
        step.state == "error"
            || (step.state != "waiting" && Command::Skip.obstacle(task, Some(step)).is_none())
    });
    let about = about.or_else(|| task.failed_step());
    // The step that is looked at may wait, while another one is called.
    let called = |step: &&Step| step.has_call_under_way();
    let called = about
        .filter(called)
        .or_else(|| task.steps.iter().find(called));
    let awaits = |step: &&Step| step.awaits_signal();
    let shown_step = shown.and_then(|name| task.step(name)).filter(awaits);
    let awaiting = shown_step.or_else(|| {
        let mut steps = task.steps.iter().filter(awaits);
        steps.find(|step| step.state == "processing")
    });
    for command in Command::ALL {
        let step = match command {
            Command::CancelStep => called,
            Command::Signal => awaiting,
            _ => about.filter(|_| command.needs_step() || command == Command::Retry),
        };
        let title = match (command, step, undo) {
            (Command::Undo, _, Some(plan)) if plan.possible => {
                format!("Undo, {}…", counted(plan.count(), "call", "calls"))
            }
            (_, Some(step), _) => format!("{} {}…", command.title(), step.name),
            _ => format!("{}…", command.title()),
        };
        let link = command_link(page, &task.id, command, step.map(|step| step.name.as_str()));
        let impossible = undo.filter(|plan| command == Command::Undo && !plan.possible);
        let impossible = impossible.map(|plan| plan.reason.clone().unwrap_or_default());
        if let Some(why) = command.obstacle(task, step).or(impossible) {
            // Beside the cancellation of the task, that of a step would read as the same; and most tasks await no event.
            if matches!(command, Command::CancelStep | Command::Signal) {
                continue;
            }
            not_now.push((command.title().to_lowercase(), why));
            continue;
        }
        let is_main = buttons.is_empty()
            && match command {
                Command::Retry => task.state == "error",
                Command::Resume | Command::Start => true,
                _ => false,
            };
        let action = TaskAction {
            link,
            title,
            is_main,
        };
        let in_front = match command {
            Command::Skip | Command::Resolve => step.is_some_and(|step| step.state == "error"),
            Command::Signal => true,
            Command::Pause => task.state != "error",
            Command::Retry | Command::Undo | Command::Resume | Command::Start => true,
            _ => false,
        };
        if in_front {
            buttons.push(action)
        } else {
            more.push(action)
        }
    }
    if !task.has_ended() && task.state != "undoing" && task.steps.len() > 1 {
        let link = format!("{}/retry?rerun=1", page.task(&task.id));
        more.push(TaskAction {
            link,
            title: String::from("Rerun from a step…"),
            is_main: false,
        });
    }
    if !page.operates() {
        // The role lacks the right: commands stay reachable as previews, but are no buttons.
        more.splice(0..0, buttons.drain(..));
    }
    (buttons, more, not_now)
}
