//! The HTTP client of the commands that use a running Provost from outside, as its users do: that of the command line.

pub use provost_command_line::{cause, http_client as client};
