//! One server behind a name: connects, greets, and notices when the server at the other end is no longer the master.
//!
//! A *term* is the time between two such discoveries. Every connection belongs to one, and ends with it.

use super::wire::{OnPush, Wire};
use crate::protocol::functions::{self, Functions};
use crate::protocol::hello::{Dialect, Hello};
use crate::types::error::demoted;
use crate::types::remedy::without_arguments;
use crate::types::timers::CONNECT_TIMEOUT;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{AsyncConnectionConfig, ErrorKind, ProtocolVersion, PushInfo, RedisError, Value};
use std::time::Duration;
use tokio::sync::watch;

/// The number of commands in flight that a connection takes. It takes all: other code bounds them, except those
/// abandoned during a silence, and a full connection would give its places to futures that nobody polls.
const PIPELINE: usize = 1 << 24;

pub(crate) struct Server {
    /// The redis crate's own SELECT would hide the words of a refusal, and whether it passes.
    database: i64,
    commands: redis::Client,
    /// Pushes need RESP3.
    pushes: redis::Client,
    /// How often a server turned out to be no longer the master.
    term: watch::Sender<u64>,
}

/// A new connection, and what the client knows of its server.
pub(crate) struct Connected {
    pub(crate) wire: Wire,
    pub(crate) dialect: Dialect,
    /// See [`Server::outdated`].
    pub(crate) term: u64,
    /// The server was a replica from the start: it serves reads until a caller wants to write.
    pub(crate) of_replica: bool,
    /// What the server calls itself: `standalone`, `cluster`, `sentinel`.
    mode: String,
    pub(crate) functions: Functions,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Calls of scripts.
    Commands,
    /// Anything else.
    Pushes,
}

impl Connected {
    /// Greets a server: reads its version and names the connection in its CLIENT LIST. The connection may lead to a
    /// replica only while no caller wants to write, or in a cluster, whose table names the masters.
    pub(crate) async fn greet(
        mut wire: Wire,
        term: u64,
        label: Option<&str>,
        purpose: Purpose,
    ) -> Result<Self, RedisError> {
        // Both are sent at once. A server that knows no functions refuses them by an error.
        let (hello, functions) = futures::join!(greeting(wire.clone()), functions_for(purpose, wire.clone()));
        let hello = Hello::read(&hello?);
        let of_replica = hello.is_of_replica();
        if of_replica && term > 0 {
            return Err(demoted());
        }
        if let Some(label) = label {
            let mut name = redis::cmd("CLIENT");
            name.arg("SETNAME").arg(label);
            wire.answer(CONNECT_TIMEOUT, &name).await?;
        }
        Ok(Self {
            wire,
            dialect: Dialect::of(&hello.version),
            term,
            of_replica,
            mode: hello.mode,
            functions,
        })
    }

    /// A node of a cluster would refuse the locks of others, and would not say when it is no master any more.
    pub(crate) fn of_one_server(self) -> Result<Self, RedisError> {
        let what = match &*self.mode {
            "cluster" => "the server is a node of a cluster",
            "sentinel" => "the server is a sentinel",
            _ => return Ok(self),
        };
        Err(RedisError::from((ErrorKind::InvalidClientConfig, what)))
    }
}

async fn greeting(mut wire: Wire) -> Result<Value, RedisError> {
    wire.answer(CONNECT_TIMEOUT, &redis::cmd("HELLO")).await
}

async fn functions_for(purpose: Purpose, mut wire: Wire) -> Functions {
    match purpose {
        Purpose::Commands => functions::read_loaded(&wire.answer(CONNECT_TIMEOUT, &functions::load()).await),
        Purpose::Pushes => Functions::Refused,
    }
}

impl Server {
    pub(crate) fn of(client: &redis::Client) -> Result<Self, RedisError> {
        Ok(Self {
            database: client.get_connection_info().redis_settings().db(),
            commands: with_options(client, None)?,
            pushes: with_options(client, Some(ProtocolVersion::RESP3))?,
            term: watch::Sender::new(0),
        })
    }

    /// For errors and logs.
    pub(crate) fn address(&self) -> String {
        self.commands.get_connection_info().addr().to_string()
    }

    pub(crate) async fn connect(
        &self,
        label: Option<&str>,
        purpose: Purpose,
        on_push: Option<OnPush>,
    ) -> Result<Connected, RedisError> {
        let term = *self.term.borrow();
        Connected::greet(self.wire(on_push).await?, term, label, purpose).await
    }

    /// Connects; with `on_push` the connection can subscribe.
    pub(crate) async fn wire(&self, on_push: Option<OnPush>) -> Result<Wire, RedisError> {
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
        let mut wire = Wire::Redis(connection.await.map_err(without_arguments)?);
        if self.database != 0 {
            let mut select = redis::cmd("SELECT");
            select.arg(self.database);
            wire.answer(CONNECT_TIMEOUT, &select).await?;
        }
        Ok(wire)
    }

    /// The server of that term replied as only a replica does, so the term is over.
    pub(crate) fn is_demoted(&self, term: u64) {
        self.term.send_if_modified(|now| {
            let news = *now == term;
            *now += u64::from(news);
            news
        });
    }

    /// Waits until connections of that term lead to the wrong server.
    pub(crate) async fn outdated(&self, term: u64) {
        let mut terms = self.term.subscribe();
        // This fails only when the sender is gone, which `self` holds.
        let _ = terms.wait_for(|now| *now != term).await;
    }
}

/// Rustls panics if its features leave the choice open. The call fails if the program has chosen already.
#[cfg(feature = "tls-rustls")]
pub(crate) fn choose_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Each call sets the time limit of its reply, because leases differ.
fn connection_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE)
}

/// The same server with socket options by which TCP notices a vanished peer within about five seconds.
fn with_options(client: &redis::Client, protocol: Option<ProtocolVersion>) -> Result<redis::Client, RedisError> {
    let info = client.get_connection_info().clone();
    #[cfg(feature = "tls-rustls")]
    if matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
        choose_tls();
    }
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(3))
        .with_interval(Duration::from_secs(1));
    #[cfg(any(target_os = "linux", target_vendor = "apple"))]
    let keepalive = keepalive.with_retries(3);
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(Duration::from_secs(4));
    let settings = info.redis_settings().clone().set_db(0);
    let settings = match protocol {
        Some(protocol) => settings.set_protocol(protocol),
        None => settings,
    };
    redis::Client::open(info.set_tcp_settings(tcp).set_redis_settings(settings))
}
