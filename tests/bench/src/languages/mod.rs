//! peers: fairlock beside locks over Redis in Rust, Go, Java and Node.js, each beside the least that its own client can do.
//!
//! Clients of different languages cannot be compared by time. So a cycle's time is a ratio to the floor of the same client,
//! and what is compared is the server: its CPU time, its scripts, its commands. All contestants take turns in many short
//! slices on one server.

mod contestant;
mod cost;
mod driver;
mod local;
pub mod table;
mod toolchain;

use crate::env::Env;
use crate::report::{Report, median};
use contestant::{Contestant, FLOOR};
use cost::Meter;
use driver::Driver;
use fairlock_support::server::Server;
use serde_json::json;
use std::time::Duration;

/// Cycles of one contestant before the next has its turn: so many that reading the server's CPU time hardly counts.
const SLICE: usize = 200;

/// Until the JVM and Node.js have compiled what is hot.
const WARM_UP: usize = 3000;

const CONTENDERS: usize = 8;

const CONTENTION: Duration = Duration::from_millis(150);

pub async fn run(env: &Env, report: &mut Report) {
    // Of its own, so that all its work is about this.
    let server = env.another_server().await;
    let mut contestants = local::contestants(&server.url()).await;
    let mut missing = Vec::new();
    let mut drivers = Vec::new();
    for driver in driver::ALL {
        match Driver::start(driver, &server.url()).await {
            Ok(driver) => {
                missing.extend(driver.missing.iter().cloned());
                contestants.extend(driver.contestants(drivers.len()));
                drivers.push(driver);
            }
            Err(skipped) => missing.extend(skipped),
        }
    }
    for absent in &missing {
        eprintln!("peers: SKIPPED {}, {}: {}", absent.name, absent.language, absent.why);
    }
    eprintln!("peers: warming up {} locks and floors", contestants.len());
    for contestant in &mut contestants {
        contestant.cycles(&mut drivers, env.times(WARM_UP)).await;
    }
    let mut meter = Meter::new(&server).await;
    for _ in env.rounds("peers uncontended and contended") {
        uncontended(env, &mut contestants, &mut drivers, &mut meter).await;
        contended(&mut contestants, &mut drivers, &mut meter).await;
    }
    eprintln!("peers: counting commands");
    for contestant in &mut contestants {
        count(&server, contestant, &mut drivers).await;
    }
    let measured = contestants.iter().map(Contestant::json);
    let absent = missing
        .iter()
        .map(|absent| json!({ "language": absent.language, "name": absent.name, "missing": absent.why }));
    report.listing("peers_locks", measured.chain(absent).collect());
}

async fn uncontended(env: &Env, contestants: &mut [Contestant], drivers: &mut [Driver], meter: &mut Meter) {
    let slices = env.times(5);
    let mut times = vec![Vec::new(); contestants.len()];
    let mut costs = vec![(0.0, 0.0); contestants.len()];
    for _ in 0..slices {
        for ((contestant, times), (cpu, scripts)) in contestants.iter_mut().zip(&mut times).zip(&mut costs) {
            let before = meter.begin().await;
            times.push(contestant.cycles(drivers, SLICE).await);
            let cost = meter.end(before).await;
            *cpu += cost.cpu_us;
            *scripts += cost.scripts_us;
        }
    }
    let cycles = (slices * SLICE) as f64;
    let times: Vec<f64> = times.iter().map(|times| median(times)).collect();
    let floors: Vec<(&str, f64)> = contestants
        .iter()
        .zip(&times)
        .filter(|(contestant, _)| contestant.name == FLOOR)
        .map(|(contestant, time)| (contestant.language, *time))
        .collect();
    for ((contestant, time), (cpu, scripts)) in contestants.iter_mut().zip(&times).zip(&costs) {
        let floor = floors.iter().find(|(language, _)| *language == contestant.language);
        let (_, floor) = floor.expect("each language has a floor");
        contestant.record("cycle_us", *time);
        contestant.record("ratio", time / floor);
        contestant.record("cycle_cpu_us", cpu / cycles);
        contestant.record("cycle_scripts_us", scripts / cycles);
    }
}

async fn contended(contestants: &mut [Contestant], drivers: &mut [Driver], meter: &mut Meter) {
    for contestant in contestants.iter_mut().filter(|contestant| contestant.name != FLOOR) {
        let before = meter.begin().await;
        let grants = contestant.contend(drivers, CONTENDERS, CONTENTION).await;
        let cost = meter.end(before).await;
        let all = grants.all as f64;
        contestant.record("grants_per_s", grants.within as f64 / CONTENTION.as_secs_f64());
        contestant.record("changed_percent", 100.0 * grants.changed as f64 / all);
        contestant.record("grant_cpu_us", cost.cpu_us / all);
        contestant.record("grant_scripts_us", cost.scripts_us / all);
    }
}

/// Counts, not times: MONITOR slows the server down. Of a polling lock this changes the count of contended tries too.
async fn count(server: &Server, contestant: &mut Contestant, drivers: &mut [Driver]) {
    let mut counter = cost::Counter::start(server).await;
    contestant.cycles(drivers, SLICE).await;
    let counts = counter.end(server).await;
    contestant.record("cycle_sent", counts.sent as f64 / SLICE as f64);
    contestant.record("cycle_inner", counts.inner as f64 / SLICE as f64);
    if contestant.name == FLOOR {
        return;
    }
    let mut counter = cost::Counter::start(server).await;
    let grants = contestant.contend(drivers, CONTENDERS, CONTENTION).await;
    let counts = counter.end(server).await;
    contestant.record("grant_sent", counts.sent as f64 / grants.all as f64);
    contestant.record("grant_inner", counts.inner as f64 / grants.all as f64);
}
