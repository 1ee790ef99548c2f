//! What the page shows of the locks. However many browsers look, one look at all locks is under way at a time, and a
//! tenth of the time at most goes into such looks, more if they fail. In between, only the locks on the asked page are
//! read again.

use super::history::History;
use crate::locks::{Eye, Findings, Found, Unread};
use crate::outcome::Failure;
use crate::quorum::{Target, first_line};
use fairlock::Status;
use futures::stream::{self, StreamExt as _};
use std::cell::RefCell;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

/// A look at all locks is followed by a pause of so many times its length.
const PAUSES: u32 = 9;
/// But a server that comes back shows so soon.
const LONGEST_AFTER_FAILURE: Duration = Duration::from_secs(10);
/// How many locks of a page are read at a time.
const AT_ONCE: usize = 32;

/// All locks, the busiest first.
pub(crate) struct Look {
    pub(crate) findings: Findings,
    /// When each lock that was found was read.
    read: Vec<Instant>,
    /// Why the latest reading of such a lock failed. Its status is an older one then.
    failed: Vec<Option<String>>,
    pub(crate) ended: Instant,
}

/// The latest look at all locks that succeeded, and why the latest one failed.
struct Latest {
    look: Look,
    failed: Option<Failure>,
    /// When the latest one ended, and how long it took.
    ended: Instant,
    took: Duration,
}

impl Latest {
    fn is_due(&self, interval: Duration) -> bool {
        let pause = self.took.saturating_mul(PAUSES);
        let longest = self.failed.as_ref().map_or(Duration::MAX, |_| LONGEST_AFTER_FAILURE);
        self.ended.elapsed() >= interval.max(pause.min(longest))
    }
}

pub(crate) struct Looks<'a> {
    interval: Duration,
    eye: Eye<'a>,
    /// Who waits for this mutex gets the look that is under way.
    latest: Mutex<Latest>,
    pub(crate) history: RefCell<History>,
}

impl<'a> Looks<'a> {
    /// Looks for the first time, so that a server that is away, or a user without the rights, shows at once.
    pub(crate) async fn begin(target: &'a Target, interval: Duration) -> Result<Self, Failure> {
        let eye = Eye::open(target).await?;
        let history = RefCell::new(History::default());
        let began = Instant::now();
        let look = Look::at(&eye, &history).await?;
        Ok(Self {
            interval,
            eye,
            latest: Mutex::new(Latest {
                ended: look.ended,
                took: look.ended - began,
                look,
                failed: None,
            }),
            history,
        })
    }

    pub(crate) fn eye(&self) -> &Eye<'a> {
        &self.eye
    }

    /// The latest look, or a new one if that is due. The look stays the caller's until its guard is dropped.
    pub(crate) async fn latest(&self) -> Result<MappedMutexGuard<'_, Look>, Failure> {
        let mut latest = self.latest.lock().await;
        if latest.is_due(self.interval) {
            let began = Instant::now();
            let seen = Look::at(&self.eye, &self.history).await;
            (latest.ended, latest.took) = (Instant::now(), began.elapsed());
            match seen {
                Ok(look) => (latest.look, latest.failed) = (look, None),
                Err(why) => latest.failed = Some(why),
            }
        }
        match &latest.failed {
            Some(why) => Err(why.clone()),
            None => Ok(MutexGuard::map(latest, |latest| &mut latest.look)),
        }
    }

    /// Reads those locks again that were not read within the interval. A server that is away fails the next look at all
    /// locks; until then each lock says so.
    pub(crate) async fn read_again(&self, look: &mut Look, locks: &[usize]) {
        let old: Vec<usize> = locks
            .iter()
            .copied()
            .filter(|at| look.read[*at].elapsed() >= self.interval)
            .collect();
        let names = old
            .iter()
            .map(|at| (*at, look.findings.found[*at].name.clone()))
            .collect::<Vec<_>>();
        let reads = names
            .iter()
            .map(|(at, name)| async move { (*at, self.eye.status(name).await) });
        let statuses: Vec<_> = stream::iter(reads).buffer_unordered(AT_ONCE).collect().await;
        for (at, status) in statuses {
            look.read[at] = Instant::now();
            look.failed[at] = match status {
                Ok((found, _)) => {
                    self.history.borrow_mut().clients.learn(&found.status);
                    look.findings.found[at] = found;
                    None
                }
                Err(failure) => Some(first_line(&failure)),
            };
        }
    }

    /// The status of a lock, with the waiters from a position on.
    pub(crate) async fn status(&self, name: &str, first: usize) -> Result<Seen, Failure> {
        let eye = &self.eye;
        let (mut found, servers) = match (eye, first) {
            (Eye::One { client, .. }, 1..) => {
                let status = client.rw_lock(name).status_from(first).await?;
                let name = name.to_owned();
                (
                    Found {
                        name,
                        status,
                        votes: None,
                    },
                    Vec::new(),
                )
            }
            _ => eye.status(name).await?,
        };
        if !found.in_use() {
            eye.must_exist(name).await?;
        }
        // Of a quorum the waiters come all at once.
        found.status.waiters.retain(|waiter| waiter.position >= first);
        self.history.borrow_mut().clients.learn(&found.status);
        let servers = match eye {
            Eye::One { .. } => Vec::new(),
            Eye::Several(fleet) => fleet.shown().zip(servers).collect(),
        };
        Ok(Seen { found, servers })
    }
}

/// A lock, and what each server of a quorum says of it.
pub(crate) struct Seen {
    pub(crate) found: Found,
    pub(crate) servers: Vec<(String, Result<Status, String>)>,
}

impl Look {
    /// A lock that was found, if its latest reading succeeded.
    pub(crate) fn lock(&self, at: usize) -> Result<&Found, Unread> {
        let lock = &self.findings.found[at];
        match &self.failed[at] {
            None => Ok(lock),
            Some(why) => Err(Unread {
                name: lock.name.clone(),
                why: why.clone(),
            }),
        }
    }

    async fn at(eye: &Eye<'_>, history: &RefCell<History>) -> Result<Self, Failure> {
        let began = Instant::now();
        let mut findings = eye.find(None).await?;
        findings.found.sort_by(Found::order);
        let ended = Instant::now();
        history.borrow_mut().looked(&findings, began, ended, SystemTime::now());
        Ok(Self {
            read: vec![ended; findings.found.len()],
            failed: vec![None; findings.found.len()],
            findings,
            ended,
        })
    }
}
