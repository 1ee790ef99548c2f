//! What a service stores, logs or sends of a lock, with serde: it reads back what it wrote.

use crate::server::{Server, connected, soon};
use fairlock::{Client, FencingToken, LostReason, Owner, Policy, Status};
use serde_json::{from_value, json, to_value};

#[tokio::test]
async fn a_status_and_an_event_survive_their_json() {
    let server = Server::start().await;
    let client = connected(Client::builder().label("here"), server.url()).await;
    let lock = client.rw_lock("a");
    let mut events = lock.events().await.unwrap();
    let owner = Owner::new();
    let guard = lock.with_owner(&owner).write().acquire_fair().await.unwrap();
    let _waiter = tokio::spawn(lock.read().acquire_fair());
    server.until_queued("a", 1).await;

    let status = lock.status().await.unwrap();
    let stored = to_value(&status).unwrap();
    assert_eq!(stored["mode"], "write");
    assert_eq!(stored["policy"], "fifo");
    assert_eq!(stored["holders"][0]["owner"], owner.to_string());
    assert_eq!(stored["holders"][0]["token"], guard.fencing_token().get());
    assert_eq!(stored["holders"][0]["client"]["label"], "here");
    assert_eq!(stored["waiters"][0]["position"], 0);
    assert_eq!(from_value::<Status>(stored).unwrap(), status);

    let event = soon("the grant", events.next()).await.unwrap().unwrap();
    let stored = to_value(&event).unwrap();
    assert_eq!(stored["kind"], "granted");
    assert_eq!(from_value::<fairlock::Event>(stored).unwrap(), event);
}

#[test]
fn words_are_those_of_spans_and_metrics_and_a_number_that_is_no_token_is_refused() {
    assert_eq!(to_value(LostReason::LeaseExpired).unwrap(), "lease_expired");
    assert_eq!(to_value(Policy::WriterFirst).unwrap(), "writer_first");
    assert!(from_value::<FencingToken>(json!(u64::MAX)).is_err());
    assert!(from_value::<FencingToken>(json!(-1)).is_err());
}
