//! A reader that asks to write.

use crate::lock::cancellation::{MOMENTS, drop_at, setting};
use crate::proxy::Proxy;
use crate::server::{Server, eventually, soon};
use crate::users::{LEASE, LONG, Waiting, client, held_by, queued, read, state, user, waiting, write};
use fairlock::{Error, LostReason, Owner, ReadGuard, Write};
use futures::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// A reader that waits to write, at that place of the queue of "a". Its read hold stays outside.
async fn upgrading(server: &Server, reading: &Arc<ReadGuard>, place: usize) -> Waiting<Write> {
    let reading = Arc::clone(reading);
    waiting(server, async move { reading.upgrade().await }, place).await
}

/// Two readers of a lock, each of a client of its own, who hold it until they release it.
async fn two_readers(server: &Server) -> (Arc<ReadGuard>, Arc<ReadGuard>) {
    let (here, there) = (user(server, LONG).await, user(server, LONG).await);
    (Arc::new(read(&here).await), Arc::new(read(&there).await))
}

async fn release(shared: Arc<ReadGuard>) {
    let guard = Arc::into_inner(shared).expect("nobody else uses it");
    guard.release().await.expect("it is held");
}

#[tokio::test]
async fn try_upgrade_of_the_only_reader_writes_at_once_with_a_greater_token() {
    let server = Server::start().await;
    let (lock, other) = (user(&server, LONG).await, user(&server, LONG).await);
    let reading = read(&lock).await;
    let writing = reading.try_upgrade().await.unwrap().expect("nobody else reads");
    assert!(writing.fencing_token() > reading.fencing_token());
    assert!(other.read().try_acquire().await.unwrap().is_none());
    writing.release().await.unwrap();
    // It reads on.
    assert!(reading.is_held());
    assert!(other.write().try_acquire().await.unwrap().is_none());
    assert!(other.read().try_acquire().await.unwrap().is_some());
    reading.release().await.unwrap();
}

#[tokio::test]
async fn try_upgrade_beside_another_reader_is_none_and_the_read_hold_stays() {
    let server = Server::start().await;
    let (mine, other) = two_readers(&server).await;
    let before = state(&server, "a").await;
    let none = soon("an answer", mine.try_upgrade()).await.unwrap();
    assert!(none.is_none());
    assert!(mine.is_held() && other.is_held());
    assert_eq!(state(&server, "a").await, before);
    assert_eq!(server.queued("a").await, 0);
    release(other).await;
    assert!(mine.try_upgrade().await.unwrap().is_some());
    release(mine).await;
}

#[tokio::test]
async fn an_upgrade_waits_for_the_other_readers_ahead_of_the_queue() {
    let server = Server::start().await;
    let lock = user(&server, LONG).await;
    let (mine, other) = two_readers(&server).await;
    let writer = queued(&server, lock.write(), 1).await;
    let reader = queued(&server, lock.read(), 2).await;
    let upgrade = upgrading(&server, &mine, 3).await;
    let waiters = lock.status().await.unwrap().waiters;
    let upgrades: Vec<bool> = waiters.iter().map(|waiter| waiter.upgrade).collect();
    assert_eq!(upgrades, [true, false, false]);
    assert_eq!(waiters[0].owner, mine.owner());
    assert!(mine.is_held() && !upgrade.entered());

    release(other).await;
    let writing = upgrade.enters().await;
    assert!(!writer.entered() && !reader.entered());
    writing.release().await.unwrap();
    assert_eq!(
        server.queued("a").await,
        2,
        "somebody entered before the reader had left"
    );
    release(mine).await;
    writer.enters().await.release().await.unwrap();
    drop(reader.enters().await);
}

#[tokio::test]
async fn no_reader_enters_while_an_upgrade_waits() {
    let server = Server::start().await;
    let lock = user(&server, LONG).await;
    let (mine, other) = two_readers(&server).await;
    let upgrade = upgrading(&server, &mine, 1).await;
    assert!(
        lock.read().try_acquire().await.unwrap().is_none(),
        "a newcomer passed the upgrade"
    );
    let newcomer = queued(&server, lock.read(), 2).await;
    release(other).await;
    let writing = upgrade.enters().await;
    assert!(!newcomer.entered());
    writing.release().await.unwrap();
    let newcomer = newcomer.enters().await;
    assert!(mine.is_held() && newcomer.is_held());
}

#[tokio::test]
async fn nested_reads_of_its_own_owner_do_not_block_an_upgrade() {
    let server = Server::start().await;
    let (here, there, stranger) = (
        user(&server, LONG).await,
        user(&server, LONG).await,
        user(&server, LONG).await,
    );
    let owner = Owner::new();
    let reading = Arc::new(read(&here.with_owner(&owner)).await);
    let nested = read(&here.with_owner(&owner)).await;
    let elsewhere = read(&there.with_owner(&owner)).await;
    let writing = reading.try_upgrade().await.unwrap().expect("only its own reads");
    writing.release().await.unwrap();
    let other = read(&stranger).await;
    assert!(reading.try_upgrade().await.unwrap().is_none());
    let upgrade = upgrading(&server, &reading, 1).await;
    // While it waits it may read once more: that must not wait behind itself.
    let late = read(&here.with_owner(&owner)).await;
    other.release().await.unwrap();
    let writing = upgrade.enters().await;
    assert_eq!(
        state(&server, "a").await,
        held_by(&owner, 4, 1, writing.fencing_token())
    );
    for guard in [nested, elsewhere, late] {
        guard.release().await.unwrap();
    }
    assert_eq!(
        state(&server, "a").await,
        held_by(&owner, 1, 1, writing.fencing_token())
    );
}

#[tokio::test]
async fn a_second_upgrade_gets_a_conflict_at_once_and_the_first_enters_when_it_leaves() {
    let server = Server::start().await;
    let (first, second) = two_readers(&server).await;
    let upgrade = upgrading(&server, &first, 1).await;
    let refused = soon("an answer", second.upgrade()).await;
    assert!(
        matches!(refused, Err(Error::UpgradeConflict { ref lock, .. }) if lock == "a"),
        "{refused:?}"
    );
    let refused = soon("an answer", second.try_upgrade()).await;
    assert!(matches!(refused, Err(Error::UpgradeConflict { .. })), "{refused:?}");
    assert!(second.is_held() && first.is_held() && !upgrade.entered());
    assert_eq!(server.queued("a").await, 1);
    release(second).await;
    let writing = upgrade.enters().await;
    assert!(writing.is_held());
}

#[tokio::test]
async fn two_owners_that_read_and_ask_to_write_get_one_guard_and_one_conflict() {
    let server = Server::start().await;
    let mut readers = Vec::new();
    for _ in 0..2 {
        let mine = user(&server, LONG).await.with_owner(&Owner::new());
        readers.push((read(&mine).await, mine));
    }
    let (second_read, second) = readers.pop().unwrap();
    let (first_read, first) = readers.pop().unwrap();
    let writer = queued(&server, first.write(), 1).await;
    for _ in 0..2 {
        let refused = soon("an answer", second.write().acquire_fair()).await;
        assert!(matches!(refused, Err(Error::UpgradeConflict { .. })), "{refused:?}");
    }
    assert!(second_read.is_held());
    second_read.release().await.unwrap();
    let writing = writer.enters().await;
    assert!(writing.fencing_token() > first_read.fencing_token());
    // Who was refused waits like anybody else, now that it does not read.
    let second = queued(&server, second.write(), 1).await;
    writing.release().await.unwrap();
    assert!(!second.entered());
    first_read.release().await.unwrap();
    drop(second.enters().await);
}

#[tokio::test]
async fn a_cancelled_upgrade_keeps_the_read_hold_and_lets_in_who_waited_behind() {
    let server = Server::start().await;
    let lock = user(&server, LONG).await;
    let (mine, other) = two_readers(&server).await;
    let upgrade = upgrading(&server, &mine, 1).await;
    let reader = queued(&server, lock.read(), 2).await;
    upgrade.cancel().await;
    let reader = reader.enters().await;
    assert_eq!(state(&server, "a").await["reads"], "3");
    assert!(mine.is_held() && other.is_held() && reader.is_held());
    // The way is free for another one.
    release(other).await;
    reader.release().await.unwrap();
    assert!(mine.try_upgrade().await.unwrap().is_some());
}

#[tokio::test]
async fn an_upgrade_that_was_cancelled_may_be_asked_for_again_at_once() {
    let server = Server::start().await;
    let (mine, other) = two_readers(&server).await;
    for _ in 0..20 {
        let upgrade = timeout(Duration::from_millis(5), mine.upgrade()).await;
        assert!(
            upgrade.is_err(),
            "neither granted nor in conflict with its former self: {upgrade:?}"
        );
    }
    let upgrade = upgrading(&server, &mine, 1).await;
    release(other).await;
    assert!(upgrade.enters().await.is_held());
}

#[tokio::test]
async fn a_second_upgrade_of_one_guard_is_refused_while_the_first_waits() {
    let server = Server::start().await;
    let (mine, other) = two_readers(&server).await;
    let upgrade = upgrading(&server, &mine, 1).await;
    let second = soon("an answer", mine.upgrade()).await;
    assert!(matches!(second, Err(Error::OwnerWaiting { .. })), "{second:?}");
    assert_eq!(server.queued("a").await, 1);
    release(other).await;
    assert!(upgrade.enters().await.is_held());
}

#[tokio::test]
async fn an_upgrade_that_is_dropped_around_its_grant_gives_the_write_back() {
    let s = setting().await;
    let cases = MOMENTS.map(async |moment| {
        let name = format!("{moment:?}");
        let reading = Arc::new(read(&s.far.rw_lock(&*name)).await);
        let upgrading = Arc::clone(&reading);
        drop_at(moment, async move { upgrading.upgrade().await.map(drop) }).await;
        let beside = read(&s.near.rw_lock(&*name)).await;
        assert!(reading.is_held());
        beside.release().await.unwrap();
    });
    join_all(cases).await;
}

#[tokio::test]
async fn an_upgrader_that_dies_costs_the_others_its_lease() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let dying = client(proxy.url(), LEASE).await.rw_lock("a");
    let lock = user(&server, LONG).await;
    let dead = Arc::new(read(&dying).await);
    let other = read(&user(&server, LONG).await).await;
    let upgrade = upgrading(&server, &dead, 1).await;
    let reader = queued(&server, lock.read(), 2).await;
    proxy.stall(true);
    // Its lease, and no other: the others' are longer than `PATIENCE`.
    let reader = reader.enters().await;
    eventually("the dead read hold gone", async || {
        state(&server, "a").await["reads"] == "2"
    })
    .await;
    assert!(!dead.is_held() && other.is_held());
    assert!(matches!(upgrade.fails().await, Error::Lost { .. }));
    drop(reader);
}

#[tokio::test]
async fn an_upgrader_whose_runtime_ends_costs_the_others_its_lease() {
    let server = Server::start().await;
    let url = server.url();
    let other = read(&user(&server, LONG).await).await;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.spawn(async move {
        let reading = read(&client(url, LEASE).await.rw_lock("a")).await;
        reading.upgrade().await.map(drop)
    });
    server.until_queued("a", 1).await;
    let reader = queued(&server, user(&server, LONG).await.read(), 2).await;
    runtime.shutdown_background();
    drop(reader.enters().await);
    assert!(other.is_held());
}

#[tokio::test]
async fn an_upgrade_whose_reply_is_lost_counts_once() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let owner = Owner::new();
    let mine = client(proxy.url(), LONG).await.rw_lock("a").with_owner(&owner);
    let reading = Arc::new(read(&mine).await);
    // Alone: the reply that is lost says "granted".
    proxy.lose_replies(1);
    let writing = soon("the upgrade", reading.upgrade()).await.unwrap();
    assert_eq!(proxy.replies_to_lose(), 0);
    assert_eq!(
        state(&server, "a").await,
        held_by(&owner, 1, 1, writing.fencing_token())
    );
    writing.release().await.unwrap();
    assert_eq!(state(&server, "a").await["mode"], "read");

    // Beside another reader: it says "queued".
    let other = read(&user(&server, LONG).await).await;
    proxy.lose_replies(1);
    let upgrade = upgrading(&server, &reading, 1).await;
    eventually("its reply lost", async || proxy.replies_to_lose() == 0).await;
    assert_eq!(server.queued("a").await, 1);
    other.release().await.unwrap();
    let writing = upgrade.enters().await;
    assert_eq!(
        state(&server, "a").await,
        held_by(&owner, 1, 1, writing.fencing_token())
    );
    writing.release().await.unwrap();
    release(reading).await;
    assert!(state(&server, "a").await.is_empty());
}

#[tokio::test]
async fn an_upgrade_whose_read_hold_was_lost_meanwhile_is_lost() {
    let server = Server::start().await;
    let lock = user(&server, LONG).await;
    let asked = lock.read().max_hold(LEASE).acquire_fair();
    let reading = Arc::new(soon("to read", asked).await.unwrap());
    let other = read(&user(&server, LONG).await).await;
    let upgrade = upgrading(&server, &reading, 1).await;
    let behind = queued(&server, lock.read(), 2).await;
    assert_eq!(soon("the loss", reading.lost()).await, LostReason::MaxHold);
    // At once, though another one reads; and it holds up nobody.
    let lost = upgrade.fails().await;
    drop(behind.enters().await);
    other.release().await.unwrap();
    assert!(
        matches!(
            lost,
            Error::Lost {
                reason: LostReason::MaxHold,
                ..
            }
        ),
        "{lost:?}"
    );
    // What was granted is given back.
    write(&user(&server, LONG).await).await.release().await.unwrap();
    let late = reading.upgrade().await;
    assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
    let late = reading.try_upgrade().await;
    assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
}

#[tokio::test]
async fn an_upgrade_has_what_is_left_of_the_max_hold_of_its_read_hold() {
    let server = Server::start().await;
    let lock = user(&server, LONG).await;
    for tries in [false, true] {
        let asked = lock.read().max_hold(LEASE).acquire_fair();
        let reading = soon("to read", asked).await.unwrap();
        let writing = match tries {
            false => soon("to write", reading.upgrade()).await.unwrap(),
            true => soon("to write", reading.try_upgrade()).await.unwrap().unwrap(),
        };
        assert_eq!(soon("the end", writing.lost()).await, LostReason::MaxHold);
        // Nobody released anything.
        write(&user(&server, LONG).await).await.release().await.unwrap();
        drop((writing, reading));
    }
}

/// An upgrade is sent after the releases of its owner. Until then the read hold may end.
#[tokio::test]
async fn a_try_to_upgrade_tells_why_its_read_hold_ended_before_it_was_asked() {
    let server = Server::start().await;
    let lock = user(&server, LONG).await.with_owner(&Owner::new());
    let asked = lock.read().max_hold(LEASE).acquire_fair();
    let reading = soon("to read", asked).await.unwrap();
    let other = read(&lock).await;
    server.freeze();
    drop(other);
    let ended = async {
        assert_eq!(reading.lost().await, LostReason::MaxHold);
        server.thaw();
    };
    let (upgraded, ()) = soon("an answer", futures::future::join(reading.try_upgrade(), ended)).await;
    let reason = match upgraded {
        Err(Error::Lost { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason, LostReason::MaxHold);
}

#[tokio::test]
async fn an_upgrade_is_refused_when_the_server_lost_the_read_hold_before_it_was_asked() {
    let unknown = |result: &Result<(), Error>| {
        let reason = match result {
            Err(Error::Lost { reason, .. }) => *reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(reason, LostReason::UnknownToServer);
    };
    let server = Server::start().await;
    // So long that no renewal tells of the loss.
    let (lock, other) = (user(&server, LONG).await, user(&server, LONG).await);
    for (reader_inside, tries) in [(false, false), (false, true), (true, false), (true, true)] {
        let reading = read(&lock).await;
        let mut forget = redis::cmd("DEL");
        forget.arg(&["fairlock:{a}", "fairlock:{a}:q", "fairlock:{a}:l"]);
        forget.exec_async(&mut server.redis().await).await.unwrap();
        // Another one writes in between.
        write(&other).await.release().await.unwrap();
        let inside = if reader_inside { Some(read(&other).await) } else { None };
        if tries {
            unknown(&soon("an answer", reading.try_upgrade()).await.map(drop));
        } else {
            unknown(&soon("an answer", reading.upgrade()).await.map(drop));
        }
        assert_eq!(soon("the loss", reading.lost()).await, LostReason::UnknownToServer);
        assert_eq!(server.queued("a").await, 0);
        if let Some(inside) = inside {
            inside.release().await.unwrap();
        }
        // Nothing was granted.
        write(&other).await.release().await.unwrap();
        drop(reading);
    }
}
