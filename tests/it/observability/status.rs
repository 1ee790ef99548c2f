//! What status says of a lock, and that saying it changes nothing.

use crate::lateness::in_time;
use crate::proxy::Proxy;
use crate::server::{Server, connected, content, eventually, soon};
use crate::users::write;
use fairlock::{Client, Error, Holder, LostReason, Mode, Owner, Policy, RwLock, WriteGuard};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// So long that nothing is renewed and nothing expires in a test.
const LONG: Duration = Duration::from_secs(600);
/// What two clocks of one machine, read one after the other, may differ by here.
const SLACK: Duration = Duration::from_secs(90);

async fn client(server: &Server, label: &str) -> Client {
    let builder = Client::builder().lease(LONG).label(label);
    connected(builder, server.url()).await
}

/// Every key with its content.
pub async fn dumps(server: &Server) -> Vec<(String, Vec<Vec<u8>>)> {
    let mut redis = server.redis().await;
    let mut dumps = Vec::new();
    for key in server.keys().await {
        let content = content(&mut redis, &key).await;
        dumps.push((key, content));
    }
    dumps
}

/// Owner, mode and holds, in an order that does not depend on random names.
fn holds(holders: &[Holder]) -> BTreeSet<(Owner, bool, u64)> {
    let holds = holders.iter().map(|h| (h.owner, h.mode == Mode::Write, h.holds));
    holds.collect()
}

/// A waiting writer of that owner; it leaves when the test's runtime ends.
async fn queue_writer(server: &Server, lock: &RwLock, owner: &Owner, queued: usize) {
    tokio::spawn(lock.with_owner(owner).write().acquire_fair());
    server.until_queued(lock.name(), queued).await;
}

#[tokio::test]
async fn a_free_lock_has_no_mode_no_holders_and_no_keys() {
    let server = Server::start().await;
    let client = client(&server, "here").await;
    let before = dumps(&server).await;
    for lock in [client.rw_lock("a"), client.rw_lock("a").policy(Policy::ReaderFirst)] {
        let status = lock.status().await.unwrap();
        assert_eq!(status.mode, None);
        assert_eq!(status.policy, Policy::Fifo, "nobody has chosen one yet");
        assert_eq!((status.holding, status.waiting), (0, 0));
        assert!(status.holders.is_empty() && status.waiters.is_empty());
    }
    assert_eq!(dumps(&server).await, before);
    // The same when it has been used.
    write(&client.rw_lock("a")).await.release().await.unwrap();
    let status = client.rw_lock("a").status().await.unwrap();
    assert_eq!((status.mode, status.holding, status.waiting), (None, 0, 0));
    assert!(status.holders.is_empty());
}

#[tokio::test]
async fn a_sole_holder_is_shown_with_owner_token_lease_and_client() {
    let server = Server::start().await;
    let lock = client(&server, "billing").await.rw_lock("a");
    let watching = client(&server, "watching").await.rw_lock("a");
    let named = Owner::new();
    for owner in [None, Some(named)] {
        let lock = owner.map_or(lock.clone(), |owner| lock.with_owner(&owner));
        let begun = Instant::now();
        let guard = lock.write().acquire_fair().await.unwrap();
        assert!(!server.keys().await.iter().any(|key| key.ends_with(":l")), "not sole");
        let status = watching.status().await.unwrap();
        assert_eq!((status.mode, status.holding, status.waiting), (Some(Mode::Write), 1, 0));
        let [holder] = &status.holders[..] else {
            panic!("{status:?}")
        };
        assert_eq!(holder.owner, guard.owner());
        assert!(owner.is_none_or(|owner| owner == holder.owner));
        assert_eq!(holder.token, guard.fencing_token());
        assert_eq!((holder.mode, holder.holds), (Mode::Write, 1));
        assert!(
            holder.lease_left <= LONG && holder.lease_left > LONG - SLACK,
            "{holder:?}"
        );
        assert!(holder.held_for <= begun.elapsed() + SLACK, "{holder:?}");
        assert_eq!(holder.client.label.as_deref(), Some("billing"));
        assert_eq!(holder.client.process, Some(std::process::id()));
        assert!(holder.client.host.is_some() && !holder.client.id.is_empty());
        let later = watching.status().await.unwrap().holders[0].held_for;
        assert!(later > holder.held_for, "time goes by: {later:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn readers_of_two_clients_are_shown_each_with_its_owners_holds() {
    let server = Server::start().await;
    let (here, there) = (
        client(&server, "here").await.rw_lock("a"),
        client(&server, "there").await.rw_lock("a"),
    );
    let twice = Owner::new();
    let first = here.with_owner(&twice).read().acquire_fair().await.unwrap();
    let again = there.with_owner(&twice).read().acquire_fair().await.unwrap();
    let once = there.read().acquire_fair().await.unwrap();
    let status = here.status().await.unwrap();
    assert_eq!((status.mode, status.holding, status.waiting), (Some(Mode::Read), 3, 0));
    let expected = BTreeSet::from([(twice, false, 2), (once.owner(), false, 1)]);
    assert_eq!(holds(&status.holders), expected);
    assert_eq!(status.holders.len(), 3, "the owner that reads twice has two requests");
    let labels = |owner: Owner| -> BTreeSet<_> {
        let of_owner = status.holders.iter().filter(|h| h.owner == owner);
        of_owner.filter_map(|h| h.client.label.clone()).collect()
    };
    assert_eq!(labels(twice), BTreeSet::from(["here".to_owned(), "there".to_owned()]));
    assert_eq!(labels(once.owner()), BTreeSet::from(["there".to_owned()]));
    for holder in &status.holders {
        let guard = if holder.owner == twice { &first } else { &once };
        assert_eq!(holder.token, guard.fencing_token());
    }
    again.release().await.unwrap();
    assert!(holds(&here.status().await.unwrap().holders).contains(&(twice, false, 1)));
}

#[tokio::test]
async fn a_writer_that_also_reads_is_shown_with_both_and_one_token() {
    let server = Server::start().await;
    let lock = client(&server, "here").await.rw_lock("a");
    let me = Owner::new();
    let mine = lock.with_owner(&me);
    let outer = mine.write().acquire_fair().await.unwrap();
    let _inner = mine.write().acquire_fair().await.unwrap();
    let _reading = mine.read().acquire_fair().await.unwrap();
    let status = lock.status().await.unwrap();
    assert_eq!((status.mode, status.holding), (Some(Mode::Write), 3));
    assert_eq!(holds(&status.holders), BTreeSet::from([(me, true, 2), (me, false, 1)]));
    assert!(status.holders.iter().all(|h| h.token == outer.fencing_token()));
}

/// A client whose process died: its runtime is gone, and nobody said goodbye.
fn die_holding(url: String) -> WriteGuard {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let guard = runtime.block_on(async {
            let builder = Client::builder().lease(LONG).label("gone");
            let client = builder.connect(url).await.unwrap();
            client.rw_lock("a").write().acquire_fair().await.unwrap()
        });
        runtime.shutdown_background();
        guard
    });
    thread.join().expect("no panic")
}

#[tokio::test]
async fn a_dead_client_is_still_known_by_its_label_and_one_that_left_in_order_leaves_nothing() {
    let server = Server::start().await;
    let url = server.url();
    let dead = tokio::task::spawn_blocking(move || die_holding(url)).await.unwrap();
    eventually("its connections closed", async || server.connections().await == 0).await;
    let watching = client(&server, "watching").await;
    let status = watching.rw_lock("a").status().await.unwrap();
    let [holder] = &status.holders[..] else {
        panic!("{status:?}")
    };
    assert_eq!(holder.owner, dead.owner());
    assert_eq!(holder.client.label.as_deref(), Some("gone"));
    assert_eq!(holder.client.process, Some(std::process::id()));
    let said = holder.client.to_string();
    assert!(said.starts_with("gone (process "), "{said}");

    let introductions = async || {
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg("fairlock:client:*")
            .query_async(&mut server.redis().await)
            .await
            .unwrap();
        keys.len()
    };
    assert_eq!(introductions().await, 2);
    let leaving = client(&server, "leaving").await;
    assert_eq!(introductions().await, 3);
    drop(leaving);
    eventually("its introduction is gone", async || introductions().await == 2).await;
}

#[tokio::test]
async fn waiters_are_listed_in_the_order_in_which_they_enter_and_an_upgrade_first() {
    let server = Server::start().await;
    let (here, there) = (
        client(&server, "here").await.rw_lock("a"),
        client(&server, "there").await.rw_lock("a"),
    );
    let [upgrading, other, first, third] = [(); 4].map(|()| Owner::new());
    let begun = Instant::now();
    let _other = here.with_owner(&other).read().acquire_fair().await.unwrap();
    let reading = here.with_owner(&upgrading).read().acquire_fair().await.unwrap();
    queue_writer(&server, &there, &first, 1).await;
    tokio::spawn(here.read().acquire_fair());
    server.until_queued("a", 2).await;
    queue_writer(&server, &here, &third, 3).await;
    tokio::spawn(async move { reading.upgrade().await.map(|writing| (writing, reading)) });
    server.until_queued("a", 4).await;

    let status = here.status().await.unwrap();
    assert_eq!((status.mode, status.holding, status.waiting), (Some(Mode::Read), 2, 4));
    let waiters = &status.waiters;
    assert!(waiters.iter().map(|w| w.position).eq(0..4));
    assert!(waiters.iter().map(|w| w.upgrade).eq([true, false, false, false]));
    let modes = [Mode::Write, Mode::Write, Mode::Read, Mode::Write];
    assert!(waiters.iter().map(|w| w.mode).eq(modes));
    let owners: Vec<_> = waiters.iter().map(|w| w.owner).collect();
    assert_eq!((owners[0], owners[1], owners[3]), (upgrading, first, third));
    let labels: Vec<_> = waiters.iter().filter_map(|w| w.client.label.as_deref()).collect();
    assert_eq!(labels, ["here", "there", "here", "here"]);
    for waiter in waiters {
        assert!(waiter.waited <= begun.elapsed() + SLACK, "{waiter:?}");
        assert!(
            waiter.lease_left <= LONG && waiter.lease_left > LONG - SLACK,
            "{waiter:?}"
        );
    }
    assert!(waiters[1].waited > waiters[2].waited && waiters[2].waited > waiters[3].waited);
    assert!(waiters[3].waited > waiters[0].waited, "the upgrade came last");
    let late = here.status_from(2).await.unwrap();
    assert!(
        late.waiters
            .iter()
            .map(|w| (w.position, w.owner))
            .eq([(2, owners[2]), (3, third)])
    );
    assert_eq!((late.waiting, late.holders.len()), (4, 2));
}

#[tokio::test]
async fn the_policy_is_shown_and_so_is_its_order() {
    for policy in [Policy::Fifo, Policy::WriterFirst, Policy::ReaderFirst] {
        let server = Server::start().await;
        let plain = client(&server, "here").await.rw_lock("a");
        let lock = plain.policy(policy);
        let begun = Instant::now();
        let _guard = lock.write().acquire_fair().await.unwrap();
        tokio::spawn(lock.read().acquire_fair());
        server.until_queued("a", 1).await;
        queue_writer(&server, &lock, &Owner::new(), 2).await;
        tokio::spawn(lock.read().acquire_fair());
        server.until_queued("a", 3).await;
        // Also to one who does not know the policy.
        let status = plain.status().await.unwrap();
        assert_eq!(status.policy, policy);
        let expected = match policy {
            Policy::WriterFirst => [Mode::Write, Mode::Read, Mode::Read],
            Policy::ReaderFirst => [Mode::Read, Mode::Read, Mode::Write],
            _ => [Mode::Read, Mode::Write, Mode::Read],
        };
        assert!(status.waiters.iter().map(|w| w.mode).eq(expected), "{policy:?}");
        // Whatever the policy makes of their places.
        for waiter in &status.waiters {
            let plausible = !waiter.waited.is_zero() && waiter.waited <= begun.elapsed() + SLACK;
            assert!(plausible, "{policy:?}: {waiter:?}");
        }
        assert!(!status.waiters.iter().any(|w| w.upgrade), "{policy:?}");
    }
}

#[tokio::test]
async fn ten_thousand_waiters_are_listed_in_pages_of_a_thousand_and_each_once() {
    const WAITERS: usize = 10_000;
    const BATCH: usize = 250;
    let server = Server::start().await;
    let lock = client(&server, "here").await.rw_lock("a");
    let _guard = lock.write().acquire_fair().await.unwrap();
    let mut waiting = JoinSet::new();
    for queued in (0..WAITERS).step_by(BATCH) {
        for _ in 0..BATCH {
            waiting.spawn(lock.read().acquire_fair());
        }
        server.until_queued("a", queued + BATCH).await;
    }
    let mut owners = BTreeSet::new();
    for first in (0..WAITERS).step_by(1000) {
        let page = lock.status_from(first).await.unwrap();
        assert_eq!((page.waiting, page.holding, page.waiters.len()), (WAITERS, 1, 1000));
        assert!(page.waiters.iter().map(|w| w.position).eq(first..first + 1000));
        owners.extend(page.waiters.iter().map(|w| w.owner));
    }
    assert_eq!(owners.len(), WAITERS, "somebody was listed twice");
    for beyond in [WAITERS, usize::MAX] {
        let page = lock.status_from(beyond).await.unwrap();
        assert_eq!((page.waiting, page.waiters.len()), (WAITERS, 0));
    }
    assert_eq!(lock.status().await.unwrap().waiters.len(), 1000);
}

#[tokio::test]
async fn an_expired_hold_that_nobody_has_ended_yet_is_shown_with_no_lease_left_and_not_ended() {
    in_time(async || {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let builder = Client::builder().lease(Duration::from_secs(1));
        let cut_off = builder.connect(proxy.url()).await.unwrap().rw_lock("a");
        let guard = cut_off.write().acquire_fair().await.unwrap();
        proxy.stall(true);
        let watching = client(&server, "watching").await.rw_lock("a");
        let lease_left = async || watching.status().await.unwrap().holders[0].lease_left;
        eventually("no lease left", async || lease_left().await.is_zero()).await;
        let before = dumps(&server).await;
        let status = watching.status().await.unwrap();
        assert_eq!(
            (status.mode, status.holders[0].owner),
            (Some(Mode::Write), guard.owner())
        );
        assert!(
            status.is_expired() && status.holders[0].expired_for.is_some(),
            "{status:?}"
        );
        assert_eq!(dumps(&server).await, before);
        assert_eq!(soon("the loss", guard.lost()).await, LostReason::LeaseExpired);
    })
    .await;
}

#[tokio::test]
async fn status_writes_nothing_and_works_on_a_replica_and_without_memory() {
    let server = Server::start().await;
    let lock = client(&server, "here").await.rw_lock("a");
    let guard = lock.write().acquire_fair().await.unwrap();
    let sole = dumps(&server).await;
    assert_eq!(lock.status().await.unwrap().holders[0].owner, guard.owner());
    assert_eq!(dumps(&server).await, sole);

    let waiting = Owner::new();
    queue_writer(&server, &lock, &waiting, 1).await;
    let queued = dumps(&server).await;
    let status = lock.status().await.unwrap();
    assert_eq!(
        (status.holders[0].owner, status.waiters[0].owner),
        (guard.owner(), waiting)
    );
    assert_eq!(dumps(&server).await, queued);

    let port = server.port().to_string();
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &port]).await;
    eventually("the replica has it all", async || {
        replica.keys().await == server.keys().await
    })
    .await;
    let there = client(&replica, "there").await.rw_lock("a");
    let copied = there.status().await.unwrap();
    assert_eq!(
        (copied.holders[0].owner, copied.waiters[0].owner),
        (guard.owner(), waiting)
    );
    assert_eq!(copied.holders[0].client.label.as_deref(), Some("here"));

    let mut redis = server.redis().await;
    let full = redis::cmd("CONFIG")
        .arg(&["SET", "maxmemory", "1"])
        .exec_async(&mut redis)
        .await;
    full.unwrap();
    // Redis 6.2 refuses what writes, and a try that finds the lock busy does not.
    let refused = lock.read().acquire_fair().await.map(drop);
    assert!(
        matches!(refused, Err(Error::Server { .. })),
        "memory is not exhausted: {refused:?}"
    );
    let status = lock.status().await.unwrap();
    assert_eq!(
        (status.holders[0].owner, status.waiters[0].owner),
        (guard.owner(), waiting)
    );
}

#[tokio::test]
async fn a_key_of_another_kind_is_a_typed_error_and_stays_as_it_is() {
    let server = Server::start().await;
    let lock = client(&server, "here").await.rw_lock("a");
    let mut redis = server.redis().await;
    for key in ["fairlock:{a}", "fairlock:{a}:q", "fairlock:{a}:l"] {
        redis::cmd("SET")
            .arg(key)
            .arg("x")
            .exec_async(&mut redis)
            .await
            .unwrap();
        let refused = lock.status().await;
        assert!(
            matches!(&refused, Err(Error::Server { lock, remedy, .. }) if lock == "a" && remedy.contains("another kind")),
            "{key}: {refused:?}"
        );
        let value: String = redis::cmd("GET").arg(key).query_async(&mut redis).await.unwrap();
        assert_eq!(value, "x");
        redis::cmd("DEL").arg(key).exec_async(&mut redis).await.unwrap();
    }
    assert_eq!(lock.status().await.unwrap().mode, None);
}

#[tokio::test]
async fn status_of_a_bad_name_or_a_closed_client_is_a_typed_error() {
    let server = Server::start().await;
    let client = client(&server, "here").await;
    let nameless = client.rw_lock("").status().await;
    assert!(matches!(nameless, Err(Error::InvalidName { .. })), "{nameless:?}");
    client.shutdown().await;
    let closed = client.rw_lock("a").status().await;
    assert!(matches!(closed, Err(Error::Shutdown { .. })), "{closed:?}");
}

#[tokio::test]
async fn what_clients_say_of_themselves_is_left_out_where_it_cannot_be_read() {
    let server = Server::start().await;
    let lock = client(&server, "here").await.rw_lock("a");
    let guard = lock.write().acquire_fair().await.unwrap();
    let id = lock.status().await.unwrap().holders[0].client.id.clone();
    let key = format!("fairlock:client:{id}");
    let mut redis = server.redis().await;
    for spoil in [
        redis::cmd("SET").arg(&key).arg(b"1\nhost\n\xff\xfe".as_slice()),
        redis::cmd("DEL").arg(&key),
        redis::cmd("HSET").arg(&key).arg("a").arg("b"),
    ] {
        spoil.exec_async(&mut redis).await.unwrap();
        let status = lock.status().await.unwrap();
        assert_eq!(status.holders[0].owner, guard.owner());
        assert_eq!(status.holders[0].client.label, None);
    }
}
