//! What a client connects to: a server, or the nodes of a cluster.

use crate::transport::backend::Backend;
use crate::transport::route::Target;
use redis::{IntoConnectionInfo, RedisError};
use std::fmt;
#[cfg(any(feature = "sentinel", feature = "__testing"))]
use std::sync::Arc;

/// What a [`Client`](crate::Client) can be connected to: a URL or a [`redis::Client`]; with the feature `cluster` also
/// an array or a `Vec` of nodes, each a URL or a [`redis::ConnectionInfo`]; with `sentinel` also a
/// `redis::sentinel::SentinelClient`.
#[diagnostic::on_unimplemented(
    message = "a fairlock client cannot be connected to a `{Self}`",
    label = "not a server that fairlock can open connections to",
    note = "pass a URL (`&str` or `String`) or a `redis::Client`; with the feature `cluster` an array or a `Vec` of nodes; \
            with the feature `sentinel` a `redis::sentinel::SentinelClient`",
    note = "a connection or a pool will not do: the client opens connections of its own, for commands and for pub/sub, \
            and opens them again when they break"
)]
pub trait IntoServer: sealed::Sealed {
    #[doc(hidden)]
    fn into_server(self) -> Result<Server, RedisError>;
}

#[doc(hidden)]
pub struct Server(pub(crate) Target);

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.address())
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for &str {}
    impl Sealed for String {}
    impl Sealed for &String {}
    impl Sealed for redis::Client {}
    impl Sealed for redis::ConnectionInfo {}
    #[cfg(feature = "cluster")]
    impl<T> Sealed for Vec<T> {}
    #[cfg(feature = "cluster")]
    impl<T, const N: usize> Sealed for [T; N] {}
    #[cfg(feature = "sentinel")]
    impl Sealed for redis::sentinel::SentinelClient {}
    #[cfg(feature = "__testing")]
    impl Sealed for std::sync::Arc<dyn crate::transport::simulated::Network> {}
}

impl IntoServer for &str {
    fn into_server(self) -> Result<Server, RedisError> {
        redis::Client::open(connection_info(self)?)?.into_server()
    }
}

fn connection_info(url: &str) -> Result<redis::ConnectionInfo, RedisError> {
    check_url(url)?;
    url.into_connection_info()
}

/// A password with a character that ends the host must not become the name of a host, which errors show.
fn check_url(url: &str) -> Result<(), RedisError> {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let after_host = rest.find(['/', '?', '#']).map_or("", |at| &rest[at..]);
    if scheme.contains("unix") || !after_host.contains('@') {
        return Ok(());
    }
    let why = "the URL has an @ after its host; in a password / is written as %2F, ? as %3F and # as %23";
    Err((redis::ErrorKind::InvalidClientConfig, why).into())
}

impl IntoServer for String {
    fn into_server(self) -> Result<Server, RedisError> {
        self.as_str().into_server()
    }
}

impl IntoServer for &String {
    fn into_server(self) -> Result<Server, RedisError> {
        self.as_str().into_server()
    }
}

impl IntoServer for redis::Client {
    fn into_server(self) -> Result<Server, RedisError> {
        Backend::of(&self).map(Target::Server).map(Server)
    }
}

/// A node of a cluster: a URL or a [`redis::ConnectionInfo`].
#[cfg(feature = "cluster")]
#[diagnostic::on_unimplemented(
    message = "a `{Self}` names no node of a cluster",
    label = "not a node that fairlock can open connections to",
    note = "name each node by its URL (`&str` or `String`) or a `redis::ConnectionInfo`"
)]
pub trait IntoNode: sealed::Sealed {
    #[doc(hidden)]
    fn into_node(self) -> Result<redis::ConnectionInfo, RedisError>;
}

#[cfg(feature = "cluster")]
impl IntoNode for &str {
    fn into_node(self) -> Result<redis::ConnectionInfo, RedisError> {
        connection_info(self)
    }
}

#[cfg(feature = "cluster")]
impl IntoNode for String {
    fn into_node(self) -> Result<redis::ConnectionInfo, RedisError> {
        connection_info(&self)
    }
}

#[cfg(feature = "cluster")]
impl IntoNode for &String {
    fn into_node(self) -> Result<redis::ConnectionInfo, RedisError> {
        connection_info(self)
    }
}

#[cfg(feature = "cluster")]
impl IntoNode for redis::ConnectionInfo {
    fn into_node(self) -> Result<redis::ConnectionInfo, RedisError> {
        Ok(self)
    }
}

/// Nodes of a cluster, at least one; the client finds the others. All nodes have the login and TLS settings of the
/// first one.
#[cfg(feature = "cluster")]
impl<T: IntoNode> IntoServer for Vec<T> {
    fn into_server(self) -> Result<Server, RedisError> {
        let nodes = self.into_iter().map(IntoNode::into_node);
        let nodes: Vec<_> = nodes.collect::<Result<_, _>>()?;
        check_nodes(&nodes)?;
        Ok(Server(Target::Cluster(nodes.into())))
    }
}

/// Whatever node takes over is reached by the settings of the first one, so the nodes must not differ in them.
#[cfg(feature = "cluster")]
fn check_nodes(nodes: &[redis::ConnectionInfo]) -> Result<(), RedisError> {
    use redis::{ConnectionAddr, ErrorKind};
    let refuse = |why| Err((ErrorKind::InvalidClientConfig, why).into());
    let Some(first) = nodes.first() else {
        return refuse("no node of the cluster is named");
    };
    let settings = |node: &redis::ConnectionInfo| {
        let redis = node.redis_settings();
        let login = [redis.username(), redis.password()].map(|text| text.map(str::to_owned));
        (login, redis.db(), matches!(node.addr(), ConnectionAddr::TcpTls { .. }))
    };
    for node in nodes {
        if matches!(node.addr(), ConnectionAddr::Unix(_)) {
            return refuse("a node of a cluster is named by host and port, not by a socket");
        }
        if settings(node) != settings(first) {
            return refuse("the nodes of a cluster are named with different users, passwords, databases or TLS");
        }
    }
    Ok(())
}

/// Nodes of a cluster, as in a `Vec`.
#[cfg(feature = "cluster")]
impl<T: IntoNode, const N: usize> IntoServer for [T; N] {
    fn into_server(self) -> Result<Server, RedisError> {
        Vec::from(self).into_server()
    }
}

/// A client that is built for masters. Every new connection asks the sentinels for the master. With the feature
/// `tls-rustls` this makes *ring* the process's provider of TLS, unless the process has one: the client does not tell
/// whether it needs it.
#[cfg(feature = "sentinel")]
impl IntoServer for redis::sentinel::SentinelClient {
    fn into_server(self) -> Result<Server, RedisError> {
        let sentinel = crate::transport::sentinel::Sentinel::new(self);
        Ok(Server(Target::Server(Backend::Sentinel(Arc::new(sentinel)))))
    }
}

#[cfg(feature = "__testing")]
impl IntoServer for Arc<dyn crate::transport::simulated::Network> {
    fn into_server(self) -> Result<Server, RedisError> {
        Ok(Server(Target::Server(Backend::Simulated(self))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_that_ends_the_host_is_refused_and_not_shown() {
        for url in [
            "redis://app:12#s3cret@a",
            "redis://app:12/s3cret@a",
            "valkey://app:12?s3cret@a",
        ] {
            let mut refused = vec![url.into_server()];
            #[cfg(feature = "cluster")]
            refused.extend([["redis://a", url].into_server(), vec![url.to_owned()].into_server()]);
            for refused in refused {
                let error = refused.expect_err("refused").to_string();
                assert!(error.contains("%23") && !error.contains("12"), "{error}");
            }
        }
        assert!("redis://:s3%23cret@a".into_server().is_ok());
        assert!("unix:///tmp/a@b.sock".into_server().is_ok());
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn nodes_of_a_cluster_that_cannot_share_their_settings_are_refused() {
        let refused = |nodes: &[&str]| {
            let error = nodes.to_vec().into_server().expect_err("refused");
            assert_eq!(error.kind(), redis::ErrorKind::InvalidClientConfig, "{error}");
            error.to_string()
        };
        assert!(refused(&[]).contains("no node"));
        assert!(refused(&["redis://a", "unix:///tmp/b"]).contains("not by a socket"));
        let differ = [
            ["redis://:one@a", "redis://:two@b"],
            ["redis://one:x@a", "redis://two:x@b"],
            ["redis://:x@a", "rediss://:x@b"],
            ["redis://a/0", "redis://b/1"],
        ];
        for nodes in differ {
            // Without the feature `tls-rustls` a URL with rediss:// is refused for itself.
            let _ = refused(&nodes);
        }
        assert!(["redis://:x@a:1", "redis://:x@b:2"].into_server().is_ok());
    }
}
