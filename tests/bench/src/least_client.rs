//! The least client of a lock with these promises, and only for what goes well: a cycle, or a wait that a message ends. It keeps
//! each hold where messages and renewals find it, notes before a call from when on the reply proves something, and does not
//! wait for ever for a reply. It has no owners, no spans, no metrics, no reconnects and no renewals.

use crate::crowd::Crowd;
use crate::env::listening;
use crate::hot;
use crate::raw::{Functions, Raw};
use fairlock_support::server::Server;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, PushInfo, PushKind};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

const LIMIT: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Hold {
    token: u64,
    proven_until: Option<Instant>,
    /// Wakes the task that waits for the grant.
    granted: Option<oneshot::Sender<()>>,
}

type Holds = Arc<Mutex<HashMap<u64, Arc<Mutex<Hold>>>>>;

pub struct LeastClient {
    raw: Raw,
    holds: Holds,
}

/// Found by others until it is dropped.
pub struct Guard {
    holds: Holds,
    number: u64,
    hold: Arc<Mutex<Hold>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.holds.lock().expect("nobody panics").remove(&self.number);
    }
}

impl Guard {
    fn new(holds: &Holds, number: u64) -> Self {
        let hold = Arc::<Mutex<Hold>>::default();
        let (holds, kept) = (Arc::clone(holds), Arc::clone(&hold));
        holds.lock().expect("nobody panics").insert(number, kept);
        Self { holds, number, hold }
    }
}

/// The end of a client that waits.
#[derive(Clone, Default)]
pub struct LeastWaits(Holds);

impl LeastWaits {
    /// Registers a request. `asked`: the call that queues it; with none, another process has made it.
    pub async fn wait(&self, number: u64, asked: impl Future<Output = ()>) -> Guard {
        let queued = async {
            asked.await;
            None
        };
        self.enter(number, queued).await
    }

    /// The same where the call's reply may be the grant: then it is the token.
    async fn enter(&self, number: u64, asked: impl Future<Output = Option<u64>>) -> Guard {
        let guard = Guard::new(&self.0, number);
        let (granted, waiting) = oneshot::channel();
        guard.hold.lock().expect("nobody panics").granted = Some(granted);
        let sent = Instant::now();
        let token = timeout(LIMIT, asked).await.expect("a reply");
        {
            let mut hold = guard.hold.lock().expect("nobody panics");
            hold.proven_until = Some(sent + LEASE - LEASE / 50);
            hold.token = token.unwrap_or(hold.token);
        }
        if token.is_none() {
            waiting.await.expect("a grant");
        }
        let hold = guard.hold.lock().expect("nobody panics");
        assert!(hold.token > 0 && hold.proven_until > Some(Instant::now()));
        drop(hold);
        guard
    }

    /// Takes in all messages on a channel, for as long as the connection is there.
    async fn listen(&self, server: &Server, channel: &str) -> MultiplexedConnection {
        let heard = self.clone();
        let mut subscription = listening(&server.url(), move |push| {
            if push.kind == PushKind::Message {
                heard.on_push(&push);
            }
        })
        .await;
        subscription.subscribe(channel).await.expect("subscribed");
        subscription
    }

    /// Takes in a message, `token request request ... \n key`, on the connection's own task.
    pub fn on_push(&self, push: &PushInfo) {
        let text = push
            .data
            .get(1)
            .and_then(|text| String::from_redis_value_ref(text).ok());
        let Some((grants, _)) = text.as_ref().and_then(|text| text.split_once('\n')) else {
            return;
        };
        let mut token = 0;
        for word in grants.split(' ') {
            if let Ok(number) = word.parse() {
                token = number;
                continue;
            }
            let number = word.rsplit(':').next().and_then(|number| number.parse().ok());
            let hold = number.and_then(|number: u64| self.0.lock().expect("nobody panics").get(&number).cloned());
            let Some(hold) = hold else { continue };
            let mut hold = hold.lock().expect("nobody panics");
            hold.token = token;
            if let Some(granted) = hold.granted.take() {
                let _ = granted.send(());
            }
        }
    }
}

/// A crowd of readers of the least client, by our functions.
pub struct LeastCrowd {
    writer: Raw,
    waits: LeastWaits,
    _subscription: MultiplexedConnection,
}

impl LeastCrowd {
    pub async fn new(server: &Server) -> Self {
        let raw = Raw::new(crate::env::connection(&server.url()).await, Functions::Ours).await;
        let waits = LeastWaits::default();
        Self {
            writer: raw.of("p8-least").await,
            _subscription: waits.listen(server, &Raw::channel(Functions::Ours)).await,
            waits,
        }
    }

    /// Microseconds from the release until the last has its guard.
    pub async fn enter_all(&mut self, server: &Server, readers: u64) -> f64 {
        self.writer.name();
        self.writer.acquire().await;
        let (mut crowd, member) = Crowd::new();
        let mut waiting = JoinSet::new();
        for number in 0..readers {
            let (raw, waits, member) = (self.writer.clone(), self.waits.clone(), member.clone());
            waiting.spawn(async move {
                let _guard = waits.wait(number, raw.queue_reader(number)).await;
                member.stay().await;
            });
        }
        server.until_queued("raw-p8-least", readers as usize).await;
        // Answered after all that was sent before: so the tasks wait for the message.
        let mut redis = self.writer.redis();
        let _: String = redis::cmd("PING").query_async(&mut redis).await.expect("a reply");
        tokio::task::yield_now().await;
        let released = crate::clock::now();
        self.writer.release().await;
        let last = crowd.last(readers as usize).await;
        crowd.leave();
        waiting.join_all().await;
        self.writer.release_readers(readers).await;
        last - released
    }
}

/// Contenders of one process for one lock, by our functions and the least client.
pub struct LeastContest {
    raw: Raw,
    waits: LeastWaits,
    numbers: Arc<AtomicU64>,
    _subscription: MultiplexedConnection,
}

impl LeastContest {
    pub async fn new(server: &Server, lock: &str) -> Self {
        let raw = Raw::new(crate::env::connection(&server.url()).await, Functions::Ours).await;
        let waits = LeastWaits::default();
        let channel = Raw::holders_channel(Functions::Ours);
        Self {
            raw: raw.of(lock).await,
            _subscription: waits.listen(server, &channel).await,
            waits,
            // Those before were used when the lock was made.
            numbers: Arc::new(AtomicU64::new(1000)),
        }
    }

    /// How many enter between two times: see [`hot::count`].
    pub async fn grants(&self, tasks: usize, from: f64, until: f64) -> usize {
        let contender = || {
            let (raw, waits, numbers) = (self.raw.clone(), self.waits.clone(), Arc::clone(&self.numbers));
            move || {
                let (raw, waits) = (raw.clone(), waits.clone());
                let number = numbers.fetch_add(1, Ordering::Relaxed);
                async move {
                    let guard = waits.enter(number, raw.ask(number)).await;
                    let now = crate::clock::now();
                    timeout(LIMIT, raw.release_of(number)).await.expect("a reply");
                    drop(guard);
                    now
                }
            }
        };
        hot::count(contender, tasks, from, until).await
    }
}

impl LeastClient {
    pub fn new(raw: Raw) -> Self {
        let holds = Holds::default();
        Self { raw, holds }
    }

    pub async fn cycle(&mut self) {
        let guard = self.acquire().await;
        timeout(LIMIT, self.raw.release()).await.expect("a reply");
        guard.hold.lock().expect("nobody panics").proven_until = None;
    }

    async fn acquire(&mut self) -> Guard {
        let guard = Guard::new(&self.holds, self.raw.name());
        let sent = Instant::now();
        let token = timeout(LIMIT, self.raw.acquire()).await.expect("a reply");
        let mut hold = guard.hold.lock().expect("nobody panics");
        (hold.token, hold.proven_until) = (token, Some(sent + LEASE - LEASE / 50));
        assert!(hold.token > 0);
        drop(hold);
        guard
    }
}
