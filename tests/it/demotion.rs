//! A master that becomes a replica, and a name that leads to whichever server is the master.

use crate::observe::{LONG, client, ms};
use crate::proxy::Proxy;
use crate::server::{Server, eventually, in_time, soon};
use fairlock::{Client, Error};

pub async fn replica_of(master: &Server) -> Server {
    let port = master.port().to_string();
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"]).await;
    eventually("the replica is in step", async || {
        info(&replica, "replication").await.contains("master_link_status:up")
    })
    .await;
    replica
}

pub async fn info(server: &Server, section: &str) -> String {
    let mut info = redis::cmd("INFO");
    info.arg(section)
        .query_async(&mut server.redis().await)
        .await
        .expect("INFO")
}

async fn replicates(server: &Server, master: &[&str]) {
    let mut replicaof = redis::cmd("REPLICAOF");
    let done = replicaof.arg(master).query_async(&mut server.redis().await).await;
    done.expect("REPLICAOF")
}

#[tokio::test]
async fn a_replica_is_refused_and_the_error_points_to_its_master() {
    let master = Server::start().await;
    let replica = replica_of(&master).await;
    let error = Client::connect(replica.url()).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains("connect to the master"), "{error}");
}

#[tokio::test]
async fn a_server_that_becomes_a_replica_counts_as_away_until_it_is_the_master_again() {
    in_time(async || {
        let (server, other) = tokio::join!(Server::start(), Server::start());
        let lock = client(server.url(), ms(1000)).await.rw_lock("a");
        let guard = lock.write().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(lock.write().acquire_fair());
        server.until_queued("a", 1).await;
        replicates(&server, &["127.0.0.1", &other.port().to_string()]).await;
        soon("the hold lost", guard.lost()).await;
        assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
        let error = lock.write().try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains("the server is not the master"), "{error}");
        assert!(!waiter.is_finished());
        replicates(&server, &["NO", "ONE"]).await;
        let guard = soon("the grant", waiter).await.unwrap().unwrap();
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_name_that_leads_to_another_master_takes_holds_and_waits_along() {
    in_time(async || {
        let former = Server::start().await;
        let next = replica_of(&former).await;
        let name = Proxy::to(former.port()).await;
        // No renewal is due: what is learned is learned by the release, and by messages.
        let lock = client(name.url(), LONG).await.rw_lock("a");
        let guard = lock.write().acquire_fair().await.unwrap();
        let token = guard.fencing_token();
        let waiter = tokio::spawn(lock.write().acquire_fair());
        next.until_queued("a", 1).await;
        replicates(&next, &["NO", "ONE"]).await;
        replicates(&former, &["127.0.0.1", &next.port().to_string()]).await;
        let before = name.connections();
        let release = tokio::spawn(guard.release());
        eventually("it tries the name again", async || name.connections() > before + 2).await;
        assert!(!release.is_finished() && !waiter.is_finished());
        name.leads_to(next.port());
        soon("the release", release).await.unwrap().unwrap();
        let guard = soon("the grant", waiter).await.unwrap().unwrap();
        assert!(guard.fencing_token() > token);
        guard.release().await.unwrap();
        assert_eq!(former.connections().await, 1, "only that of its new master, or to it");
    })
    .await;
}
