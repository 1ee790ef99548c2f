//! An operator who reads, and one who evicts.

use super::{NO_EVENTS, breaks, client, denied, evict, login, refused, rules, streams, until_pinged, without_one};
use crate::conformance;
use crate::lua::{Lock, STATUS};
use crate::server::{Server, connected, soon};
use fairlock::{Client, Error, Owner};
use futures::future::join_all;

/// All that an operator does who only reads.
async fn look(server: &Server, url: &str, user: &str) -> Result<(), Error> {
    let raw = Lock::new(server, user).await;
    raw.acquire_all(&["r1:1", "r2:1:x", "w3:1"]).await;
    let client = client(url, user).await?;
    let events = streams(&client, user).await?;
    // By the script's text, then by its hash.
    for _ in 0..2 {
        let status = client.rw_lock(user).status().await?;
        assert_eq!((status.holding, status.waiting), (2, 1));
    }
    client.client_info("0a").await?;
    // The place of one waiter.
    let own = redis::Client::open(url).unwrap();
    let own = Lock::through(own.get_multiplexed_async_connection().await.unwrap(), user);
    let place = own.command(STATUS, &["0", "0", "0", "w3:1"].map(str::to_owned));
    place.exec_async(&mut own.redis.clone()).await.unwrap();
    // Another version of fairlock uses that lock.
    let other = format!("{user} of before");
    raw.run("HSET", &[&format!("fairlock:{{{other}}}"), "seq", "1"]).await;
    let error = client.rw_lock(other).status().await.unwrap_err().to_string();
    assert!(error.contains("another version"), "{error}");
    drop(events);
    until_pinged(server, user, NO_EVENTS).await;
    client.shutdown().await;
    Ok(())
}

#[tokio::test]
async fn an_operator_who_reads_needs_all_of_its_rules_and_can_change_nothing() {
    let server = Server::start_with(&["--acllog-max-len", "10000"]).await;
    if !conformance::is_modern(&server).await {
        println!("SKIPPED: this server has no rules in parentheses");
        return;
    }
    let mut all = rules("reader");
    // Those are for commands: see recipes.rs.
    all.retain(|rule| rule != "+scan" && rule != "+info");
    let url = login(&server, "reader", &all).await;
    soon("an operator", look(&server, &url, "reader"))
        .await
        .expect("all rights");
    assert_eq!(refused(&server, "reader").await, [""; 0]);

    let reduced = without_one(&all);
    let broken = join_all(reduced.iter().enumerate().map(async |(n, (_, rules))| {
        let user = format!("reader-{n}");
        let url = login(&server, &user, rules).await;
        breaks(&server, &user, look(&server, &url, &user)).await
    }));
    for ((right, rules), broken) in reduced.iter().zip(broken.await) {
        // Others may have sent the script whole, so that its hash was enough.
        redis::cmd("SCRIPT")
            .arg("FLUSH")
            .exec_async(&mut server.redis().await)
            .await
            .unwrap();
        let user = "alone";
        let url = login(&server, user, rules).await;
        let broken = broken || breaks(&server, user, look(&server, &url, user)).await;
        assert!(broken, "nothing needs {right}");
    }

    let raw = Lock::new(&server, "a").await;
    raw.acquire("w1:1").await;
    let before = raw.dump().await;
    let [state, ..] = raw.keys.clone();
    for forbidden in [
        &["HSET", &state, "mode", "read"][..],
        &["DEL", &state],
        &["SET", &state, "x"],
        &["EXPIRE", &state, "1"],
        &["EVAL", "return redis.call('DEL', KEYS[1])", "1", &state],
        &["PUBLISH", "fairlock:c:1", "0 w1:1\nx"],
        &["PUBLISH", "fairlock:{a}:events", "x"],
        &["FLUSHALL"],
        &["KEYS", "*"],
        &["CLIENT", "LIST"],
    ] {
        denied(&url, forbidden).await;
    }
    let lock = connected(Client::builder(), &url).await.rw_lock("a");
    let error = lock.read().try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Server { .. }), "{error:?}");
    assert!(lock.evict(&Owner::new()).await.is_err());
    assert_eq!(raw.dump().await, before);
}

#[tokio::test]
async fn who_evicts_needs_one_right_more_than_a_service_and_those_of_commands() {
    let server = Server::start().await;
    let (service, evictor) = (rules("service"), rules("evictor"));
    let more: Vec<_> = evictor.iter().filter(|rule| !service.contains(rule)).collect();
    assert_eq!(more, ["+zscan", "+scan"]);
    assert_eq!(evictor.len(), service.len() + 2);
    let url = login(&server, "evictor", &evictor).await;
    soon("an eviction", evict(&server, &url, "evictor"))
        .await
        .expect("all rights");
    assert_eq!(conformance::run(&server, &url, "evict").await.map(|n| n > 0), Ok(true));
    assert_eq!(refused(&server, "evictor").await, [""; 0]);
    let url = login(&server, "service", &service).await;
    let error = soon("a refusal", evict(&server, &url, "service")).await.unwrap_err();
    assert!(error.to_string().contains("ACL user"), "{error}");
}
