//! Policies: who enters first when several wait, and who starves under which.

use crate::server::{Server, content, eventually, soon};
use crate::users::{LONG, downgrade, queued, read, user, waiting, write};
use fairlock::{Error, Owner, Policy, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

const POLICIES: [Policy; 3] = [Policy::Fifo, Policy::WriterFirst, Policy::ReaderFirst];

async fn user_of(server: &Server, policy: Policy) -> RwLock {
    user(server, LONG).await.policy(policy)
}

/// Tasks that come back again and again, so that the lock is never free, until they are told to stop.
struct Flood {
    stop: Arc<AtomicBool>,
    turns: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
}

impl Flood {
    async fn of<F: Future<Output = Result<G, Error>> + Send, G: Send>(
        locks: &[RwLock],
        acquire: impl Fn(RwLock) -> F + Clone + Send + 'static,
    ) -> Self {
        let (stop, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for lock in locks.iter().cycle().take(8) {
            let (stop, turns) = (Arc::clone(&stop), Arc::clone(&turns));
            let (lock, acquire) = (lock.clone(), acquire.clone());
            tasks.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = acquire(lock.clone()).await.expect("its turn");
                    turns.fetch_add(1, Ordering::SeqCst);
                    sleep(Duration::from_millis(2)).await;
                    drop(guard);
                }
            });
        }
        let flood = Self { stop, turns, tasks };
        eventually("the flood runs", async || flood.turns() > 8).await;
        flood
    }

    fn turns(&self) -> usize {
        self.turns.load(Ordering::SeqCst)
    }

    async fn ends(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(task) = soon("the end of the flood", self.tasks.join_next()).await {
            task.expect("no panic");
        }
    }
}

#[tokio::test]
async fn fifo_lets_writers_in_under_a_flood_of_readers() {
    let server = Server::start().await;
    let locks = [user(&server, LONG).await, user(&server, LONG).await];
    let flood = Flood::of(&locks, |lock| async move { lock.read().acquire_fair().await }).await;
    let writer = user(&server, LONG).await;
    for _ in 0..10 {
        let turns = flood.turns();
        write(&writer).await.release().await.unwrap();
        eventually("readers again", async || flood.turns() > turns).await;
    }
    flood.ends().await;
}

#[tokio::test]
async fn fifo_lets_readers_in_under_a_flood_of_writers() {
    let server = Server::start().await;
    let locks = [user(&server, LONG).await, user(&server, LONG).await];
    let flood = Flood::of(&locks, |lock| async move { lock.write().acquire_fair().await }).await;
    let reader = user(&server, LONG).await;
    for _ in 0..10 {
        let turns = flood.turns();
        read(&reader).await.release().await.unwrap();
        eventually("writers again", async || flood.turns() > turns).await;
    }
    flood.ends().await;
}

#[tokio::test]
async fn fifo_keeps_the_order_of_readers_and_writers() {
    let server = Server::start().await;
    let lock = user_of(&server, Policy::Fifo).await;
    let inside = write(&lock).await;
    let reader = queued(&server, lock.read(), 1).await;
    let writer = queued(&server, lock.write(), 2).await;
    let behind = queued(&server, lock.read(), 3).await;
    inside.release().await.unwrap();
    let reader = reader.enters().await;
    assert!(!writer.entered() && !behind.entered());
    reader.release().await.unwrap();
    let writer = writer.enters().await;
    assert!(!behind.entered());
    writer.release().await.unwrap();
    drop(behind.enters().await);
}

#[tokio::test]
async fn writer_first_lets_no_reader_in_once_a_writer_waits_and_keeps_the_writers_order() {
    let server = Server::start().await;
    let lock = user_of(&server, Policy::WriterFirst).await;
    let inside = read(&lock).await;
    // Readers share as long as no writer waits.
    lock.read()
        .try_acquire()
        .await
        .unwrap()
        .expect("to read")
        .release()
        .await
        .unwrap();
    let first = queued(&server, lock.write(), 1).await;
    assert!(lock.read().try_acquire().await.unwrap().is_none());
    let reader = queued(&server, lock.read(), 2).await;
    let second = queued(&server, lock.write(), 3).await;
    let third = queued(&server, lock.write(), 4).await;
    inside.release().await.unwrap();
    for (writer, left) in [first, second, third].into_iter().zip([3, 2, 1]) {
        let writer = writer.enters().await;
        assert_eq!(server.queued("a").await, left, "only one writer enters at a time");
        assert!(!reader.entered(), "a reader passed a writer");
        writer.release().await.unwrap();
    }
    drop(reader.enters().await);
}

#[tokio::test]
async fn writer_first_starves_a_reader_while_writers_keep_coming() {
    const TURNS: usize = 20;
    let server = Server::start().await;
    let lock = user_of(&server, Policy::WriterFirst).await;
    let mut inside = write(&lock).await;
    let reader = queued(&server, lock.read(), 1).await;
    for _ in 0..TURNS {
        let next = queued(&server, lock.write(), 2).await;
        inside.release().await.unwrap();
        inside = next.enters().await;
        assert!(!reader.entered(), "it did not starve");
        assert_eq!(lock.status().await.unwrap().waiters.len(), 1);
    }
    inside.release().await.unwrap();
    drop(reader.enters().await);
}

#[tokio::test]
async fn reader_first_lets_readers_in_beside_readers_though_writers_wait() {
    let server = Server::start().await;
    let lock = user_of(&server, Policy::ReaderFirst).await;
    let inside = read(&lock).await;
    let first = queued(&server, lock.write(), 1).await;
    let second = queued(&server, lock.write(), 2).await;
    let beside = lock.read().try_acquire().await.unwrap().expect("readers go first");
    let also = read(&lock).await;
    assert!(!first.entered() && !second.entered());
    for guard in [inside, beside, also] {
        assert_eq!(server.queued("a").await, 2);
        guard.release().await.unwrap();
    }
    let first = first.enters().await;
    // Nobody enters beside a writer. Readers that wait pass the writer that waits.
    assert!(lock.read().try_acquire().await.unwrap().is_none());
    let reader = queued(&server, lock.read(), 2).await;
    let also = queued(&server, lock.read(), 3).await;
    first.release().await.unwrap();
    let (reader, also) = (reader.enters().await, also.enters().await);
    assert!(!second.entered());
    reader.release().await.unwrap();
    also.release().await.unwrap();
    drop(second.enters().await);
}

#[tokio::test]
async fn reader_first_starves_a_writer_while_readers_overlap() {
    const TURNS: usize = 20;
    let server = Server::start().await;
    let lock = user_of(&server, Policy::ReaderFirst).await;
    let mut inside = read(&lock).await;
    let writer = queued(&server, lock.write(), 1).await;
    for _ in 0..TURNS {
        let next = read(&lock).await;
        inside.release().await.unwrap();
        inside = next;
        assert_eq!(server.queued("a").await, 1, "it did not starve");
    }
    assert!(!writer.entered());
    inside.release().await.unwrap();
    drop(writer.enters().await);
}

#[tokio::test]
async fn another_policy_than_the_stored_one_is_refused_and_changes_nothing() {
    for stored in POLICIES {
        let server = Server::start().await;
        let agreeing = user_of(&server, stored).await;
        let guard = read(&agreeing).await;
        let waits = queued(&server, agreeing.write(), 1).await;
        let before = everything(&server).await;
        for other in POLICIES.into_iter().filter(|other| *other != stored) {
            let lock = user_of(&server, other).await;
            let mine = lock.with_owner(&Owner::new());
            let refusals = async {
                [
                    lock.write().acquire_fair().await.map(drop),
                    lock.read().acquire_fair().await.map(drop),
                    mine.read().try_acquire().await.map(drop),
                    mine.write().try_acquire_for(Duration::from_secs(1)).await.map(drop),
                ]
            };
            let refusals = soon("the refusals", refusals).await;
            for refused in refusals {
                let Err(Error::PolicyMismatch {
                    lock, stored: named, ..
                }) = refused
                else {
                    panic!("{other:?} on {stored:?}: {refused:?}");
                };
                assert_eq!((lock.as_str(), named), ("a", stored));
            }
            assert_eq!(everything(&server).await, before, "{other:?} on {stored:?}");
        }
        // Those who agree go on, also when nobody is inside any more.
        guard.release().await.unwrap();
        waits.enters().await.release().await.unwrap();
        write(&user_of(&server, stored).await).await.release().await.unwrap();
        assert_eq!(agreeing.status().await.unwrap().policy, stored);
        let other = POLICIES
            .into_iter()
            .find(|other| *other != stored)
            .expect("three of them");
        let late = user_of(&server, other).await.write().try_acquire().await;
        assert!(matches!(late, Err(Error::PolicyMismatch { .. })), "{late:?}");
    }
}

/// All three keys of the lock, as they are stored.
async fn everything(server: &Server) -> HashMap<String, Vec<Vec<u8>>> {
    let mut stored = HashMap::new();
    for key in ["fairlock:{a}", "fairlock:{a}:q", "fairlock:{a}:l"] {
        let mut redis = server.redis().await;
        stored.insert(key.to_owned(), content(&mut redis, key).await);
    }
    assert!(
        stored.values().all(|content| content.len() > 1),
        "a lock that is held and waited for has three keys"
    );
    stored
}

#[tokio::test]
async fn an_upgrade_goes_before_all_who_wait_under_every_policy() {
    for policy in POLICIES {
        let server = Server::start().await;
        let (lock, waiters) = (user_of(&server, policy).await, user_of(&server, policy).await);
        let other = read(&lock).await;
        let reading = Arc::new(read(&lock).await);
        let writer = queued(&server, waiters.write(), 1).await;
        let upgrader = Arc::clone(&reading);
        let upgrade = waiting(&server, async move { upgrader.upgrade().await }, 2).await;
        // Behind the upgrade even where readers go first.
        let reader = queued(&server, waiters.read(), 3).await;
        other.release().await.unwrap();
        let writing = upgrade.enters().await;
        assert!(!writer.entered() && !reader.entered(), "{policy:?}");
        assert!(writing.fencing_token() > reading.fencing_token());
        writing.release().await.unwrap();
        let enters_beside = policy == Policy::ReaderFirst;
        assert_eq!(
            server.queued("a").await,
            if enters_beside { 1 } else { 2 },
            "{policy:?}"
        );
        Arc::into_inner(reading)
            .expect("the upgrade is over")
            .release()
            .await
            .unwrap();
        if enters_beside {
            drop(reader.enters().await);
            drop(writer.enters().await);
        } else {
            writer.enters().await.release().await.unwrap();
            drop(reader.enters().await);
        }
    }
}

#[tokio::test]
async fn a_downgrade_lets_in_whom_the_policy_puts_first() {
    for policy in POLICIES {
        let server = Server::start().await;
        let (lock, waiters) = (user_of(&server, policy).await, user_of(&server, policy).await);
        let writing = write(&lock).await;
        let writer = queued(&server, waiters.write(), 1).await;
        let reader = queued(&server, waiters.read(), 2).await;
        let reading = downgrade(writing).await;
        let enters_beside = policy == Policy::ReaderFirst;
        assert_eq!(
            server.queued("a").await,
            if enters_beside { 1 } else { 2 },
            "{policy:?}"
        );
        assert!(!writer.entered());
        reading.release().await.unwrap();
        if enters_beside {
            drop(reader.enters().await);
            drop(writer.enters().await);
        } else {
            drop(writer.enters().await);
            drop(reader.enters().await);
        }
    }
}
