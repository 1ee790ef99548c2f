//! A lease that runs out: who goes, who stays, and what is left.

use super::{Process, after_renewals, lost_because};
use crate::lateness::in_time;
use crate::observe::{LONG, View, client, ms, until_free};
use crate::server::{Server, eventually, soon};
use crate::users::write;
use fairlock::{Error, LostReason};
use futures::future::join_all;
use tokio::sync::oneshot;

#[tokio::test]
async fn a_dead_reader_goes_though_another_reader_renews() {
    in_time(async || {
        let server = Server::start().await;
        let (b, w) = (
            client(server.url(), ms(1000)).await,
            client(server.url(), ms(1000)).await,
        );
        let url = server.url();
        let (holds, held) = oneshot::channel();
        let a = Process::start(move || async move {
            let guard = client(url, ms(1000))
                .await
                .rw_lock("a")
                .read()
                .acquire_fair()
                .await
                .unwrap();
            holds.send(()).expect("the test waits");
            guard.lost().await;
        });
        held.await.unwrap();
        let reading = b.rw_lock("a").read().acquire_fair().await.unwrap();
        let writer = tokio::spawn(w.rw_lock("a").write().acquire_fair());
        server.until_queued("a", 1).await;
        let a = a.freeze().await;
        eventually("only B reads", async || View::of(&server, "a").await.holds == 1).await;
        assert!(reading.is_held());
        assert_eq!(server.queued("a").await, 1);
        reading.release().await.unwrap();
        let _guard = soon("the writer enters", writer).await.unwrap().unwrap();
        a.thaw().await;
    })
    .await;
}

#[tokio::test]
async fn names_used_once_leave_keys_that_expire() {
    let server = Server::start().await;
    // The first name must still be there when the last one is used.
    let lease = 600_000;
    let client = client(server.url(), ms(lease)).await;
    let users = (0..50).map(async |user| {
        for i in 0..399 {
            let lock = client.rw_lock(format!("{user}/{i}"));
            lock.write().acquire_fair().await.unwrap().release().await.unwrap();
        }
        // Somebody waits, twice: the other two keys are made, go, are made again, and stay for now.
        let name = format!("{user}/queued for");
        let lock = client.rw_lock(&*name);
        let mut held = lock.write().acquire_fair().await.unwrap();
        for _ in 0..2 {
            let waiter = tokio::spawn(lock.write().acquire_fair());
            server.until_queued(&name, 1).await;
            held.release().await.unwrap();
            held = waiter.await.unwrap().unwrap();
        }
        let waiter = tokio::spawn(lock.write().acquire_fair());
        server.until_queued(&name, 1).await;
        (held, waiter)
    });
    let _in_use = join_all(users).await;
    let script = "local most, least = 0, 1e15
        local keys = redis.call('KEYS', '*')
        local count = 0
        for _, key in ipairs(keys) do
          if not string.find(key, ':client:', 1, true) then
            local ttl = redis.call('PTTL', key)
            count, most, least = count + 1, math.max(most, ttl), math.min(least, ttl)
          end
        end
        return { count, least, most }";
    let (count, least, most): (usize, i64, i64) = redis::Script::new(script)
        .invoke_async(&mut server.redis().await)
        .await
        .expect("the keys");
    assert_eq!(
        count,
        20_000 + 100,
        "one hash for each name, and two sets for those in use"
    );
    assert!(
        0 < least && most <= lease as i64 + 65_000,
        "expire in {least} to {most} ms"
    );
}

#[tokio::test]
async fn a_hold_that_expired_and_was_had_by_another_is_lost_and_not_taken_back() {
    let server = Server::start().await;
    let other = client(server.url(), LONG).await.rw_lock("a");
    let url = server.url();
    let (holds, held) = oneshot::channel();
    let first = Process::start(move || async move {
        let guard = write(&client(url, ms(1000)).await.rw_lock("a")).await;
        holds.send(guard.fencing_token()).expect("the test waits");
        assert_eq!(guard.lost().await, LostReason::LeaseExpired);
        assert!(!guard.is_held());
        tokio::time::sleep(ms(500)).await;
        assert!(!guard.is_held(), "it came back");
        assert_eq!(lost_because(&guard.release().await), Some(LostReason::LeaseExpired));
    });
    let token = held.await.unwrap();
    let first = first.freeze().await;
    let second = soon("the lease ends", other.write().acquire_fair()).await.unwrap();
    assert!(second.fencing_token() > token);
    second.release().await.unwrap();
    first.thaw().await;
    until_free(&server, "a").await;
}

#[tokio::test]
async fn a_writer_of_a_short_lease_waits_for_a_reader_of_a_long_one() {
    in_time(async || {
        let server = Server::start().await;
        let (reader, writer) = (
            client(server.url(), ms(60_000)).await,
            client(server.url(), ms(1000)).await,
        );
        let reading = reader.rw_lock("a").read().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(writer.rw_lock("a").write().acquire_fair());
        server.until_queued("a", 1).await;
        after_renewals(&server, 6).await;
        let view = View::of(&server, "a").await;
        assert_eq!((view.mode.as_str(), view.waiting.len()), ("read", 1));
        assert!(reading.is_held() && !waiter.is_finished());
        reading.release().await.unwrap();
        let _guard = soon("the writer enters", waiter).await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_key_of_another_type_ends_waits_with_an_error_and_a_hold_among_them_with_its_lease() {
    use crate::users::{LEASE, client, queued};
    let server = Server::start().await;
    let lock = client(server.url(), LEASE).await.rw_lock("a");
    let held = lock.write().acquire_fair().await.unwrap();
    let waiter = queued(&server, lock.write(), 1).await;
    redis::cmd("SET")
        .arg("fairlock:{a}:l")
        .arg("somebody else's")
        .exec_async(&mut server.redis().await)
        .await
        .unwrap();
    assert!(matches!(waiter.fails().await, Error::Server { .. }));
    assert_eq!(soon("the loss", held.lost()).await, LostReason::LeaseExpired);
}
