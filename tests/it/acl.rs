//! The users of SECURITY.md: each can do what it is for with just its rules, and not without any one of them.

use crate::conformance;
use crate::lua::Lock;
use crate::server::{Server, connected, eventually, soon};
use fairlock::{Client, Error, Events, LostReason, Owner};
use futures::future::{FutureExt, join_all};
use redis::Value;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

/// Its renewals come soon, and it outlives a pause of a busy machine.
const LEASE: Duration = Duration::from_secs(3);

/// The rules of a user of the page, as words.
pub fn rules(user: &str) -> Vec<String> {
    let page = include_str!("../../SECURITY.md");
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
async fn refused(server: &Server, user: &str) -> Vec<String> {
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
        // The library's own: it does without. Redis 6.2 logs no subcommand.
        .filter(|object| object != "client" && object != "client|setinfo")
        .collect()
}

/// The user's connection that listens has sent a ping, and listens to no events any more; or something was refused.
async fn until_quiet(server: &Server, user: &str) {
    let mark = format!(" user={user} ");
    eventually("a ping and no events", async || {
        let clients: String = redis::cmd("CLIENT")
            .arg("LIST")
            .query_async(&mut server.redis().await)
            .await
            .expect("CLIENT LIST");
        let mut mine = clients.lines().filter(|line| line.contains(&mark));
        let quiet = mine.any(|line| line.contains(" sub=2 psub=0 ") && line.contains(" cmd=ping "));
        quiet || !refused(server, user).await.is_empty()
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
    until_quiet(server, user).await;
    client.shutdown().await;
    Ok(())
}

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
    drop(events);
    until_quiet(server, user).await;
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
async fn breaks(server: &Server, user: &str, doing: impl Future<Output = Result<(), Error>>) -> bool {
    // It need not end: a connection that is refused is tried again and again.
    let refusal = eventually("a refusal", async || !refused(server, user).await.is_empty());
    tokio::select! {
        biased;
        // A waiter whose right is missing may be gone when it is looked at.
        done = AssertUnwindSafe(doing).catch_unwind() => !matches!(done, Ok(Ok(()))) || !refused(server, user).await.is_empty(),
        () = refusal => true,
    }
}

const SERVICE: [&str; 8] = [
    "acquire", "events", "expiry", "owners", "policies", "release", "renew", "status",
];

#[tokio::test]
async fn a_service_needs_all_of_its_rules_and_no_more() {
    let server = Server::start_with(&["--acllog-max-len", "10000"]).await;
    let all = rules("service");
    let url = login(&server, "service", &all).await;
    soon("a service", serve(&server, &url, "service"))
        .await
        .expect("all rights");
    for file in SERVICE {
        let passed = conformance::run(&server, &url, file).await;
        assert!(passed.is_ok(), "{passed:?}");
    }
    assert_eq!(refused(&server, "service").await, [""; 0]);

    let reduced = without_one(&all);
    let broken = join_all(reduced.iter().enumerate().map(async |(n, (_, rules))| {
        let user = format!("service-{n}");
        let url = login(&server, &user, rules).await;
        breaks(&server, &user, serve(&server, &url, &user)).await
    }))
    .await;
    for ((right, rules), broken) in reduced.iter().zip(broken) {
        if broken {
            continue;
        }
        // Of a rarer script's or case's.
        let url = login(&server, "rarely", rules).await;
        let mut passes = true;
        for file in SERVICE {
            passes &= conformance::run(&server, &url, file).await.is_ok();
        }
        assert!(!passes, "nothing needs {right}");
    }
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
        &["PUBLISH", "fairlock:c:1", "w1:1 0\nx"],
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
    assert_eq!(more, ["+zscan", "+scan", "+info"]);
    assert_eq!(evictor.len(), service.len() + 3);
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

/// What the page says that an option needs besides.
pub fn rights_for(option: &str) -> Vec<String> {
    let (_, page) = include_str!("../../SECURITY.md")
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

#[tokio::test]
async fn the_options_need_the_rights_that_the_page_names_for_them() {
    let server = Server::start_with(&["--appendonly", "yes"]).await;
    for option in ["wait_for_replicas", "wait_for_disks", "quarantine"] {
        let rights = rights_for(option);
        assert!(!rights.is_empty());
        let mut known = redis::cmd("COMMAND");
        known.arg("INFO").arg(rights[0].trim_start_matches('+'));
        let known: Vec<Value> = known.query_async(&mut server.redis().await).await.unwrap();
        if known == [Value::Nil] {
            println!("skipped: the server has no {}", rights[0]);
            continue;
        }
        let all = [rules("service"), rights.clone()].concat();
        let user = option.replace('_', "-");
        let url = login(&server, &user, &all).await;
        let served = soon("an answer", serve_with(option, &url, &user)).await;
        served.unwrap_or_else(|error| panic!("{option}: {error}"));
        assert_eq!(refused(&server, &user).await, [""; 0]);
        for right in &rights {
            let rest: Vec<_> = all.iter().filter(|rule| *rule != right).cloned().collect();
            let user = format!("{user}-{}", &right[1..]);
            let url = login(&server, &user, &rest).await;
            let broken = breaks(&server, &user, serve_with(option, &url, &user)).await;
            assert!(broken, "{option} does not need {right}");
        }
    }
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

/// A cluster of one node.
#[cfg(feature = "cluster")]
async fn cluster() -> Server {
    let args = [
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        "0",
        "--acllog-max-len",
        "10000",
    ];
    let server = Server::start_with(&args).await;
    let raw = Lock::new(&server, "a").await;
    raw.run("CLUSTER", &["ADDSLOTSRANGE", "0", "16383"]).await;
    eventually("the cluster is up", async || {
        let info: String = redis::from_redis_value(raw.run("CLUSTER", &["INFO"]).await).unwrap();
        info.contains("cluster_state:ok")
    })
    .await;
    server
}

#[cfg(feature = "cluster")]
async fn serve_in_a_cluster(server: &Server, url: &str, user: &str) -> Result<(), Error> {
    let nodes = [url];
    let client = Client::builder().lease(LEASE).label(user).connect(nodes).await?;
    let lock = client.rw_lock(user);
    let writing = lock.write().acquire_fair().await?;
    let waiting = tokio::spawn(lock.read().acquire_fair());
    server.until_queued(user, 1).await;
    lock.status().await?;
    let raw = Lock::new(server, user).await;
    let channels = async || raw.run("PUBSUB", &["SHARDCHANNELS", &format!("*{{{user}}}*")]).await;
    let quiet = async |channels: Value| matches!(channels, Value::Array(list) if list.is_empty());
    eventually("it listens", async || {
        !quiet(channels().await).await || !refused(server, user).await.is_empty()
    })
    .await;
    writing.release().await?;
    waiting.await.expect("no panic")?.release().await?;
    eventually("it does not listen", async || {
        quiet(channels().await).await || !refused(server, user).await.is_empty()
    })
    .await;
    client.shutdown().await;
    Ok(())
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn a_service_in_a_cluster_needs_the_rules_for_it() {
    let server = cluster().await;
    let (_, page) = include_str!("../../SECURITY.md")
        .split_once("In a **cluster**")
        .expect("rules");
    let (_, rules_of) = page.split_once("ACL SETUSER service").expect("a block");
    let (more, _) = rules_of.split_once("```").expect("a block");
    let more: Vec<_> = more.split_whitespace().map(str::to_owned).collect();
    let all = [rules("service"), more.clone()].concat();
    let url = login(&server, "service", &all).await;
    let served = serve_in_a_cluster(&server, &url, "service");
    soon("a service", served).await.expect("all rights");
    assert_eq!(refused(&server, "service").await, [""; 0]);

    let reduced = without_one(&all);
    let broken = join_all(reduced.iter().enumerate().map(async |(n, (right, rules))| {
        // Slots do not move here.
        if !more.contains(right) || right == "+asking" {
            return true;
        }
        let user = format!("service-{n}");
        let url = login(&server, &user, rules).await;
        breaks(&server, &user, serve_in_a_cluster(&server, &url, &user)).await
    }));
    for ((right, _), broken) in reduced.iter().zip(broken.await) {
        assert!(broken, "nothing needs {right}");
    }
}

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
            &["PUBLISH", &format!("{other}:c:1"), "w1:1 0\nx"],
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
        .arg("fairlock:{a}:queue")
        .arg(0)
        .arg(0)
        .query_async(&mut redis)
        .await
        .unwrap();
    let client = &lock.status().await.unwrap().waiters[0].client.id;
    redis::cmd("PUBLISH")
        .arg(format!("fairlock:c:{client}"))
        .arg(format!("{} {}\nfairlock:{{a}}", request[0], 1_u64 << 52))
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
    let message = format!("w{holder}:1 0\nfairlock:{{a}}");
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
