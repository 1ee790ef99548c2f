//! The link: the command connection, with its reconnects. A link repeats no command, because only the caller knows
//! whether the server may execute it twice.
//!
//! The link takes a call at the first poll of its future, and users' calls in the order of their first polls. While the
//! connection is up and few calls are in flight, the caller's own poll sends the command. Otherwise the call stands in
//! line (`line.rs`), and a task of the link sends it. A caller's future holds nothing that another call needs, so
//! nobody has to poll it again.

mod confirm;
mod how;
mod line;
mod race;
mod scripts;

use super::backend::Backend;
use super::pulse::Pulse;
use super::quarantine::Quarantine;
use super::server::{Connected, Purpose};
use super::wire::{OnPush, Wire};
use crate::observe::Outage;
use crate::protocol::functions::Functions;
use crate::protocol::hello::Dialect;
use crate::protocol::order::{Known, Made, Order, Peer};
use crate::types::boxed::boxed;
use crate::types::clock;
use crate::types::error::{is_of_replica, timed_out};
use confirm::Confirming;
pub(crate) use how::{BackgroundSlots, How, Lane, Sending};
use line::Line;
use redis::{ErrorKind, PushInfo, PushKind, RedisError, Value};
use scripts::taught;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

/// One connection, and what the link knows of its server.
struct Connection {
    generation: u64,
    /// Of the server: see [`Backend::outdated`].
    term: u64,
    wire: Wire,
    /// Ends with the connection, so that the link notices the end without a call.
    ended: Arc<Notify>,
    dialect: Dialect,
    /// The end of the quarantine, which may be past: the server may have forgotten holds, so until then nobody enters a
    /// lock that looks free.
    quarantined_until: Option<Instant>,
    /// The scripts that this connection has taught the server.
    known: Known,
    /// The calls that users' own futures have sent. A future that nobody polls keeps its call counted; then others
    /// stand in line.
    in_flight: AtomicUsize,
    /// How many of their replies came among many others.
    in_bursts: AtomicUsize,
    pulse: Arc<Pulse>,
}

impl Connection {
    fn peer(&self) -> Peer {
        let left = self
            .quarantined_until
            .and_then(|until| until.checked_duration_since(clock::now()));
        Peer {
            dialect: self.dialect,
            quarantine_left: left.map(|left| left.max(Duration::from_millis(1))),
        }
    }

    /// Makes two bursts of one: every second caller goes on only after the runtime has run what was ready.
    ///
    /// Replies that come together make callers that go on together, and the task of the connection runs after all of
    /// them. So the server would have nothing to do until the last one has sent its next call.
    async fn spread_burst(&self) {
        let is_burst = self.in_flight.load(Ordering::Relaxed) >= MANY;
        if is_burst && self.in_bursts.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            yield_now().await;
        }
    }
}

/// With so many of users' calls in flight, replies come in bursts.
const MANY: usize = 8;

/// Counts a call that a user's own future has sent, until the future has seen the reply or was dropped.
struct Direct(Arc<Connection>);

impl Drop for Direct {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The bound of users' calls in flight on a connection: so many of their own futures, and as many of the link. More
/// calls would only queue there, with renewals behind them, and ten thousand take longer than a short lease.
const AT_ONCE: usize = 256;

#[derive(Clone)]
enum State {
    Up(Arc<Connection>),
    /// No caller has needed it yet.
    Idle,
    Down(RedisError),
    /// Closed for ever.
    Closed,
}

pub(crate) struct Link {
    backend: Backend,
    label: Option<String>,
    quarantine: Option<Quarantine>,
    side: Mutex<Side>,
    /// Says that the link is up again, or closed. It is not a watch channel, because that wakes in random order and the
    /// first caller should wake first.
    changed: Notify,
    broken: Notify,
    /// A connection has led to a master, so the address is right. A replica behind it may be promoted.
    knew_master: AtomicBool,
    /// Says that the connection's server may lack the functions.
    without_functions: Notify,
    /// Says that the link may be able to send a call in line.
    in_line: Notify,
    /// The shortest limit of a call since the connection was made. The link has to notice a silence that quickly.
    shortest_limit_us: AtomicU64,
    /// Whether a silence is a reason to try another connection.
    doubts: bool,
    background: Arc<BackgroundSlots>,
    /// The connection for calls that wait for replicas.
    confirming: Option<Box<Confirming>>,
}

/// What the tasks and the callers of a link share.
struct Side {
    state: State,
    line: Line,
}

/// Closes a link whose task has ended, because nobody would reply to the calls in line.
struct Running<'a>(&'a Link);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
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
        link.side().state = State::Up(Arc::new(connection));
        Ok(link)
    }

    /// A link that connects when a caller needs it.
    pub(crate) fn idle(backend: Backend, label: Option<String>) -> Self {
        let confirming = Box::new(Confirming::of(Self::new(backend.clone(), label.clone())));
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
            side: Mutex::new(Side {
                state: State::Idle,
                line: Line::default(),
            }),
            changed: Notify::new(),
            broken: Notify::new(),
            knew_master: AtomicBool::new(false),
            without_functions: Notify::new(),
            in_line: Notify::new(),
            shortest_limit_us: AtomicU64::new(u64::MAX),
            doubts: true,
            background: Arc::default(),
            confirming: None,
        }
    }

    pub(crate) fn background(&self) -> Arc<BackgroundSlots> {
        Arc::clone(&self.background)
    }

    /// From when on the server forgets no hold that may last: the end of its quarantine. `None`: there is no connection.
    pub(crate) fn trusted_from(&self, now: Instant) -> Option<Instant> {
        match &self.side().state {
            State::Up(connection) => Some(connection.quarantined_until.unwrap_or(now)),
            _ => None,
        }
    }

    /// Sends what `order` makes for the server at hand. Waits at most `how.patience` for a connection or in line, and
    /// for the reply until the connection has been silent for `how.limit`. After an error the command may have been
    /// executed if `order` was sent.
    pub(crate) async fn call(&self, how: &How, order: &Order<'_>) -> Result<Value, RedisError> {
        self.call_over_one(how, order).await.map(|(_, reply)| reply)
    }

    /// The same, and returns the connection too.
    async fn call_over_one(&self, how: &How, order: &Order<'_>) -> Result<(Arc<Connection>, Value), RedisError> {
        self.note_limit(how.limit);
        let (_direct, connection) = match how.lane {
            Lane::Users => match self.direct(order) {
                Some(direct) => {
                    let connection = Arc::clone(&direct.0);
                    (Some(direct), connection)
                }
                // In a box, so that users' futures do not grow.
                None => return boxed(|| self.stand_in_line(how, order)).await,
            },
            Lane::Background => match timeout(how.patience, self.connection()).await {
                Ok(Some(connection)) => (None, connection),
                _ => return Err(self.down()),
            },
        };
        // No await comes before the first poll of the sending.
        let Made { command, form } = order.make(connection.peer(), &connection.known, how.sending.asks());
        let mut wire = connection.wire.clone();
        let reply = match how.sending {
            // Pinned here, because a future that is passed by value takes its size again in each caller.
            Sending::Plainly => {
                let reply = pin!(wire.send(&command));
                let reply = taught(&connection, form, reply);
                match how.lane {
                    Lane::Users => {
                        let reply = self.conclude(&connection, how.limit, reply).await;
                        connection.spread_burst().await;
                        reply
                    }
                    // A renewal takes the next connection as soon as there is one.
                    Lane::Background => {
                        let reply = Box::pin(connection.pulse.unless_over(reply));
                        self.conclude(&connection, how.limit, reply).await
                    }
                }
            }
            #[cfg(feature = "cluster")]
            Sending::Asking => {
                let mut reply = Box::pin(wire.send_asking(&command));
                let reply = taught(&connection, form, reply.as_mut());
                Box::pin(self.conclude(&connection, how.limit, reply)).await
            }
        };
        match reply {
            Ok(reply) => Ok((connection, reply)),
            Err(error) => Err(self.on_error(&connection, form, error)),
        }
    }

    /// Whether a call may be sent at once: the connection is up, the line is empty, and few such calls are in flight.
    ///
    /// The link itself sends a call with a script's text, because the redis crate skips a call whose caller has gone,
    /// and the calls behind it need the text.
    fn direct(&self, order: &Order<'_>) -> Option<Direct> {
        let side = self.side();
        match &side.state {
            State::Up(connection)
                if side.line.is_empty()
                    && !order.teaches(&connection.known)
                    && connection.in_flight.load(Ordering::Relaxed) < AT_ONCE =>
            {
                connection.in_flight.fetch_add(1, Ordering::Relaxed);
                Some(Direct(Arc::clone(connection)))
            }
            _ => None,
        }
    }

    /// Waits for the reply to a sent command, and notes what the reply says about the connection.
    async fn conclude(
        &self,
        connection: &Connection,
        limit: Duration,
        reply: impl Future<Output = Result<Value, RedisError>>,
    ) -> Result<Value, RedisError> {
        let (generation, pulse) = (connection.generation, &connection.pulse);
        let reply = pulse.answer(limit, reply);
        let result = if self.backend.hears_of_successors() {
            // In a box, so that users' futures do not grow.
            Box::pin(pulse.unless_over(reply)).await
        } else {
            reply.await
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
                let is_wrong = !self.knew_master.load(Ordering::Relaxed);
                Err(if is_wrong { wrong_server() } else { error })
            }
            reply => reply,
        }
    }

    fn side(&self) -> MutexGuard<'_, Side> {
        // No code that can panic runs while it is locked.
        self.side.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: the link was closed.
    async fn connection(&self) -> Option<Arc<Connection>> {
        loop {
            // Created before the check, so that no later change is missed.
            let changed = self.changed.notified();
            {
                let mut side = self.side();
                match &side.state {
                    State::Up(connection) => return Some(Arc::clone(connection)),
                    State::Idle => self.need(&mut side),
                    State::Down(_) => {}
                    State::Closed => return None,
                }
            }
            changed.await;
        }
    }

    /// A caller needs a connection that no caller has needed yet.
    fn need(&self, side: &mut Side) {
        side.state = State::Down(timed_out());
        self.broken.notify_one();
    }

    /// Returns why there is no connection, as far as the link knows.
    fn down(&self) -> RedisError {
        match &self.side().state {
            State::Down(error) => error.clone(),
            State::Up(_) | State::Idle => timed_out(),
            State::Closed => std::io::Error::from(std::io::ErrorKind::NotConnected).into(),
        }
    }

    fn give_up(&self, generation: u64, error: &RedisError) {
        let mut side = self.side();
        match &side.state {
            State::Up(connection) if connection.generation == generation => {
                side.state = State::Down(error.clone());
                drop(side);
                tracing::warn!(connection = Outage::COMMAND, %error, "connection lost");
                self.broken.notify_one();
            }
            _ => {}
        }
    }

    /// Closes the connection for ever.
    pub(crate) fn close(&self) {
        self.side().state = State::Closed;
        self.turn_away();
        self.changed.notify_waiters();
        if let Some(confirming) = &self.confirming {
            confirming.close();
        }
    }

    /// Tells the callers in line that their calls will not be sent.
    pub(crate) fn turn_away(&self) {
        let turned_away = self.side().line.take_all();
        drop(turned_away);
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.side().state, State::Closed)
    }

    /// Whether a caller needs the connection while there is none.
    #[cfg(feature = "cluster")]
    pub(crate) fn is_down(&self) -> bool {
        matches!(self.side().state, State::Down(_))
    }

    /// Watches for another server that takes over. Never ends.
    pub(crate) async fn watch(&self) {
        self.backend.watch().await;
    }

    fn become_unless_closed(&self, new: State) {
        let mut side = self.side();
        if !matches!(side.state, State::Closed) {
            side.state = new;
        }
        drop(side);
        self.changed.notify_waiters();
        self.in_line.notify_one();
        self.without_functions.notify_one();
    }

    /// Keeps the connections up, and reports when the command connection was lost (`false`) and is up (`true`). Never
    /// ends.
    pub(crate) async fn run(&self, is_up: impl Fn(bool)) {
        let _running = Running(self);
        let confirming = async {
            match &self.confirming {
                Some(confirming) => confirming.run().await,
                None => std::future::pending().await,
            }
        };
        futures::join!(
            self.keep_up(is_up),
            self.serve_line(),
            self.keep_functions(),
            confirming
        );
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
        let (label, purpose) = (self.label.as_deref(), Purpose::Commands);
        let connected = self.backend.connect(label, purpose, on_push).await?;
        let connected = match self.quarantine {
            // Its first command would fail otherwise, or write. A cluster has no quarantine.
            Some(_) => connected.of_one_server()?,
            None => connected,
        };
        let Connected {
            mut wire,
            dialect,
            term,
            of_replica,
            functions,
            ..
        } = connected;
        let quarantined_until = match &self.quarantine {
            Some(quarantine) => Some(quarantine.of_server(&mut wire, dialect).await?),
            None => None,
        };
        if functions == Functions::Missing {
            self.without_functions.notify_one();
        }
        self.knew_master.fetch_or(!of_replica, Ordering::Relaxed);
        Ok(Connection {
            generation,
            term,
            wire,
            ended,
            dialect,
            quarantined_until,
            known: Known::new(functions),
            in_flight: AtomicUsize::new(0),
            in_bursts: AtomicUsize::new(0),
            pulse: Arc::default(),
        })
    }
}

/// No server at that address was the master, so the caller that chose it should know.
fn wrong_server() -> RedisError {
    RedisError::from((ErrorKind::InvalidClientConfig, "the server is not the master"))
}
