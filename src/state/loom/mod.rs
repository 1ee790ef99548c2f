//! Every interleaving of the client's threads: messages, the watchdog, a waiter, a drop, a shutdown.
//!
//! A lost wake-up leaves a thread waiting for ever, which loom reports as a deadlock. No thread here wakes because time
//! passes, unless a model's clock says so.
#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "it is a test, and so are its helpers"
)]

pub(crate) mod notify;
mod world;

use crate::protocol::reply::Standing;
use crate::state::claim::{EndedBy, Outcome};
use crate::state::request::Request;
use crate::types::error::{LostReason, runtime_ended};
use ::loom::future::block_on;
use std::collections::BTreeSet;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::time::Instant;
use world::{Clock, HOLDS, LEASE, QUEUED, TOKEN, World, ended, explore, is_held};

// Waiting for the guard.

#[test]
fn a_message_and_a_renewal_grant_the_same_request() {
    explore(&["held"], |world| {
        let request = world.waiting();
        let other = Arc::clone(&request);
        let message = world.run(move |world| world.hear(&other, TOKEN));
        let other = Arc::clone(&request);
        let renewal = world.run(move |world| world.settle(&other, HOLDS));
        assert!(world.wait(&request).is_none());
        assert!(message.join().unwrap());
        renewal.join().unwrap();
        assert!(is_held(&request, world.t));
        let again = request.claim().poll_outcome(world.t);
        assert!(again.is_none(), "handed out once");
        ended(&request)
    });
}

#[test]
fn a_message_comes_before_or_after_the_reply() {
    explore(&["held"], |world| {
        let request = world.asked();
        let other = Arc::clone(&request);
        let message = world.run(move |world| world.hear(&other, TOKEN));
        request.claim().on_reply(world.t, QUEUED);
        assert!(world.wait(&request).is_none());
        assert!(message.join().unwrap());
        ended(&request)
    });
}

#[test]
fn a_message_grants_what_a_renewal_does_not_know() {
    let lost = format!("None, {:?}", EndedBy::Lost(LostReason::UnknownToServer));
    let displaced = EndedBy::Displaced { ticket: Some(7) };
    let displaced = format!("Some({displaced:?}), {displaced:?}");
    explore(&[&lost, &displaced], |world| {
        let request = world.waiting();
        let other = Arc::clone(&request);
        let message = world.run(move |world| world.hear(&other, TOKEN));
        let other = Arc::clone(&request);
        let renewal = world.run(move |world| world.settle(&other, Standing::Unknown));
        let outcome = world.wait(&request);
        message.join().unwrap();
        renewal.join().unwrap();
        format!("{outcome:?}, {}", ended(&request))
    });
}

#[test]
fn a_request_is_evicted_while_it_is_granted() {
    let evicted = EndedBy::Lost(LostReason::Evicted);
    let (after, before) = (format!("None, {evicted:?}"), format!("Some({evicted:?}), {evicted:?}"));
    explore(&[&after, &before], |world| {
        let request = world.waiting();
        let other = Arc::clone(&request);
        let eviction = world.run(move |world| world.hear(&other, 0));
        let other = Arc::clone(&request);
        let grant = world.run(move |world| world.hear(&other, TOKEN));
        let outcome = world.wait(&request);
        eviction.join().unwrap();
        grant.join().unwrap();
        format!("{outcome:?}, {}", ended(&request))
    });
}

#[test]
fn a_wait_is_granted_while_the_runtime_ends() {
    let failed = ended_with_its_runtime();
    let failed = format!("Some({failed}), {failed}");
    explore(&["None, held", &failed], |world| {
        let request = world.waiting();
        let other = Arc::clone(&request);
        let message = world.run(move |world| world.hear(&other, TOKEN));
        let end = world.run(move |world| world.shared.registry.end());
        let outcome = world.wait(&request);
        message.join().unwrap();
        assert!(end.join().unwrap(), "there was a request");
        format!("{outcome:?}, {}", ended(&request))
    });
}

/// Its call finds the mark, or its wait ends.
#[test]
fn a_request_is_made_while_the_runtime_ends() {
    let failed = ended_with_its_runtime();
    let waited = format!("Some({failed})");
    explore(&[&waited, "refused"], |world| {
        let end = world.run(move |world| world.shared.registry.end());
        let request = world.asked();
        let ending = if world.shared.registry.has_ended() {
            "refused".to_owned()
        } else {
            request.claim().on_reply(world.t, QUEUED);
            format!("{:?}", world.wait(&request))
        };
        end.join().unwrap();
        ending
    });
}

fn ended_with_its_runtime() -> String {
    format!("{:?}", EndedBy::Failed(runtime_ended()))
}

// Dropping.

#[test]
fn a_wait_is_dropped_while_it_is_granted() {
    explore(&["Released", "held"], |world| {
        let request = world.waiting();
        let other = Arc::clone(&request);
        let message = world.run(move |world| world.hear(&other, TOKEN));
        let other = Arc::clone(&request);
        let renewal = world.run(move |world| world.settle(&other, HOLDS));
        let handed_out = {
            let mut wait = pin!(request.outcome(|| world.t));
            let mut poll = || wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            poll().is_ready() || poll().is_ready()
        };
        if !handed_out {
            world.shared.abandon(Arc::clone(&request), Instant::now());
            world.shared.registry.remove(&request);
        }
        let known = message.join().unwrap();
        renewal.join().unwrap();
        assert_eq!(world.releases(), usize::from(!handed_out));
        assert_eq!(is_held(&request, world.t), handed_out);
        assert!(known || !handed_out, "what was not known is passed on");
        let again = request.claim().poll_outcome(world.t);
        assert!(!matches!(again, Some(Outcome::HandOut(_))));
        ended(&request)
    });
}

#[test]
fn a_guard_is_dropped_while_its_hold_lapses() {
    explore(&["1", "2"], |world| {
        let request = world.held();
        let watchdog = world.run(|world| {
            // Much later it checks again.
            for leases in [1, 1000] {
                let due = world.shared.registry.take_due(world.t + LEASE * leases);
                for request in due.into_iter().flat_map(|due| due.release) {
                    world.shared.release(request).unwrap();
                }
            }
        });
        world.shared.abandon(Arc::clone(&request), Instant::now());
        watchdog.join().unwrap();
        assert!(request.claim().ended().is_some());
        // Twice if the watchdog was first: the second release finds nothing.
        world.releases().to_string()
    });
}

#[test]
fn a_wait_is_dropped_during_a_shutdown_while_it_is_granted() {
    let shutdown = format!("{:?}", EndedBy::Lost(LostReason::Shutdown));
    explore(&[&shutdown, "Released"], |world| {
        let request = world.waiting();
        let other = Arc::clone(&request);
        let message = world.run(move |world| world.hear(&other, TOKEN));
        let shutdown = world.run(|world| world.shared.registry.close(world.t).len());
        world.shared.abandon(Arc::clone(&request), Instant::now());
        message.join().unwrap();
        assert_eq!(shutdown.join().unwrap() + world.releases(), 2);
        ended(&request)
    });
}

// The watchdog's sleep.

/// Runs the watchdog until all these locks were due. No time later than `at` comes.
fn run_watchdog(world: &World, at: Instant, mut locks: BTreeSet<&str>) {
    while !locks.is_empty() {
        block_on(world.shared.registry.something_due(|due| async move {
            if due > at {
                pending::<()>().await;
            }
        }));
        for due in world.shared.registry.take_due(at) {
            locks.remove(&*due.lock.name);
        }
    }
}

#[test]
fn the_watchdog_does_not_sleep_past_what_is_inserted_or_scheduled() {
    explore(&["taken"], |world| {
        let far = world.waiting();
        let at = world.t + Duration::from_secs(1);
        let inserts = world.run(move |world| world.insert_waiting(2, "b", at - world.t));
        let looks = world.run(move |world| world.shared.registry.schedule_check(&far.lock, at));
        run_watchdog(world, at, BTreeSet::from(["a", "b"]));
        inserts.join().unwrap();
        looks.join().unwrap();
        "taken".to_owned()
    });
}

#[test]
fn the_watchdog_sleeps_without_an_end_until_the_first_insert() {
    explore(&["taken"], |world| {
        let at = world.t + LEASE;
        let inserts = world.run(|world| world.insert_waiting(1, "a", LEASE));
        let another = world.run(|world| world.insert_waiting(2, "b", LEASE / 2));
        run_watchdog(world, at, BTreeSet::from(["a", "b"]));
        inserts.join().unwrap();
        another.join().unwrap();
        "taken".to_owned()
    });
}

#[test]
fn the_watchdog_renews_what_waits_when_messages_may_have_been_missed() {
    explore(&["taken"], |world| {
        let waiting = world.waiting();
        let again = world.run(|world| world.shared.registry.resync(world.t));
        let sooner = world.run(move |world| {
            let at = world.t + Duration::from_secs(2);
            world.shared.registry.schedule_check_if_waiting(&waiting.lock, at);
        });
        run_watchdog(world, world.t, BTreeSet::from(["a"]));
        again.join().unwrap();
        sooner.join().unwrap();
        "taken".to_owned()
    });
}

// Learning of a loss.

#[test]
fn whoever_watches_a_hold_is_told_of_an_eviction() {
    let evicted = format!("{:?}", EndedBy::Lost(LostReason::Evicted));
    explore(&[&evicted], |world| {
        let request = world.held();
        let others = [Arc::clone(&request), Arc::clone(&request)];
        let [other, watched] = others;
        let eviction = world.run(move |world| world.hear(&other, 0));
        let watcher = world.run(move |world| watch(&watched, world.t));
        watch(&request, world.t);
        watcher.join().unwrap();
        eviction.join().unwrap();
        ended(&request)
    });
}

#[test]
fn whoever_watches_a_hold_is_told_of_a_shutdown_and_of_a_renewal_that_fails() {
    let endings =
        [LostReason::Shutdown, LostReason::UnknownToServer].map(|reason| format!("{:?}", EndedBy::Lost(reason)));
    explore(&endings.each_ref().map(String::as_str), |world| {
        let request = world.held();
        let shutdown = world.run(|world| drop(world.shared.registry.close(world.t)));
        let other = Arc::clone(&request);
        let renewal = world.run(move |world| world.settle(&other, Standing::Unknown));
        watch(&request, world.t);
        shutdown.join().unwrap();
        renewal.join().unwrap();
        ended(&request)
    });
}

/// While no time passes.
fn watch(request: &Request, t: Instant) {
    block_on(request.lost(|| t, |_| pending()));
    assert!(!is_held(request, t));
}

#[test]
fn whoever_watches_a_hold_is_told_when_it_lapses_and_not_before() {
    let expired = format!("{:?}", EndedBy::Lost(LostReason::LeaseExpired));
    explore(
        &[&format!("{expired}, lapsed"), &format!("{expired}, renewed")],
        |world| {
            let request = world.held();
            let clock = Arc::new(Clock::new(world.t));
            let (renewed, end) = (world.t + LEASE / 3, world.t + LEASE * 3 / 2);
            let (other, time) = (Arc::clone(&request), Arc::clone(&clock));
            let renewal = world.run(move |_| {
                other.on_renewal(renewed, time.now(), LEASE, HOLDS);
                // The time until which it holds now.
                other.claim().held_until(renewed).is_some()
            });
            let time = Arc::clone(&clock);
            let passing = world.run(move |_| time.set(end));
            block_on(request.lost(|| clock.now(), |at| clock.sleep_until(at)));
            assert!(clock.now() == end);
            let renewed = renewal.join().unwrap();
            passing.join().unwrap();
            format!("{}, {}", ended(&request), if renewed { "renewed" } else { "lapsed" })
        },
    );
}

// A shutdown.

#[test]
fn no_request_escapes_a_shutdown() {
    explore(&["asked, Lost(Shutdown)", "refused"], |world| {
        let shutdown = world.run(|world| world.shared.registry.close(world.t));
        let request = world.asked();
        let asks = !world.shared.registry.is_closed();
        if asks {
            request.claim().on_reply(world.t, QUEUED);
        }
        let ended_by_it = shutdown.join().unwrap();
        if !asks {
            return "refused".to_owned();
        }
        assert_eq!(ended_by_it.len(), 1);
        format!("asked, {}", ended(&request))
    });
}

#[test]
fn whoever_waits_is_told_of_a_shutdown() {
    let end = EndedBy::Lost(LostReason::Shutdown);
    let (after, before) = (format!("None, {end:?}"), format!("Some({end:?}), {end:?}"));
    explore(&[&after, &before], |world| {
        let request = world.waiting();
        let shutdown = world.run(|world| drop(world.shared.registry.close(world.t)));
        let other = Arc::clone(&request);
        let message = world.run(move |world| world.hear(&other, TOKEN));
        let outcome = world.wait(&request);
        shutdown.join().unwrap();
        message.join().unwrap();
        format!("{outcome:?}, {}", ended(&request))
    });
}

// Waiting for a former request's release.

/// Does what a request does before it asks.
fn wait_for_former(world: &World, request: &Request) {
    let leaving = || {
        world
            .shared
            .registry
            .other_of_owner(request, |former| former.is_leaving(world.t))
    };
    while let Some(former) = leaving() {
        block_on(world.shared.registry.out_of(&former));
    }
}

#[test]
fn requests_of_an_owner_wait_until_its_former_one_is_released() {
    explore(&["out"], |world| {
        let former = world.asked();
        former.claim().end(EndedBy::Released);
        let [first, second] = [2, 3].map(|number| {
            let request = world.request(number, "a", LEASE);
            world.shared.registry.insert(Arc::clone(&request), world.t);
            request
        });
        let releaser = world.run(move |world| world.shared.registry.remove(&former));
        let other = world.run(move |world| wait_for_former(&world, &second));
        wait_for_former(world, &first);
        releaser.join().unwrap();
        other.join().unwrap();
        "out".to_owned()
    });
}

#[test]
fn a_request_waits_until_its_former_one_is_released_during_a_shutdown() {
    explore(&["out"], |world| {
        let former = world.asked();
        former.claim().end(EndedBy::Released);
        let request = world.request(2, "a", LEASE);
        world.shared.registry.insert(Arc::clone(&request), world.t);
        let other = Arc::clone(&former);
        let releaser = world.run(move |world| world.shared.registry.remove(&other));
        let shutdown = world.run(move |_| former.changed.notify_waiters());
        wait_for_former(world, &request);
        releaser.join().unwrap();
        shutdown.join().unwrap();
        "out".to_owned()
    });
}
