//! A ballot: one request of the user at all servers of a quorum. It owns the votes and releases them when it ends.
//!
//! Each server has a driver (`vote`), which asks, places, and asks again after a loss, for as long as the ballot is open.
//! The drivers meet at the tally behind one mutex. The caller's future runs them until the request has to wait or holds;
//! then a task runs them, so that nobody depends on how often the caller polls. A caller in another runtime than the quorum's
//! runs none of them, because the timers that a driver makes there end with that runtime.

use super::members::Members;
use super::owners::OwnersToken;
use super::tally::{End, Phase, Step, Tally};
use crate::engine::attempt::{Attempt, Attempted};
use crate::engine::follow_up::follow_up;
use crate::engine::session::Handle;
use crate::observe::{Hold, HoldEnd, vote_lost};
use crate::protocol::key::Lock;
use crate::protocol::name::RequestName;
use crate::protocol::order::{AskToPlace, Origin};
use crate::protocol::reply::Standing;
use crate::state::claim::Claim;
use crate::state::request::Request;
use crate::transport::backoff::Backoff;
use crate::types::clock;
use crate::types::error::{Error, LostReason, runtime_ended};
use crate::types::mode::{Admission, Mode, When};
use crate::types::owner::Owner;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use std::future::pending;
use std::mem::{forget, take};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio_stream::StreamExt;

pub(super) type Drivers = FuturesUnordered<BoxFuture<'static, ()>>;

/// What a request of a quorum asks for.
#[derive(Clone)]
pub(super) struct Wish {
    pub(super) lock: Arc<Lock>,
    pub(super) mode: Mode,
    pub(super) admission: Admission,
    pub(super) owner: Option<Owner>,
    pub(super) lease: Duration,
    pub(super) max_hold: Duration,
    pub(super) when: When,
}

/// What a ballot leaves at the servers.
pub(super) struct Closed {
    /// Its votes, each with the token of its hold.
    pub(super) votes: Vec<(usize, Arc<Request>, Option<u64>)>,
    /// What it has asked for without an answer until now. The drivers release that, and the owner's next request waits
    /// for it from now on: otherwise that server would refuse it, because its owner waits there already.
    pub(super) asked: Vec<(usize, Arc<Request>)>,
    /// Why the hold was lost before.
    pub(super) lost: Option<LostReason>,
}

pub(super) struct Ballot {
    pub(super) members: Arc<Members>,
    pub(super) wish: Wish,
    /// The number of the request in its first names, so that the servers know one owner.
    number: u64,
    tally: Mutex<Tally>,
    /// Of a named owner: the others have one request.
    owners_token: Option<Arc<OwnersToken>>,
    /// The phase or the ticket has changed.
    pub(super) changed: Notify,
    hold: Mutex<Option<Box<Hold>>>,
    /// Nobody runs the drivers any more: they have ended, or the runtime has.
    unattended: AtomicBool,
}

impl Ballot {
    pub(super) fn new(members: Arc<Members>, wish: Wish) -> Arc<Self> {
        let tally = Tally::new(members.servers.len(), wish.lease, wish.max_hold);
        let owners_token = |owner| members.owners.token_of(&wish.lock.state, owner);
        Arc::new(Self {
            owners_token: wish.owner.map(owners_token),
            number: members.identity.next_number(),
            members,
            wish,
            tally: Mutex::new(tally),
            changed: Notify::new(),
            hold: Mutex::default(),
            unattended: AtomicBool::new(false),
        })
    }

    /// One driver for each server.
    pub(super) fn drivers(self: &Arc<Self>) -> Drivers {
        let drive = |at| -> BoxFuture<'static, ()> { Box::pin(drive(Arc::clone(self), at)) };
        (0..self.members.servers.len()).map(drive).collect()
    }

    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        // No code that can panic runs while it is locked.
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts, and wakes the others if that changes anything.
    pub(super) fn weigh(&self) {
        let mut tally = self.tally();
        let now = clock::now();
        let trusted = |at: usize| self.members.servers[at].trusted_from(now);
        let mut changed = tally.weigh(clock::now, trusted);
        if let (true, Phase::Holds { token, .. }, Some(owner)) = (changed, &mut tally.phase, &self.owners_token) {
            *token = owner.raised(*token);
        }
        if let Some(number) = tally.ticket_to_take() {
            let ticket = self.members.take_ticket(&self.wish.lock.state, number);
            tally.take_ticket(ticket, now);
            changed = true;
        }
        let (is_over, lost) = (matches!(tally.phase, Phase::Over(_)), tally.phase.lost());
        drop(tally);
        if !changed {
            return;
        }
        match lost {
            Some(reason) => self.lose(reason),
            // What is left of the votes goes now, and not when the caller looks at the end.
            None if is_over => self.abandon(End::Left),
            None => self.changed.notify_waiters(),
        }
    }

    /// The hold is lost. Others need not wait for the leases of what is left.
    pub(super) fn lose(&self, reason: LostReason) {
        // In this order: whoever sets the record now finds the end.
        self.abandon(End::Lost(reason));
        self.tell_loss();
    }

    /// In a child of fork() the ballot is the parent's: nothing of the copy is touched, nor ever dropped, as both would take
    /// mutexes. Whether that is so here.
    pub(super) fn leave_to_parent(self: &Arc<Self>) -> bool {
        let is_copy = self.members.identity.is_a_childs_copy();
        if is_copy {
            forget(Arc::clone(self));
        }
        is_copy
    }

    /// A hold that its user has left is not lost.
    fn tell_loss(&self) {
        let lost = self.tally().phase.lost();
        if let Some(reason) = lost {
            self.tell(HoldEnd::Lost(reason));
        }
    }

    pub(super) fn is_unattended(&self) -> bool {
        self.unattended.load(Ordering::SeqCst)
    }

    /// The record that notes the hold's end.
    pub(super) fn observe(&self, hold: Box<Hold>) {
        *self.hold.lock().unwrap_or_else(PoisonError::into_inner) = Some(hold);
        // A loss between the grant and this found no record.
        self.tell_loss();
    }

    /// Tells the record how the hold ended.
    pub(super) fn tell(&self, end: HoldEnd) {
        if let Some(hold) = self.hold.lock().unwrap_or_else(PoisonError::into_inner).take() {
            hold.end(end);
        }
    }

    /// Ends the ballot. `end` does not change an earlier end.
    pub(super) fn close(&self, end: End) -> Closed {
        let mut tally = self.tally();
        let lost = tally.phase.lost();
        if !matches!(tally.phase, Phase::Over(_)) {
            tally.phase = Phase::Over(end);
        }
        if let Some(ticket) = tally.ticket.take() {
            self.members.return_ticket(&self.wish.lock.state, ticket);
        }
        let votes = (0..tally.votes.len()).filter_map(|at| {
            let token = tally.votes[at].token;
            Some((at, tally.take(at)?, token))
        });
        let votes = votes.collect();
        let asked = tally.asked();
        drop(tally);
        for (_, request) in &asked {
            let now = clock::now();
            request.change(|claim| claim.leave(now));
        }
        self.changed.notify_waiters();
        Closed { votes, asked, lost }
    }

    /// Ends the ballot, and releases its votes in the background.
    pub(super) fn abandon(&self, end: End) {
        for (at, request, _) in self.close(end).votes {
            self.release(at, request);
        }
    }

    pub(super) fn release(&self, at: usize, request: Arc<Request>) {
        if let Some(handle) = self.members.servers[at].handle() {
            handle.shared().abandon(request, clock::now());
        }
    }

    pub(super) fn fail(&self, error: Error) {
        self.abandon(End::Failed(Some(error)));
    }

    pub(super) fn lock_name(&self) -> String {
        self.wish.lock.name.to_string()
    }

    /// Registers a request at one server under a new name.
    fn attempt(&self, at: usize, handle: &Arc<Handle>, when: When, ticket: Option<u64>) -> Attempt {
        let (shared, now, wish) = (handle.shared(), clock::now(), &self.wish);
        let number = match self.tally().is_first(at) {
            true => self.number,
            false => shared.next_number(),
        };
        let owner = wish.owner.map(|owner| owner.name());
        let name = RequestName::write(wish.mode, shared.id, number, owner.as_deref());
        let mut claim = Claim::new(wish.lease, self.tally().limit_left(now), now);
        claim.is_vote = true;
        let request = Arc::new(Request::new(
            number,
            name,
            Arc::clone(&wish.lock),
            wish.admission,
            claim,
        ));
        shared.registry.insert(Arc::clone(&request), now);
        self.tally().on_ask(at, &request);
        let origin = ticket.map_or(Origin::Vote, Origin::Requeued);
        Attempt::new(Arc::clone(handle), request, when, origin, wish.lease)
    }

    /// Asks a server until it has answered. `false`: the ballot is over.
    async fn ask(&self, at: usize, handle: &Arc<Handle>) -> bool {
        let mut backoff = Backoff::new();
        loop {
            self.come_back(at, handle).await;
            let (when, ticket) = {
                let tally = self.tally();
                let when = match tally.phase {
                    Phase::Over(_) => return false,
                    Phase::Asks => self.wish.when,
                    // Also the hold of a try needs the votes that it lacks, and has time for them.
                    Phase::Holds { .. } => When::InTurn,
                };
                (when, tally.old_ticket(at))
            };
            let asked = clock::now();
            let mut attempt = self.attempt(at, handle, when, ticket);
            let error = match attempt.ask(asked).await {
                Ok(None) => {
                    let request = attempt.into_request();
                    let mut tally = self.tally();
                    if let Phase::Over(_) = tally.phase {
                        drop(tally);
                        self.release(at, request);
                        return false;
                    }
                    let is_answered = tally.on_answer(at, request, ticket, asked, clock::now());
                    drop(tally);
                    if is_answered {
                        // From now on the caller waits for its own time limit, and not for answers.
                        self.changed.notify_waiters();
                    }
                    return true;
                }
                Ok(Some(Attempted::Granted(_) | Attempted::AskAgain(_))) => continue,
                Ok(Some(Attempted::Busy)) => {
                    drop(attempt);
                    self.tally().on_busy(at);
                    self.weigh();
                    self.decided().await;
                    continue;
                }
                Err(error) => error,
            };
            drop(attempt);
            if let Error::Shutdown { .. } = error {
                self.fail(error);
                return false;
            }
            if handle.shared().registry.has_ended() {
                self.fail(Error::of_server(&self.wish.lock.name, runtime_ended()));
                return false;
            }
            let is_try = matches!(when, When::Now);
            match error {
                Error::Unavailable { .. } if !is_try => self.tally().on_silence(at),
                // Memory or disks come back.
                Error::Server { .. } if !is_try => self.tally().on_refusal(at, error, asked, false),
                error => self.tally().on_refusal(at, error, asked, true),
            }
            self.weigh();
            if is_try {
                self.decided().await;
                continue;
            }
            backoff.pause().await;
        }
    }

    /// Waits until the request holds or is over.
    async fn decided(&self) {
        loop {
            // Created before the look, so that no later change is missed.
            let changed = self.changed.notified();
            if !matches!(self.tally().phase, Phase::Asks) {
                return;
            }
            changed.await;
        }
    }

    /// In a recess: waits until a majority answers again.
    async fn come_back(&self, at: usize, handle: &Handle) {
        let (mut backoff, mut answered) = (Backoff::new(), false);
        loop {
            // Created before the look, so that no later change is missed.
            let changed = self.changed.notified();
            if !self.tally().is_in_recess() {
                return;
            }
            if answered {
                changed.await;
                continue;
            }
            let (session, lock) = (&handle.session, &self.wish.lock);
            if session.call(lock, self.wish.lease).renew(&[]).await.is_err() {
                backoff.pause().await;
                continue;
            }
            answered = true;
            if !self.tally().on_knock(at, clock::now()) {
                self.changed.notify_waiters();
            }
        }
    }

    /// Tells a server the ticket, and the token of the grant that the vote gives up for it.
    async fn place(&self, at: usize, handle: &Handle, request: &Request, ticket: u64, given_up: Option<u64>) -> Placed {
        let (session, lease, sent) = (&handle.session, self.wish.lease, clock::now());
        let call = session.call(&request.lock, lease);
        let ask = AskToPlace {
            request: &request.name,
            lease,
            ticket: Some(ticket),
            given_up,
            least: None,
        };
        match call.place(&ask).await {
            Ok((standing, next)) => {
                let now = clock::now();
                request.on_renewal(sent, now, lease, standing);
                self.tally().on_place(at, ticket, given_up, standing, now);
                if let (Standing::Waits { .. }, Some(next)) = (standing, next) {
                    let registry = &handle.shared().registry;
                    registry.schedule_check_if_waiting(&request.lock, now + next);
                } else {
                    follow_up(session, &request.lock, next);
                }
                Placed::Answered
            }
            Err(error) => {
                tracing::debug!(server = self.members.servers[at].address, %error, "a place was not answered");
                // A copy may be on its way, and would end a later grant.
                if given_up.is_some() && call.may_be_done(&error) {
                    return Placed::Void;
                }
                self.tally().on_unplaced(at);
                Placed::NotYet
            }
        }
    }
}

/// What became of a place.
enum Placed {
    Answered,
    /// Send it again.
    NotYet,
    /// Nobody knows, so the vote asks again under a new name.
    Void,
}

/// Drives the vote of one server until the ballot is over, or the quorum is shut down. The servers' clients do not tell a
/// driver of a shutdown while it has no request there: in a recess, after an eviction, or before the first connection.
async fn drive(ballot: Arc<Ballot>, at: usize) {
    tokio::select! {
        biased;
        () = ballot.members.closing() => ballot.lose(LostReason::Shutdown),
        () = vote(&ballot, at) => {}
    }
}

/// Drives the vote of one server: asks, places, and asks again after a loss, until the ballot is over.
async fn vote(ballot: &Ballot, at: usize) {
    let handle = ballot.members.servers[at].connected().await;
    let mut backoff = Backoff::new();
    'ask: while ballot.ask(at, handle).await {
        loop {
            // Created before the look, so that no later change is missed.
            let changed = ballot.changed.notified();
            let request = ballot.tally().votes[at].request.clone();
            let Some(request) = request else { return };
            let told = request.changed.notified();
            ballot.weigh();
            let now = clock::now();
            let trusted = ballot.members.servers[at].trusted_from(now);
            let step = ballot.tally().step(at, now, trusted);
            match step {
                Step::Leave => return,
                Step::AskAgain => {}
                Step::Place(request, ticket, given_up) => {
                    match ballot.place(at, handle, &request, ticket, given_up).await {
                        Placed::Answered => backoff = Backoff::new(),
                        Placed::NotYet => backoff.pause().await,
                        Placed::Void => ballot.tally().is_void(at),
                    }
                    continue;
                }
                Step::Wait(until) => {
                    if request.claim().doubt_unproven(now) {
                        handle.shared().registry.schedule_check(&request.lock, now);
                    }
                    let sleep = async {
                        match until {
                            Some(until) => clock::sleep_until(until).await,
                            None => pending().await,
                        }
                    };
                    tokio::select! {
                        () = changed => {}
                        () = told => {}
                        () = sleep => {}
                    }
                    continue;
                }
            }
            if handle.session.is_closed() {
                ballot.lose(LostReason::Shutdown);
                return;
            }
            let (was_held, former) = {
                let mut tally = ballot.tally();
                (tally.keeps(at), tally.take(at))
            };
            if was_held {
                vote_lost(&ballot.wish.lock, ballot.wish.mode, &ballot.members.servers[at].address);
            }
            if let Some(former) = former {
                ballot.release(at, former);
            }
            continue 'ask;
        }
    }
}

/// Runs the drivers in a task, until the ballot is over.
pub(super) struct Work {
    ballot: Arc<Ballot>,
    drivers: Drivers,
}

impl Work {
    pub(super) fn new(ballot: &Arc<Ballot>, drivers: Drivers) -> Self {
        let ballot = Arc::clone(ballot);
        Self { ballot, drivers }
    }

    pub(super) async fn run(mut self) {
        while self.drivers.next().await.is_some() {}
    }
}

impl Drop for Work {
    /// The drivers are over, or the runtime has ended: then nobody would ever answer a waiter, or tell of a loss.
    fn drop(&mut self) {
        if self.ballot.leave_to_parent() {
            return forget(take(&mut self.drivers));
        }
        self.ballot.unattended.store(true, Ordering::SeqCst);
        self.ballot.changed.notify_waiters();
        let waits = matches!(self.ballot.tally().phase, Phase::Asks);
        if waits {
            self.ballot
                .fail(Error::of_server(&self.ballot.wish.lock.name, runtime_ended()));
        }
    }
}
