//! The simulation: whole instances, with their loops, their writer, its SQL on SQLite, their API and their HTTP client, run
//! on one thread by a seed. Their clocks are virtual, their network is memory, and their hosts crash, stand still and
//! lose the database as the seed decides. At the end an auditor compares the records with the ledger of the services. A
//! seed does the same each time, so that what it finds can be looked at again. docs/testing.md says what is covered.

#[allow(
    dead_code,
    unused_imports,
    reason = "the tests of the binary use the rest of it"
)]
#[path = "../../tests/process/audit/mod.rs"]
mod audit;
#[path = "../../tests/process/audit_reader.rs"]
mod audit_reader;
#[allow(
    dead_code,
    reason = "the chaos tests of real processes use the rest of it"
)]
mod chaos;
mod client;
mod event_log;
mod harness;
mod judge;
mod machine;
mod plan;
mod run;
mod script;
mod seeds;
mod world;
