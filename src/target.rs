//! What a client connects to: a server, or the nodes of a cluster.

use crate::transport::backend::Backend;
use crate::transport::route::Target;
use redis::{IntoConnectionInfo, RedisError};
use std::fmt;
#[cfg(any(feature = "sentinel", feature = "testing"))]
use std::sync::Arc;

/// What a [`Client`](crate::Client) can be connected to: a URL or a [`redis::Client`]; with the feature `cluster` also
/// an array or a `Vec` of nodes, each a URL or a [`redis::ConnectionInfo`]; with `sentinel` also a
/// `redis::sentinel::SentinelClient`.
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
    #[cfg(feature = "cluster")]
    impl<T> Sealed for Vec<T> {}
    #[cfg(feature = "cluster")]
    impl<T, const N: usize> Sealed for [T; N] {}
    #[cfg(feature = "sentinel")]
    impl Sealed for redis::sentinel::SentinelClient {}
    #[cfg(feature = "testing")]
    impl Sealed for std::sync::Arc<dyn crate::transport::simulated::Network> {}
}

impl IntoServer for &str {
    fn into_server(self) -> Result<Server, RedisError> {
        redis::Client::open(self.into_connection_info()?)?.into_server()
    }
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

/// Nodes of a cluster, at least one; the client finds the others. All nodes have the login and TLS settings of the
/// first one.
#[cfg(feature = "cluster")]
impl<T: IntoConnectionInfo> IntoServer for Vec<T> {
    fn into_server(self) -> Result<Server, RedisError> {
        let nodes = self.into_iter().map(IntoConnectionInfo::into_connection_info);
        let nodes: Vec<_> = nodes.collect::<Result<_, _>>()?;
        if nodes.is_empty() {
            let why = (redis::ErrorKind::InvalidClientConfig, "no node of the cluster is named");
            return Err(why.into());
        }
        Ok(Server(Target::Cluster(nodes.into())))
    }
}

/// Nodes of a cluster, as in a `Vec`.
#[cfg(feature = "cluster")]
impl<T: IntoConnectionInfo, const N: usize> IntoServer for [T; N] {
    fn into_server(self) -> Result<Server, RedisError> {
        Vec::from(self).into_server()
    }
}

/// A client that is built for masters. Every new connection asks the sentinels for the master.
#[cfg(feature = "sentinel")]
impl IntoServer for redis::sentinel::SentinelClient {
    fn into_server(self) -> Result<Server, RedisError> {
        let sentinel = crate::transport::sentinel::Sentinel::new(self);
        Ok(Server(Target::Server(Backend::Sentinel(Arc::new(sentinel)))))
    }
}

#[cfg(feature = "testing")]
impl IntoServer for Arc<dyn crate::transport::simulated::Network> {
    fn into_server(self) -> Result<Server, RedisError> {
        Ok(Server(Target::Server(Backend::Simulated(self))))
    }
}
