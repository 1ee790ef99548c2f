//! What the server knows of a lock at one moment, and random numbers that can be had again.

use crate::server::{Server, connected, eventually};
use fairlock::Client;
use fairlock_support::packed::Packed;
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
    /// Holds of all owners, as the state counts them.
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
            local time = redis.call('TIME')
            return { redis.call('HGET', KEYS[1], 's') or '', redis.call('ZRANGE', KEYS[2], 0, -1),
              redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES'), time[1] * 1000 + math.floor(time[2] / 1000) }";
        let [state, queue, leases] = keys(lock);
        let script = redis::Script::new(script);
        let mut call = script.key(state);
        call.key(queue).key(leases);
        type Reply = (Vec<u8>, Vec<String>, Vec<(String, i64)>, i64);
        let reply = call.invoke_async::<Reply>(&mut server.redis().await).await;
        let (field, waiting, mut leases, now_ms) = reply.expect("the lock's state");
        let packed = match field.is_empty() {
            true => Packed::default(),
            false => Packed::read(&field).expect("layout 2"),
        };
        if packed.sole {
            leases.push((packed.holder.clone(), packed.near as i64));
        }
        Self {
            mode: packed.mode().to_owned(),
            holds: packed.holds(),
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
    ["", ":q", ":l"].map(|suffix| format!("fairlock:{{{lock}}}{suffix}"))
}

/// Waits until nobody holds the lock and nobody waits for it.
pub async fn until_free(server: &Server, lock: &str) {
    eventually(&format!("{lock} is free"), async || {
        View::of(server, lock).await.is_free()
    })
    .await;
}
