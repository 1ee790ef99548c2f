//! A master that becomes a replica, and a name that leads to whichever server is the master.

use crate::lateness::{in_time, promise};
use crate::observe::{LONG, client, ms};
use crate::proxy::Proxy;
use crate::server::{Server, connected, eventually, soon};
use crate::users::passes;
use fairlock::{Client, Error};
use tokio::net::TcpListener;
use tokio::time::timeout;

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

pub async fn until_server_waits(server: &Server) {
    eventually("the server waits for its replica", async || {
        info(server, "clients").await.contains("blocked_clients:1")
    })
    .await;
}

async fn replicates(server: &Server, master: &[&str]) {
    let mut replicaof = redis::cmd("REPLICAOF");
    let done = replicaof.arg(master).query_async(&mut server.redis().await).await;
    done.expect("REPLICAOF")
}

#[tokio::test]
async fn a_client_of_a_replica_reads_and_is_told_when_it_wants_to_write() {
    in_time(async || {
        let master = Server::start().await;
        let replica = replica_of(&master).await;
        let lock = client(replica.url(), ms(1000)).await.rw_lock("a");
        assert_eq!(lock.status().await.unwrap().holders, []);
        let error = lock.write().acquire_fair().await.unwrap_err();
        assert!(matches!(error, Error::Server { .. }), "{error:?}");
        assert!(error.to_string().contains("connect to the master"), "{error}");
        replicates(&replica, &["NO", "ONE"]).await;
        let guard = lock.write().acquire_fair().await.unwrap();
        guard.release().await.unwrap();
    })
    .await;
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
        for server in [&former, &next] {
            // The client may not count the subscribers of its channel, so only the refusal by a replica tells.
            let mut rights = redis::cmd("ACL");
            rights.arg("SETUSER").arg("default").arg("-pubsub");
            rights.exec_async(&mut server.redis().await).await.unwrap();
        }
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
        promise(guard.fencing_token() > token, "tokens grow");
        guard.release().await.unwrap();
        assert_eq!(former.connections().await, 1, "only that of its new master, or to it");
    })
    .await;
}

/// Nobody has heard that the former master is no longer the master: it only died.
#[tokio::test]
async fn a_name_that_leads_to_a_replica_before_its_promotion_ends_no_wait() {
    in_time(async || {
        let mut former = Server::start().await;
        let next = replica_of(&former).await;
        let name = Proxy::to(former.port()).await;
        let (holding, waiting) = (client(former.url(), ms(3000)).await, client(name.url(), ms(3000)).await);
        let _guard = holding.rw_lock("a").write().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(waiting.rw_lock("a").write().acquire_fair());
        next.until_queued("a", 1).await;
        name.leads_to(next.port());
        former.kill();
        eventually("the replica refuses", async || next.errors("READONLY").await > 0).await;
        let error = waiting.rw_lock("b").write().try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(!waiter.is_finished());
        replicates(&next, &["NO", "ONE"]).await;
        let guard = soon("the grant", waiter).await.unwrap().unwrap();
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_name_that_leads_nowhere_for_a_while_ends_no_wait() {
    in_time(async || {
        let former = Server::start().await;
        let next = replica_of(&former).await;
        // Takes connections, and never says a word.
        let nowhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = Proxy::to(former.port()).await;
        let client = client(name.url(), ms(3000)).await;
        let lock = client.rw_lock("a");
        let guard = lock.write().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(lock.write().acquire_fair());
        next.until_queued("a", 1).await;
        name.leads_to(nowhere.local_addr().unwrap().port());
        replicates(&next, &["NO", "ONE"]).await;
        replicates(&former, &["127.0.0.1", &next.port().to_string()]).await;
        // Of a free lock: on Redis 6.2 a replica lets a script do what writes nothing.
        let error = client.rw_lock("b").read().try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(!waiter.is_finished());
        soon("the hold lost", guard.lost()).await;
        name.leads_to(next.port());
        let guard = soon("the grant", waiter).await.unwrap().unwrap();
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_release_that_the_former_master_refused_does_not_hide_that_the_next_one_knows_nothing() {
    in_time(async || {
        let (former, next) = tokio::join!(Server::start(), Server::start());
        let name = Proxy::to(former.port()).await;
        let lock = client(name.url(), LONG).await.rw_lock("a");
        let guard = lock.write().acquire_fair().await.unwrap();
        name.leads_to(next.port());
        replicates(&former, &["127.0.0.1", &next.port().to_string()]).await;
        let released = soon("an answer", guard.release()).await;
        assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
    })
    .await;
}

#[tokio::test]
async fn who_only_listens_to_events_follows_the_name_too() {
    in_time(async || {
        let former = Server::start().await;
        let next = replica_of(&former).await;
        let name = Proxy::to(former.port()).await;
        let listener = client(name.url(), LONG).await;
        let mut events = listener.rw_lock("a").events().await.unwrap();
        name.leads_to(next.port());
        replicates(&next, &["NO", "ONE"]).await;
        replicates(&former, &["127.0.0.1", &next.port().to_string()]).await;
        let missed = soon("the switch", events.next()).await.unwrap().unwrap_err();
        assert!(matches!(missed, Error::EventsMissed { .. }), "{missed:?}");
        let lock = client(next.url(), LONG).await.rw_lock("a");
        // Heard as soon as it is announced that somebody listens.
        loop {
            drop(lock.write().acquire_fair().await.unwrap());
            if timeout(ms(50), events.next()).await.is_ok() {
                break;
            }
        }
    })
    .await;
}

/// The former master lives on and believes that it is one, so nothing there ends the subscription.
#[tokio::test]
async fn a_subscription_does_not_stay_behind_with_another_master() {
    in_time(async || {
        let (former, next) = tokio::join!(Server::start(), Server::start());
        let name = Proxy::to(former.port()).await;
        let (moving, there) = (client(name.url(), LONG).await, client(next.url(), LONG).await);
        name.leads_to(next.port());
        // The subscription is no normal client.
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg("normal");
        let killed: u64 = kill.query_async(&mut former.redis().await).await.unwrap();
        assert!(killed > 0, "the connection for calls");
        // Each client subscribes to one channel of its own.
        eventually("both hear the next master", async || {
            next.channels("fairlock:c:*").await.len() == 2
        })
        .await;
        let guard = there.rw_lock("a").write().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(moving.rw_lock("a").write().acquire_fair());
        next.until_queued("a", 1).await;
        guard.release().await.unwrap();
        passes("the grant", waiter).await;
    })
    .await;
}

#[tokio::test]
async fn a_wait_for_replicas_that_a_demotion_ends_is_asked_for_again() {
    in_time(async || {
        let master = Server::start().await;
        let replica = replica_of(&master).await;
        let builder = Client::builder().lease(LONG).wait_for_replicas(1, LONG);
        let lock = connected(builder, master.url()).await.rw_lock("a");
        replica.freeze();
        let asked = tokio::spawn(lock.write().acquire_fair());
        until_server_waits(&master).await;
        replicates(&master, &["127.0.0.1", "1"]).await;
        eventually("the wait ended", async || {
            info(&master, "clients").await.contains("blocked_clients:0")
        })
        .await;
        replicates(&master, &["NO", "ONE"]).await;
        replica.thaw();
        let guard = soon("the guard", asked).await.unwrap().unwrap();
        guard.release().await.unwrap();
    })
    .await;
}
