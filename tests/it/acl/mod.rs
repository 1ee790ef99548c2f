//! The rules of SECURITY.md: each user can do what its rules are for, and nothing else.

#[cfg(feature = "cluster")]
mod cluster;
mod operator;
#[cfg(feature = "sentinel")]
mod sentinel;
mod service;
mod tenants;

use crate::lua::Lock;
use crate::server::{Server, eventually};
use fairlock::{Client, Error, Events, Owner};
use futures::future::FutureExt;
use redis::Value;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

/// Its renewals come soon, and it outlives a pause of a busy machine.
const LEASE: Duration = Duration::from_secs(3);
/// What CLIENT LIST says of a connection for messages of locks that listens to no events.
const NO_EVENTS: &str = " sub=2 psub=0 ";

/// The rules of a user of the page, as words.
pub fn rules(user: &str) -> Vec<String> {
    let page = include_str!("../../../SECURITY.md");
    let begin = format!("ACL SETUSER {user} ");
    let (_, rest) = page.split_once(&begin).expect("the page has the user");
    let (rules, _) = rest.split_once("```").expect("a block");
    rules.split_whitespace().map(str::to_owned).collect()
}

/// Makes a user, and says its URL.
pub async fn login(server: &Server, user: &str, rules: &[String]) -> String {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(user).arg("reset").arg(rules);
    command
        .exec_async(&mut server.redis().await)
        .await
        .expect("rules of an ACL");
    format!("redis://{user}:SECRET@127.0.0.1:{}", server.port())
}

/// What the server has refused to the user.
pub async fn refused(server: &Server, user: &str) -> Vec<String> {
    let log: Value = redis::cmd("ACL")
        .arg("LOG")
        .arg(1000)
        .query_async(&mut server.redis().await)
        .await
        .expect("ACL LOG");
    let Value::Array(entries) = log else { panic!("{log:?}") };
    let entries = entries.into_iter().map(redis::from_redis_value::<Vec<String>>);
    let entries = entries.map(|entry| entry.expect("names and values"));
    let of = |entry: &[String], name: &str| {
        let mut pairs = entry.chunks_exact(2);
        pairs.find(|pair| pair[0] == name).map(|pair| pair[1].clone())
    };
    entries
        .filter(|entry| of(entry, "username").as_deref() == Some(user))
        .filter_map(|entry| of(&entry, "object"))
        // The library does without these. Redis 6.2 logs no subcommand.
        .filter(|object| !["client", "client|setinfo", "fcall", "function|load"].contains(&object.as_str()))
        .collect()
}

/// A connection of the user has these subscriptions and has sent a ping since; or something was refused.
async fn until_pinged(server: &Server, user: &str, subscriptions: &str) {
    let mark = format!(" user={user} ");
    eventually("subscriptions, and a ping since", async || {
        let clients: String = redis::cmd("CLIENT")
            .arg("LIST")
            .query_async(&mut server.redis().await)
            .await
            .expect("CLIENT LIST");
        let mut mine = clients.lines().filter(|line| line.contains(&mark));
        let pinged = mine.any(|line| line.contains(subscriptions) && line.contains(" cmd=ping "));
        pinged || !refused(server, user).await.is_empty()
    })
    .await;
}

async fn client(url: &str, user: &str) -> Result<Client, Error> {
    loop {
        match Client::builder().lease(LEASE).label(user).connect(url).await {
            // A busy machine's: the server is up.
            Err(Error::Connect { source, .. }) if source.is_timeout() => {}
            connected => return connected,
        }
    }
}

async fn streams(client: &Client, lock: &str) -> Result<(Events, Events), Error> {
    Ok((client.rw_lock(lock).events().await?, client.events().await?))
}

/// All that a service does.
pub async fn serve(server: &Server, url: &str, user: &str) -> Result<(), Error> {
    let client = client(url, user).await?;
    let lock = client.rw_lock(user);
    let events = streams(&client, user).await?;
    let writing = lock.write().acquire_fair().await?;
    let waiting = tokio::spawn(lock.read().acquire_fair());
    server.until_queued(user, 1).await;
    let status = lock.status().await?;
    assert_eq!((status.holding, status.waiting), (1, 1));
    client.client_info("0a").await?;
    let reading = writing.downgrade().await?;
    let waited = waiting.await.expect("no panic")?;
    assert!(lock.write().try_acquire().await?.is_none());
    waited.release().await?;
    reading.release().await?;
    let mine = lock.with_owner(&Owner::new());
    let reading = mine.read().acquire_fair().await?;
    let writing = reading.upgrade().await?;
    writing.release().await?;
    reading.release().await?;
    drop(events);
    until_pinged(server, user, NO_EVENTS).await;
    client.shutdown().await;
    Ok(())
}

pub async fn evict(server: &Server, url: &str, user: &str) -> Result<(), Error> {
    let raw = Lock::new(server, user).await;
    raw.acquire_all(&["w1:1", "r000000000000002:1"]).await;
    let lock = client(url, user).await?.rw_lock(user);
    lock.status().await?;
    let status = lock.status().await?;
    assert_eq!(lock.evict(&status.waiters[0].owner).await?, 1);
    Ok(())
}

/// The rules without one of them, which is named.
fn without_one(rules: &[String]) -> Vec<(String, Vec<String>)> {
    let rights = rules.iter().enumerate();
    let rights = rights.filter(|(_, rule)| rule.starts_with(['+', '~', '&']));
    let without = |(at, right): (usize, &String)| {
        let mut rest = rules.to_vec();
        rest.remove(at);
        (right.clone(), rest)
    };
    rights.map(without).collect()
}

/// Whether it failed, was refused something, or did not come to an end.
pub async fn breaks(server: &Server, user: &str, doing: impl Future<Output = Result<(), Error>>) -> bool {
    // It need not end: a connection that is refused is tried again and again.
    let refusal = eventually("a refusal", async || !refused(server, user).await.is_empty());
    tokio::select! {
        biased;
        // A waiter whose right is missing may be gone when it is looked at.
        done = AssertUnwindSafe(doing).catch_unwind() => !matches!(done, Ok(Ok(()))) || !refused(server, user).await.is_empty(),
        () = refusal => true,
    }
}

/// What the page says that an option needs besides.
pub fn rights_for(option: &str) -> Vec<String> {
    let (_, page) = include_str!("../../../SECURITY.md")
        .split_once(&format!("`{option}` needs "))
        .expect("the page has the option");
    let (sentence, _) = page.split_once("besides.").expect("a sentence");
    let words = sentence.split('`').filter(|word| word.starts_with('+'));
    words.map(str::to_owned).collect()
}

/// Asks once, by a client with an option, and is answered whatever its server can do.
pub async fn serve_with(option: &str, url: &str, user: &str) -> Result<(), Error> {
    let builder = Client::builder().lease(LEASE).label(user);
    let soon = Duration::from_millis(50);
    let builder = match option {
        "wait_for_replicas" => builder.wait_for_replicas(1, soon),
        "wait_for_disks" => builder.wait_for_disks(0, soon),
        "quarantine" => builder.quarantine(LEASE),
        _ => unreachable!("no such option: {option}"),
    };
    let client = builder.connect(url).await?;
    match client.rw_lock(user).write().acquire_fair().await {
        // It has no replica.
        Err(Error::NotReplicated { .. }) => {}
        other => other?.release().await?,
    }
    client.shutdown().await;
    Ok(())
}

/// The server refuses this for want of a right.
async fn denied(url: &str, words: &[&str]) {
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let reply = redis::cmd(words[0]).arg(&words[1..]).exec_async(&mut connection).await;
    let error = reply.expect_err(&words.join(" ")).to_string();
    let refusal = ["NOPERM", "permissions", "ACL failure", "The user executing the script"];
    assert!(refusal.iter().any(|word| error.contains(word)), "{words:?}: {error}");
}
