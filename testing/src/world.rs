//! The server's connections, its clock, and whether it runs.

use crate::glob;
use crate::keyspace::{Keyspace, Publish};
use redis::{PushInfo, PushKind, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::SystemTime;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The moment at which all servers of this process begin to count, by tokio's clock and in us since 1970. The servers of a
/// quorum must agree on the time, and tokio's clock may stand still.
static EPOCH: OnceLock<(Instant, u64)> = OnceLock::new();

fn clock_us() -> u64 {
    let (began, us) = EPOCH.get_or_init(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        (Instant::now(), now.map_or(0, |now| now.as_micros() as u64))
    });
    us_at(Instant::now(), *began, *us)
}

/// The time of a moment. Each runtime in paused time has a clock of its own: it may be behind the one that came first.
fn us_at(now: Instant, began: Instant, us: u64) -> u64 {
    match now.checked_duration_since(began) {
        Some(after) => us + after.as_micros() as u64,
        None => us.saturating_sub((began - now).as_micros() as u64),
    }
}

struct Wire {
    pushes: UnboundedSender<PushInfo>,
    channels: BTreeSet<String>,
    patterns: BTreeSet<String>,
}

/// What became of a command.
pub(crate) enum Sent {
    Done(Value),
    /// The server is frozen.
    Later(oneshot::Receiver<Value>),
    /// The connection is closed.
    Broken,
}

struct Late {
    wire: u64,
    command: Vec<Vec<u8>>,
    reply: oneshot::Sender<Value>,
}

pub(crate) struct World {
    keyspace: Keyspace,
    wires: BTreeMap<u64, Wire>,
    last_wire: u64,
    is_stopped: bool,
    /// What came while the server was frozen; `None`: it is not.
    frozen: Option<Vec<Late>>,
    last_us: u64,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            keyspace: Keyspace::default(),
            wires: BTreeMap::new(),
            last_wire: 0,
            is_stopped: false,
            frozen: None,
            last_us: 0,
        }
    }

    /// tokio's clock may stand still while scripts run; a server's does not.
    fn now_us(&mut self) -> u64 {
        self.last_us = clock_us().max(self.last_us + 1);
        self.last_us
    }

    pub(crate) fn connect(&mut self, pushes: UnboundedSender<PushInfo>) -> Option<u64> {
        if self.is_stopped {
            return None;
        }
        self.last_wire += 1;
        let wire = Wire {
            pushes,
            channels: BTreeSet::new(),
            patterns: BTreeSet::new(),
        };
        self.wires.insert(self.last_wire, wire);
        Some(self.last_wire)
    }

    pub(crate) fn close(&mut self, wire: u64) {
        self.wires.remove(&wire);
    }

    pub(crate) fn disconnect(&mut self) {
        for wire in std::mem::take(&mut self.wires).into_values() {
            wire.push(PushKind::Disconnection, Vec::new());
        }
        // The commands were sent, and nobody reads the replies.
        self.frozen.iter_mut().flatten().for_each(|late| {
            late.reply = oneshot::channel().0;
        });
    }

    pub(crate) fn stop(&mut self) {
        self.disconnect();
        self.frozen = None;
        self.is_stopped = true;
    }

    pub(crate) fn start(&mut self) {
        if std::mem::take(&mut self.is_stopped) {
            self.keyspace.restart();
        }
    }

    pub(crate) fn freeze(&mut self) {
        if !self.is_stopped {
            self.frozen.get_or_insert_default();
        }
    }

    pub(crate) fn thaw(&mut self) {
        for Late { wire, command, reply } in self.frozen.take().into_iter().flatten() {
            // Nobody may wait for it any more.
            let _ = reply.send(self.execute(wire, &command));
        }
    }

    pub(crate) fn send(&mut self, wire: u64, command: Vec<Vec<u8>>) -> Sent {
        if !self.wires.contains_key(&wire) {
            return Sent::Broken;
        }
        match &mut self.frozen {
            Some(late) => {
                let (reply, later) = oneshot::channel();
                late.push(Late { wire, command, reply });
                Sent::Later(later)
            }
            None => Sent::Done(self.execute(wire, &command)),
        }
    }

    fn execute(&mut self, wire: u64, command: &[Vec<u8>]) -> Value {
        let name = command.first().map(Vec::as_slice).unwrap_or_default();
        if let Some(wire) = self.wires.get_mut(&wire)
            && wire.subscribes(name, &command[1..])
        {
            return Value::Okay;
        }
        if let [name, what, channel] = command
            && (&name[..], &what[..]) == (b"PUBSUB", b"NUMSUB")
        {
            return self.subscribers(channel);
        }
        let now_us = self.now_us();
        let (reply, published) = self.keyspace.execute(command, now_us, &Audience(&self.wires));
        self.publish(published);
        reply
    }

    fn subscribers(&self, channel: &[u8]) -> Value {
        let subscribes = |wire: &&Wire| wire.channels.iter().any(|own| own.as_bytes() == channel);
        let n = self.wires.values().filter(subscribes).count();
        Value::Array(vec![Value::BulkString(channel.to_vec()), Value::Int(n as i64)])
    }

    pub(crate) fn expire(&mut self, lock: &str) -> usize {
        let now_us = self.now_us();
        let (ended, published) = self.keyspace.end_holds(lock, now_us, &Audience(&self.wires));
        self.publish(published);
        ended
    }

    pub(crate) fn forget(&mut self, lock: &str) -> bool {
        self.keyspace.forget(lock)
    }

    pub(crate) fn flush_all(&mut self) {
        self.keyspace.flush_all();
    }

    fn publish(&self, published: Vec<Publish>) {
        for Publish { channel, payload } in published {
            let text = |bytes: &[u8]| Value::BulkString(bytes.to_vec());
            for wire in self.wires.values() {
                if wire.channels.contains(&channel) {
                    wire.push(PushKind::Message, vec![text(channel.as_bytes()), text(&payload)]);
                }
                for pattern in wire.matching(&channel) {
                    let data = [pattern.as_bytes(), channel.as_bytes(), &payload].map(text);
                    wire.push(PushKind::PMessage, data.to_vec());
                }
            }
        }
    }
}

impl Wire {
    fn push(&self, kind: PushKind, data: Vec<Value>) {
        // A connection for commands has nobody who listens.
        let _ = self.pushes.send(PushInfo { kind, data });
    }

    fn matching<'a>(&'a self, channel: &'a str) -> impl Iterator<Item = &'a String> {
        let matches = |pattern: &&String| glob::matches(pattern.as_bytes(), channel.as_bytes());
        self.patterns.iter().filter(matches)
    }

    /// Whether the command is one of subscriptions, and done.
    fn subscribes(&mut self, name: &[u8], topics: &[Vec<u8>]) -> bool {
        let topics = topics.iter().map(|topic| String::from_utf8_lossy(topic).into_owned());
        match name {
            b"SUBSCRIBE" => self.channels.extend(topics),
            b"PSUBSCRIBE" => self.patterns.extend(topics),
            b"UNSUBSCRIBE" => topics.for_each(|topic| _ = self.channels.remove(&topic)),
            b"PUNSUBSCRIBE" => topics.for_each(|topic| _ = self.patterns.remove(&topic)),
            _ => return false,
        }
        true
    }
}

/// Who is subscribed.
pub(crate) struct Audience<'a>(&'a BTreeMap<u64, Wire>);

impl Audience<'_> {
    pub(crate) fn hears(&self, channel: &str) -> bool {
        self.0
            .values()
            .any(|wire| wire.channels.contains(channel) || wire.matching(channel).next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn time_passes_for_a_runtime_whose_clock_is_behind() {
        let (began, us, hour) = (Instant::now(), 1_760_000_000_000_000, Duration::from_secs(3600));
        assert_eq!(us_at(began + hour, began, us), us + 3_600_000_000);
        assert_eq!(us_at(began, began + hour, us), us - 3_600_000_000);
        assert_eq!(us_at(began + hour / 2, began + hour, us), us - 1_800_000_000);
    }
}
