//! Secrets of agents: their files, OAuth tokens, and the credentials that a call gets.
//!
//! `reader` has the secrets of this instance, each read by `file`. `access` makes the `credentials` of an agent from
//! them once for each change, with a token that `oauth` fetches; a call adds these to its request. `used` remembers
//! what was sent, to hide it.

pub(super) mod access;
pub(super) mod credentials;
pub(super) mod file;
pub(super) mod oauth;
pub(super) mod reader;
pub(super) mod used;
