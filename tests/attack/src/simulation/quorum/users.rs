//! What the users of a quorum do.

use super::hands::Hands;
use super::plan::{Habits, Mood};
use super::servers::Servers;
use crate::simulation::dice::Dice;
use crate::simulation::process::Process;
use fairlock::testing::voters;
use fairlock::{Access, Error, LostReason, Mode, Owner, Quorum, QuorumAcquire, QuorumGuard, QuorumLock};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// One user of one process.
pub struct User {
    pub id: u64,
    pub servers: Arc<Servers>,
    pub hands: Arc<Hands>,
    pub process: Arc<Process>,
    pub quorum: Quorum,
    pub owner: Option<Owner>,
    pub habits: Habits,
    pub dice: Dice,
    pub mood: Mood,
    pub is_ordered: bool,
}

pub fn lock(quorum: &Quorum, number: u64, habits: &Habits) -> QuorumLock {
    quorum.rw_lock(format!("lock {number}")).policy(habits.policy)
}

/// Who waits leaves with its future.
struct Waits<'a> {
    hands: &'a Hands,
    lock: u64,
    user: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.hands.leaves(self.lock, self.user);
    }
}

impl User {
    /// Works until it is told to rest, again and again.
    pub async fn run(mut self) {
        loop {
            self.servers.until_busy().await;
            self.hands.begin(self.process.id);
            self.work().await;
            self.hands.end(self.process.id);
            let pause = self.span(self.habits.pause);
            sleep(pause).await;
        }
    }

    fn span(&mut self, most: Duration) -> Duration {
        // Most are short; some are much longer than others expect.
        match self.dice.below(100) {
            0 => self.dice.span(most * 20),
            1..=30 => Duration::ZERO,
            _ => self.dice.span(most),
        }
    }

    async fn work(&mut self) {
        let number = self.dice.below(self.habits.locks);
        let mut lock = lock(&self.quorum, number, &self.habits);
        if let Some(owner) = &self.owner {
            lock = lock.with_owner(owner);
        }
        if self.dice.permille(self.habits.writes) {
            self.through(number, lock.write()).await;
        } else {
            self.through(number, lock.read()).await;
        }
    }

    async fn through<M: Access>(&mut self, number: u64, asked: QuorumAcquire<M>) {
        if let Some((guard, floor)) = self.acquire(number, asked).await {
            if self.dice.permille(500) {
                self.token(number, &guard, floor).await;
            }
            self.hold(&guard).await;
            self.end(number, guard).await;
        }
    }

    async fn acquire<M: Access>(&mut self, number: u64, asked: QuorumAcquire<M>) -> Option<(Arc<QuorumGuard<M>>, u64)> {
        let mut asked = asked.lease(*self.dice.pick(&self.habits.leases));
        // Who loses a hold by its limit and asks again may reenter what the servers still keep, past all who wait.
        if self.dice.permille(50) && !(self.is_ordered && self.owner.is_some()) {
            asked = asked.max_hold(self.dice.span(self.habits.hold * 4) + Duration::from_millis(1));
        }
        let patience = self.dice.span(self.habits.hold * 8);
        let begun = Instant::now();
        let is_cancelled = self.dice.permille(self.habits.cancels);
        let result = match self.dice.below(10) {
            _ if is_cancelled => match timeout(patience, self.in_turn(number, asked)).await {
                Ok(result) => result.map(Some),
                Err(_) => return None,
            },
            0 => asked.try_acquire().await,
            1 => asked.try_acquire_for(patience).await,
            _ => self.in_turn(number, asked).await.map(Some),
        };
        match result {
            Ok(guard) => self.in_hand(number, guard?, begun),
            Err(error) => {
                self.failed(&error);
                None
            }
        }
    }

    /// Waits where all can see it.
    async fn in_turn<M: Access>(&self, number: u64, asked: QuorumAcquire<M>) -> Result<QuorumGuard<M>, Error> {
        self.hands.asks(number, self.id, M::MODE, &self.process);
        let waits = Waits {
            hands: &self.hands,
            lock: number,
            user: self.id,
        };
        let result = asked.acquire_fair().await;
        drop(waits);
        result
    }

    fn in_hand<M: Access>(
        &self,
        number: u64,
        guard: QuorumGuard<M>,
        asked: Instant,
    ) -> Option<(Arc<QuorumGuard<M>>, u64)> {
        let guard = Arc::new(guard);
        if let Some(wrong) = self.hands.overtaken(number, M::MODE, asked).filter(|_| self.is_ordered) {
            self.servers.violated(wrong);
        }
        match self.hands.take(number, self.id, &self.process, &guard, self.named()) {
            Ok(floor) => {
                let id = self.id;
                self.servers.note(|| {
                    format!(
                        "-- lock {number}: user {id} has a guard to {:?}, {} votes",
                        M::MODE,
                        guard.votes()
                    )
                });
                self.hands.count("held");
                Some((guard, floor))
            }
            Err(wrong) => {
                self.servers.violated(wrong);
                None
            }
        }
    }

    async fn token<M: Access>(&mut self, number: u64, guard: &QuorumGuard<M>, floor: u64) {
        match guard.fencing_token().await {
            Ok(token) if guard.is_held() => {
                let token = token.get();
                let id = self.id;
                self.servers
                    .note(|| format!("-- lock {number}: user {id} has token {token}"));
                // A known hole: an owner that reads may write in the same phase, under a token of another server, and who reads
                // on at this one shares the phase's token.
                let shares = self.owner.is_some() && M::MODE == Mode::Read;
                if token <= floor && !shares {
                    let text = format!("lock {number}: user {} got token {token} after {floor}", self.id);
                    self.servers.violated(text);
                }
                self.hands.token(number, self.named(), M::MODE, token);
            }
            Ok(_) => {}
            Err(error) => self.failed(&error),
        }
    }

    /// This user, if it names an owner.
    fn named(&self) -> Option<u64> {
        self.owner.map(|_| self.id)
    }

    fn failed(&self, error: &Error) {
        let what = match error {
            Error::Lost {
                reason: LostReason::MaxHold,
                ..
            } => "lost: max_hold",
            _ if self.mood == Mood::Calm => {
                return self
                    .servers
                    .violated(format!("failed though nothing went wrong: {error}"));
            }
            Error::Lost { reason, .. } => match reason {
                LostReason::LeaseExpired => "lost: lease expired",
                LostReason::UnknownToServer => "lost: unknown to the servers",
                _ => return self.servers.violated(format!("a loss that nobody expects: {reason:?}")),
            },
            Error::OwnerWaiting { .. } if self.owner.is_some() => "refused: the owner waits already",
            // A hold that it has lost may still be there.
            Error::UpgradeConflict { .. } if self.owner.is_some() => "refused: another upgrade waits",
            Error::Unavailable { .. } => "failed: unavailable",
            Error::Server { .. } if self.mood == Mood::Wild => "failed: the servers refused",
            other => {
                return self
                    .servers
                    .violated(format!("an error that nobody expects: {other:?}"));
            }
        };
        self.hands.count(what);
    }

    async fn hold<M: Access>(&mut self, guard: &QuorumGuard<M>) {
        let span = self.span(self.habits.hold);
        if self.dice.permille(200) {
            match guard.while_held(sleep(span)).await {
                Ok(()) => {}
                Err(error) => self.failed(&error),
            }
        } else {
            sleep(span).await;
        }
    }

    async fn end<M: Access>(&mut self, number: u64, guard: Arc<QuorumGuard<M>>) {
        let Ok(guard) = Arc::try_unwrap(guard) else {
            return self.servers.violated("a guard is in two hands".to_owned());
        };
        match self.dice.below(10) {
            0 | 1 => drop(guard),
            // Given up in the middle.
            2 => {
                let patience = self.dice.span(Duration::from_millis(5));
                if let Ok(Err(error)) = timeout(patience, guard.release()).await {
                    self.failed(&error);
                }
            }
            _ => self.release(number, guard).await,
        }
    }

    /// A majority of servers that keep the hold and stay well cannot be told as a loss. A server whose grant the guard has
    /// not counted may keep the hold since a moment ago: then the guard cannot know that a majority always did.
    async fn release<M: Access>(&mut self, number: u64, guard: QuorumGuard<M>) {
        let (held, counted) = (guard.is_held(), voters(&guard));
        let keep = self.owner.as_ref().filter(|_| held).map(|owner| {
            let mut keep = self.servers.keeping(number, owner);
            keep.retain(|(at, _)| counted.contains(at));
            keep
        });
        let Err(error) = guard.release().await else {
            return self.hands.count("released");
        };
        self.failed(&error);
        let is_lost = matches!(&error, Error::Lost { reason, .. } if *reason != LostReason::MaxHold);
        if let Some(keep) = keep.filter(|_| is_lost && self.mood != Mood::Wild)
            && self.servers.still_well(&keep) >= self.servers.majority()
        {
            let text = format!(
                "lock {number}: user {} was told {error}, but the servers {keep:?} kept the hold",
                self.id
            );
            self.servers.violated(text);
        }
    }
}
