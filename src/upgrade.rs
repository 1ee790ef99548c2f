//! From reading to writing and back, without a moment in which the owner holds nothing.

use crate::acquire::Acquire;
use crate::engine::runtime;
use crate::guard::{ReadGuard, WriteGuard, tell};
use crate::observe::HoldEnd;
use crate::types::error::{Error, LostReason};
use crate::types::mode::{Read, Write};
use std::sync::Arc;
use tokio::time::Instant;

impl ReadGuard {
    /// Waits until the other readers have left, then writes too: this read hold stays, and when the write guard goes
    /// its owner falls back to reading.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// let reading = lock.read().acquire_fair().await?;
    /// let writing = reading.upgrade().await?; // a new token: nobody has written since it began to read
    /// writing.release().await?;               // it reads on
    /// reading.release().await
    /// # }
    /// ```
    ///
    /// # Fairness
    /// It waits ahead of the queue: nobody enters between. Its own owner's other reads count as its own.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue; the read hold stays, and those behind move on.
    ///
    /// # Errors
    /// [`Error::UpgradeConflict`], at once, if another reader is waiting to upgrade already: the two would wait for each
    /// other. This read hold stays; release it to let the other one through. [`Error::Lost`], at once, if the read hold is
    /// lost meanwhile, or the server forgot the upgrade. Otherwise those of [`Acquire::acquire_fair`].
    pub async fn upgrade(&self) -> Result<WriteGuard, Error> {
        let waiting = self.upgrading()?.acquire_fair();
        let writing = tokio::select! {
            biased;
            // Dropped, the upgrade leaves the queue.
            reason = self.lost() => return Err(self.lost_because(reason)),
            writing = waiting => writing,
        };
        match writing {
            Ok(writing) => {
                self.still_reading(&writing)?;
                Ok(writing)
            }
            // The server may have said so first.
            Err(Error::Lost { .. }) if !self.is_held() => Err(self.lost_because(self.reason())),
            Err(error) => Err(error),
        }
    }

    /// Writes too if nobody else reads. `None`: others do. Like [`upgrade`](Self::upgrade) otherwise.
    ///
    /// # Fairness
    /// It goes before all who wait, like every upgrade: they could not have entered before this read hold ends.
    ///
    /// # Cancel safety
    /// Dropping the future gives the write back, in the background, if it was granted; the read hold stays.
    ///
    /// # Errors
    /// Those of [`upgrade`](Self::upgrade).
    pub async fn try_upgrade(&self) -> Result<Option<WriteGuard>, Error> {
        let writing = self.upgrading()?.try_acquire().await?;
        if let Some(writing) = &writing {
            self.still_reading(writing)?;
        }
        Ok(writing)
    }

    fn upgrading(&self) -> Result<Acquire<Write>, Error> {
        if !self.is_held() {
            return Err(self.lost_because(self.reason()));
        }
        Ok(Acquire::again(Arc::clone(&self.handle), self.request(), self.owner()))
    }

    /// Whoever stopped reading meanwhile did not upgrade: others may have written in between.
    fn still_reading(&self, writing: &WriteGuard) -> Result<(), Error> {
        if self.is_held() {
            return Ok(());
        }
        tracing::debug!(token = %writing.token, "read hold lost while it was upgraded");
        Err(self.lost_because(self.reason()))
    }
}

impl WriteGuard {
    /// Turns the write hold into a read hold. Never waits for anybody; readers at the head of the queue come in with it.
    /// The token stays. If its owner holds other writes, the lock stays written.
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
    /// Readers enter beside it up to the first writer in the queue. Nobody is passed.
    ///
    /// # Cancel safety
    /// Dropping the future releases the hold, in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the hold had been lost. [`Error::Unavailable`] or [`Error::Server`] if the server did not
    /// confirm within the lease; then the hold is released in the background.
    pub async fn downgrade(self) -> Result<ReadGuard, Error> {
        runtime::check_timers()?;
        let held_until = self.request().claim().held_until(Instant::now());
        let Some(held_until) = held_until else {
            return Err(self.lost_because(self.reason()));
        };
        let limit = self.request().claim().limit_left(Instant::now());
        // From here on the keeper does not renew it.
        let hold = self.request().end_hold();
        let again = Acquire::<Read>::again(Arc::clone(&self.handle), self.request(), self.owner()).max_hold(limit);
        let reading = again.instead_of(self.request(), held_until).await?;
        // With a greater token its owner came in once more since: others may have been inside in between.
        let Some(reading) = reading.filter(|reading| reading.token <= self.token) else {
            let reason = LostReason::UnknownToServer;
            tell(hold, HoldEnd::Lost(reason));
            return Err(self.lost_because(reason));
        };
        tell(hold, HoldEnd::Downgraded);
        self.forget();
        Ok(reading)
    }
}
