//! Guards of a quorum where there are no timers, or no runtime any more.

use super::Fleet;
use fairlock::LostReason;
use std::time::Duration;
use tokio::runtime::Builder;

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
