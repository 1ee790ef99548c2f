//! Connections: where they come from, and what can be sent over one. Nothing else knows the client library's kinds of
//! connections; in simulation they lead to no server.

#[cfg(feature = "attack")]
use crate::attack;
use crate::script::Dialect;
#[cfg(feature = "sentinel")]
use crate::sentinel::Sentinel;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, ProtocolVersion, PushInfo, RedisError, Value};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{AbortHandle, unconstrained};
use tokio::time::timeout;

/// What a connection takes at once. It takes all: what is under way is bounded elsewhere, but for what was given up during a
/// silence, and a full one would hand its places to futures that nobody polls.
const PIPELINE: usize = 1 << 24;

pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Called with what a server sends unasked, on the connection's own task: nothing stands between the socket and the one
/// who waits.
pub(crate) type OnPush = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// Makes connections to one server.
#[derive(Clone)]
pub(crate) enum Backend {
    Redis(Arc<Clients>),
    /// Not one server: `cluster.rs` makes a backend for each node.
    #[cfg(feature = "cluster")]
    Cluster(Arc<[redis::ConnectionInfo]>),
    /// Whichever server is the master.
    #[cfg(feature = "sentinel")]
    Sentinel(Arc<Sentinel>),
    #[cfg(feature = "attack")]
    Simulated(Arc<dyn attack::Network>),
}

pub(crate) struct Clients {
    commands: redis::Client,
    /// Pushes need RESP3.
    pushes: redis::Client,
    /// How often a server to which they led turned out to be the master no longer.
    term: watch::Sender<u64>,
}

/// A new connection, and what is known of its server.
pub(crate) struct Connected {
    pub(crate) wire: Wire,
    pub(crate) dialect: Dialect,
    /// See [`Backend::outdated`].
    pub(crate) term: u64,
    /// From the start: good for reading, until somebody wants to write.
    pub(crate) of_replica: bool,
}

/// One connection. It closes when its last clone is dropped.
#[derive(Clone)]
pub(crate) enum Wire {
    Redis(MultiplexedConnection),
    #[cfg(feature = "attack")]
    Simulated(Arc<dyn attack::Connection>),
}

impl Backend {
    pub(crate) fn redis(client: &redis::Client) -> Result<Self, RedisError> {
        Clients::of(client).map(Arc::new).map(Self::Redis)
    }

    /// For errors and logs.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Redis(clients) => clients.commands.get_connection_info().addr().to_string(),
            #[cfg(feature = "cluster")]
            Self::Cluster(seeds) => {
                let seeds: Vec<_> = seeds.iter().map(|seed| seed.addr().to_string()).collect();
                format!("the cluster at {}", seeds.join(", "))
            }
            #[cfg(feature = "sentinel")]
            Self::Sentinel(_) => "the master that Sentinel names".to_owned(),
            #[cfg(feature = "attack")]
            Self::Simulated(_) => "simulation".to_owned(),
        }
    }

    /// A connection that is named after the label, if there is one, in the server's CLIENT LIST. It leads to a replica only
    /// if nobody has wanted to write so far, or in a cluster, whose table tells who the master is.
    pub(crate) async fn connect(&self, label: Option<&str>, on_push: Option<OnPush>) -> Result<Connected, RedisError> {
        let (mut wire, term) = match self {
            Self::Redis(clients) => {
                let term = *clients.term.borrow();
                (clients.connect(on_push).await?, term)
            }
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => {
                let (master, term) = sentinel.master().await?;
                (Clients::of(&master)?.connect(on_push).await?, term)
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => {
                return Err(RedisError::from((
                    ErrorKind::InvalidClientConfig,
                    "a cluster is not one server",
                )));
            }
            #[cfg(feature = "attack")]
            Self::Simulated(network) => (Wire::Simulated(network.connect(on_push).await?), 0),
        };
        let hello = Hello::read(&wire.answer(CONNECT_TIMEOUT, &redis::cmd("HELLO")).await?);
        let of_replica = hello.is_of_replica();
        if of_replica && term > 0 {
            return Err(demoted());
        }
        if let Some(label) = label {
            let mut name = redis::cmd("CLIENT");
            name.arg("SETNAME").arg(label);
            wire.answer(CONNECT_TIMEOUT, &name).await?;
        }
        Ok(Connected {
            wire,
            dialect: Dialect::of(&hello.version),
            term,
            of_replica,
        })
    }

    /// The server at the end of a connection of that term does what only a replica does: the term is over.
    pub(crate) fn is_demoted(&self, term: u64) {
        match self {
            Self::Redis(clients) => {
                clients.term.send_if_modified(|now| {
                    let news = *now == term;
                    *now += u64::from(news);
                    news
                });
            }
            // The sentinels tell of theirs, and who the next one is.
            #[cfg(any(feature = "attack", feature = "cluster", feature = "sentinel"))]
            _ => {}
        }
    }

    /// Waits until a connection of that term leads to the wrong server.
    pub(crate) async fn outdated(&self, term: u64) {
        match self {
            Self::Redis(clients) => {
                let mut terms = clients.term.subscribe();
                // It fails when the sender is gone, which `self` holds.
                let _ = terms.wait_for(|now| *now != term).await;
            }
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => sentinel.outdated(term).await,
            #[cfg(any(feature = "attack", feature = "cluster"))]
            _ => std::future::pending().await,
        }
    }

    /// Whether it is told at once when another server takes over: a call that is under way need not wait for more.
    pub(crate) fn hears_of_successors(&self) -> bool {
        match self {
            #[cfg(feature = "sentinel")]
            Self::Sentinel(_) => true,
            _ => false,
        }
    }

    /// Looks out for who takes over. Never ends.
    pub(crate) async fn watch(&self) {
        match self {
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => sentinel.watch().await,
            _ => std::future::pending().await,
        }
    }

    /// Whether its connections are sockets.
    pub(crate) fn needs_io(&self) -> bool {
        match self {
            #[cfg(feature = "attack")]
            Self::Simulated(_) => false,
            _ => true,
        }
    }

    /// Runs one of the client's own tasks.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        match self {
            Self::Redis(_) => tokio::spawn(task).abort_handle(),
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => tokio::spawn(task).abort_handle(),
            #[cfg(feature = "sentinel")]
            Self::Sentinel(_) => tokio::spawn(task).abort_handle(),
            #[cfg(feature = "attack")]
            Self::Simulated(network) => network.spawn(Box::pin(task)),
        }
    }
}

impl Clients {
    fn of(client: &redis::Client) -> Result<Self, RedisError> {
        Ok(Self {
            commands: with_options(client, None)?,
            pushes: with_options(client, Some(ProtocolVersion::RESP3))?,
            term: watch::Sender::new(0),
        })
    }

    async fn connect(&self, on_push: Option<OnPush>) -> Result<Wire, RedisError> {
        let (client, config) = match on_push {
            None => (&self.commands, connection_config()),
            Some(on_push) => (
                &self.pushes,
                connection_config().set_push_sender(move |push: PushInfo| {
                    on_push(push);
                    Ok::<(), redis::aio::SendError>(())
                }),
            ),
        };
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        Ok(Wire::Redis(connection.await?))
    }
}

impl Wire {
    /// A server's error reply comes as a value.
    pub(crate) async fn send(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        match self {
            Self::Redis(connection) => at_once(pin!(connection.send_packed_command(command))).await,
            #[cfg(feature = "attack")]
            Self::Simulated(connection) => connection.send(command).await,
        }
    }

    /// The same, to a node that does not own the command's slot yet.
    #[cfg(feature = "cluster")]
    pub(crate) async fn send_asking(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        let mut pair = redis::pipe();
        pair.cmd("ASKING").add_command(command.clone());
        match self {
            // In one piece: nobody else's command comes between the two.
            Self::Redis(connection) => {
                let mut replies = at_once(pin!(connection.send_packed_commands(&pair, 0, 2))).await?;
                replies.pop().ok_or_else(|| malformed(&Value::Nil))
            }
            #[cfg(feature = "attack")]
            Self::Simulated(_) => Err(unsupported()),
        }
    }

    /// Sends a command and waits at most `limit` for its reply.
    pub(crate) async fn answer(&mut self, limit: Duration, command: &Cmd) -> Result<Value, RedisError> {
        let reply = timeout(limit, self.send(command)).await;
        reply.unwrap_or_else(|_| Err(timed_out()))?.extract_error()
    }

    pub(crate) async fn subscribe(&mut self, channels: &[&str]) -> Result<(), RedisError> {
        match self {
            Self::Redis(connection) => connection.subscribe(channels).await,
            #[cfg(feature = "attack")]
            Self::Simulated(connection) => connection.subscribe(channels).await,
        }
    }

    pub(crate) async fn unsubscribe(&mut self, channel: &str) -> Result<(), RedisError> {
        match self {
            Self::Redis(connection) => connection.unsubscribe(channel).await,
            #[cfg(feature = "attack")]
            Self::Simulated(_) => Err(unsupported()),
        }
    }

    pub(crate) async fn psubscribe(&mut self, pattern: &str) -> Result<(), RedisError> {
        match self {
            Self::Redis(connection) => connection.psubscribe(pattern).await,
            #[cfg(feature = "attack")]
            Self::Simulated(_) => Err(unsupported()),
        }
    }

    pub(crate) async fn punsubscribe(&mut self, pattern: &str) -> Result<(), RedisError> {
        match self {
            Self::Redis(connection) => connection.punsubscribe(pattern).await,
            #[cfg(feature = "attack")]
            Self::Simulated(_) => Err(unsupported()),
        }
    }
}

/// Hands a command over by its first poll. The library's channel would turn that poll away, although it has room, if the
/// caller's task has used up its budget: tokio has each task yield after 128 steps.
async fn at_once<T>(mut sending: Pin<&mut impl Future<Output = T>>) -> T {
    let mut first = true;
    poll_fn(|context| match std::mem::take(&mut first) {
        true => pin!(unconstrained(sending.as_mut())).poll(context),
        false => sending.as_mut().poll(context),
    })
    .await
}

/// Streams of events are not simulated.
#[cfg(feature = "attack")]
fn unsupported() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::Unsupported).into()
}

pub(crate) fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

/// The server is not the master, or not any more: to callers it counts as away.
pub(crate) fn demoted() -> RedisError {
    let why = "the server is not the master";
    std::io::Error::new(std::io::ErrorKind::ConnectionReset, why).into()
}

/// What a server says of itself. Empty: it does not.
#[derive(Debug, Default)]
pub(crate) struct Hello {
    pub(crate) version: String,
    pub(crate) mode: String,
    pub(crate) role: String,
}

impl Hello {
    /// From the reply to HELLO, a map or, in RESP2, a list of pairs.
    pub(crate) fn read(reply: &Value) -> Self {
        let mut hello = Self::default();
        let mut note = |key: &Value, value: &Value| {
            let (Some(key), Some(value)) = (text(key), text(value)) else {
                return;
            };
            match key {
                "version" => hello.version = value.to_owned(),
                "mode" => hello.mode = value.to_owned(),
                "role" => hello.role = value.to_owned(),
                _ => {}
            }
        };
        match reply {
            Value::Map(pairs) => pairs.iter().for_each(|(key, value)| note(key, value)),
            Value::Array(items) => items.chunks_exact(2).for_each(|pair| note(&pair[0], &pair[1])),
            _ => {}
        }
        hello
    }

    /// Of one that follows one master, not of a cluster's.
    fn is_of_replica(&self) -> bool {
        // Dragonfly and Kvrocks keep to the former word.
        matches!(self.role.as_str(), "replica" | "slave") && self.mode != "cluster"
    }
}

pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// A reply that no version of the scripts gives.
pub(crate) fn malformed(what: &Value) -> RedisError {
    RedisError::from((
        ErrorKind::UnexpectedReturnType,
        "the server's reply is not one of fairlock's scripts",
        format!("{what:?}").chars().take(200).collect(),
    ))
}

/// Time limits of replies are set call by call, since leases differ.
fn connection_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE)
}

/// The same server with our socket options: a peer that vanished is noticed within about five seconds.
fn with_options(client: &redis::Client, protocol: Option<ProtocolVersion>) -> Result<redis::Client, RedisError> {
    let info = client.get_connection_info().clone();
    #[cfg(feature = "tls-rustls")]
    if matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
        // Rustls panics if its features leave the choice open. It fails if the program has chosen already.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(3))
        .with_interval(Duration::from_secs(1));
    #[cfg(any(target_os = "linux", target_vendor = "apple"))]
    let keepalive = keepalive.with_retries(3);
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(Duration::from_secs(4));
    let settings = info.redis_settings().clone();
    let settings = match protocol {
        Some(protocol) => settings.set_protocol(protocol),
        None => settings,
    };
    redis::Client::open(info.set_tcp_settings(tcp).set_redis_settings(settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_say_that_they_are_replicas_in_two_words() {
        let text = |s: &str| Value::BulkString(s.into());
        let says = |role: &str, mode: &str| {
            let hello = ["role", role, "mode", mode].map(text).to_vec();
            Hello::read(&Value::Array(hello)).is_of_replica()
        };
        assert!(says("replica", "standalone") && says("slave", "standalone"));
        assert!(!says("master", "standalone") && !says("active-replica", "standalone"));
        assert!(!says("replica", "cluster"), "its table tells");
        assert!(!Hello::read(&Value::Nil).is_of_replica());
    }
}
