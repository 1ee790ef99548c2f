//! A request on its way to a guard: it asks, waits, and is released when its future is dropped.
//!
//! The caller's future makes the first call itself, so no other task stands between a free lock and its guard. From
//! then on the future only watches its claim, which messages and renewals change. An attempt that ends without a guard
//! has its request released in the background, whatever ended it: that is the attempt's `Drop`.

use super::call::Call;
use super::follow_up::follow_up;
use super::session::{Handle, Session};
use crate::protocol::name::RequestName;
use crate::protocol::order::{AskToAcquire, Origin};
use crate::protocol::reply::{Acquired, Answer, Look, Refusal};
use crate::state::claim::{Claim, EndedBy, Outcome};
use crate::state::registry::Registry;
use crate::state::request::Request;
use crate::transport::backoff::Backoff;
use crate::types::boxed::boxed;
use crate::types::clock;
use crate::types::error::{Error, LostReason, is_transient, left_nothing, timed_out};
use crate::types::limits::call_limit;
use crate::types::mode::{Grant, Mode, When};
use crate::types::timers::GRACE;
use redis::RedisError;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

pub(crate) enum Attempted {
    Granted(Grant),
    Busy,
    /// The server does not know the request: the caller asks under a new name, with the old ticket.
    AskAgain(Option<u64>),
}

/// A request on its way to a guard. When the attempt is dropped, the releaser releases the request.
pub(crate) struct Attempt {
    handle: Arc<Handle>,
    /// Taken when the request becomes a guard's.
    request: Option<Arc<Request>>,
    only_now: bool,
    /// How long the attempt asks without any reply.
    patience: Duration,
    origin: Origin,
    max_queue: Option<usize>,
    lease: Duration,
    /// How many stood before it when it queued.
    pub(crate) ahead: usize,
    /// Why the last call got no reply.
    unanswered: Option<RedisError>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.handle.shared().abandon(request, clock::now());
        }
    }
}

impl Attempt {
    pub(crate) fn new(handle: Arc<Handle>, request: Arc<Request>, when: When, origin: Origin, lease: Duration) -> Self {
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
            origin,
            max_queue: None,
            lease,
            ahead: 0,
            unanswered: None,
        }
    }

    /// With so many waiters or more, the request does not queue.
    pub(crate) fn max_queue(mut self, most: Option<usize>) -> Self {
        self.max_queue = most;
        self
    }

    /// Asks under the same name until the server replies, from now on. `None`: the caller now waits for the claim to change.
    pub(crate) async fn ask(&mut self, begun: Instant) -> Result<Option<Attempted>, Error> {
        // The time is asked for again only after a pause: to ask costs as much as a hundred instructions.
        let mut sent = begun;
        let mut backoff = Backoff::new();
        loop {
            // The server may still know former requests of this owner. If one is in the queue, the server refuses this one. If
            // one holds, this one reenters past all waiters.
            while let Some((former, until)) = self.leaving(sent, begun + self.patience)
                && !self.session().is_closed()
                && !self.registry().has_ended()
            {
                // The time is a bound and no pause: the server usually confirms the release at once. In a box, because
                // it is rare.
                let out = self.registry().out_of(&former);
                let _ = Box::pin(timeout(until.saturating_duration_since(sent), out)).await;
                sent = clock::now();
            }
            // A message may have ended the request, whose reply was lost: to ask again would make it anew.
            if self.unanswered.is_some() && self.request().claim().ended().is_some() {
                return Ok(None);
            }
            // An earlier shutdown is seen here, as late as possible: it may have released the request already. A later
            // shutdown sees the request in the registry.
            if self.session().is_closed() {
                return Err(self.shut_down());
            }
            // Boxed, so that a waiter's future has no room for a call.
            let patience = self.patience.saturating_sub(sent.saturating_duration_since(begun));
            let mut answer = boxed(|| self.call_acquire(patience, sent)).await;
            if let (Ok((_, next)), Some(_)) = (&mut answer, &self.unanswered) {
                // The reply that was lost may have told when to look again.
                *next = next.or(Some(GRACE));
            }
            match answer {
                Ok((Acquired::Answered(answer), next)) => {
                    self.unanswered = None;
                    if let Answer::Queued { ahead, .. } = answer {
                        self.ahead = ahead;
                    }
                    self.learn(sent, answer);
                    self.session().route.listen_for(self.request(), sent);
                    if self.request().owner().is_some() {
                        self.session().shared.owner_waits.notify_one();
                    }
                    let lock = &self.request().lock;
                    match (answer, next) {
                        (Answer::Granted { .. }, next) => follow_up(self.session(), lock, next),
                        (Answer::Queued { .. }, Some(next)) => {
                            self.registry().schedule_check_if_waiting(lock, clock::now() + next);
                        }
                        (Answer::Queued { .. }, None) => {}
                    }
                    return Ok(None);
                }
                Ok((Acquired::Refused(refusal), next)) => {
                    follow_up(self.session(), &self.request().lock, next);
                    let lock = self.lock_name();
                    // There is nothing to release.
                    self.forget();
                    return refused(refusal, lock);
                }
                Err(error) => {
                    if !is_transient(&error) || clock::since(begun) >= self.patience {
                        let lock = Arc::clone(&self.request().lock);
                        if left_nothing(&error) {
                            self.forget();
                        }
                        return Err(Error::of_server(&lock.name, error));
                    }
                    tracing::debug!(%error, "no answer, asking again");
                    self.unanswered = Some(error);
                    Box::pin(backoff.pause()).await;
                    sent = clock::now();
                }
            }
        }
    }

    /// Takes a reply. Its grant may have come before, unheard; or the server restarted since, while nobody read the reply.
    /// The reply may have lain unread for so long that a renewal is due: while there was none, the watchdog had nothing to
    /// renew, and it looks again a third of a lease after its last look. After a reply within a twelfth of the lease that look
    /// is late by no more than that.
    fn learn(&self, sent: Instant, answer: Answer) {
        let request = self.request();
        let due = {
            let mut claim = request.claim();
            claim.on_reply(sent, answer);
            claim.due().map(|due| (due, claim.lease() / 4))
        };
        if let Some((due, soon)) = due
            && due < clock::now() + soon
        {
            self.registry().schedule_check(&request.lock, due);
        }
    }

    /// Until then a call that has not been sent keeps its place in line.
    async fn call_acquire(&self, patience: Duration, now: Instant) -> Result<(Acquired, Look), RedisError> {
        let request = self.request();
        let ask = AskToAcquire {
            request: &request.name,
            lease: request.claim().lease_to_acquire(now),
            only_now: self.only_now,
            admission: request.admission,
            max_queue: self.max_queue,
            origin: self.origin,
        };
        loop {
            let call = self.session().call(&request.lock, self.lease);
            let patience = patience.max(call.limit);
            match (Call { patience, ..call }).acquire(&ask).await? {
                (Acquired::Refused(Refusal::OwnerWaits(Some(number))), _)
                    if self
                        .session()
                        .shared
                        .has_done_with(&request.lock.state, number, clock::now()) =>
                {
                    Box::pin(self.release_orphan(number)).await?
                }
                acquired => return Ok(acquired),
            }
        }
    }

    /// The server executed an acquire after its cancel, because the network had delayed it; or it went back to a state
    /// in which a hold that is lost since was waiting. The server must not refuse the owner for that.
    async fn release_orphan(&self, number: u64) -> Result<(), RedisError> {
        let (session, request) = (self.session(), self.request());
        // Nobody knows any more whether the orphan was to read or to write.
        let [read, write] =
            [Mode::Read, Mode::Write].map(|mode| RequestName::write(mode, session.shared.id, number, request.owner()));
        let call = session.call(&request.lock, self.lease);
        let (_, next) = call.release(&[read.as_str(), write.as_str()]).await?;
        follow_up(session, &request.lock, next);
        Ok(())
    }

    /// Watches the claim until it is granted and proven, or over.
    pub(crate) async fn wait(&self) -> Result<Attempted, Error> {
        let request = self.request();
        let mut backoff = Backoff::new();
        loop {
            match request.outcome(clock::now).await {
                Outcome::HandOut(grant) => return Ok(Attempted::Granted(grant)),
                // In a box, because it is rare.
                Outcome::Renew => Box::pin(self.renew(&mut backoff)).await?,
                Outcome::Ended(EndedBy::Displaced { ticket }) => return Ok(Attempted::AskAgain(ticket)),
                Outcome::Ended(EndedBy::Failed(error)) => return Err(self.failed(error)),
                Outcome::Ended(EndedBy::Lost(LostReason::Shutdown)) => return Err(self.shut_down()),
                Outcome::Ended(EndedBy::Deadlocked(circle)) => {
                    let (lock, circle) = (self.lock_name(), circle.to_vec());
                    return Err(Error::Deadlock { lock, circle });
                }
                // An operator evicted the request: the other reasons concern holds that were handed out.
                Outcome::Ended(EndedBy::Released | EndedBy::Sealed | EndedBy::Lost(_)) => {
                    let lock = self.lock_name();
                    return Err(Error::Lost {
                        lock,
                        reason: LostReason::Evicted,
                    });
                }
            }
        }
    }

    /// The same for at most that time. A grant that came in time and has yet to be proven, or kept for its least time, gets
    /// the calls that it needs. `None`: the time is over.
    pub(crate) async fn wait_for(&self, limit: Duration) -> Option<Result<Attempted, Error>> {
        let mut waiting = pin!(self.wait());
        if let Ok(outcome) = timeout(limit, waiting.as_mut()).await {
            return Some(outcome);
        }
        self.request().claim().offered()?;
        timeout(call_limit(self.lease) * 2, waiting).await.ok()
    }

    /// Renews the request once, because nothing proves its grant.
    async fn renew(&self, backoff: &mut Backoff) -> Result<(), Error> {
        let (request, sent) = (self.request(), clock::now());
        let asked = {
            let mut claim = request.claim();
            claim.lease_to_renew(sent).map(|lease| claim.asked(lease))
        };
        let Some(asked) = asked else {
            return Ok(()); // It is over.
        };
        let call = self.session().call(&request.lock, self.lease);
        match call.renew(&[(request.name.as_str(), asked)]).await {
            Ok((standings, next)) => {
                for standing in standings {
                    request.on_renewal(sent, clock::now(), asked.span, standing);
                }
                follow_up(self.session(), &request.lock, next);
            }
            Err(error) if is_transient(&error) && !self.only_now => backoff.pause().await,
            Err(error) => return Err(self.failed(error)),
        }
        Ok(())
    }

    /// Has the request released and waits for that. The attempt is over.
    pub(crate) async fn withdraw(&mut self) {
        if let Some(request) = self.request.take() {
            self.handle.withdraw(request).await;
        }
    }

    fn forget(&mut self) {
        // If an earlier call got no reply, the server may have executed it all the same.
        if self.unanswered.is_none()
            && let Some(request) = self.request.take()
        {
            request.claim().end(EndedBy::Released);
            self.registry().remove(&request);
        }
    }

    /// A former request of this owner to wait for, and until when: for what the releaser releases, for as long as this one
    /// asks without a reply; for a hold that its user's own future releases, for one call from its beginning, because nobody
    /// may poll that future any more.
    fn leaving(&self, now: Instant, patience: Instant) -> Option<(Arc<Request>, Instant)> {
        let request = self.request();
        request.owner()?;
        let until = |former: &Claim| former.in_hand().map_or(patience, |until| until.min(patience));
        let is_worth = |former: &Claim| former.is_leaving(now) && now < until(former);
        let former = self.registry().other_of_owner(request, is_worth)?;
        // A shutdown, too, is noticed after one call.
        let until = until(&former.claim()).min(now + call_limit(self.lease));
        Some((former, until))
    }

    /// Takes the request out: the caller releases it from now on.
    pub(crate) fn into_request(mut self) -> Arc<Request> {
        let request = Arc::clone(self.request());
        self.request = None;
        request
    }

    /// Has the server put this read request in the place of a write hold with that token, and tries no longer than
    /// `until`. The read hold keeps the token. `None`: the server does not know the hold, or the hold was interrupted.
    pub(crate) async fn take_over(&self, from: &Request, token: u64, until: Instant) -> Result<Option<Grant>, Error> {
        let request = self.request();
        let mut backoff = Backoff::new();
        loop {
            if self.session().is_closed() {
                return Err(self.shut_down());
            }
            let sent = clock::now();
            let call = self.session().call(&request.lock, self.lease).patient_until(until);
            let lease = request.claim().lease_to_ask(sent);
            match call.downgrade(&from.name, &request.name, lease).await {
                Ok((told, next)) => {
                    if told.is_some() {
                        request.claim().is_kept(sent, lease);
                        self.learn(sent, Answer::Granted { token });
                    }
                    follow_up(self.session(), &request.lock, next);
                    if told.is_none_or(|told| told > token) {
                        // What is there is nobody's, so it has no least time.
                        request.claim().keep_on(None);
                        from.claim().keep_on(None);
                        return Ok(None);
                    }
                    break;
                }
                Err(error) if is_transient(&error) && clock::now() < until => backoff.pause().await,
                Err(error) => return Err(self.failed(error)),
            }
        }
        let left = until.saturating_duration_since(clock::now());
        match self.wait_for(left).await {
            Some(outcome) => Ok(match outcome? {
                Attempted::Granted(grant) => Some(grant),
                Attempted::AskAgain(_) | Attempted::Busy => None,
            }),
            None => Err(self.failed(timed_out())),
        }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.handle.session
    }

    fn registry(&self) -> &Registry {
        &self.handle.session.shared.registry
    }

    pub(crate) fn request(&self) -> &Arc<Request> {
        // Taken only by the methods that end the attempt.
        self.request.as_ref().expect("an attempt that ended is not used again")
    }

    fn lock_name(&self) -> String {
        self.request().lock.name.to_string()
    }

    fn failed(&self, error: RedisError) -> Error {
        Error::of_server(&self.request().lock.name, error)
    }

    fn shut_down(&self) -> Error {
        Error::Shutdown { lock: self.lock_name() }
    }
}

/// What the caller hears of a request that the server did not take.
fn refused(refusal: Refusal, lock: String) -> Result<Option<Attempted>, Error> {
    Err(match refusal {
        Refusal::Busy => return Ok(Some(Attempted::Busy)),
        Refusal::OwnerWaits(_) => Error::OwnerWaiting { lock },
        Refusal::NotReading => Error::Lost {
            lock,
            reason: LostReason::UnknownToServer,
        },
        Refusal::Conflict => Error::UpgradeConflict { lock },
        Refusal::OtherPolicy(stored) => Error::PolicyMismatch { lock, stored },
        Refusal::QueueFull(waiting) => Error::QueueFull { lock, waiting },
    })
}
