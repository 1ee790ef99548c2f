//! Tasks that share one owner, and one that asks again as soon as it may.

use super::Hold;
use crate::lateness::in_time;
use crate::proxy::Proxy;
use crate::server::{Server, eventually, soon};
use crate::users::{LONG, client, read, state, user, write};
use fairlock::{Error, LostReason, Owner, RwLock};
use fairlock_support::random::{self, Rng};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep;

#[tokio::test]
async fn the_owner_of_a_single_request_is_named_and_cannot_acquire() {
    let server = Server::start().await;
    let lock = user(&server, LONG).await;
    let guard = read(&lock).await;
    let stranger = guard.owner();
    assert_ne!(stranger, read(&lock).await.owner());
    let refused = lock.with_owner(&stranger).read().acquire_fair().await;
    assert!(
        matches!(refused, Err(Error::InvalidOwner { owner, .. }) if owner == stranger),
        "{refused:?}"
    );
    assert_eq!(server.queued("a").await, 0);
}

#[tokio::test]
async fn an_evicted_owner_may_come_back_at_once() {
    let server = Server::start().await;
    let lock = user(&server, LONG).await;
    let owner = Owner::new();
    let mine = lock.with_owner(&owner);
    let lost = write(&mine).await;
    assert_eq!(lock.evict(&owner).await.unwrap(), 1);
    assert_eq!(soon("the loss", lost.lost()).await, LostReason::Evicted);
    // The lost guard still exists: it stands for nothing any more.
    let again = write(&mine).await;
    assert!(again.fencing_token() > lost.fencing_token());
}

/// What the tasks of [`side_by_side`] see of each other.
#[derive(Default)]
struct Inside {
    shared: AtomicUsize,
    other_writers: AtomicUsize,
    served: AtomicUsize,
    refused: AtomicUsize,
}

/// Counts itself while it lives; dropped before the guard is released.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::SeqCst);
        Self(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A task of the shared owner: takes the lock, sometimes twice, in ways and for times drawn by lot.
async fn side_by_side(mine: RwLock, inside: Arc<Inside>, mut random: Rng) {
    for _ in 0..20 {
        let mut holds = Vec::new();
        for _ in 0..=random.usize(..2) {
            let asked = match random.usize(..5) {
                0 | 1 => mine.write().acquire_fair().await.map(|guard| Some(Hold::Write(guard))),
                2 | 3 => mine.read().acquire_fair().await.map(|guard| Some(Hold::Read(guard))),
                _ => {
                    let limit = Duration::from_millis(random.u64(..10));
                    mine.write()
                        .try_acquire_for(limit)
                        .await
                        .map(|guard| guard.map(Hold::Write))
                }
            };
            match asked {
                Ok(Some(hold)) => holds.push((Counted::new(&inside.shared), hold)),
                Ok(None) => {}
                Err(Error::OwnerWaiting { .. }) => {
                    inside.refused.fetch_add(1, Ordering::SeqCst);
                }
                Err(error) => panic!("{error}"),
            }
            let others = inside.other_writers.load(Ordering::SeqCst);
            assert!(holds.is_empty() || others == 0, "inside beside another owner's writer");
        }
        sleep(Duration::from_millis(random.u64(..4))).await;
        inside.served.fetch_add(holds.len(), Ordering::SeqCst);
        while !holds.is_empty() {
            let (counted, hold) = holds.remove(random.usize(..holds.len()));
            drop(counted);
            if random.usize(..2) == 0 {
                hold.release().await;
            }
        }
    }
}

/// A task with an owner of its own.
async fn by_itself(lock: RwLock, inside: Arc<Inside>, mut random: Rng) {
    for _ in 0..20 {
        if random.usize(..2) == 0 {
            let guard = lock.write().acquire_fair().await.expect("its turn");
            let counted = Counted::new(&inside.other_writers);
            assert_eq!(inside.shared.load(Ordering::SeqCst), 0, "a writer beside another owner");
            sleep(Duration::from_millis(random.u64(..3))).await;
            drop(counted);
            guard.release().await.expect("it is held");
        } else {
            let guard = lock.read().acquire_fair().await.expect("its turn");
            sleep(Duration::from_millis(random.u64(..3))).await;
            guard.release().await.expect("it is held");
        }
    }
}

#[tokio::test]
async fn tasks_that_share_an_owner_are_each_served_or_refused() {
    let mut random = random::seeded();
    let server = Server::start().await;
    let (owner, inside) = (Owner::new(), Arc::new(Inside::default()));
    let users = [user(&server, LONG).await, user(&server, LONG).await];
    // Otherwise the shared owner may be inside from the first task to the last, and then nobody waits or is refused.
    let first = write(&users[0]).await;
    let mut tasks = JoinSet::new();
    for lock in users.iter().cycle().take(6) {
        tasks.spawn(side_by_side(
            lock.with_owner(&owner),
            Arc::clone(&inside),
            random.fork(),
        ));
    }
    for lock in users.iter().cycle().take(4) {
        tasks.spawn(by_itself(lock.clone(), Arc::clone(&inside), random.fork()));
    }
    eventually("one task waits, another is refused", async || {
        server.queued("a").await > 0 && inside.refused.load(Ordering::SeqCst) > 0
    })
    .await;
    first.release().await.expect("it is held");
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            ended.expect("no panic");
        }
    };
    soon("all tasks served or refused", all).await;
    eventually("the lock free", async || state(&server, "a").await.is_empty()).await;
    assert_eq!(server.queued("a").await, 0);
    let (served, refused) = (&inside.served, &inside.refused);
    println!("{served:?} served, {refused:?} refused");
    assert!(served.load(Ordering::SeqCst) > 0);
}

#[tokio::test]
async fn an_owner_asks_again_as_soon_as_its_release_is_answered() {
    in_time(async || {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let lock = client(proxy.url(), Duration::from_secs(10)).await.rw_lock("a");
        let mine = lock.with_owner(&Owner::new());
        let guard = mine.write().acquire_fair().await.unwrap();
        proxy.delay_replies(Duration::from_millis(50));
        let begun = Instant::now();
        let (released, again) = tokio::join!(guard.release(), mine.write().acquire_fair());
        released.unwrap();
        assert!(again.unwrap().is_held());
        // Two replies; a call's time limit is a second.
        assert!(begun.elapsed() < Duration::from_millis(900), "{:?}", begun.elapsed());
    })
    .await;
}

#[tokio::test]
async fn an_owner_that_is_refused_for_good_hears_of_that_each_time_at_once() {
    let server = Server::start().await;
    let client = client(&server.url(), LONG).await;
    let owner = Owner::new();
    let refuses = async |command: redis::Cmd, lock: &str| {
        command.exec_async(&mut server.redis().await).await.unwrap();
        let lock = client.rw_lock(lock).with_owner(&owner);
        for time in 0..3 {
            let refused = soon("the refusal", lock.write().acquire_fair()).await;
            assert!(matches!(refused, Err(Error::Server { .. })), "{time}: {refused:?}");
        }
    };
    let other_layout = redis::cmd("HSET")
        .arg("fairlock:{a}")
        .arg(&["seq", "7", "policy", "9"])
        .to_owned();
    refuses(other_layout, "a").await;
    let no_keys = redis::cmd("ACL").arg(&["SETUSER", "default", "resetkeys"]).to_owned();
    refuses(no_keys, "b").await;
}
