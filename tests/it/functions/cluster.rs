//! Functions in a cluster: each node has a library of its own.

use super::LONG;
use crate::server::soon;
use fairlock_support::cluster::Cluster;

#[tokio::test]
async fn each_node_gets_the_functions_and_a_slot_that_moves_finds_them() {
    let cluster = Cluster::of(3, 0).await;
    let client = cluster.client(LONG).await;
    for node in 0..3 {
        let name = cluster.lock_on(node).await;
        let guard = client.rw_lock(&*name).write().acquire_fair().await.unwrap();
        guard.release().await.unwrap();
    }
    let name = cluster.lock_on(0).await;
    let guard = client.rw_lock(&*name).write().acquire_fair().await.unwrap();
    let waiting = tokio::spawn(client.rw_lock(&*name).read().acquire_fair());
    cluster.nodes[0].until_queued(&name, 1).await;
    cluster.migrate(cluster.slot(&name).await, 0, 1).await;
    guard.release().await.unwrap();
    soon("the hand-over", waiting)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    for node in &cluster.nodes {
        assert!(node.executed("fcall").await > 1, "calls of functions");
        assert_eq!(node.calls("evalsha").await + node.calls("eval").await, 0);
    }
}
