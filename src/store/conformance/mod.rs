//! The requirements for every backend: the whole suite runs against each. A function opens the backend; the tests do
//! not know which one it is.

mod activity;
mod agent_checks;
mod agent_controls;
mod alert_causes;
mod asks;
mod attempts;
mod bulk_jobs;
#[path = "../../../tests/cluster/mod.rs"]
pub mod cluster;
mod console_sessions;
mod cut_off;
mod destinations;
mod failures;
pub mod harness;
mod held_undos;
mod key_prefixes;
mod later_replies;
pub mod leases;
mod ledger;
mod moves;
mod outbox;
mod own_claims;
mod predictions;
mod reads;
mod recovery;
mod schedules;
mod shared;
mod shared_alerts;
mod step_limits;
mod supervision;
mod undo;
mod untouched;
mod unusable_secrets;
mod writes;

use std::time::Duration;

/// The longest time that a test waits for anything. It only decides how soon a broken test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the whole suite for each backend, which its function in [`harness`] opens empty.
macro_rules! suite {
    ([$($backend:ident)*] $tests:tt) => {
        $(suite!(@ $backend $tests);)*
    };
    (@ $backend:ident { $($module:ident :: $test:ident),* $(,)? }) => {
        mod $backend {
            $(
                #[tokio::test]
                async fn $test() {
                    let opened = super::harness::$backend().await;
                    let harness = super::harness::Harness::new(opened).await;
                    super::$module::$test(harness).await;
                }
            )*
        }
    };
}

suite!([sqlite postgres] {
    asks::open_questions_are_listed_by_person_and_by_workflow_in_pages,
    asks::a_question_is_listed_until_it_is_closed_however_that_happens,
    attempts::failed_attempts_are_listed_latest_first_in_pages_and_deleted_with_their_task,
    attempts::the_attempts_of_a_task_take_no_more_room_than_they_may_and_the_latest_stay,
    attempts::samples_of_successes_are_saved_together_after_their_replies,
    attempts::the_last_attempts_of_several_steps_are_read_at_once,
    attempts::recorded_attempts_are_deleted_by_age_and_by_the_room_that_all_take,
    ledger::every_change_is_read_once_and_from_any_position_again,
    ledger::a_read_takes_a_bounded_number_of_changes,
    ledger::a_command_of_a_person_is_recorded_with_its_origin,
    ledger::rows_are_deleted_when_their_time_is_over_and_records_later,
    ledger::a_time_leads_to_what_happened_since,
    ledger::settings_that_differ_from_the_last_are_recorded,
    ledger::a_position_of_a_row_that_is_another_by_now_is_refused,
    ledger::a_reader_is_moved_by_its_owner_and_by_one_of_two_that_compare,
    console_sessions::a_session_is_kept_until_it_has_ended_is_removed_or_gives_way_to_one_of_its_token,
    activity::what_a_process_has_done_is_added_to_its_hour_and_old_hours_are_merged_and_deleted,
    bulk_jobs::a_job_is_changed_by_the_instance_that_has_it_alone,
    bulk_jobs::the_tasks_of_a_job_are_listed_by_result_in_pages_and_deleted_with_it,
    bulk_jobs::a_repeated_request_adds_no_job_and_so_many_run_at_once,
    agent_checks::the_last_check_is_kept_as_long_as_its_agent,
    schedules::of_two_that_look_at_a_schedule_one_decides,
    schedules::schedules_are_due_until_they_are_looked_at_and_listed_by_name,
    schedules::so_many_runs_of_a_schedule_are_kept_and_a_repeated_request_makes_none,
    predictions::tasks_at_risk_are_listed_until_they_end,
    predictions::a_queue_is_outlined_by_its_turns,
    predictions::what_instances_count_is_known_to_all,
    predictions::a_response_counts_for_its_agent_and_a_resolution_does_not,
    agent_controls::what_an_instance_saw_counts_for_the_record_that_it_knew,
    agent_controls::one_alert_is_open_while_a_breaker_is,
    agent_controls::instances_share_the_bucket_of_a_rate,
    agent_controls::instances_share_the_slots_of_an_agent,
    unusable_secrets::a_secret_has_one_alert_while_some_instance_cannot_use_it,
    step_limits::a_key_of_a_workflow_is_counted_over_the_agents_of_one_claim,
    step_limits::a_step_that_ends_leaves_its_place_to_one_at_another_agent,
    step_limits::steps_of_a_key_begin_at_one_rate_over_all_agents,
    step_limits::only_steps_that_run_count,
    step_limits::steps_without_limits_are_claimed_where_they_become_ready,
    moves::a_moved_task_is_read_back_with_its_steps_where_they_were,
    writes::a_task_is_read_back_as_it_was_submitted,
    writes::a_step_is_claimed_in_the_transaction_that_made_it_ready,
    writes::without_a_free_slot_a_step_stays_queued,
    writes::a_reply_claims_the_next_queued_step,
    writes::a_step_that_becomes_ready_is_claimed_in_its_turn,
    writes::batches_with_alerts_and_without_are_saved_side_by_side,
    alert_causes::steps_that_fail_for_one_cause_have_one_alert_until_the_last_is_resolved,
    alert_causes::words_of_a_batch_get_alerts_of_their_own_while_there_is_room,
    alert_causes::tasks_resolved_at_the_same_time_leave_no_alert_open,
    alert_causes::the_upkeep_closes_every_alert_of_a_cause_that_has_no_step_left,
    alert_causes::an_alert_of_a_cause_with_a_step_in_error_is_not_closed,
    alert_causes::a_step_that_fails_again_counts_once_for_a_closed_alert,
    alert_causes::alerts_of_causes_are_deleted_after_the_last_of_their_tasks,
    failures::failures_of_one_cause_are_counted_until_they_are_resolved_and_the_cause_stays,
    failures::words_that_differ_in_each_failure_make_no_more_causes_than_alerts,
    failures::alerts_of_an_earlier_release_get_their_causes,
    failures::old_counts_are_added_up_and_causes_are_deleted_long_after_their_last_failure,
    failures::the_failures_of_a_deleted_task_need_nobody,
    writes::a_pipeline_runs_through_the_writer,
    writes::one_refused_command_does_not_fail_the_others,
    writes::many_commands_on_one_task_are_decided_in_order,
    writes::an_idempotency_key_makes_one_task,
    writes::a_version_that_does_not_match_is_refused,
    writes::a_stale_cache_costs_a_second_try_and_no_wrong_write,
    writes::a_large_task_is_saved_whole,
    writes::a_batch_loads_so_many_bytes_and_the_others_follow_in_order,
    writes::claims_load_so_many_bytes_and_the_claimer_looks_again,
    writes::what_a_step_did_before_it_ran_again_is_kept,
    reads::lists_have_stable_cursors_and_every_filter,
    reads::the_history_tells_every_change_in_order,
    reads::a_queue_is_claimed_by_priority_then_age,
    reads::a_delayed_step_is_enqueued_when_it_is_due,
    reads::workflows_get_a_new_version_only_when_they_change,
    reads::agents_are_kept_and_deleted,
    reads::conditions_on_agents_are_judged_with_the_write,
    reads::conditions_on_workflows_are_judged_with_the_write,
    reads::the_pending_steps_of_a_paused_task_are_not_queued,
    recovery::an_expired_step_is_found_and_a_running_one_is_not,
    recovery::an_overdue_task_is_found_once,
    recovery::an_alert_is_raised_once_and_closed_when_mended,
    recovery::ended_tasks_are_purged_with_all_that_belongs_to_them,
    recovery::ended_tasks_are_listed_in_pages_by_their_end,
    recovery::running_steps_are_listed_in_pages,
    recovery::counts_tell_what_is_there,
    recovery::ended_tasks_are_counted_in_pages_of_any_size,
    outbox::a_message_is_saved_with_its_change_and_deleted_when_delivered,
    outbox::the_last_failed_attempts_of_a_message_are_kept_until_it_leaves,
    outbox::the_messages_of_a_task_are_delivered_one_after_the_other,
    outbox::messages_added_while_a_queue_is_claimed_are_not_lost,
    outbox::a_failed_message_waits_for_its_time_and_counts_its_tries,
    outbox::a_queue_whose_claim_ran_out_is_claimed_again_and_a_late_failure_changes_nothing,
    outbox::a_process_that_restarts_releases_its_queues,
    outbox::a_dead_letter_raises_one_alert_that_closes_when_it_is_delivered_after_all,
    outbox::the_alert_of_a_broker_is_one_and_deliveries_do_not_close_it,
    outbox::webhooks_get_one_message_when_an_alert_is_raised_and_one_when_it_closes,
    outbox::dead_letters_are_purged_with_age_and_outlive_their_task,
    outbox::messages_are_listed_in_pages_and_counted,
    outbox::an_alert_is_raised_and_closed_exactly_when_the_domain_decides_so,
    outbox::an_operator_can_act_on_a_message_exactly_in_the_states_that_the_domain_allows,
    destinations::a_failing_destination_delays_no_other_of_its_receiver,
    destinations::a_failing_destination_is_probed_by_one_message_of_all_instances,
    destinations::the_first_delivered_message_ends_the_pause_for_all,
    destinations::an_earlier_failure_or_recovery_changes_nothing,
    destinations::expired_messages_become_dead_letters_in_batches_with_one_alert,
    destinations::no_message_expires_before_its_time,
    destinations::a_receiver_that_asks_for_time_gets_it_from_all_its_messages_unless_an_operator_asks,
    destinations::a_message_that_becomes_due_for_an_idle_destination_is_tried,
    destinations::destinations_without_waiting_messages_are_purged,
    leases::an_instance_is_on_record_and_stays_by_renewing,
    leases::one_instance_supervises_and_another_after_it,
    leases::a_supervisor_that_fell_silent_is_followed_by_another,
    leases::an_id_belongs_to_one_process_at_a_time,
    leases::a_process_alone_on_its_store_succeeds_everybody_at_once,
    leases::steps_of_an_instance_without_a_lease_are_lost,
    leases::a_step_that_is_overdue_as_well_as_lost_counts_as_lost,
    leases::what_an_instance_holds_is_told_apart_from_what_others_hold,
    supervision::two_that_both_believe_they_supervise_do_no_harm,
    supervision::a_lost_instance_loses_its_steps_once_and_its_late_answer_is_refused,
    supervision::an_instance_that_does_not_supervise_recovers_nothing,
    supervision::whatever_is_due_is_found_by_one_statement,
    later_replies::a_promised_reply_is_read_back_and_held_by_no_instance,
    later_replies::a_silent_service_is_found_by_the_supervisor,
    later_replies::operations_are_counted_where_they_are_polled,
    own_claims::of_several_claims_one_stands_in_the_row_of_the_task,
    own_claims::a_claim_in_the_row_of_its_task_is_found_by_all_who_look_for_running_steps,
    own_claims::an_attempt_that_is_withdrawn_is_found_by_the_instance_that_holds_it,
    own_claims::a_claim_in_the_row_of_its_task_expires,
    own_claims::a_step_gets_its_row_with_the_second_thing_that_happens_in_it,
    own_claims::a_claim_of_a_divided_queue_has_a_row,
    own_claims::a_damaged_task_that_is_undone_while_a_step_runs_can_be_cancelled,
    own_claims::a_damaged_claim_costs_its_task_alone,
    held_undos::an_undo_by_policy_waits_until_the_task_is_resumed,
    key_prefixes::a_task_keeps_the_prefix_that_it_was_submitted_with,
    key_prefixes::tasks_get_prefixes_where_the_operator_wants_them,
    untouched::a_step_has_a_row_once_something_happens_in_it,
    untouched::a_task_that_has_not_begun_has_no_rows_of_steps,
    untouched::an_undo_and_items_leave_what_is_untouched_in_its_place,
    untouched::a_task_is_found_by_the_agents_of_steps_without_rows,
    untouched::a_row_that_is_lost_is_not_taken_for_an_untouched_step,
    untouched::a_damaged_number_of_untouched_steps_costs_its_task_alone,
    untouched::a_damaged_task_with_untouched_steps_can_be_cancelled,
    undo::an_undo_is_read_back_at_every_step,
    undo::policies_are_read_back,
    undo::the_policies_of_a_workflow_are_read_back,
    undo::a_doubt_is_read_back_until_a_probe_ends_it,
    undo::the_undo_of_a_step_is_queued_expires_and_is_released_like_a_step,
    undo::an_undo_that_cannot_finish_alerts_until_it_is_mended,
    undo::an_instance_lost_while_it_probes_leaves_the_doubt,
});

/// Tests that need the backend itself, without a writer.
macro_rules! transactions {
    ($name:ident, $backend:ident) => {
        mod $name {
            use super::{harness, leases};

            #[tokio::test]
            async fn leases_are_saved_by_compare_and_set() {
                leases::leases_are_saved_by_compare_and_set(harness::$backend().await).await;
            }

            #[tokio::test]
            async fn only_instances_that_ended_long_ago_are_forgotten() {
                let opened = harness::$backend().await;
                leases::only_instances_that_ended_long_ago_are_forgotten(opened).await;
            }
        }
    };
}

transactions!(sqlite_transactions, sqlite);
transactions!(postgres_transactions, postgres);
