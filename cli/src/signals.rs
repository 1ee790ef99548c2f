//! The signals that this process gets, as a queue.

use rustix::process::Signal;
use std::io;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// The signals that end a subcommand that shows something.
pub(crate) const ENDING: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];
/// The same for a screen. QUIT would leave the terminal as the screen needs it, where a shell cannot be used.
pub(crate) const ENDING_A_SCREEN: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// A queue of signals. From its creation on these signals do nothing else to this process.
pub(crate) struct Signals {
    queue: mpsc::UnboundedReceiver<Signal>,
}

impl Signals {
    /// Signals that this process ignored at its start stay ignored, here and in its children. nohup(1) relies on that, and
    /// so do shells that start a command in the background.
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
        // If all signals are ignored, the queue stays open and empty.
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

/// The signals that this process ignores, one bit each. Only Linux tells.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
