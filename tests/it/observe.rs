//! What the server knows of a lock at one moment, and random numbers that can be had again.

use crate::server::{Server, connected, eventually};
use fairlock::Client;
use std::time::Duration;

/// A lease so long that no test waits for its end, nor for a renewal: what happens within `PATIENCE` happened without.
pub const LONG: Duration = Duration::from_secs(600);

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub async fn client(url: String, lease: Duration) -> Client {
    let builder = Client::builder().lease(lease);
    connected(builder, url).await
}

/// A lock's state in the server, all of one moment.
#[derive(Debug, Default)]
pub struct View {
    pub mode: String,
    /// Holds of all owners, as the hash counts them.
    pub holds: usize,
    /// In the order of the queue.
    pub waiting: Vec<String>,
    /// Requests with their deadlines, waiting or holding, wherever their leases are kept.
    pub leases: Vec<(String, i64)>,
    /// The server's clock.
    pub now_ms: i64,
}

impl View {
    pub async fn of(server: &Server, lock: &str) -> Self {
        let script = r"
            local v = redis.call('HMGET', KEYS[1], 'mode', 'rcount', 'wcount', 'sole')
            local leases = redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES')
            if v[4] then
              local request, deadline = string.match(v[4], '^(.+) (%d+)$')
              leases[#leases + 1], leases[#leases + 2] = request, deadline
            end
            local time = redis.call('TIME')
            return { v[1] or '', (v[2] or 0) + (v[3] or 0), redis.call('ZRANGE', KEYS[2], 0, -1), leases,
              time[1] * 1000 + math.floor(time[2] / 1000) }";
        let [state, queue, leases] = keys(lock);
        let script = redis::Script::new(script);
        let mut call = script.key(state);
        call.key(queue).key(leases);
        type Reply = (String, usize, Vec<String>, Vec<(String, i64)>, i64);
        let reply = call.invoke_async::<Reply>(&mut server.redis().await).await;
        let (mode, holds, waiting, leases, now_ms) = reply.expect("the lock's state");
        Self {
            mode,
            holds,
            waiting,
            leases,
            now_ms,
        }
    }

    pub fn is_free(&self) -> bool {
        self.mode.is_empty() && self.holds == 0 && self.waiting.is_empty() && self.leases.is_empty()
    }
}

/// The three keys of a lock: state, queue, leases.
pub fn keys(lock: &str) -> [String; 3] {
    ["", ":queue", ":leases"].map(|suffix| format!("fairlock:{{{lock}}}{suffix}"))
}

/// Waits until nobody holds the lock and nobody waits for it.
pub async fn until_free(server: &Server, lock: &str) {
    eventually(&format!("{lock} is free"), async || {
        View::of(server, lock).await.is_free()
    })
    .await;
}
