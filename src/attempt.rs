//! A request on its way to a guard: asking, waiting, and what happens when it is dropped.
//!
//! The future that waits does the first call itself. From then on it only watches its claim, which messages and the
//! keeper change. However it ends without a guard, its request is released in the background.

use crate::acquire::Access;
use crate::claim::{Answer, End, Next, Source};
use crate::client::{Handle, Inner, call_limit};
use crate::error::{Error, LostReason, is_transient};
use crate::guard::Guard;
use crate::keeper::{finish, settle};
use crate::key::shown;
use crate::link::Backoff;
use crate::observe::Hold;
use crate::registry::Request;
use crate::script::{Acquired, Ask, Call};
use redis::RedisError;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

#[derive(Clone, Copy)]
pub(crate) enum When {
    Now,
    Within(Duration),
    InTurn,
}

pub(crate) enum Outcome {
    HandOut(u64),
    Busy,
    /// The request is unknown to the server: ask under a new name, with the old ticket.
    AskAgain(Option<u64>),
}

/// A request on its way to a guard. Dropped, it is released in the background.
pub(crate) struct Attempt {
    handle: Arc<Handle>,
    /// Taken when it becomes a guard.
    request: Option<Arc<Request>>,
    only_now: bool,
    /// How long to ask without any answer.
    patience: Duration,
    ticket: Option<u64>,
    lease: Duration,
    /// Why the last call got no answer.
    unanswered: Option<RedisError>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.handle.abandon(request);
        }
    }
}

impl Attempt {
    pub(crate) fn new(
        handle: Arc<Handle>,
        request: Arc<Request>,
        when: When,
        ticket: Option<u64>,
        lease: Duration,
    ) -> Self {
        let patience = match when {
            When::Now => Duration::ZERO,
            When::Within(limit) => limit.min(lease),
            When::InTurn => lease,
        };
        Self {
            handle,
            request: Some(request),
            only_now: matches!(when, When::Now),
            patience: patience.max(call_limit(lease) * 2),
            ticket,
            lease,
            unanswered: None,
        }
    }

    /// Asks under the same name until there is an answer. `None`: now wait for the claim to change.
    pub(crate) async fn ask(&mut self) -> Result<Option<Outcome>, Error> {
        let begun = Instant::now();
        let mut backoff = Backoff::new();
        loop {
            // Former requests of this owner that were dropped and are not yet out of the queue.
            while let Some(former) = self.leaving()
                && begun.elapsed() < self.patience
                && !self.inner().is_closed()
                && !self.inner().requests.has_ended()
            {
                // The time is a bound, not a pause: the release is usually answered at once.
                let _ = timeout(call_limit(self.inner().lease), self.inner().requests.out_of(&former)).await;
            }
            // A shutdown that came before is seen here, as late as can be: it may have released the request already. One
            // that comes after sees the request in the registry.
            if self.inner().is_closed() {
                return Err(self.shut_down());
            }
            let sent = Instant::now();
            // In a box: who waits has no room for a call in its future.
            let patience = self.patience.saturating_sub(begun.elapsed());
            match Box::pin(self.call_acquire(patience)).await {
                Ok(Acquired::Answered(answer, next)) => {
                    self.unanswered = None;
                    self.request().claim().answered(sent, answer);
                    self.inner().listen_for(self.request(), sent);
                    if let Some(next) = next {
                        let lock = &self.request().lock;
                        self.inner().requests.look_again(lock, Instant::now() + next);
                    }
                    return Ok(None);
                }
                Ok(Acquired::OwnerWaits(_)) => {
                    let lock = self.lock_name();
                    return self.refused(Error::OwnerWaiting { lock });
                }
                Ok(Acquired::Busy) => {
                    self.forget();
                    return Ok(Some(Outcome::Busy));
                }
                Ok(Acquired::Conflict) => return self.refused(Error::UpgradeConflict { lock: self.lock_name() }),
                Ok(Acquired::OtherPolicy(stored)) => {
                    let lock = self.lock_name();
                    return self.refused(Error::PolicyMismatch { lock, stored });
                }
                Err(error) => {
                    if !is_transient(&error) || begun.elapsed() >= self.patience {
                        return Err(self.failed(error));
                    }
                    tracing::debug!(%error, "no answer, asking again");
                    self.unanswered = Some(error);
                    backoff.pause().await;
                }
            }
        }
    }

    /// A call that has not been sent keeps its place in line for that long.
    async fn call_acquire(&self, patience: Duration) -> Result<Acquired, RedisError> {
        let request = self.request();
        let ask = Ask {
            request: &request.name,
            lease: self.lease,
            only_now: self.only_now,
            policy: request.policy,
            ticket: self.ticket,
        };
        loop {
            let call = self.inner().call(&request.lock, self.lease);
            let patience = patience.max(call.limit);
            match (Call { patience, ..call }).acquire(&ask).await? {
                Acquired::OwnerWaits(Some(number)) if self.is_orphan(number) => self.release_orphan(number).await?,
                acquired => return Ok(acquired),
            }
        }
    }

    /// This client gave the number to a request that is over, and the server does not know that.
    fn is_orphan(&self, number: u64) -> bool {
        let inner = self.inner();
        inner.has_named(&inner.id.to_string(), number) && inner.registry().get(number).is_none()
    }

    /// An acquire that the network had kept was executed after its cancel: its owner must not be refused for that.
    async fn release_orphan(&self, number: u64) -> Result<(), RedisError> {
        let (inner, request) = (self.inner(), self.request());
        let owner = request.owner().unwrap_or_default();
        // Nobody knows any more whether it was to read or to write.
        let [read, write] = ["r", "w"].map(|mode| format!("{mode}{}:{number}:{owner}", inner.id));
        let call = inner.call(&request.lock, self.lease);
        let (_, next) = call.release(&[read.as_str(), write.as_str()]).await?;
        finish(inner, &request.lock, next).await;
        Ok(())
    }

    /// Watches the claim until it is granted and proven, or over.
    pub(crate) async fn wait(&self) -> Result<Outcome, Error> {
        let request = self.request();
        let mut backoff = Backoff::new();
        loop {
            match request.next(Instant::now).await {
                Next::HandOut { token } => return Ok(Outcome::HandOut(token)),
                Next::Renew => {
                    let sent = Instant::now();
                    let call = self.inner().call(&request.lock, self.lease);
                    match Box::pin(call.renew(&[(request.name.as_str(), self.lease)])).await {
                        Ok((standings, _)) => {
                            for standing in standings {
                                settle(request, sent, Instant::now(), self.lease, standing);
                            }
                        }
                        Err(error) if is_transient(&error) => backoff.pause().await,
                        Err(error) => return Err(self.failed(error)),
                    }
                }
                Next::Ended(End::Displaced { ticket }) => return Ok(Outcome::AskAgain(ticket)),
                Next::Ended(End::Failed(error)) => return Err(self.failed(error)),
                Next::Ended(End::Lost(LostReason::Shutdown)) => return Err(self.shut_down()),
                // An operator's eviction: the other reasons concern holds that were handed out.
                Next::Ended(End::Released | End::Lost(_)) => {
                    let lock = self.lock_name();
                    return Err(Error::Lost {
                        lock,
                        reason: LostReason::Evicted,
                    });
                }
            }
        }
    }

    /// The server did not take the request: there is nothing to release.
    fn refused<T>(&mut self, error: Error) -> Result<T, Error> {
        self.forget();
        Err(error)
    }

    /// Has the request released, and waits until it is. The attempt is over.
    pub(crate) async fn withdraw(&mut self) {
        if let Some(request) = self.request.take() {
            self.handle.withdraw(request).await;
        }
    }

    fn forget(&mut self) {
        // After an unanswered call an earlier sending may have been taken all the same.
        if self.unanswered.is_none()
            && let Some(request) = self.request.take()
        {
            request.claim().end(End::Released);
            self.inner().registry().remove(&request);
        }
    }

    fn leaving(&self) -> Option<Arc<Request>> {
        let request = self.request();
        request.owner()?;
        self.inner().registry().leaving(request)
    }

    /// What told of the grant, and when the last message came.
    pub(crate) fn grant(&self) -> (Source, Option<Instant>) {
        self.request().claim().grant()
    }

    pub(crate) fn into_guard<M: Access>(mut self, token: u64) -> Guard<M> {
        let request = Arc::clone(self.request());
        self.request = None;
        let hold = Hold::begin(&request.lock, M::MODE, token);
        request.change(|claim| claim.keep(hold));
        // The end of its max_hold, if it has one, may come before the keeper looks again.
        let now = Instant::now();
        let left = request.claim().limit_left(now);
        if let Some(end) = now.checked_add(left) {
            self.inner().requests.look_at(&request.lock, end);
        }
        Guard::new(Arc::clone(&self.handle), request, token)
    }

    /// Has the server put this read request in the place of a write hold, at the latest until then. The token, or
    /// `None` if the server does not know the hold.
    pub(crate) async fn take_over(&self, from: &Request, until: Instant) -> Result<Option<u64>, Error> {
        let request = self.request();
        let mut backoff = Backoff::new();
        loop {
            let sent = Instant::now();
            let call = self.inner().call(&request.lock, self.lease);
            match call.downgrade(&from.name, &request.name, self.lease).await {
                Ok((token, next)) => {
                    if let Some(token) = token {
                        request.claim().answered(sent, Answer::Granted { token });
                    }
                    finish(self.inner(), &request.lock, next).await;
                    return Ok(token);
                }
                Err(error) if is_transient(&error) && Instant::now() < until => backoff.pause().await,
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.handle.inner
    }

    pub(crate) fn request(&self) -> &Arc<Request> {
        // Taken only by the methods that end the attempt.
        self.request.as_ref().expect("an attempt that ended is not used again")
    }

    fn lock_name(&self) -> String {
        shown(&self.request().lock.name)
    }

    fn failed(&self, error: RedisError) -> Error {
        Error::of_server(&self.request().lock.name, error)
    }

    fn shut_down(&self) -> Error {
        Error::Shutdown { lock: self.lock_name() }
    }
}
