//! A watch: what happens to a lock, without gaps.
//!
//! Events tell of every change at once, but some may be missing: those before all users of the lock have heard that
//! somebody listens, and those of a lost connection. So a watch reads the status too: when it begins, a little later,
//! after missed events, and every half a minute. The subscription comes first, because what happens between the two
//! must not be lost.

use crate::engine::runtime;
use crate::events::Events;
use crate::protocol::event::Event;
use crate::protocol::order::AskForStatus;
use crate::protocol::snapshot::Snapshot;
use crate::rw_lock::RwLock;
use crate::types::clock;
use crate::types::error::Error;
use crate::types::timers::{LOOK_AGAIN_AFTER, LOOK_EVERY};
use tokio::time::Instant;

pub(crate) struct Watch {
    lock: RwLock,
    /// What it reads.
    ask: AskForStatus<'static>,
    events: Events,
    /// When to subscribe again, because the server has refused to go on. `None`: the events come.
    subscribe_at: Option<Instant>,
    /// When to read the status next.
    look_at: Instant,
    /// Everybody has heard by now that this client listens.
    is_heard: bool,
}

pub(crate) enum Seen {
    Event(Event),
    /// The state at a moment later than every event that was seen before.
    Status(Snapshot),
}

impl Watch {
    pub(crate) async fn begin(lock: RwLock, ask: AskForStatus<'static>) -> Result<Self, Error> {
        let events = lock.events().await?;
        let look_at = clock::now();
        Ok(Self {
            lock,
            ask,
            events,
            subscribe_at: None,
            look_at,
            is_heard: false,
        })
    }

    pub(crate) fn lock(&self) -> &RwLock {
        &self.lock
    }

    /// Reads the status next, whatever events come.
    pub(crate) fn look_now(&mut self) {
        self.look_at = clock::now();
    }

    /// The next event, or the status when events may be missing. `None`: the client was shut down, or its runtime has ended, so no
    /// event comes any more. After an error the watch goes on. A dropped future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Result<Seen, Error>> {
        if let Err(error) = runtime::check_timers() {
            return Some(Err(error));
        }
        loop {
            if let Some(at) = self.subscribe_at {
                clock::sleep_until(at).await;
                match self.subscribe_again().await {
                    Ok(()) => {}
                    Err(Error::Shutdown { .. }) => return None,
                    Err(error) => return Some(Err(error)),
                }
            }
            tokio::select! {
                biased;
                () = clock::sleep_until(self.look_at) => return match self.look().await {
                    Err(Error::Shutdown { .. }) => None,
                    seen => Some(seen.map(Seen::Status)),
                },
                event = self.events.next() => match event {
                    Some(Ok(event)) => return Some(Ok(Seen::Event(event))),
                    Some(Err(Error::EventsMissed { .. })) => {
                        // Perhaps the others have to hear it anew.
                        self.is_heard = false;
                        self.look_now();
                    }
                    Some(Err(error)) => return Some(Err(error)),
                    None if self.lock.has_ended() => return None,
                    None => self.subscribe_at = Some(clock::now()),
                },
            }
        }
    }

    async fn subscribe_again(&mut self) -> Result<(), Error> {
        // If this fails.
        self.subscribe_at = Some(clock::now() + LOOK_AGAIN_AFTER);
        self.events = Box::pin(self.lock.events()).await?;
        (self.subscribe_at, self.is_heard) = (None, false);
        self.look_now();
        Ok(())
    }

    async fn look(&mut self) -> Result<Snapshot, Error> {
        let seen = Box::pin(self.lock.snapshot(&self.ask)).await;
        let pause = match self.is_heard && seen.is_ok() {
            true => LOOK_EVERY,
            false => LOOK_AGAIN_AFTER,
        };
        self.is_heard |= seen.is_ok();
        self.look_at = clock::now() + pause;
        seen
    }
}
