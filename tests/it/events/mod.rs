//! The streams of events: what they tell, to whom, and where they have gaps.

mod content;
mod gaps;
mod listeners;

use crate::server::{Server, connected, soon};
use fairlock::{Client, Event, EventKind, Events, FencingToken, Mode, Owner, RwLock};
use std::time::Duration;
use tokio::time::timeout;

/// So long that nothing is renewed and nothing expires in a test.
const LONG: Duration = Duration::from_secs(600);

/// What is compared of an event: what, whose, how, with which token.
type Line = (EventKind, Owner, Mode, Option<FencingToken>);

async fn client(server: &Server) -> Client {
    let builder = Client::builder().lease(LONG);
    connected(builder, server.url()).await
}

async fn next(events: &mut Events) -> Event {
    let item = soon("an event", events.next()).await;
    item.expect("a stream without end").expect("nothing was missed")
}

async fn lines(events: &mut Events, n: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    for _ in 0..n {
        let event = next(events).await;
        lines.push((event.kind, event.owner, event.mode, event.token));
    }
    lines
}

/// In and out again: two events, for those who are heard.
async fn pass(lock: &RwLock) -> (Owner, FencingToken) {
    let guard = lock.write().acquire_fair().await.unwrap();
    let passed = (guard.owner(), guard.fencing_token());
    guard.release().await.unwrap();
    passed
}

fn passed((owner, token): (Owner, FencingToken)) -> [Line; 2] {
    [
        (EventKind::Granted, owner, Mode::Write, Some(token)),
        (EventKind::Released, owner, Mode::Write, None),
    ]
}

/// Reads on until somebody's release.
async fn until_released(events: &mut Events, by: Owner) {
    loop {
        let event = next(events).await;
        if event.owner == by && event.kind == EventKind::Released {
            return;
        }
    }
}

/// Until this user of the lock has been told that somebody listens. The stream is then behind all it did.
async fn until_heard(events: &mut Events, lock: &RwLock) {
    soon("an event of this client", async {
        loop {
            let (owner, _) = pass(lock).await;
            if timeout(Duration::from_millis(500), until_released(events, owner))
                .await
                .is_ok()
            {
                return;
            }
        }
    })
    .await;
}
