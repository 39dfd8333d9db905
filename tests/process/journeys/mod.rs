//! The ways of people through the console, in a real browser: what they look for is found, and what they do is done. Each test
//! starts one browser. It awaits what the page shows, so that a slow machine only takes longer.
//!
//! `axe-core-4.14.1.min.js` is `axe.min.js` of the package `axe-core` 4.14.1 of npm, unchanged, for tests only; its licence,
//! MPL-2.0, is beside it.

mod fix;
mod keyboard;
mod live;
mod long_names;
mod pages;
mod shop;
mod tasks;
mod zone;
