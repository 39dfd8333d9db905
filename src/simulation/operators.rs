//! Operators, who send commands to random tasks while there are faults, and see to tasks in error at the end.

use std::{sync::Arc, time::Duration};

use rand::{RngExt, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::world::SimulatedWorld;

/// Works until there are no more faults.
pub async fn work(world: Arc<SimulatedWorld>) {
    let mut random = world.random(3);
    while !world.is_well() {
        sleep(Duration::from_millis(random.random_range(50..1_500))).await;
        let task = {
            let accepted = world.accepted.lock();
            if accepted.is_empty() {
                continue;
            }
            accepted[random.random_range(0..accepted.len())].clone()
        };
        let step = &task.plan.steps[random.random_range(0..task.plan.steps.len())].name;
        let path = command(&mut random, &task.id, step);
        let to = world.instance(random.random_range(0..8));
        let body = json!({ "reason": "the simulation" });
        let answer = world.call(to, "POST", &path, None, Some(&body)).await;
        let status = answer.as_ref().map_or(0, |answer| answer.status);
        world.note(format_args!("{path}: {status}"));
        let Some(answer) = answer else { continue };
        let no_step = answer.body["type"] == "/problems/no-such-step";
        if ![200, 202, 409, 412, 503].contains(&answer.status) && !no_step {
            let what = format!("{} to {path}: {}", answer.status, answer.body);
            world.odd.lock().push(what);
        }
    }
}

fn command(random: &mut StdRng, task: &str, step: &str) -> String {
    let of_task = |command: &str| format!("/v1/tasks/{task}/{command}");
    match random.random_range(0..100) {
        0..25 => of_task("undo"),
        25..30 => of_task("cancel"),
        30..40 => of_task("pause"),
        40..60 => of_task("resume"),
        60..75 => of_task("retry"),
        75..85 => of_task(&format!("steps/{step}/retry")),
        85..90 => of_task(&format!("steps/{step}.undo/retry")),
        90..95 => of_task(&format!("steps/{step}/skip")),
        _ => of_task(&format!("steps/{step}.undo/skip")),
    }
}

/// Returns the tasks that are not at rest: an instance works on them, or they are paused with work to do.
pub async fn moving(world: &SimulatedWorld) -> Vec<Value> {
    let mut moving = Vec::new();
    for state in ["pending", "processing", "undoing"] {
        let list = format!("/v1/tasks?state={state}&limit=500");
        moving.extend(world.items(&list).await);
    }
    if !moving.is_empty() {
        return moving;
    }
    // The other branches of a task in error go on.
    for task in world.items("/v1/tasks?state=error&limit=500").await {
        let id = task["id"].as_str().unwrap();
        let steps = world
            .items(&format!("/v1/tasks/{id}/steps?limit=500"))
            .await;
        let is_live = |step: &Value| step["state"] == "pending" || step["state"] == "processing";
        if steps.iter().any(is_live) {
            command_task(world, &task, "resume").await;
            moving.push(task);
        }
    }
    moving
}

/// Resumes what is paused.
pub async fn resume(world: &SimulatedWorld) {
    for task in world.items("/v1/tasks?state=paused&limit=500").await {
        command_task(world, &task, "resume").await;
    }
}

/// Undoes or retries most tasks in error; some stay as they are.
pub async fn end_errors(world: &SimulatedWorld) {
    for task in world.items("/v1/tasks?state=error&limit=500").await {
        let key = task["key"].as_str().unwrap();
        let chance = key.bytes().map(usize::from).sum::<usize>() % 4;
        let commands: &[&str] = match chance {
            0 => continue,
            1 => &["retry"],
            // If the task is past a pivot or is being undone already, the undo is refused, and the task is retried.
            _ => &["undo", "retry"],
        };
        for command in commands {
            if command_task(world, &task, command).await == 200 {
                break;
            }
        }
    }
}

async fn command_task(world: &SimulatedWorld, task: &Value, command: &str) -> u16 {
    let path = format!("/v1/tasks/{}/{command}", task["id"].as_str().unwrap());
    let body = json!({ "reason": "the simulation ends" });
    let status = world.ask("POST", &path, Some(&body)).await.status;
    world.note(format_args!("{path}: {status}"));
    status
}
