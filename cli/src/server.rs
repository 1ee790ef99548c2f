//! The server: which one is meant, how the command connects to it, and what the command says when that fails. `url.rs`
//! reads the URL. Several servers are a quorum: see `quorum.rs`.

use crate::args::duration;
use crate::outcome::{Failure, Status, complain};
use crate::text::{quoted, safe};
use crate::url::{Named, Place};
use clap::Args;
#[cfg(feature = "sentinel")]
use fairlock::redis::TlsMode;
use fairlock::redis::aio::MultiplexedConnection;
#[cfg(feature = "sentinel")]
use fairlock::redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use fairlock::redis::{self, AsyncConnectionConfig, ConnectionInfo, RedisError, Value};
use fairlock::{Client, ClientBuilder, Error};
use futures::future::select_ok;
use std::collections::HashMap;
use std::env::VarError;
use std::time::Duration;

const DEFAULT_URL: &str = "redis://127.0.0.1:6379";
const DEFAULT_PREFIX: &str = "fairlock";
/// How often the command tries to connect: a busy machine may need longer than the two seconds that the library allows.
const ATTEMPTS: usize = 5;

#[derive(Args, Clone, Debug)]
pub(crate) struct ServerArgs {
    /// The server: redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE] or unix:///PATH. The nodes of a cluster:
    /// redis+cluster://HOST[:PORT],HOST[:PORT]... The sentinels of a master:
    /// redis+sentinel://HOST[:PORT],HOST[:PORT].../MASTER[/DATABASE]. With TLS: rediss instead of redis. See fairlock --help.
    /// Repeat --url for a quorum: 3, 5, 7 or 9 independent servers, of which a majority keeps each lock
    /// [default: the variable REDIS_URL, or redis://127.0.0.1:6379]
    #[arg(long, global = true, value_name = "URL", help_heading = "Server")]
    url: Vec<String>,
    /// The prefix of the locks' keys
    #[arg(
        long,
        global = true,
        value_name = "PREFIX",
        default_value = DEFAULT_PREFIX,
        help_heading = "Server"
    )]
    pub(crate) prefix: String,
    /// The quorum's name, the same in all its clients [default: the name that the servers keep]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Server")]
    pub(crate) quorum: Option<String>,
    /// The longest lease of any client of the quorum, the same in all of them. For so long a restarted server does not
    /// vote [default: the time that the servers keep, or 30s]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration, help_heading = "Server")]
    pub(crate) longest_lease: Option<Duration>,
}

/// What a server says that it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Single,
    Cluster,
    Sentinel,
}

/// What answers at a URL.
pub(crate) struct Reached {
    /// To the first of the named hosts that answered.
    pub(crate) redis: MultiplexedConnection,
    pub(crate) kind: Kind,
    pub(crate) place: Place,
    /// A single server that copies another one.
    is_replica: bool,
}

/// A host that answered.
pub(crate) struct Greeted {
    pub(crate) redis: MultiplexedConnection,
    kind: Kind,
    is_replica: bool,
}

impl ServerArgs {
    /// All URLs that are named. An empty `REDIS_URL` counts as unset. An empty --url is what a script makes of a variable
    /// that is not set, so nobody knows which server it means.
    pub(crate) fn urls(&self) -> Result<Vec<String>, Failure> {
        let urls = self.named()?;
        Ok(match urls.is_empty() {
            true => vec![DEFAULT_URL.to_owned()],
            false => urls,
        })
    }

    /// The URLs of the command line, or those of `REDIS_URL`. Empty: nobody has named a server.
    fn named(&self) -> Result<Vec<String>, Failure> {
        if self.url.iter().any(|url| url.trim().is_empty()) {
            return Err(Failure::usage(format!(
                "--url is empty: write a server like {DEFAULT_URL}, or leave --url out to use REDIS_URL"
            )));
        }
        match (self.url.is_empty(), std::env::var("REDIS_URL")) {
            (false, _) => Ok(self.url.clone()),
            (true, Ok(urls)) => Ok(urls.split_whitespace().map(str::to_owned).collect()),
            (true, Err(VarError::NotPresent)) => Ok(Vec::new()),
            // Another server than the one that was meant is the worst choice.
            (true, Err(VarError::NotUnicode(_))) => {
                let what = "cannot read the server's URL: REDIS_URL is not UTF-8";
                Err(Failure::usage(format!("{what}; write it like {DEFAULT_URL}")))
            }
        }
    }

    /// The URL of a single server.
    pub(crate) fn url(&self) -> Result<String, Failure> {
        self.urls().map(|urls| urls.into_iter().next().unwrap_or_default())
    }

    pub(crate) fn place(&self) -> Result<Place, Failure> {
        let place = Place::read(&self.url()?);
        place.map_err(|error| Failure::usage(format!("cannot read the server's URL: {error}")))
    }

    /// The same for one of several servers, and another prefix.
    pub(crate) fn at(&self, url: String, prefix: String) -> Self {
        Self {
            url: vec![url],
            prefix,
            quorum: None,
            longest_lease: None,
        }
    }

    /// The URL without its secrets. A URL that cannot be read is not shown, because its password may be anywhere.
    pub(crate) fn shown(&self) -> String {
        self.place().map_or("the server".to_owned(), |place| place.shown)
    }

    /// The beginning of a command line for the same server, without secrets.
    pub(crate) fn typed(&self) -> String {
        let mut typed = "fairlock".to_owned();
        if let (false, Ok(place)) = (self.url.is_empty(), self.place()) {
            // The operator knows the password.
            let url = if place.has_login() { "URL" } else { &place.shown };
            typed += &format!(" --url {}", quoted(url));
        }
        if self.prefix != DEFAULT_PREFIX {
            typed += &format!(" --prefix {}", quoted(&self.prefix));
        }
        typed
    }

    /// A client for the subcommands that show something.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        self.connect(Client::builder().label("fairlock")).await
    }

    /// A client that shows locks as they are now, and whether its server is a replica. A replica may not know yet how they
    /// are, so the command says once that it looks at one.
    pub(crate) async fn looker(&self) -> Result<(Client, bool), Failure> {
        let mut reached = self.reach().await?;
        let is_replica = reached.is_replica;
        if is_replica {
            complain(&format!(
                "{}, and may be behind it",
                self.as_replica(&mut reached).await
            ));
        }
        let client = self.connect_to(reached, Client::builder().label("fairlock")).await?;
        Ok((client, is_replica))
    }

    /// A client that waits for events. Clients publish them only once they know of a listener, and a listener makes
    /// itself known by a write, which a replica refuses. So no event would ever come.
    pub(crate) async fn listener(&self) -> Result<Client, Failure> {
        let mut reached = self.reach().await?;
        if reached.is_replica {
            let replica = self.as_replica(&mut reached).await;
            let message = format!("{replica}, and brings no events: name its master by --url");
            return Err(Failure::new(Status::UNAVAILABLE, message));
        }
        self.connect_to(reached, Client::builder().label("fairlock")).await
    }

    /// Says that the server is a replica, and of which master. Its user may not be allowed to ask for that one.
    async fn as_replica(&self, reached: &mut Reached) -> String {
        let role = redis::cmd("ROLE").query_async::<Vec<Value>>(&mut reached.redis).await;
        let master = match role.as_deref() {
            Ok([_, Value::BulkString(host), Value::Int(port), ..]) => {
                format!("{}:{port}", safe(&String::from_utf8_lossy(host)))
            }
            _ => "another server".to_owned(),
        };
        format!("{} is a replica of {master}", self.shown())
    }

    pub(crate) async fn connect(&self, builder: ClientBuilder) -> Result<Client, Failure> {
        let reached = self.reach().await?;
        self.connect_to(reached, builder).await
    }

    async fn connect_to(&self, mut reached: Reached, builder: ClientBuilder) -> Result<Client, Failure> {
        let master = match reached.kind {
            Kind::Sentinel => Some(self.master(&mut reached).await?),
            _ => None,
        };
        let builder = builder.prefix(&self.prefix);
        let mut attempt = 1;
        loop {
            match self.connected(builder.clone(), &reached, master.as_deref()).await? {
                Ok(client) => return Ok(client),
                Err(Error::Connect { source, .. }) if source.is_timeout() && attempt < ATTEMPTS => attempt += 1,
                // The URL has led to a server already, so what is wrong is the server, such as a node without slots.
                Err(Error::Connect { source, remedy, .. }) if is_of_settings(&source) => {
                    let message = format!("cannot use {}: {source}; {remedy}", self.shown());
                    return Err(Failure::new(Status::UNAVAILABLE, message));
                }
                Err(Error::Connect { source, remedy, .. }) => return Err(self.unreachable(&source, remedy)),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// One attempt. The outer error: this build of the command cannot connect to such a server.
    async fn connected(
        &self,
        builder: ClientBuilder,
        reached: &Reached,
        master: Option<&str>,
    ) -> Result<Result<Client, Error>, Failure> {
        match (reached.kind, master) {
            (Kind::Single, _) => Ok(builder.connect(self.redis_client()?).await),
            #[cfg(feature = "cluster")]
            (Kind::Cluster, _) => Ok(builder.connect(reached.place.hosts.clone()).await),
            #[cfg(feature = "sentinel")]
            (Kind::Sentinel, Some(master)) => Ok(builder.connect(self.sentinel(&reached.place, master)?).await),
            #[allow(unreachable_patterns, reason = "with both features every kind has its way")]
            (kind, _) => Err(self.cannot_use(kind, "this build of fairlock has no feature for it")),
        }
    }

    /// A client of the sentinels for that master. TLS is for the sentinels and the master alike.
    #[cfg(feature = "sentinel")]
    fn sentinel(&self, place: &Place, master: &str) -> Result<SentinelClient, Failure> {
        let mut nodes = SentinelNodeConnectionInfo::default().set_redis_connection_info(place.settings.clone());
        if place.is_tls() {
            nodes = nodes.set_tls_mode(match place.is_insecure() {
                true => TlsMode::Insecure,
                false => TlsMode::Secure,
            });
        }
        let (hosts, master) = (place.hosts.clone(), master.to_owned());
        let client = SentinelClient::build(hosts, master, Some(nodes), SentinelServerType::Master);
        client.map_err(|error| self.unreachable(&error, fairlock::__cli::remedy(&error)))
    }

    /// A plain connection to a single server, for what the library does not offer.
    pub(crate) async fn redis(&self) -> Result<MultiplexedConnection, Failure> {
        match self.reach().await? {
            Reached {
                redis,
                kind: Kind::Single,
                ..
            } => Ok(redis),
            Reached { kind, .. } => Err(self.cannot_use(kind, "a quorum has single servers: name each by its own URL")),
        }
    }

    /// A plain connection to the first host that answers, and what it is. Every subcommand begins with this.
    pub(crate) async fn reach(&self) -> Result<Reached, Failure> {
        let place = self.place()?;
        let answers = place.hosts.iter().map(|host| Box::pin(greet(host)));
        let (greeted, _) = select_ok(answers).await.map_err(|error| match &place.named {
            Named::Sentinel { .. } if is_login(&error) => self.unreachable(
                &error,
                "name the sentinels' own login by ?sentinel_username=USER&sentinel_password=PASSWORD, because the login \
                 before the host is the master's",
            ),
            _ => self.unreachable(&error, fairlock::__cli::remedy(&error)),
        })?;
        let kind = greeted.kind;
        let remedy = match (&place.named, kind) {
            (Named::Server, _) | (Named::Cluster, Kind::Cluster) | (Named::Sentinel { .. }, Kind::Sentinel) => {
                let Greeted { redis, is_replica, .. } = greeted;
                return Ok(Reached {
                    redis,
                    kind,
                    place,
                    is_replica,
                });
            }
            (_, Kind::Single) => "write redis:// for it",
            (_, Kind::Cluster) => "write redis+cluster:// for it",
            (_, Kind::Sentinel) => "write redis+sentinel:// for it",
        };
        Err(self.cannot_use(kind, remedy))
    }

    /// The URL leads to a server of which the command cannot do what it was told, now or later.
    fn cannot_use(&self, kind: Kind, why: &str) -> Failure {
        Failure::usage(self.as_kind(kind, why))
    }

    /// Says what the server is, and why that is of no use.
    pub(crate) fn as_kind(&self, kind: Kind, why: &str) -> String {
        let what = match kind {
            Kind::Single => "a single server",
            Kind::Cluster => "a node of a cluster",
            Kind::Sentinel => "a Sentinel",
        };
        format!("{} is {what}; {why}", self.shown())
    }

    /// The name of the master that the URL names, or of the only one that the sentinel watches.
    pub(crate) async fn master(&self, reached: &mut Reached) -> Result<String, Failure> {
        let mut command = redis::cmd("SENTINEL");
        let masters = command
            .arg("MASTERS")
            .query_async::<Vec<HashMap<String, String>>>(&mut reached.redis);
        let masters = masters
            .await
            .map_err(|error| self.refused("cannot learn the master's name", &error))?;
        let field = |master: &HashMap<String, String>, name| master.get(name).cloned().unwrap_or_default();
        let place = &reached.place;
        let named = match &place.named {
            Named::Sentinel { master } => master.as_deref(),
            _ => None,
        };
        let found = match (named, masters.as_slice()) {
            (Some(name), all) => all.iter().find(|master| field(master, "name") == name),
            (None, [master]) => Some(master),
            (None, _) => None,
        };
        if let Some(master) = found {
            return Ok(field(master, "name"));
        }
        let shown = |master| {
            let [ip, port, name] = ["ip", "port", "name"].map(|name| field(master, name));
            safe(&format!("{} (at {ip}:{port})", place.shown_with(&name)))
        };
        let all: Vec<_> = masters.iter().map(shown).collect();
        let all = all.join(", ");
        let why = match (masters.len(), named) {
            (0, _) => {
                let message = self.as_kind(Kind::Sentinel, "it watches no master yet");
                return Err(Failure::new(Status::UNAVAILABLE, message));
            }
            // Another sentinel may know it, and SENTINEL MONITOR adds it.
            (_, Some(name)) => {
                let why = format!("it watches no master called {}, but {all}", safe(name));
                return Err(Failure::new(Status::UNAVAILABLE, self.as_kind(Kind::Sentinel, &why)));
            }
            (_, None) => format!("it watches several masters, so name one: {all}"),
        };
        Err(self.cannot_use(Kind::Sentinel, &why))
    }

    pub(crate) fn redis_client(&self) -> Result<redis::Client, Failure> {
        let place = self.place()?;
        let client = redis::Client::open(place.hosts[0].clone());
        client.map_err(|error| self.unreachable(&error, fairlock::__cli::remedy(&error)))
    }

    /// The server replied to a plain command with an error, or did not reply.
    pub(crate) fn refused(&self, what: &str, error: &RedisError) -> Failure {
        let message = format!("{what}: {} says: {error}", self.shown());
        Failure::new(Status::UNAVAILABLE, message)
    }

    fn unreachable(&self, error: &RedisError, remedy: &str) -> Failure {
        if is_of_settings(error) {
            return Failure::usage(format!("cannot use the server's URL: {error}; {remedy}"));
        }
        let shown = self.shown();
        // On one line.
        let error_text = error.to_string().trim().replace('\n', ", ");
        // Something answers if there is more to do than to look whether the server is up.
        let away = RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        if remedy != fairlock::__cli::remedy(&away) {
            let message = format!("cannot connect to {shown}: {error_text}; {remedy}");
            return Failure::new(Status::UNAVAILABLE, message);
        }
        let mut message = format!("no server answers at {shown}: {error_text}\n");
        if error.is_timeout() && shown.starts_with("rediss") {
            // A server without TLS takes the handshake for the beginning of a command and waits for the rest.
            message += "If the server's port speaks no TLS, write redis:// instead of rediss://.\n";
        }
        // Whoever has named a server wants that one, and not a new one without its locks.
        message += match self.named().is_ok_and(|urls| urls.is_empty()) {
            true => {
                "Name a server by --url or REDIS_URL, or start one:\n    \
                 redis-server --port 6379\n    \
                 docker run --rm -p 6379:6379 valkey/valkey"
            }
            false => "Check its address, that it is up, and that this host reaches it.",
        };
        Failure::new(Status::UNAVAILABLE, message)
    }

    /// The user that logs in.
    pub(crate) fn user(&self) -> String {
        let settings = self.place().ok().map(|place| place.settings);
        let user = settings.and_then(|settings| settings.username().map(str::to_owned));
        user.unwrap_or_else(|| "default".to_owned())
    }
}

/// Connects to a host and asks what it is.
pub(crate) async fn greet(host: &ConnectionInfo) -> Result<Greeted, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(10)))
        .set_response_timeout(Some(Duration::from_secs(10)));
    let client = redis::Client::open(host.clone())?;
    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
    let mut connection = connection.map_err(fairlock::__cli::without_arguments)?;
    // Every user may say HELLO.
    let hello = redis::cmd("HELLO");
    let hello = hello.query_async::<HashMap<String, Value>>(&mut connection).await?;
    let says = |field: &str, words: &[&str]| match hello.get(field) {
        Some(Value::BulkString(said)) => words.iter().any(|word| word.as_bytes() == said),
        _ => false,
    };
    let kind = if says("mode", &["cluster"]) {
        Kind::Cluster
    } else if says("mode", &["sentinel"]) {
        Kind::Sentinel
    } else {
        Kind::Single
    };
    // The library finds the master of each node of a cluster.
    let is_replica = kind == Kind::Single && says("role", &["replica", "slave"]);
    Ok(Greeted {
        redis: connection,
        kind,
        is_replica,
    })
}

/// The client cannot work with such settings, or with such a server.
fn is_of_settings(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::InvalidClientConfig
}

/// The server wants another login, or none.
fn is_login(error: &RedisError) -> bool {
    let text = error.to_string();
    error.kind() == redis::ErrorKind::AuthenticationFailed || text.contains("NOAUTH") || text.contains("WRONGPASS")
}
