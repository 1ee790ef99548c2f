//! Signals that come to this process.

use rustix::process::Signal;
use std::io;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// What ends a program that shows something.
pub(crate) const ENDING: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// Signals as a queue. From the moment it is made they do not do anything else.
pub(crate) struct Signals {
    queue: mpsc::UnboundedReceiver<Signal>,
}

impl Signals {
    /// Those that were ignored when this process began stay so, for us and for our children: nohup(1), and shells that
    /// start something in the background, rely on it.
    pub(crate) fn listen(signals: &[Signal]) -> io::Result<Self> {
        let ignored = ignored();
        let (sender, queue) = mpsc::unbounded_channel();
        for number in signals.iter().copied() {
            if ignored >> (number.as_raw() - 1) & 1 == 1 {
                continue;
            }
            let mut arrivals = signal(SignalKind::from_raw(number.as_raw()))?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while arrivals.recv().await.is_some() {
                    if sender.send(number).is_err() {
                        return;
                    }
                }
            });
        }
        // Where all are ignored the queue is silent, not closed.
        tokio::spawn(async move { sender.closed().await });
        Ok(Self { queue })
    }

    pub(crate) async fn next(&mut self) -> Signal {
        match self.queue.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }
}

/// One bit per signal. Only Linux tells.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
