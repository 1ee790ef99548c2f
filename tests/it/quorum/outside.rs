//! Guards of a quorum where there are no timers, or no runtime any more.

use super::Fleet;
use crate::server::{eventually, soon};
use fairlock::{Error, LostReason};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Nobody can tell the time then, so the hold ends early.
#[test]
fn a_loss_is_told_outside_of_a_runtime_when_the_quorums_runtime_ends() {
    let runtime = || Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let (home, gone) = (runtime().unwrap(), runtime().unwrap());
    let fleet = home.block_on(Fleet::start(3));
    let guard = gone.block_on(async {
        let quorum = fleet.quorum().await;
        quorum.rw_lock("x").write().acquire_fair().await.unwrap()
    });
    let (told, lost) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let bare = Builder::new_current_thread().build().unwrap();
        let _ = told.send((bare.block_on(guard.lost()), guard.is_held()));
    });
    // The thread waits by then. If not, it finds the end when it comes.
    std::thread::sleep(Duration::from_millis(300));
    assert!(lost.try_recv().is_err(), "nothing has happened yet");
    gone.shutdown_background();
    let lost = lost.recv_timeout(Duration::from_secs(20)).expect("it is told");
    assert_eq!(lost, (LostReason::LeaseExpired, false));
    drop(home);
}

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// The runtime of the caller ends, and the hold lives on in that of the quorum.
#[test]
fn a_hold_regains_a_vote_after_the_runtime_that_acquired_it_has_ended() {
    let (home, elsewhere) = (runtime(), runtime());
    let mut fleet = home.block_on(Fleet::start(3));
    let quorum = home.block_on(fleet.quorum());
    fleet.0[2].kill();
    let lock = quorum.rw_lock("x");
    let holder = elsewhere.block_on(async { lock.write().acquire_fair().await.unwrap() });
    elsewhere.shutdown_background();
    home.block_on(async {
        fleet.0[2].start_again().await;
        fleet.let_vote_again(2, "x").await;
        eventually("the vote of the third server", async || holder.votes() == 3).await;
        soon("the release", holder.release()).await.unwrap();
        fleet.until(fleet.all(), "x", 0, 0).await;
    });
}

/// A release in another runtime is over when a majority has confirmed it. What is left goes on in that of the quorum.
#[test]
fn a_release_ends_at_all_servers_after_the_runtime_that_called_it_has_ended() {
    let (home, elsewhere) = (runtime(), runtime());
    let fleet = home.block_on(Fleet::start(3));
    let quorum = home.block_on(fleet.quorum());
    let holder = home.block_on(async { quorum.rw_lock("x").write().acquire_fair().await.unwrap() });
    home.block_on(eventually("all votes", async || holder.votes() == 3));
    fleet.0[2].freeze();
    elsewhere.block_on(async { soon("the release", holder.release()).await.unwrap() });
    elsewhere.shutdown_background();
    fleet.0[2].thaw();
    home.block_on(fleet.until(fleet.all(), "x", 0, 0));
}

/// Nobody runs its drivers any more.
#[test]
fn a_waiter_in_another_runtime_ends_with_the_runtime_of_its_quorum() {
    let (home, gone) = (runtime(), runtime());
    let fleet = home.block_on(Fleet::start(3));
    let quorum = gone.block_on(fleet.quorum());
    let lock = quorum.rw_lock("x");
    let _holder = home.block_on(lock.write().acquire_fair()).unwrap();
    let waiter = home.spawn(lock.write().acquire_fair());
    home.block_on(fleet.until(fleet.all(), "x", 1, 1));
    gone.shutdown_background();
    let ended = home.block_on(soon("the waiter ends", waiter)).unwrap();
    assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
}

#[test]
fn without_timers_each_call_of_a_quorum_is_refused() {
    fn is_refused<T>(result: Result<T, Error>) -> bool {
        matches!(result, Err(Error::Runtime { .. }))
    }
    let (home, bare) = (runtime(), Builder::new_current_thread().build().unwrap());
    let fleet = home.block_on(Fleet::start(3));
    let quorum = home.block_on(fleet.quorum());
    let lock = quorum.rw_lock("x");
    let holder = home.block_on(lock.write().acquire_fair()).unwrap();
    let connect = || is_refused(bare.block_on(Fleet::builder().connect(fleet.urls())));
    let acquire = || is_refused(bare.block_on(lock.read().acquire_fair()));
    let status = || is_refused(bare.block_on(lock.status()));
    let token = || is_refused(bare.block_on(holder.fencing_token()));
    let mut others = vec![];
    let calls: [(&str, &dyn Fn() -> bool); 4] = [
        ("connect", &connect),
        ("acquire_fair", &acquire),
        ("status", &status),
        ("fencing_token", &token),
    ];
    for (name, call) in calls {
        if !catch_unwind(AssertUnwindSafe(call)).unwrap_or(false) {
            others.push(name);
        }
    }
    let release = AssertUnwindSafe(|| is_refused(bare.block_on(holder.release())));
    if !catch_unwind(release).unwrap_or(false) {
        others.push("release");
    }
    assert_eq!(others, [""; 0], "neither a panic nor an answer");
}
