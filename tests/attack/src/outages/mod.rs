//! How long a silence costs how many holds. Each cell of the table has a path that falls silent for a share of the lease,
//! and two groups of holds behind it: each in a client of its own, and all in one client. The tool reads every deadline
//! over the server's Unix socket just before the silence. The deadlines tell which holds the promise covers: an outage
//! that ends a quarter of a lease before the proof does costs nothing.

mod report;

use crate::Failure;
use fairlock::{Client, WriteGuard};
use fairlock_support::cable::Cable;
use fairlock_support::lateness::Lateness;
use fairlock_support::packed::Packed;
use fairlock_support::proxy::Proxy;
use fairlock_support::random::{self, Rng};
use fairlock_support::server::{Server, connected};
use futures::future::try_join_all;
use report::{Report, Row};
use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::time::{sleep, sleep_until};

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Leases to try, in seconds. 60 takes about five minutes more.
    #[arg(long, value_delimiter = ',', default_value = "1,3,10", value_parser = clap::value_parser!(u64).range(1..=600))]
    leases: Vec<u64>,
    /// Lengths of outages to try, as shares of the lease. 0 has no outage: what it loses, this machine's load took.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0,0.1,0.2,0.25,0.3,0.35,0.39,0.5,0.6,0.7,0.9"
    )]
    outages: Vec<f64>,
    /// How many outages each hold meets, a lease apart.
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// What falls silent: both unless given. The cable needs root and iproute2.
    #[arg(long, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// How many holds each group of a cell has.
    #[arg(long, default_value_t = 20)]
    holds: u64,
    /// Repeats the clients' rhythms of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// The server's program.
    #[arg(long, default_value = "redis-server")]
    server: String,
}

/// What falls silent.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// A router between two network namespaces drops all packets; connections stay open, and TCP retransmits.
    Cable,
    /// A proxy reads all bytes and passes none on; they are lost for good.
    Proxy,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cable => "cable",
            Self::Proxy => "proxy",
        })
    }
}

pub fn run(args: &Args) -> ExitCode {
    crate::verdict("outages", outages(args), |report| {
        report.broken() == 0 && report.judges()
    })
}

async fn outages(args: &Args) -> Result<Report, Failure> {
    let seed = args.seed.unwrap_or_else(|| u64::from(std::process::id()) << 16);
    eprintln!("outages: --seed {seed}");
    let mut kinds = args.kinds.clone();
    if kinds.is_empty() {
        kinds = vec![Kind::Cable, Kind::Proxy];
    }
    if let Err(error) = Cable::lay()
        && kinds.contains(&Kind::Cable)
    {
        eprintln!("outages: no cable, left out: {error}");
        kinds.retain(|kind| *kind != Kind::Cable);
    }
    let late = Lateness::measured();
    let mut rows = Vec::new();
    let mut number: u64 = 0;
    // One lease after the other: cells that are over must not disturb those that are measured.
    for lease in &args.leases {
        let mut cells = Vec::new();
        for kind in &kinds {
            for share in &args.outages {
                number += 1;
                cells.push(Cell {
                    kind: *kind,
                    lease: Duration::from_secs(*lease),
                    share: *share,
                    random: random::stream(seed, number),
                });
            }
        }
        eprintln!(
            "outages: lease {lease} s, {} cells of {} holds",
            cells.len(),
            args.holds
        );
        let measured = try_join_all(cells.into_iter().map(|cell| cell.measure(args))).await?;
        rows.extend(measured.into_iter().flatten());
    }
    rows.sort_by_key(|row| (row.kind, row.shared));
    Ok(Report {
        seed,
        rows,
        late: late.most(),
    })
}

/// One row of the table while it is measured.
struct Cell {
    kind: Kind,
    lease: Duration,
    share: f64,
    random: Rng,
}

/// What lies between the clients and the server.
enum Path {
    Cable(Cable),
    Proxy(Proxy),
}

impl Path {
    fn silence(&mut self, silent: bool) -> Result<(), Failure> {
        match self {
            Self::Cable(cable) => Ok(cable.forward(!silent)?),
            Self::Proxy(proxy) => {
                proxy.swallow(silent);
                Ok(())
            }
        }
    }
}

/// A hold of one client, and whether the promise covers all that it met.
struct Holder {
    lock: String,
    guard: WriteGuard,
    /// Its client has the other holds of this kind too.
    shared: bool,
    promised: bool,
}

impl Cell {
    async fn measure(mut self, args: &Args) -> Result<[Row; 2], Failure> {
        let (server, mut path, url) = self.path(args).await?;
        let mut holders = self.holders(args.holds, &url).await?;
        sleep(self.lease).await;
        let mut longest = Duration::ZERO;
        if self.share > 0.0 {
            for _ in 0..args.times {
                longest = longest.max(self.outage(&server, &mut path, &mut holders).await?);
                // What is still believed after that was renewed since.
                sleep(self.lease + self.lease / 2).await;
            }
        }
        let lost = |shared, promised| {
            let group = holders
                .iter()
                .filter(|holder| (holder.shared, holder.promised) == (shared, promised));
            let lost = group.clone().filter(|holder| !holder.guard.is_held());
            (lost.count(), group.count())
        };
        let rows = [false, true].map(|shared| Row {
            kind: self.kind,
            shared,
            lease: self.lease,
            share: self.share,
            measured: longest,
            promised: lost(shared, true),
            others: lost(shared, false),
        });
        for row in &rows {
            eprintln!("outages: {row}");
        }
        Ok(rows)
    }

    async fn path(&self, args: &Args) -> Result<(Server, Path, String), Failure> {
        match self.kind {
            Kind::Cable => {
                let cable = Cable::lay()?;
                let server = cable.server(&args.server).await;
                let url = cable.url(&server);
                Ok((server, Path::Cable(cable), url))
            }
            Kind::Proxy => {
                let server = Server::start_program(std::slice::from_ref(&args.server), &[]).await;
                let proxy = Proxy::to(server.port()).await;
                let url = proxy.url();
                Ok((server, Path::Proxy(proxy), url))
            }
        }
    }

    /// Holds whose renewals are spread over a third of a lease.
    async fn holders(&mut self, holds: u64, url: &str) -> Result<Vec<Holder>, Failure> {
        let rhythm = u64::try_from(self.lease.as_micros() / 3)?;
        let builder = Client::builder().lease(self.lease);
        let crowd = connected(builder.clone(), url).await;
        let holders = (0..2 * holds).map(|i| {
            let begins = Duration::from_micros(self.random.u64(..rhythm));
            let (builder, crowd) = (builder.clone(), crowd.clone());
            async move {
                let shared = i >= holds;
                let client = if shared { crowd } else { connected(builder, url).await };
                sleep(begins).await;
                let lock = format!("hold {i}");
                let guard = client.rw_lock(lock.as_str()).write().acquire_fair().await?;
                Ok::<_, Failure>(Holder {
                    lock,
                    guard,
                    shared,
                    promised: true,
                })
            }
        });
        let holders: Vec<_> = holders.collect();
        try_join_all(holders).await
    }

    /// One silence. Says how long it was, at most.
    async fn outage(&self, server: &Server, path: &mut Path, holders: &mut [Holder]) -> Result<Duration, Failure> {
        let proofs = self.proofs(server, holders).await?;
        let begun = Instant::now();
        path.silence(true)?;
        sleep_until((begun + self.lease.mul_f64(self.share)).into()).await;
        path.silence(false)?;
        let over = Instant::now();
        for (holder, proof) in holders.iter_mut().zip(proofs) {
            holder.promised &= proof.is_some_and(|proof| over + self.lease / 4 <= proof);
        }
        Ok(over - begun)
    }

    /// Until when each hold is proven, at most a round trip less than this. `None`: the server does not know it.
    async fn proofs(&self, server: &Server, holders: &[Holder]) -> Result<Vec<Option<Instant>>, Failure> {
        let socket = redis::Client::open(format!("redis+unix://{}", server.socket().display()))?;
        let mut socket = socket.get_multiplexed_async_connection().await?;
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        for holder in holders {
            pipe.hget(format!("fairlock:{{{}}}", holder.lock), "s");
        }
        let asked = Instant::now();
        let replies: Vec<redis::Value> = pipe.query_async(&mut socket).await?;
        let mut replies = replies.into_iter();
        let (seconds, micros): (u64, u64) = redis::from_redis_value(replies.next().unwrap_or(redis::Value::Nil))?;
        let now_ms = seconds * 1000 + micros / 1000;
        let margin = (self.lease / 50).max(Duration::from_millis(2));
        replies
            .map(|reply| {
                let state: Option<Vec<u8>> = redis::from_redis_value(reply)?;
                // Of a single request the nearest deadline is its own.
                let alone = state.as_deref().and_then(Packed::read).filter(|state| state.sole);
                let left = alone.and_then(|state| state.near.checked_sub(now_ms));
                Ok(left.map(|left| asked + Duration::from_millis(left).saturating_sub(margin)))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_the_server_proves_of_each_hold_is_read() {
        let lease = Duration::from_secs(600);
        let cell = Cell {
            kind: Kind::Proxy,
            lease,
            share: 0.0,
            random: random::stream(1, 1),
        };
        let server = Server::start().await;
        let guard = |client: Client, lock| async move { client.rw_lock(lock).write().acquire_fair().await.unwrap() };
        let client = connected(Client::builder().lease(lease), server.url()).await;
        let mut holders = Vec::new();
        let asked = Instant::now();
        for lock in ["a", "b"] {
            holders.push(Holder {
                lock: lock.to_owned(),
                guard: guard(client.clone(), lock).await,
                shared: false,
                promised: true,
            });
        }
        for proof in cell.proofs(&server, &holders).await.unwrap() {
            assert!(proof.unwrap() > asked + lease.mul_f64(0.9), "{proof:?} of {asked:?}");
        }
        holders[1].lock = "c".to_owned();
        let proofs = cell.proofs(&server, &holders).await.unwrap();
        assert!(proofs[0].is_some() && proofs[1].is_none(), "nobody holds c: {proofs:?}");
    }
}
