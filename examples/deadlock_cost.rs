//! What the search for deadlocks costs the server: many owners wait, first without the search and then with it.
//!
//! Run it with `cargo run --release --example deadlock_cost -- 70 10000`: the seconds that the owners wait, each time, and
//! their number. The looks become rare within a minute. It starts a private server, since it counts what the server does.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Owner};
use std::time::Duration;
use tokio::task::JoinSet;

/// So long that a busy machine loses no hold.
const LEASE: Duration = Duration::from_secs(60);

/// What the server has spent: seconds of its processor, and commands, without those inside of scripts.
#[derive(Clone, Copy, Debug)]
struct Spent {
    cpu_s: f64,
    calls: u64,
    notes: u64,
    reads: u64,
}

#[tokio::main]
async fn main() -> common::Outcome {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let owners = arguments.next().map_or(Ok(500), |text| text.parse())?;
    let wait = Duration::from_secs(seconds);
    for locks in [1, owners / 10] {
        println!("{owners} owners wait {wait:?} for {locks} locks, which named owners hold");
        let off = spent_while_waiting(owners, locks, wait, Duration::MAX).await?;
        let on = spent_while_waiting(owners, locks, wait, Duration::from_secs(1)).await?;
        println!("  without the search: {:.2} s of CPU, {} calls", off.cpu_s, off.calls);
        println!(
            "  with it: {:.2} s of CPU, {} calls, {} notes written, {} times notes read",
            on.cpu_s, on.calls, on.notes, on.reads
        );
        let more = on.cpu_s - off.cpu_s;
        println!(
            "  the search took {:.2} % of one processor",
            100.0 * more / wait.as_secs_f64()
        );
        // Clients write their introductions too, twice a minute.
        assert!(off.notes < 20 && off.reads == 0, "only the search has notes");
        assert!(on.notes <= 2 * owners as u64 + 20, "a note is written once a minute");
        // All waiters of a lock share a look: at 1, 2, 4, ... seconds after they came.
        assert!(
            on.reads <= locks as u64 * (seconds + 2),
            "{} looks at {locks} locks",
            on.reads
        );
    }
    println!("the waiters of a lock share their looks");
    Ok(())
}

async fn spent_while_waiting(
    owners: usize,
    locks: usize,
    wait: Duration,
    timeout: Duration,
) -> Result<Spent, common::Failure> {
    let server = common::Server::start().await?;
    let builder = Client::builder().lease(LEASE).deadlock_timeout(timeout);
    let (holder, client) = (
        builder.clone().connect(server.url()).await?,
        builder.connect(server.url()).await?,
    );
    let mut guards = Vec::new();
    for n in 0..locks {
        let lock = holder.rw_lock(format!("example:cost:{n}")).with_owner(&Owner::new());
        guards.push(lock.write().acquire_fair().await?);
    }
    let mut waiters = JoinSet::new();
    for n in 0..owners {
        let lock = client
            .rw_lock(format!("example:cost:{}", n % locks))
            .with_owner(&Owner::new());
        waiters.spawn(lock.write().acquire_fair());
    }
    for n in 0..locks {
        server
            .until_queued(&format!("example:cost:{n}"), owners / locks)
            .await?;
    }
    let before = spent(&server).await?;
    tokio::time::sleep(wait).await;
    let after = spent(&server).await?;
    waiters.abort_all();
    Ok(Spent {
        cpu_s: after.cpu_s - before.cpu_s,
        calls: after.calls - before.calls,
        notes: after.notes - before.notes,
        reads: after.reads - before.reads,
    })
}

async fn spent(server: &common::Server) -> Result<Spent, common::Failure> {
    let mut redis = server.redis().await?;
    let info: String = redis::cmd("INFO").arg("everything").query_async(&mut redis).await?;
    let cpu = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.parse().ok()).unwrap_or_default()
    };
    let calls = |name: &str| -> u64 {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        let number = line.and_then(|line| line.split(',').next()?.parse().ok());
        number.unwrap_or_default()
    };
    let scripts = calls("fcall") + calls("evalsha") + calls("eval");
    Ok(Spent {
        cpu_s: cpu("used_cpu_user:") + cpu("used_cpu_sys:"),
        calls: scripts + calls("set") + calls("mget") + calls("del"),
        notes: calls("set"),
        reads: calls("mget"),
    })
}
