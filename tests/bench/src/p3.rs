//! p3: hand-over, from the call of release in one process until the guard is in hand in another / one EVALSHA that
//! publishes until the push has arrived there.

use crate::env::Env;
use crate::handover::Handover;
use crate::raw::Functions;
use crate::report::{Goal, Report, median, quantile, quantiles};

/// Times of one side before the other has its turn.
const SLICE: usize = 10;

/// The greatest of a thousand needs thousands: so many groups of rounds have one each.
const GROUPS: usize = 3;

pub async fn run(env: &Env, report: &mut Report) {
    let mut handover = Handover::new(env).await;
    for _ in 0..50 {
        handover.floor().await;
        handover.lock().await;
        handover.bare().await;
        for functions in 0..Functions::ALL.len() {
            handover.raw(functions).await;
        }
        handover.least_client().await;
    }
    let slices = env.times(100);
    let (mut ours, mut floors, mut bares, mut least_clients) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut raws = [const { Vec::new() }; Functions::ALL.len()];
    for _ in env.rounds("p3 hand-over") {
        let (mut times, mut floor, mut bare, mut least_client) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut raw = [const { Vec::new() }; Functions::ALL.len()];
        for _ in 0..slices {
            for _ in 0..SLICE {
                floor.push(handover.floor().await);
            }
            for _ in 0..SLICE {
                times.push(handover.lock().await);
            }
            for _ in 0..SLICE {
                bare.push(handover.bare().await);
            }
            for (functions, times) in raw.iter_mut().enumerate() {
                for _ in 0..SLICE {
                    times.push(handover.raw(functions).await);
                }
            }
            for _ in 0..SLICE {
                least_client.push(handover.least_client().await);
            }
        }
        least_clients.push(least_client);
        ours.push(times);
        floors.push(floor);
        bares.push(bare);
        for (raws, raw) in raws.iter_mut().zip(raw) {
            raws.push(raw);
        }
    }
    let each = |sides: &[Vec<f64>], number: &dyn Fn(&[f64]) -> f64| -> Vec<f64> {
        sides.iter().map(|values| number(values)).collect()
    };
    let ratio = |ours: &[f64], floors: &[f64]| -> Vec<f64> { ours.iter().zip(floors).map(|(a, b)| a / b).collect() };
    let (p50, floor_p50) = (each(&ours, &median), each(&floors, &median));
    let title = "hand-over between processes, p50 / EVALSHA that publishes until the push, p50";
    report.row("p3", title, Goal::AtMost(1.3), &ratio(&p50, &floor_p50));
    let grouped = |sides: &[Vec<f64>]| -> Vec<Vec<f64>> {
        sides.chunks(sides.len().div_ceil(GROUPS)).map(<[_]>::concat).collect()
    };
    let p999 = |values: &[f64]| quantile(values, 0.999);
    let (high, floor_high) = (each(&grouped(&ours), &p999), each(&grouped(&floors), &p999));
    report.row(
        "p3_p999",
        "the same, p99.9",
        Goal::AtMost(3.0),
        &ratio(&high, &floor_high),
    );
    let bare_p50 = each(&bares, &median);
    let least = "of the floor's p50: a script of a hand-over's commands alone";
    report.beside("p3_bare", least, &ratio(&bare_p50, &floor_p50));
    let title = "hand-over between processes, p50 / a script of its commands alone, p50";
    report.row("p3_of_bare", title, Goal::AtMost(1.02), &ratio(&p50, &bare_p50));
    for (functions, times) in Functions::ALL.into_iter().zip(&raws) {
        let what = format!("of the floor's p50: {}", functions.what());
        report.beside(
            &format!("p3_{}", functions.key()),
            &what,
            &ratio(&each(times, &median), &floor_p50),
        );
    }
    let with_least = each(&least_clients, &median);
    report.beside(
        "p3_least_client",
        "of the floor's p50: the functions that share the state, by the least client on both ends",
        &ratio(&with_least, &floor_p50),
    );
    report.beside("p3_us", "us, p50", &p50);
    report.beside("p3_floor", "us, p50", &floor_p50);
    report.beside("p3_p999_us", "us, p99.9", &high);
    report.beside("p3_p999_floor", "us, p99.9", &floor_high);
    report.samples("p3", quantiles(&ours.concat(), 201));
    report.samples("p3_floor", quantiles(&floors.concat(), 201));
}
