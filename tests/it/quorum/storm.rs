//! Random users and random faults, by a seed: at any moment at most a minority of the servers is dead, stopped, or in
//! quarantine. Conflicting guards never hold at the same time, tokens grow, and everybody enters.

use super::Fleet;
use crate::lateness::{in_time, promise};
use crate::server::{eventually, soon};
use fairlock::{Error, Quorum, QuorumReadGuard, QuorumWriteGuard};
use fairlock_support::random::{self, Rng};
use futures::future::join_all;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LEASE: Duration = Duration::from_secs(2);

#[derive(Clone)]
enum Inside {
    Reads(Arc<QuorumReadGuard>),
    Writes(Arc<QuorumWriteGuard>),
}

impl Inside {
    fn is_held(&self) -> bool {
        match self {
            Self::Reads(guard) => guard.is_held(),
            Self::Writes(guard) => guard.is_held(),
        }
    }

    fn conflicts(&self, other: &Self) -> bool {
        !matches!((self, other), (Self::Reads(_), Self::Reads(_)))
    }

    async fn token(&self) -> Result<u64, Error> {
        match self {
            Self::Reads(guard) => guard.fencing_token().await,
            Self::Writes(guard) => guard.fencing_token().await,
        }
        .map(u64::from)
    }

    async fn release(self) -> Result<(), Error> {
        match self {
            Self::Reads(guard) => Arc::into_inner(guard).expect("the only one").release().await,
            Self::Writes(guard) => Arc::into_inner(guard).expect("the only one").release().await,
        }
    }
}

/// What the judge has seen.
#[derive(Default)]
struct Judge {
    inside: Mutex<BTreeMap<usize, Inside>>,
    /// The greatest token that the resource has seen, and the greatest one of a writer.
    register: Mutex<(u64, u64)>,
    entered: AtomicU64,
    lost: AtomicU64,
    longest_wait_ms: AtomicU64,
}

impl Judge {
    /// The guard is held now. A conflicting one that is held after that was held at the same time.
    fn enters(&self, user: usize, guard: &Inside) {
        let mut inside = self.inside.lock().unwrap();
        if guard.is_held() {
            for (other, former) in inside.iter().filter(|(_, former)| former.conflicts(guard)) {
                promise(!former.is_held(), format_args!("{user} and {other} are inside"));
            }
        }
        inside.insert(user, guard.clone());
        self.entered.fetch_add(1, Ordering::Relaxed);
    }

    /// The resource refuses a lesser token. Whoever is refused must have lost the lock.
    fn writes(&self, guard: &Inside, token: u64) {
        let mut register = self.register.lock().unwrap();
        let is_refused = match guard {
            Inside::Reads(_) => token <= register.1,
            Inside::Writes(_) => token <= register.0,
        };
        let lies = is_refused && guard.is_held();
        promise(!lies, format_args!("token {token} after {register:?}"));
        register.0 = register.0.max(token);
        if let Inside::Writes(_) = guard {
            register.1 = register.1.max(token);
        }
    }

    fn leaves(&self, user: usize) {
        drop(self.inside.lock().unwrap().remove(&user));
    }
}

async fn user(quorum: &Quorum, number: usize, mut random: Rng, judge: &Judge, until: &AtomicBool) {
    let lock = quorum.rw_lock("x");
    while !until.load(Ordering::Relaxed) {
        let patience = Duration::from_millis(random.u64(..400));
        let gives_up = random.u64(..4) == 0;
        let request = async {
            if random.u64(..3) == 0 {
                let guard = lock.read().acquire_fair().await.expect("a majority is there");
                Inside::Reads(Arc::new(guard))
            } else {
                let guard = lock.write().acquire_fair().await.expect("a majority is there");
                Inside::Writes(Arc::new(guard))
            }
        };
        let begun = Instant::now();
        let guard = match gives_up {
            // Dropped wherever it is.
            true => match tokio::time::timeout(patience, request).await {
                Ok(guard) => guard,
                Err(_) => continue,
            },
            false => soon("every waiter enters", request).await,
        };
        let waited_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        judge.longest_wait_ms.fetch_max(waited_ms, Ordering::Relaxed);
        judge.enters(number, &guard);
        if let Ok(token) = guard.token().await {
            judge.writes(&guard, token);
        }
        tokio::time::sleep(Duration::from_millis(random.u64(..5))).await;
        judge.leaves(number);
        if let Err(Error::Lost { reason, .. }) = guard.release().await {
            println!("lost: {reason}");
            judge.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// One fault after another, each on one server, until that server votes again.
async fn nemesis(fleet: &mut Fleet, mut random: Rng, faults: usize) {
    for _ in 0..faults {
        let at = random.usize(..fleet.0.len());
        let pause = Duration::from_millis(random.u64(..1500));
        match random.u64(..4) {
            0 => {
                // It begins with what it saved last, if it ever did.
                println!("{at} restarts after {pause:?}");
                fleet.0[at].kill();
                tokio::time::sleep(pause).await;
                fleet.0[at].start_again().await;
            }
            1 => {
                println!("{at} is stopped for {pause:?}");
                fleet.0[at].freeze();
                tokio::time::sleep(pause).await;
                fleet.0[at].thaw();
            }
            2 => {
                println!("{at} saves its data");
                redis::cmd("SAVE")
                    .exec_async(&mut fleet.0[at].redis().await)
                    .await
                    .unwrap();
                continue;
            }
            _ => {
                println!("{at} loses its connections");
                for kind in ["normal", "pubsub"] {
                    let mut kill = redis::cmd("CLIENT");
                    kill.arg("KILL").arg("TYPE").arg(kind);
                    kill.exec_async(&mut fleet.0[at].redis().await).await.unwrap();
                }
            }
        }
        // The longest lease, and the reconnect before it begins.
        tokio::time::sleep(LEASE + Duration::from_millis(1200)).await;
    }
}

async fn storm(servers: usize, users: usize, faults: usize) {
    let mut random = random::seeded();
    let mut fleet = Fleet::start(servers).await;
    let builder = Quorum::builder("storm").longest_lease(LEASE).lease(LEASE);
    let quorums = join_all((0..users).map(|_| fleet.quorum_by(builder.clone()))).await;
    let (judge, until) = (Judge::default(), AtomicBool::new(false));
    let (weather, seeds) = (random.fork(), (0..users).map(|_| random.fork()).collect::<Vec<_>>());
    let users = quorums.iter().zip(seeds).enumerate();
    let users = users.map(|(number, (quorum, random))| user(quorum, number, random, &judge, &until));
    let faults = async {
        nemesis(&mut fleet, weather, faults).await;
        until.store(true, Ordering::Relaxed);
    };
    tokio::join!(join_all(users), faults);
    let (entered, lost, longest) = (judge.entered, judge.lost, judge.longest_wait_ms);
    let lost = lost.into_inner();
    println!("{entered:?} entered, {lost} holds were lost, the longest wait was {longest:?} ms");
    assert_eq!(lost, 0, "a minority of faults costs no hold");
    // Old data may have brought back leases, which end with the next call.
    eventually("nothing is left", async || {
        let guard = quorums[0].rw_lock("x").write().acquire_fair().await.expect("a grant");
        guard.release().await.expect("a hold until then");
        let states = join_all(fleet.all().map(|at| fleet.state(at, "x"))).await;
        states.iter().all(|state| state.holds() == 0 && state.waiting == 0)
    })
    .await;
}

#[tokio::test]
async fn users_of_three_servers_keep_every_promise_while_a_minority_fails() {
    in_time(async || storm(3, 4, 6).await).await;
}

#[tokio::test]
async fn users_of_five_servers_keep_every_promise_while_a_minority_fails() {
    in_time(async || storm(5, 6, 6).await).await;
}
