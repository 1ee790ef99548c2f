//! Guards of a quorum: holds at a majority of servers, which the client renews at each, and which may be lost.

use super::ballot::{Ballot, Closed};
use super::rules;
use super::tally::{End, Phase};
use crate::engine::follow_up::follow_up;
use crate::engine::runtime;
use crate::engine::session::Handle;
use crate::observe::HoldEnd;
use crate::protocol::order::AskToPlace;
use crate::protocol::reply::Standing;
use crate::state::request::Request;
use crate::transport::backoff::Backoff;
use crate::types::clock;
use crate::types::error::{Error, LostReason, is_transient, timed_out};
use crate::types::limits::call_limit;
use crate::types::mode::{Access, Read, Write};
use crate::types::token::FencingToken;
use futures::future::Either;
use futures::stream::FuturesUnordered;
use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
use tokio_stream::StreamExt;

/// A read hold at a majority of servers, beside other readers.
pub type QuorumReadGuard = QuorumGuard<Read>;

/// A write hold at a majority of servers, which is exclusive.
pub type QuorumWriteGuard = QuorumGuard<Write>;

/// A hold at a majority of servers. The client renews it at each of them in the background until you release or drop the
/// guard, or until the hold is lost.
///
/// The hold lasts while a majority of servers certainly keeps it. A server that loses it is asked again, so that the hold
/// survives the loss of any minority, one after the other. As with [`Guard`](crate::Guard), only the resource can refuse a
/// late action, by the [`fencing_token`](Self::fencing_token).
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct QuorumGuard<M> {
    ballot: Arc<Ballot>,
    /// The task that asks servers again.
    work: AbortHandle,
    token: u64,
    /// A majority knows the token.
    announced: OnceLock<()>,
    mode: PhantomData<fn() -> M>,
}

impl<M> QuorumGuard<M> {
    pub(super) fn new(ballot: Arc<Ballot>, work: AbortHandle, token: u64) -> Self {
        Self {
            ballot,
            work,
            token,
            announced: OnceLock::new(),
            mode: PhantomData,
        }
    }

    /// Whether a majority certainly still keeps the hold, without I/O. Once `false`, the answer stays `false`.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held_until().is_ok()
    }

    /// How many servers keep the hold. With fewer than all of them a server is missing; with fewer than a majority the
    /// hold is lost.
    #[must_use]
    pub fn votes(&self) -> usize {
        self.ballot.tally().held(clock::now())
    }

    /// The servers whose votes count.
    #[cfg(feature = "__testing")]
    pub(crate) fn voters(&self) -> Vec<usize> {
        let tally = self.ballot.tally();
        let votes = tally.votes.iter().enumerate();
        votes
            .filter(|(_, vote)| vote.token.is_some())
            .map(|(at, _)| at)
            .collect()
    }

    /// Until when the hold is certain, or why it is not held.
    fn held_until(&self) -> Result<Instant, LostReason> {
        self.ballot.weigh();
        let mut tally = self.ballot.tally();
        let now = clock::now();
        match &tally.phase {
            Phase::Over(End::Lost(reason)) => Err(*reason),
            Phase::Over(_) => Err(LostReason::Shutdown),
            Phase::Holds { .. } | Phase::Asks => tally.held_until(now).ok_or(LostReason::LeaseExpired),
        }
    }

    /// Resolves when the hold is lost, and returns the reason.
    ///
    /// # Cancel safety
    /// You may drop the future and call again at any time.
    pub async fn lost(&self) -> LostReason {
        loop {
            // Created before the look, so that no later change is missed.
            let changed = self.ballot.changed.notified();
            match self.held_until() {
                Err(reason) => return reason,
                // The quorum's own task tells of the end too. Without that task nobody can tell the time, so the hold
                // ends early.
                Ok(_) if runtime::check_timers().is_err() => match self.ballot.is_unattended() {
                    true => self.ballot.lose(LostReason::LeaseExpired),
                    false => changed.await,
                },
                Ok(until) => tokio::select! {
                    () = changed => {}
                    () = clock::sleep_until(until) => {}
                },
            }
        }
    }

    /// Runs a job while the lock is held. If the lock is lost first, `while_held` drops the job at its next await. What the
    /// job did before stays done, so make its writes one transaction, with the fencing token.
    ///
    /// # Cancel safety
    /// If you drop the future, the job is dropped and the lock stays held.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before the job was done.
    pub async fn while_held<F: Future>(&self, job: F) -> Result<F::Output, Error> {
        tokio::select! {
            biased;
            reason = self.lost() => Err(self.lost_because(reason)),
            done = job => Ok(done),
        }
    }

    /// Returns the number to send to the resource with every write: see [`FencingToken`].
    ///
    /// The first call tells the number to the servers, so that every later token of a majority is greater, and waits for
    /// a majority: one round trip. Later calls return at once.
    ///
    /// # Cancel safety
    /// You may drop the future and call again at any time.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost before a majority knows the number; [`Error::Runtime`] outside of a runtime
    /// with timers.
    pub async fn fencing_token(&self) -> Result<FencingToken, Error> {
        runtime::check_timers()?;
        if self.announced.get().is_none() {
            tokio::select! {
                biased;
                reason = self.lost() => return Err(self.lost_because(reason)),
                () = self.announce() => {}
            }
            let _ = self.announced.set(());
        }
        match self.held_until() {
            Ok(_) => Ok(FencingToken::new(self.token)),
            Err(reason) => Err(self.lost_because(reason)),
        }
    }

    /// Tells the token to the servers, until a majority that keeps the hold has it.
    async fn announce(&self) {
        // The requests whose servers know it.
        let (mut told, mut backoff) = (BTreeSet::new(), Backoff::new());
        let majority = self.ballot.members.majority();
        loop {
            let (_, untold) = self.held_votes(&told);
            let mut calls: FuturesUnordered<_> = untold.into_iter().map(|(at, r)| self.tell(at, r)).collect();
            while let Some(known) = calls.next().await {
                told.extend(known);
                if rules::is_known(self.held_votes(&told).0, majority) {
                    return;
                }
            }
            backoff.pause().await;
        }
    }

    /// How many of the votes that hold are told, and the others. A server that has lost a vote since may have lost the token
    /// too.
    fn held_votes(&self, told: &BTreeSet<(usize, u64)>) -> (usize, Vec<(usize, Arc<Request>)>) {
        let (tally, now) = (self.ballot.tally(), clock::now());
        let votes = tally.votes.iter().enumerate();
        let held = votes.filter(|(_, vote)| vote.held_until(now).is_some());
        let requests = held.filter_map(|(at, vote)| Some((at, vote.request.clone()?)));
        let (told, untold): (Vec<_>, _) = requests.partition(|(at, request)| told.contains(&(*at, request.number)));
        (told.len(), untold)
    }

    /// Tells the token to one server. Returns the vote if the server has replied.
    async fn tell(&self, at: usize, request: Arc<Request>) -> Option<(usize, u64)> {
        let session = &self.ballot.members.servers[at].handle()?.session;
        let sent = clock::now();
        let lease = request.claim().lease_to_renew(sent)?;
        let ask = AskToPlace {
            request: &request.name,
            lease,
            ticket: None,
            given_up: None,
            least: Some(self.token),
        };
        let (standing, _) = session
            .call(&request.lock, self.ballot.wish.lease)
            .place(&ask)
            .await
            .ok()?;
        // If the server does not keep the hold, this ends the vote.
        request.on_renewal(sent, clock::now(), lease, standing);
        Some((at, request.number))
    }

    /// Releases the lock and waits until it is free at a majority. Then the next waiter has entered, or its last vote is on its
    /// way.
    ///
    /// The release asks all servers, and each that kept the hold confirms that it did so until then. If a server that kept the
    /// hold does not answer, and others stand at those that would make up for it, the release waits for that server as long
    /// as for one call.
    ///
    /// # Cancel safety
    /// If you drop the future at any point, the client releases the lock all the same, in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock had been lost before: others may have been inside at the same time.
    /// [`Error::Unavailable`] or [`Error::Server`] if no majority confirmed: servers that hear of the release after the lease
    /// confirm nothing. The client repeats what was not answered in the background until the leases must have ended.
    /// [`Error::Runtime`] outside of a runtime with timers. Then too the client releases in the background.
    pub async fn release(self) -> Result<(), Error> {
        runtime::check_timers()?;
        let until = self.held_until().map_err(|reason| self.lost_because(reason))?;
        let (majority, at_home) = (self.ballot.members.majority(), self.ballot.members.is_at_home());
        let Closed { votes, asked, lost } = self.ballot.close(End::Left);
        self.work.abort();
        if let Some(reason) = lost {
            return Err(self.lost_because(reason));
        }
        let servers = &self.ballot.members.servers;
        let (mut calls, mut counted) = (FuturesUnordered::new(), 0);
        // Nothing of this request stands at a server that has no vote and is not being asked.
        let mut absent = servers.len() - votes.len() - asked.len();
        for (at, request, token) in votes {
            match servers[at].handle() {
                Some(handle) => {
                    let leaving = Leaving::new(handle, request);
                    // A vote that is known to be gone is none that could still be found lost.
                    counted += usize::from(token.is_some() && leaving.certain.is_some());
                    calls.push(Either::Left(leaving.left(token, until)));
                }
                None => self.ballot.release(at, request),
            }
        }
        for (at, request) in asked {
            if let Some(handle) = servers[at].handle() {
                calls.push(Either::Right(withdrawn(Arc::clone(handle), request, until)));
            }
        }
        let (mut kept, mut late, mut unknown, mut why) = (0, 0, 0, None);
        let limit = call_limit(self.ballot.wish.lease);
        while kept < majority {
            let next = match kept + absent + late >= majority {
                // It is free at a majority: what is missing is the proof that a majority kept it.
                true => timeout(limit, calls.next()).await.unwrap_or_default(),
                false => calls.next().await,
            };
            match next {
                Some(Ok(Left::Held)) => kept += 1,
                Some(Ok(Left::Absent)) => absent += 1,
                Some(Ok(Left::Late)) => late += 1,
                Some(Ok(Left::Unknown)) => unknown += 1,
                Some(Err(error)) => why = Some(error),
                None => break,
            }
        }
        // The caller need not wait for the slowest. In another runtime the calls have timers that end with it, so the
        // releaser makes these calls again.
        if !calls.is_empty() && at_home && self.ballot.members.is_at_home() {
            let rest = async move { while calls.next().await.is_some() {} };
            self.ballot.members.spawn(rest);
        }
        if kept < majority && unknown > counted.saturating_sub(majority) {
            let reason = LostReason::UnknownToServer;
            self.ballot.tell(HoldEnd::Lost(reason));
            return Err(self.lost_because(reason));
        }
        // A silent server may have kept the hold: the loss of a minority fails no release. A late answer proves nothing.
        let may_have_kept = counted.saturating_sub(unknown + late) >= majority;
        if kept >= majority || may_have_kept && kept + absent + late >= majority {
            self.ballot.tell(HoldEnd::Released);
            return Ok(());
        }
        let why = why.unwrap_or_else(timed_out);
        Err(Error::of_server(&self.ballot.wish.lock.name, why))
    }

    fn lost_because(&self, reason: LostReason) -> Error {
        let lock = self.ballot.lock_name();
        Error::Lost { lock, reason }
    }
}

/// Waits until the server has released a request that it had not answered. The driver that asked releases it.
async fn withdrawn(handle: Arc<Handle>, request: Arc<Request>, until: Instant) -> Result<Left, redis::RedisError> {
    let released = timeout(
        until.saturating_duration_since(clock::now()),
        handle.shared().registry.out_of(&request),
    )
    .await;
    released.map(|()| Left::Absent).map_err(|_| timed_out())
}

/// A vote that is being released. If that is not confirmed, the client goes on in the background.
struct Leaving {
    handle: Arc<Handle>,
    request: Option<Arc<Request>>,
    /// Until when the server certainly kept the hold. For one vote that may be earlier than for a majority.
    certain: Option<Instant>,
}

impl Leaving {
    fn new(handle: &Arc<Handle>, request: Arc<Request>) -> Self {
        let now = clock::now();
        let certain = request.claim().held_until(now);
        // From here on the watchdog does not renew the hold.
        drop(request.end_hold(now));
        Self {
            handle: Arc::clone(handle),
            request: Some(request),
            certain,
        }
    }

    /// Tells how the vote stood until now. `token`: of its hold, which is certain until then, if the hold counted the vote.
    async fn left(mut self, token: Option<u64>, until: Instant) -> Result<Left, redis::RedisError> {
        let Some(request) = self.request.clone() else {
            return Ok(Left::Absent);
        };
        let (session, lease) = (Arc::clone(&self.handle.session), request.claim().lease());
        let (mut backoff, mut sent_before) = (Backoff::new(), false);
        loop {
            // As for a guard of one server: a call that left the line would come again behind whatever came meanwhile.
            let call = session.call(&request.lock, lease).patient_until(until);
            match call.release(&[request.name.as_str()]).await {
                Ok((stood, next)) => {
                    self.request = None;
                    session.shared.registry.remove(&request);
                    follow_up(&session, &request.lock, next);
                    return Ok(match (&stood[..], token) {
                        ([Standing::Holds { first, .. }], _) if token.is_none_or(|token| *first <= token) => Left::Held,
                        // After a sending without a reply: the server executed that one, and a late copy of the acquire may
                        // have come since.
                        (_, Some(_)) if sent_before => Left::Held,
                        (_, Some(_)) => match self.certain {
                            Some(certain) if certain <= clock::now() => Left::Late,
                            Some(_) => Left::Unknown,
                            None => Left::Absent,
                        },
                        (_, None) => Left::Absent,
                    });
                }
                Err(error) if is_transient(&error) && clock::now() < until => {
                    sent_before |= call.may_be_done(&error);
                    backoff.pause().await;
                    // From then on "unknown" may mean that the lease is over, or that a shutdown has released it.
                    if until <= clock::now() || session.is_closed() {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// How a vote stood until its release.
enum Left {
    /// The server kept the hold.
    Held,
    /// The hold counted the vote, and the server does not know it.
    Unknown,
    /// The server does not know the vote, whose lease may have ended during the release. That is no loss, because the user
    /// had left; but the vote may have been lost before.
    Late,
    /// The hold did not count the vote, and it was none.
    Absent,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.handle.shared().abandon(request, clock::now());
        }
    }
}

impl<M> Drop for QuorumGuard<M> {
    fn drop(&mut self) {
        if self.ballot.leave_to_parent() {
            return;
        }
        self.ballot.abandon(End::Left);
        self.ballot.tell(HoldEnd::Dropped);
        self.work.abort();
    }
}

impl<M: Access> fmt::Debug for QuorumGuard<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumGuard")
            .field("lock", &self.ballot.wish.lock.name)
            .field("mode", &M::MODE)
            .field("votes", &self.votes())
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}
