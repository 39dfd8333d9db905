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
mod addresses;
mod agent_tls;
mod agents;
mod alert_webhooks;
mod alerts;
mod audit;
mod backlog;
mod backup;
mod breakers;
mod broken_answers;
mod broker_tls;
mod bulk;
mod bulk_looks;
mod chaos;
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
mod drops;
mod ended_tasks;
mod events;
mod example_workers;
mod examples;
mod exhausted;
mod expressions;
mod failover;
mod fairness;
mod hidden;
mod hold;
mod idle_connections;
mod instances;
mod intake;
mod later_replies;
mod listener;
mod lists;
mod logs;
mod manners;
mod memory;
mod one_owner;
mod operator;
mod outage;
mod pages;
mod panics;
mod plans;
mod polling;
mod pooler;
mod preconditions;
mod purge;
mod queue_agents;
mod queue_replies;
mod quiet;
mod rate_limits;
mod record;
mod refused_messages;
mod reload;
mod replies;
mod retention;
mod retry_budget;
mod scale;
mod schemas;
mod secrets;
mod settings;
mod shared;
mod shutdown;
mod slots;
mod slow_answers;
mod slow_reads;
mod space;
mod storm;
mod submission;
mod surface;
mod systemd;
mod taken_over;
mod tls;
mod transient;
mod tries;
mod undo_matrix;
mod unix_socket;
mod unreadable;
mod upgrade;
mod workers;
mod workflows;
