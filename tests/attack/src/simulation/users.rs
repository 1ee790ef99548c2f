//! What the users of a simulated process do, and what they must never see.

use super::dice::Dice;
use super::process::Process;
use super::world::World;
use fairlock::{Access, Client, Error, Guard, LostReason, Mode, Owner, Policy, RwLock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Within this time a grant must be in its user's hands when nothing goes wrong: a few times the longest delay of the
/// network, and much less than the time to the next renewal.
const PROMPT: Duration = Duration::from_millis(25);

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

fn name_of_lock(number: u64) -> String {
    format!("lock {number}")
}

/// A guard that somebody has in hand, as others see it.
trait Held: Send + Sync {
    fn is_held(&self) -> bool;
}

impl<M: Access> Held for Guard<M> {
    fn is_held(&self) -> bool {
        Guard::is_held(self)
    }
}

struct Holding {
    guard: Weak<dyn Held>,
    owner: Owner,
    mode: Mode,
    permits: u32,
    token: u64,
    since: Instant,
    /// Since when the server has not had it any more.
    interrupted: Option<Instant>,
    process: Arc<Process>,
}

/// An owner as requests name it.
fn name_of(owner: Owner) -> String {
    let uuid = owner.uuid();
    if !is_anonymous(&owner) {
        return uuid.simple().to_string();
    }
    let (high, low) = uuid.as_u64_pair();
    format!("{:015x}:{}", (high >> 16) << 12 | high & 0xfff, low & ((1 << 62) - 1))
}

/// Everything that users of all processes have in hand, and what happened to them.
#[derive(Default)]
pub struct Hands {
    holdings: Mutex<BTreeMap<u64, Vec<Holding>>>,
    outcomes: Mutex<BTreeMap<&'static str, u64>>,
    busy: Mutex<BTreeMap<u64, usize>>,
}

impl Hands {
    /// Users that are doing something, in processes that live.
    pub fn busy(&self) -> usize {
        self.busy.lock().expect("no panic while it is locked").values().sum()
    }

    pub fn outcomes(&self) -> BTreeMap<&'static str, u64> {
        self.outcomes.lock().expect("no panic while it is locked").clone()
    }

    fn begin(&self, process: u64) {
        *self
            .busy
            .lock()
            .expect("no panic while it is locked")
            .entry(process)
            .or_default() += 1;
    }

    fn end(&self, process: u64) {
        if let Some(n) = self.busy.lock().expect("no panic while it is locked").get_mut(&process) {
            *n -= 1;
        }
    }

    /// Whoever was interrupted knows it a lease later, whatever the reason: by its next renewal, or because no renewal
    /// was answered.
    pub fn look(&self, world: &World, longest_lease: Duration) {
        let now = Instant::now();
        let mut wrong = None;
        let mut all = self.holdings.lock().expect("no panic while it is locked");
        for (lock, holdings) in all.iter_mut() {
            for holding in holdings {
                let held = holding.guard.upgrade().is_some_and(|guard| guard.is_held());
                let lasts = || {
                    let owner = name_of(holding.owner);
                    world.core().server.lasts(*lock, &owner, holding.mode, holding.token)
                };
                if !held || holding.process.is_killed() || lasts() {
                    holding.interrupted = None;
                    continue;
                }
                let since = *holding.interrupted.get_or_insert(now);
                if now > since + longest_lease {
                    let Holding { owner, mode, token, .. } = holding;
                    let whose = format!("{owner:?} {mode:?} token {token}");
                    wrong = Some(format!(
                        "lock {lock}: {whose} was interrupted {:?} ago and believes that it holds",
                        now - since
                    ));
                }
            }
        }
        drop(all);
        if let Some(wrong) = wrong {
            world.violated(wrong);
        }
    }

    pub fn killed(&self, process: u64) {
        self.busy.lock().expect("no panic while it is locked").remove(&process);
    }

    pub fn count(&self, what: &'static str) {
        *self
            .outcomes
            .lock()
            .expect("no panic while it is locked")
            .entry(what)
            .or_default() += 1;
    }

    /// Takes note of a guard; says what is wrong if others have one that excludes it.
    fn take<M: Access>(
        &self,
        world: &World,
        lock: u64,
        process: &Arc<Process>,
        guard: &Arc<Guard<M>>,
        permits: u32,
        habits: &Habits,
    ) {
        let longest = habits.leases.into_iter().max().unwrap_or_default();
        let (token, owner, now) = (guard.fencing_token().get(), guard.owner(), Instant::now());
        let mut all = self.holdings.lock().expect("no panic while it is locked");
        let holdings = all.entry(lock).or_default();
        let mut core = world.core();
        // What was granted before the server lost its data is believed until the next renewal. Tokens follow its clock.
        let lost = core.lost_data.filter(|(at, _)| now < *at + longest);
        let lost_us = lost.map_or(0, |(_, us)| us);
        let waited = core.server.since_grant(&format!("lock {lock}"), token);
        let prompt = core.fine_since.is_some_and(|since| since + PROMPT < now);
        drop(core);
        if let Some(waited) = waited.filter(|waited| prompt && *waited > PROMPT) {
            world.violated(format!("lock {lock}: {owner:?} heard of its grant after {waited:?}"));
        }
        holdings.retain(|holding| {
            let alive = !holding.process.is_killed() && holding.guard.upgrade().is_some_and(|guard| guard.is_held());
            let excludes = holding.owner != owner && (holding.mode == Mode::Write || M::MODE == Mode::Write);
            if alive && excludes && guard.is_held() && holding.token.min(token) > lost_us {
                world.violated(format!(
                    "lock {lock}: {owner:?} {:?} token {token} beside {:?} {:?} token {} since {:?}",
                    M::MODE,
                    holding.owner,
                    holding.mode,
                    holding.token,
                    now - holding.since,
                ));
            }
            alive
        });
        if M::MODE == Mode::Read && habits.permits > 0 && guard.is_held() {
            let reads = holdings.iter().filter(|holding| holding.mode == Mode::Read);
            // Of one owner the greatest: its further holds take nothing.
            let mut taken = BTreeMap::from([(owner, permits)]);
            for Holding { owner, permits, .. } in reads.filter(|holding| holding.token.min(token) > lost_us) {
                let most = taken.entry(*owner).or_default();
                *most = (*most).max(*permits);
            }
            let together: u32 = taken.values().sum();
            if together > habits.most_permits() {
                world.violated(format!(
                    "lock {lock}: {together} permits of at most {} are out: {taken:?}",
                    habits.most_permits()
                ));
            }
        }
        holdings.push(Holding {
            guard: Arc::downgrade(guard) as Weak<dyn Held>,
            owner,
            mode: M::MODE,
            permits,
            token,
            since: now,
            interrupted: None,
            process: Arc::clone(process),
        });
    }
}

/// One user of one process.
pub struct User {
    pub world: Arc<World>,
    pub hands: Arc<Hands>,
    pub process: Arc<Process>,
    pub client: Client,
    pub owners: Arc<Vec<Owner>>,
    pub habits: Habits,
    pub dice: Dice,
    /// Nothing can go wrong: then nothing may be lost.
    pub calm: bool,
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

    fn span(&mut self, most: Duration) -> Duration {
        // Most are short; some are much longer than others expect.
        match self.dice.below(100) {
            0 => self.dice.span(most * 20),
            1..=30 => Duration::ZERO,
            _ => self.dice.span(most),
        }
    }

    /// Who asks last sets it; mostly it stays.
    fn limit(&mut self) -> u32 {
        match self.habits.permits {
            0 => 0,
            permits if self.dice.permille(900) => permits,
            _ => 1 + self.dice.below(u64::from(self.habits.most_permits())) as u32,
        }
    }

    async fn work(&mut self) {
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
        let lock = if self.dice.permille(self.habits.named) {
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

    async fn acquire<M: Access>(
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
        if self.dice.permille(50) {
            asked = asked.max_queue(self.dice.index(6));
        }
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
            Ok(guard) => self.in_hand(number, permits, guard?),
            Err(error) => {
                self.failed(&error);
                None
            }
        }
    }

    fn in_hand<M: Access>(&self, number: u64, permits: u32, guard: Guard<M>) -> Option<Arc<Guard<M>>> {
        // Nothing can have happened since it was handed out.
        if !guard.is_held() {
            self.world
                .violated(format!("lock {number}: a guard was handed out that is not held"));
        }
        let guard = Arc::new(guard);
        self.hands
            .take(&self.world, number, &self.process, &guard, permits, &self.habits);
        self.hands.count("held");
        Some(guard)
    }

    fn failed(&self, error: &Error) {
        let what = match error {
            Error::OwnerWaiting { .. } => "refused: the owner waits already",
            Error::UpgradeConflict { .. } => "refused: another upgrade waits",
            Error::QueueFull { .. } => "refused: the queue is full",
            Error::Lost { reason, .. } => match reason {
                LostReason::MaxHold => "lost: max_hold",
                _ if self.calm => return self.world.violated(format!("lost though nothing went wrong: {error}")),
                LostReason::LeaseExpired => "lost: lease expired",
                LostReason::UnknownToServer => "lost: unknown to the server",
                LostReason::Evicted => "lost: evicted",
                LostReason::Shutdown => "lost: shutdown",
                _ => "lost: otherwise",
            },
            Error::Shutdown { .. } => "refused: shutdown",
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

    async fn hold<M: Access>(&mut self, guard: &Guard<M>) {
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

    async fn end<M: Access>(&mut self, guard: Arc<Guard<M>>) {
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
                        if let Some(writing) = self.in_hand(number, 0, writing) {
                            self.hold(&writing).await;
                            self.end(writing).await;
                        }
                    }
                    Ok(Err(error)) => self.failed(&error),
                    Err(_) => {}
                }
            }
            1 => match guard.try_upgrade().await {
                Ok(Some(writing)) => {
                    if let Some(writing) = self.in_hand(number, 0, writing) {
                        self.hold(&writing).await;
                        self.end(writing).await;
                    }
                }
                Ok(None) => {}
                Err(error) => self.failed(&error),
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
                match guard.downgrade().await {
                    Ok(reading) => {
                        if let Some(reading) = self.in_hand(number, 1, reading) {
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
                if self.habits.named > 0
                    && !is_anonymous(&guard.owner())
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

/// Owners that a request without one is given: version 8.
fn is_anonymous(owner: &Owner) -> bool {
    owner.uuid().get_version_num() == 8
}
