//! What dead waiters cost those who live, in virtual time.

use super::dice::Dice;
use super::process::{Process, pausable};
use super::server::Server;
use super::world::{Fault, Net, World};
use fairlock::testing::Network;
use fairlock::{Client, RwLock};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const LEASE: Duration = Duration::from_secs(30);

async fn lock_of(world: &Arc<World>, process: &Arc<Process>) -> RwLock {
    let net: Arc<dyn Network> = Arc::new(Net {
        world: Arc::clone(world),
        process: Arc::clone(process),
    });
    let client = Client::builder().lease(LEASE).connect(net).await;
    client.expect("a server").rw_lock("lock 0")
}

/// How long somebody waits behind so many waiters of each process, once the holder releases. All those processes are dead.
async fn cost(processes: u64, waiters: usize) -> Duration {
    let server = Server::new(usize::MAX, true, false);
    let world = World::new(server, Dice::new(1));
    tokio::spawn(Arc::clone(&world).run());
    // The client of the holder lives on: it is the one that is told when to look again.
    let held = lock_of(&world, &Process::new(1)).await;
    let holder = held.write().acquire_fair().await;
    let mut dead = Vec::new();
    for number in 0..processes {
        let process = Process::new(10 + number);
        let lock = lock_of(&world, &process).await;
        for _ in 0..waiters {
            let waits = pausable(Arc::clone(&process), lock.write().acquire_fair());
            process.keep(tokio::spawn(waits).abort_handle());
        }
        dead.push(process);
    }
    sleep(Duration::from_millis(100)).await;
    let last = tokio::spawn(lock_of(&world, &Process::new(2)).await.write().acquire_fair());
    sleep(Duration::from_millis(100)).await;
    for process in &dead {
        world.inflict(Fault::Kill, process, Duration::ZERO);
    }
    let begun = Instant::now();
    holder.expect("a free lock").release().await.expect("held");
    drop(last.await.expect("no panic").expect("granted"));
    let violation = world.core().violation.take();
    assert_eq!(violation, None);
    begun.elapsed()
}

fn in_virtual_time(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    fairlock::testing::seed(1);
    runtime.expect("a runtime without I/O").block_on(test);
}

#[test]
fn fifty_dead_waiters_cost_a_second_together() {
    in_virtual_time(async {
        for (processes, waiters) in [(1, 1), (1, 50), (50, 1), (5, 10)] {
            let cost = cost(processes, waiters).await;
            println!("{processes} processes, {waiters} waiters each: {cost:?}");
            let second = Duration::from_secs(1)..Duration::from_millis(1_100);
            assert!(
                second.contains(&cost),
                "{processes} times {waiters} waiters cost {cost:?}"
            );
        }
        // As many as one call looks at, and as many as one call expires.
        let cost = cost(1, 250).await;
        assert!(cost < Duration::from_millis(2_200), "250 waiters cost {cost:?}");
    });
}
