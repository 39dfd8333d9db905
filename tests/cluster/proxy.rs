//! The network between one instance and the database, as a proxy that can be cut, hung and repaired.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// The proxy works until the test's runtime ends.
pub struct Proxy {
    port: u16,
    network: Arc<watch::Sender<Network>>,
}

#[derive(Clone, Copy, Debug)]
struct Network {
    link: Link,
    /// Connections up to this number are lost: nothing passes through them any more, and neither end is notified, as
    /// with a firewall that has forgotten them.
    forgotten: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    Open,
    /// Connections are made, and nothing passes.
    Hung,
    /// The server gets what is sent to it, but its responses do not arrive.
    AnswersHung,
    /// As open until the server is about to commit a claim. From that time on responses do not arrive, that to this
    /// commit included.
    OpenUntilClaim,
    /// Connections are closed as soon as they are made.
    Cut,
}

static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

impl Proxy {
    /// Starts a proxy for a port of loopback.
    pub async fn before(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let network = Arc::new(watch::Sender::new(Network {
            link: Link::Open,
            forgotten: 0,
        }));
        let seen = network.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = CONNECTIONS.fetch_add(1, Ordering::SeqCst) + 1;
                tokio::spawn(connection(client, server, number, seen.clone()));
            }
        });
        Self { port, network }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Closes every connection, and every new one.
    pub fn cut(&self) {
        self.network.send_modify(|now| now.link = Link::Cut);
    }

    /// Stops all packets, and notifies neither end.
    pub fn hang(&self) {
        self.network.send_modify(|now| now.link = Link::Hung);
    }

    /// Stops the server's responses.
    #[allow(dead_code, reason = "only the tests of the process need it")]
    pub fn hang_answers(&self) {
        self.network.send_modify(|now| now.link = Link::AnswersHung);
    }

    /// Stops the server's responses from the next claim of a step on: the claim is committed, and its instance does not
    /// know.
    #[allow(dead_code, reason = "only the tests of the process need it")]
    pub fn hang_answers_at_claim(&self) {
        self.network
            .send_modify(|now| now.link = Link::OpenUntilClaim);
    }

    /// Opens the network again. The packets that were sent while it hung arrive now.
    pub fn heal(&self) {
        self.network.send_modify(|now| now.link = Link::Open);
    }

    /// Opens the network for new connections. Nothing passes through the existing ones any more.
    pub fn heal_for_new_ones(&self) {
        self.network.send_modify(|now| {
            now.link = Link::Open;
            now.forgotten = CONNECTIONS.load(Ordering::SeqCst);
        });
    }
}

async fn connection(
    client: TcpStream,
    server: u16,
    number: u64,
    network: Arc<watch::Sender<Network>>,
) {
    let mut cuts = network.subscribe();
    let passing = async {
        passes(number, false, &network).await;
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await else {
            return;
        };
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let ((from_client, to_client), (from_server, to_server)) =
            (client.into_split(), server.into_split());
        // The protocol has no half-open connections, so one direction is useless once the other is closed.
        tokio::select! {
            () = pass(from_client, to_server, number, false, &network) => {}
            () = pass(from_server, to_client, number, true, &network) => {}
        }
    };
    tokio::select! {
        _ = cuts.wait_for(|now| now.link == Link::Cut) => {}
        () = passing => {}
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    number: u64,
    is_answer: bool,
    network: &watch::Sender<Network>,
) {
    let mut bytes = vec![0; 65536];
    let mut transaction = SentTransaction::default();
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        passes(number, is_answer, network).await;
        if !is_answer && transaction.commits_claim(&bytes[..count]) {
            network.send_if_modified(|now| {
                let hangs = now.link == Link::OpenUntilClaim;
                if hangs {
                    now.link = Link::AnswersHung;
                }
                hangs
            });
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
    // The end of a connection is a packet too.
    passes(number, is_answer, network).await;
}

/// The packets that a connection has sent since its last transaction ended.
#[derive(Default)]
struct SentTransaction {
    is_begun: bool,
    claims: bool,
}

impl SentTransaction {
    /// Returns whether this packet makes the server commit the claim of a step: by a statement that is a transaction of
    /// its own, or by COMMIT.
    fn commits_claim(&mut self, packet: &[u8]) -> bool {
        let has = |word: &[u8]| packet.windows(word.len()).any(|part| part == word);
        self.is_begun |= has(b"BEGIN");
        self.claims |= has(b"step.claimed");
        let is_over = has(b"COMMIT") || has(b"ROLLBACK");
        let commits = self.claims && (has(b"COMMIT") || !self.is_begun);
        if is_over || commits {
            *self = Self::default();
        }
        commits
    }
}

/// Returns when a packet of this connection may arrive.
async fn passes(number: u64, is_answer: bool, network: &watch::Sender<Network>) {
    let passes = |now: &Network| match now.link {
        Link::Open | Link::OpenUntilClaim => true,
        Link::AnswersHung => !is_answer,
        Link::Hung | Link::Cut => false,
    };
    let mut network = network.subscribe();
    let open = network.wait_for(passes).await;
    let lives = open.is_ok_and(|now| number > now.forgotten);
    if !lives {
        std::future::pending().await
    }
}
