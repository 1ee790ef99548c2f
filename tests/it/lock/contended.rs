//! A holder that learns that others wait.

use crate::lua::Lock;
use crate::proxy::Proxy;
use crate::server::{Server, eventually, soon};
use crate::users::{LEASE, LONG, client, queued, read, user, write};
use fairlock::{Error, Guard, LostReason, Owner};
use tokio::task::JoinHandle;

/// Waits in a task of its own until another owner waits, and gives the guard back.
fn contended<M: 'static>(guard: Guard<M>) -> JoinHandle<Guard<M>> {
    tokio::spawn(async move {
        guard.contended().await.expect("an answer");
        guard
    })
}

#[tokio::test]
async fn a_holder_learns_of_a_waiter_that_comes_and_of_one_that_is_there() {
    let server = Server::start().await;
    let (holder, others) = (user(&server, LONG).await, user(&server, LONG).await);
    let learning = contended(write(&holder).await);
    // By its event, or by the second look if the other client has not heard yet that somebody listens.
    let first = queued(&server, others.write(), 1).await;
    let guard = soon("the first waiter", learning).await.unwrap();
    soon("the same waiter", guard.contended()).await.unwrap();
    guard.release().await.unwrap();
    let guard = first.enters().await;
    let second = queued(&server, holder.read(), 1).await;
    soon("the second waiter", guard.contended()).await.unwrap();
    drop(guard);
    second.enters().await.release().await.unwrap();
}

#[tokio::test]
async fn an_owners_own_wait_is_no_contention() {
    let server = Server::start().await;
    let (lock, others) = (user(&server, LONG).await, user(&server, LONG).await);
    let me = Owner::new();
    let mine = lock.with_owner(&me);
    let (reading, further) = (read(&mine).await, read(&mine).await);
    let beside = read(&others).await;
    let upgrading = tokio::spawn(async move { further.upgrade().await });
    server.until_queued("a", 1).await;
    let before = server.script_calls().await;
    let learning = contended(reading);
    eventually("two looks", async || server.script_calls().await >= before + 2).await;
    assert!(!learning.is_finished(), "it was told of its own upgrade");
    let stranger = queued(&server, others.write(), 2).await;
    let reading = soon("the stranger", learning).await.unwrap();
    beside.release().await.unwrap();
    let writing = soon("the upgrade", upgrading).await.unwrap().unwrap();
    drop((writing, reading));
    stranger.enters().await.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_whose_lease_is_over_is_no_contention() {
    let server = Server::start().await;
    let holder = user(&server, LONG).await;
    let guard = write(&holder).await;
    let lock = Lock::new(&server, "a").await;
    let dead = "w0123456789abcde:1";
    lock.acquire(dead).await.ticket();
    lock.die(&[dead]).await;
    let before = server.script_calls().await;
    let learning = contended(guard);
    eventually("two looks", async || server.script_calls().await >= before + 2).await;
    assert!(!learning.is_finished(), "it was told of a dead waiter");
    assert_eq!(lock.state().await.waiting(), [dead], "nobody has swept it out");
    let alive = "w0123456789abcde:2";
    lock.acquire(alive).await.ticket();
    drop(soon("the waiter", learning).await.unwrap());
}

#[tokio::test]
async fn without_any_message_the_status_tells_of_a_waiter() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let holder = client(proxy.url(), LONG).await.rw_lock("a");
    let learning = contended(write(&holder).await);
    proxy.drop_messages(true);
    let waiting = queued(&server, user(&server, LONG).await.write(), 1).await;
    let guard = soon("a look", learning).await.unwrap();
    guard.release().await.unwrap();
    waiting.enters().await.release().await.unwrap();
}

#[tokio::test]
async fn a_holder_that_is_lost_learns_that_instead() {
    let server = Server::start().await;
    let lock = user(&server, LEASE).await;
    let guard = write(&lock).await;
    let owner = guard.owner();
    let (told, evicted) = tokio::join!(soon("the loss", guard.contended()), lock.evict(&owner));
    assert_eq!(evicted.unwrap(), 1);
    assert!(
        matches!(
            told,
            Err(Error::Lost {
                reason: LostReason::Evicted,
                ..
            })
        ),
        "{told:?}"
    );
}
