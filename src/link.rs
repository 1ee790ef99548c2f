//! The command connection: made, watched and made again here. Nothing is retried here: a caller knows better whether
//! its command may be sent twice.

use crate::error::is_of_replica;
use crate::keeper::CALLS_AT_ONCE;
use crate::observe::Outage;
use crate::pulse::Pulse;
use crate::quarantine::Quarantine;
use crate::random;
use crate::replication::{Reached, Replication};
use crate::script::Peer;
use crate::wire::{Backend, Connected, OnPush, Wire, demoted, timed_out};
use redis::{Cmd, ErrorKind, PushInfo, PushKind, RedisError, Value};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, timeout};

/// One connection, and what is known of its server.
struct Connection {
    generation: u64,
    /// Of the server: see [`Backend::outdated`].
    term: u64,
    of_replica: bool,
    wire: Wire,
    /// It is noticed when the connection ends, also if nobody calls.
    ended: Arc<Notify>,
    peer: Peer,
    turns: Semaphore,
    pulse: Arc<Pulse>,
    confirmed: tokio::sync::Mutex<Option<Confirmed>>,
    /// Of the waits for replicas that were asked for.
    longest_wait_ms: AtomicU64,
}

/// What a server said when it was last asked how many replicas have what had been written.
struct Confirmed {
    wish: Replication,
    asked: Instant,
    reached: Reached,
}

/// Users' calls in flight on a connection. More would only queue in it, and renewals behind them: ten thousand take
/// longer than a short lease.
const USERS_IN_FLIGHT: usize = 512;

/// Renewals do not stand in line behind a burst of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Users,
    Background,
}

#[derive(Clone)]
enum State {
    Up(Arc<Connection>),
    /// Nobody has needed it yet.
    Idle,
    Down(RedisError),
    /// For good.
    Closed,
}

/// How much of a client's background work may be under way on one link.
pub(crate) struct Turns {
    pub(crate) renewing: Semaphore,
    pub(crate) releasing: Semaphore,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            renewing: Semaphore::new(CALLS_AT_ONCE),
            releasing: Semaphore::new(CALLS_AT_ONCE),
        }
    }
}

/// How a command is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    Plainly,
    /// To a node that takes over a slot and does not own it yet.
    #[cfg(feature = "cluster")]
    Asking,
}

pub(crate) struct Link {
    backend: Backend,
    label: Option<String>,
    quarantine: Option<Quarantine>,
    state: Mutex<State>,
    /// It is up again, or closed. Not a watch channel: that one wakes in random order, and who asked first should.
    changed: Notify,
    broken: Notify,
    turns: Arc<Turns>,
    /// For calls that wait for replicas: a server that waits does nothing else for the connection.
    confirming: Option<Box<Link>>,
}

impl Link {
    pub(crate) async fn connect(
        backend: Backend,
        label: Option<String>,
        quarantine: Option<Quarantine>,
    ) -> Result<Self, RedisError> {
        let link = Self {
            quarantine,
            ..Self::idle(backend, label)
        };
        let connection = link.new_connection(0).await?;
        *link.state() = State::Up(Arc::new(connection));
        Ok(link)
    }

    /// One that connects when it is needed.
    pub(crate) fn idle(backend: Backend, label: Option<String>) -> Self {
        let confirming = Box::new(Self::new(backend.clone(), label.clone()));
        Self {
            confirming: Some(confirming),
            ..Self::new(backend, label)
        }
    }

    fn new(backend: Backend, label: Option<String>) -> Self {
        Self {
            backend,
            label,
            quarantine: None,
            state: Mutex::new(State::Idle),
            changed: Notify::new(),
            broken: Notify::new(),
            turns: Arc::default(),
            confirming: None,
        }
    }

    pub(crate) fn turns(&self) -> Arc<Turns> {
        Arc::clone(&self.turns)
    }

    /// Sends what `command` makes for the server at hand. Waits at most `limit` for a connection, and for the reply until
    /// the connection has been silent for as long. After an error the command may or may not have been executed.
    pub(crate) async fn call(
        &self,
        lane: Lane,
        limit: Duration,
        sending: Sending,
        command: impl Fn(Peer) -> Cmd,
    ) -> Result<Value, RedisError> {
        let Ok(Some(connection)) = timeout(limit, self.connection()).await else {
            return Err(self.down());
        };
        self.call_over(&connection, lane, limit, sending, command).await
    }

    /// The reply to `renew`, and how many replicas have what it wrote. It goes over a connection of its own, since the
    /// server does nothing else for that one while it waits. Callers share their waits: one covers whatever was written
    /// over the connection before.
    pub(crate) async fn confirm(
        &self,
        limit: Duration,
        wish: Replication,
        renew: impl Fn(Peer) -> Cmd,
    ) -> Result<(Value, Reached), RedisError> {
        let link = self.confirming.as_deref().unwrap_or(self);
        let Ok(Some(connection)) = timeout(limit, link.connection()).await else {
            return Err(link.down());
        };
        // It stands behind at most one wait, which may be another's.
        let wait = u64::try_from(wish.timeout.as_millis()).unwrap_or(u64::MAX);
        let longest = connection.longest_wait_ms.fetch_max(wait, Ordering::Relaxed).max(wait);
        let limit = limit + Duration::from_millis(longest);
        let (lane, plainly) = (Lane::Users, Sending::Plainly);
        let renewed = link.call_over(&connection, lane, limit, plainly, renew).await?;
        let written = Instant::now();
        let mut confirmed = connection.confirmed.lock().await;
        if let Some(last) = &*confirmed
            && last.wish == wish
            && last.asked > written
        {
            return Ok((renewed, last.reached));
        }
        let asked = Instant::now();
        let wait = |_| wish.command();
        let reply = link.call_over(&connection, lane, limit, plainly, wait).await?;
        let reached = wish.reached(reply)?;
        *confirmed = Some(Confirmed { wish, asked, reached });
        Ok((renewed, reached))
    }

    async fn call_over(
        &self,
        connection: &Connection,
        lane: Lane,
        limit: Duration,
        sending: Sending,
        command: impl Fn(Peer) -> Cmd,
    ) -> Result<Value, RedisError> {
        let _turn = match lane {
            Lane::Users => Some(connection.turns.acquire().await.map_err(|_| self.down())?),
            Lane::Background => None,
        };
        let command = command(connection.peer);
        let (generation, pulse, mut wire) = (connection.generation, &connection.pulse, connection.wire.clone());
        let result = match sending {
            Sending::Plainly if self.backend.hears_of_successors() => {
                let reply = pulse.answer(limit, wire.send(&command));
                // In a box, so that no other user's future is longer for it.
                Box::pin(pulse.unless_outdated(reply)).await
            }
            Sending::Plainly => pulse.answer(limit, wire.send(&command)).await,
            #[cfg(feature = "cluster")]
            Sending::Asking => Box::pin(pulse.answer(limit, wire.send_asking(&command))).await,
        };
        match &result {
            Ok(_) => pulse.answered(),
            Err(error) if error.is_timeout() => {
                if pulse.missed() {
                    self.give_up(generation, error);
                }
            }
            Err(error) if error.is_unrecoverable_error() => self.give_up(generation, error),
            Err(_) => {}
        }
        // A server's error reply comes as a value.
        match result.and_then(Value::extract_error) {
            Err(error) if is_of_replica(&error) => {
                self.backend.is_demoted(connection.term);
                self.give_up(generation, &error);
                Err(if connection.of_replica { wrong_server() } else { error })
            }
            reply => reply,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is a single assignment: a panic cannot leave one half made.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: it was closed.
    async fn connection(&self) -> Option<Arc<Connection>> {
        loop {
            // Made before the look: a change after it is not missed.
            let changed = self.changed.notified();
            match &mut *self.state() {
                State::Up(connection) => return Some(Arc::clone(connection)),
                state @ State::Idle => {
                    *state = State::Down(timed_out());
                    self.broken.notify_one();
                }
                State::Down(_) => {}
                State::Closed => return None,
            }
            changed.await;
        }
    }

    /// There is no connection: why, as far as it is known.
    fn down(&self) -> RedisError {
        match &*self.state() {
            State::Down(error) => error.clone(),
            State::Up(_) | State::Idle => timed_out(),
            State::Closed => std::io::Error::from(std::io::ErrorKind::NotConnected).into(),
        }
    }

    fn give_up(&self, generation: u64, error: &RedisError) {
        let mut state = self.state();
        match &*state {
            State::Up(connection) if connection.generation == generation => {
                // Who waits for a turn on it need not wait on.
                connection.turns.close();
                *state = State::Down(error.clone());
                drop(state);
                tracing::warn!(connection = Outage::COMMAND, %error, "connection lost");
                self.broken.notify_one();
            }
            _ => {}
        }
    }

    /// Lets the connection go, for good: nobody makes it again.
    pub(crate) fn close(&self) {
        *self.state() = State::Closed;
        self.changed.notify_waiters();
        if let Some(confirming) = &self.confirming {
            confirming.close();
        }
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.state(), State::Closed)
    }

    /// Somebody needs it and it is not there.
    #[cfg(feature = "cluster")]
    pub(crate) fn is_down(&self) -> bool {
        matches!(*self.state(), State::Down(_))
    }

    /// Looks out for another server that takes over. Never ends.
    pub(crate) async fn watch(&self) {
        self.backend.watch().await;
    }

    async fn until_broken(&self) {
        let connection = match &*self.state() {
            State::Up(connection) => Some(Arc::clone(connection)),
            _ => None,
        };
        let Some(connection) = connection else {
            return self.broken.notified().await;
        };
        let why = tokio::select! {
            biased;
            () = self.broken.notified() => return,
            () = connection.ended.notified() => closed(),
            () = self.backend.outdated(connection.term) => {
                connection.pulse.outdate();
                demoted()
            }
        };
        self.give_up(connection.generation, &why);
        // It has just been told so, by this or by a call.
        self.broken.notified().await;
    }

    fn become_unless_closed(&self, new: State) {
        let mut state = self.state();
        if !matches!(*state, State::Closed) {
            *state = new;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Keeps its connections up, and says when that for commands was lost (`false`) and has been made (`true`). Never ends.
    pub(crate) async fn run(&self, is_up: impl Fn(bool)) {
        match &self.confirming {
            Some(confirming) => {
                futures::join!(self.keep_up(is_up), confirming.keep_up(|_| ()));
            }
            None => self.keep_up(is_up).await,
        }
    }

    async fn keep_up(&self, is_up: impl Fn(bool)) {
        let mut was_up = matches!(&*self.state(), State::Up(_));
        let mut backoff = Backoff::new();
        for generation in 1.. {
            let since = Instant::now();
            self.until_broken().await;
            let outage = was_up.then(|| Outage::begin(Outage::COMMAND));
            if was_up {
                is_up(false);
                backoff.after(since).await;
            }
            let connection = retrying(
                || self.new_connection(generation),
                |error| self.become_unless_closed(State::Down(error)),
            );
            let connection = connection.await;
            self.become_unless_closed(State::Up(Arc::new(connection)));
            if let Some(outage) = outage {
                outage.end();
            }
            was_up = true;
            is_up(true);
        }
    }

    async fn new_connection(&self, generation: u64) -> Result<Connection, RedisError> {
        let ended = Arc::new(Notify::new());
        let on_push = {
            let ended = Arc::clone(&ended);
            move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    ended.notify_one();
                }
            }
        };
        let on_push = Some(Arc::new(on_push) as OnPush);
        let connected = self.backend.connect(self.label.as_deref(), on_push).await?;
        let Connected {
            mut wire,
            dialect,
            term,
            of_replica,
        } = connected;
        let quarantined_until = match &self.quarantine {
            Some(quarantine) => quarantine.of_server(&mut wire, dialect).await?,
            None => None,
        };
        Ok(Connection {
            generation,
            term,
            of_replica,
            wire,
            ended,
            peer: Peer {
                dialect,
                quarantined_until,
            },
            turns: Semaphore::new(USERS_IN_FLIGHT),
            pulse: Arc::default(),
            confirmed: tokio::sync::Mutex::default(),
            longest_wait_ms: AtomicU64::new(0),
        })
    }
}

/// Tries until it succeeds, at intervals that grow to a second and differ between clients.
pub(crate) async fn retrying<T, F>(mut attempt: impl FnMut() -> F, mut failed: impl FnMut(RedisError)) -> T
where
    F: Future<Output = Result<T, RedisError>>,
{
    let mut backoff = Backoff::new();
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => failed(error),
        }
        backoff.pause().await;
    }
}

/// Pauses from 5 ms up to a second or what is given, each between half and the whole of its length.
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self::up_to(Duration::from_secs(1))
    }

    pub(crate) fn up_to(longest: Duration) -> Self {
        let next = Duration::from_millis(10);
        Self { next, longest }
    }

    /// Before what was begun then is begun anew: pauses if it did not last.
    pub(crate) async fn after(&mut self, since: Instant) {
        if since.elapsed() < self.longest {
            self.pause().await;
        } else {
            *self = Self::up_to(self.longest);
        }
    }

    pub(crate) async fn pause(&mut self) {
        let share = (random::number() & 0xff) as u32;
        sleep(self.next / 2 + self.next / 2 * share / 256).await;
        self.next = (self.next * 2).min(self.longest);
    }
}

fn closed() -> RedisError {
    std::io::Error::new(std::io::ErrorKind::ConnectionReset, "the server closed the connection").into()
}

/// It never was the master: whoever chose it should know.
fn wrong_server() -> RedisError {
    RedisError::from((ErrorKind::InvalidClientConfig, "the server is not the master"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_does_not_last_is_begun_anew_less_and_less_often() {
        let ms = Duration::from_millis;
        let (mut backoff, begun) = (Backoff::up_to(ms(40)), Instant::now());
        for _ in 0..10 {
            backoff.after(Instant::now()).await;
        }
        assert!(begun.elapsed() > ms(150), "{:?}", begun.elapsed());
        backoff.after(begun).await;
        assert_eq!(backoff.next, Backoff::new().next, "that lasted");
    }
}
