//! A vote: what a client knows of its request at one server.

use super::rules;
use crate::state::claim::EndedBy;
use crate::state::request::Request;
use crate::types::error::{Error, LostReason};
use std::sync::Arc;
use tokio::time::Instant;

/// What this client knows of its request at one server.
#[derive(Default)]
pub(in crate::quorum) struct Vote {
    /// The name under which the request stands there.
    pub(in crate::quorum) request: Option<Arc<Request>>,
    /// The request that the server was asked for and has not answered yet.
    pub(super) asks: Option<Arc<Request>>,
    /// The first name was used.
    pub(super) asked: bool,
    /// The call that asked was sent later than that.
    pub(super) asked_at: Option<Instant>,
    /// The first number that the server told: a ticket, or the token of a grant.
    pub(super) number: Option<u64>,
    /// The server told the request to wait.
    pub(super) waited: bool,
    /// A place that may end the grant is under way, so the grant does not count.
    pub(super) placing: bool,
    /// Nobody knows what became of that place.
    pub(super) is_void: bool,
    /// No grant up to this number counts any more, because the vote gave it up.
    pub(super) renounced: u64,
    /// Since when the vote stands at the ticket.
    pub(super) settled: Option<Instant>,
    /// The token with which the vote was handed out.
    pub(in crate::quorum) token: Option<u64>,
    /// A try found the lock busy there.
    pub(super) busy: bool,
    pub(super) refused: Option<Refusal>,
}

/// What a server said instead of an answer.
pub(super) struct Refusal {
    pub(super) error: Error,
    /// The refused call was sent later than that.
    pub(super) asked: Instant,
    /// A later call will not be answered otherwise, as far as the error says.
    pub(super) lasts: bool,
}

impl Vote {
    pub(super) fn granted(&self, now: Instant) -> Option<u64> {
        let token = self.request.as_ref()?.claim().granted(now)?;
        rules::is_kept(token, self.renounced, self.placing).then_some(token)
    }

    /// Whether the server may have granted the vote in its quarantine. Then it may have done so from old data: its counter
    /// may be behind the token of a hold that it has forgotten.
    pub(super) fn is_older_than(&self, quarantine: Instant) -> bool {
        self.asked_at.is_none_or(|asked| asked < quarantine)
    }

    pub(in crate::quorum) fn held_until(&self, now: Instant) -> Option<Instant> {
        self.token?;
        self.request.as_ref()?.change(|claim| claim.held_until(now))
    }

    /// Whether the server has told where the request stands, or that the lock is busy.
    pub(super) fn is_answered(&self) -> bool {
        self.number.is_some() || self.busy
    }

    /// The same, or a refusal. What is away has said nothing.
    pub(super) fn is_heard(&self) -> bool {
        let is_silence = |refusal: &Refusal| matches!(refusal.error, Error::Unavailable { .. });
        let refusal = self.refused.as_ref();
        self.is_answered() || refusal.is_some_and(|refusal| !is_silence(refusal))
    }

    /// The server takes another request of this owner, or another one that upgrades.
    pub(super) fn is_in_conflict(&self) -> bool {
        let error = self.refused.as_ref().map(|refusal| &refusal.error);
        matches!(error, Some(Error::UpgradeConflict { .. } | Error::OwnerWaiting { .. }))
    }

    /// The error with that, if the refused call was sent after that time. An earlier conflict may be over by now.
    pub(super) fn take_conflict(&mut self, time: Instant) -> Option<Error> {
        let is_conflict = self.is_in_conflict();
        let refusal = self.refused.take_if(|refusal| is_conflict && refusal.asked >= time)?;
        Some(refusal.error)
    }

    /// An operator evicted the request at this server, so it does not come back there.
    pub(super) fn is_evicted(&self) -> bool {
        let request = self.request.as_ref();
        request.is_some_and(|request| matches!(request.claim().ended(), Some(EndedBy::Lost(LostReason::Evicted))))
    }
}
