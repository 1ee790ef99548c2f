//! One owner in several processes, some of which die.

use crate::proxy::Proxy;
use crate::server::{Server, eventually};
use crate::users::{LEASE, LONG, client, held_by, queued, read, state, user, write};
use fairlock::{Owner, RwLock};

/// One owner in two processes, the first process without it, and a third process.
async fn processes(server: &Server) -> (Owner, [RwLock; 4]) {
    let (here, there, owner) = (user(server, LONG).await, user(server, LONG).await, Owner::new());
    let also_mine = there.with_owner(&Owner::from_uuid(owner.uuid()));
    (
        owner,
        [here.with_owner(&owner), also_mine, here, user(server, LONG).await],
    )
}

#[tokio::test]
async fn a_reader_reenters_past_a_waiting_writer_also_from_another_process() {
    let server = Server::start().await;
    let (owner, [mine, also_mine, here, other]) = processes(&server).await;
    let outer = read(&mine).await;
    let writer = queued(&server, other.write(), 1).await;
    assert!(
        here.read().try_acquire().await.unwrap().is_none(),
        "another owner's reader passed the writer"
    );

    let inner = read(&mine).await;
    let elsewhere = read(&also_mine).await;
    let tried = mine.read().try_acquire().await.unwrap().expect("reentry is never busy");
    for guard in [&inner, &elsewhere, &tried] {
        assert_eq!(guard.fencing_token(), outer.fencing_token());
        assert_eq!(guard.owner(), owner);
    }
    // It reads alone, so it may write too, ahead of the writer that waits.
    let writing = write(&also_mine).await;
    assert!(writing.fencing_token() > outer.fencing_token());
    assert_eq!(
        state(&server, "a").await,
        held_by(&owner, 4, 1, writing.fencing_token())
    );
    assert_eq!(server.queued("a").await, 1);

    writing.release().await.unwrap();
    for guard in [outer, inner, elsewhere] {
        guard.release().await.unwrap();
    }
    assert!(!writer.entered());
    tried.release().await.unwrap();
    drop(writer.enters().await);
}

#[tokio::test]
async fn a_writer_reenters_past_waiting_readers_and_writers_also_from_another_process() {
    let server = Server::start().await;
    let (owner, [mine, also_mine, _, other]) = processes(&server).await;
    let outer = write(&mine).await;
    let writer = queued(&server, other.write(), 1).await;
    let reader = queued(&server, other.read(), 2).await;

    let (again, reading) = (write(&also_mine).await, read(&also_mine).await);
    assert_eq!(again.fencing_token(), outer.fencing_token());
    assert_eq!(reading.fencing_token(), outer.fencing_token());
    assert_eq!(state(&server, "a").await, held_by(&owner, 1, 2, outer.fencing_token()));

    outer.release().await.unwrap();
    reading.release().await.unwrap();
    assert_eq!(server.queued("a").await, 2);
    again.release().await.unwrap();
    writer.enters().await.release().await.unwrap();
    drop(reader.enters().await);
}

#[tokio::test]
async fn a_hold_of_a_dead_process_ends_and_the_same_owners_hold_elsewhere_stays() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let owner = Owner::new();
    let dying = client(proxy.url(), LEASE).await.rw_lock("a").with_owner(&owner);
    let living = user(&server, LONG).await.with_owner(&owner);
    let (dead, alive) = (read(&dying).await, read(&living).await);
    // Who waits looks when somebody's lease has run out.
    let writer = queued(&server, user(&server, LONG).await.write(), 1).await;
    proxy.stall(true);
    let one_read = held_by(&owner, 1, 0, alive.fencing_token());
    eventually("one read hold left", async || state(&server, "a").await == one_read).await;
    assert!(!dead.is_held(), "others may know of the loss only after its user");
    assert!(alive.is_held());
    assert!(!writer.entered(), "a writer entered beside a reader");
    alive.release().await.unwrap();
    drop(writer.enters().await);
}

#[tokio::test]
async fn a_writer_that_dies_falls_back_to_what_its_owner_reads_elsewhere() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let owner = Owner::new();
    let dying = client(proxy.url(), LEASE).await.rw_lock("a").with_owner(&owner);
    let living = user(&server, LONG).await.with_owner(&owner);
    let dead = write(&dying).await;
    let alive = read(&living).await;
    let other = user(&server, LONG).await;
    let reader = queued(&server, other.read(), 1).await;
    let writer = queued(&server, other.write(), 2).await;
    proxy.stall(true);
    let entered = reader.enters().await;
    assert!(!dead.is_held() && alive.is_held() && !writer.entered());
    assert!(entered.fencing_token() > alive.fencing_token());
    entered.release().await.unwrap();
    assert_eq!(state(&server, "a").await, held_by(&owner, 1, 0, alive.fencing_token()));
    alive.release().await.unwrap();
    drop(writer.enters().await);
}
