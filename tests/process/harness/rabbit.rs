//! RabbitMQ servers of a test's own, which the test may stop, kill and restart; and their queues as another client sees
//! them. `scripts/prepare` unpacks RabbitMQ in `target/tools`. Each server has its own node name, ports, cookie, folder
//! and `epmd`: nothing of the system's is used.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, TcpStream},
    ops::Deref,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use futures::StreamExt;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicPublishOptions,
        ConfirmSelectOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{PATIENCE, free_port};
use crate::cluster::Shared;

/// A message that was taken from a queue.
#[derive(Clone, Debug)]
pub struct Queued {
    pub body: Value,
    pub raw: String,
    pub properties: BasicProperties,
    pub headers: BTreeMap<String, String>,
}

impl Queued {
    pub fn message_id(&self) -> String {
        let id = self.properties.message_id().as_ref();
        id.map(ToString::to_string).unwrap_or_default()
    }

    pub fn correlation_id(&self) -> String {
        let id = self.properties.correlation_id().as_ref();
        id.map(ToString::to_string).unwrap_or_default()
    }

    pub fn new(data: Vec<u8>, properties: BasicProperties) -> Self {
        let headers = properties.headers().iter().flat_map(FieldTable::inner);
        let text = |value: &AMQPValue| match value {
            AMQPValue::LongString(text) => text.to_string(),
            other => format!("{other:?}"),
        };
        let headers = headers.map(|(name, value)| (name.to_string(), text(value)));
        let raw = String::from_utf8_lossy(&data).into_owned();
        Self {
            body: serde_json::from_str(&raw).unwrap_or_default(),
            raw,
            headers: headers.collect(),
            properties,
        }
    }
}

/// A virtual host of a server, which contains queues.
pub struct Broker {
    port: u16,
    /// The virtual host as it is written in a URL: with its slash, or empty for the default.
    vhost: String,
}

impl Broker {
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the name of its virtual host.
    pub fn vhost(&self) -> &str {
        self.vhost.strip_prefix('/').unwrap_or("/")
    }

    pub fn url(&self) -> String {
        self.url_through(self.port)
    }

    /// Returns its URL through a proxy at this port.
    pub fn url_through(&self, port: u16) -> String {
        format!("amqp://guest:guest@127.0.0.1:{port}{}", self.vhost)
    }

    async fn connect(&self) -> Option<Connection> {
        connect(&self.url()).await
    }

    pub async fn client(&self) -> RabbitClient {
        RabbitClient::connect(&self.url())
            .await
            .expect("RabbitMQ runs")
    }
}

/// The folder and the ports of a server.
struct Node {
    folder: PathBuf,
    port: u16,
    distribution: u16,
    epmd: u16,
}

/// A server. It ends when the test ends, in whatever way.
pub struct Rabbit {
    node: Node,
    broker: Broker,
    tls_port: Option<u16>,
    server: Option<Child>,
    /// Ends the server and its epmd, and removes the folder, as soon as this process closes the child's input.
    keeper: Child,
}

const KEEPER: &str = r#"
"$1" -port "$2" -address 127.0.0.1 &
epmd=$!
cat
[ -s "$0/pid" ] && kill -9 "$(cat "$0/pid")"
kill "$epmd"
sleep 0.2
rm -rf "$0"
"#;

fn tools() -> PathBuf {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/rabbitmq");
    assert!(
        tools.join("complete").exists(),
        "RabbitMQ is not in {}: scripts/prepare unpacks it",
        tools.display()
    );
    tools
}

impl Node {
    fn in_folder(folder: PathBuf) -> Self {
        Self {
            folder,
            port: free_port(),
            distribution: free_port(),
            epmd: free_port(),
        }
    }

    fn epmd_program() -> PathBuf {
        tools().join("usr/lib/erlang/bin/epmd")
    }

    fn program(name: &str) -> PathBuf {
        let installed = fs::read_dir(tools().join("usr/lib/rabbitmq/lib")).unwrap();
        let version = installed.filter_map(Result::ok).next().unwrap().path();
        version.join("sbin").join(name)
    }

    /// Returns a command for one of its programs, or for a program that runs one.
    fn command(&self, program: &Path) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let erlang = tools().join("usr/lib/erlang/bin");
        let mut command = Command::new(program);
        let file = |name: &str| self.folder.join(name);
        command
            .env("PATH", format!("{}:{path}", erlang.display()))
            .env("HOME", &self.folder)
            .env("RABBITMQ_NODENAME", format!("t{}@localhost", self.port))
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            .env("RABBITMQ_DIST_PORT", self.distribution.to_string())
            .env("ERL_EPMD_PORT", self.epmd.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_MNESIA_BASE", file("mnesia"))
            .env("RABBITMQ_LOG_BASE", file("logs"))
            .env("RABBITMQ_LOGS", file("rabbit.log"))
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_CONFIG_FILE", file("rabbitmq"))
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", file("advanced"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", file("plugins"))
            .env("RABBITMQ_PID_FILE", file("pid"))
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "+S 1:1 -kernel inet_dist_use_interface {127,0,0,1}",
            )
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        command
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("rabbit.log")).unwrap_or_default()
    }
}

/// Runs the server that tests share, and its `epmd`, until it gets a signal.
const SHARED: &str = r#"
"$0" -port "$ERL_EPMD_PORT" -address 127.0.0.1 &
epmd=$!
trap 'kill -9 "$(cat "$RABBITMQ_PID_FILE")"; kill "$epmd"; exit' TERM
"$1" &
wait "$!"
kill "$epmd"
"#;

/// The number of virtual hosts: at least one for each test of a run.
const SHARED_VHOSTS: usize = 100;

impl Broker {
    /// Returns a virtual host of the server that tests share, for tests that need only queues. No other test has used
    /// it.
    pub async fn shared() -> Self {
        let broker = tokio::task::spawn_blocking(Self::take).await.unwrap();
        let ready = async {
            while broker.connect().await.is_none() {
                sleep(Duration::from_millis(100)).await;
            }
        };
        if timeout(PATIENCE, ready).await.is_err() {
            panic!("the RabbitMQ that tests share did not start");
        }
        broker
    }

    fn take() -> Self {
        for server in 0.. {
            let shared = Shared::lock(&format!("rabbitmq-{server}"));
            let used = shared.folder.join("used");
            let number = || fs::read_to_string(&used).ok()?.parse::<usize>().ok();
            let running = shared.port().zip(number());
            let (port, number) = running.unwrap_or_else(|| (Self::start(&shared), 0));
            if number < SHARED_VHOSTS {
                fs::write(used, (number + 1).to_string()).unwrap();
                let vhost = format!("/v{number}");
                return Self { port, vhost };
            }
        }
        unreachable!("there is always another")
    }

    fn start(shared: &Shared) -> u16 {
        let _ = fs::remove_dir_all(&shared.folder);
        fs::create_dir(&shared.folder).unwrap();
        let node = Node::in_folder(shared.folder.clone());
        let vhosts = (0..SHARED_VHOSTS).map(|number| format!("v{number}"));
        let vhosts: Vec<_> = vhosts.collect();
        let definitions = json!({
            "users": [{ "name": "guest", "password": "guest", "tags": "administrator" }],
            "vhosts": vhosts.iter().map(|vhost| json!({ "name": vhost })).collect::<Vec<_>>(),
            "permissions": vhosts.iter().map(|vhost| json!({
                "user": "guest", "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*",
            })).collect::<Vec<_>>(),
        });
        let file = |name: &str| node.folder.join(name);
        fs::write(file("definitions.json"), definitions.to_string()).unwrap();
        let config = format!(
            "load_definitions = {}\n",
            file("definitions.json").display()
        );
        fs::write(file("rabbitmq.conf"), config).unwrap();
        let (epmd, server) = (Node::epmd_program(), Node::program("rabbitmq-server"));
        let arguments = [
            "-c",
            SHARED,
            epmd.to_str().unwrap(),
            server.to_str().unwrap(),
        ];
        let setsid = node.command(Path::new("setsid"));
        shared.run(setsid, "TERM", Path::new("sh"), &arguments);
        let started = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, node.port)).is_err() {
            let log = || format!("{}\n{}", shared.log(), node.log());
            assert!(started.elapsed() < PATIENCE, "{}", log());
            std::thread::sleep(Duration::from_millis(100));
        }
        shared.is_at(node.port);
        node.port
    }
}

impl Deref for Rabbit {
    type Target = Broker;

    fn deref(&self) -> &Broker {
        &self.broker
    }
}

impl Rabbit {
    pub async fn start() -> Self {
        let mut rabbit = Self::prepare();
        rabbit.start_again().await;
        rabbit
    }

    /// Starts a server that also accepts TLS, at a port of its own.
    pub async fn start_with_tls(certificate: &str, key: &str) -> Self {
        let mut rabbit = Self::prepare();
        let port = free_port();
        let file = |name: &str| rabbit.node.folder.join(name);
        fs::write(file("server.pem"), certificate).unwrap();
        fs::write(file("server.key"), key).unwrap();
        let config = format!(
            "listeners.ssl.default = 127.0.0.1:{port}\nssl_options.certfile = {}\nssl_options.keyfile = {}\n",
            file("server.pem").display(),
            file("server.key").display(),
        );
        fs::write(file("rabbitmq.conf"), config).unwrap();
        rabbit.tls_port = Some(port);
        rabbit.start_again().await;
        rabbit
    }

    /// Returns its URL over TLS, with this name of the host.
    pub fn tls_url(&self, host: &str) -> String {
        format!("amqps://guest:guest@{host}:{}", self.tls_port.unwrap())
    }

    /// Prepares a server that does not run yet.
    pub fn prepare() -> Self {
        let folder = format!("provost-rabbit-{:032x}", rand::random::<u128>());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir(&folder).unwrap();
        let node = Node::in_folder(folder);
        let keeper = Command::new("setsid")
            .args(["sh", "-c", KEEPER])
            .arg(&node.folder)
            .arg(Node::epmd_program())
            .arg(node.epmd.to_string())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let broker = Broker {
            port: node.port,
            vhost: String::new(),
        };
        Self {
            node,
            broker,
            tls_port: None,
            server: None,
            keeper,
        }
    }

    /// Starts it after a stop or a crash, with the queues that it had.
    pub async fn start_again(&mut self) {
        let server = self
            .node
            .command(&Node::program("rabbitmq-server"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.server = Some(server.unwrap());
        let ready = async {
            while self.connect().await.is_none() {
                sleep(Duration::from_millis(100)).await;
            }
        };
        if timeout(PATIENCE, ready).await.is_err() {
            panic!("RabbitMQ did not start:\n{}", self.log());
        }
    }

    /// Sends SIGKILL.
    pub async fn kill(&mut self) {
        let pid = fs::read_to_string(self.node.folder.join("pid")).unwrap();
        let killed = Command::new("sh")
            .args(["-c", &format!("kill -9 {}", pid.trim())])
            .status();
        assert!(killed.unwrap().success());
        if let Some(mut server) = self.server.take() {
            let ended = tokio::task::spawn_blocking(move || server.wait());
            ended.await.unwrap().unwrap();
        }
    }

    /// Runs `rabbitmqctl`.
    pub async fn control(&self, arguments: &[&str]) -> String {
        let mut command = self.node.command(&Node::program("rabbitmqctl"));
        command.args(arguments);
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = output.await.unwrap().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{arguments:?}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    }

    pub fn log(&self) -> String {
        self.node.log()
    }
}

async fn connect(url: &str) -> Option<Connection> {
    let connected = Connection::connect(url, ConnectionProperties::default());
    let connected = timeout(Duration::from_secs(5), connected).await;
    connected.ok()?.ok()
}

impl Drop for Rabbit {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(20)..];
            eprintln!("the last that RabbitMQ said:\n{}", last.join("\n"));
        }
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
        if let Some(mut server) = self.server.take() {
            let _ = server.wait();
        }
    }
}

/// A publisher and reader of queues that is independent of Provost.
pub struct RabbitClient {
    pub connection: Connection,
    pub channel: Channel,
}

impl RabbitClient {
    /// Returns `None` if there is no server at this URL.
    pub async fn connect(url: &str) -> Option<Self> {
        let connection = connect(url).await?;
        let channel = connection.create_channel().await.ok()?;
        let confirms = ConfirmSelectOptions::default();
        channel.confirm_select(confirms).await.ok()?;
        Some(Self {
            connection,
            channel,
        })
    }

    pub async fn declare(&self, queue: &str) {
        self.declare_with(queue, &[]).await;
    }

    /// Declares a queue with arguments such as `x-max-length`.
    pub async fn declare_with(&self, queue: &str, arguments: &[(&str, AMQPValue)]) {
        let mut table = FieldTable::default();
        for (name, value) in arguments {
            table.insert((*name).into(), value.clone());
        }
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let declared = self.channel.queue_declare(queue.into(), options, table);
        declared.await.unwrap();
    }

    /// Publishes durably, and waits for the confirm.
    pub async fn publish(&self, queue: &str, body: &[u8], properties: BasicProperties) {
        let confirmed = self.try_publish(queue, body, properties).await;
        assert!(confirmed, "{queue} did not take a message");
    }

    /// Does the same as [`RabbitClient::publish`], and returns whether there was a confirm.
    pub async fn try_publish(&self, queue: &str, body: &[u8], properties: BasicProperties) -> bool {
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let properties = properties.with_delivery_mode(2);
        let published =
            self.channel
                .basic_publish("".into(), queue.into(), options, body, properties);
        match published.await {
            Ok(confirm) => matches!(confirm.await, Ok(Confirmation::Ack(None))),
            Err(_) => false,
        }
    }

    /// Publishes a submission with a message id.
    pub async fn submit(&self, queue: &str, id: &str, submission: &Value) {
        let properties = BasicProperties::default()
            .with_message_id(id.into())
            .with_content_type("application/json".into());
        let body = submission.to_string();
        self.publish(queue, body.as_bytes(), properties).await;
    }

    /// Returns the number of messages that wait in a queue; `None` if there is no such queue.
    pub async fn depth(&self, queue: &str) -> Option<u32> {
        let channel = self.connection.create_channel().await.unwrap();
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let declared = channel.queue_declare(queue.into(), options, FieldTable::default());
        let queue = declared.await.ok()?;
        let count = queue.message_count();
        channel.close(200, "".into()).await.unwrap();
        Some(count)
    }

    /// Waits for the next message of a queue, and takes it.
    pub async fn take(&self, queue: &str) -> Queued {
        let taken = async {
            loop {
                // The queue may not have been declared yet.
                if self.depth(queue).await.is_some_and(|depth| depth > 0) {
                    let options = BasicGetOptions { no_ack: true };
                    let got = self.channel.basic_get(queue.into(), options).await.unwrap();
                    if let Some(message) = got {
                        let delivery = message.delivery;
                        return Queued::new(delivery.data, delivery.properties);
                    }
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        let taken = timeout(PATIENCE, taken).await;
        taken.unwrap_or_else(|_| panic!("nothing came to {queue}"))
    }

    /// Takes this many messages.
    pub async fn take_all(&self, queue: &str, count: usize) -> Vec<Queued> {
        let options = BasicConsumeOptions::default();
        let consumer =
            self.channel
                .basic_consume(queue.into(), "".into(), options, FieldTable::default());
        let mut consumer = consumer.await.unwrap();
        let mut all = Vec::new();
        while all.len() < count {
            let next = timeout(PATIENCE, consumer.next()).await;
            let next = next.unwrap_or_else(|_| panic!("{} of {count} came to {queue}", all.len()));
            let delivery = next.unwrap().unwrap();
            delivery
                .acker
                .ack(BasicAckOptions::default())
                .await
                .unwrap();
            all.push(Queued::new(delivery.data, delivery.properties));
        }
        all
    }
}
