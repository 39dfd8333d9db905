//! Ports for servers of tests.

use std::{
    env,
    fs::{self, File},
    net::{Ipv4Addr, TcpListener},
    sync::Mutex,
};

use super::shared::is_root;

/// Returns a free port. The system assigns no port of this range to a process that asks for any port, and no other test
/// gets it while this process lives: a server may take a while until it listens, and may listen again after a restart.
pub fn free_port() -> u16 {
    loop {
        let port = 20_000 + rand::random::<u16>() % 12_000;
        if reserve(port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Locks the file of a port for as long as this process lives. Returns false if the port is locked already.
fn reserve(port: u16) -> bool {
    static RESERVED: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let user = if is_root() { "root" } else { "user" };
    let folder = env::temp_dir().join(format!("provost-test-ports-{user}"));
    fs::create_dir_all(&folder).unwrap();
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(folder.join(port.to_string()))
        .unwrap();
    let is_ours = file.try_lock().is_ok();
    if is_ours {
        RESERVED.lock().unwrap().push(file);
    }
    is_ours
}
