//! The messages to systemd (Type=notify).

use tempfile::TempDir;
use tokio::{net::UnixDatagram, time::timeout};

use crate::harness::{PATIENCE, Provost};

struct Systemd(UnixDatagram);

impl Systemd {
    /// Returns the next message that is no watchdog message.
    async fn hears(&self) -> String {
        loop {
            let message = self.next().await;
            if message != "WATCHDOG=1" {
                return message;
            }
        }
    }

    async fn next(&self) -> String {
        let mut message = [0; 1024];
        let length = timeout(PATIENCE, self.0.recv(&mut message)).await;
        let length = length.expect("systemd hears nothing").unwrap();
        String::from_utf8(message[..length].to_vec()).unwrap()
    }
}

#[tokio::test]
async fn systemd_is_told_of_start_reload_life_and_end() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("notify");
    let systemd = Systemd(UnixDatagram::bind(&path).unwrap());
    let setup = Provost::setup()
        .environment("NOTIFY_SOCKET", path.to_str().unwrap())
        .environment("WATCHDOG_USEC", "1000000");
    let mut provost = setup.start().await;
    let ready = systemd.hears().await;
    assert!(ready.starts_with("READY=1\n"), "{ready}");
    while systemd.next().await != "WATCHDOG=1" {}
    provost.reload("");
    let reloading = systemd.hears().await;
    let since = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=");
    let since = since.unwrap_or_else(|| panic!("{reloading}"));
    assert!(since.parse::<u64>().unwrap() > 0);
    let ready = systemd.hears().await;
    assert!(ready.starts_with("READY=1\n"), "{ready}");
    provost.terminate();
    let stopping = systemd.hears().await;
    assert!(stopping.starts_with("STOPPING=1\n"), "{stopping}");
    assert_eq!(provost.ended().await.code(), Some(0));
}
