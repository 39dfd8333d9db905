//! Chooses the PostgreSQL for the tests: the newest that the system's packages installed, or the one whose programs are
//! in the folder that `PROVOST_TEST_POSTGRES` names.

use std::{env, fs, path::PathBuf};

const CHOICE: &str = "PROVOST_TEST_POSTGRES";
/// The programs of a server that the tests run. The rest of an installation may be missing.
const OF_A_SERVER: [&str; 3] = ["initdb", "pg_ctl", "postgres"];

/// Returns the folder of `initdb`, `pg_ctl` and `postgres`.
pub fn binaries() -> PathBuf {
    chosen().unwrap_or_else(|| {
        installed("initdb").expect("PostgreSQL is not installed: scripts/prepare installs it")
    })
}

/// Returns a client program. If the chosen folder has only the server, the program is that of the system: `psql` works
/// with newer servers too.
pub fn client(name: &str) -> PathBuf {
    let beside = binaries().join(name);
    if beside.exists() {
        return beside;
    }
    let of_system = installed(name).map(|folder| folder.join(name));
    of_system.unwrap_or_else(|| {
        panic!(
            "{} is not there, nor did the system's packages install {name}: scripts/prepare installs it",
            beside.display()
        )
    })
}

fn chosen() -> Option<PathBuf> {
    // An empty value means that it is not set.
    let folder = PathBuf::from(env::var_os(CHOICE).filter(|folder| !folder.is_empty())?);
    // The servers are started in other working directories.
    assert!(
        folder.is_absolute(),
        "{CHOICE}={} is not a whole path: begin it with a slash",
        folder.display()
    );
    for program in OF_A_SERVER {
        assert!(
            folder.join(program).exists(),
            "{CHOICE}={}: there is no {program} in it. It names the folder of initdb, pg_ctl and postgres, \
             such as /usr/lib/postgresql/17/bin; scripts/test-postgres installs versions and sets it",
            folder.display()
        );
    }
    Some(folder)
}

/// Returns the folder of the newest version of the system's packages that has this program.
fn installed(program: &str) -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let newest = versions
        .filter_map(|version| {
            let path = version.ok()?.path();
            let number: u32 = path.file_name()?.to_str()?.parse().ok()?;
            let programs = path.join("bin");
            programs
                .join(program)
                .exists()
                .then_some((number, programs))
        })
        .max();
    newest.map(|(_, programs)| programs)
}
