//! What happens when: the queue of events, and the bytes on their way.

use super::super::server::Data;
use super::weather::Weather;
use super::{BEGIN_US, Core, Event, FOR_EVER, LATE, Planned, WireState};
use redis::Value;
use std::cmp::Reverse;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

impl Core {
    pub fn violated(&mut self, what: String) {
        self.violation.get_or_insert(what);
        self.server.trace_ends();
    }

    /// The server's clock. Virtual time stands still while scripts run; a server's does not.
    pub fn now_us(&mut self) -> u64 {
        let passed = self.begun.elapsed().as_micros() as i64;
        // Evenly: a step once a second would be more than the client's margin for a short lease allows.
        let drifting = self.drift_turns.map_or(passed, |turn| {
            let turn = turn.as_micros() as i64;
            let into = passed % (2 * turn);
            into.min(2 * turn - into)
        });
        let drift = drifting * self.drift_ppm / 1_000_000;
        let now_us = BEGIN_US.saturating_add_signed(passed + drift + self.clock_step_us);
        self.last_us = now_us.max(self.last_us + 1);
        self.last_us
    }

    /// Nothing is broken here, and the clients have known the server for so long.
    pub fn is_well(&mut self, known_for: Duration) -> bool {
        let (now, now_us) = (Instant::now(), self.now_us());
        let errors = self.errors_until.map(|(until, _)| until);
        let broken = [self.frozen_until, self.down_until, errors].into_iter().flatten();
        let stalled = self.wires.values().filter_map(|wire| wire.stalled_until);
        broken.chain(stalled).all(|until| until <= now)
            && self.server.is_known_for(known_for.as_millis() as u64, now_us)
    }

    pub(super) fn plan(&mut self, at: Instant, event: Event) {
        self.order += 1;
        let order = self.order;
        self.heap.push(Reverse(Planned { at, order, event }));
    }

    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// How long it takes to get from here to there.
    pub(super) fn delay(&mut self) -> Duration {
        if self.dice.permille(self.weather.slow) {
            return self.dice.span(self.weather.spell);
        }
        Duration::from_millis(self.dice.below(4) / 3)
    }

    pub(super) fn stall(&mut self, wire: u64, until: Instant) {
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

    pub(super) fn restart(&mut self, data: Data, up_at: Instant) -> Vec<Option<WireState>> {
        self.server.restart(data);
        self.down_until = Some(up_at);
        self.frozen_until = None;
        std::mem::take(&mut self.wires).into_values().map(Some).collect()
    }

    pub(super) fn send(&mut self, wire: u64, command: Vec<Vec<u8>>) -> Option<oneshot::Receiver<Value>> {
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

    pub(super) fn arrive(&mut self, wire: u64, call: u64, command: Vec<Vec<u8>>) {
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
                let late = now + self.dice.span(LATE);
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
                return self.reply(wire, call, crate::simulation::server::error(code, "for now"));
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
        let Self { server, wires, .. } = self;
        let subscribed = |channel: &str| wires.values().any(|wire| wire.channels.iter().any(|c| c == channel));
        match server.execute(&command, now_us, &subscribed) {
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

    pub(super) fn reply(&mut self, wire: u64, call: u64, value: Value) {
        let delay = self.delay();
        if let Some(at) = self.delivery(wire, delay) {
            self.plan(at, Event::Reply { wire, call, value });
        }
    }

    /// When something that the server sends now arrives.
    pub(super) fn delivery(&mut self, wire: u64, delay: Duration) -> Option<Instant> {
        let state = self.wires.get_mut(&wire)?;
        let mut at = (Instant::now() + delay).max(state.last_delivery);
        if let Some(until) = state.stalled_until {
            at = at.max(until);
        }
        state.last_delivery = at;
        Some(at)
    }

    pub(super) fn publish(&mut self, channel: &str, payload: &[u8]) {
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
