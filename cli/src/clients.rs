//! Who the clients are that events name by their numbers.

use fairlock::{Client, ClientInfo};
use std::collections::HashMap;

pub(crate) struct Clients {
    client: Client,
    known: HashMap<String, ClientInfo>,
}

/// Whether it says who it is, and not only its number.
pub(crate) fn is_introduced(client: &ClientInfo) -> bool {
    client.label.is_some() || client.process.is_some() || client.host.is_some()
}

impl Clients {
    /// At so many it forgets those that it knows, because most of them have ended.
    const MOST: usize = 10_000;

    pub(crate) fn of(client: Client) -> Self {
        let known = HashMap::new();
        Self { client, known }
    }

    /// Of a lock those that hold it or wait for it now, because an evicted one may end before it can be asked for. A user
    /// that may not read the status learns nothing.
    pub(crate) async fn learn(&mut self, lock: &str) {
        let Ok(status) = self.client.rw_lock(lock).status().await else {
            return;
        };
        let holders = status.holders.into_iter().map(|holder| holder.client);
        let waiters = status.waiters.into_iter().map(|waiter| waiter.client);
        let known = holders.chain(waiters).filter(is_introduced).take(Self::MOST);
        self.known.extend(known.map(|client| (client.id.clone(), client)));
    }

    pub(crate) async fn who(&mut self, id: &str) -> Option<&ClientInfo> {
        if !self.known.contains_key(id) {
            if self.known.len() >= Self::MOST {
                self.known.clear();
            }
            // An unknown client may have ended, or be about to introduce itself.
            let client = self.client.client_info(id).await.ok().flatten()?;
            self.known.insert(id.to_owned(), client);
        }
        self.known.get(id)
    }
}
