//! quorum: a lock over 3 and 5 servers, beside Redlock over the same servers: `rslock`, and redsync in Go with its default
//! polling and every 1 ms. All take turns in short slices: over loopback, over slower links, and with one server far away.
//! Then one server is killed. `masters` is about the nodes of one cluster instead.

use crate::clock;
use crate::env::{Env, connection, plain};
use crate::languages::{Contention, Contestant, Driver, DriverKind, Local, Side};
use crate::peers::{Locks, RETRY};
use crate::quorum_contest::{CONTENDERS, CONTENTION, Contest, Place};
use crate::quorum_ring;
use crate::report::{Goal, Report, median};
use fairlock::Quorum;
use fairlock_support::proxy::Proxy;
use fairlock_support::server::Server;
use futures::future::join_all;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Cycles of one contestant before the next has its turn.
const SLICE: usize = 50;
/// Over loopback it is the work of the processes that counts, and over links the number of round trips.
const AT_ONCE: Place = Place {
    key: "",
    title: "",
    hold: Duration::ZERO,
};
const HELD: Place = Place {
    key: "_held",
    title: " that hold for 1 ms",
    hold: Duration::from_millis(1),
};
const LINKS: Place = Place {
    key: "_links",
    title: " that hold for 1 ms, over slower links",
    hold: HELD.hold,
};
/// New servers vote after the longest lease.
const LEASE: Duration = Duration::from_secs(2);
/// Of a call, by that lease: see docs/leases.md.
const LIMIT: Duration = Duration::from_millis(333);
/// One way of a slower link. Its timers count whole milliseconds.
const LINK: Duration = Duration::from_millis(1);
/// One way of the link to the server that is far away: 20 ms more for both.
const FAR: Duration = Duration::from_millis(11);

pub async fn run(env: &Env, report: &mut Report) {
    for count in [3, 5] {
        measure(env, report, count).await;
        links(env, report, count).await;
        killed(env, report, count).await;
    }
}

async fn started(env: &Env, count: usize) -> Vec<Server> {
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(env.another_server().await);
    }
    servers
}

/// Ours comes first.
async fn contestants(env: &Env, urls: &[String]) -> (Vec<Contestant>, Vec<Driver>) {
    let mut all = vec![ours(urls).await, rslock(urls)];
    let mut drivers = Vec::new();
    match Driver::start(DriverKind::Go, urls).await {
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
    (all, drivers)
}

/// Every link is slower; then one of them is much slower.
async fn links(env: &Env, report: &mut Report, count: usize) {
    let servers = started(env, count).await;
    let mut proxies = Vec::new();
    for server in &servers {
        proxies.push(Proxy::to(server.port()).await);
    }
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let (mut all, mut drivers) = contestants(env, &urls).await;
    let mut pinged = connection(&urls[0]).await;
    proxies.iter().for_each(|proxy| proxy.delay(LINK));
    let mut cycles = vec![Vec::new(); all.len()];
    let (mut pings, mut far) = (Vec::new(), Vec::new());
    let mut contests = Contest::all(LINKS, all.len());
    for _ in env.rounds(&format!("links of a quorum of {count}")) {
        let mut times = vec![Vec::new(); all.len()];
        let (mut ping, mut farther) = (Vec::new(), Vec::new());
        for _ in 0..env.times(10) {
            let begun = Instant::now();
            let _: String = redis::cmd("PING").query_async(&mut pinged).await.expect("a reply");
            ping.push(begun.elapsed().as_secs_f64() * 1e6);
            for (contestant, times) in all.iter_mut().zip(&mut times) {
                times.push(contestant.cycles(&mut drivers, 5).await);
            }
            proxies[0].delay(FAR);
            farther.push(all[0].cycles(&mut drivers, 5).await);
            proxies[0].delay(LINK);
            // What was late is over when the next one is measured.
            sleep(FAR * 3).await;
        }
        for (cycles, times) in cycles.iter_mut().zip(&times) {
            cycles.push(median(times));
        }
        far.push(median(&farther) / median(&times[0]));
        pings.push(median(&ping));
        for contest in &mut contests {
            for at in 0..all.len() {
                contest.turn(at, &mut all, &mut drivers).await;
            }
        }
    }
    let key = |what: &str| format!("quorum_{count}_links_{what}");
    report.beside(&key("ping"), "us of a PING over such a link", &pings);
    for (at, contestant) in all.iter().enumerate().skip(1) {
        let title = format!(
            "{count} servers over slower links: cycle of a free lock / {}'s",
            contestant.name
        );
        let goal = match contestant.name.as_str() {
            "redsync" => Goal::AtMost(1.1),
            _ => Goal::None,
        };
        report.row(&key(&contestant.name), &title, goal, &ratios(&cycles[0], &cycles[at]));
    }
    let title = format!("{count} servers: cycle of a free lock with one server 20 ms farther away / without");
    report.row(&key("far"), &title, Goal::AtMost(1.2), &far);
    for contest in &contests {
        contest.report(report, count, &all);
    }
}

/// A server is killed while some contend for one lock, and while another lock is held.
async fn killed(env: &Env, report: &mut Report, count: usize) {
    let (mut gaps, mut lost) = (Vec::new(), Vec::new());
    for _ in env.some_rounds(&format!("one of {count} killed"), 3) {
        let mut servers = started(env, count).await;
        let urls: Vec<String> = servers.iter().map(Server::url).collect();
        let builder = Quorum::builder("bench").longest_lease(LEASE).lease(LEASE);
        let quorum = builder.connect(&urls).await.expect("the servers answer");
        let held = quorum.rw_lock("held").write().acquire_fair().await.expect("granted");
        let stop = Arc::new(AtomicBool::new(false));
        let contender = |_| {
            let (lock, stop) = (quorum.rw_lock("killed"), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut grants = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let guard = lock.write().acquire_fair().await.expect("granted");
                    grants.push(clock::now());
                    guard.release().await.expect("released");
                }
                grants
            })
        };
        let contending: Vec<_> = (0..8).map(contender).collect();
        sleep(LIMIT).await;
        servers[0].kill();
        sleep(LEASE).await;
        stop.store(true, Ordering::Relaxed);
        let mut grants = Vec::new();
        for contender in contending {
            grants.extend(contender.await.expect("a contender"));
        }
        grants.sort_by(f64::total_cmp);
        let longest = grants.windows(2).map(|two| two[1] - two[0]).fold(0.0, f64::max);
        gaps.push(longest / (LIMIT.as_secs_f64() * 1e6));
        lost.push(if held.is_held() { 0.0 } else { 1.0 });
    }
    let title = format!("{count} servers, one killed: longest time without a grant, 8 contenders / a call's limit");
    report.row(&format!("quorum_{count}_killed"), &title, Goal::AtMost(1.0), &gaps);
    let title = format!("{count} servers, one killed: holds lost");
    report.row(&format!("quorum_{count}_killed_lost"), &title, Goal::AtMost(0.0), &lost);
}

async fn measure(env: &Env, report: &mut Report, count: usize) {
    let servers = started(env, count).await;
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let (mut all, mut drivers) = contestants(env, &urls).await;

    let slices = env.times(10);
    let mut cycles = vec![Vec::new(); all.len()];
    let mut contests: Vec<Contest> = [AT_ONCE, HELD]
        .into_iter()
        .flat_map(|place| Contest::all(place, all.len()))
        .collect();
    let (mut calls, mut floor) = (Vec::new(), Vec::new());
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
        for contest in &mut contests {
            let before = script_calls(&servers).await;
            let ours = contest.turn(0, &mut all, &mut drivers).await;
            let Contention { contenders, hold, .. } = contest.contention;
            if contenders == 8 && hold.is_zero() {
                calls.push((script_calls(&servers).await - before) as f64 / ours as f64);
            }
            for at in 1..all.len() {
                contest.turn(at, &mut all, &mut drivers).await;
            }
            let turns = quorum_ring::rate(&urls, contenders, hold, CONTENTION).await;
            contest.turns.push(turns);
        }
        floor.push(unevenness_of_pings(&urls, CONTENDERS[0]).await);
    }

    let key = |what: &str| format!("quorum_{count}_{what}");
    report.beside(
        &key("2_floor_waits"),
        "longest round trip to all servers / mean, 2 tasks, no lock",
        &floor,
    );
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
        report.row(&key(&contestant.name), &title, goal, &ratios(&cycles[0], theirs));
    }
    for contest in &contests {
        contest.report(report, count, &all);
    }
    let title = format!("{count} servers: calls per grant, 8 contenders");
    let goal = if count == 3 { Goal::AtMost(8.0) } else { Goal::None };
    report.row(&key("calls"), &title, goal, &calls);
}

/// Of each round.
fn ratios(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect()
}

/// How uneven the machine alone is: each task sends PING to all servers, and again when all have replied. A wait for a
/// lock over these servers has at least one such turn in it.
async fn unevenness_of_pings(urls: &[String], tasks: usize) -> f64 {
    let mut turns = Vec::new();
    for _ in 0..tasks {
        let mut servers = join_all(urls.iter().map(|url| connection(url))).await;
        turns.push(tokio::spawn(async move {
            let (begun, mut times) = (Instant::now(), Vec::new());
            while begun.elapsed() < CONTENTION {
                let sent = Instant::now();
                let replies = servers.iter_mut().map(async |server| {
                    let reply: String = redis::cmd("PING").query_async(server).await.expect("a reply");
                    reply
                });
                join_all(replies).await;
                times.push(sent.elapsed().as_secs_f64());
            }
            times
        }));
    }
    let times: Vec<f64> = join_all(turns)
        .await
        .into_iter()
        .flat_map(|times| times.expect("times"))
        .collect();
    times.iter().fold(0.0, |longest: f64, time| longest.max(*time)) * times.len() as f64 / times.iter().sum::<f64>()
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
