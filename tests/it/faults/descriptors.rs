//! A process that may open no further file when its connections end: each new one fails at `socket()`.

use crate::observe::{LONG, client, ms, until_free};
use crate::process::{Process, Resource};
use crate::proxy::Proxy;
use crate::server::{Server, soon};
use fairlock_support::limits::{Resource as Limited, limit};
use std::time::Duration;

/// A server, and a process behind a proxy that holds "a" with a lease.
async fn far_holder(lease: Duration) -> (Server, Proxy, Process, u64) {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let mut far = Process::start_beside(&proxy.url(), &server.url(), lease).await;
    far.ask(1, 'w', "a", None);
    let token = far.entered(1).await;
    (server, proxy, far, token)
}

async fn says(far: &mut Process, order: &str, reply: &str) {
    far.tell(order);
    assert_eq!(far.line().await, reply);
}

#[tokio::test]
async fn a_process_out_of_files_for_less_than_its_lease_keeps_its_hold() {
    let (server, proxy, mut far, token) = far_holder(LONG).await;
    let near = client(server.url(), LONG).await.rw_lock("a");
    let waiter = tokio::spawn(near.write().acquire_fair());
    server.until_queued("a", 1).await;
    limit(far.pid(), Limited::Nofile, Some(3));
    let before = proxy.connections();
    proxy.cut();
    // Long enough for several attempts. None reaches the proxy.
    tokio::time::sleep(ms(500)).await;
    assert_eq!(proxy.connections(), before);
    says(&mut far, "held 1", "held 1 true").await;
    assert!(!waiter.is_finished());
    limit(far.pid(), Limited::Nofile, None);
    says(&mut far, "release 1", "released 1 true").await;
    let next = soon("the grant", waiter).await.unwrap().unwrap();
    assert!(next.fencing_token().get() > token);
    next.release().await.unwrap();
    until_free(&server, "a").await;
}

#[tokio::test]
async fn a_process_out_of_files_for_longer_than_its_lease_knows_of_its_loss_and_comes_back() {
    let (server, proxy, mut far, token) = far_holder(ms(1_000)).await;
    let near = client(server.url(), LONG).await.rw_lock("a");
    let mut resource = Resource::new(server.redis().await, "a");
    limit(far.pid(), Limited::Nofile, Some(3));
    let before = proxy.connections();
    proxy.cut();
    let next = soon("the end of the lease", near.write().acquire_fair()).await.unwrap();
    assert!(next.fencing_token().get() > token && proxy.connections() == before);
    says(&mut far, "held 1", "held 1 false").await;
    assert!(resource.store(next.fencing_token().get()).await);
    // A new request fails after a lease, as that of a server that is away, and does not hang.
    far.ask(2, 'r', "a", None);
    let failed = far.line().await;
    assert!(
        failed.starts_with("failed 2 ") && failed.contains("open files"),
        "{failed}"
    );
    limit(far.pid(), Limited::Nofile, None);
    far.ask(3, 'w', "a", None);
    server.until_queued("a", 1).await;
    next.release().await.unwrap();
    far.entered(3).await;
    says(&mut far, "release 3", "released 3 true").await;
    until_free(&server, "a").await;
}
