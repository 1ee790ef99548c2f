//! What happens to the servers and the processes, in order.

use super::{Absences, SERVERS};
use crate::judge::Absence;
use crate::record::{Request, now_ns};
use crate::server::Server;
use crate::stage::{Halt, Stage};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// What the loss of a minority costs at most, as the guide `quorum` has it: in a race, until a waiter places its vote
/// again.
const RACE: Duration = Duration::from_secs(1);

pub(super) struct Play<'a> {
    pub(super) stage: &'a mut Stage,
    pub(super) servers: &'a mut [Server],
    pub(super) absences: &'a mut Absences,
}

impl Play<'_> {
    /// The whole of it.
    pub(super) async fn play(mut self) -> Result<(), Halt> {
        let (seconds, lease) = (self.stage.cast.seconds, self.stage.cast.lease);
        self.tell(format!("new servers vote after the longest lease, {lease:?}"));
        let begun = self.stage.open().await?;
        let at = |part: f64| begun + seconds.mul_f64(part);
        sleep_until(at(0.15)).await;
        self.kill(0).await?;
        sleep_until(at(0.3)).await;
        self.kill(1).await?;
        sleep_until(at(0.45)).await;
        self.stage.kill_a_holder().await?;
        sleep_until(at(0.6)).await;
        self.restart(&[0, 1]).await?;
        sleep_until(at(0.85)).await;
        self.tell("two others are killed: now the majority needs those that came back".to_owned());
        self.kill(2).await?;
        self.kill(3).await?;
        sleep_until(at(1.0).max(Instant::now() + RACE)).await;
        self.stage.close().await
    }

    fn tell(&self, news: String) {
        self.stage.scene.tell(news);
    }

    async fn kill(&mut self, at: usize) -> Result<(), Halt> {
        let until = u64::MAX;
        // Only who asks after this has to do without its vote.
        self.servers[at].kill().await?;
        let from = now_ns();
        self.absences.all.push(Absence { from, until });
        self.stage.killed(from, RACE, format!("server {}", at + 1));
        self.stage.until_recovered(from, from).await;
        Ok(())
    }

    /// They come back without their data, and vote when their quarantine is over.
    async fn restart(&mut self, servers: &[usize]) -> Result<(), Halt> {
        let lease = self.stage.cast.lease;
        let quarantine = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        let restarted = now_ns();
        for at in servers {
            // From the first word of a client on, which comes later.
            self.absences.all[*at].until = now_ns() + quarantine;
            self.servers[*at].restart().await?;
        }
        self.tell(format!(
            "servers 1 and 2 are back, empty: their votes count after the longest lease, {lease:?}"
        ));
        let scene = Arc::clone(&self.stage.scene);
        let by_all = move || {
            let history = scene.history();
            let kept = |r: &&Request| r.asked > restarted && r.votes == Some(SERVERS);
            history.requests.iter().filter(kept).filter_map(|r| r.released).min()
        };
        let voted = self.stage.until("all servers keep a hold again", || by_all().is_some());
        voted.await?;
        self.absences.returned = by_all().map(|at| at - restarted);
        self.tell(format!("all {SERVERS} servers keep a hold again"));
        Ok(())
    }
}
