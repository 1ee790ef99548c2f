//! Events of a lock come from its node.

use crate::observe::{LONG, ms};
use crate::server::{eventually, soon};
use fairlock::{Error, EventKind, Events, Owner};
use fairlock_support::cluster::{Cluster, ask};
use redis::Value;

async fn next(events: &mut Events) -> Result<(EventKind, Owner), Error> {
    let item = soon("an event", events.next()).await.expect("a stream without end");
    item.map(|event| (event.kind, event.owner))
}

#[tokio::test]
async fn events_of_a_lock_come_from_its_node_and_follow_its_slot() {
    let cluster = Cluster::of(3, 0).await;
    let name = cluster.lock_on(0).await;
    let (user, reader) = (cluster.client(LONG).await, cluster.client(LONG).await);
    let (lock, owner) = (user.rw_lock(&*name), Owner::new());
    let pass = async || {
        let guard = lock.with_owner(&owner).write().acquire_fair().await.unwrap();
        guard.release().await.unwrap();
    };
    pass().await;
    assert_eq!(cluster.calls("spublish").await, 0, "nobody listens");
    let mut events = soon("the stream", reader.rw_lock(&*name).events()).await.unwrap();
    let mut other = soon("the stream", reader.rw_lock("other").events()).await.unwrap();
    // Who uses the lock need not be told.
    pass().await;
    assert_eq!(next(&mut events).await.unwrap(), (EventKind::Granted, owner));
    assert_eq!(next(&mut events).await.unwrap(), (EventKind::Released, owner));
    let slot = cluster.slot(&name).await;
    cluster.migrate(slot, 0, 1).await;
    let missed = next(&mut events).await.unwrap_err();
    assert!(matches!(missed, Error::EventsMissed { .. }), "{missed:?}");
    pass().await;
    assert_eq!(next(&mut events).await.unwrap(), (EventKind::Granted, owner));
    assert_eq!(next(&mut events).await.unwrap(), (EventKind::Released, owner));
    let quiet = tokio::time::timeout(ms(100), other.next()).await;
    assert!(quiet.is_err(), "another lock's: {quiet:?}");
    drop((events, other));
    eventually("nobody listens any more", async || cluster.channels().await == 0).await;
    let published = cluster.calls("spublish").await;
    pass().await;
    assert_eq!(cluster.calls("spublish").await, published);
    let all = reader.events().await.err().unwrap();
    assert!(matches!(all, Error::Unsupported { .. }), "{all:?}");
}

#[tokio::test]
async fn a_stream_of_events_that_is_dropped_and_opened_again_at_once_is_subscribed() {
    let cluster = Cluster::of(3, 0).await;
    let client = cluster.client(LONG).await;
    let (name, other) = (cluster.lock_on(0).await, cluster.lock_on(1).await);
    let (lock, other) = (client.rw_lock(&*name), client.rw_lock(&*other));
    let mut events = lock.events().await.unwrap();
    // Another node's listener finds that nobody reads the first, whose own looks once a second.
    for _ in 0..4 {
        drop(events);
        let _others = other.events().await.unwrap();
        events = lock.events().await.unwrap();
    }
    let owner = Owner::new();
    let guard = lock.with_owner(&owner).write().acquire_fair().await.unwrap();
    assert_eq!(next(&mut events).await.unwrap(), (EventKind::Granted, owner));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn events_that_another_node_brings_before_the_former_one_is_given_up_have_a_gap_too() {
    let cluster = Cluster::of(3, 0).await;
    let client = cluster.client(LONG).await;
    let name = cluster.lock_on(0).await;
    let slot = cluster.slot(&name).await;
    let lock = client.rw_lock(&*name);
    let mut events = lock.events().await.unwrap();
    let text = slot.to_string();
    cluster.nodes[0].freeze();
    let [former, new] = [&cluster.ids[0], &cluster.ids[1]];
    // As the target of a migration it raises the epoch.
    ask::<Value>(&cluster.nodes[1], &["CLUSTER", "SETSLOT", &text, "IMPORTING", former]).await;
    for node in &cluster.nodes[1..] {
        ask::<Value>(node, &["CLUSTER", "SETSLOT", &text, "NODE", new]).await;
    }
    // The listener's next ping, at most a second away, goes unanswered for another; half a second after a call has
    // begun the table is read. So it is while the listener waits.
    tokio::time::sleep(ms(500)).await;
    let guard = soon("the lock, at its new node", lock.write().acquire_fair()).await;
    loop {
        match soon("a gap", events.next()).await.expect("a stream without end") {
            Err(Error::EventsMissed { .. }) => break,
            other => println!("before it: {other:?}"),
        }
    }
    guard.unwrap().release().await.unwrap();
}
