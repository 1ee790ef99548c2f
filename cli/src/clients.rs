//! Who the clients are that events name by their numbers.

use fairlock::{Client, ClientInfo, Error, Status};
use std::collections::HashMap;

/// Clients that have said who they are.
#[derive(Debug, Default)]
pub(crate) struct Known(HashMap<String, ClientInfo>);

impl Known {
    /// At so many it forgets those that it knows, because most of them have ended.
    const MOST: usize = 10_000;

    pub(crate) fn get(&self, id: &str) -> Option<&ClientInfo> {
        self.0.get(id)
    }

    pub(crate) fn meet(&mut self, client: &ClientInfo) {
        // Whoever has told only a number may be about to introduce itself.
        let is_introduced = client.label.is_some() || client.process.is_some() || client.host.is_some();
        if !is_introduced || self.get(&client.id).is_some() {
            return;
        }
        if self.0.len() >= Self::MOST {
            self.0.clear();
        }
        self.0.insert(client.id.clone(), client.clone());
    }

    /// Those that hold the lock or wait for it.
    pub(crate) fn learn(&mut self, status: &Status) {
        let holders = status.holders.iter().map(|holder| &holder.client);
        for client in holders.chain(status.waiters.iter().map(|waiter| &waiter.client)) {
            self.meet(client);
        }
    }
}

pub(crate) struct Clients {
    client: Client,
    known: Known,
}

impl Clients {
    pub(crate) fn of(client: Client) -> Self {
        let known = Known::default();
        Self { client, known }
    }

    /// Of a lock those that hold it or wait for it now, because an evicted one may end before it can be asked for. A user
    /// that may not read the status learns nothing.
    pub(crate) async fn learn(&mut self, lock: &str) {
        if let Ok(status) = self.client.rw_lock(lock).status().await {
            self.known.learn(&status);
        }
    }

    /// `None`: it has ended, or not said who it is.
    pub(crate) async fn who(&mut self, id: &str) -> Result<Option<&ClientInfo>, Error> {
        if self.known.get(id).is_none()
            && let Some(found) = self.client.client_info(id).await?
        {
            self.known.meet(&found);
        }
        Ok(self.known.get(id))
    }
}
