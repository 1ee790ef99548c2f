//! The least client of a lock with these promises, and only for a cycle that goes well. It keeps each hold where messages and
//! renewals find it, notes before a call from when on the reply proves something, and does not wait for ever for a reply. It
//! has no owners, no spans, no metrics, no reconnects and no renewals.

use crate::raw::Raw;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, timeout};

const LIMIT: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Hold {
    token: u64,
    proven_until: Option<Instant>,
}

type Holds = Arc<Mutex<HashMap<u64, Arc<Mutex<Hold>>>>>;

pub struct LeastClient {
    raw: Raw,
    holds: Holds,
}

/// Found by others until it is dropped.
struct Guard {
    holds: Holds,
    number: u64,
    hold: Arc<Mutex<Hold>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.holds.lock().expect("nobody panics").remove(&self.number);
    }
}

impl LeastClient {
    pub fn new(raw: Raw) -> Self {
        let holds = Holds::default();
        Self { raw, holds }
    }

    pub async fn cycle(&mut self) {
        let guard = self.acquire().await;
        timeout(LIMIT, self.raw.release()).await.expect("a reply");
        guard.hold.lock().expect("nobody panics").proven_until = None;
    }

    async fn acquire(&mut self) -> Guard {
        let number = self.raw.name();
        let hold = Arc::<Mutex<Hold>>::default();
        self.holds
            .lock()
            .expect("nobody panics")
            .insert(number, Arc::clone(&hold));
        let guard = Guard {
            holds: Arc::clone(&self.holds),
            number,
            hold,
        };
        let sent = Instant::now();
        let token = timeout(LIMIT, self.raw.acquire()).await.expect("a reply");
        let mut hold = guard.hold.lock().expect("nobody panics");
        (hold.token, hold.proven_until) = (token, Some(sent + LEASE - LEASE / 50));
        assert!(hold.token > 0);
        drop(hold);
        guard
    }
}
