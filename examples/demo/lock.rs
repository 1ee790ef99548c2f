//! The lock that the workers contend for: of one server, or of a majority of several.

use crate::worker::WorkerArgs;
use fairlock::{Access, Client, Error, Guard, LostReason, Quorum, QuorumGuard, QuorumLock, RwLock};
use std::time::Duration;

/// A worker's connections.
pub(crate) enum Connected {
    One(Client),
    Several(Quorum),
}

#[derive(Clone)]
pub(crate) enum Lock {
    One(RwLock),
    Several(QuorumLock),
}

impl Connected {
    /// Connects to one server, or to all servers of a quorum.
    pub(crate) async fn to(servers: &[&str], args: &WorkerArgs) -> Result<Self, Error> {
        let (lease, label) = (
            Duration::from_millis(args.lease_ms),
            format!("demo-process-{}", args.process),
        );
        if let [server] = *servers {
            let builder = Client::builder().lease(lease).prefix(&args.prefix).label(label);
            return Ok(Self::One(builder.connect(server).await?));
        }
        let builder = Quorum::builder("demo").longest_lease(lease).lease(lease);
        let builder = builder.prefix(&args.prefix).label(label);
        Ok(Self::Several(builder.connect(servers.iter().copied()).await?))
    }

    pub(crate) fn lock(&self, name: &str) -> Lock {
        match self {
            Self::One(client) => Lock::One(client.rw_lock(name)),
            Self::Several(quorum) => Lock::Several(quorum.rw_lock(name)),
        }
    }

    pub(crate) async fn shutdown(&self) {
        match self {
            Self::One(client) => client.shutdown().await,
            Self::Several(quorum) => quorum.shutdown().await,
        }
    }
}

/// A hold of such a lock.
pub(crate) trait Hold {
    fn is_held(&self) -> bool;
    async fn lost(&self) -> LostReason;
    async fn token(&self) -> Result<u64, Error>;
    /// How many servers of a quorum keep the hold.
    fn votes(&self) -> Option<usize>;
    async fn release(self) -> Result<(), Error>;
}

impl<M: Access> Hold for Guard<M> {
    fn is_held(&self) -> bool {
        Self::is_held(self)
    }

    async fn lost(&self) -> LostReason {
        Self::lost(self).await
    }

    async fn token(&self) -> Result<u64, Error> {
        Ok(self.fencing_token().get())
    }

    fn votes(&self) -> Option<usize> {
        None
    }

    async fn release(self) -> Result<(), Error> {
        Self::release(self).await
    }
}

impl<M: Access> Hold for QuorumGuard<M> {
    fn is_held(&self) -> bool {
        Self::is_held(self)
    }

    async fn lost(&self) -> LostReason {
        Self::lost(self).await
    }

    async fn token(&self) -> Result<u64, Error> {
        Ok(self.fencing_token().await?.get())
    }

    fn votes(&self) -> Option<usize> {
        Some(Self::votes(self))
    }

    async fn release(self) -> Result<(), Error> {
        Self::release(self).await
    }
}
