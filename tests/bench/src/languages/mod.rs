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
pub use contestant::{Contention, Contestant, Side};
pub use driver::{Driver, Kind as DriverKind};
pub use local::Local;

use contestant::FLOOR;
use cost::Meter;
use fairlock_support::server::Server;
use serde_json::json;
use std::time::Duration;

/// Cycles of one contestant before the next has its turn: so many that reading the server's CPU time hardly counts.
const SLICE: usize = 200;

/// Until the JVM and Node.js have compiled what is hot.
const WARM_UP: usize = 3000;

const CONTENTION: Contention = Contention {
    contenders: 8,
    time: Duration::from_millis(150),
    hold: Duration::ZERO,
};

pub async fn run(env: &Env, report: &mut Report) {
    // Of its own, so that all its work is about this.
    let server = env.another_server().await;
    let mut contestants = local::contestants(&server.url()).await;
    let mut missing = Vec::new();
    let mut drivers = Vec::new();
    for driver in driver::ALL {
        match Driver::start(driver, &[server.url()]).await {
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
    let mut rounds = vec![[const { Vec::new() }; 3]; contestants.len()];
    for slice in 0..env.times(6) {
        let mut order: Vec<_> = contestants.iter_mut().zip(&mut rounds).collect();
        // What ran before leaves its traces in the caches, so nobody always follows the same one.
        if slice % 2 == 1 {
            order.reverse();
        }
        for (contestant, [times, cpu, scripts]) in order {
            let before = meter.begin().await;
            times.push(contestant.cycles(drivers, SLICE).await);
            let cost = meter.end(before).await;
            cpu.push(cost.cpu_us / SLICE as f64);
            scripts.push(cost.scripts_us / SLICE as f64);
        }
    }
    for (contestant, figures) in contestants.iter_mut().zip(&rounds) {
        for (name, slices) in ["cycle_us", "cycle_cpu_us", "cycle_scripts_us"]
            .into_iter()
            .zip(figures)
        {
            contestant.record(name, median(slices));
        }
    }
    for (figure, ratio) in [("cycle_us", "ratio"), ("cycle_cpu_us", "cpu_ratio")] {
        let floors: Vec<(&str, f64)> = contestants
            .iter()
            .filter(|contestant| contestant.name == FLOOR)
            .map(|floor| (floor.language, floor.last(figure)))
            .collect();
        for contestant in contestants.iter_mut() {
            let floor = floors.iter().find(|(language, _)| *language == contestant.language);
            let (_, floor) = floor.expect("each language has a floor");
            contestant.record(ratio, contestant.last(figure) / floor);
        }
    }
}

async fn contended(contestants: &mut [Contestant], drivers: &mut [Driver], meter: &mut Meter) {
    for contestant in contestants.iter_mut().filter(|contestant| contestant.name != FLOOR) {
        let before = meter.begin().await;
        let grants = contestant.contend(drivers, CONTENTION).await;
        let cost = meter.end(before).await;
        let all = grants.all as f64;
        contestant.record("grants_per_s", grants.within as f64 / CONTENTION.time.as_secs_f64());
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
    let grants = contestant.contend(drivers, CONTENTION).await;
    let counts = counter.end(server).await;
    contestant.record("grant_sent", counts.sent as f64 / grants.all as f64);
    contestant.record("grant_inner", counts.inner as f64 / grants.all as f64);
}
