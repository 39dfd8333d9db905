//! Periodic loops about tasks: admission, bulk jobs, children, the count of open replies, and the record of attempts.

pub(crate) mod admission;
pub(crate) mod attempts;
pub(crate) mod bulk_jobs;
pub(crate) mod children;
pub(crate) mod open_replies;
