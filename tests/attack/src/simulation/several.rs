//! Users that take several locks: in one guard, or one inside the other in any order.

use super::hands::{Hold, PROMPT};
use super::users::{User, name_of_lock, owner};
use fairlock::{AllGuard, Error, LostReason, Mode, testing};
use futures::FutureExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// What is asked of one of the locks. Of two shares of one lock the greater one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Share {
    Read,
    Permits(u32),
    Write,
}

/// How a call for several locks, or its guard, came to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The call has waited for the releases.
    Confirmed,
    InBackground,
    /// After a loss by time the server keeps the locks for the lock delay.
    Lost,
}

impl User {
    /// Several locks in one guard, some of them named twice.
    pub(super) async fn take_together(&mut self) {
        let owner = owner(1 << 61 | self.dice.number() >> 4);
        let mut asked = self.client.all().with_owner(&owner);
        let (mut shares, mut limits) = (BTreeMap::new(), BTreeMap::new());
        for _ in 0..1 + self.dice.below(4) {
            let (number, limit) = (self.dice.below(self.habits.locks), self.limit());
            // A call that names a lock with two bounds is refused.
            let limit = *limits.entry(number).or_insert(limit);
            let lock = self.habits.lock(&self.client, number, limit);
            let share = match self.dice.below(2) {
                _ if self.dice.permille(self.habits.writes) => Share::Write,
                0 if limit > 0 => Share::Permits(1 + self.dice.below(u64::from(limit)) as u32),
                _ => Share::Read,
            };
            asked = match share {
                Share::Read => asked.read(&lock),
                Share::Permits(permits) => asked.permits(&self.client.semaphore(name_of_lock(number), limit), permits),
                Share::Write => asked.write(&lock),
            };
            let most = shares.entry(number).or_insert(share);
            *most = share.max(*most);
        }
        asked = asked.lease(*self.dice.pick(&self.habits.leases));
        let mut limit = Duration::MAX;
        if self.dice.permille(100) {
            limit = self.dice.span(self.habits.hold * 4) + Duration::from_millis(1);
            asked = asked.max_hold(limit);
        }
        self.bounded = self.dice.permille(50);
        if self.bounded {
            asked = asked.max_queue(self.dice.index(6));
        }
        let name = testing::owner_name(owner);
        self.tell_circles(shares.keys(), |circles, lock| circles.took(lock, &name));
        let (begun, patience) = (Instant::now(), self.dice.span(self.habits.hold * 8));
        let result = match self.dice.below(10) {
            _ if self.dice.permille(self.habits.cancels) => timeout(patience, asked.acquire_fair())
                .await
                .map(|result| result.map(Some)),
            0 | 1 => Ok(asked.try_acquire().await),
            2..=4 => Ok(asked.try_acquire_for(patience).await),
            _ => Ok(asked.acquire_fair().await.map(Some)),
        };
        let ended = match result {
            Ok(Ok(Some(guard))) => self.hold_together(guard, &shares, limit).await,
            Ok(Ok(None)) => Ended::Confirmed,
            Ok(Err(error)) => {
                let is_limited = matches!(&error, Error::Lost { reason, .. } if *reason == LostReason::MaxHold);
                match is_limited {
                    true => self
                        .world
                        .violated(format!("max_hold ended a wait for several locks: {error}")),
                    false => self.failed_since(&error, begun),
                }
                Ended::InBackground
            }
            Err(_) => Ended::InBackground,
        };
        self.tell_circles(shares.keys(), |circles, lock| circles.leaves(lock, &name));
        self.nothing_stays(&name, &shares, ended).await;
    }

    /// When nothing goes wrong, the server has forgotten the owner: at once, or as soon as a message takes.
    async fn nothing_stays(&self, owner: &str, shares: &BTreeMap<u64, Share>, ended: Ended) {
        if !self.calm {
            return;
        }
        match ended {
            Ended::Confirmed => {}
            Ended::InBackground => sleep(PROMPT).await,
            Ended::Lost => sleep(self.habits.lock_delay + PROMPT).await,
        }
        let core = self.world.core();
        let left = shares.keys().find(|number| core.server.knows(**number, owner)).copied();
        drop(core);
        if let Some(number) = left {
            self.world
                .violated(format!("lock {number}: a part of several locks stays with {owner}"));
        }
    }

    /// `limit`: its `max_hold`.
    async fn hold_together(&mut self, guard: AllGuard, shares: &BTreeMap<u64, Share>, limit: Duration) -> Ended {
        let since = Instant::now();
        if !guard.is_held() {
            self.world
                .violated("a guard of several locks was handed out that is not held".to_owned());
        }
        let guard = Arc::new(guard);
        for (&lock, &share) in shares {
            let Some(token) = guard.fencing_token(&self.client.rw_lock(name_of_lock(lock))) else {
                self.world.violated(format!("lock {lock} is not in the guard"));
                continue;
            };
            let (named, permits) = match share {
                Share::Read => (true, 1),
                Share::Permits(permits) => (false, permits),
                Share::Write => (true, 0),
            };
            let hold = Hold {
                lock,
                // Permits belong to nobody else.
                owner: if named {
                    guard.owner()
                } else {
                    owner(1 << 61 | self.dice.number() >> 4)
                },
                named,
                // The others were granted before it.
                prompt: shares.last_key_value() == Some((&lock, &share)),
                mode: if share == Share::Write { Mode::Write } else { Mode::Read },
                permits,
                token: token.get(),
                at_least: Duration::ZERO,
                lock_delay: self.habits.lock_delay,
            };
            let lasts = || {
                let name = testing::owner_name(hold.owner);
                self.world.core().server.lasts(lock, &name, hold.mode, hold.token)
            };
            if self.calm && named && !lasts() {
                self.world
                    .violated(format!("lock {lock} is in a guard of several locks, and not held"));
            }
            self.hands.take(&self.world, &self.process, &guard, hold, &self.habits);
        }
        self.hands.count("held together");
        let span = self.span(self.habits.hold);
        match self.dice.permille(200) {
            true => {
                if let Err(error) = guard.while_held(sleep(span)).await {
                    self.failed(&error);
                }
            }
            false => sleep(span).await,
        }
        self.hands.note_losses();
        let loss = guard.lost().now_or_never();
        if guard.is_held() == loss.is_some() {
            self.world.violated(format!(
                "a guard of several locks says that it is held, or not, and lost: {loss:?}"
            ));
        }
        if loss == Some(LostReason::MaxHold) {
            if since.elapsed() < limit {
                let after = since.elapsed();
                self.world
                    .violated(format!("max_hold of {limit:?} ended several locks after {after:?}"));
            }
            return Ended::Lost;
        }
        let Ok(guard) = Arc::try_unwrap(guard) else {
            self.world.violated("a guard is in two hands".to_owned());
            return Ended::InBackground;
        };
        let patience = match self.dice.below(10) {
            0 | 1 => {
                drop(guard);
                return Ended::InBackground;
            }
            // Given up in the middle.
            2 => self.dice.span(Duration::from_millis(5)),
            _ => Duration::MAX,
        };
        match timeout(patience, guard.release()).await {
            Ok(Ok(())) => return Ended::Confirmed,
            Ok(Err(error)) => self.failed(&error),
            Err(_) => {}
        }
        Ended::InBackground
    }

    /// Several locks, one inside the other, by the owner of this user: a deadlock sooner or later.
    pub(super) async fn tangle(&mut self) {
        self.named = true;
        let mut numbers: Vec<u64> = (0..self.habits.locks).collect();
        for at in (1..numbers.len()).rev() {
            numbers.swap(at, self.dice.index(at + 1));
        }
        numbers.truncate(2 + self.dice.index(2));
        let name = testing::owner_name(self.own);
        let (mut reading, mut writing) = (Vec::new(), Vec::new());
        for number in numbers {
            let lock = self.habits.lock(&self.client, number, 0).with_owner(&self.own);
            let writes = self.dice.permille(self.habits.writes.max(300));
            if writes && let Some(guard) = self.acquire(number, 0, lock.write()).await {
                writing.push((number, guard));
            } else if !writes && let Some(guard) = self.acquire(number, 1, lock.read()).await {
                reading.push((number, guard));
            } else {
                // Others go on when it lets go of what it has.
                break;
            }
            self.tell_circles([&number], |circles, lock| circles.took(lock, &name));
            let pause = self.span(self.habits.hold);
            sleep(pause).await;
        }
        for (number, guard) in writing {
            self.tell_circles([&number], |circles, lock| circles.leaves(lock, &name));
            self.end(guard).await;
        }
        for (number, guard) in reading {
            self.tell_circles([&number], |circles, lock| circles.leaves(lock, &name));
            self.end(guard).await;
        }
    }

    fn tell_circles<'a>(
        &self,
        numbers: impl IntoIterator<Item = &'a u64>,
        tell: impl Fn(&mut super::circles::Circles, &str),
    ) {
        if let Some(circles) = &mut self.world.core().server.circles {
            numbers
                .into_iter()
                .for_each(|number| tell(circles, &name_of_lock(*number)));
        }
    }
}
