//! A cluster.

use super::{Served, encoded};
use crate::command::{Cli, said};
use crate::scene::{LONG, stay};
use fairlock_support::server::{Server, eventually};

#[tokio::test]
async fn in_a_cluster_it_shows_the_locks_of_all_nodes_and_the_events_of_single_locks() {
    if Server::start().await.is_before_7().await {
        println!("skipped: a cluster on free ports needs Redis 7");
        return;
    }
    let cluster = fairlock_support::cluster::Cluster::of(3, 0).await;
    let holder = cluster.client(LONG).await;
    let mut names = Vec::new();
    for node in 0..3 {
        let name = cluster.lock_on(node).await;
        stay(holder.rw_lock(&*name).write());
        names.push(name);
    }
    let served = Served::start(&Cli::of(&cluster.nodes[0]), &["--interval", "1ms"]).await;
    eventually("all locks show", async || {
        served.document("/api/locks").await["matching"] == 3
    })
    .await;
    assert_eq!(served.document("/api/site").await["events"], "lock");
    let refused = served.get("/api/events").await;
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(said(&refused.body, &["cluster", "lock=NAME"]), "{refused:?}");
    let mut events = served.events(&format!("lock={}", encoded(&names[0]))).await;
    let asking = holder.clone();
    let name = names[0].clone();
    tokio::spawn(async move {
        loop {
            let _ = asking
                .rw_lock(&*name)
                .write()
                .try_acquire_for(std::time::Duration::from_millis(20))
                .await;
        }
    });
    let event = events.until(|event| event["event"] == "queued").await;
    assert_eq!(event["lock"], names[0].as_str());
    assert!(event["process"].is_u64(), "{event}");
}
