//! Tests on the real binary: it is started as a child process, spoken to over HTTP, killed, and
//! started again. What only shows between processes, sockets and files is tested here; rules are
//! tested where they are written.
//!
//! Every test has a folder, a database and ports of its own, so that all of them run at once. No
//! test sleeps until something has probably happened: it awaits a request at a remote service, an
//! event of a task, or an answer that the API holds back (`?wait=`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by a panic, in its helpers too"
)]

#[path = "../cluster/mod.rs"]
mod cluster;
mod harness;

mod access_tokens;
mod adaptive;
mod addresses;
mod agent_checks;
mod agent_tls;
mod agents;
mod alert_causes;
mod alert_pages;
mod alert_webhooks;
mod alerts;
mod ask_links;
mod asks;
mod audit;
mod away;
mod backlog;
mod backup;
mod breakers;
mod broken_answers;
mod broker_tls;
mod bulk;
mod bulk_looks;
mod byte_bounds;
mod chaos;
mod children;
mod clock_set;
mod commands;
mod conditions;
mod crash;
mod crash_broker;
mod crash_later;
mod crash_workers;
mod damaged;
mod database_file;
mod database_tls;
mod dead_receivers;
mod deleted_queues;
mod disk_full;
mod documented_services;
mod downtime;
mod drops;
mod echoed_secrets;
mod ejections;
mod ended_tasks;
mod endpoint_choice;
mod events;
mod example_workers;
mod examples;
mod exhausted;
mod expressions;
mod failover;
mod fairness;
mod full_store;
mod health_checks;
mod hidden;
mod hold;
mod http2;
mod idle_connections;
mod input_schemas;
mod instances;
mod intake;
mod item_kinds;
mod item_matrix;
mod items;
mod kept_connections;
mod killed_breakers;
mod lanes;
mod later_replies;
mod listener;
mod lists;
mod logs;
mod manners;
mod many_asks;
mod many_items;
mod many_waits;
mod memory;
mod not_now;
mod one_owner;
mod operator;
mod operator_words;
mod outage;
mod outputs;
mod pages;
mod panics;
mod passwords;
mod plans;
mod polling;
mod pooler;
mod preconditions;
mod predictions;
mod purge;
mod queue_agents;
mod queue_gauges;
mod queue_replies;
mod quiet;
mod rate_limits;
mod record;
mod refused_messages;
mod rehearsals;
mod reload;
mod repeat;
mod replies;
mod retention;
mod retry_budget;
mod scale;
mod schedules;
mod schemas;
mod secret_alerts;
mod secret_waits;
mod secrets;
mod settings;
mod shared;
mod shutdown;
mod signals;
mod slots;
mod slow_answers;
mod slow_reads;
mod space;
mod stable_keys;
mod start_at;
mod step_limits;
mod storm;
mod submission;
mod surface;
mod systemd;
mod taken_over;
mod task_limits;
mod tls;
mod transient;
mod tries;
mod undo_matrix;
mod undo_processed;
mod unix_socket;
mod unread_log;
mod unreadable;
mod upgrade;
mod version_moves;
mod versions;
mod waiting_tasks;
mod waits;
mod workers;
mod workflows;
