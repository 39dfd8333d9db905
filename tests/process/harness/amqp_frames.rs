//! A publisher that writes the frames of AMQP itself, for messages that no client library would send.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{Broker, PATIENCE};

/// A connection with one channel.
pub struct FramePublisher(TcpStream);

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;

fn short(text: &[u8]) -> Vec<u8> {
    let mut made = vec![text.len() as u8];
    made.extend_from_slice(text);
    made
}

fn long(text: &[u8]) -> Vec<u8> {
    let mut made = (text.len() as u32).to_be_bytes().to_vec();
    made.extend_from_slice(text);
    made
}

/// Returns a table of nested tables with `levels` levels.
pub fn nested_table(levels: usize) -> Vec<u8> {
    let mut table = Vec::new();
    for _ in 0..levels {
        table = [&b"\x01tF"[..], &long(&table)].concat();
    }
    table
}

impl FramePublisher {
    pub async fn connect(broker: &Broker) -> Self {
        let mut this = Self(
            TcpStream::connect(("127.0.0.1", broker.port()))
                .await
                .unwrap(),
        );
        this.0.write_all(b"AMQP\x00\x00\x09\x01").await.unwrap();
        this.frame().await;
        // The following methods are start-ok, tune-ok and open.
        let login = long(b"\0guest\0guest");
        let start = [&long(b"")[..], &short(b"PLAIN"), &login, &short(b"en_US")].concat();
        this.method(0, 10, 11, &start).await;
        this.frame().await;
        let tune = [&[0, 10][..], &131_072_u32.to_be_bytes(), &[0, 0]].concat();
        this.method(0, 10, 31, &tune).await;
        let vhost = short(broker.vhost().as_bytes());
        this.method(0, 10, 40, &[&vhost[..], &short(b""), &[0]].concat())
            .await;
        this.frame().await;
        this.method(1, 20, 10, &short(b"")).await;
        this.frame().await;
        // The following method enables confirms.
        this.method(1, 85, 10, &[0]).await;
        this.frame().await;
        this
    }

    /// Publishes a message with this id and these headers, which are an encoded table. Both are sent as they are.
    pub async fn publish(&mut self, queue: &str, id: &[u8], headers: &[u8], body: &[u8]) {
        let publish = [&[0, 0][..], &short(b""), &short(queue.as_bytes()), &[0]].concat();
        self.method(1, 60, 40, &publish).await;
        let flags = 1_u16 << 13 | 1 << 7;
        let header = [
            &[0, 60, 0, 0][..],
            &(body.len() as u64).to_be_bytes(),
            &flags.to_be_bytes(),
            &long(headers),
            &short(id),
        ];
        self.write(HEADER, 1, &header.concat()).await;
        self.write(BODY, 1, body).await;
        let confirm = self.frame().await;
        assert_eq!(confirm[..4], [0, 60, 0, 80], "it was not confirmed");
    }

    async fn method(&mut self, channel: u16, class: u16, method: u16, arguments: &[u8]) {
        let payload = [&class.to_be_bytes()[..], &method.to_be_bytes(), arguments];
        self.write(METHOD, channel, &payload.concat()).await;
    }

    async fn write(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let frame = [&[kind][..], &channel.to_be_bytes(), &long(payload), &[0xCE]];
        self.0.write_all(&frame.concat()).await.unwrap();
    }

    async fn frame(&mut self) -> Vec<u8> {
        let read = async {
            let mut head = [0; 7];
            self.0.read_exact(&mut head).await.unwrap();
            let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
            let mut payload = vec![0; size as usize + 1];
            self.0.read_exact(&mut payload).await.unwrap();
            payload
        };
        timeout(PATIENCE, read).await.unwrap()
    }
}
