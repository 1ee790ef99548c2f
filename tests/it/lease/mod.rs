//! The lease of a hold: how renewals move its deadline, and how a hold ends without a release.

mod at_least;
mod expiry;
mod frozen;
mod lock_delay;
mod loss;
mod max_hold;
mod renewals;

use crate::server::{Server, eventually, soon};
use fairlock::{Error, LostReason};
use std::sync::mpsc;
use tokio::sync::oneshot;

/// A process that can be frozen: a runtime in a thread of its own, which the test blocks and lets go on.
struct Process {
    freeze: oneshot::Sender<()>,
    frozen: oneshot::Receiver<()>,
    thaw: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Process {
    /// Runs `life` beside an agent that blocks the whole runtime when told to.
    fn start<F: Future<Output = ()> + 'static>(life: impl FnOnce() -> F + Send + 'static) -> Self {
        let (freeze, to_freeze) = oneshot::channel();
        let (tell_frozen, frozen) = oneshot::channel();
        let (thaw, thawed) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let agent = async {
                if to_freeze.await.is_ok() {
                    let _ = tell_frozen.send(());
                    let _ = thawed.recv();
                }
            };
            let both = async { tokio::join!(agent, life()) };
            runtime.expect("a runtime").block_on(both);
        });
        Self {
            freeze,
            frozen,
            thaw,
            thread,
        }
    }

    /// Returns when nothing of it runs any more.
    async fn freeze(self) -> Frozen {
        self.freeze.send(()).expect("the process lives");
        soon("the process is frozen", self.frozen).await.expect("it says so");
        Frozen(self.thaw, self.thread)
    }
}

struct Frozen(mpsc::Sender<()>, std::thread::JoinHandle<()>);

impl Frozen {
    /// Lets it run to its end, and fails if it failed.
    async fn thaw(self) {
        self.0.send(()).expect("the process lives");
        let ended = tokio::task::spawn_blocking(move || self.1.join());
        soon("the process ends", ended)
            .await
            .unwrap()
            .expect("no assertion failed in it");
    }
}

/// Waits until `n` further scripts were called by hash: renewals, if nothing else is going on.
async fn after_renewals(server: &Server, n: u64) {
    let before = server.script_calls().await;
    eventually("renewals", async || server.script_calls().await >= before + n).await;
}

fn lost_because<T>(result: &Result<T, Error>) -> Option<LostReason> {
    match result {
        Err(Error::Lost { reason, .. }) => Some(*reason),
        _ => None,
    }
}
