//! What those who listen are told, and what listening costs.

use crate::proxy::Proxy;
use crate::server::{Server, connected, eventually, in_time, soon};
use fairlock::{Client, Error, Event, EventKind, Events, FencingToken, Mode, Owner, RwLock};
use redis::aio::MultiplexedConnection;
use std::time::Duration;
use tokio::time::timeout;
use tokio_stream::StreamExt;

/// So long that nothing is renewed and nothing expires in a test.
const LONG: Duration = Duration::from_secs(600);

/// What is compared of an event: what, whose, how, with which token.
type Line = (EventKind, Owner, Mode, Option<FencingToken>);

async fn client(server: &Server) -> Client {
    let builder = Client::builder().lease(LONG);
    connected(builder, server.url()).await
}

async fn next(events: &mut Events) -> Event {
    let item = soon("an event", events.next()).await;
    item.expect("a stream without end").expect("nothing was missed")
}

async fn lines(events: &mut Events, n: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    for _ in 0..n {
        let event = next(events).await;
        lines.push((event.kind, event.owner, event.mode, event.token));
    }
    lines
}

/// In and out again: two events, for those who are heard.
async fn pass(lock: &RwLock) -> (Owner, FencingToken) {
    let guard = lock.write().acquire_fair().await.unwrap();
    let passed = (guard.owner(), guard.fencing_token());
    guard.release().await.unwrap();
    passed
}

fn passed((owner, token): (Owner, FencingToken)) -> [Line; 2] {
    [
        (EventKind::Granted, owner, Mode::Write, Some(token)),
        (EventKind::Released, owner, Mode::Write, None),
    ]
}

/// Reads on until somebody's release.
async fn until_released(events: &mut Events, by: Owner) {
    loop {
        let event = next(events).await;
        if event.owner == by && event.kind == EventKind::Released {
            return;
        }
    }
}

/// Until this user of the lock has been told that somebody listens. The stream is then behind all it did.
async fn until_heard(events: &mut Events, lock: &RwLock) {
    soon("an event of this client", async {
        loop {
            let (owner, _) = pass(lock).await;
            if timeout(Duration::from_millis(500), until_released(events, owner))
                .await
                .is_ok()
            {
                return;
            }
        }
    })
    .await;
}

/// Commands of the test's own that kill every connection that listens.
async fn kill_subscriptions(redis: &mut MultiplexedConnection) {
    let killed: u64 = redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "pubsub"])
        .query_async(redis)
        .await
        .unwrap();
    assert!(killed > 0);
}

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
        assert_eq!((event.lock.as_str(), &event.client), ("a", &holder.client.id));
        assert!((before..=after).contains(&event.at), "{before:?} {event:?} {after:?}");
    }
    assert!(granted.at < released.at);
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

#[tokio::test]
async fn nothing_is_published_while_nobody_listens_and_soon_after_the_last_one_stopped() {
    let server = Server::start().await;
    let (listening, acting) = (client(&server).await, client(&server).await.rw_lock("a"));
    let publishes = async || server.calls("publish").await;
    // Clients that are connected ask who listens, at first.
    let before = publishes().await;
    for _ in 0..50 {
        pass(&acting).await;
    }
    assert_eq!(publishes().await, before, "published, though nobody listens");

    let mut events = listening.rw_lock("a").events().await.unwrap();
    let second = listening.events().await.unwrap();
    until_heard(&mut events, &acting).await;
    let before = publishes().await;
    pass(&acting).await;
    assert!(publishes().await >= before + 2);
    drop(second);
    drop(events);
    // Who listened is believed for ten seconds after it last said so.
    eventually("nothing is published any more", async || {
        let before = publishes().await;
        for _ in 0..10 {
            pass(&acting).await;
        }
        publishes().await == before
    })
    .await;
    let channels: Vec<String> = redis::cmd("PUBSUB")
        .arg(&["CHANNELS", "*:events"])
        .query_async(&mut server.redis().await)
        .await
        .unwrap();
    assert_eq!(channels, Vec::<String>::new(), "still subscribed");
}

#[tokio::test]
async fn listening_costs_no_commands_of_those_who_use_the_lock() {
    const PASSES: u64 = 50;
    let server = Server::start().await;
    let (listening, acting) = (client(&server).await.rw_lock("a"), client(&server).await.rw_lock("a"));
    pass(&acting).await;
    let cost = async || {
        let before = server.script_calls().await;
        for _ in 0..PASSES {
            pass(&acting).await;
        }
        server.script_calls().await - before
    };
    assert_eq!(cost().await, 2 * PASSES);
    let mut events = listening.events().await.unwrap();
    until_heard(&mut events, &acting).await;
    let published = server.calls("publish").await;
    assert_eq!(cost().await, 2 * PASSES);
    assert!(
        server.calls("publish").await >= published + 2 * PASSES,
        "nobody published"
    );
}

#[tokio::test]
async fn a_client_that_connects_after_the_listener_publishes_without_waiting_for_the_next_announcement() {
    // Announced every three seconds; but who is new asks, before it does anything else.
    const CLIENTS: usize = 20;
    let server = Server::start().await;
    let mut events = client(&server).await.rw_lock("a").events().await.unwrap();
    until_heard(&mut events, &client(&server).await.rw_lock("a")).await;
    for _ in 0..CLIENTS {
        let expected = passed(pass(&client(&server).await.rw_lock("a")).await);
        assert_eq!(lines(&mut events, 2).await, expected);
    }
}

#[tokio::test]
async fn a_stream_that_is_read_too_slowly_says_so_and_goes_on_and_others_miss_nothing() {
    const PASSES: usize = 700;
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("a");
    let (mut slow, mut fast) = (lock.events().await.unwrap(), lock.events().await.unwrap());
    let reading = tokio::spawn(async move {
        let lines = lines(&mut fast, 2 * PASSES).await;
        (lines, fast)
    });
    let mut expected = Vec::new();
    for _ in 0..PASSES {
        expected.extend(passed(pass(&lock).await));
    }
    let (seen, mut fast) = reading.await.unwrap();
    assert_eq!(seen, expected);
    let missed = soon("an item", slow.next()).await.unwrap();
    assert!(
        matches!(&missed, Err(Error::EventsMissed { lock, why }) if lock == "a" && why.contains("slowly")),
        "{missed:?}"
    );
    // The latest 1,024 are still there.
    assert_eq!(lines(&mut slow, 1024).await, expected[2 * PASSES - 1024..]);
    let more = passed(pass(&lock).await);
    assert_eq!(lines(&mut slow, 2).await, more);
    assert_eq!(lines(&mut fast, 2).await, more);
}

#[tokio::test]
async fn two_streams_on_one_lock_and_two_listeners_all_see_everything() {
    let server = Server::start().await;
    let (here, there) = (client(&server).await, client(&server).await);
    let lock = here.rw_lock("a");
    let mut streams = [
        lock.events().await.unwrap(),
        lock.events().await.unwrap(),
        here.events().await.unwrap(),
        there.rw_lock("a").events().await.unwrap(),
        there.events().await.unwrap(),
    ];
    for _ in 0..5 {
        let expected = passed(pass(&lock).await);
        for events in &mut streams {
            assert_eq!(lines(events, 2).await, expected);
        }
    }
    // One of two ends: the other one goes on.
    let [first, mut second, ..] = streams;
    drop(first);
    // Subscriptions that nobody reads are looked for every second.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let expected = passed(pass(&lock).await);
    assert_eq!(lines(&mut second, 2).await, expected);
}

/// Reads on until an error.
async fn gap(events: &mut Events) -> Error {
    loop {
        if let Err(error) = events.next().await.expect("a stream without end") {
            return error;
        }
    }
}

/// Two streams of one client, which hear of this user's doings.
async fn two_streams(listening: &Client, acting: &RwLock) -> [Events; 2] {
    let mut streams = [
        listening.rw_lock("a").events().await.unwrap(),
        listening.events().await.unwrap(),
    ];
    for events in &mut streams {
        until_heard(events, acting).await;
    }
    streams
}

async fn until_gaps(streams: &mut [Events; 2]) {
    for (events, name) in streams.iter_mut().zip(["a", "*"]) {
        let missed = soon("the gap", gap(events)).await;
        assert!(
            matches!(&missed, Error::EventsMissed { lock, why } if lock == name && why.contains("connection")),
            "{missed}"
        );
    }
}

#[tokio::test]
async fn a_stream_whose_connection_is_killed_says_so_and_goes_on() {
    let server = Server::start().await;
    let (listening, acting) = (client(&server).await, client(&server).await.rw_lock("a"));
    let mut streams = two_streams(&listening, &acting).await;
    let mut redis = server.redis().await;
    for _ in 0..3 {
        kill_subscriptions(&mut redis).await;
        until_gaps(&mut streams).await;
        for events in &mut streams {
            until_heard(events, &acting).await;
        }
    }
}

#[tokio::test]
async fn what_follows_a_gap_is_complete() {
    const ROUNDS: usize = 20;
    let server = Server::start().await;
    let (listening, acting) = (client(&server).await, client(&server).await.rw_lock("a"));
    let mut streams = two_streams(&listening, &acting).await;
    let mut redis = server.redis().await;
    for round in 0..ROUNDS {
        kill_subscriptions(&mut redis).await;
        until_gaps(&mut streams).await;
        // The promise. So there is no waiting here.
        let expected = passed(pass(&acting).await);
        for events in &mut streams {
            assert_eq!(lines(events, 2).await, expected, "round {round}");
        }
    }
}

#[tokio::test]
async fn events_of_a_bad_name_or_a_closed_client_are_a_typed_error() {
    let server = Server::start().await;
    let client = client(&server).await;
    let nameless = client.rw_lock("").events().await;
    assert!(matches!(nameless, Err(Error::InvalidName { .. })), "{nameless:?}");
    client.shutdown().await;
    let closed = client.rw_lock("a").events().await;
    assert!(matches!(closed, Err(Error::Shutdown { .. })), "{closed:?}");
    let closed = client.events().await;
    assert!(matches!(closed, Err(Error::Shutdown { .. })), "{closed:?}");
}

#[tokio::test]
async fn events_that_a_user_may_not_subscribe_to_are_refused_and_grants_still_come() {
    let server = Server::start().await;
    let mut redis = server.redis().await;
    let mut rules = redis::cmd("ACL");
    rules.arg(&[
        "SETUSER",
        "app",
        "on",
        ">s3cret",
        "~fairlock:*",
        "resetchannels",
        "&fairlock:*",
        "+@all",
    ]);
    let set: Result<(), _> = rules.query_async(&mut redis).await;
    set.unwrap();
    let url = format!("redis://app:s3cret@127.0.0.1:{}", server.port());
    let client = connected(Client::builder().lease(LONG), url).await;
    let connections = server.connections().await;
    let refused = soon("an answer", client.events()).await;
    let Err(Error::Server { remedy, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert!(remedy.contains("&fairlock:{*}:events"), "{remedy}");
    // The subscription connection is the one that it was: nothing was missed. The lease is too long to learn it otherwise.
    let lock = client.rw_lock("a");
    let guard = lock.write().acquire_fair().await.unwrap();
    let waiting = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("a", 1).await;
    guard.release().await.unwrap();
    let granted = soon("the grant", waiting).await.unwrap().unwrap();
    granted.release().await.unwrap();
    assert_eq!(server.connections().await, connections);
    // The rule for one lock's channel is wide enough.
    let mut events = lock.events().await.unwrap();
    let _guard = lock.write().acquire_fair().await.unwrap();
    soon("an event", events.next()).await.unwrap().unwrap();
}

#[tokio::test]
async fn streams_end_when_their_client_is_shut_down() {
    in_time(async || {
        let server = Server::start().await;
        let client = client(&server).await;
        let mut of_one = client.rw_lock("a").events().await.unwrap();
        let mut of_all = client.events().await.unwrap();
        client.shutdown().await;
        for events in [&mut of_one, &mut of_all] {
            assert!(soon("the end", events.next()).await.is_none());
        }
    })
    .await;
}
