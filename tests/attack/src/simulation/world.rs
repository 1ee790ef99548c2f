//! The network, the server and the processes, in virtual time. One task carries out what is planned, in order of time
//! and then of planning; everything random comes from one seed. So a seed gives one history.

use super::dice::Dice;
use super::process::{Process, pausable};
use super::server::{Data, Server};
use fairlock::testing::{self, OnPush};
use redis::{Cmd, PushInfo, PushKind, RedisError, Value};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

/// Longer than any run.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A day when nobody was on call.
const BEGIN_US: u64 = 1_760_400_000_000_000;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What goes wrong by itself, in thousandths of what is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// Messages that are lost, delivered twice, or late by up to a second.
    pub lost: u64,
    pub doubled: u64,
    pub late: u64,
    /// Requests and replies that take up to `spell` instead of a millisecond.
    pub slow: u64,
    pub spell: Duration,
}

/// What a fault is; the report counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Cut,
    HalfOpen,
    Freeze,
    Kill,
    ServerFreeze,
    Restart,
    Rollback,
    DataLoss,
    ScriptFlush,
    ErrorReplies,
    ClockBack,
    Partition,
    /// A key of one lock is deleted.
    KeyLoss,
}

impl Fault {
    pub const ALL: [Self; 13] = [
        Self::Cut,
        Self::HalfOpen,
        Self::Freeze,
        Self::Kill,
        Self::ServerFreeze,
        Self::Restart,
        Self::Rollback,
        Self::DataLoss,
        Self::ScriptFlush,
        Self::ErrorReplies,
        Self::ClockBack,
        Self::Partition,
        Self::KeyLoss,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Users work.
    Busy,
    /// Users end what they are doing and begin nothing.
    Rest,
}

enum Event {
    /// A command reaches the server.
    Arrive {
        wire: u64,
        call: u64,
        command: Vec<Vec<u8>>,
    },
    Reply {
        wire: u64,
        call: u64,
        value: Value,
    },
    Push {
        wire: u64,
        channel: String,
        payload: Vec<u8>,
    },
    Break {
        wire: u64,
    },
    Thaw {
        process: Arc<Process>,
    },
}

struct Planned {
    at: Instant,
    order: u64,
    event: Event,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Planned {}
impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Planned {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// One connection.
struct WireState {
    process: Arc<Process>,
    on_push: Option<OnPush>,
    channels: Vec<String>,
    /// TCP keeps the order in each direction.
    last_arrival: Instant,
    last_delivery: Instant,
    stalled_until: Option<Instant>,
    /// Nothing ever passes again.
    silent: bool,
    pending: BTreeMap<u64, oneshot::Sender<Value>>,
}

pub struct Core {
    pub dice: Dice,
    pub server: Server,
    pub weather: Weather,
    begun: Instant,
    /// The server's clock runs so much faster than the processes'.
    drift_ppm: i64,
    clock_step_us: i64,
    last_us: u64,
    heap: BinaryHeap<Reverse<Planned>>,
    order: u64,
    wires: BTreeMap<u64, WireState>,
    numbers: u64,
    frozen_until: Option<Instant>,
    down_until: Option<Instant>,
    errors_until: Option<(Instant, &'static str)>,
    /// When the server last lost something that it had said, by both clocks.
    pub lost_data: Option<(Instant, u64)>,
    /// What the server knew a while ago.
    past: Option<Data>,
    pub faults: BTreeMap<Fault, u64>,
    pub violation: Option<String>,
    /// Nothing has gone wrong since then, and the traces of what did are gone.
    pub fine_since: Option<Instant>,
}

pub struct World {
    core: Mutex<Core>,
    planned: Notify,
    phase: Mutex<Phase>,
    phase_changed: Notify,
}

impl World {
    pub fn new(server: Server, mut dice: Dice) -> Arc<Self> {
        let drift_ppm = dice.below(19_000) as i64 - 9_500;
        Arc::new(Self {
            core: Mutex::new(Core {
                dice,
                server,
                weather: Weather::default(),
                begun: Instant::now(),
                drift_ppm,
                clock_step_us: 0,
                last_us: 0,
                heap: BinaryHeap::new(),
                order: 0,
                wires: BTreeMap::new(),
                numbers: 0,
                frozen_until: None,
                down_until: None,
                errors_until: None,
                lost_data: None,
                past: None,
                faults: BTreeMap::new(),
                violation: None,
                fine_since: None,
            }),
            planned: Notify::new(),
            phase: Mutex::new(Phase::Busy),
            phase_changed: Notify::new(),
        })
    }

    pub fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("a panic ends the run anyway")
    }

    pub fn violated(&self, what: String) {
        self.core().violated(what);
    }

    pub fn begin(&self, phase: Phase) {
        *self.phase.lock().expect("no panic while it is locked") = phase;
        self.phase_changed.notify_waiters();
    }

    /// Waits until users may work. Not by a watch channel: that one wakes in random order.
    pub async fn until_busy(&self) {
        loop {
            let changed = self.phase_changed.notified();
            if *self.phase.lock().expect("no panic while it is locked") == Phase::Busy {
                return;
            }
            changed.await;
        }
    }

    /// Carries out what is planned, for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            let next = self.core().heap.peek().map(|Reverse(planned)| planned.at);
            match next {
                Some(at) if at <= Instant::now() => self.step(),
                Some(at) => tokio::select! {
                    biased;
                    () = sleep_until(at) => {}
                    () = self.planned.notified() => {}
                },
                None => self.planned.notified().await,
            }
        }
    }

    fn step(&self) {
        let mut core = self.core();
        let Some(Reverse(Planned { event, .. })) = core.heap.pop() else {
            return;
        };
        match event {
            Event::Arrive { wire, call, command } => core.arrive(wire, call, command),
            Event::Reply { wire, call, value } => {
                let sender = core.wires.get_mut(&wire).and_then(|wire| wire.pending.remove(&call));
                if let Some(sender) = sender {
                    // Who asked may have given up.
                    let _ = sender.send(value);
                }
            }
            Event::Push { wire, channel, payload } => {
                let Some(state) = core.wires.get(&wire) else { return };
                let Some(on_push) = state.on_push.clone() else { return };
                let process = Arc::clone(&state.process);
                drop(core);
                let data = vec![Value::BulkString(channel.into_bytes()), Value::BulkString(payload)];
                process.deliver(
                    on_push,
                    PushInfo {
                        kind: PushKind::Message,
                        data,
                    },
                );
            }
            Event::Break { wire } => {
                let broken = core.wires.remove(&wire);
                drop(core);
                tell_broken(broken);
            }
            Event::Thaw { process } => {
                drop(core);
                process.thaw();
            }
        }
    }

    /// Carries out a fault on a process, if it is about one. Returns whether the process is gone.
    pub fn inflict(&self, fault: Fault, process: &Arc<Process>, longest_lease: Duration) -> bool {
        let mut core = self.core();
        let now = Instant::now();
        core.fine_since = None;
        *core.faults.entry(fault).or_default() += 1;
        if let Some(trace) = &mut core.server.trace {
            trace.push(format!("-- {fault:?} at {:?} of {}", now, process.id));
        }
        let span = core.dice.span(longest_lease * 2);
        let mine: Vec<u64> = core
            .wires
            .iter()
            .filter(|(_, wire)| wire.process.id == process.id)
            .map(|(id, _)| *id)
            .collect();
        let mut broken = Vec::new();
        match fault {
            Fault::Cut => {
                if !mine.is_empty() {
                    let wire = *core.dice.pick(&mine);
                    broken.push(core.wires.remove(&wire));
                }
            }
            Fault::HalfOpen => {
                if !mine.is_empty() {
                    let wire = *core.dice.pick(&mine);
                    core.stall(wire, now + span);
                }
            }
            Fault::Partition => {
                for wire in mine {
                    core.stall(wire, now + span);
                }
            }
            Fault::Freeze => {
                process.freeze();
                let process = Arc::clone(process);
                core.plan(now + span, Event::Thaw { process });
            }
            Fault::Kill => {
                process.kill();
                core.wires.retain(|_, wire| wire.process.id != process.id);
            }
            Fault::ServerFreeze => core.frozen_until = Some(now + span),
            Fault::Restart => {
                let data = core.server.data();
                broken = core.restart(data, now + span / 4);
            }
            // A replica that lagged: what the last moments brought is lost.
            Fault::Rollback => {
                if let Some(data) = core.past.take() {
                    broken = core.restart(data, now + span / 4);
                    // Also a grant that comes later: who waits may believe in a renewal that was lost.
                    core.lost_data = Some((now, u64::MAX));
                }
            }
            Fault::DataLoss => {
                let begun = core.down_until.map_or(now, |until| until.max(now)) + span / 4;
                broken = core.restart(Data::default(), begun);
                core.server.restart_empty();
                core.lost_data = Some((now, core.now_us()));
            }
            Fault::KeyLoss => {
                let (which, numbers_too) = (core.dice.number(), core.dice.permille(500));
                if core.server.lose(which, numbers_too) {
                    core.lost_data = Some((now, core.now_us()));
                }
            }
            Fault::ScriptFlush => core.server.flush_scripts(),
            Fault::ErrorReplies => {
                let code = *core.dice.pick(&["LOADING", "BUSY", "OOM", "TRYAGAIN"]);
                core.errors_until = Some((now + span / 2, code));
            }
            Fault::ClockBack => {
                core.clock_step_us -= span.as_micros() as i64;
                core.last_us = 0;
                core.server.backward = true;
            }
        }
        drop(core);
        broken.into_iter().for_each(tell_broken);
        fault == Fault::Kill
    }

    /// Ends all faults that are under way.
    pub fn clear_up(&self, processes: &[Arc<Process>]) {
        let mut core = self.core();
        core.weather = Weather::default();
        core.frozen_until = None;
        core.down_until = None;
        core.errors_until = None;
        let now = Instant::now();
        for wire in core.wires.values_mut().filter(|wire| !wire.silent) {
            wire.stalled_until = wire.stalled_until.map(|until| until.min(now));
        }
        drop(core);
        for process in processes {
            process.thaw();
        }
    }
}

/// Whoever waits on it hears of it at once, as from a reset.
fn tell_broken(wire: Option<WireState>) {
    let Some(WireState { on_push, process, .. }) = wire else {
        return;
    };
    if let Some(on_push) = on_push {
        let kind = PushKind::Disconnection;
        process.deliver(on_push, PushInfo { kind, data: Vec::new() });
    }
}

impl Core {
    fn violated(&mut self, what: String) {
        self.violation.get_or_insert(what);
        self.server.trace_ends();
    }

    /// The server's clock. Virtual time stands still while scripts run; a server's does not.
    fn now_us(&mut self) -> u64 {
        let passed = self.begun.elapsed().as_micros() as i64;
        // Evenly: a step once a second would be more than the client's margin for a short lease allows.
        let drift = passed * self.drift_ppm / 1_000_000;
        let now_us = BEGIN_US.saturating_add_signed(passed + drift + self.clock_step_us);
        self.last_us = now_us.max(self.last_us + 1);
        self.last_us
    }

    fn plan(&mut self, at: Instant, event: Event) {
        self.order += 1;
        let order = self.order;
        self.heap.push(Reverse(Planned { at, order, event }));
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// How long it takes to get from here to there.
    fn delay(&mut self) -> Duration {
        if self.dice.permille(self.weather.slow) {
            return self.dice.span(self.weather.spell);
        }
        Duration::from_millis(self.dice.below(4) / 3)
    }

    fn stall(&mut self, wire: u64, until: Instant) {
        // Half of them never come back: broken one day, or silent for ever.
        let (lives, silent) = (self.dice.permille(500), self.dice.permille(500));
        if let Some(state) = self.wires.get_mut(&wire) {
            state.silent |= !lives && silent;
            state.stalled_until = Some(if state.silent { until + FOR_EVER } else { until });
        }
        if !lives && !silent {
            self.plan(until, Event::Break { wire });
        }
    }

    fn restart(&mut self, data: Data, up_at: Instant) -> Vec<Option<WireState>> {
        self.server.restart(data);
        self.down_until = Some(up_at);
        self.frozen_until = None;
        std::mem::take(&mut self.wires).into_values().map(Some).collect()
    }

    fn send(&mut self, wire: u64, command: Vec<Vec<u8>>) -> Option<oneshot::Receiver<Value>> {
        let delay = self.delay();
        let call = self.number();
        let state = self.wires.get_mut(&wire)?;
        let (sender, receiver) = oneshot::channel();
        let mut at = (Instant::now() + delay).max(state.last_arrival);
        if let Some(until) = state.stalled_until {
            at = at.max(until);
        }
        state.last_arrival = at;
        state.pending.insert(call, sender);
        self.plan(at, Event::Arrive { wire, call, command });
        Some(receiver)
    }

    fn arrive(&mut self, wire: u64, call: u64, command: Vec<Vec<u8>>) {
        let now = Instant::now();
        if let Some(until) = self.frozen_until.filter(|until| *until > now) {
            return self.plan(until, Event::Arrive { wire, call, command });
        }
        if self.down_until.is_some_and(|until| until > now) {
            return;
        }
        let there = self.wires.contains_key(&wire);
        if !there {
            // Sent before the connection broke: lost, or executed though nobody waits for the reply, perhaps late.
            if self.dice.permille(500) {
                return;
            }
            if self.dice.permille(300) {
                let late = now + self.dice.span(Duration::from_secs(5));
                return self.plan(late, Event::Arrive { wire, call, command });
            }
        }
        if command.first().is_some_and(|name| name == b"SUBSCRIBE") {
            let channels = command[1..]
                .iter()
                .map(|name| String::from_utf8_lossy(name).into_owned());
            if let Some(state) = self.wires.get_mut(&wire) {
                state.channels.extend(channels);
            }
            return self.reply(wire, call, Value::Okay);
        }
        if let Some((_, code)) = self.errors_until.filter(|(until, _)| *until > now) {
            let refuses = code != "OOM" || command.get(1).is_some_and(|hash| self.server.is_acquire(hash));
            if refuses {
                return self.reply(wire, call, super::server::error(code, "for now"));
            }
        }
        let now_us = self.now_us();
        if let Err(violation) = self.server.expire(now_us) {
            self.violated(violation);
        }
        // A replica lags by some calls.
        if self.dice.permille(2) || self.past.is_none() {
            self.past = Some(self.server.data());
        }
        match self.server.execute(&command, now_us) {
            Ok(done) => {
                for (channel, payload) in done.published {
                    self.publish(&channel, &payload);
                }
                self.reply(wire, call, done.reply);
            }
            Err(violation) => {
                self.violated(violation);
            }
        }
    }

    fn reply(&mut self, wire: u64, call: u64, value: Value) {
        let delay = self.delay();
        if let Some(at) = self.delivery(wire, delay) {
            self.plan(at, Event::Reply { wire, call, value });
        }
    }

    /// When something that the server sends now arrives.
    fn delivery(&mut self, wire: u64, delay: Duration) -> Option<Instant> {
        let state = self.wires.get_mut(&wire)?;
        let mut at = (Instant::now() + delay).max(state.last_delivery);
        if let Some(until) = state.stalled_until {
            at = at.max(until);
        }
        state.last_delivery = at;
        Some(at)
    }

    fn publish(&mut self, channel: &str, payload: &[u8]) {
        let listeners = self
            .wires
            .iter()
            .filter(|(_, wire)| wire.channels.iter().any(|c| c == channel));
        let listeners: Vec<u64> = listeners.map(|(id, _)| *id).collect();
        for wire in listeners {
            let Weather {
                lost, doubled, late, ..
            } = self.weather;
            let copies = match () {
                () if self.dice.permille(lost) => 0,
                () if self.dice.permille(doubled) => 2,
                () => 1,
            };
            for _ in 0..copies {
                let delay = self.delay();
                let Some(mut at) = self.delivery(wire, delay) else {
                    continue;
                };
                // More than TCP does: it also overtakes.
                if self.dice.permille(late) {
                    at += self.dice.span(Duration::from_secs(1));
                }
                self.plan(
                    at,
                    Event::Push {
                        wire,
                        channel: channel.to_owned(),
                        payload: payload.to_vec(),
                    },
                );
            }
        }
    }
}

/// A process's way to the server.
pub struct Net {
    pub world: Arc<World>,
    pub process: Arc<Process>,
}

struct Wire {
    world: Arc<World>,
    id: u64,
}

fn io(kind: ErrorKind) -> RedisError {
    std::io::Error::from(kind).into()
}

impl testing::Network for Net {
    fn connect(&self, on_push: Option<OnPush>) -> BoxFuture<Result<Arc<dyn testing::Connection>, RedisError>> {
        let (world, process) = (Arc::clone(&self.world), Arc::clone(&self.process));
        Box::pin(async move {
            let delay = world.core().delay();
            sleep(delay).await;
            let mut core = world.core();
            let now = Instant::now();
            if core.down_until.is_some_and(|until| until > now) || process.is_killed() {
                return Err(io(ErrorKind::ConnectionRefused));
            }
            let id = core.number();
            let state = WireState {
                process,
                on_push,
                channels: Vec::new(),
                last_arrival: now,
                last_delivery: now,
                stalled_until: None,
                silent: false,
                pending: BTreeMap::new(),
            };
            core.wires.insert(id, state);
            drop(core);
            Ok(Arc::new(Wire { world, id }) as Arc<dyn testing::Connection>)
        })
    }

    fn spawn(&self, task: BoxFuture<()>) -> AbortHandle {
        let task = tokio::spawn(pausable(Arc::clone(&self.process), task));
        self.process.keep(task.abort_handle());
        task.abort_handle()
    }
}

impl Wire {
    fn call(&self, command: Vec<Vec<u8>>) -> BoxFuture<Result<Value, RedisError>> {
        let reply = self.world.core().send(self.id, command);
        self.world.planned.notify_one();
        Box::pin(async move {
            let Some(reply) = reply else {
                return Err(io(ErrorKind::BrokenPipe));
            };
            reply.await.map_err(|_| io(ErrorKind::ConnectionReset))
        })
    }
}

impl testing::Connection for Wire {
    fn send(&self, command: &Cmd) -> BoxFuture<Result<Value, RedisError>> {
        let words = command.args_iter().map(|word| match word {
            redis::Arg::Simple(bytes) => bytes.to_vec(),
            _ => Vec::new(),
        });
        self.call(words.collect())
    }

    fn subscribe(&self, channels: &[&str]) -> BoxFuture<Result<(), RedisError>> {
        let words = ["SUBSCRIBE"]
            .iter()
            .chain(channels)
            .map(|word| word.as_bytes().to_vec());
        let subscribed = self.call(words.collect());
        Box::pin(async move { subscribed.await.map(|_| ()) })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // A panic elsewhere has ended the run.
        if let Ok(mut core) = self.world.core.lock() {
            core.wires.remove(&self.id);
        }
    }
}
