//! The server in memory, as users of the library meet it. Time is paused in all tests but the last one.

use crate::once;
use fairlock::{Client, Error, LostReason, Owner, Policy, Quorum};
use fairlock_testing::Server;
use std::future::IntoFuture;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::StreamExt;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn the_readme_shows_the_program_that_is_tested() {
    let (_, program) = include_str!("readme.rs")
        .split_once("\n\n")
        .expect("a comment, then the program");
    assert!(include_str!("../../README.md").contains(program));
}

#[tokio::test(start_paused = true)]
async fn waiters_of_several_clients_enter_in_order_and_tokens_grow() {
    let server = Server::new();
    let first = server.client().await.unwrap();
    let held = first.rw_lock("a").write().await.unwrap();
    let (entered, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..20 {
        let (client, entered) = (server.client().await.unwrap(), entered.clone());
        let queued = client.rw_lock("a").write().enqueue().await.unwrap();
        tokio::spawn(async move {
            let guard = queued.await.unwrap();
            sleep(Duration::from_secs(20)).await;
            entered.send((number, guard.fencing_token())).unwrap();
            guard.release().await.unwrap();
        });
    }
    let mut last = held.fencing_token();
    held.release().await.unwrap();
    for expected in 0..20 {
        let (number, token) = order.recv().await.unwrap();
        assert_eq!(number, expected);
        assert!(token > last);
        last = token;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_lasts_for_hours_of_paused_time_and_not_over_an_advance_beyond_its_lease() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let guard = client.rw_lock("a").write().await.unwrap();
    sleep(HOUR).await;
    assert!(guard.is_held());
    tokio::time::advance(HOUR).await;
    assert!(!guard.is_held());
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

#[tokio::test(start_paused = true)]
async fn an_expired_hold_is_lost_and_the_next_waiter_has_entered() {
    let server = Server::new();
    let (client, other) = (server.client().await.unwrap(), server.client().await.unwrap());
    let guard = client.rw_lock("a").write().await.unwrap();
    let waiter = other.rw_lock("a").read().enqueue().await.unwrap();
    assert_eq!(server.expire("b"), 0);
    assert_eq!(server.expire("a"), 1);
    let since = Instant::now();
    let next = waiter.await.unwrap();
    assert_eq!(since.elapsed(), Duration::ZERO, "a message told it");
    assert_eq!(guard.lost().await, LostReason::UnknownToServer);
    assert!(since.elapsed() <= Duration::from_secs(10) / 3 + Duration::from_secs(1));
    assert!(next.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_the_server_forgets_is_lost() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let guard = client.rw_lock("a").write().await.unwrap();
    let other = client.rw_lock("b").write().await.unwrap();
    assert!(server.forget("a") && !server.forget("c"));
    guard.lost().await;
    sleep(HOUR).await;
    assert!(other.is_held());
    server.flush_all();
    other.lost().await;
    assert!(!client.rw_lock("b").exists().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_short_stop_costs_no_hold_and_a_long_one_does() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let guard = client.rw_lock("a").write().await.unwrap();
    server.stop();
    assert!(matches!(server.client().await, Err(Error::Connect { .. })));
    sleep(Duration::from_secs(2)).await;
    server.start();
    sleep(Duration::from_secs(60)).await;
    assert!(guard.is_held());
    server.stop();
    guard.lost().await;
    server.start();
    drop(client.rw_lock("a").write().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_frozen_server_executes_later_what_it_got() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let lock = client.rw_lock("a");
    server.freeze();
    let waits = tokio::spawn(async move { lock.write().await });
    sleep(Duration::from_secs(1)).await;
    assert!(!waits.is_finished());
    server.thaw();
    let guard = waits.await.unwrap().unwrap();
    server.freeze();
    guard.lost().await;
    server.thaw();
}

#[tokio::test(start_paused = true)]
async fn broken_connections_cost_nothing() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let guard = client.rw_lock("a").write().await.unwrap();
    let other = server.client().await.unwrap();
    let waiter = other.rw_lock("a").write().enqueue().await.unwrap();
    for _ in 0..5 {
        server.disconnect();
        sleep(Duration::from_secs(5)).await;
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
    drop(waiter.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn events_status_labels_and_names_are_those_of_a_real_server() {
    let server = Server::new();
    let client = Client::builder()
        .label("billing")
        .connect(server.endpoint())
        .await
        .unwrap();
    let watcher = server.client().await.unwrap();
    let (mut of_one, mut of_all) = (
        watcher.rw_lock("a}").events().await.unwrap(),
        watcher.events().await.unwrap(),
    );
    sleep(Duration::from_secs(1)).await;
    let guard = client.rw_lock("a}").write().await.unwrap();
    let status = watcher.rw_lock("a}").status().await.unwrap();
    assert_eq!(status.holders.len(), 1);
    assert!(
        status.holders[0].client.to_string().contains("billing"),
        "{}",
        status.holders[0].client
    );
    guard.release().await.unwrap();
    for events in [&mut of_one, &mut of_all] {
        for kind in ["Granted", "Released"] {
            let event = events.next().await.unwrap().unwrap();
            assert_eq!(
                (event.lock.as_str(), format!("{:?}", event.kind).as_str()),
                ("a}", kind)
            );
        }
    }
    let names: Vec<_> = watcher.locks("*").map(Result::unwrap).collect().await;
    assert_eq!(names, ["a}"]);
    assert!(!watcher.rw_lock("b").exists().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn an_eviction_takes_the_lock_away() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let owner = Owner::new();
    let guard = client.rw_lock("a").with_owner(&owner).write().await.unwrap();
    assert!(server.client().await.unwrap().rw_lock("a").evict(&owner).await.unwrap() > 0);
    assert_eq!(guard.lost().await, LostReason::Evicted);
}

#[tokio::test(start_paused = true)]
async fn semaphores_policies_upgrades_several_locks_and_deadlocks_work() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let pool = client.semaphore("pool", 3);
    let (one, two) = (pool.permits(2).await.unwrap(), pool.permits(1).await.unwrap());
    assert!(pool.permits(1).try_acquire().await.unwrap().is_none());
    drop((one, two));
    pool.permits(3).await.unwrap().release().await.unwrap();

    let lock = client.rw_lock("w").policy(Policy::WriterFirst);
    let read = lock.read().await.unwrap();
    read.upgrade().await.unwrap().release().await.unwrap();

    let (one, two) = (client.rw_lock("x"), client.rw_lock("y"));
    client
        .all()
        .write(&one)
        .write(&two)
        .acquire_fair()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();

    let (mine, theirs) = (Owner::new(), Owner::new());
    let (x, y) = (
        one.with_owner(&mine).write().await.unwrap(),
        two.with_owner(&theirs).write().await.unwrap(),
    );
    // The youngest owner of the circle gets the error.
    let (mine, theirs) = (two.with_owner(&mine), one.with_owner(&theirs));
    let refused = tokio::select! {
        refused = mine.write().acquire_fair() => refused,
        refused = theirs.write().acquire_fair() => refused,
    };
    assert!(matches!(refused, Err(Error::Deadlock { .. })));
    drop((x, y));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_done_has_its_value_though_its_release_is_not_confirmed() {
    let server = Server::new();
    let lock = server.client().await.unwrap().rw_lock("a");
    let done = lock.with_write(async |guard| {
        server.stop();
        guard.is_held()
    });
    assert!(done.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_forgotten_by_its_whole_name() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    for (name, part) in [("x:{a", "a"), ("x:a", "a"), ("{a", "a"), ("a}", "a")] {
        let guard = client.rw_lock(name).write().await.unwrap();
        server.forget(part);
        guard.release().await.unwrap();
        let guard = client.rw_lock(name).write().await.unwrap();
        server.forget(name);
        assert!(guard.release().await.is_err(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_search_for_deadlocks_outlives_an_outage() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let [one, two] = ["x", "y"].map(|name| client.rw_lock(name));
    let (mine, theirs) = (Owner::new(), Owner::new());
    let held = (
        one.with_owner(&mine).write().await.unwrap(),
        two.with_owner(&theirs).write().await.unwrap(),
    );
    let first = tokio::spawn(one.with_owner(&theirs).write().acquire_fair());
    sleep(Duration::from_millis(500)).await;
    // The first looks have no reply.
    server.stop();
    sleep(Duration::from_secs(5)).await;
    server.start();
    let closes = two.with_owner(&mine).write().acquire_fair();
    let told = timeout(HOUR, closes).await.expect("a look");
    assert!(matches!(told, Err(Error::Deadlock { .. })), "{told:?}");
    drop(held);
    first.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_limit_for_several_locks_ends_within_two_calls_of_a_silent_server() {
    let server = Server::new();
    let (client, other) = (server.client().await.unwrap(), server.client().await.unwrap());
    let [free, busy] = ["a", "b"].map(|name| client.rw_lock(name));
    let guard = other.rw_lock("b").write().await.unwrap();
    let (begun, limit, call) = (Instant::now(), Duration::from_secs(5), Duration::from_secs(1));
    let asking = client.all().write(&free).write(&busy).try_acquire_for(limit);
    let asking = tokio::spawn(asking);
    sleep(limit - call / 2).await;
    server.freeze();
    assert!(asking.await.unwrap().unwrap().is_none());
    let elapsed = begun.elapsed();
    assert!(elapsed > limit + call && elapsed < limit + call * 5 / 2, "{elapsed:?}");
    server.thaw();
    guard.release().await.unwrap();
    assert!(
        other
            .rw_lock("a")
            .write()
            .try_acquire_for(call)
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn a_quorum_of_three_servers_survives_one_and_two_clients_wait_in_line() {
    let servers = [Server::new(), Server::new(), Server::new()];
    let connect = || Quorum::builder("test").connect(servers.each_ref().map(Server::endpoint));
    let (one, other) = (connect().await.unwrap(), connect().await.unwrap());
    let guard = one.rw_lock("a").write().acquire_fair().await.unwrap();
    assert!(other.rw_lock("a").write().try_acquire().await.unwrap().is_none());
    servers[1].stop();
    sleep(HOUR).await;
    assert!(guard.is_held());
    let lock = other.rw_lock("a");
    let waits = tokio::spawn(async move { lock.write().acquire_fair().await });
    sleep(Duration::from_secs(1)).await;
    assert!(!waits.is_finished());
    guard.release().await.unwrap();
    let guard = waits.await.unwrap().unwrap();
    servers[2].stop();
    guard.lost().await;
}

#[test]
fn a_blocking_client_works_in_real_time() {
    let server = Server::new();
    let client = fairlock::blocking::Client::connect(server.endpoint()).unwrap();
    let guard = client.rw_lock("a").write().acquire_fair().unwrap();
    assert!(client.rw_lock("a").read().try_acquire().unwrap().is_none());
    guard.release().unwrap();
}

/// The page says: two seconds at most. The release itself would go on for a lease.
#[test]
fn a_blocking_guard_that_is_dropped_waits_for_no_server_that_is_away() {
    let (server, lease) = (Server::new(), Duration::from_secs(60));
    let builder = Client::builder().lease(lease);
    let client = fairlock::blocking::Client::connect_with(builder, server.endpoint()).unwrap();
    let guard = client.rw_lock("a").write().acquire_fair().unwrap();
    let begun = std::time::Instant::now();
    server.freeze();
    drop(guard);
    assert!(begun.elapsed() < lease / 2, "{:?}", begun.elapsed());
    server.thaw();
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_left_delays_its_owner_for_one_call_and_not_each_time() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let lock = client.rw_lock("a").with_owner(&Owner::new());
    let mut left = Box::pin(lock.write().await.unwrap().release());
    assert!(once(&mut left).await.is_pending());
    let begun = Instant::now();
    for _ in 0..10 {
        lock.write().await.unwrap().release().await.unwrap();
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    left.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_slow_downgrade_makes_no_hold_longer_than_its_max_hold() {
    let server = Server::new();
    let client = Client::builder()
        .lease(Duration::from_secs(60))
        .connect(server.endpoint())
        .await
        .unwrap();
    let lock = client.rw_lock("a");
    let limited = || lock.write().max_hold(Duration::from_secs(20)).acquire_fair();
    let writing = limited().await.unwrap();
    let begun = Instant::now();
    sleep(Duration::from_secs(10)).await;
    server.freeze();
    let downgrade = tokio::spawn(writing.downgrade());
    sleep(Duration::from_secs(8)).await;
    server.thaw();
    let reading = downgrade.await.unwrap().unwrap();
    assert_eq!(reading.lost().await, LostReason::MaxHold);
    let lasted = begun.elapsed();
    assert!(lasted < Duration::from_secs(21), "{lasted:?}");

    let writing = limited().await.unwrap();
    // Its reply comes 300 ms after the end.
    sleep(Duration::from_millis(19_500)).await;
    server.freeze();
    let downgrade = tokio::spawn(writing.downgrade());
    sleep(Duration::from_millis(800)).await;
    server.thaw();
    let late = downgrade.await.unwrap().map(drop);
    assert!(
        matches!(
            late,
            Err(Error::Lost {
                reason: LostReason::MaxHold,
                ..
            })
        ),
        "{late:?}"
    );
    drop(lock.write().acquire_fair().await.unwrap());
}

/// The shutdown has what is left released too, so what the server does not know any more was not lost.
#[tokio::test(start_paused = true)]
async fn a_release_beside_a_shutdown_tells_no_loss() {
    for offset in 0..60 {
        let server = Server::new();
        let client = server.client().await.unwrap();
        let guard = client.rw_lock("a").write().await.unwrap();
        server.stop();
        let release = tokio::spawn(guard.release());
        sleep(Duration::from_millis(offset * 50)).await;
        let shutdown = tokio::spawn(async move { client.shutdown().await });
        sleep(Duration::from_millis(20)).await;
        server.start();
        let released = release.await.unwrap();
        shutdown.await.unwrap();
        assert!(!matches!(released, Err(Error::Lost { .. })), "{offset}: {released:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_an_eviction_ends_before_its_reply_does_not_ask_again() {
    let server = Server::new();
    let (client, operator) = (server.client().await.unwrap(), server.client().await.unwrap());
    let held = operator.rw_lock("a").write().await.unwrap();
    let mut events = operator.rw_lock("a").events().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let owner = Owner::new();
    let lock = client.rw_lock("a").with_owner(&owner);
    server.freeze();
    let waits = tokio::spawn(lock.write().acquire_fair());
    // The call is given up after a second, and the next one follows 5 ms later at the earliest.
    sleep(Duration::from_millis(1_003)).await;
    server.thaw();
    assert_eq!(operator.rw_lock("a").evict(&owner).await.unwrap(), 1);
    let evicted = waits.await.unwrap();
    assert!(
        matches!(
            evicted,
            Err(Error::Lost {
                reason: LostReason::Evicted,
                ..
            })
        ),
        "{evicted:?}"
    );
    sleep(Duration::from_secs(1)).await;
    held.release().await.unwrap();
    for kind in ["Queued", "Evicted", "Released"] {
        let event = events.next().await.unwrap().unwrap();
        assert_eq!(format!("{:?}", event.kind), kind);
    }
}

/// A renewal that waits for its slot while the user leaves would keep the hold for another lease if this process ended.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_was_due_before_its_user_left_does_not_make_the_hold_longer() {
    let (lease, least) = (Duration::from_secs(6), Duration::from_secs(4));
    let server = Server::new();
    let client = server.client().await.unwrap();
    let mut holds = Vec::new();
    for number in 0..80 {
        let lock = client.rw_lock(format!("{number}"));
        let hold = lock.write().lease(lease).hold_at_least(least);
        holds.push((lock, hold.acquire_fair().await.unwrap()));
        sleep(Duration::from_millis(1)).await;
    }
    sleep(Duration::from_millis(1_900)).await;
    server.freeze();
    // Each has been due, in the order in which they began. No call has been given up.
    sleep(Duration::from_millis(300)).await;
    let (lock, last) = holds.pop().unwrap();
    drop(last);
    sleep(Duration::from_millis(100)).await;
    server.thaw();
    sleep(Duration::from_millis(100)).await;
    let status = lock.status().await.unwrap();
    let [holder] = &status.holders[..] else {
        panic!("{status:?}")
    };
    assert!(holder.lease_left < least, "{:?}", holder.lease_left);
}

/// The lease of a grant that was asked for the least time before its user had the guard lasts beyond that time.
#[tokio::test(start_paused = true)]
async fn a_hold_is_released_for_as_long_as_the_server_may_keep_it() {
    let (lease, least) = (Duration::from_secs(10), Duration::from_secs(3600));
    let server = Server::new();
    let (client, other) = (server.client().await.unwrap(), server.client().await.unwrap());
    let lock = client.rw_lock("a");
    let write = lock.write().lease(lease).hold_at_least(least);
    let guard = write.acquire_fair().await.unwrap();
    let begun = Instant::now();
    server.stop();
    guard.lost().await;
    drop(guard);
    // A lease and a call after the least time.
    sleep(least + Duration::from_secs(30) - begun.elapsed()).await;
    server.start();
    drop(other.rw_lock("a").write().acquire_fair().await.unwrap());
    let kept = begun.elapsed();
    assert!(kept < least + Duration::from_secs(40), "{kept:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_waits_to_be_sealed_lasts_no_longer_than_its_least_time() {
    let least = Duration::from_secs(5);
    let server = Server::new();
    let (client, other) = (server.client().await.unwrap(), server.client().await.unwrap());
    let mut holds = Vec::new();
    for number in 0..64 {
        holds.push(client.rw_lock(format!("{number}")).write().await.unwrap());
    }
    let kept = client.rw_lock("a").write().hold_at_least(least);
    holds.push(kept.acquire_fair().await.unwrap());
    let begun = Instant::now();
    server.freeze();
    // Their releases have all the slots. No call has been given up.
    drop(holds);
    sleep(Duration::from_millis(900)).await;
    server.thaw();
    sleep(Duration::from_millis(100)).await;
    let status = other.rw_lock("a").status().await.unwrap();
    let [holder] = &status.holders[..] else {
        panic!("{status:?}")
    };
    let until = begun.elapsed() + holder.lease_left;
    assert!(until <= least + least / 40 && until >= least, "{until:?}");
}

/// Sealing is no release: if the server does not know the hold after that, others may have been inside.
#[tokio::test(start_paused = true)]
async fn a_release_after_a_seal_without_a_reply_tells_a_loss() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let write = client.rw_lock("a").write().hold_at_least(Duration::from_secs(6));
    let guard = write.acquire_fair().await.unwrap();
    sleep(Duration::from_millis(1_500)).await;
    server.flush_all();
    server.freeze();
    let release = tokio::spawn(guard.release());
    sleep(Duration::from_millis(600)).await;
    server.disconnect();
    server.thaw();
    let released = release.await.unwrap();
    assert!(
        matches!(
            released,
            Err(Error::Lost {
                reason: LostReason::UnknownToServer,
                ..
            })
        ),
        "{released:?}"
    );
}

/// The server ends a sealed hold after its least time, and others may enter then: nobody was inside beside its user.
#[tokio::test(start_paused = true)]
async fn a_release_whose_seal_may_have_ended_tells_no_loss() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let write = client.rw_lock("a").write().hold_at_least(Duration::from_secs(2));
    let guard = write.acquire_fair().await.unwrap();
    sleep(Duration::from_millis(1_700)).await;
    server.freeze();
    let release = tokio::spawn(guard.release());
    sleep(Duration::from_millis(100)).await;
    // It is executed, and the reply is lost.
    server.disconnect();
    server.thaw();
    server.stop();
    // It is repeated before the least time ends, and has a connection only after that.
    sleep(Duration::from_millis(300)).await;
    server.expire("a");
    server.start();
    let released = release.await.unwrap();
    assert!(matches!(released, Err(Error::Unavailable { .. })), "{released:?}");
}

/// A client hears no announcement while its subscription is lost. Its calls may be executed when the streams are complete
/// again.
#[tokio::test(start_paused = true)]
async fn what_follows_a_gap_is_complete_though_others_heard_of_no_listener_for_long() {
    let server = Server::new();
    let (watcher, user) = (server.client().await.unwrap(), server.client().await.unwrap());
    let mut events = watcher.rw_lock("a").events().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let mut told = 0;
    // Who is back first is a matter of chance.
    for _ in 0..100 {
        let lease = Duration::from_secs(60);
        let guard = user.rw_lock("a").write().lease(lease).acquire_fair().await.unwrap();
        assert!(events.next().await.unwrap().is_ok());
        server.stop();
        sleep(Duration::from_secs(15)).await;
        let released = tokio::spawn(guard.release());
        sleep(Duration::from_millis(10)).await;
        server.start();
        // Perhaps the release, before the gap.
        while events.next().await.unwrap().is_ok() {}
        sleep(Duration::from_millis(1)).await;
        if !released.is_finished() {
            let event = timeout(Duration::from_secs(60), events.next()).await;
            assert!(event.is_ok(), "after {told} that were told");
            told += 1;
        }
        released.await.unwrap().unwrap();
        sleep(Duration::from_secs(20)).await;
    }
    assert!(told > 0, "the stream was always the last to be back");
}

/// Others hear only after a while that a subscription is there again. A lock that is forgotten makes no event at all.
#[tokio::test(start_paused = true)]
async fn an_observer_looks_twice_after_a_gap() {
    let server = Server::new();
    let (observer, candidate) = (server.client().await.unwrap(), server.client().await.unwrap());
    let mut leaders = observer.election("a").observe().await.unwrap();
    assert!(leaders.next().await.unwrap().unwrap().is_none());
    let leading = candidate.election("a").campaign().await.unwrap();
    assert!(leaders.next().await.unwrap().unwrap().is_some());
    let (again, after) = (server.clone(), Instant::now());
    tokio::spawn(async move {
        sleep(Duration::from_secs(40)).await;
        again.disconnect();
        // The gap's look is over.
        sleep(Duration::from_millis(900)).await;
        again.forget("a");
    });
    assert!(leaders.next().await.unwrap().unwrap().is_none());
    assert!(after.elapsed() < Duration::from_secs(43), "{:?}", after.elapsed());
    drop(leading);
}

/// A hold with a least time needs a second call, which is sent when the time limit is over.
#[tokio::test(start_paused = true)]
async fn what_was_granted_within_its_limit_is_handed_out_with_its_least_time() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let write = |lock| client.rw_lock(lock).write().hold_at_least(Duration::from_secs(60));
    let place = write("a").enqueue_for(Duration::from_secs(1)).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    server.freeze();
    let waits = tokio::spawn(place.into_future());
    sleep(Duration::from_millis(500)).await;
    server.thaw();
    let guard = waits
        .await
        .unwrap()
        .unwrap()
        .expect("it was granted a second before its limit");
    assert!(guard.is_held());
    // Nobody hears from a server that is away whether it keeps the hold.
    let place = write("b").enqueue_for(Duration::from_secs(1)).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    server.stop();
    assert!(place.await.unwrap().is_none());
}

/// Its renewal finds no such request, and then the server is away.
#[tokio::test(start_paused = true)]
async fn a_time_limit_does_not_begin_anew_when_a_request_asks_again() {
    const LIMIT: Duration = Duration::from_secs(9);
    let server = Server::new();
    let client = server.client().await.unwrap();
    let _held = client.rw_lock("a").write().await.unwrap();
    let begun = Instant::now();
    let mut asking = Box::pin(client.rw_lock("a").write().try_acquire_for(LIMIT));
    assert!(once(&mut asking).await.is_pending());
    sleep(Duration::from_secs(6)).await;
    server.flush_all();
    sleep(Duration::from_secs(2)).await;
    server.freeze();
    let refused = asking.await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    // It waits for a reply for twice the limit of a call at least.
    assert!(
        begun.elapsed() <= LIMIT + Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
}

/// The call that takes the hold over asks for the rest of its least time too.
#[tokio::test(start_paused = true)]
async fn a_downgrade_of_a_hold_with_a_least_time_is_one_call() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let write = client.rw_lock("a").write().hold_at_least(Duration::from_secs(60));
    let mut downgrade = Box::pin(write.acquire_fair().await.unwrap().downgrade());
    assert!(once(&mut downgrade).await.is_pending());
    sleep(Duration::from_millis(1)).await;
    server.freeze();
    let Poll::Ready(reading) = once(&mut downgrade).await else {
        panic!("it needs another call")
    };
    assert!(reading.unwrap().is_held());
}

/// Its reply lay unread for a lease, and nothing proves the read hold any more.
#[tokio::test(start_paused = true)]
async fn a_downgrade_does_not_outlast_an_outage() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let writing = client.rw_lock("a").write().acquire_fair().await.unwrap();
    let mut downgrade = Box::pin(writing.downgrade());
    assert!(once(&mut downgrade).await.is_pending());
    sleep(Duration::from_millis(1)).await;
    server.stop();
    sleep(HOUR).await;
    let ended = timeout(HOUR, downgrade)
        .await
        .expect("it ends while the server is away");
    assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
}

/// A note of a wait lasts for two minutes at most, and a circle may close at any time.
#[tokio::test(start_paused = true)]
async fn a_circle_around_an_owner_that_has_waited_for_long_is_found() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let [x, y] = ["x", "y"].map(|name| client.rw_lock(name));
    let (old, young) = (Owner::new(), Owner::new());
    let held = x.with_owner(&old).write().await.unwrap();
    let theirs = y.with_owner(&young).write().await.unwrap();
    let waits = tokio::spawn(y.with_owner(&old).write().acquire_fair());
    sleep(Duration::from_secs(600)).await;
    let closes = timeout(HOUR, x.with_owner(&young).write().acquire_fair()).await;
    let told = closes.expect("a look that finds the circle");
    assert!(matches!(told, Err(Error::Deadlock { .. })), "{told:?}");
    drop((held, theirs));
    waits.await.unwrap().unwrap().release().await.unwrap();
}

/// The server has lost them all, and their leases are long.
#[tokio::test(start_paused = true)]
async fn all_holds_of_a_lock_are_checked_after_a_restart() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let pool = client.semaphore("pool", 3);
    let lease = Duration::from_secs(600);
    let mut holds = Vec::new();
    for _ in 0..3 {
        holds.push(pool.permits(1).lease(lease).acquire_fair().await.unwrap());
    }
    server.flush_all();
    server.disconnect();
    for guard in &holds {
        let lost = timeout(Duration::from_secs(5), guard.lost()).await;
        assert_eq!(lost.expect("within seconds"), LostReason::UnknownToServer);
    }
}

/// They are released by one call, which is repeated for as long as any of them may be there.
#[tokio::test(start_paused = true)]
async fn the_longest_lease_of_what_is_dropped_together_decides_how_long_its_release_is_tried() {
    let server = Server::new();
    let (client, other) = (server.client().await.unwrap(), server.client().await.unwrap());
    let take = async |lease| {
        let permit = client.semaphore("pool", 2).permits(1).lease(Duration::from_secs(lease));
        permit.acquire_fair().await.unwrap()
    };
    let holds = (take(1).await, take(600).await);
    server.stop();
    drop(holds);
    sleep(Duration::from_secs(30)).await;
    server.start();
    let both = other.semaphore("pool", 2);
    let both = timeout(Duration::from_secs(5), both.permits(2).acquire_fair()).await;
    both.expect("both were released").unwrap().release().await.unwrap();
}

/// What the server keeps of an introduction expires after 90 s.
#[tokio::test(start_paused = true)]
async fn a_client_is_known_by_its_label_for_as_long_as_it_lives() {
    let server = Server::new();
    let labelled = Client::builder().label("billing").connect(server.endpoint());
    let client = labelled.await.unwrap();
    sleep(HOUR).await;
    let guard = client.rw_lock("a").write().await.unwrap();
    let status = client.rw_lock("a").status().await.unwrap();
    let holder = status.holders[0].client.to_string();
    assert!(holder.contains("billing"), "{holder}");
    guard.release().await.unwrap();
}

/// A look comes at 1, 2, 4, ... seconds, so the next one may be far away.
#[tokio::test(start_paused = true)]
async fn a_look_for_a_deadlock_that_had_no_reply_is_repeated_soon() {
    let server = Server::new();
    let client = Client::builder().lease(Duration::from_secs(600));
    let client = client.connect(server.endpoint()).await.unwrap();
    let [one, two] = ["x", "y"].map(|name| client.rw_lock(name));
    let (mine, theirs) = (Owner::new(), Owner::new());
    let held = (
        one.with_owner(&mine).write().await.unwrap(),
        two.with_owner(&theirs).write().await.unwrap(),
    );
    let first = tokio::spawn(one.with_owner(&theirs).write().acquire_fair());
    sleep(Duration::from_millis(100)).await;
    let closes = tokio::spawn(two.with_owner(&mine).write().acquire_fair());
    sleep(Duration::from_millis(100)).await;
    server.stop();
    sleep(Duration::from_secs(70)).await;
    server.start();
    let told = timeout(Duration::from_secs(10), closes).await;
    let told = told.expect("a look").unwrap();
    assert!(matches!(told, Err(Error::Deadlock { .. })), "{told:?}");
    drop(held);
    first.await.unwrap().unwrap().release().await.unwrap();
}
