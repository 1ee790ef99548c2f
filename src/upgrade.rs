//! Upgrade and downgrade: from reading to writing and back, with no moment without a hold.

use crate::acquire::Acquire;
use crate::engine::runtime;
use crate::guard::{ReadGuard, WriteGuard, tell};
use crate::observe::HoldEnd;
use crate::types::clock;
use crate::types::error::{Error, LostReason};
use crate::types::mode::{Read, Write};

impl ReadGuard {
    /// Waits until the other readers have left, then writes too. The read hold stays: when the write guard goes, the
    /// owner still reads. What is left of the read hold's [`max_hold`](Acquire::max_hold) bounds the write hold too. A
    /// least time stays that of the read hold.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// let reading = lock.read().acquire_fair().await?;
    /// let writing = reading.upgrade().await?; // a new token: nobody has written since the reading started
    /// writing.release().await?;               // the owner reads on
    /// reading.release().await
    /// # }
    /// ```
    ///
    /// # Fairness
    /// An upgrade waits ahead of the queue, so nobody enters before it. Other read holds of the same owner count as its
    /// own.
    ///
    /// # Cancel safety
    /// If you drop the future, the upgrade leaves the queue and the waiters behind it move up. The read hold stays.
    ///
    /// # Errors
    /// [`Error::UpgradeConflict`], at once, if another reader already waits to upgrade, because the two would wait for
    /// each other. This read hold stays; release it to let the other reader upgrade. [`Error::Lost`], at once, if the
    /// read hold is lost meanwhile, or the server forgot the upgrade. Otherwise those of [`Acquire::acquire_fair`].
    pub async fn upgrade(&self) -> Result<WriteGuard, Error> {
        let waiting = self.upgrading()?.acquire_fair();
        let writing = tokio::select! {
            biased;
            // When this is dropped, the upgrade leaves the queue.
            reason = self.lost() => return Err(self.lost_because(reason)),
            writing = waiting => writing,
        };
        let writing = writing.map_err(|error| self.explained(error))?;
        self.still_reading(&writing)?;
        Ok(writing)
    }

    /// Writes too if nobody else reads, and returns `None` otherwise. The rest is as for [`upgrade`](Self::upgrade).
    ///
    /// # Fairness
    /// Like every upgrade, this one goes ahead of all waiters, because they cannot enter before this read hold ends.
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases the write hold in the background if the server granted it. The read
    /// hold stays.
    ///
    /// # Errors
    /// Those of [`upgrade`](Self::upgrade).
    pub async fn try_upgrade(&self) -> Result<Option<WriteGuard>, Error> {
        let writing = self.upgrading()?.try_acquire().await;
        let writing = writing.map_err(|error| self.explained(error))?;
        if let Some(writing) = &writing {
            self.still_reading(writing)?;
        }
        Ok(writing)
    }

    fn upgrading(&self) -> Result<Acquire<Write>, Error> {
        if !self.is_held() {
            return Err(self.lost_because(self.reason()));
        }
        Ok(Acquire::again(self).upgrading(self.token.get()))
    }

    /// The server tells that the read hold is over. The client may know why; otherwise it renews the read hold at once,
    /// so that whoever watches this guard is told too.
    fn explained(&self, error: Error) -> Error {
        match error {
            Error::Lost { .. } if !self.is_held() => self.lost_because(self.reason()),
            Error::Lost { .. } => {
                let state = &*self.request().lock.state;
                let registry = &self.handle.shared().registry;
                registry.recheck(clock::now(), |lock| lock == state);
                error
            }
            error => error,
        }
    }

    /// If the owner stopped reading meanwhile, this is no upgrade, because others may have written in between. Otherwise
    /// the write hold has what is left of the read hold's `max_hold`.
    fn still_reading(&self, writing: &WriteGuard) -> Result<(), Error> {
        let now = clock::now();
        let left = self.request().claim().limit_left(now);
        if let Some(left) = left.filter(|_| self.is_held()) {
            writing.limit(now, left);
            return Ok(());
        }
        tracing::debug!(token = %writing.token, "read hold lost while it was upgraded");
        Err(self.lost_because(self.reason()))
    }
}

impl WriteGuard {
    /// Turns the write hold into a read hold, without waiting for anybody. Readers at the head of the queue enter
    /// beside it. The token stays. If the owner has other write holds, the lock stays in write mode.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// let writing = lock.write().acquire_fair().await?;
    /// let reading = writing.downgrade().await?; // nobody has written in between
    /// reading.release().await
    /// # }
    /// ```
    ///
    /// # Fairness
    /// Readers enter beside it up to the first writer in the queue. They overtake nobody.
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases the hold in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the hold had been lost, or its `max_hold` ended meanwhile. [`Error::Unavailable`] or
    /// [`Error::Server`] if the server did not confirm within the lease, and [`Error::Shutdown`] if the client was shut
    /// down meanwhile; then the client releases the hold in the background. [`Error::Runtime`] without timers.
    pub async fn downgrade(self) -> Result<ReadGuard, Error> {
        runtime::check_timers()?;
        let asked = clock::now();
        let held_until = self.request().claim().held_until(clock::now());
        let limit = self.request().claim().limit_left(asked);
        let Some((held_until, limit)) = held_until.zip(limit) else {
            return Err(self.lost_because(self.reason()));
        };
        // From here on the watchdog does not renew the hold.
        let hold = self.request().end_hold(asked);
        let again = Acquire::<Read>::again(&self);
        let reading = again.instead_of(self.request(), self.token.get(), held_until).await?;
        let Some(reading) = reading else {
            let reason = LostReason::UnknownToServer;
            tell(hold, HoldEnd::Lost(reason));
            return Err(self.lost_because(reason));
        };
        // Not from now on: the reply may have come late.
        reading.limit(asked, limit);
        tell(hold, HoldEnd::Downgraded);
        self.forget();
        match reading.is_held() {
            true => Ok(reading),
            false => Err(reading.lost_because(reading.reason())),
        }
    }
}
