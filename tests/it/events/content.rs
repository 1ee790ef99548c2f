//! What an event says, and of which lock.

use super::{LONG, client, lines, next, pass, passed, until_heard};
use crate::lateness::in_time;
use crate::proxy::Proxy;
use crate::server::{Server, connected, eventually, soon};
use fairlock::{Client, Error, EventKind, FencingToken, Mode, Owner};
use redis::aio::MultiplexedConnection;
use std::time::Duration;

#[tokio::test]
async fn everything_that_happens_is_told_in_order_with_owner_mode_and_token() {
    in_time(async || {
        use EventKind::{Evicted, Expired, Granted, Left, Queued, Released};
        use Mode::{Read, Write};
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let mortal = Client::builder().lease(Duration::from_secs(2));
        let mortal = mortal.connect(proxy.url()).await.unwrap().rw_lock("a");
        let (here, there) = (client(&server).await.rw_lock("a"), client(&server).await.rw_lock("a"));
        let mut events = client(&server).await.rw_lock("a").events().await.unwrap();
        for lock in [&here, &there, &mortal] {
            until_heard(&mut events, lock).await;
        }
        let [a, b, c, d, e] = [(); 5].map(|()| Owner::new());

        let writing = here.with_owner(&a).write().acquire_fair().await.unwrap();
        let first = writing.fencing_token();
        let reader = tokio::spawn(there.with_owner(&b).read().acquire_fair());
        server.until_queued("a", 1).await;
        let leaver = tokio::spawn(there.with_owner(&c).write().acquire_fair());
        server.until_queued("a", 2).await;
        leaver.abort();
        server.until_queued("a", 1).await;
        writing.release().await.unwrap();
        let second = soon("the reader", reader)
            .await
            .unwrap()
            .unwrap()
            .fencing_token_and_forget();
        let dying = tokio::spawn(mortal.with_owner(&d).write().acquire_fair());
        server.until_queued("a", 1).await;
        here.evict(&b).await.unwrap();
        let dying = soon("the writer that will die", dying).await.unwrap().unwrap();
        let last = tokio::spawn(here.with_owner(&e).read().acquire_fair());
        server.until_queued("a", 1).await;
        proxy.stall(true);
        let last = soon("the last reader", last).await.unwrap().unwrap();
        let fourth = last.fencing_token();
        last.release().await.unwrap();

        let expected = [
            (Granted, a, Write, Some(first)),
            (Queued, b, Read, None),
            (Queued, c, Write, None),
            (Left, c, Write, None),
            (Released, a, Write, None),
            (Granted, b, Read, Some(second)),
            (Queued, d, Write, None),
            (Evicted, b, Read, None),
            (Granted, d, Write, Some(dying.fencing_token())),
            (Queued, e, Read, None),
            (Expired, d, Write, None),
            (Granted, e, Read, Some(fourth)),
            (Released, e, Read, None),
        ];
        assert_eq!(lines(&mut events, expected.len()).await, expected);
    })
    .await;
}

/// The token of a guard that is to be taken away by others.
trait Forgotten {
    fn fencing_token_and_forget(self) -> FencingToken;
}

impl Forgotten for fairlock::ReadGuard {
    fn fencing_token_and_forget(self) -> FencingToken {
        let token = self.fencing_token();
        std::mem::forget(self);
        token
    }
}

#[tokio::test]
async fn upgrade_and_downgrade_are_told_as_the_grants_and_releases_that_they_are() {
    use EventKind::{Granted, Queued, Released};
    use Mode::{Read, Write};
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("a");
    let mut events = lock.events().await.unwrap();
    let [a, b] = [(); 2].map(|()| Owner::new());
    let reading = lock.with_owner(&a).read().acquire_fair().await.unwrap();
    let read_token = reading.fencing_token();
    let other = lock.with_owner(&b).read().acquire_fair().await.unwrap();
    let other_token = other.fencing_token();
    let upgrading = tokio::spawn(async move { (reading.upgrade().await, reading) });
    server.until_queued("a", 1).await;
    other.release().await.unwrap();
    let (writing, reading) = soon("the upgrade", upgrading).await.unwrap();
    let writing = writing.unwrap();
    let write_token = writing.fencing_token();
    let again = writing.downgrade().await.unwrap();
    again.release().await.unwrap();
    reading.release().await.unwrap();
    let expected = [
        (Granted, a, Read, Some(read_token)),
        (Granted, b, Read, Some(other_token)),
        (Queued, a, Write, None),
        (Released, b, Read, None),
        (Granted, a, Write, Some(write_token)),
        (Granted, a, Read, Some(write_token)),
        (Released, a, Write, None),
        (Released, a, Read, None),
        (Released, a, Read, None),
    ];
    assert_eq!(lines(&mut events, expected.len()).await, expected);
}

#[tokio::test]
async fn an_event_carries_lock_client_and_the_servers_time() {
    let server = Server::start().await;
    let (listening, acting) = (client(&server).await, client(&server).await.rw_lock("a"));
    let mut events = listening.rw_lock("a").events().await.unwrap();
    until_heard(&mut events, &acting).await;
    let mut redis = server.redis().await;
    let time = async |redis: &mut MultiplexedConnection| {
        let (s, us): (u64, u32) = redis::cmd("TIME").query_async(redis).await.unwrap();
        std::time::UNIX_EPOCH + Duration::new(s, us * 1000)
    };
    let before = time(&mut redis).await;
    let guard = acting.read().acquire_fair().await.unwrap();
    let holder = acting.status().await.unwrap().holders.remove(0);
    guard.release().await.unwrap();
    let after = time(&mut redis).await;
    let (granted, released) = (next(&mut events).await, next(&mut events).await);
    for event in [&granted, &released] {
        assert_eq!((event.lock.as_str(), &event.client_id), ("a", &holder.client.id));
        assert!((before..=after).contains(&event.at), "{before:?} {event:?} {after:?}");
    }
    assert!(granted.at < released.at);
}

#[tokio::test]
async fn the_client_of_an_event_is_known_until_it_has_ended() {
    let server = Server::start().await;
    let listening = client(&server).await;
    let acting = connected(Client::builder().label("billing").lease(LONG), server.url()).await;
    let lock = acting.rw_lock("a");
    let mut events = listening.rw_lock("a").events().await.unwrap();
    until_heard(&mut events, &lock).await;
    pass(&lock).await;
    let event = next(&mut events).await;
    eventually("it has introduced itself", async || {
        let known = listening.client_info(&event.client_id).await.unwrap();
        known.is_some_and(|known| known.id == event.client_id && known.label.as_deref() == Some("billing"))
    })
    .await;
    acting.shutdown().await;
    assert_eq!(listening.client_info(&event.client_id).await.unwrap(), None);
    // What cannot be read is no client that has ended.
    let spoil = redis::cmd("SADD").arg("fairlock:client:0a").arg("x").to_owned();
    let () = spoil.query_async(&mut server.redis().await).await.unwrap();
    assert!(matches!(listening.client_info("0a").await, Err(Error::Server { .. })));
    listening.shutdown().await;
    assert!(matches!(listening.client_info("0a").await, Err(Error::Shutdown { .. })));
}

#[tokio::test]
async fn a_client_hears_all_locks_of_its_prefix_by_their_names_and_no_others() {
    const NAMES: [&str; 12] = [
        "a*b",
        "a",
        "}",
        "%",
        "%7D",
        "{",
        "{}",
        "Schloß 锁",
        "a b\nc",
        "}:events",
        "*",
        "[a-z]?\\",
    ];
    let server = Server::start().await;
    // A pattern, if it were taken for one.
    for prefix in ["fairlock", "fair*", "[f]airlock", "fairlock:a"] {
        let connect = async |prefix: &str| {
            let builder = Client::builder().lease(LONG).prefix(prefix);
            builder.connect(server.url()).await.unwrap()
        };
        let (listening, acting, stranger) = (connect(prefix).await, connect(prefix).await, connect("other").await);
        let mut events = listening.events().await.unwrap();
        // Strangers publish too: somebody listens to them.
        let mut strange = stranger.events().await.unwrap();
        until_heard(&mut events, &acting.rw_lock("begin")).await;
        for name in NAMES {
            let theirs = pass(&stranger.rw_lock(name)).await;
            let event = next(&mut strange).await;
            assert_eq!((event.lock.as_str(), event.owner), (name, theirs.0));
            next(&mut strange).await;
            let ours = pass(&acting.rw_lock(name)).await;
            let (granted, released) = (next(&mut events).await, next(&mut events).await);
            assert_eq!(
                (granted.lock.as_str(), released.lock.as_str()),
                (name, name),
                "{prefix}"
            );
            let told = [granted, released].map(|event| (event.kind, event.owner, event.mode, event.token));
            assert_eq!(told, passed(ours), "{prefix} {name}");
        }
        drop(strange);
    }
}

#[tokio::test]
async fn a_stream_of_one_lock_tells_of_no_other() {
    let server = Server::start().await;
    let client = client(&server).await;
    // Its other stream makes the client publish about every lock.
    let _all = client.events().await.unwrap();
    let mut events = client.rw_lock("a").events().await.unwrap();
    for name in ["b", "a}", "*", "a:events", "A"] {
        pass(&client.rw_lock(name)).await;
        let ours = pass(&client.rw_lock("a")).await;
        assert_eq!(lines(&mut events, 2).await, passed(ours), "{name}");
    }
}
