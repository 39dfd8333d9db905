//! What the writer sets on its connections, or with a pooler at the beginning of each transaction.

/// These settings say how the writer's statements are planned and what ends its session.
///
/// They touch few rows by their keys, but the statistics are of a table that was empty a moment ago or is
/// mostly ended work: a plan by way of a sequential scan, a hash of the table or the index of a state that
/// most rows once had is 2 to 4 times slower, or much more. So every plan is restricted to nested loops over
/// indexes in their own order, made once and kept; where that leaves a choice, the statement's form does
/// not. With plans thus priced as a last resort, JIT would compile them: off.
///
/// After a failed statement the writer rolls back where there may be nothing to roll back: that is no news to an operator.
///
/// A session that hangs inside a transaction, with its process stopped or its network cut, is
/// ended by the server, so that the locks it holds stop others for no longer than that. Limits that the
/// role or the database has for statements are for those who ask, and would break batches off: none here.
///
/// A lock is waited for as long as transactions of instances take, and no longer: a session that holds one for minutes, as a
/// person in psql or ALTER TABLE does, is not to hold up every caller meanwhile. They hear that it is not possible now.
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

/// For a connection of the writer's own: once, not with each transaction. Answers which session it is.
pub(super) const SESSION_SETTINGS: &str = concat!(
    settings!("false"),
    ", pg_backend_pid() AS process, ",
    "(SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()) AS since"
);

/// One round trip.
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

/// Begins a transaction, and answers the server's time.
pub(super) const BEGIN: &str = begin!("", "");
/// With a pooler every transaction may have another connection: each is set up again, and only its id helps to find
/// out, after a connection was lost at the commit, whether it succeeded.
pub(super) const BEGIN_ANYWHERE: &str = begin!(
    concat!(settings!("true"), "; "),
    "pg_current_xact_id()::text AS id, "
);
