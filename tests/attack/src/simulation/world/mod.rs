//! The network, the server and the processes, in virtual time. One task carries out what is planned, in order of time
//! and then of planning; everything random comes from one seed. So a seed gives one history.

mod core;
mod net;
mod weather;

use super::dice::Dice;
use super::process::Process;
use super::server::{Data, Server};
use crate::model::RETENTION;
use fairlock::testing::OnPush;
pub use net::Net;
use redis::{PushInfo, PushKind, Value};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};
pub use weather::{Fault, Weather};

/// Longer than any run.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The server executes what a broken connection had brought so much later at most.
pub const LATE: Duration = Duration::from_secs(5);

/// A day when nobody was on call.
const BEGIN_US: u64 = 1_760_400_000_000_000;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

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
    /// What the server's clock said at most, before it was set back.
    highest_us: u64,
    /// It runs as much slower for as long, and so on: then it never gets far.
    drift_turns: Option<Duration>,
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
                highest_us: 0,
                drift_turns: None,
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

    /// The server's clock is ahead by so much, and its drift turns after each such time.
    pub fn skew(&self, ahead_us: i64, drift_turns: Duration) {
        let mut core = self.core();
        (core.clock_step_us, core.drift_turns) = (ahead_us, Some(drift_turns));
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
                    core.server.promoted = true;
                    if let Some(circles) = &mut core.server.circles {
                        circles.go_back();
                    }
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
                // A token may return if the clock falls behind the last use of a lock that has expired: see PROTOCOL.md.
                let (now_us, most) = (core.now_us(), RETENTION - 1000);
                core.highest_us = core.highest_us.max(now_us);
                let least_us = core.highest_us - most * 1000;
                core.clock_step_us -= (span.as_micros() as i64).min((now_us - least_us) as i64);
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
