//! Explains an error of opening the database to an operator: the message of the server, and the remedy.

use sqlx::Error;

pub(super) fn explain(error: &Error) -> String {
    let (said, remedy) = match error {
        // The crate's own text ends with the source line of the server.
        Error::Database(error) => (
            error.message().to_owned(),
            of_code(&error.code().unwrap_or_default()),
        ),
        Error::Tls(error) => (
            format!("TLS failed: {error}"),
            Some("check the certificates of server and client, or sslmode in the URL"),
        ),
        Error::Protocol(said) => (
            said.clone(),
            Some("check that PostgreSQL listens at this address"),
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
        "28P01" => {
            Some("Provost takes the password from the URL, from PGPASSWORD or from ~/.pgpass")
        }
        "28000" => Some("check the user in the URL, and pg_hba.conf"),
        "3D000" => Some(
            "create it with createdb --encoding=UTF8 --template=template0, or check the name in the URL",
        ),
        "42501" => Some(
            "run `provost migrate` as the owner of the database, and grant this user SELECT, INSERT, UPDATE and DELETE on all tables",
        ),
        _ => None,
    }
}
