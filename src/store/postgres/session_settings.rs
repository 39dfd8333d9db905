//! The settings of the writer's connections. With a pooler they are set at the beginning of each transaction.

/// These settings restrict how the writer's statements are planned, and bound how long its session waits.
///
/// The statements touch few rows by their keys, but the statistics are those of a table that was empty a moment ago or
/// contains mostly ended work: a plan with a sequential scan, a hash of the table or the index of a state that most
/// rows once had is 2 to 4 times slower, or much more. So every plan is restricted to nested loops over indexes in
/// their own order, made once and kept; where that leaves a choice, the statement's form does not. Such plans have the
/// cost of a last resort, for which JIT would compile them, so JIT is off.
///
/// After a failed statement the writer rolls back, sometimes without an open transaction. The warning about that is of
/// no use to an operator.
///
/// The server ends a session that hangs inside a transaction, with its process stopped or its network cut, so that its
/// locks block other sessions no longer than that. Limits for statements that the role or the database has are meant
/// for queries, and would interrupt batches, so there are none here.
///
/// A lock is waited for as long as transactions of instances take, and no longer: a session that holds one for minutes,
/// as a person in psql or ALTER TABLE does, must not delay every caller in the meantime. Callers get the error that it
/// is not possible now.
macro_rules! settings {
    ($only_for_the_transaction:literal) => {
        concat!(
            "SELECT ",
            settings!(@ "enable_seqscan", "off", $only_for_the_transaction), ", ",
            settings!(@ "enable_bitmapscan", "off", $only_for_the_transaction), ", ",
            settings!(@ "enable_hashjoin", "off", $only_for_the_transaction), ", ",
            settings!(@ "enable_mergejoin", "off", $only_for_the_transaction), ", ",
            settings!(@ "enable_sort", "off", $only_for_the_transaction), ", ",
            settings!(@ "plan_cache_mode", "force_generic_plan", $only_for_the_transaction), ", ",
            settings!(@ "jit", "off", $only_for_the_transaction), ", ",
            settings!(@ "synchronous_commit", "on", $only_for_the_transaction), ", ",
            settings!(@ "client_min_messages", "error", $only_for_the_transaction), ", ",
            settings!(@ "statement_timeout", "0", $only_for_the_transaction), ", ",
            settings!(@ "lock_timeout", "700ms", $only_for_the_transaction), ", ",
            settings!(@ "idle_in_transaction_session_timeout", "5s", $only_for_the_transaction)
        )
    };
    (@ $name:literal, $value:literal, $only_for_the_transaction:literal) => {
        concat!("set_config('", $name, "', '", $value, "', ", $only_for_the_transaction, ")")
    };
}

/// Sets up a connection of the writer's own once, not with each transaction. Returns the identity of the session.
pub(super) const SESSION_SETTINGS: &str = concat!(
    settings!("false"),
    ", pg_backend_pid() AS process, ",
    "(SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()) AS since"
);

/// Begins a transaction in one round trip.
macro_rules! begin {
    ($settings:expr, $id:expr) => {
        concat!(
            "BEGIN; ",
            $settings,
            "SELECT ",
            $id,
            "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now"
        )
    };
}

/// Begins a transaction, and returns the server's time.
pub(super) const BEGIN: &str = begin!("", "");
/// Begins a transaction through a pooler. Every transaction may have another connection there, so each is set up again;
/// and after a connection was lost at the commit, only the transaction's id helps to find out whether it succeeded.
pub(super) const BEGIN_ANYWHERE: &str = begin!(
    concat!(settings!("true"), "; "),
    "pg_current_xact_id()::text AS id, "
);
