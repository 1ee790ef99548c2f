//! Holds that the server keeps although their users have left them: no owner waits for them.

use super::{circle, noted, several_looks, user, waits, write};
use crate::server::{Server, eventually, soon};
use crate::users::LONG;
use fairlock::{Owner, RwLock};
use tokio::task::JoinHandle;

/// A hold that lasts for a least time after its user has left it.
async fn leave(lock: &RwLock) {
    let guard = soon("to write", lock.write().hold_at_least(LONG).acquire_fair()).await;
    guard.expect("the lock").release().await.expect("held until then");
}

#[tokio::test]
async fn nobody_waits_for_the_owner_of_a_hold_that_its_user_has_left() {
    let server = Server::start().await;
    let (one, two) = (user(&server, "one").await, user(&server, "two").await);
    for leaver_is_younger in [false, true] {
        let (owner, other) = (Owner::new(), Owner::new());
        let names = [format!("a {leaver_is_younger}"), format!("b {leaver_is_younger}")];
        leave(&one.rw_lock(&names[0]).with_owner(&owner)).await;
        let _b = write(&two.rw_lock(&names[1]).with_owner(&other)).await;
        // It waits for the other one, which waits for the end of a hold, and for nobody.
        let leaver = one.rw_lock(&names[1]).with_owner(&owner);
        let other = two.rw_lock(&names[0]).with_owner(&other);
        let mut locks = [&leaver, &other];
        if leaver_is_younger {
            locks.reverse();
        }
        let waiting = [waits(&server, locks[0], 1).await, waits(&server, locks[1], 1).await];
        eventually("notes", async || noted(&server).await.len() == 2).await;
        several_looks(&server).await;
        if leaver_is_younger {
            // Who looks knows its own holds, also without its note.
            let mut forget = redis::cmd("DEL");
            forget.arg(format!("fairlock:waits:{}", owner.uuid().simple()));
            let gone: usize = forget.query_async(&mut server.redis().await).await.unwrap();
            assert_eq!(gone, 1);
            several_looks(&server).await;
        }
        assert!(
            waiting.iter().all(|waiting| !waiting.is_finished()),
            "the leaver is younger: {leaver_is_younger}"
        );
        waiting.iter().for_each(JoinHandle::abort);
        eventually("no notes", async || noted(&server).await.is_empty()).await;
    }
}

#[tokio::test]
async fn a_circle_of_owners_that_have_left_other_holds_is_found() {
    let server = Server::start().await;
    let (one, two) = (user(&server, "one").await, user(&server, "two").await);
    let (first, second) = (Owner::new(), Owner::new());
    leave(&one.rw_lock("left by the first").with_owner(&first)).await;
    leave(&two.rw_lock("left by the second").with_owner(&second)).await;
    let _a = write(&one.rw_lock("a").with_owner(&first)).await;
    let b = write(&two.rw_lock("b").with_owner(&second)).await;
    let older = waits(&server, &one.rw_lock("b").with_owner(&first), 1).await;
    let younger = waits(&server, &two.rw_lock("a").with_owner(&second), 1).await;
    let error = soon("the deadlock", younger).await.unwrap().expect_err("a circle");
    let told: Vec<_> = circle(error).1.iter().map(|blocked| blocked.owner).collect();
    assert_eq!(told, [second, first]);
    b.release().await.unwrap();
    drop(soon("the older one", older).await.unwrap().unwrap());
}
