//! What a client can be connected to.

use crate::wire::Backend;
use redis::{IntoConnectionInfo, RedisError};
use std::fmt;
#[cfg(any(feature = "sentinel", feature = "attack"))]
use std::sync::Arc;

/// What a [`Client`](crate::Client) can be connected to: a URL or a [`redis::Client`]; with the features `cluster` and
/// `sentinel` also a `redis::cluster::ClusterClient` and a `redis::sentinel::SentinelClient`.
pub trait IntoServer: sealed::Sealed {
    #[doc(hidden)]
    fn into_server(self) -> Result<Server, RedisError>;
}

#[doc(hidden)]
pub struct Server(pub(crate) Backend);

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
    impl Sealed for redis::cluster::ClusterClient {}
    #[cfg(feature = "sentinel")]
    impl Sealed for redis::sentinel::SentinelClient {}
    #[cfg(feature = "attack")]
    impl Sealed for std::sync::Arc<dyn crate::attack::Network> {}
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
        Backend::redis(&self).map(Server)
    }
}

/// Of the client the nodes' addresses, the login and TLS are used; time limits and an address map are not.
#[cfg(feature = "cluster")]
impl IntoServer for redis::cluster::ClusterClient {
    fn into_server(self) -> Result<Server, RedisError> {
        crate::cluster::seeds_of(&self).map(Backend::Cluster).map(Server)
    }
}

/// One that is built for masters. Every connection that is made asks for the master anew.
#[cfg(feature = "sentinel")]
impl IntoServer for redis::sentinel::SentinelClient {
    fn into_server(self) -> Result<Server, RedisError> {
        let sentinel = crate::sentinel::Sentinel::new(self);
        Ok(Server(Backend::Sentinel(Arc::new(sentinel))))
    }
}

#[cfg(feature = "attack")]
impl IntoServer for Arc<dyn crate::attack::Network> {
    fn into_server(self) -> Result<Server, RedisError> {
        Ok(Server(Backend::Simulated(self)))
    }
}
