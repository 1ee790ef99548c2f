//! Reads the journals of all locks while they are written, and trims what was read.

use super::judge::Judge;
use super::{connect_redis, lock};
use crate::journal;
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
/// A page of so many entries may not be the last one: `journal::read` gives a thousand at most.
const FULL: usize = 1000;
/// Trimming costs a command: not for a few entries.
const TRIM_AFTER: u64 = 500;

/// Where the reading of one lock's journal is.
#[derive(Clone, Debug, Default)]
struct Cursor {
    after: String,
    untrimmed: u64,
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
    redis: Option<MultiplexedConnection>,
}

/// What one pass over all locks found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Read to the end.
    Complete,
    More,
    /// The server did not answer.
    Broken,
    /// Entries that had been read are not there any more.
    Lost,
}

impl Follower {
    pub fn new(url: String, judge: Arc<Mutex<Judge>>, keys: impl Iterator<Item = String>) -> Self {
        Self {
            url,
            judge,
            cursors: keys.map(|key| (key, Cursor::default())).collect(),
            redis: None,
        }
    }

    /// All locks, in order.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.cursors.keys().cloned().collect();
        keys.sort();
        keys
    }

    /// The journals are known to be gone.
    pub fn start_over(&mut self) {
        self.cursors.values_mut().for_each(|cursor| *cursor = Cursor::default());
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

    /// One page of every lock that has one.
    pub async fn pass(&mut self) -> Pass {
        lock(&self.judge).pass_begins();
        let pass = self.try_pass().await;
        match pass {
            Ok(pass) => {
                if pass == Pass::Complete {
                    lock(&self.judge).pass_ends();
                }
                pass
            }
            Err(_) => {
                self.redis = None;
                Pass::Broken
            }
        }
    }

    async fn try_pass(&mut self) -> Result<Pass, String> {
        let redis = match &self.redis {
            Some(redis) => redis.clone(),
            None => {
                let redis = connect_redis(&self.url).await.map_err(|error| error.to_string())?;
                self.redis.insert(redis).clone()
            }
        };
        let keys: Vec<String> = self.cursors.keys().cloned().collect();
        let grown = grown(&mut redis.clone(), &keys, &self.cursors).await?;
        let judge = Arc::clone(&self.judge);
        let reads: Vec<_> = grown
            .into_iter()
            .map(|key| {
                let cursor = self.cursors.get(&key).cloned().unwrap_or_default();
                read_page(redis.clone(), key, cursor, Arc::clone(&judge))
            })
            .collect();
        let mut reads = stream::iter(reads).buffer_unordered(AT_ONCE);
        let mut pass = Pass::Complete;
        let mut broken = None;
        while let Some((key, cursor, read)) = reads.next().await {
            self.cursors.insert(key, cursor);
            match read {
                Ok(false) => {}
                Ok(true) if pass == Pass::Complete => pass = Pass::More,
                Ok(true) => {}
                Err(error) if error.starts_with(journal::LOST) => pass = Pass::Lost,
                // What was deleted, was by the nemesis.
                Err(error) if error.starts_with(journal::DAMAGED) => pass = Pass::More,
                Err(error) if error.starts_with(journal::GAP) => {
                    lock(&judge).violation(format!("the journal: {error}"));
                }
                Err(error) => broken = Some(error),
            }
        }
        broken.map_or(Ok(pass), Err)
    }
}

/// The locks whose journals have grown, or are not what they were.
async fn grown(
    redis: &mut MultiplexedConnection,
    keys: &[String],
    cursors: &HashMap<String, Cursor>,
) -> Result<Vec<String>, String> {
    let mut get = redis::cmd("MGET");
    for key in keys {
        get.arg(format!("{key}:journal:n"));
    }
    let numbers: Vec<Option<u64>> = get.query_async(redis).await.map_err(|error| error.to_string())?;
    let grown = keys.iter().zip(numbers).filter(|(key, number)| {
        let read = cursors.get(*key).map_or(0, Cursor::number);
        number.unwrap_or(0) != read
    });
    Ok(grown.map(|(key, _)| key.clone()).collect())
}

/// Says whether there may be more.
async fn read_page(
    mut redis: MultiplexedConnection,
    key: String,
    mut cursor: Cursor,
    judge: Arc<Mutex<Judge>>,
) -> (String, Cursor, Result<bool, String>) {
    let records = match journal::read(&mut redis, &key, &mut cursor.after).await {
        Ok(records) => records,
        Err(error) => {
            if error.starts_with(journal::DAMAGED) {
                lock(&judge).damaged(&key);
            }
            return (key, cursor, Err(error));
        }
    };
    {
        let mut judge = lock(&judge);
        records.iter().for_each(|record| judge.record(record));
    }
    cursor.untrimmed += records.len() as u64;
    if cursor.untrimmed >= TRIM_AFTER {
        cursor.untrimmed = 0;
        if let Err(error) = journal::forget(&mut redis, &key, &cursor.after).await {
            return (key, cursor, Err(error));
        }
    }
    (key, cursor, Ok(records.len() >= FULL))
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
