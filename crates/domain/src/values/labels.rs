//! Bounds of the keys and the labels of tasks.

/// The most labels of a task.
pub const MOST_LABELS: usize = 32;
/// The longest key, label name or label value.
pub const LONGEST_NAME: usize = 255;
