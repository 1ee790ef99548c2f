//! Grants that nobody heard, on servers that cannot be sure of that. What a script does when it is sure stands in
//! `tests/conformance/scenarios/unheard.json`.

use crate::lua::{LEASE_MS, Lock, RELEASE};
use crate::server::{Server, free_port};

/// Releases a writer. Two wait for it, whom nobody hears: which of their leases are still whole?
async fn whole_leases(server: &Server) -> [bool; 2] {
    whole_leases_by(server, "").await
}

async fn whole_leases_by(server: &Server, options: &str) -> [bool; 2] {
    let lock = Lock::through(server.redis().await, "a");
    lock.acquire_all(&["w1:1", "w2:1", "w3:1"]).await;
    lock.call(RELEASE, options, &["w1:1".to_owned()]).await.unwrap();
    let state = lock.state().await;
    assert_eq!(state.holding(), ["w2:1"]);
    ["w2:1", "w3:1"].map(|request| state.leases[request] > state.now_ms + LEASE_MS / 2)
}

#[tokio::test]
async fn a_server_that_was_never_promoted_cuts_their_leases() {
    assert_eq!(whole_leases(&Server::start().await).await, [false, false]);
}

#[tokio::test]
async fn a_promoted_server_does_not_know_who_hears_by_its_former_master() {
    let server = Server::start().await;
    let nowhere = free_port().to_string();
    for master in [["127.0.0.1", nowhere.as_str()], ["NO", "ONE"]] {
        let mut switch = redis::cmd("REPLICAOF");
        switch.arg(&master).exec_async(&mut server.redis().await).await.unwrap();
    }
    assert_eq!(whole_leases(&server).await, [true, true]);
}

#[tokio::test]
async fn without_the_rights_to_ask_who_hears_no_lease_is_cut_on_suspicion() {
    let server = Server::start().await;
    for (right, whole) in [("-pubsub", [false, true]), ("-info", [true, true])] {
        let mut rule = redis::cmd("ACL");
        rule.arg("SETUSER").arg("default").arg(right);
        rule.exec_async(&mut server.redis().await).await.unwrap();
        assert_eq!(whole_leases(&server).await, whole, "{right}");
        Lock::new(&server, "a").await.run("FLUSHALL", &[]).await;
    }
}

#[tokio::test]
async fn a_call_by_asking_cuts_no_lease() {
    assert_eq!(whole_leases_by(&Server::start().await, "a").await, [true, true]);
}
