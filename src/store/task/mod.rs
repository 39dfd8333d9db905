//! The records that belong to tasks: alerts and their causes, asks, children, bulk jobs; and the reads that find tasks: pages, bulk
//! selections, what is due. The rows of tasks and steps themselves are in [`super::record`] and [`super::rows`].

pub(super) mod alert;
pub(super) mod alert_cause;
pub(super) mod ask;
pub(super) mod attempts;
pub(super) mod bulk_jobs;
pub(super) mod bulk_tasks;
pub(super) mod child;
pub(super) mod due;
pub(super) mod ended;
pub(super) mod failure;
pub(super) mod pages;
pub(super) mod salvage;
pub(super) mod search;
pub(super) mod signalled;
pub(super) mod version_move;
pub(super) mod watch;
