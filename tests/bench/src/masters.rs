//! masters: locks that lie on three masters of a cluster / the same locks on one. This machine has no cores for three
//! servers, so what bounds the throughput of machines that have is looked at too: the CPU time of the busiest node.

use crate::env::Env;
use crate::report::{Goal, Report, median};
use fairlock::Client;
use fairlock_support::server::{PATIENCE, Server};
use futures::future::join_all;
use std::time::{Duration, Instant};

const TASKS: usize = 64;
const SLOTS: usize = 16384;
const SLICE: Duration = Duration::from_millis(100);

struct Masters {
    nodes: Vec<Server>,
    client: Client,
}

pub async fn run(env: &Env, report: &mut Report) {
    let sides = [Masters::start(env, 1).await, Masters::start(env, 3).await];
    let slices = env.times(5);
    let (mut rates, mut busiest) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in env.rounds("masters") {
        let mut of_slices = [Vec::new(), Vec::new()];
        let before = [sides[0].cpu_us().await, sides[1].cpu_us().await];
        let mut cycles = [0, 0];
        for _ in 0..slices {
            for (side, masters) in sides.iter().enumerate() {
                let begun = Instant::now();
                let done = masters.cycles(begun).await;
                cycles[side] += done;
                of_slices[side].push(done as f64 / begun.elapsed().as_secs_f64());
            }
        }
        for (side, masters) in sides.iter().enumerate() {
            rates[side].push(median(&of_slices[side]));
            let after = masters.cpu_us().await;
            let most = after.iter().zip(&before[side]).map(|(after, before)| after - before);
            busiest[side].push(most.fold(0.0, f64::max) / cycles[side] as f64);
        }
    }
    let ratio = |of: &[Vec<f64>; 2]| -> Vec<f64> { of[1].iter().zip(&of[0]).map(|(three, one)| three / one).collect() };
    report.row(
        "masters",
        "CPU time of the busiest node per uncontended cycle: three masters / one",
        Goal::AtMost(0.5),
        &ratio(&busiest),
    );
    report.beside("masters_cpu_us", "us per cycle, the busiest of three", &busiest[1]);
    report.beside("masters_cpu_us_one", "us per cycle, the only one", &busiest[0]);
    report.beside(
        "masters_rate",
        "cycles per second, three masters / one, all on this machine's cores",
        &ratio(&rates),
    );
}

impl Masters {
    async fn start(env: &Env, count: usize) -> Self {
        let args = ["--cluster-enabled", "yes", "--cluster-port", "0"];
        let nodes = join_all((0..count).map(|_| env.another_server_with(&args))).await;
        let first = [nodes[0].port(), nodes[0].bus_port()].map(|port| port.to_string());
        for (i, node) in nodes.iter().enumerate() {
            let (from, to) = (i * SLOTS / count, (i + 1) * SLOTS / count - 1);
            cluster(node, &["SET-CONFIG-EPOCH", &(i + 1).to_string()]).await;
            cluster(node, &["ADDSLOTSRANGE", &from.to_string(), &to.to_string()]).await;
            if i > 0 {
                cluster(node, &["MEET", "127.0.0.1", &first[0], &first[1]]).await;
            }
        }
        let begun = Instant::now();
        let all = format!("cluster_known_nodes:{count}");
        for node in &nodes {
            loop {
                let info = cluster(node, &["INFO"]).await;
                if info.contains("cluster_state:ok") && info.contains(&all) {
                    break;
                }
                assert!(begun.elapsed() < PATIENCE, "the cluster is not up: {info}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let library = nodes.iter().map(Server::url).collect::<Vec<_>>();
        let client = Client::connect(library).await.expect("the cluster is up");
        Self { nodes, client }
    }

    async fn cycles(&self, begun: Instant) -> usize {
        let tasks = (0..TASKS).map(|task| {
            let lock = self.client.rw_lock(format!("masters-{task}"));
            tokio::spawn(async move {
                let mut cycles = 0;
                while begun.elapsed() < SLICE {
                    let guard = lock.write().acquire_fair().await.expect("granted");
                    guard.release().await.expect("released");
                    cycles += 1;
                }
                cycles
            })
        });
        let tasks: Vec<_> = tasks.collect();
        join_all(tasks)
            .await
            .into_iter()
            .map(|cycles| cycles.expect("cycles"))
            .sum()
    }

    /// Of each node, in user and system.
    async fn cpu_us(&self) -> Vec<f64> {
        let cpu = async |node: &Server| {
            let mut info = redis::cmd("INFO");
            info.arg("cpu");
            let text: String = info.query_async(&mut node.redis().await).await.expect("INFO");
            let seconds = |name: &str| -> f64 {
                let value = text.lines().find_map(|line| line.strip_prefix(name));
                value.expect("a time").trim().parse().expect("a number")
            };
            (seconds("used_cpu_user:") + seconds("used_cpu_sys:")) * 1e6
        };
        join_all(self.nodes.iter().map(cpu)).await
    }
}

async fn cluster(node: &Server, args: &[&str]) -> String {
    let reply = redis::cmd("CLUSTER")
        .arg(args)
        .query_async(&mut node.redis().await)
        .await;
    reply.unwrap_or_else(|error| panic!("CLUSTER {args:?}: {error}"))
}
