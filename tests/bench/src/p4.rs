//! p4: how often a hot lock changes hands / how often it could if each hand-over took the floor of p3. The lock is held
//! for no time, by 8 tasks and by 64 of one process, and by 8 processes.
//!
//! The peers need no hand-over for their rates: who releases asks again at once and gets the lock, while the others pause
//! between two tries. So their rate here is that of p1, and what it costs the others is p7's matter.

use crate::env::Env;
use crate::handover::Handover;
use crate::hot;
use crate::least_client::LeastContest;
use crate::peers::{Kind, Locks};
use crate::report::{Goal, Report, median};
use crate::ring::Ring;
use crate::worker::Worker;
use std::time::Duration;

const PROCESSES: usize = 8;

/// Key, title, and who contends.
const SETTINGS: [(&str, &str, Option<usize>); 3] = [
    (
        "p4",
        "grants per second of a hot lock, 8 tasks / the bound by the hand-over's floor",
        Some(8),
    ),
    ("p4_64", "the same, 64 tasks", Some(64)),
    ("p4_processes", "the same, 8 processes", None),
];

pub async fn run(env: &Env, report: &mut Report) {
    let mut handover = Handover::new(env).await;
    let mut all = Vec::new();
    for kind in Kind::ALL {
        all.push((kind, Locks::connect(kind, &env.server.url()).await));
    }
    let least_client = LeastContest::new(&env.server, "p4-least").await;
    let mut ring = Ring::new(env, PROCESSES).await;
    let mut workers = Vec::new();
    for _ in 0..PROCESSES {
        workers.push(env.worker("hot").await);
    }
    for worker in &mut workers {
        assert_eq!(worker.hear().await, "ready");
    }
    let slices = env.times(10);
    let length = Duration::from_millis(30);
    let (mut floors, mut server, mut rings) = (Vec::new(), Vec::new(), Vec::new());
    let mut rates = vec![[const { Vec::new() }; Kind::ALL.len()]; SETTINGS.len()];
    let mut least_rates = [const { Vec::new() }; SETTINGS.len()];
    for _ in env.rounds("p4 hot lock") {
        let (mut floor, mut turns) = (Vec::new(), Vec::new());
        let mut grants = [const { [const { Vec::new() }; Kind::ALL.len()] }; SETTINGS.len()];
        let mut least_grants = [const { Vec::new() }; SETTINGS.len()];
        for _ in 0..slices {
            turns.push(ring.turns(env, length).await as f64 / length.as_secs_f64());
            for ((_, _, tasks), grants) in SETTINGS.iter().zip(&mut least_grants) {
                let Some(tasks) = tasks else { continue };
                let (from, until) = hot::span(length);
                let entered = least_client.grants(*tasks, from, until).await;
                grants.push(entered as f64 / length.as_secs_f64());
            }
            for ((_, _, tasks), grants) in SETTINGS.iter().zip(&mut grants) {
                for ((kind, locks), grants) in all.iter().zip(grants) {
                    for _ in 0..10 {
                        floor.push(handover.floor().await);
                    }
                    let name = format!("p4-{}", kind.name());
                    let entered = match tasks {
                        Some(tasks) => {
                            let (from, until) = hot::span(length);
                            hot::grants(locks, &name, *tasks, from, until).await
                        }
                        None => grants_of_processes(&mut workers, *kind, &name, length).await,
                    };
                    grants.push(entered as f64 / length.as_secs_f64());
                }
            }
        }
        floors.push(median(&floor));
        rings.push(median(&turns));
        server.push(server_time(env, &all[0].1).await);
        for (rates, grants) in least_rates.iter_mut().zip(&least_grants) {
            rates.extend((!grants.is_empty()).then(|| median(grants)));
        }
        for (rates, grants) in rates.iter_mut().zip(&grants) {
            for (rates, grants) in rates.iter_mut().zip(grants) {
                rates.push(median(grants));
            }
        }
    }
    let of_the_bound = |rates: &[f64]| -> Vec<f64> {
        let both = rates.iter().zip(&floors);
        both.map(|(rate, floor)| rate * floor / 1e6).collect()
    };
    for (((key, title, tasks), rates), least) in SETTINGS.iter().zip(&rates).zip(&least_rates) {
        let [ours, peers @ ..] = rates;
        report.row(key, title, Goal::AtLeast(0.8), &of_the_bound(ours));
        if tasks.is_some() {
            let what = "of that bound: our functions and the least client";
            report.beside(&format!("{key}_least_client"), what, &of_the_bound(least));
        }
        let above = beside_best(ours, peers);
        report.row(
            &format!("{key}_peers"),
            "the same / the best peer's",
            Goal::AtLeast(1.0),
            &above,
        );
        report.beside(&format!("{key}_grants"), "per second", ours);
        for ((kind, _), rates) in all.iter().skip(1).zip(peers) {
            report.beside(&format!("{key}_peer_{}", kind.name()), "per second", rates);
        }
    }
    beside_the_ring(report, &rings, &rates[SETTINGS.len() - 1]);
    report.beside("p4_floor", "us, p50", &floors);
    report.beside(
        "p4_server",
        "us of the server's time in scripts per grant of ours, 64 tasks",
        &server,
    );
}

/// Who hands over between processes cannot be faster than a token that goes around.
fn beside_the_ring(report: &mut Report, rings: &[f64], [ours, peers @ ..]: &[Vec<f64>; Kind::ALL.len()]) {
    let title = "turns of a token among 8 processes, and nothing else / the best peer's grants";
    report.row("p4_ring_peers", title, Goal::None, &beside_best(rings, peers));
    let title = "grants of ours, 8 processes / turns of that token";
    report.row("p4_ring", title, Goal::None, &beside_best(ours, &[rings.to_vec()]));
    report.beside("p4_ring_turns", "per second", rings);
}

/// In each round: these rates / the best one of others.
fn beside_best(rates: &[f64], others: &[Vec<f64>]) -> Vec<f64> {
    let best = |round: usize| others.iter().map(|rates| rates[round]).fold(1.0, f64::max);
    let rounds = rates.iter().enumerate();
    rounds.map(|(round, rate)| rate / best(round)).collect()
}

/// A grant is a call of acquire and one of release.
async fn server_time(env: &Env, locks: &Locks) -> f64 {
    let (spent, calls) = (env.spent("fcall").await, env.server.calls("fcall").await);
    let (from, until) = hot::span(Duration::from_millis(50));
    hot::grants(locks, "p4-server", 64, from, until).await;
    let (spent, calls) = (
        env.spent("fcall").await - spent,
        env.server.calls("fcall").await - calls,
    );
    2.0 * spent / calls as f64
}

async fn grants_of_processes(workers: &mut [Worker], kind: Kind, name: &str, length: Duration) -> usize {
    let (from, until) = hot::span(length);
    for worker in workers.iter_mut() {
        worker.say(&format!("{} {name} {from} {until}", kind.name())).await;
    }
    let mut sum = 0;
    for worker in workers {
        sum += worker.hear().await.parse::<usize>().expect("a number");
    }
    sum
}
