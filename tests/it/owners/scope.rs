//! `Owner::scope`: one owner for all requests of a future.

use crate::server::{Server, soon};
use crate::users::{LONG, read, user, write};
use fairlock::{Error, Owner};

#[tokio::test]
async fn a_scope_reenters_and_its_spawned_tasks_and_named_owners_do_not() {
    let server = Server::start().await;
    let lock = user(&server, LONG).await;
    let (me, other) = (Owner::new(), Owner::new());
    let busy = |tried: Result<Option<_>, Error>| assert!(tried.unwrap().is_none());
    me.scope(async {
        let outer = write(&lock).await;
        assert_eq!(outer.owner(), me);
        let inner = soon("its own lock", write(&lock)).await;
        assert_eq!(inner.fencing_token(), outer.fencing_token());
        inner.release().await.unwrap();
        busy(lock.with_owner(&other).write().try_acquire().await);
        busy(other.scope(lock.write().try_acquire()).await);
        assert_eq!(Owner::current(), Some(me), "the inner scope is over");
        // Spawned: outside of the scope, though the request was made inside.
        busy(tokio::spawn(lock.write().try_acquire()).await.unwrap());
        let again = tokio::spawn(me.scope(lock.write().try_acquire()));
        again
            .await
            .unwrap()
            .unwrap()
            .expect("its own lock")
            .release()
            .await
            .unwrap();
        outer.release().await.unwrap();
    })
    .await;
    assert_eq!(Owner::current(), None);
    assert_ne!(read(&lock).await.owner(), me);
}

#[tokio::test]
async fn a_request_belongs_to_the_scope_that_polls_it_first() {
    let server = Server::start().await;
    let lock = user(&server, LONG).await;
    let me = Owner::new();
    let request = lock.read();
    let guard = me.scope(request.acquire_fair()).await.unwrap();
    assert_eq!(guard.owner(), me);
    let request = me.scope(async { lock.read() }).await;
    let stranger = request.acquire_fair().await.unwrap();
    assert_ne!(stranger.owner(), me);
    stranger.release().await.unwrap();
    // The guard acts for its own owner, wherever it is.
    let upgraded = Owner::new().scope(guard.upgrade()).await.unwrap();
    assert_eq!(upgraded.owner(), me);
}

#[tokio::test]
async fn the_scope_of_a_single_requests_owner_is_refused_when_it_asks() {
    let server = Server::start().await;
    let lock = user(&server, LONG).await;
    let single = read(&lock).await.owner();
    let refused = single.scope(lock.read().acquire_fair()).await;
    assert!(
        matches!(refused, Err(Error::InvalidOwner { owner, .. }) if owner == single),
        "{refused:?}"
    );
}
