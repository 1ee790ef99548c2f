//! A guard that was lost, and the job that it guarded.

use super::lost_because;
use crate::lateness::in_time;
use crate::observe::{LONG, View, client, ms};
use crate::proxy::Proxy;
use crate::server::{Server, eventually, soon};
use fairlock::LostReason;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[tokio::test]
async fn while_held_gives_the_jobs_output_or_drops_the_job_when_the_lock_is_lost() {
    in_time(async || {
        struct Job(Arc<AtomicBool>);
        impl Drop for Job {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let client = client(proxy.url(), ms(1000)).await;
        let guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
        assert_eq!(guard.while_held(async { 3 }).await.unwrap(), 3);
        let longer_than_a_lease = guard.while_held(tokio::time::sleep(ms(1500)));
        longer_than_a_lease.await.unwrap();

        let dropped = Arc::new(AtomicBool::new(false));
        let job = Job(Arc::clone(&dropped));
        proxy.stall(true);
        let result = guard.while_held(async move {
            let _job = job;
            std::future::pending::<()>().await;
        });
        let result = soon("the job ends", result).await;
        assert_eq!(lost_because(&result), Some(LostReason::LeaseExpired));
        assert!(dropped.load(Ordering::SeqCst));
        assert_eq!(guard.lost().await, LostReason::LeaseExpired, "as often as it is asked");
    })
    .await;
}

#[tokio::test]
async fn a_guard_that_was_lost_stays_lost_when_the_server_can_be_reached_again() {
    in_time(async || {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let (far, near) = (client(proxy.url(), ms(1000)).await, client(server.url(), LONG).await);
        let guard = far.rw_lock("a").read().acquire_fair().await.unwrap();
        let _other = near.rw_lock("a").read().acquire_fair().await.unwrap();
        let mut lost = Box::pin(guard.lost());
        assert!(futures::poll!(&mut lost).is_pending());
        proxy.stall(true);
        assert_eq!(soon("it is lost", lost).await, LostReason::LeaseExpired);
        proxy.stall(false);
        let again = soon("the server answers", far.rw_lock("a").read().acquire_fair())
            .await
            .unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(800) {
            assert!(!guard.is_held());
            tokio::time::sleep(ms(1)).await;
        }
        assert!(again.is_held(), "a new hold is another matter");
        drop(guard);
        eventually("two holds are left", async || View::of(&server, "a").await.holds == 2).await;
        assert!(again.is_held());
    })
    .await;
}
