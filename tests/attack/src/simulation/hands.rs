//! Everything that users of all processes have in hand, and what they must never see.

use super::process::Process;
use super::users::{Habits, name_of_lock};
use super::world::{Core, World};
use fairlock::{Access, AllGuard, Error, Guard, LostReason, Mode, Owner, testing};
use futures::FutureExt;
use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// Within this time a grant must be in its user's hands when nothing goes wrong: a few times the longest delay of the
/// network, and much less than the time to the next renewal.
pub const PROMPT: Duration = Duration::from_millis(25);

/// A guard that somebody has in hand, as others see it.
pub trait Held: Send + Sync {
    fn is_held(&self) -> bool;
    /// Why that lock is not held any more, as far as the guard tells.
    fn loss_of(&self, lock: u64) -> Option<LostReason>;
}

impl<M: Access> Held for Guard<M> {
    fn is_held(&self) -> bool {
        Guard::is_held(self)
    }

    fn loss_of(&self, _: u64) -> Option<LostReason> {
        self.lost().now_or_never()
    }
}

impl Held for AllGuard {
    fn is_held(&self) -> bool {
        AllGuard::is_held(self)
    }

    /// It tells of one loss. The others are still held, but for what `max_hold` ends.
    fn loss_of(&self, lock: u64) -> Option<LostReason> {
        match self.while_held(pending::<()>()).now_or_never()? {
            Err(Error::Lost { lock: name, reason, .. }) => {
                (name == name_of_lock(lock) || reason == LostReason::MaxHold).then_some(reason)
            }
            _ => None,
        }
    }
}

/// What a guard is a hold on.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    pub lock: u64,
    pub owner: Owner,
    /// The server has it under the name of that owner.
    pub named: bool,
    /// Its user got the guard as soon as the server had granted it.
    pub prompt: bool,
    pub mode: Mode,
    pub permits: u32,
    pub token: u64,
    /// The server keeps it so long from now on, whatever its user does.
    pub at_least: Duration,
    /// And so long after its loss by time.
    pub lock_delay: Duration,
}

struct Holding {
    hold: Hold,
    guard: Weak<dyn Held>,
    process: Arc<Process>,
    since: Instant,
    /// When it was last seen held, or its loss was noted.
    seen: Option<Instant>,
    /// Until then it keeps others out, although nobody may have it any more.
    kept_until: Instant,
    /// Since when the server has not had it any more.
    interrupted: Option<Instant>,
}

impl Holding {
    fn is_held(&self) -> bool {
        !self.process.is_killed() && self.guard.upgrade().is_some_and(|guard| guard.is_held())
    }

    /// What a lease or a `max_hold` has ended keeps others out for the lock delay.
    fn watch(&mut self, now: Instant) {
        let (Some(seen), Some(guard)) = (self.seen, self.guard.upgrade()) else {
            return;
        };
        if self.process.is_killed() {
            return;
        }
        if guard.is_held() {
            self.seen = Some(now);
            return;
        }
        self.seen = None;
        if matches!(
            guard.loss_of(self.hold.lock),
            Some(LostReason::LeaseExpired | LostReason::MaxHold)
        ) {
            self.kept_until = self.kept_until.max(seen + self.hold.lock_delay);
        }
    }

    /// Whether it keeps out those who entered then, with that token.
    fn keeps_out(&self, entered: Instant, token: u64, lost: Option<(Instant, u64)>, longest: Duration) -> bool {
        // The server may have forgotten it since, or it was granted by a server that had forgotten its renewals.
        let forgotten = lost.is_some_and(|(at, us)| self.hold.token <= us && self.since < at + longest);
        self.kept_until > entered && token > self.hold.token && !forgotten
    }
}

/// See the module.
#[derive(Default)]
pub struct Hands {
    holdings: Mutex<BTreeMap<u64, Vec<Holding>>>,
    outcomes: Mutex<BTreeMap<&'static str, u64>>,
    busy: Mutex<BTreeMap<u64, usize>>,
    taken: Notify,
    longest_deaf: Mutex<Duration>,
}

impl Hands {
    /// Users that are doing something, in processes that live.
    pub fn busy(&self) -> usize {
        self.busy.lock().expect("no panic while it is locked").values().sum()
    }

    /// How long after its grant a user had its guard at most.
    pub fn longest_deaf(&self) -> Duration {
        *self.longest_deaf.lock().expect("no panic while it is locked")
    }

    pub fn outcomes(&self) -> BTreeMap<&'static str, u64> {
        self.outcomes.lock().expect("no panic while it is locked").clone()
    }

    pub fn begin(&self, process: u64) {
        *self
            .busy
            .lock()
            .expect("no panic while it is locked")
            .entry(process)
            .or_default() += 1;
    }

    pub fn end(&self, process: u64) {
        if let Some(n) = self.busy.lock().expect("no panic while it is locked").get_mut(&process) {
            *n -= 1;
        }
    }

    /// Whoever was interrupted knows it a lease later, whatever the reason: by its next renewal, or because no renewal
    /// was answered. `patience`: that lease, or nothing if nothing can interrupt anybody.
    pub fn look(&self, world: &World, patience: Duration) {
        let now = Instant::now();
        let mut wrong = None;
        let mut all = self.holdings.lock().expect("no panic while it is locked");
        for (lock, holdings) in all.iter_mut() {
            for holding in holdings.iter_mut().filter(|holding| holding.hold.named) {
                let Hold { owner, mode, token, .. } = holding.hold;
                let lasts = || {
                    let owner = testing::owner_name(owner);
                    world.core().server.lasts(*lock, &owner, mode, token)
                };
                if !holding.is_held() || lasts() {
                    holding.interrupted = None;
                    continue;
                }
                let since = *holding.interrupted.get_or_insert(now);
                if now >= since + patience {
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

    /// Until when some hold keeps others out, although nobody may have it any more.
    pub fn kept_until(&self) -> Option<Instant> {
        let all = self.holdings.lock().expect("no panic while it is locked");
        all.values().flatten().map(|holding| holding.kept_until).max()
    }

    /// Looks for losses, which a lock delay follows, several times in that time.
    pub async fn watch(&self, delay: Duration) {
        loop {
            let taken = self.taken.notified();
            match self.note_losses() {
                true => sleep(delay / 8).await,
                false => taken.await,
            }
        }
    }

    /// Whether somebody has got a hold within that time, for so long at least.
    pub fn has_just_taken(&self, within: Duration, at_least: Duration) -> bool {
        let (all, now) = (
            self.holdings.lock().expect("no panic while it is locked"),
            Instant::now(),
        );
        let is_new = |holding: &Holding| holding.hold.at_least >= at_least && now <= holding.since + within;
        all.values()
            .flatten()
            .any(|holding| is_new(holding) && holding.is_held())
    }

    /// Returns whether somebody has a guard that may still be lost.
    pub fn note_losses(&self) -> bool {
        let now = Instant::now();
        let mut watched = false;
        let mut all = self.holdings.lock().expect("no panic while it is locked");
        for holding in all.values_mut().flatten() {
            holding.watch(now);
            watched |= holding.seen.is_some() && holding.guard.strong_count() > 0;
        }
        watched
    }

    /// Of a process that was killed just now.
    pub fn killed(&self, process: u64) {
        self.busy.lock().expect("no panic while it is locked").remove(&process);
        let now = Instant::now();
        let mut all = self.holdings.lock().expect("no panic while it is locked");
        let holdings = all
            .values_mut()
            .flatten()
            .filter(|holding| holding.process.id == process);
        for holding in holdings.filter(|holding| holding.guard.upgrade().is_some_and(|guard| guard.is_held())) {
            holding.kept_until = holding.kept_until.max(now + holding.hold.lock_delay);
        }
    }

    /// A write hold becomes a read hold, whose least time goes on.
    pub fn downgrades(&self, lock: u64, owner: Owner, token: u64) {
        let mut all = self.holdings.lock().expect("no panic while it is locked");
        let holdings = all.get_mut(&lock).into_iter().flatten();
        for Holding { hold, .. } in
            holdings.filter(|holding| (holding.hold.owner, holding.hold.token) == (owner, token))
        {
            (hold.mode, hold.permits) = (Mode::Read, 1);
        }
    }

    pub fn count(&self, what: &'static str) {
        *self
            .outcomes
            .lock()
            .expect("no panic while it is locked")
            .entry(what)
            .or_default() += 1;
    }

    /// Takes note of a guard; says what is wrong if others keep its user out.
    pub fn take(
        &self,
        world: &World,
        process: &Arc<Process>,
        guard: &Arc<impl Held + 'static>,
        hold: Hold,
        habits: &Habits,
    ) {
        let longest = habits.leases.into_iter().max().unwrap_or_default();
        let Hold {
            lock,
            owner,
            mode,
            token,
            ..
        } = hold;
        let now = Instant::now();
        let mut all = self.holdings.lock().expect("no panic while it is locked");
        let holdings = all.entry(lock).or_default();
        let mut core = world.core();
        let lost_data = core.lost_data;
        let waited = core.server.since_grant(lock, &testing::owner_name(owner), token);
        let prompt = hold.prompt && core.fine_since.is_some_and(|since| since + PROMPT < now);
        // What was granted before the server lost its data is believed until the next renewal. Tokens follow its clock.
        let lost_us = lost_data.map_or(0, |(at, us)| if now < at + longest { us } else { 0 });
        if let Some(waited) = waited.filter(|waited| prompt && *waited > PROMPT) {
            core.violated(format!("lock {lock}: {owner:?} heard of its grant after {waited:?}"));
        }
        let mut deaf = self.longest_deaf.lock().expect("no panic while it is locked");
        *deaf = waited.unwrap_or_default().max(*deaf);
        drop(deaf);
        let entered = now - waited.unwrap_or_default();
        let held = guard.is_held();
        let keeps_out = |holding: &Holding| holding.keeps_out(entered, token, lost_data, longest);
        holdings.retain(|holding| {
            let other = &holding.hold;
            let alive = holding.is_held();
            let excludes = other.owner != owner && (other.mode == Mode::Write || mode == Mode::Write);
            if alive && excludes && held && other.token.min(token) > lost_us {
                core.violated(format!(
                    "lock {lock}: {owner:?} {mode:?} token {token} beside {other:?} since {:?}",
                    now - holding.since
                ));
            }
            if excludes && keeps_out(holding) {
                core.violated(format!(
                    "lock {lock}: {owner:?} {mode:?} token {token} entered {:?} before the end of {other:?} since {:?}",
                    holding.kept_until - entered,
                    now - holding.since
                ));
            }
            alive || holding.kept_until > now
        });
        if mode == Mode::Read && habits.permits > 0 && held {
            let reads = holdings.iter().filter(|holding| holding.hold.mode == Mode::Read);
            let counts = |holding: &&Holding| {
                let alive = holding.is_held() && holding.hold.token.min(token) > lost_us;
                alive || keeps_out(holding)
            };
            let taken = reads
                .filter(counts)
                .map(|holding| (holding.hold.owner, holding.hold.permits));
            too_many(&mut core, &hold, taken, habits.most_permits());
        }
        drop(core);
        holdings.push(Holding {
            hold,
            guard: Arc::downgrade(guard) as Weak<dyn Held>,
            process: Arc::clone(process),
            since: now,
            seen: Some(now),
            kept_until: now + hold.at_least,
            interrupted: None,
        });
        self.taken.notify_waiters();
    }
}

/// Of one owner the greatest number of permits counts: its further holds take nothing.
fn too_many(core: &mut Core, hold: &Hold, others: impl Iterator<Item = (Owner, u32)>, most_permits: u32) {
    let mut taken = BTreeMap::from([(hold.owner, hold.permits)]);
    for (owner, permits) in others {
        let most = taken.entry(owner).or_default();
        *most = permits.max(*most);
    }
    let together: u32 = taken.values().sum();
    if together > most_permits {
        core.violated(format!(
            "lock {}: {together} permits of at most {most_permits} are out: {taken:?}",
            hold.lock
        ));
    }
}
