//! What an error of opening the database says to a person: what the server said, and what to do about it.

use sqlx::Error;

pub(super) fn explain(error: &Error) -> String {
    let (said, remedy) = match error {
        // The crate's own words end with a line of the server's source.
        Error::Database(error) => (
            error.message().to_owned(),
            of_code(&error.code().unwrap_or_default()),
        ),
        Error::Tls(error) => (
            format!("no TLS: {error}"),
            Some("see to the certificates of server and client, or to sslmode in the URL"),
        ),
        Error::Protocol(said) => (
            said.clone(),
            Some("see whether it is PostgreSQL that listens there"),
        ),
        error => (error.to_string(), None),
    };
    match remedy {
        Some(remedy) => format!("{said}; {remedy}"),
        None => said,
    }
}

fn of_code(code: &str) -> Option<&'static str> {
    match code {
        "28P01" => Some("the password is taken from the URL, from PGPASSWORD or from ~/.pgpass"),
        "28000" => Some("see to the user in the URL, and to what pg_hba.conf lets in"),
        "3D000" => Some(
            "make it with createdb --encoding=UTF8 --template=template0, or see to the name in the URL",
        ),
        "42501" => Some(
            "let the owner of the database run `provost migrate` and grant this user SELECT, INSERT, UPDATE and DELETE on all tables",
        ),
        _ => None,
    }
}
