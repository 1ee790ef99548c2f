//! Who listens, what that costs the others, and how a stream ends.

use super::gaps::kill_subscriptions;
use super::{LONG, client, lines, pass, passed, until_heard};
use crate::lateness::in_time;
use crate::server::{Server, connected, eventually, soon};
use fairlock::{Client, Error, RwLock};
use std::time::Duration;

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
    until_silent(&server, &acting).await;
    let channels = server.channels("*:events").await;
    assert_eq!(channels, Vec::<String>::new(), "still subscribed");
}

/// Waits until the scripts of a client publish nothing. Who listened is believed for ten seconds after it last said so.
async fn until_silent(server: &Server, acting: &RwLock) {
    eventually("nothing is published any more", async || {
        let before = server.calls("publish").await;
        for _ in 0..10 {
            pass(acting).await;
        }
        server.calls("publish").await == before
    })
    .await;
}

#[tokio::test]
async fn who_has_stopped_listening_is_forgotten_after_an_outage_too() {
    let server = Server::start().await;
    let (listening, acting) = (client(&server).await, client(&server).await.rw_lock("a"));
    let mut events = listening.rw_lock("a").events().await.unwrap();
    until_heard(&mut events, &acting).await;
    kill_subscriptions(&mut server.redis().await).await;
    drop(events);
    until_silent(&server, &acting).await;
}

#[tokio::test]
async fn who_listened_leaves_the_set_though_others_go_on() {
    let server = Server::start().await;
    let listening = client(&server).await;
    let _lasts = listening.events().await.unwrap();
    let mut redis = server.redis().await;
    // They have said so long ago.
    let mut others = redis::cmd("ZADD");
    others
        .arg("fairlock:listen")
        .arg(1)
        .arg("fairlock:{x}")
        .arg(1)
        .arg("fairlock:{y}");
    others.exec_async(&mut redis).await.unwrap();
    let _new = listening.rw_lock("a").events().await.unwrap();
    let mut all = redis::cmd("ZRANGE");
    all.arg("fairlock:listen").arg(0).arg(-1);
    let all: Vec<String> = all.query_async(&mut redis).await.unwrap();
    assert_eq!(all, ["*", "fairlock:{a}"]);
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

/// The user `app` may use these channels, and no others.
async fn app_has(server: &Server, channels: &[&str]) {
    let mut rules = redis::cmd("ACL");
    rules.arg(&["SETUSER", "app", "on", ">s3cret", "~fairlock:*", "+@all"]);
    let rules = rules.arg("resetchannels").arg(channels);
    rules.exec_async(&mut server.redis().await).await.unwrap();
}

async fn client_with(server: &Server, channels: &[&str]) -> Client {
    app_has(server, channels).await;
    let url = format!("redis://app:s3cret@127.0.0.1:{}", server.port());
    connected(Client::builder().lease(LONG), url).await
}

#[tokio::test]
async fn events_that_a_user_may_not_subscribe_to_are_refused_and_grants_still_come() {
    let server = Server::start().await;
    let client = client_with(&server, &["&fairlock:*"]).await;
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
async fn a_stream_whose_subscription_is_refused_later_ends_with_that_error() {
    let server = Server::start().await;
    let client = client_with(&server, &["&fairlock:*"]).await;
    let mut events = client.rw_lock("a").events().await.unwrap();
    // The server ends a subscription that is no longer allowed.
    app_has(&server, &["&fairlock:c:*", "&fairlock:listen"]).await;
    let ended = soon("an item", events.next()).await;
    assert!(matches!(ended, Some(Err(Error::Server { .. }))), "{ended:?}");
    assert!(soon("the end", events.next()).await.is_none());
}

#[tokio::test]
async fn streams_end_with_an_error_when_the_clients_own_channels_are_refused() {
    let server = Server::start().await;
    let client = client_with(&server, &["&fairlock:*"]).await;
    let lock = client.rw_lock("a");
    let guard = lock.write().acquire_fair().await.unwrap();
    let mut events = lock.events().await.unwrap();
    app_has(&server, &[]).await;
    let ended = soon("an item", events.next()).await;
    assert!(matches!(ended, Some(Err(Error::Server { .. }))), "{ended:?}");
    assert!(soon("the end", events.next()).await.is_none());
    // The client tries again every second, and each time the server says the same.
    let refused = soon("an answer", lock.events()).await;
    assert!(matches!(refused, Err(Error::Server { .. })), "{refused:?}");
    let contended = soon("an answer", guard.contended()).await;
    assert!(matches!(contended, Err(Error::Server { .. })), "{contended:?}");
    app_has(&server, &["&fairlock:*"]).await;
    eventually("the server allows it again", async || lock.events().await.is_ok()).await;
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

#[tokio::test]
async fn streams_end_when_their_client_shuts_down_and_the_future_is_dropped() {
    in_time(async || {
        let server = Server::start().await;
        let client = client(&server).await;
        let _guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
        let mut events = client.rw_lock("a").events().await.unwrap();
        // The release gets no reply.
        server.freeze();
        let mut shutdown = Box::pin(client.shutdown());
        assert!(futures::poll!(&mut shutdown).is_pending());
        drop(shutdown);
        assert!(soon("the end", events.next()).await.is_none());
        server.thaw();
    })
    .await;
}
