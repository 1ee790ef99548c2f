//! Tenants of one server, and what somebody who may publish can do to them.

use super::{LEASE, denied, login, rules};
use crate::server::{Server, connected, eventually, soon};
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

/// What SECURITY.md says of introductions and listeners: a strange label, and messages that nobody hears.
#[tokio::test]
async fn deleted_introductions_and_invented_listeners_cost_a_label_and_messages_and_no_lock() {
    let server = Server::start().await;
    let holder = connected(Client::builder().label("billing"), server.url()).await;
    let guard = holder.rw_lock("held").write().acquire_fair().await.unwrap();
    let mut redis = server.redis().await;
    let reader = connected(Client::builder(), server.url()).await;
    let shown = async || reader.rw_lock("held").status().await.unwrap().holders.remove(0);
    eventually("the holder has introduced itself", async || {
        shown().await.client.label.is_some()
    })
    .await;
    eventually("nobody knows its label", async || {
        let mut redis = server.redis().await;
        let mut keys = redis::cmd("KEYS");
        let introductions: Vec<String> = keys.arg("fairlock:client:*").query_async(&mut redis).await.unwrap();
        if !introductions.is_empty() {
            redis::cmd("DEL")
                .arg(introductions)
                .exec_async(&mut redis)
                .await
                .unwrap();
        }
        shown().await.client.label.is_none()
    })
    .await;
    assert_eq!(shown().await.owner, guard.owner());

    let acting = holder.rw_lock("a");
    let pass = async || {
        let before = server.calls("publish").await;
        acting.write().acquire_fair().await.unwrap().release().await.unwrap();
        server.calls("publish").await - before
    };
    assert_eq!(pass().await, 0);
    let mut add = redis::cmd("ZADD");
    add.arg("fairlock:listen").arg(1).arg("fairlock:{a}");
    add.exec_async(&mut redis).await.unwrap();
    eventually("the client believes it", async || {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg("fairlock:listen").arg("fairlock:{a}");
        publish.exec_async(&mut server.redis().await).await.unwrap();
        pass().await > 0
    })
    .await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// What SECURITY.md says of tokens: they authorise nobody, because whoever may read the keys has them.
#[tokio::test]
async fn a_user_who_may_read_sees_the_token_of_a_holder() {
    let server = Server::start().await;
    if server.is_before_7().await {
        println!("skipped: a user who may only read needs Redis 7");
        return;
    }
    let lock = connected(Client::builder(), server.url()).await.rw_lock("a");
    let guard = lock.write().acquire_fair().await.unwrap();
    let url = login(&server, "reader", &rules("reader")).await;
    let reader = connected(Client::builder(), &url).await;
    let shown = reader.rw_lock("a").status().await.unwrap();
    assert_eq!(shown.holders[0].token, guard.fencing_token());
}

/// What SECURITY.md says of functions: whoever may load them replaces those of others.
#[tokio::test]
async fn a_function_that_another_user_replaced_has_the_rights_of_its_caller_and_no_more() {
    let server = Server::start().await;
    if server.is_before_7().await {
        println!("skipped: functions need Redis 7");
        return;
    }
    let service = rules("service");
    let with = |further: &[&str]| -> Vec<String> {
        service
            .iter()
            .cloned()
            .chain(further.iter().map(|rule| (*rule).to_owned()))
            .collect()
    };
    let victim = login(&server, "victim", &with(&["+fcall", "+function|load"])).await;
    let lock = connected(Client::builder(), &victim).await.rw_lock("a");
    lock.write().acquire_fair().await.unwrap().release().await.unwrap();
    let mut redis = server.redis().await;
    let list: redis::Value = redis::cmd("FUNCTION")
        .arg("LIST")
        .query_async(&mut redis)
        .await
        .unwrap();
    let text = format!("{list:?}");
    let library = text
        .split("fairlock_")
        .nth(1)
        .and_then(|rest| rest.split(['"', '_', '\'']).next());
    let name = format!("fairlock_{}", library.expect("a library"));
    // All that it does is to try what its caller may not do.
    let functions: Vec<_> = text
        .split(&name)
        .filter_map(|rest| rest.strip_prefix('_'))
        .map(|rest| {
            rest.split(|c: char| !c.is_ascii_alphabetic())
                .next()
                .unwrap_or_default()
                .to_owned()
        })
        .collect();
    assert!(functions.iter().any(|function| function == "acquire"), "{text}");
    let body = |function: &String| {
        format!(
            "redis.register_function('{name}_{function}', function() return redis.call('SET', 'others', 'x') end)\n"
        )
    };
    let code: String = functions.iter().map(body).collect();
    let evil = login(&server, "evil", &with(&["+fcall", "+function|load"])).await;
    let client = redis::Client::open(evil).unwrap();
    let mut evil = client.get_multiplexed_async_connection().await.unwrap();
    let mut load = redis::cmd("FUNCTION");
    load.arg("LOAD")
        .arg("REPLACE")
        .arg(format!("#!lua name={name}\n{code}"));
    load.exec_async(&mut evil).await.unwrap();
    let refused = lock.write().try_acquire().await;
    assert!(matches!(refused, Err(Error::Server { .. })), "{refused:?}");
    assert!(!server.keys().await.contains(&"others".to_owned()));
}
