//! What the users of a simulated process do.

use super::dice::Dice;
use super::hands::{Hands, Hold};
use super::process::Process;
use super::world::World;
use fairlock::{Access, Client, Error, Guard, LostReason, Owner, Policy, RwLock, testing};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How one run's users behave.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    pub locks: u64,
    /// Each lock is bounded, mostly by so many permits; 0: none is.
    pub permits: u32,
    pub policy: Policy,
    pub leases: [Duration; 3],
    /// The longest hold of most users.
    pub hold: Duration,
    /// The longest pause of most users.
    pub pause: Duration,
    /// So many of 1,000 ask to write.
    pub writes: u64,
    /// So many of 1,000 name an owner, which they share with others of their process.
    pub named: u64,
    /// So many of 1,000 drop what they asked for before they have it.
    pub cancels: u64,
    /// So many of 1,000 have a least time, of at most so long.
    pub least: u64,
    pub at_least: Duration,
    pub lock_delay: Duration,
    /// So many of 1,000 take several locks in one guard.
    pub together: u64,
    /// So many of 1,000 take several locks one inside the other, in any order.
    pub tangles: u64,
    /// How long an owner waits before its client looks for a deadlock.
    pub deadlock_timeout: Duration,
}

impl Habits {
    /// No user names a greater limit.
    pub fn most_permits(&self) -> u32 {
        self.permits * 2
    }

    /// A lock as its users name it: its limit, or its policy.
    pub fn lock(&self, client: &Client, number: u64, limit: u32) -> RwLock {
        let lock = client.rw_lock(name_of_lock(number));
        match limit {
            0 => lock.policy(self.policy),
            limit => lock.max_readers(limit),
        }
    }
}

pub fn name_of_lock(number: u64) -> String {
    format!("lock {number}")
}

/// One user of one process.
pub struct User {
    pub world: Arc<World>,
    pub hands: Arc<Hands>,
    pub process: Arc<Process>,
    pub client: Client,
    pub owners: Arc<Vec<Owner>>,
    /// The owner of this user alone.
    pub own: Owner,
    pub habits: Habits,
    pub dice: Dice,
    /// Nothing can go wrong: then nothing may be lost.
    pub calm: bool,
    /// Whatever goes wrong costs nobody who lives a hold.
    pub keeps_holds: bool,
    /// The present request bounds its queue.
    pub bounded: bool,
    /// The present request names its owner.
    pub named: bool,
}

impl User {
    /// Works until it is told to rest, again and again.
    pub async fn run(mut self) {
        loop {
            self.world.until_busy().await;
            self.hands.begin(self.process.id);
            self.work().await;
            self.hands.end(self.process.id);
            let pause = self.span(self.habits.pause);
            sleep(pause).await;
        }
    }

    pub(super) fn span(&mut self, most: Duration) -> Duration {
        // Most are short; some are much longer than others expect.
        match self.dice.below(100) {
            0 => self.dice.span(most * 20),
            1..=30 => Duration::ZERO,
            _ => self.dice.span(most),
        }
    }

    /// Who asks last sets it; mostly it stays.
    pub(super) fn limit(&mut self) -> u32 {
        match self.habits.permits {
            0 => 0,
            permits if self.dice.permille(900) => permits,
            _ => 1 + self.dice.below(u64::from(self.habits.most_permits())) as u32,
        }
    }

    async fn work(&mut self) {
        self.named = false;
        if self.habits.together > 0 && self.dice.permille(self.habits.together) {
            return self.take_together().await;
        }
        if self.habits.tangles > 0 && self.dice.permille(self.habits.tangles) {
            return self.tangle().await;
        }
        let number = self.dice.below(self.habits.locks);
        let limit = self.limit();
        if limit > 0 && self.dice.permille(500) {
            let permits = 1 + self.dice.below(u64::from(limit)) as u32;
            let semaphore = self.client.semaphore(name_of_lock(number), limit);
            if let Some(guard) = self.acquire(number, permits, semaphore.permits(permits)).await {
                self.hold(&guard).await;
                self.end(guard).await;
            }
            return;
        }
        let lock = self.habits.lock(&self.client, number, limit);
        self.named = self.dice.permille(self.habits.named);
        let lock = if self.named {
            lock.with_owner(self.dice.pick(&self.owners))
        } else {
            lock
        };
        if self.dice.permille(self.habits.writes) {
            if let Some(guard) = self.acquire(number, 0, lock.write()).await {
                self.write(number, &lock, guard).await;
            }
        } else if let Some(guard) = self.acquire(number, 1, lock.read()).await {
            self.read(number, guard).await;
        }
    }

    pub(super) async fn acquire<M: Access>(
        &mut self,
        number: u64,
        permits: u32,
        asked: fairlock::Acquire<M>,
    ) -> Option<Arc<Guard<M>>> {
        let mut asked = asked.lease(*self.dice.pick(&self.habits.leases));
        let limit = self
            .dice
            .permille(50)
            .then(|| self.dice.span(self.habits.hold * 4) + Duration::from_millis(1));
        if let Some(limit) = limit {
            asked = asked.max_hold(limit);
        }
        self.bounded = self.dice.permille(50);
        if self.bounded {
            asked = asked.max_queue(self.dice.index(6));
        }
        let mut at_least = Duration::ZERO;
        if self.habits.least > 0 && self.dice.permille(self.habits.least) {
            at_least = self.dice.span(self.habits.at_least).min(limit.unwrap_or(Duration::MAX));
            asked = asked.hold_at_least(at_least);
        }
        let begun = Instant::now();
        let patience = self.dice.span(self.habits.hold * 8);
        let result = match self.dice.below(10) {
            _ if self.dice.permille(self.habits.cancels) => match timeout(patience, asked.acquire_fair()).await {
                Ok(result) => result.map(Some),
                Err(_) => return None,
            },
            0 => asked.try_acquire().await,
            1 => asked.try_acquire_for(patience).await,
            2 => match asked.enqueue().await {
                Ok(queued) => queued.await.map(Some),
                Err(error) => Err(error),
            },
            _ => asked.acquire_fair().await.map(Some),
        };
        match result {
            Ok(guard) => self.in_hand(number, permits, at_least, guard?),
            Err(error) => {
                self.failed_since(&error, begun);
                None
            }
        }
    }

    fn in_hand<M: Access>(
        &self,
        lock: u64,
        permits: u32,
        at_least: Duration,
        guard: Guard<M>,
    ) -> Option<Arc<Guard<M>>> {
        // Nothing can have happened since it was handed out.
        if !guard.is_held() {
            self.world
                .violated(format!("lock {lock}: a guard was handed out that is not held"));
        }
        let hold = Hold {
            lock,
            owner: guard.owner(),
            named: true,
            prompt: true,
            mode: M::MODE,
            permits,
            token: guard.fencing_token().get(),
            at_least,
            lock_delay: self.habits.lock_delay,
        };
        let guard = Arc::new(guard);
        self.hands.take(&self.world, &self.process, &guard, hold, &self.habits);
        self.hands.count("held");
        Some(guard)
    }

    pub(super) fn failed(&self, error: &Error) {
        self.failed_since(error, Instant::now());
    }

    /// `begun`: when the user asked.
    pub(super) fn failed_since(&self, error: &Error, begun: Instant) {
        let what = match error {
            Error::Deadlock { circle, .. } => {
                let names = circle
                    .iter()
                    .map(|blocked| (testing::owner_name(blocked.owner), blocked.waits_for.clone()));
                let names: Vec<_> = names.collect();
                let mut core = self.world.core();
                let circles = core.server.circles.as_mut();
                let judged = circles.map(|circles| circles.told(&names, begun, self.calm));
                match judged.unwrap_or_else(|| Err(format!("a deadlock without a search: {error}"))) {
                    Ok(()) => "refused: a deadlock",
                    Err(wrong) => {
                        drop(core);
                        return self.world.violated(wrong);
                    }
                }
            }
            Error::OwnerWaiting { .. } if self.named => "refused: the owner waits already",
            Error::UpgradeConflict { .. } if self.named => "refused: another upgrade waits",
            Error::QueueFull { .. } if self.bounded => "refused: the queue is full",
            Error::Lost { reason, .. } => match reason {
                LostReason::MaxHold => "lost: max_hold",
                _ if self.keeps_holds => return self.world.violated(format!("lost for nothing: {error}")),
                LostReason::LeaseExpired => "lost: lease expired",
                LostReason::UnknownToServer => "lost: unknown to the server",
                LostReason::Evicted => "lost: evicted",
                LostReason::Shutdown => "lost: shutdown",
                _ => "lost: otherwise",
            },
            _ if self.calm => {
                return self
                    .world
                    .violated(format!("failed though nothing went wrong: {error}"));
            }
            Error::Unavailable { .. } => "failed: unavailable",
            Error::Server { .. } => "failed: the server refused",
            other => return self.world.violated(format!("an error that nobody expects: {other:?}")),
        };
        self.hands.count(what);
    }

    /// Any two that read may wish to write.
    fn failed_to_upgrade(&self, error: &Error) {
        match error {
            Error::UpgradeConflict { .. } => self.hands.count("refused: another upgrade waits"),
            error => self.failed(error),
        }
    }

    pub(super) async fn hold<M: Access>(&mut self, guard: &Guard<M>) {
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

    pub(super) async fn end<M: Access>(&mut self, guard: Arc<Guard<M>>) {
        self.hands.note_losses();
        let Ok(guard) = Arc::try_unwrap(guard) else {
            return self.world.violated("a guard is in two hands".to_owned());
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
            _ => {
                if let Err(error) = guard.release().await {
                    self.failed(&error);
                }
            }
        }
    }

    async fn read(&mut self, number: u64, guard: Arc<Guard<fairlock::Read>>) {
        self.hold(&guard).await;
        match self.dice.below(10) {
            0 => {
                let patience = self.dice.span(self.habits.hold * 8);
                match timeout(patience, guard.upgrade()).await {
                    Ok(Ok(writing)) => {
                        if let Some(writing) = self.in_hand(number, 0, Duration::ZERO, writing) {
                            self.hold(&writing).await;
                            self.end(writing).await;
                        }
                    }
                    Ok(Err(error)) => self.failed_to_upgrade(&error),
                    Err(_) => {}
                }
            }
            1 => match guard.try_upgrade().await {
                Ok(Some(writing)) => {
                    if let Some(writing) = self.in_hand(number, 0, Duration::ZERO, writing) {
                        self.hold(&writing).await;
                        self.end(writing).await;
                    }
                }
                Ok(None) => {}
                Err(error) => self.failed_to_upgrade(&error),
            },
            _ => {}
        }
        self.hold(&guard).await;
        self.end(guard).await;
    }

    async fn write(&mut self, number: u64, lock: &RwLock, guard: Arc<Guard<fairlock::Write>>) {
        self.hold(&guard).await;
        match self.dice.below(10) {
            0 => {
                let Ok(guard) = Arc::try_unwrap(guard) else {
                    return self.world.violated("a guard is in two hands".to_owned());
                };
                self.hands
                    .downgrades(number, guard.owner(), guard.fencing_token().get());
                match guard.downgrade().await {
                    Ok(reading) => {
                        if let Some(reading) = self.in_hand(number, 1, Duration::ZERO, reading) {
                            self.hold(&reading).await;
                            self.end(reading).await;
                        }
                    }
                    Err(error) => self.failed(&error),
                }
                return;
            }
            // The same owner once more.
            1 | 2 => {
                let mine = lock.with_owner(&guard.owner());
                if self.named
                    && let Some(nested) = self.acquire(number, 1, mine.read()).await
                {
                    self.hold(&nested).await;
                    if self.dice.permille(500) {
                        self.end(guard).await;
                        self.hold(&nested).await;
                        return self.end(nested).await;
                    }
                    self.end(nested).await;
                }
            }
            _ => {}
        }
        self.end(guard).await;
    }
}

/// An owner that is no other number's.
pub fn owner(number: u64) -> Owner {
    Owner::from_uuid(uuid::Uuid::from_u64_pair(0x4000, 1 << 63 | number))
}
