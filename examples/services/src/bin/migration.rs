//! A deployment starts many replicas at once. The database has to be migrated before any of them serves, once.
//!
//! Each replica looks at the schema's version under a read lock, which all share. Who finds it old asks to write, looks
//! again, since another one may have been first, and migrates. The rest wait in the queue meanwhile: no polling, and
//! no sleep that is long enough on the developer's machine.
//!
//! Here the first replica to migrate is killed after its first step. The next one goes on with the second: each step
//! is recorded with it, in one transaction, under the fencing token.
//!
//! Run it with `cargo run -p fairlock-services --bin migration`.

#[path = "../../../common/mod.rs"]
mod common;
#[path = "../fleet.rs"]
mod fleet;

use fairlock::Client;
use fleet::Member;
use futures::future::try_join_all;
use redis::AsyncCommands;
use std::time::Duration;

const REPLICAS: usize = 8;
const STEPS: u64 = 4;
/// Short, so that the killed one does not keep the story waiting.
const LEASE: Duration = Duration::from_secs(3);

/// The schema: its version, and how often each step was done.
const SCHEMA: &str = "services:schema";
/// The database's side: a step is done if it is the next one and nobody with a newer token has been there.
const STEP: &str = r"
    local step, token = tonumber(ARGV[1]), tonumber(ARGV[2])
    if tonumber(redis.call('HGET', KEYS[1], 'token') or 0) > token then return 0 end
    if tonumber(redis.call('HGET', KEYS[1], 'version') or 0) ~= step - 1 then return 0 end
    redis.call('HSET', KEYS[1], 'token', ARGV[2], 'version', step)
    redis.call('HINCRBY', KEYS[1], 'step ' .. step, 1)
    return 1";

async fn replica(url: &str, character: &str) -> common::Outcome {
    let client = Client::builder().lease(LEASE).connect(url).await?;
    let mut redis = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let lock = client.rw_lock("services:migration");

    let looking = lock.read().acquire_fair().await?;
    let version: Option<u64> = redis.hget(SCHEMA, "version").await?;
    looking.release().await?;
    if version < Some(STEPS) {
        println!("found version {}", version.unwrap_or(0));
        let migrating = lock.write().acquire_fair().await?;
        let version: Option<u64> = redis.hget(SCHEMA, "version").await?;
        let token = migrating.fencing_token();
        for step in version.unwrap_or(0) + 1..=STEPS {
            let done: bool = redis::Script::new(STEP)
                .key(SCHEMA)
                .arg(step)
                .arg(token.get())
                .invoke_async(&mut redis)
                .await?;
            if !done {
                return Err("this replica lost the lock, and another one migrates".into());
            }
            println!("step {step}");
            if character == "killed" {
                // Until the end comes.
                std::future::pending::<()>().await;
            }
        }
        // The schema is new. A release that fails does not undo that.
        if let Err(error) = migrating.release().await {
            println!("{error}");
        }
    }
    let version: u64 = redis.hget(SCHEMA, "version").await?;
    println!("serves {version}");
    client.shutdown().await;
    Ok(())
}

async fn deploy(server: &common::Server) -> common::Outcome {
    let mut redis = server.redis().await?;
    redis.del::<_, ()>(SCHEMA).await?;
    let mut first = Member::start(&["replica", server.url(), "killed"])?;
    while first.says().await?.ok_or("the first replica ended")? != "step 1" {}
    let mut others = Vec::new();
    for _ in 1..REPLICAS {
        others.push(Member::start(&["replica", server.url(), ""])?);
    }
    first.kill().await?;
    println!(
        "the first replica was killed after step 1 of {STEPS}, with {} others waiting to start",
        others.len()
    );

    let said = try_join_all(others.iter_mut().map(Member::ends)).await?;
    let with = |beginning: &str| {
        said.iter()
            .filter(|lines| lines.iter().any(|line| line.starts_with(beginning)))
            .count()
    };
    assert_eq!(with("step "), 1, "{said:?}");
    assert_eq!(with(&format!("serves {STEPS}")), others.len(), "{said:?}");
    for step in 1..=STEPS {
        let times: u64 = redis.hget(SCHEMA, format!("step {step}")).await?;
        assert_eq!(times, 1, "step {step}");
    }
    println!(
        "one other went on with step 2; each step was done once; {} replicas serve version {STEPS}",
        others.len()
    );
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> common::Outcome {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["replica", url, character] => replica(url, character).await,
        _ => deploy(&common::Server::find_or_start().await?).await,
    }
}
