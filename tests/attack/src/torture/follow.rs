//! Reads the journals of all locks while they are written, and trims what was read.
//!
//! Each lock has a cursor: the last entry that the judge has seen. The judge gets a page and the cursor moves in one step
//! without an await, so a pass may be dropped at any await and judges no entry twice.
//!
//! A server that comes back from its disk may have lost its last writes. A journal shows that by an entry that is not there
//! any more. An emptied server has no such entry, so the follower writes a number of its own, the *era*: if the server has
//! lost it, the server may have lost its own emptying too, and old journals may be back.

use super::admin::Admin;
use super::judge::Judge;
use super::log::Log;
use super::{connect_redis, lock};
use crate::journal;
use crate::record::Record;
use futures::stream::{self, StreamExt};
use redis::aio::MultiplexedConnection;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Calls under way at once.
const AT_ONCE: usize = 32;
/// Reads this many times a second if there is little to read.
const PAUSE: Duration = Duration::from_millis(100);
/// How often a server that was just reached may seem not to answer.
const BROKEN: usize = 20;
/// Trimming costs a command: not for a few entries.
const TRIM_AFTER: u64 = 500;
/// The key of the era, beside the journals.
const ERA: &str = "torture:journal:era";

/// Where the reading of one lock's journal is.
#[derive(Clone, Debug, Default)]
struct Cursor {
    after: String,
    untrimmed: u64,
    /// The server came back from its disk: the journal may be another one even if it has as many entries.
    doubted: bool,
}

impl Cursor {
    fn number(&self) -> u64 {
        let number = self.after.split('-').next().and_then(|number| number.parse().ok());
        number.unwrap_or(0)
    }
}

pub struct Follower {
    url: String,
    judge: Arc<Mutex<Judge>>,
    /// By the lock's key.
    cursors: HashMap<String, Cursor>,
    /// How often the server was emptied.
    era: u64,
    redis: Option<MultiplexedConnection>,
    log: Option<Log>,
}

/// What one pass over all locks found: the worst of what it found at each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pass {
    /// Read to the end.
    Complete,
    More,
    /// The server did not answer.
    Broken,
    /// Entries that had been read are not there any more.
    Lost,
}

/// A journal that is to be read: from where, and up to which number.
struct Due {
    key: String,
    after: String,
    until: u64,
}

/// What was read of it; `due.after` is where that ended.
struct Page {
    due: Due,
    read: Result<Vec<Record>, String>,
}

impl Follower {
    pub fn new(url: String, judge: Arc<Mutex<Judge>>, keys: impl Iterator<Item = String>) -> Self {
        Self {
            url,
            judge,
            cursors: keys.map(|key| (key, Cursor::default())).collect(),
            era: 0,
            redis: None,
            log: None,
        }
    }

    /// What is read is also written there.
    pub fn with_log(self, log: Option<Log>) -> Self {
        Self { log, ..self }
    }

    /// All locks, in order.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.cursors.keys().cloned().collect();
        keys.sort();
        keys
    }

    /// The server was emptied, and the journals with it: another era begins.
    pub async fn start_over(&mut self) -> Result<(), redis::RedisError> {
        self.era += 1;
        let era = self.era.to_string();
        Admin::new(self.url.clone()).call::<()>(&["SET", ERA, &era]).await?;
        self.cursors.values_mut().for_each(|cursor| *cursor = Cursor::default());
        self.log(Log::emptied);
        Ok(())
    }

    /// The server came back from its disk, perhaps without its last writes. Reads all that is there by now.
    pub async fn read_all_again(&mut self) -> Pass {
        self.cursors.values_mut().for_each(|cursor| cursor.doubted = true);
        self.read_all().await
    }

    /// Reads all that is there by now. Never `More`.
    pub async fn read_all(&mut self) -> Pass {
        let mut broken = 0;
        loop {
            match self.pass().await {
                Pass::More => {}
                // The connection may be one to the server before it was killed: only a new one tells what it knows.
                Pass::Broken if broken < BROKEN => {
                    broken += 1;
                    sleep(PAUSE).await;
                }
                other => return other,
            }
        }
    }

    /// One page of every lock that has one. Safe to drop at any await.
    pub async fn pass(&mut self) -> Pass {
        lock(&self.judge).pass_begins();
        let pass = self.try_pass().await.unwrap_or(Pass::Broken);
        match pass {
            Pass::Complete => lock(&self.judge).pass_ends(),
            Pass::Broken => self.redis = None,
            Pass::More | Pass::Lost => {}
        }
        pass
    }

    async fn try_pass(&mut self) -> Result<Pass, String> {
        let redis = match &self.redis {
            Some(redis) => redis.clone(),
            None => {
                let redis = connect_redis(&self.url).await.map_err(|error| error.to_string())?;
                self.redis.insert(redis).clone()
            }
        };
        let (era, grown) = self.grown(&mut redis.clone()).await?;
        if era != self.era {
            return Ok(Pass::Lost);
        }
        let mut pages = stream::iter(grown)
            .map(|due| read_page(redis.clone(), due))
            .buffer_unordered(AT_ONCE);
        let mut pass = Pass::Complete;
        while let Some(page) = pages.next().await {
            pass = pass.max(self.take(page));
        }
        drop(pages);
        self.trim(redis).await?;
        Ok(pass)
    }

    /// The server's era, and the journals that have grown or may not be what they were.
    async fn grown(&self, redis: &mut MultiplexedConnection) -> Result<(u64, Vec<Due>), String> {
        let cursors: Vec<(&String, &Cursor)> = self.cursors.iter().collect();
        let mut get = redis::cmd("MGET");
        get.arg(ERA);
        for (key, _) in &cursors {
            get.arg(format!("{key}:journal:n"));
        }
        let numbers: Vec<Option<u64>> = get.query_async(redis).await.map_err(|error| error.to_string())?;
        let mut numbers = numbers.into_iter().map(Option::unwrap_or_default);
        let era = numbers.next().unwrap_or_default();
        let due = |((key, cursor), until): ((&String, &Cursor), u64)| {
            (cursor.doubted || until != cursor.number()).then(|| Due {
                key: key.clone(),
                after: cursor.after.clone(),
                until,
            })
        };
        Ok((era, cursors.into_iter().zip(numbers).filter_map(due).collect()))
    }

    /// A log that cannot be written is a violation, since the run was asked for one.
    fn log(&mut self, write: impl FnOnce(&mut Log) -> std::io::Result<()>) {
        if let Some(Err(error)) = self.log.as_mut().map(write) {
            lock(&self.judge).violation(format!("the log: {error}"));
        }
    }

    /// Judges a page and moves the cursor behind it.
    fn take(&mut self, Page { due, read }: Page) -> Pass {
        match &read {
            Ok(records) => self.log(|log| log.records(records)),
            Err(error) if error.starts_with(journal::LOST) => self.log(|log| log.broken(&due.key, "lost")),
            Err(error) if error.starts_with(journal::DAMAGED) => self.log(|log| log.broken(&due.key, "damaged")),
            Err(_) => {}
        }
        let mut judge = lock(&self.judge);
        let cursor = self.cursors.entry(due.key.clone()).or_default();
        cursor.after = due.after;
        let records = match read {
            Ok(records) => records,
            Err(error) if error.starts_with(journal::LOST) => return Pass::Lost,
            // What was deleted, was by the nemesis.
            Err(error) if error.starts_with(journal::DAMAGED) => {
                judge.damaged(&due.key);
                return Pass::More;
            }
            Err(error) if error.starts_with(journal::GAP) => {
                judge.violation(format!("the journal: {error}"));
                return Pass::Complete;
            }
            Err(_) => return Pass::Broken,
        };
        cursor.doubted = false;
        cursor.untrimmed += records.len() as u64;
        records.iter().for_each(|record| judge.record(record));
        if cursor.number() < due.until {
            Pass::More
        } else {
            Pass::Complete
        }
    }

    /// Drops what was read, where that is much.
    async fn trim(&mut self, mut redis: MultiplexedConnection) -> Result<(), String> {
        let due = self
            .cursors
            .iter_mut()
            .filter(|(_, cursor)| cursor.untrimmed >= TRIM_AFTER);
        for (key, cursor) in due {
            cursor.untrimmed = 0;
            journal::forget(&mut redis, key, &cursor.after).await?;
        }
        Ok(())
    }
}

async fn read_page(mut redis: MultiplexedConnection, mut due: Due) -> Page {
    let read = journal::read(&mut redis, &due.key, &mut due.after).await;
    Page { due, read }
}

/// Reads until it is told to stop. Whoever is about to take the server's data away takes the follower first.
pub async fn follow(follower: Arc<tokio::sync::Mutex<Follower>>, stopped: watch::Receiver<bool>) {
    while !*stopped.borrow() {
        let pass = {
            let mut follower = follower.lock().await;
            let pass = timeout(Duration::from_secs(20), follower.pass()).await;
            pass.unwrap_or(Pass::Broken)
        };
        match pass {
            Pass::More => {}
            Pass::Complete | Pass::Broken => sleep(PAUSE).await,
            Pass::Lost => {
                let follower = follower.lock().await;
                lock(&follower.judge).violation("the server lost a part of the journal".to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlock_support::server::Server;
    use futures::FutureExt;
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    const LOCK: &str = "fairlock:{a}";
    const OTHER: &str = "fairlock:{b}";

    fn judge() -> Arc<Mutex<Judge>> {
        Arc::new(Mutex::new(Judge::new(1000, true)))
    }

    fn follower(server: &Server) -> Follower {
        Follower::new(server.url(), judge(), [LOCK, OTHER].map(str::to_owned).into_iter())
    }

    /// Records and violations.
    fn judged(follower: &Follower) -> (u64, Vec<String>) {
        let judge = lock(&follower.judge);
        (judge.records, judge.shown.clone())
    }

    /// Writes so many entries into a lock's journal, each a writer that comes and goes.
    async fn write(server: &Server, key: &str, entries: u64) {
        const WRITE: &str = "for n = 1, ARGV[1], 2 do
  local request = string.format('w%015x:1', n)
  local enter, leave = string.format('%d-%d', n, n * 1000), string.format('%d-%d', n + 1, n * 1000 + 1)
  redis.call('XADD', KEYS[1], enter, 'acquire', ' ' .. request .. ' 1000', n * 1000, 'granted ' .. request .. ' ' .. n * 1000)
  redis.call('XADD', KEYS[1], leave, 'release', ' ' .. request, n * 1000, 'released ' .. request .. ' 0')
end
redis.call('SET', KEYS[1] .. ':n', ARGV[1])";
        let mut call = redis::cmd("EVAL");
        call.arg(WRITE).arg(1).arg(format!("{key}:journal")).arg(entries);
        let () = call.query_async(&mut server.redis().await).await.expect("a journal");
    }

    async fn empty(server: &Server) {
        let () = redis::cmd("FLUSHALL")
            .query_async(&mut server.redis().await)
            .await
            .expect("empty");
    }

    #[tokio::test]
    async fn a_server_that_forgot_that_it_was_emptied_has_lost_its_data() {
        let server = Server::start().await;
        let mut follower = follower(&server);
        write(&server, LOCK, 8).await;
        assert_eq!(follower.read_all().await, Pass::Complete);
        empty(&server).await;
        follower.start_over().await.expect("an era");
        // It comes back as it was before.
        empty(&server).await;
        write(&server, LOCK, 8).await;
        assert_eq!(follower.read_all_again().await, Pass::Lost);
        assert_eq!(judged(&follower), (8, Vec::new()));
    }

    #[tokio::test]
    async fn a_journal_that_grew_again_to_its_old_length_is_lost() {
        let server = Server::start().await;
        let mut follower = follower(&server);
        write(&server, LOCK, 8).await;
        assert_eq!(follower.read_all().await, Pass::Complete);
        let mut redis = server.redis().await;
        let mut forge = redis::pipe();
        let journal = format!("{LOCK}:journal");
        forge.cmd("XDEL").arg(&journal).arg("8-7001").ignore();
        forge
            .cmd("XADD")
            .arg(&journal)
            .arg("8-7002")
            .arg(&["release", "", "", ""])
            .ignore();
        let () = forge.query_async(&mut redis).await.expect("another entry");
        assert_eq!(follower.read_all_again().await, Pass::Lost);
    }

    #[tokio::test]
    async fn a_pass_that_is_dropped_at_any_await_judges_no_entry_twice() {
        let server = Server::start().await;
        let entries = 3 * TRIM_AFTER;
        for polls in 0.. {
            empty(&server).await;
            write(&server, LOCK, entries).await;
            let mut follower = follower(&server);
            let done = polled(follower.pass(), polls).await.is_some();
            assert_eq!(follower.read_all().await, Pass::Complete);
            assert_eq!(judged(&follower), (entries, Vec::new()), "dropped after {polls} polls");
            if done {
                return;
            }
        }
    }

    /// The future's output, unless it is not ready after so many polls.
    async fn polled<F: Future>(future: F, mut polls: u32) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|context| match polls.checked_sub(1) {
            None => Poll::Ready(None),
            Some(left) => {
                polls = left;
                future.poll_unpin(context).map(Some)
            }
        })
        .await
    }

    #[tokio::test]
    async fn a_loss_counts_more_than_what_else_a_pass_finds() {
        let server = Server::start().await;
        let page = |key: &str, error: &str| Page {
            due: Due {
                key: key.to_owned(),
                after: String::new(),
                until: 0,
            },
            read: Err(error.to_owned()),
        };
        let mut follower = follower(&server);
        let mut pass = |pages: [Page; 2]| pages.map(|page| follower.take(page)).into_iter().max();
        for other in [journal::DAMAGED, journal::GAP, "the connection broke"] {
            assert_eq!(
                pass([page(LOCK, journal::LOST), page(OTHER, other)]),
                Some(Pass::Lost),
                "{other}"
            );
        }
    }
}
