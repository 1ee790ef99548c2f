//! In which order the locks are acquired, for whom, and when not at all.

use super::Setting;
use crate::lateness::in_time;
use crate::observe::{LONG, View, client, ms, until_free};
use crate::proxy::Proxy;
use crate::server::{Server, soon};
use fairlock::{Error, Mode, Owner, Policy};
use fairlock_support::random;
use futures::FutureExt;
use futures::future::join_all;

#[tokio::test]
async fn locks_are_acquired_in_the_order_of_their_names() {
    let s = Setting::new().await;
    let names = ["B", "a", "a/b", "ab", "é"];
    // Each in turn is busy: those with smaller names are held by then, and those with greater names are not.
    for (at, busy) in names.iter().enumerate() {
        let held = client(s.server.url(), LONG).await.rw_lock(*busy).write();
        let held = held.acquire_fair().await.unwrap();
        let all = ["ab", "é", "a/b", "B", "a"].map(|name| s.client.rw_lock(name));
        let all = all.iter().fold(s.client.all(), |all, lock| all.write(lock));
        let all = tokio::spawn(all.acquire_fair());
        s.server.until_queued(busy, 1).await;
        for (i, name) in names.iter().enumerate().filter(|(i, _)| *i != at) {
            let view = View::of(&s.server, name).await;
            assert_eq!(view.holds, usize::from(i < at), "{name}, while {busy} is busy");
        }
        held.release().await.unwrap();
        let all = soon("all of them", all).await.unwrap().unwrap();
        all.release().await.unwrap();
        for name in names {
            assert!(View::of(&s.server, name).await.is_free(), "{name}");
        }
    }
}

#[tokio::test]
async fn transfers_in_all_directions_never_wait_for_each_other() {
    const ACCOUNTS: usize = 4;
    let server = Server::start().await;
    let mut random = random::seeded();
    let mut workers = Vec::new();
    for _ in 0..4 {
        let client = client(server.url(), LONG).await;
        let pairs: Vec<_> = (0..50)
            .map(|_| {
                let from = random.usize(..ACCOUNTS);
                (from, (from + random.usize(1..ACCOUNTS)) % ACCOUNTS)
            })
            .collect();
        workers.push(tokio::spawn(async move {
            for (from, to) in pairs {
                let [from, to] = [from, to].map(|account| client.rw_lock(account.to_string()));
                let all = client.all().write(&from).write(&to).acquire_fair().await.unwrap();
                assert!(all.is_held());
                all.release().await.unwrap();
            }
        }));
    }
    for worker in soon("all transfers", join_all(workers)).await {
        worker.unwrap();
    }
}

#[tokio::test]
async fn a_lock_named_twice_is_acquired_once_to_write() {
    let s = Setting::new().await;
    let [a, b, _] = &s.mine;
    let all = s.client.all().read(a).write(b).write(a).read(b).read(a);
    let all = all.try_acquire().await.unwrap().expect("they are free");
    for name in ["a", "b"] {
        let view = View::of(&s.server, name).await;
        assert_eq!((view.mode.as_str(), view.holds), ("write", 1), "{name}");
    }
    all.release().await.unwrap();
}

#[tokio::test]
async fn permits_are_acquired_among_locks_in_the_order_of_names() {
    let s = Setting::new().await;
    let gpus = s.client.semaphore("b", 4);
    let [a, _, c] = &s.mine;
    let inside = gpus.permits(3).acquire_fair().await.unwrap();
    let all = s.client.all().write(c).permits(&gpus, 2).write(a);
    let all = tokio::spawn(all.acquire_fair());
    s.server.until_queued("b", 1).await;
    assert_eq!(View::of(&s.server, "a").await.holds, 1);
    assert!(View::of(&s.server, "c").await.is_free());
    inside.release().await.unwrap();
    let all = soon("all of them", all).await.unwrap().unwrap();
    assert_eq!(gpus.status().await.unwrap().used, 2);
    assert!(all.fencing_token(gpus.rw_lock()).is_some());
    all.release().await.unwrap();
    assert_eq!(gpus.status().await.unwrap().used, 0);
}

#[tokio::test]
async fn of_a_lock_named_twice_both_requests_are_checked() {
    let s = Setting::new().await;
    let [four, eight] = [4, 8].map(|permits| s.client.semaphore("gpu", permits));
    let before = s.server.script_calls().await;
    let asked = s
        .client
        .all()
        .write(four.rw_lock())
        .permits(&four, 99)
        .try_acquire()
        .await;
    assert!(
        matches!(asked, Err(Error::InvalidPermits { given: 99, .. })),
        "{asked:?}"
    );
    for both in [
        s.client.all().permits(&four, 1).permits(&eight, 1),
        s.client.all().permits(&eight, 1).permits(&four, 1),
        s.client
            .all()
            .read(&s.mine[0])
            .write(&s.mine[0].policy(Policy::WriterFirst)),
    ] {
        let asked = both.try_acquire().await;
        assert!(matches!(asked, Err(Error::NotTogether { .. })), "{asked:?}");
    }
    assert_eq!(s.server.script_calls().await, before, "nothing was sent");
}

#[tokio::test]
async fn a_semaphore_named_twice_is_acquired_once_with_the_most_permits() {
    let s = Setting::new().await;
    let gpus = s.client.semaphore("gpu", 4);
    let all = s.client.all().permits(&gpus, 1).permits(&gpus, 3).read(gpus.rw_lock());
    let all = all.try_acquire().await.unwrap().expect("they are free");
    assert_eq!(gpus.status().await.unwrap().used, 3);
    all.release().await.unwrap();
    let alone = s.client.all().permits(&gpus, 4).write(gpus.rw_lock());
    let alone = alone.try_acquire().await.unwrap().expect("it is free");
    assert_eq!(gpus.status().await.unwrap().mode, Some(Mode::Write));
    alone.release().await.unwrap();

    let calls = s.server.script_calls().await;
    let too_many = s.client.all().write(&s.mine[0]).permits(&gpus, 5).acquire_fair().await;
    assert!(matches!(too_many, Err(Error::InvalidPermits { given: 5, .. })));
    assert_eq!(s.server.script_calls().await, calls);
}

#[tokio::test]
async fn readers_of_all_share_and_tokens_are_those_of_each_lock() {
    let s = Setting::new().await;
    let [a, b, c] = &s.mine;
    let all = s.client.all().read(a).write(b).acquire_fair().await.unwrap();
    let beside = s.others[0]
        .read()
        .try_acquire()
        .await
        .unwrap()
        .expect("a reader beside");
    assert!(s.others[1].read().try_acquire().await.unwrap().is_none());
    assert_eq!(all.fencing_token(a), Some(beside.fencing_token()));
    assert_ne!(all.fencing_token(b), all.fencing_token(a));
    assert_eq!(all.fencing_token(c), None);
    all.release().await.unwrap();
}

#[tokio::test]
async fn the_owner_of_all_reenters_each_lock() {
    let s = Setting::new().await;
    let [a, b, _] = &s.mine;
    let all = s.client.all().write(a).write(b).acquire_fair().await.unwrap();
    let inner = a.with_owner(&all.owner()).write().try_acquire().await.unwrap();
    assert_eq!(
        inner.expect("it reenters").fencing_token(),
        all.fencing_token(a).unwrap()
    );
    // And all reenters what its owner holds already, named on the handle or on the request.
    let mine = Owner::new();
    let held = s.mine[2].with_owner(&mine).write().acquire_fair().await.unwrap();
    let by_handle = s.client.all().write(&s.mine[2].with_owner(&mine)).try_acquire().await;
    assert_eq!(by_handle.unwrap().expect("it reenters").owner(), mine);
    let by_request = s.client.all().with_owner(&mine).write(&s.mine[2]).try_acquire().await;
    assert!(by_request.unwrap().is_some());
    held.release().await.unwrap();
}

#[tokio::test]
async fn all_reenters_what_the_owner_of_its_scope_holds() {
    let s = Setting::new().await;
    let owner = Owner::new();
    let inside = async {
        let held = s.mine[0].write().acquire_fair().await.unwrap();
        let all = s.client.all().write(&s.mine[0]).try_acquire().await.unwrap();
        assert_eq!(all.expect("it reenters").owner(), owner);
        held.release().await.unwrap();
    };
    owner.scope(inside).await;
}

#[tokio::test]
async fn what_can_be_refused_is_refused_before_anything_is_sent() {
    let s = Setting::new().await;
    let [a, b, _] = &s.mine;
    let calls = s.server.script_calls().await;
    let foreign = s.client.all().write(a).write(&s.others[1]).acquire_fair().await;
    let foreign = foreign.expect_err("a handle of another client");
    assert!(
        matches!(&foreign, Error::NotTogether { lock, .. } if lock == "b"),
        "{foreign}"
    );
    let [one, another] = [Owner::new(), Owner::new()];
    let mixed = s.client.all().write(&a.with_owner(&one)).write(&b.with_owner(&another));
    let mixed = mixed.try_acquire().await.expect_err("two owners");
    assert!(
        matches!(&mixed, Error::NotTogether { lock, .. } if lock == "b"),
        "{mixed}"
    );
    let nameless = s
        .client
        .all()
        .write(a)
        .write(&s.client.rw_lock(""))
        .acquire_fair()
        .await;
    assert!(matches!(nameless, Err(Error::InvalidName { .. })), "{nameless:?}");
    let hasty = s.client.all().write(a).max_hold(ms(0)).acquire_fair().await;
    assert!(matches!(hasty, Err(Error::InvalidDuration { .. })), "{hasty:?}");
    let short = s.client.all().write(a).lease(ms(1)).acquire_fair().await;
    assert!(matches!(short, Err(Error::InvalidDuration { .. })), "{short:?}");
    assert_eq!(s.server.script_calls().await, calls, "something was sent");
}

#[tokio::test]
async fn a_try_that_meets_a_busy_lock_has_given_the_others_back() {
    // The confirmations are awaited for a limited time.
    in_time(async || {
        let s = Setting::new().await;
        // Its releases are on their way for longer than a look at the server takes.
        let proxy = Proxy::to(s.server.port()).await;
        let far = client(proxy.url(), LONG).await;
        proxy.delay(ms(20));
        let [a, b, c] = ["a", "b", "c"].map(|name| far.rw_lock(name));
        let held = s.others[2].read().acquire_fair().await.unwrap();
        for _ in 0..5 {
            let tried = far.all().write(&c).write(&a).write(&b).try_acquire().await;
            assert!(tried.unwrap().is_none());
            for name in ["a", "b"] {
                assert!(View::of(&s.server, name).await.is_free(), "{name} is still held");
            }
        }
        held.release().await.unwrap();
        let tried = far.all().write(&c).write(&a).write(&b).try_acquire().await;
        assert!(tried.unwrap().is_some());
    })
    .await;
}

#[tokio::test]
async fn a_limit_that_ends_in_a_queue_has_given_the_others_back() {
    // The confirmations are awaited for a limited time.
    in_time(async || {
        let s = Setting::new().await;
        let [a, b, c] = &s.mine;
        let _held = s.others[1].write().acquire_fair().await.unwrap();
        let asking = s.client.all().write(a).write(b).write(c);
        let asked = soon("the end of the limit", asking.try_acquire_for(ms(50))).await;
        assert!(asked.unwrap().is_none());
        for name in ["a", "c"] {
            assert!(View::of(&s.server, name).await.is_free(), "{name} is still held");
        }
        let none = s.client.all().write(b).try_acquire_for(ms(0)).await;
        assert!(none.unwrap().is_none());
        let free = s.client.all().write(a).write(c).try_acquire_for(LONG).await;
        assert!(free.unwrap().is_some());
    })
    .await;
}

#[tokio::test]
async fn a_full_queue_of_any_of_the_locks_refuses_the_request_which_gives_the_others_back() {
    let s = Setting::new().await;
    let [a, b, _] = &s.mine;
    let held = s.others[1].write().acquire_fair().await.unwrap();
    let first = tokio::spawn(s.others[1].write().acquire_fair());
    s.server.until_queued("b", 1).await;
    let asking = || s.client.all().write(a).write(b);
    let refused = asking().max_queue(1).acquire_fair().await;
    assert!(
        matches!(&refused, Err(Error::QueueFull { lock, waiting: 1, .. }) if lock == "b"),
        "{refused:?}"
    );
    until_free(&s.server, "a").await;
    let second = tokio::spawn(asking().max_queue(2).acquire_fair());
    s.server.until_queued("b", 2).await;
    held.release().await.unwrap();
    drop(soon("the first", first).await.unwrap().unwrap());
    soon("the second", second)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_holder_of_all_learns_that_somebody_waits_for_one_of_them() {
    let s = Setting::new().await;
    let [a, b, c] = &s.mine;
    let all = s.client.all().write(a).write(b).write(c).acquire_fair().await.unwrap();
    let alone = s.client.all().acquire_fair().await.unwrap();
    assert!(alone.contended().now_or_never().is_none(), "nobody waits for nothing");
    let waiter = tokio::spawn(s.others[1].write().acquire_fair());
    s.server.until_queued("b", 1).await;
    soon("the waiter", all.contended()).await.unwrap();
    all.release().await.unwrap();
    drop(soon("the lock", waiter).await.unwrap().unwrap());
    let all = s.client.all().write(a).write(b).acquire_fair().await.unwrap();
    s.others[0].evict(&all.owner()).await.unwrap();
    let lost = soon("the loss", all.contended()).await;
    assert!(
        matches!(&lost, Err(Error::Lost { lock, .. }) if lock == "a"),
        "{lost:?}"
    );
}

#[tokio::test]
async fn a_limit_that_ends_in_a_queue_has_left_that_queue() {
    // The confirmations are awaited for a limited time.
    in_time(async || {
        let s = Setting::new().await;
        let _held = s.others[1].write().acquire_fair().await.unwrap();
        // Its release is on its way for longer than a look at the server takes.
        let proxy = Proxy::to(s.server.port()).await;
        let far = client(proxy.url(), LONG).await;
        proxy.delay(ms(20));
        for first in ["a", "b"] {
            let all = far.all().write(&far.rw_lock(first)).write(&far.rw_lock("b"));
            assert!(all.try_acquire_for(ms(60)).await.unwrap().is_none());
            let view = View::of(&s.server, "b").await;
            assert!(view.waiting.is_empty(), "where {first} is the first lock");
        }
    })
    .await;
}

#[tokio::test]
async fn no_locks_are_a_guard_of_nothing() {
    let s = Setting::new().await;
    let calls = s.server.script_calls().await;
    let nothing = s.client.all().acquire_fair().await.unwrap();
    assert!(nothing.is_held());
    assert_eq!(nothing.while_held(async { 3 }).await.unwrap(), 3);
    nothing.release().await.unwrap();
    assert_eq!(s.server.script_calls().await, calls);
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn locks_on_several_nodes_of_a_cluster_are_in_one_guard() {
    let cluster = fairlock_support::cluster::Cluster::start().await;
    let (client, other) = (cluster.client(LONG).await, cluster.client(LONG).await);
    let names = [
        cluster.lock_on(0).await,
        cluster.lock_on(1).await,
        cluster.lock_on(2).await,
    ];
    let locks = names.clone().map(|name| client.rw_lock(name));
    let asking = || locks.iter().fold(client.all(), |all, lock| all.write(lock));
    let held = other.rw_lock(&*names[2]).write().acquire_fair().await.unwrap();
    assert!(asking().try_acquire().await.unwrap().is_none());
    let all = tokio::spawn(asking().acquire_fair());
    cluster.nodes[2].until_queued(&names[2], 1).await;
    held.release().await.unwrap();
    let all = soon("all of them", all).await.unwrap().unwrap();
    assert!(locks.iter().all(|lock| all.fencing_token(lock).is_some()));
    all.release().await.unwrap();
    for name in &names {
        let free = other.rw_lock(&**name).write().try_acquire().await.unwrap();
        assert!(free.is_some(), "{name}");
    }
}
