//! What a URL names: a server, the nodes of a cluster, or the sentinels of a master. `docs/command.md` has the grammar and
//! its reasons.

use fairlock::redis::{self, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, RedisError};
use std::borrow::Cow;
use std::fmt;

/// What the scheme of a URL says that its hosts are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// `redis://`, `unix://` and their like: the server tells what it is.
    Server,
    /// `redis+cluster://`
    Cluster,
    /// `redis+sentinel://`, perhaps with the name of one of the masters.
    Sentinel { master: Option<String> },
}

/// A URL that has been read.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) named: Named,
    /// The server, the nodes or the sentinels. There is at least one.
    pub(crate) hosts: Vec<ConnectionInfo>,
    /// The login and the database of the servers that keep the locks.
    pub(crate) settings: RedisConnectionInfo,
    /// The URL without its secrets.
    pub(crate) shown: String,
    /// The URL up to the hosts, and what follows them: of another server with the same login and TLS.
    around: (String, String),
}

/// Why a URL cannot be read. No text repeats a part of the URL that may hold a password.
#[derive(Debug)]
pub(crate) enum UrlError {
    /// The redis crate cannot read it.
    Redis(RedisError),
    /// The scheme is not one of ours, but its like.
    Scheme { ours: &'static str },
    /// A `redis://` URL has several hosts.
    SeveralHosts,
    /// A further host has a login of its own, or the password has an `@`.
    SeveralLogins,
    /// The login has no colon: a user without a password, or a password that its writer took for one without a user.
    Login,
    /// There is an `@` after the host: the password has a character that ends the host.
    Unescaped,
    /// There is nothing between two commas, or no host at all.
    NoHost,
    /// The URL of a cluster has a path.
    PathOfCluster,
    /// The path is not `/MASTER` or `/MASTER/DATABASE`.
    PathOfSentinel,
    /// An option or a fragment that has no meaning here. It may be a part of a password.
    Option,
}

const CLUSTER: &str = "redis+cluster://HOST:PORT,HOST:PORT";
const SENTINEL: &str = "redis+sentinel://HOST:PORT,HOST:PORT/MASTER";

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redis(error) => write!(
                f,
                "{error}; write it like redis://127.0.0.1:6379, {CLUSTER} or {SENTINEL}, in --url or REDIS_URL"
            ),
            Self::Scheme { ours } => write!(f, "its scheme is another program's; write it like {ours}"),
            Self::SeveralHosts => write!(
                f,
                "it has several hosts; write {CLUSTER} for the nodes of a cluster, {SENTINEL} for sentinels, \
                 and repeat --url for the servers of a quorum"
            ),
            Self::SeveralLogins => write!(
                f,
                "it has several @; name the login once, before the first host, and write an @ of the password as %40"
            ),
            Self::Login => write!(
                f,
                "its login has no colon; a login is USER:PASSWORD@ or :PASSWORD@, and USER:@ is a user without a password"
            ),
            Self::Unescaped => write!(
                f,
                "it has an @ after its host; in a password / is written as %2F, ? as %3F and # as %23"
            ),
            Self::NoHost => write!(f, "a host is missing; write it like {CLUSTER} or {SENTINEL}"),
            Self::PathOfCluster => write!(
                f,
                "it has a path, and a cluster has database 0 only; write it like {CLUSTER}"
            ),
            Self::PathOfSentinel => write!(
                f,
                "its path is not /MASTER or /MASTER/DATABASE; write it like {SENTINEL}"
            ),
            Self::Option => write!(
                f,
                "it has an unknown option or fragment; write a database as /DATABASE, or of unix:///PATH as \
                 ?db=DATABASE, the login of sentinels as ?sentinel_username=USER&sentinel_password=PASSWORD, and in a \
                 password ? as %3F and # as %23"
            ),
        }
    }
}

impl From<RedisError> for UrlError {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

/// The parts of a URL with several hosts.
struct Parts<'a> {
    /// Up to the hosts: the scheme of one of them, and the login.
    before: String,
    login: Option<&'a str>,
    hosts: Vec<&'a str>,
    /// Between slashes.
    path: Vec<&'a str>,
    query: &'a str,
    /// With its `#`.
    fragment: String,
}

impl Place {
    pub(crate) fn read(url: &str) -> Result<Self, UrlError> {
        let scheme = url
            .split_once("://")
            .map_or("", |(scheme, _)| scheme)
            .to_ascii_lowercase();
        let is_ours = |base: &str| matches!(base, "redis" | "rediss" | "valkey" | "valkeys");
        match scheme.split_once('+') {
            Some((base, "cluster")) if is_ours(base) => Self::cluster(url, &scheme, base),
            Some((base, "sentinel")) if is_ours(base) => Self::sentinel(url, &scheme, base),
            _ if scheme.contains("sentinel") => Err(UrlError::Scheme { ours: SENTINEL }),
            _ if scheme.contains("cluster") => Err(UrlError::Scheme { ours: CLUSTER }),
            _ => Self::server(url),
        }
    }

    fn server(url: &str) -> Result<Self, UrlError> {
        let Some(mut parsed) = redis::parse_redis_url(url) else {
            // Whatever the redis crate says of it.
            let error = url.into_connection_info().err();
            let unread = || RedisError::from((redis::ErrorKind::InvalidClientConfig, "Redis URL did not parse"));
            return Err(error.unwrap_or_else(unread).into());
        };
        if parsed.host_str().is_some_and(|host| host.contains(',')) {
            return Err(UrlError::SeveralHosts);
        }
        let (scheme, rest) = url.split_once("://").unwrap_or((url, ""));
        let authority = rest.split(['/', '?', '#']).next();
        let login = authority.and_then(|authority| authority.rsplit_once('@'));
        let login = login.map(|(login, _)| format!("{login}@")).unwrap_or_default();
        // The parsed URL does not tell `USER:@` from `USER@`. It leaves out tabs and line breaks, so its user counts.
        if !parsed.username().is_empty() && !login.contains(':') {
            return Err(UrlError::Login);
        }
        let after_host = rest.find(['/', '?', '#']).map_or("", |at| &rest[at..]);
        if after_host.contains('@') && !scheme.to_ascii_lowercase().contains("unix") {
            return Err(UrlError::Unescaped);
        }
        let known = match parsed.scheme().contains("unix") {
            true => &["db", "user", "pass", "protocol"][..],
            false => &["protocol"],
        };
        if parsed.query_pairs().any(|(name, _)| !known.contains(&&*name)) {
            return Err(UrlError::Option);
        }
        check_fragment(parsed.scheme(), parsed.fragment().unwrap_or_default())?;
        let host = with_login(url.into_connection_info()?);
        let fragment = parsed.fragment().map(|fragment| format!("#{fragment}"));
        let around = (format!("{scheme}://{login}"), fragment.unwrap_or_default());
        // Not every kind of URL can have one.
        let _ = parsed.set_password(None);
        // What may be shown: two databases of one server are not the same locks.
        let database = parsed.query_pairs().filter(|(name, _)| name == "db").last();
        let database = database.map(|(_, number)| format!("db={number}"));
        parsed.set_query(database.as_deref());
        Ok(Self {
            named: Named::Server,
            settings: host.redis_settings().clone(),
            hosts: vec![host],
            shown: parsed.to_string(),
            around,
        })
    }

    fn cluster(url: &str, scheme: &str, base: &str) -> Result<Self, UrlError> {
        let parts = Parts::of(url, base)?;
        if !matches!(parts.path.as_slice(), [] | ["0"]) {
            return Err(UrlError::PathOfCluster);
        }
        if parts.options().next().is_some() {
            return Err(UrlError::Option);
        }
        let hosts = parts.connections("6379", &parts.before)?;
        Ok(Self {
            named: Named::Cluster,
            settings: hosts[0].redis_settings().clone(),
            shown: parts.shown(scheme),
            around: (parts.before, parts.fragment),
            hosts,
        })
    }

    fn sentinel(url: &str, scheme: &str, base: &str) -> Result<Self, UrlError> {
        let parts = Parts::of(url, base)?;
        let (master, database) = match parts.path.as_slice() {
            [] => (None, 0),
            [master] => (Some(decoded(master)?), 0),
            [master, database] => {
                let number = database.parse::<u32>().map_err(|_| UrlError::PathOfSentinel)?;
                (Some(decoded(master)?), i64::from(number))
            }
            _ => return Err(UrlError::PathOfSentinel),
        };
        let mut login = RedisConnectionInfo::default();
        for (name, value) in parts.options() {
            login = match &*name {
                "sentinel_username" => login.set_username(value),
                "sentinel_password" => login.set_password(value),
                _ => return Err(UrlError::Option),
            };
        }
        // The login of the URL is the master's. It is read here, and then replaced by the sentinels' own.
        let hosts = parts.connections("26379", &parts.before)?;
        let settings = hosts[0].redis_settings().clone().set_db(database);
        let of_sentinel = |host: ConnectionInfo| with_login(host.set_redis_settings(login.clone()));
        let after = format!("/{database}{}", parts.fragment);
        Ok(Self {
            named: Named::Sentinel { master },
            hosts: hosts.into_iter().map(of_sentinel).collect(),
            settings,
            shown: parts.shown(scheme),
            around: (parts.before, after),
        })
    }

    /// The URL of another server that has the same login, TLS and database.
    pub(crate) fn at(&self, host: &str, port: u16) -> String {
        let (before, after) = &self.around;
        match host.contains(':') {
            true => format!("{before}[{host}]:{port}{after}"),
            false => format!("{before}{host}:{port}{after}"),
        }
    }

    /// Whether the URL has a password or a user, also of the sentinels.
    pub(crate) fn has_login(&self) -> bool {
        let has = |settings: &RedisConnectionInfo| settings.username().is_some() || settings.password().is_some();
        has(&self.settings) || self.hosts.iter().any(|host| has(host.redis_settings()))
    }

    #[cfg(feature = "sentinel")]
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.hosts[0].addr(), redis::ConnectionAddr::TcpTls { .. })
    }

    /// Whether the URL turns the check of certificates off.
    #[cfg(feature = "sentinel")]
    pub(crate) fn is_insecure(&self) -> bool {
        matches!(
            self.hosts[0].addr(),
            redis::ConnectionAddr::TcpTls { insecure: true, .. }
        )
    }

    /// The URL that names a master, whatever this one says of it.
    pub(crate) fn shown_with(&self, master: &str) -> String {
        let (scheme, rest) = self.shown.split_once("://").unwrap_or(("redis", &self.shown));
        let hosts = rest.split('/').next().unwrap_or_default();
        let kind = if scheme.contains('+') { "" } else { "+sentinel" };
        let name: String = form_urlencoded::byte_serialize(master.as_bytes()).collect();
        format!("{scheme}{kind}://{hosts}/{}", name.replace('+', "%20"))
    }
}

impl<'a> Parts<'a> {
    fn of(url: &'a str, base: &str) -> Result<Self, UrlError> {
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.contains('@') || fragment.contains('@') {
            return Err(UrlError::Unescaped);
        }
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        if login.is_some_and(|login| login.contains('@')) {
            return Err(UrlError::SeveralLogins);
        }
        if login.is_some_and(|login| !login.is_empty() && !login.contains(':')) {
            return Err(UrlError::Login);
        }
        check_fragment(base, fragment)?;
        let hosts: Vec<_> = hosts.split(',').collect();
        if hosts.iter().any(|host| host.is_empty() || host.starts_with(':')) {
            return Err(UrlError::NoHost);
        }
        let path = path.strip_suffix('/').unwrap_or(path);
        let login_at = login.map(|login| format!("{login}@")).unwrap_or_default();
        Ok(Self {
            before: format!("{base}://{login_at}"),
            login,
            hosts,
            path: path.split('/').filter(|_| !path.is_empty()).collect(),
            query,
            fragment: match fragment {
                "" => String::new(),
                fragment => format!("#{fragment}"),
            },
        })
    }

    fn options(&self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> {
        form_urlencoded::parse(self.query.as_bytes())
    }

    /// Each host as the redis crate reads the URL of a single one.
    fn connections(&self, port: &str, before: &str) -> Result<Vec<ConnectionInfo>, UrlError> {
        let connection = |host: &&str| {
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
            let port = if has_port { String::new() } else { format!(":{port}") };
            format!("{before}{host}{port}{}", self.fragment).into_connection_info()
        };
        let connections = self.hosts.iter().map(connection);
        Ok(connections
            .map(|host| host.map(with_login))
            .collect::<Result<_, RedisError>>()?)
    }

    /// The URL without its secrets. The options hold only secrets.
    fn shown(&self, scheme: &str) -> String {
        let user = self.login.map(|login| login.split(':').next().unwrap_or_default());
        let user = user.filter(|user| !user.is_empty()).map(|user| format!("{user}@"));
        let path: String = self.path.iter().map(|part| format!("/{part}")).collect();
        let (user, hosts) = (user.unwrap_or_default(), self.hosts.join(","));
        format!("{scheme}://{user}{hosts}{path}")
    }
}

/// A user without a password logs in with an empty one. Without any password the redis crate does not log in.
fn with_login(host: ConnectionInfo) -> ConnectionInfo {
    let settings = host.redis_settings().clone();
    match (settings.username(), settings.password()) {
        (Some(_), None) => host.set_redis_settings(settings.set_password("")),
        _ => host,
    }
}

/// Only a URL with TLS has a fragment that means something. Another one may be the rest of a password.
fn check_fragment(scheme: &str, fragment: &str) -> Result<(), UrlError> {
    match (scheme, fragment) {
        (_, "") | ("rediss" | "valkeys", "insecure") => Ok(()),
        _ => Err(UrlError::Option),
    }
}

/// A part of a path without its escapes. A `+` stands for itself there.
fn decoded(part: &str) -> Result<String, UrlError> {
    let escaped = format!("x={}", part.replace('+', "%2B").replace('&', "%26"));
    let decoded = form_urlencoded::parse(escaped.as_bytes()).next();
    let text = decoded.map(|(_, text)| text.into_owned()).unwrap_or_default();
    match text.is_empty() || text.contains(char::REPLACEMENT_CHARACTER) {
        true => Err(UrlError::PathOfSentinel),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests;
