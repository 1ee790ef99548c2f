//! Several locks in one guard.

mod acquire;
mod dropped;
mod loss;

use crate::observe::{LONG, client};
use crate::server::Server;
use fairlock::{Client, RwLock};

/// A server, and the locks "a", "b" and "c" of two clients.
struct Setting {
    server: Server,
    client: Client,
    mine: [RwLock; 3],
    others: [RwLock; 3],
}

impl Setting {
    async fn new() -> Self {
        let server = Server::start().await;
        let (client, other) = (client(server.url(), LONG).await, client(server.url(), LONG).await);
        let locks = |client: &Client| ["a", "b", "c"].map(|name| client.rw_lock(name));
        Self {
            mine: locks(&client),
            others: locks(&other),
            client,
            server,
        }
    }
}
