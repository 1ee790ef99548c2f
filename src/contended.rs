//! Contention: a holder learns that somebody waits, so that a long job can yield.

use crate::engine::runtime;
use crate::guard::Guard;
use crate::protocol::event::EventKind;
use crate::protocol::name::RequestName;
use crate::protocol::order::AskForStatus;
use crate::protocol::snapshot::Snapshot;
use crate::rw_lock::RwLock;
use crate::transport::backoff::Backoff;
use crate::types::error::Error;
use crate::types::owner::Owner;
use crate::watch::{Seen, Watch};
use std::sync::Arc;

impl<M> Guard<M> {
    /// Resolves when another owner waits for the lock, at once if one waits already. A long job can then yield: it
    /// releases the lock and acquires it again, behind the waiter.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock, mut rows: tokio::sync::mpsc::Receiver<u64>) -> Result<(), fairlock::Error> {
    /// 'turns: loop {
    ///     let guard = lock.write().acquire_fair().await?;
    ///     {
    ///         let mut contended = std::pin::pin!(guard.contended()); // outside of the loop: each call starts over
    ///         loop {
    ///             tokio::select! {
    ///                 biased;
    ///                 waits = &mut contended => break waits?,
    ///                 row = rows.recv() => match row {
    ///                     Some(row) => println!("row {row}"),
    ///                     None => break 'turns,
    ///                 },
    ///             }
    ///         }
    ///     }
    ///     guard.release().await?; // whoever waits enters
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// The lock costs nothing more while nobody calls this. A call subscribes to the lock's events, as
    /// [`RwLock::events`] does, and reads the status. The answer is a hint: the waiter may have left by now. A waiter is
    /// noticed within milliseconds, and within half a minute if its event is lost. `cargo run --example contended` shows
    /// it.
    ///
    /// # Cancel safety
    /// You may drop the future and call again. A call that follows a dropped one reads the status once more.
    ///
    /// # Errors
    /// [`Error::Lost`] if the hold is lost first, also by a shutdown. [`Error::Server`] if the server refuses the
    /// subscription or the status, [`Error::Runtime`] outside of a runtime with timers, and [`Error::Unavailable`] if the
    /// client's runtime has ended. While the server is away the call waits.
    pub async fn contended(&self) -> Result<(), Error> {
        runtime::check_timers()?;
        tokio::select! {
            biased;
            reason = self.lost() => Err(self.lost_because(reason)),
            contended = Box::pin(self.other_waits()) => contended,
        }
    }

    async fn other_waits(&self) -> Result<(), Error> {
        let lock = RwLock::new(Arc::clone(&self.handle), Arc::clone(&self.request().lock));
        let mut backoff = Backoff::new();
        loop {
            match watch_for_others(lock.clone(), self.owner()).await {
                // The server is away.
                Err(Error::Unavailable { .. }) if !self.handle.shared().registry.has_ended() => backoff.pause().await,
                // A shutdown ends the hold in its next step.
                Err(Error::Shutdown { .. }) if self.handle.session.is_closed() => {
                    return Err(self.lost_because(self.lost().await));
                }
                seen => return seen,
            }
        }
    }
}

/// What is read to see whether another owner waits. An owner waits once, so one of the first two is another one's, unless
/// their leases are over.
const WAITERS: AskForStatus<'static> = AskForStatus {
    first: 0,
    waiters: 32,
    holders: 0,
    place_of: None,
};

async fn watch_for_others(lock: RwLock, me: Owner) -> Result<(), Error> {
    let mut watch = Watch::begin(lock, WAITERS).await?;
    loop {
        let contended = match watch.next().await {
            Some(Ok(Seen::Event(event))) => event.kind == EventKind::Queued && event.owner != me,
            Some(Ok(Seen::Status(now))) => is_awaited(&now, me),
            Some(Err(error)) => return Err(error),
            None => return Err(watch.lock().ended()),
        };
        if contended {
            return Ok(());
        }
    }
}

/// Whether another owner waits, with a lease that lasts.
fn is_awaited(now: &Snapshot, me: Owner) -> bool {
    let owner = |request| RequestName::read(request).and_then(|name| name.owner());
    let mut waiters = now.waiters.iter();
    waiters.any(|waiter| waiter.deadline_ms > now.now_us / 1000 && owner(&waiter.request) != Some(me))
}
