//! What the users of a quorum have in hand and wait for, and what must not be true of it.

use super::plan::Habits;
use crate::simulation::process::Process;
use fairlock::{Access, Mode, Owner, QuorumGuard};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// A request has its place after two round trips. Whoever asks so much later is behind it.
const PLACED: Duration = Duration::from_millis(100);

/// A guard that somebody has in hand, as others see it.
trait Held: Send + Sync {
    fn is_held(&self) -> bool;
}

impl<M: Access> Held for QuorumGuard<M> {
    fn is_held(&self) -> bool {
        QuorumGuard::is_held(self)
    }
}

struct Holding {
    guard: Weak<dyn Held>,
    user: u64,
    mode: Mode,
    since: Instant,
    process: Arc<Process>,
}

struct Waiting {
    user: u64,
    mode: Mode,
    since: Instant,
    process: Arc<Process>,
}

#[derive(Default)]
struct Lock {
    holdings: Vec<Holding>,
    waiting: Vec<Waiting>,
    /// The greatest token that each user has got: of a reader, of a writer. A user without an owner conflicts with itself.
    tokens: BTreeMap<Option<u64>, [u64; 2]>,
}

#[derive(Default)]
struct Known {
    locks: BTreeMap<u64, Lock>,
    outcomes: BTreeMap<&'static str, u64>,
    busy: BTreeMap<u64, usize>,
}

/// Everything that users of all processes have in hand, and what happened to them.
#[derive(Default)]
pub struct Hands(Mutex<Known>);

fn conflict(one: Mode, other: Mode) -> bool {
    one == Mode::Write || other == Mode::Write
}

impl Hands {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("no panic while it is locked")
    }

    /// Users that are doing something, in processes that live.
    pub fn busy(&self) -> usize {
        self.known().busy.values().sum()
    }

    pub fn outcomes(&self) -> BTreeMap<&'static str, u64> {
        self.known().outcomes.clone()
    }

    pub fn count(&self, what: &'static str) {
        *self.known().outcomes.entry(what).or_default() += 1;
    }

    pub fn begin(&self, process: u64) {
        *self.known().busy.entry(process).or_default() += 1;
    }

    pub fn end(&self, process: u64) {
        if let Some(n) = self.known().busy.get_mut(&process) {
            *n -= 1;
        }
    }

    pub fn killed(&self, process: u64) {
        let mut known = self.known();
        known.busy.remove(&process);
        for lock in known.locks.values_mut() {
            lock.waiting.retain(|waiting| waiting.process.id != process);
        }
    }

    /// Somebody asks, and will wait.
    pub fn asks(&self, lock: u64, user: u64, mode: Mode, process: &Arc<Process>) {
        let mut known = self.known();
        known.locks.entry(lock).or_default().waiting.push(Waiting {
            user,
            mode,
            since: Instant::now(),
            process: Arc::clone(process),
        });
    }

    /// Nobody waits for this user any more. Returns since when it waited.
    pub fn leaves(&self, lock: u64, user: u64) -> Option<Instant> {
        let mut known = self.known();
        let waiting = &mut known.locks.entry(lock).or_default().waiting;
        let at = waiting.iter().position(|waiting| waiting.user == user)?;
        Some(waiting.swap_remove(at).since)
    }

    /// A request that was sent then has entered: who waits in spite of an earlier place?
    pub fn overtaken(&self, lock: u64, mode: Mode, asked: Instant) -> Option<String> {
        let mut known = self.known();
        let waiting = &known.locks.entry(lock).or_default().waiting;
        let before = |waiting: &&Waiting| waiting.since + PLACED <= asked && conflict(waiting.mode, mode);
        let first = waiting.iter().find(before)?;
        Some(format!(
            "lock {lock}: a {mode:?} that asked {:?} ago entered before user {} ({:?}), who has waited for {:?}",
            asked.elapsed(),
            first.user,
            first.mode,
            first.since.elapsed()
        ))
    }

    /// Takes note of a guard. `owner`: the user, if it names an owner. Returns the token that its own has to exceed, or what is
    /// wrong.
    pub fn take<M: Access>(
        &self,
        lock: u64,
        user: u64,
        process: &Arc<Process>,
        guard: &Arc<QuorumGuard<M>>,
        owner: Option<u64>,
    ) -> Result<u64, String> {
        // Nothing can have happened since it was handed out.
        if !guard.is_held() {
            return Err(format!("lock {lock}: a guard was handed out that is not held"));
        }
        let now = Instant::now();
        let mut known = self.known();
        let Lock { holdings, tokens, .. } = known.locks.entry(lock).or_default();
        holdings.retain(|holding| {
            !holding.process.is_killed() && holding.guard.upgrade().is_some_and(|guard| guard.is_held())
        });
        if let Some(other) = holdings.iter().find(|holding| conflict(holding.mode, M::MODE)) {
            return Err(format!(
                "lock {lock}: user {user} {:?} beside user {} {:?} since {:?}",
                M::MODE,
                other.user,
                other.mode,
                now - other.since
            ));
        }
        holdings.push(Holding {
            guard: Arc::downgrade(guard) as Weak<dyn Held>,
            user,
            mode: M::MODE,
            since: now,
            process: Arc::clone(process),
        });
        let others = tokens
            .iter()
            .filter(|(of, _)| of.is_none() || **of != owner)
            .map(|(_, tokens)| tokens);
        let greatest = others.fold([0, 0], |most, tokens| [most[0].max(tokens[0]), most[1].max(tokens[1])]);
        Ok(match M::MODE {
            Mode::Read => greatest[1],
            Mode::Write => greatest[0].max(greatest[1]),
        })
    }

    /// A user has got its token while it holds.
    pub fn token(&self, lock: u64, owner: Option<u64>, mode: Mode, token: u64) {
        let mut known = self.known();
        let tokens = known.locks.entry(lock).or_default().tokens.entry(owner).or_default();
        let greatest = &mut tokens[usize::from(mode == Mode::Write)];
        *greatest = token.max(*greatest);
    }
}

/// An owner of a user's own.
pub fn owner(user: u64, habits: &Habits) -> Option<Owner> {
    let uuid = uuid::Uuid::from_u64_pair(user << 32 | 0x4000, 1 << 63 | user);
    habits.named.then(|| Owner::from_uuid(uuid))
}
