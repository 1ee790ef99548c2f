//! A backend: where connections lead, to one server, to the master that Sentinel names, or (in a simulation) nowhere.

#[cfg(feature = "sentinel")]
use super::sentinel::Sentinel;
use super::server::{Connected, Purpose, Server};
#[cfg(feature = "__testing")]
use super::simulated::Network;
use super::wire::OnPush;
#[cfg(feature = "__testing")]
use super::wire::Wire;
use redis::RedisError;
use std::sync::Arc;

/// Connects to one server.
#[derive(Clone)]
pub(crate) enum Backend {
    Server(Arc<Server>),
    /// Whichever server is the master.
    #[cfg(feature = "sentinel")]
    Sentinel(Arc<Sentinel>),
    #[cfg(feature = "__testing")]
    Simulated(Arc<dyn Network>),
}

impl Backend {
    pub(crate) fn of(client: &redis::Client) -> Result<Self, RedisError> {
        Server::of(client).map(Arc::new).map(Self::Server)
    }

    /// For errors and logs.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Server(server) => server.address(),
            #[cfg(feature = "sentinel")]
            Self::Sentinel(_) => "the master that Sentinel names".to_owned(),
            #[cfg(feature = "__testing")]
            Self::Simulated(_) => "simulation".to_owned(),
        }
    }

    pub(crate) async fn connect(
        &self,
        label: Option<&str>,
        purpose: Purpose,
        on_push: Option<OnPush>,
    ) -> Result<Connected, RedisError> {
        match self {
            Self::Server(server) => server.connect(label, purpose, on_push).await,
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => sentinel.connect(label, purpose, on_push).await,
            #[cfg(feature = "__testing")]
            Self::Simulated(network) => {
                let wire = Wire::Simulated(network.connect(on_push).await?);
                // The simulation has no functions.
                let _ = purpose;
                Connected::greet(wire, 0, label, Purpose::Pushes).await
            }
        }
    }

    /// The server of that term replied as only a replica does, so the term is over.
    pub(crate) fn is_demoted(&self, term: u64) {
        match self {
            Self::Server(server) => server.is_demoted(term),
            // The sentinels announce the next master, so their terms end by that.
            #[cfg(any(feature = "__testing", feature = "sentinel"))]
            _ => {}
        }
    }

    /// Waits until connections of that term lead to the wrong server.
    pub(crate) async fn outdated(&self, term: u64) {
        match self {
            Self::Server(server) => server.outdated(term).await,
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => sentinel.outdated(term).await,
            #[cfg(feature = "__testing")]
            Self::Simulated(_) => std::future::pending().await,
        }
    }

    /// Whether the client learns at once when another server takes over. Then a call under way need not wait any
    /// longer.
    pub(crate) fn hears_of_successors(&self) -> bool {
        match self {
            #[cfg(feature = "sentinel")]
            Self::Sentinel(_) => true,
            _ => false,
        }
    }

    /// Watches for a new master. Never ends.
    pub(crate) async fn watch(&self) {
        match self {
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => sentinel.watch().await,
            _ => std::future::pending().await,
        }
    }
}
