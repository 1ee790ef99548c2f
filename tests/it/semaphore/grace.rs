//! A grant that nobody hears ends a second later, with all dead waiters at the head. All leases here last ten minutes: whoever
//! enters does so by that.

use crate::lateness::in_time;
use crate::lua::Lock;
use crate::proxy::Proxy;
use crate::server::{Server, eventually};
use crate::users::{LONG, client, queued, read, user, write};
use fairlock::{Error, Owner, Policy};
use fairlock_support::process::Process;
use std::collections::{BTreeMap, BTreeSet};

const GRACE_MS: u64 = 1000;

/// The deadlines of all requests, and the server's time after that, in ms.
async fn deadlines(lock: &Lock) -> (BTreeMap<String, u64>, u64) {
    let state = lock.state().await;
    (state.leases, state.now_ms)
}

/// Asks as clients that never subscribe.
async fn ask_deaf(lock: &Lock, requests: impl IntoIterator<Item = String>) {
    for request in requests {
        lock.acquire(&request).await.ticket();
    }
}

async fn raw(server: &Server) -> Lock {
    Lock::through(server.redis().await, "a")
}

#[tokio::test]
async fn fifty_waiters_of_a_killed_process_cost_a_second_together() {
    in_time(async || {
        let server = Server::start().await;
        let lock = user(&server, LONG).await;
        let holder = write(&lock).await;
        let mut dying = Process::start(&server.url(), LONG).await;
        for id in 0..50 {
            dying.ask(id, 'w', "a", None);
        }
        server.until_queued("a", 50).await;
        // Neither the holder's client nor this one's renewals are due before minutes have passed.
        let living = queued(&server, user(&server, LONG).await.write(), 51).await;
        dying.kill();
        let channels = async || -> Vec<String> {
            let mut channels = redis::cmd("PUBSUB");
            channels.arg("CHANNELS").arg("fairlock:c:*");
            channels.query_async(&mut server.redis().await).await.unwrap()
        };
        eventually("the server knows of its death", async || channels().await.len() == 2).await;
        let raw = raw(&server).await;
        holder.release().await.unwrap();
        let (leases, now_ms) = deadlines(&raw).await;
        assert_eq!(leases.len(), 51, "the dead are still there");
        let late: Vec<_> = leases.iter().filter(|(_, at)| **at > now_ms + GRACE_MS).collect();
        assert_eq!(late.len(), 1, "only who lives keeps its lease: {late:?}");
        let guard = living.enters().await;
        assert_eq!(server.queued("a").await, 0);
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn fifty_dead_processes_at_the_head_cost_the_same_second() {
    in_time(async || {
        let server = Server::start().await;
        let lock = user(&server, LONG).await;
        let holder = write(&lock).await;
        let raw = raw(&server).await;
        ask_deaf(&raw, (0..50).map(|n| format!("w{n:015x}:1"))).await;
        let living = queued(&server, user(&server, LONG).await.write(), 51).await;
        holder.release().await.unwrap();
        let (leases, now_ms) = deadlines(&raw).await;
        let ends: BTreeSet<_> = leases.values().filter(|at| **at <= now_ms + GRACE_MS).collect();
        assert_eq!(
            (leases.len(), ends.len()),
            (51, 1),
            "they end at one moment: {leases:?}"
        );
        living.enters().await.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn more_dead_waiters_than_one_look_covers_end_in_a_chain_of_looks() {
    in_time(async || {
        let server = Server::start().await;
        let lock = user(&server, LONG).await;
        let holder = write(&lock).await;
        let raw = raw(&server).await;
        let dead: Vec<_> = (0..250).map(|n| format!("w{n:015x}:1")).collect();
        raw.fill(&dead).await;
        let living = queued(&server, user(&server, LONG).await.write(), 251).await;
        holder.release().await.unwrap();
        let (leases, now_ms) = deadlines(&raw).await;
        let cut = leases.values().filter(|at| **at <= now_ms + GRACE_MS).count();
        assert_eq!(
            (leases.len(), cut),
            (251, 201),
            "the one that was granted, and two hundred behind it"
        );
        living.enters().await.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_waiter_who_listens_keeps_its_lease_and_stops_the_look_behind_it() {
    in_time(async || {
        let server = Server::start().await;
        let lock = user(&server, LONG).await;
        let holder = write(&lock).await;
        let raw = raw(&server).await;
        ask_deaf(&raw, ["wa:1".to_owned(), "wb:1".to_owned()]).await;
        let living = queued(&server, user(&server, LONG).await.write(), 3).await;
        ask_deaf(&raw, ["wc:1".to_owned()]).await;
        holder.release().await.unwrap();
        let (leases, now_ms) = deadlines(&raw).await;
        let cut = |request: &str| leases[request] <= now_ms + GRACE_MS;
        assert!(cut("wa:1") && cut("wb:1") && !cut("wc:1"));
        living.enters().await.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn whoever_released_looks_again_also_after_a_downgrade_and_an_eviction() {
    let server = Server::start().await;
    let raw = raw(&server).await;
    let lock = user(&server, LONG).await;
    let owner = Owner::new();
    let holder = write(&lock.with_owner(&owner)).await;
    ask_deaf(&raw, ["ra:1".to_owned()]).await;
    let reading = holder.downgrade().await.unwrap();
    // Nobody waits in this client, and the dead reader is beside it.
    eventually("the dead reader is gone", async || {
        !raw.state().await.leases.contains_key("ra:1")
    })
    .await;
    ask_deaf(&raw, ["wb:1".to_owned()]).await;
    let operator = user(&server, LONG).await;
    assert_eq!(operator.evict(&owner).await.unwrap(), 1);
    eventually("the dead writer is gone", async || raw.state().await.leases.is_empty()).await;
    drop(reading);
    read(&lock).await.release().await.unwrap();
}

#[tokio::test]
async fn a_look_that_fails_is_not_the_last_one() {
    in_time(async || {
        let server = Server::start().await;
        let raw = raw(&server).await;
        let lock = user(&server, LONG).await;
        let holder = write(&lock).await;
        ask_deaf(&raw, ["ra:1".to_owned()]).await;
        let mut redis = server.redis().await;
        // Its client holds and does not wait, so it has no other reason to call before minutes have passed.
        let reading = holder.downgrade().await.unwrap();
        let mut scripts = async |rule: &str| {
            let rules = redis::cmd("ACL").arg(&["SETUSER", "default", rule]).to_owned();
            rules.exec_async(&mut redis).await.unwrap();
        };
        scripts("-@scripting").await;
        let has_ended = async || !raw.state().await.leases.contains_key("ra:1");
        eventually("the look is refused", async || {
            server.errors("NOPERM").await > 0 || has_ended().await
        })
        .await;
        assert!(!has_ended().await, "the look came first");
        scripts("+@scripting").await;
        eventually("the dead reader is gone", has_ended).await;
        assert!(reading.is_held());
    })
    .await;
}

#[tokio::test]
async fn who_is_refused_looks_again_at_what_its_call_began() {
    let server = Server::start().await;
    let raw = raw(&server).await;
    let lock = user(&server, LONG).await;
    let busy = async || assert!(lock.write().try_acquire().await.unwrap().is_none());
    let no_room = async || {
        let refused = lock.write().max_queue(0).await;
        assert!(matches!(refused, Err(Error::QueueFull { .. })), "{refused:?}");
    };
    let other_policy = async || {
        let refused = lock.policy(Policy::WriterFirst).write().await;
        assert!(matches!(refused, Err(Error::PolicyMismatch { .. })), "{refused:?}");
    };
    for refused in 0..3 {
        let [holder, waiter] = ["a", "b"].map(|client| format!("w{client}:{refused}"));
        raw.acquire_all(&[&holder, &waiter]).await;
        // The next call lets the dead waiter in, and nobody but its sender knows.
        raw.die(&[holder.as_str()]).await;
        match refused {
            0 => busy().await,
            1 => no_room().await,
            _ => other_policy().await,
        }
        eventually("the dead waiter is gone", async || raw.state().await.leases.is_empty()).await;
    }
}

#[tokio::test]
async fn a_look_is_not_lost_with_the_reply_that_told_of_it() {
    in_time(async || {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let raw = raw(&server).await;
        let lock = client(proxy.url(), LONG).await.rw_lock("a");
        let holder = write(&lock).await;
        ask_deaf(&raw, ["wa:1".to_owned()]).await;
        let living = queued(&server, user(&server, LONG).await.write(), 2).await;
        proxy.lose_replies(1);
        holder.release().await.unwrap();
        assert_eq!(proxy.replies_to_lose(), 0, "it was lost");
        living.enters().await.release().await.unwrap();

        raw.acquire_all(&["wa:2", "ra:3"]).await;
        raw.die(&["wa:2"]).await;
        proxy.lose_replies(1);
        let beside = read(&lock).await;
        assert_eq!(proxy.replies_to_lose(), 0, "it was lost");
        eventually("the dead reader is gone", async || {
            !raw.state().await.leases.contains_key("ra:3")
        })
        .await;
        beside.release().await.unwrap();
    })
    .await;
}

async fn fill_with_the_dead(server: &Server) {
    let dead: Vec<_> = (0..450).map(|n| format!("w{n:015x}:1")).collect();
    let lock = raw(server).await;
    lock.fill(&dead).await;
    lock.die(&dead.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

async fn until_the_dead_are_gone(server: &Server) {
    let lock = raw(server).await;
    eventually("the dead are gone", async || lock.state().await.leases.len() <= 1).await;
}

#[tokio::test]
async fn what_the_last_call_about_a_kept_hold_leaves_to_do_is_followed() {
    let server = Server::start().await;
    let lock = user(&server, LONG).await;
    let reading = lock.read().hold_at_least(LONG).acquire_fair().await.unwrap();
    fill_with_the_dead(&server).await;
    // The server is told for how long to keep the hold, which expires 200. Nothing renews the hold after that.
    drop(reading);
    until_the_dead_are_gone(&server).await;
}

#[tokio::test]
async fn a_renewal_that_leaves_more_to_do_is_followed_though_its_client_only_holds() {
    let mut server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let reading = read(&user(&server, LONG).await).await;
    fill_with_the_dead(&server).await;
    // The holder is renewed at once, because the server may have forgotten it. That expires 200.
    server.kill();
    server.start_again().await;
    until_the_dead_are_gone(&server).await;
    assert!(reading.is_held());
}
