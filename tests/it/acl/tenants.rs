//! Tenants of one server, and what somebody who may publish can do to them.

use super::{LEASE, denied, login, rules};
use crate::server::{Server, connected, soon};
use fairlock::{Client, Error, LostReason};

#[tokio::test]
async fn tenants_cannot_touch_each_others_locks() {
    let server = Server::start().await;
    let mut guards = Vec::new();
    for (tenant, other) in [("red", "blue"), ("blue", "red")] {
        let rules: Vec<_> = rules("service")
            .iter()
            .map(|rule| rule.replace("fairlock:", &format!("{tenant}:")))
            .collect();
        let url = login(&server, tenant, &rules).await;
        let own = connected(Client::builder().prefix(tenant), &url).await;
        guards.push(own.rw_lock("a").write().acquire_fair().await.unwrap());
        let state = format!("{other}:{{a}}");
        for forbidden in [
            &["HMGET", &state, "seq"][..],
            &["DEL", &state],
            &["EVAL", "return redis.call('DEL', KEYS[1])", "1", &state],
            &["EVAL", "return redis.call('DEL', ARGV[1])", "0", &state],
            &["SUBSCRIBE", &format!("{other}:c:1")],
            &["PSUBSCRIBE", "*"],
            &["PUBLISH", &format!("{other}:c:1"), "0 w1:1\nx"],
            &["PUBLISH", &format!("{other}:listen"), "*"],
        ] {
            denied(&url, forbidden).await;
        }
        let foreign = Client::builder().prefix(other).connect(&*url).await;
        assert!(matches!(foreign, Err(Error::Connect { .. })), "{foreign:?}");
    }
    for guard in guards {
        assert!(guard.is_held());
        guard.release().await.unwrap();
    }
}

/// And a forged grant, until the next renewal.
#[tokio::test]
async fn a_forged_grant_is_believed_until_the_next_renewal() {
    let server = Server::start().await;
    let lock = connected(Client::builder().lease(LEASE), server.url())
        .await
        .rw_lock("a");
    let guard = lock.write().acquire_fair().await.unwrap();
    let waiting = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("a", 1).await;
    let mut redis = server.redis().await;
    let request: Vec<String> = redis::cmd("ZRANGE")
        .arg("fairlock:{a}:q")
        .arg(0)
        .arg(0)
        .query_async(&mut redis)
        .await
        .unwrap();
    let client = &lock.status().await.unwrap().waiters[0].client.id;
    redis::cmd("PUBLISH")
        .arg(format!("fairlock:c:{client}"))
        .arg(format!("{} {}\nfairlock:{{a}}", 1_u64 << 52, request[0]))
        .exec_async(&mut redis)
        .await
        .unwrap();
    let deceived = soon("the forged grant", waiting).await.unwrap().unwrap();
    soon("its end", deceived.lost()).await;
    assert!(guard.is_held());
}

/// What SECURITY.md says of who may publish on a client's channel: a forged eviction is believed. The lock stays as it is.
#[tokio::test]
async fn who_may_publish_on_a_clients_channel_can_deceive_it_but_not_the_lock() {
    let server = Server::start().await;
    let lock = connected(Client::builder(), server.url()).await.rw_lock("a");
    let guard = lock.write().acquire_fair().await.unwrap();
    let holder = lock.status().await.unwrap().holders[0].client.id.clone();
    let message = format!("0 w{holder}:1\nfairlock:{{a}}");
    let mut redis = server.redis().await;
    let channel = format!("fairlock:c:{holder}");
    redis::cmd("PUBLISH")
        .arg(channel)
        .arg(message)
        .exec_async(&mut redis)
        .await
        .unwrap();
    soon("the hold taken for lost", guard.lost()).await;
    let error = guard.release().await.unwrap_err();
    let evicted = matches!(
        error,
        Error::Lost {
            reason: LostReason::Evicted,
            ..
        }
    );
    assert!(evicted, "{error:?}");
}
