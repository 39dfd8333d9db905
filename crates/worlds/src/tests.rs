//! Every world, with as many states as cost little. `scripts/explore-worlds` explores more of them.

use std::env;

use crate::{explore, worlds};

/// The number of states of the last round of a world: so many that every rule is met, also without optimisation.
const STATES: usize = 7_000;

fn explores(name: &str) {
    let most = env::var("PROVOST_TEST_WORLD_STATES").ok();
    let most = most.map_or(STATES, |most| most.parse().unwrap());
    let world = worlds().into_iter().find(|world| world.name == name);
    let reports = explore(&world.unwrap(), most);
    for report in &reports {
        println!("{name} {report}");
    }
    let last = reports.last().unwrap();
    assert!(last.counterexample.is_none(), "{name} {last}");
    assert!(
        last.states >= most.min(STATES),
        "{name} has {} states",
        last.states
    );
}

#[test]
fn two_steps_end_whatever_happens_to_instances_and_messages() {
    explores("steps");
}

#[test]
fn an_undone_task_leaves_nothing_whatever_happens_meanwhile() {
    explores("undo");
}

#[test]
fn a_probe_finds_out_what_was_done() {
    explores("probe");
}

#[test]
fn the_loser_of_a_race_is_undone() {
    explores("race");
}

#[test]
fn a_task_waits_until_the_limit_admits_it() {
    explores("limit");
}

#[test]
fn a_step_and_its_child_agree() {
    explores("child");
}

#[test]
fn the_task_of_a_loser_is_undone() {
    explores("rival");
}

#[test]
fn the_items_of_a_list_are_run_and_undone() {
    explores("list");
}

#[test]
fn a_signal_counts_whenever_it_comes() {
    explores("signal");
}

#[test]
fn a_promised_reply_counts_once() {
    explores("later");
}

#[test]
fn a_task_whose_time_is_over_is_undone() {
    explores("deadline");
}

#[test]
fn steps_that_run_again_are_done_once() {
    explores("rerun");
}

#[test]
fn the_loser_of_a_race_with_a_time_is_cancelled() {
    explores("timeout");
}

#[test]
fn a_loser_of_two_steps_is_undone_backward() {
    explores("lane");
}

#[test]
fn the_items_that_are_not_needed_end() {
    explores("enough");
}

#[test]
fn iterations_are_run_and_undone_one_after_the_other() {
    explores("repeat");
}

#[test]
fn a_task_is_not_undone_after_its_pivot() {
    explores("pivot");
}

#[test]
fn a_step_runs_whatever_the_end_of_the_others_is() {
    explores("finally");
}

#[test]
fn a_step_that_is_not_wanted_any_more_ends() {
    explores("milestone");
}

#[test]
fn one_branch_of_a_block_runs() {
    explores("block");
}

#[test]
fn every_world_has_a_test() {
    let source = include_str!("tests.rs");
    for world in worlds() {
        let call = format!("explores(\"{}\");", world.name);
        assert!(source.contains(&call), "{} has no test", world.name);
    }
}
