//! A fleet of worker processes that take jobs from one list. Each job is done under a lock of its own.
//!
//! * One worker is killed in the middle of a job. Its lock is free a lease later, and another worker does the job: no job
//!   is lost.
//! * One worker is stopped for longer than its lease in the middle of a job, and then goes on as if nothing had happened.
//!   By then another one has done the job. Its result is refused, since it comes with an old fencing token: no job is
//!   done twice.
//!
//! The list, and the results, are in Redis here. In SQL the result would be written by
//! `UPDATE jobs SET result = $1, token = $2 WHERE id = $3 AND result IS NULL AND token <= $2`.
//!
//! Run it with `cargo run -p fairlock-services --bin workers`.

#[path = "../../../common/mod.rs"]
mod common;
#[path = "../fleet.rs"]
mod fleet;

use fairlock::{Client, Error, FencingToken};
use fleet::Member;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use std::time::Duration;
use tokio::time::sleep;

const JOBS: usize = 40;
const WORKERS: usize = 4;
/// Short, so that the story is.
const LEASE: Duration = Duration::from_millis(1500);
const WORK: Duration = Duration::from_millis(20);

const TOKENS: &str = "services:jobs:tokens";
const RESULTS: &str = "services:jobs:results";
/// How often each job's result was taken: what must be 1.
const TAKEN: &str = "services:jobs:taken";

/// The store's side of fencing: it refuses a result that is there already, or comes with an older token than it has seen.
const STORE: &str = r"
    local job, token, result = ARGV[1], ARGV[2], ARGV[3]
    if tonumber(redis.call('HGET', KEYS[1], job) or 0) > tonumber(token) then return 0 end
    redis.call('HSET', KEYS[1], job, token)
    if result == '' then return 1 end
    if redis.call('HSETNX', KEYS[2], job, result) == 0 then return 0 end
    redis.call('HINCRBY', KEYS[3], job, 1)
    return 1";

/// Says whether the store accepts the token. An empty result only shows it the token.
async fn store(
    redis: &mut MultiplexedConnection,
    job: usize,
    token: FencingToken,
    result: &str,
) -> redis::RedisResult<bool> {
    let script = redis::Script::new(STORE);
    let mut call = script.key(TOKENS);
    call.key(RESULTS).key(TAKEN).arg(job).arg(token.get()).arg(result);
    call.invoke_async(redis).await
}

/// A worker takes what nobody works at, until all is done. `character`: what happens to it in its first job.
async fn work(url: &str, name: &str, character: &str) -> common::Outcome {
    let client = Client::builder().lease(LEASE).label(name).connect(url).await?;
    let mut redis = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let mut character = Some(character);
    loop {
        let done: Vec<usize> = redis.hkeys(RESULTS).await?;
        let open: Vec<_> = (0..JOBS).filter(|job| !done.contains(job)).collect();
        if open.is_empty() {
            break;
        }
        for job in open {
            let lock = client.rw_lock(format!("services:job:{job}"));
            let Some(guard) = lock.write().try_acquire().await? else {
                continue;
            };
            let token = guard.fencing_token();
            // It may have been done since the look at the list. From now on the store refuses whoever had it before.
            if redis.hexists(RESULTS, job).await? || !store(&mut redis, job, token, "").await? {
                continue;
            }
            match character.take() {
                Some("killed") => {
                    println!("began {job}");
                    // Until the end comes.
                    std::future::pending::<()>().await;
                }
                Some("stopped") => {
                    println!("began {job}");
                    stop_until_done(url, job)?;
                }
                _ => sleep(WORK).await,
            }
            if store(&mut redis, job, token, name).await? {
                println!("did {job}");
                match guard.release().await {
                    // Lost after the store had taken the result: that is in.
                    Ok(()) | Err(Error::Lost { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            } else {
                println!("refused {job}");
                assert!(!guard.is_held(), "the store refused a token that is the newest");
            }
        }
        sleep(WORK).await;
    }
    client.shutdown().await;
    Ok(())
}

/// Nothing of this process runs until another one has done the job: it blocks its only thread. So would a SIGSTOP.
fn stop_until_done(url: &str, job: usize) -> redis::RedisResult<()> {
    let mut redis = redis::Client::open(url)?.get_connection()?;
    while !redis::Commands::hexists::<_, _, bool>(&mut redis, RESULTS, job)? {
        std::thread::sleep(WORK);
    }
    Ok(())
}

/// The job that a worker says it began.
async fn began(worker: &mut Member) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let said = worker.says().await?.unwrap_or_default();
    let job = said.strip_prefix("began ").ok_or(format!("it said {said:?}"))?;
    Ok(job.to_owned())
}

async fn watch(server: &common::Server) -> common::Outcome {
    let mut redis = server.redis().await?;
    let _: () = redis.del(&[TOKENS, RESULTS, TAKEN]).await?;
    let start = |name: &str, character: &str| Member::start(&["worker", server.url(), name, character]);
    // These two first, so that each has a job to fail at.
    let mut killed = start("killed", "killed")?;
    let killed_job = began(&mut killed).await?;
    let mut stopped = start("stopped", "stopped")?;
    let stopped_job = began(&mut stopped).await?;
    let mut others = Vec::new();
    for number in 0..WORKERS {
        others.push(start(&format!("worker-{number}"), "")?);
    }
    killed.kill().await?;
    println!(
        "a worker was killed in the middle of job {killed_job}, another one stopped in the middle of job {stopped_job}"
    );

    for (number, worker) in others.iter_mut().enumerate() {
        let did = worker
            .ends()
            .await?
            .iter()
            .filter(|line| line.starts_with("did"))
            .count();
        println!("worker {number} did {did} jobs");
    }
    let said = stopped.ends().await?;
    assert!(said.contains(&format!("refused {stopped_job}")), "{said:?}");
    println!("the one that was stopped woke up, gave in its result and was refused");

    let taken: Vec<usize> = redis.hvals(TAKEN).await?;
    assert_eq!(taken, [1; JOBS], "each job once");
    let by: String = redis.hget(RESULTS, &killed_job).await?;
    assert_ne!(by, "killed");
    println!("{JOBS} jobs, each done once; job {killed_job} by {by}");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> common::Outcome {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["worker", url, name, character] => work(url, name, character).await,
        _ => watch(&common::Server::find_or_start().await?).await,
    }
}
