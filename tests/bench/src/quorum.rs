//! quorum: a lock over 3 and 5 servers, beside Redlock over the same servers: `rslock`, and redsync in Go with its default
//! polling and every 1 ms. All take turns in short slices. `masters` is about the nodes of one cluster instead.

use crate::env::{Env, plain};
use crate::languages::{Contestant, Driver, DriverKind, Local, Side};
use crate::peers::{Locks, RETRY};
use crate::report::{Goal, Report, median};
use fairlock::Quorum;
use fairlock_support::server::Server;
use std::time::Duration;

/// Cycles of one contestant before the next has its turn.
const SLICE: usize = 50;
const CONTENTION: Duration = Duration::from_millis(300);
/// How many contend, and the ratio of grants that issue 5 asks for.
const CONTENDERS: [(usize, Goal); 3] = [(2, Goal::None), (8, Goal::AtLeast(1.3)), (64, Goal::AtLeast(1.3))];
/// New servers vote after the longest lease.
const LEASE: Duration = Duration::from_secs(2);

pub async fn run(env: &Env, report: &mut Report) {
    for count in [3, 5] {
        measure(env, report, count).await;
    }
}

async fn measure(env: &Env, report: &mut Report, count: usize) {
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(env.another_server().await);
    }
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let mut all = vec![ours(&urls).await, rslock(&urls)];
    let mut drivers = Vec::new();
    match Driver::start(DriverKind::Go, &urls).await {
        Ok(driver) => {
            // Its floor knows one server.
            all.extend(driver.contestants(0).filter(|contestant| contestant.name != "floor"));
            drivers.push(driver);
        }
        Err(missing) => {
            for absent in missing {
                eprintln!("quorum: SKIPPED {}, {}: {}", absent.name, absent.language, absent.why);
            }
        }
    }
    for contestant in &mut all {
        contestant.cycles(&mut drivers, env.times(500)).await;
    }

    let slices = env.times(10);
    let mut cycles = vec![Vec::new(); all.len()];
    let mut grants = vec![vec![Vec::new(); all.len()]; CONTENDERS.len()];
    let mut calls = Vec::new();
    for _ in env.rounds(&format!("quorum of {count}")) {
        let mut times = vec![Vec::new(); all.len()];
        for _ in 0..slices {
            for (contestant, times) in all.iter_mut().zip(&mut times) {
                times.push(contestant.cycles(&mut drivers, SLICE).await);
            }
        }
        for (cycles, times) in cycles.iter_mut().zip(&times) {
            cycles.push(median(times));
        }
        for ((contenders, _), grants) in CONTENDERS.iter().zip(&mut grants) {
            for (at, contestant) in all.iter_mut().enumerate() {
                let before = script_calls(&servers).await;
                let got = contestant.contend(&mut drivers, *contenders, CONTENTION).await;
                if at == 0 && *contenders == 8 {
                    calls.push((script_calls(&servers).await - before) as f64 / got.all as f64);
                }
                grants[at].push((got.within as f64).max(1.0) / CONTENTION.as_secs_f64());
            }
        }
    }

    let key = |what: &str| format!("quorum_{count}_{what}");
    for (contestant, cycles) in all.iter().zip(&cycles) {
        report.beside(
            &key(&format!("{}_us", contestant.name)),
            "us of a cycle of a free lock",
            cycles,
        );
    }
    for (contestant, theirs) in all.iter().zip(&cycles).skip(1) {
        let title = format!("{count} servers: cycle of a free lock / {}'s", contestant.name);
        let goal = if contestant.name == "redsync" {
            Goal::AtMost(1.8)
        } else {
            Goal::None
        };
        let ratios: Vec<f64> = cycles[0]
            .iter()
            .zip(theirs)
            .map(|(ours, theirs)| ours / theirs)
            .collect();
        report.row(&key(&contestant.name), &title, goal, &ratios);
    }
    for ((contenders, goal), grants) in CONTENDERS.into_iter().zip(&grants) {
        for (contestant, grants) in all.iter().zip(grants) {
            let unit = format!("grants per second, {contenders} contenders");
            report.beside(&key(&format!("{contenders}_{}_grants", contestant.name)), &unit, grants);
        }
        let best = |round: usize| grants[1..].iter().map(|rates| rates[round]).fold(1.0, f64::max);
        let ratios: Vec<f64> = grants[0]
            .iter()
            .enumerate()
            .map(|(round, ours)| ours / best(round))
            .collect();
        let title = format!("{count} servers: grants per second, {contenders} contenders / the best peer's");
        report.row(&key(&contenders.to_string()), &title, goal, &ratios);
    }
    let title = format!("{count} servers: calls per grant, 8 contenders");
    let goal = if count == 3 { Goal::AtMost(8.0) } else { Goal::None };
    report.row(&key("calls"), &title, goal, &calls);
}

async fn script_calls(servers: &[Server]) -> u64 {
    let mut sum = 0;
    for server in servers {
        sum += server.script_calls().await;
    }
    sum
}

async fn ours(urls: &[String]) -> Contestant {
    let quorum = Quorum::builder("bench").longest_lease(LEASE).lease(LEASE);
    let quorum = quorum.connect(urls).await.expect("the servers answer");
    let local = Local::new(Locks::Quorum(quorum), "quorum-fairlock");
    Contestant::new("Rust", "fairlock", "", "", Side::Here(local))
}

fn rslock(urls: &[String]) -> Contestant {
    let clients = urls.iter().map(|url| plain(url, None)).collect();
    let mut manager = rslock::LockManager::from_clients(clients);
    manager.set_retry(u32::MAX, RETRY * 2 + Duration::from_millis(1));
    let local = Local::new(Locks::Rslock(manager), "quorum-rslock");
    Contestant::new("Rust", "rslock", "", "", Side::Here(local))
}
