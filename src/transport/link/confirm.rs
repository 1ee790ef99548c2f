//! Waits for replicas: one connection, and a task that sends WAIT for all callers. A server that waits does nothing
//! else for the connection, so this is not the command connection.
//!
//! One WAIT covers everything that was written over the connection before, so all callers that have written by then
//! share its reply. The callers only stand in line, so a caller that nobody polls holds up no other.

use super::{Connection, How, Lane, Link};
use crate::protocol::order::Order;
use crate::protocol::replication::{Reached, Replication};
use redis::{RedisError, Value};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

pub(super) struct Confirming {
    link: Link,
    wishes: Mutex<Wishes>,
    wished: Notify,
}

#[derive(Default)]
struct Wishes {
    in_line: VecDeque<Wish>,
    /// How long the server may be waiting now.
    under_way: Duration,
}

impl Wishes {
    /// A renewal that is sent now stands behind at most one WAIT, which may be another caller's.
    fn longest_wait(&self) -> Duration {
        let in_line = self.in_line.iter().map(|wish| wish.what.timeout).max();
        in_line.unwrap_or_default().max(self.under_way)
    }
}

/// A caller has written over a connection, and waits for the replicas.
struct Wish {
    connection: Arc<Connection>,
    limit: Duration,
    what: Replication,
    answer: oneshot::Sender<Result<Reached, RedisError>>,
}

impl Link {
    /// The reply to `renew`, and the number of replicas that have it.
    pub(crate) async fn confirm(
        &self,
        limit: Duration,
        wish: Replication,
        renew: &Order<'_>,
    ) -> Result<(Value, Reached), RedisError> {
        match &self.confirming {
            Some(confirming) => confirming.confirm(limit, wish, renew).await,
            // Only a link that confirms for another link has none of its own, and nobody calls that one.
            None => Err(self.down()),
        }
    }
}

impl Confirming {
    pub(super) fn of(link: Link) -> Self {
        Self {
            // A server that waits sends nothing.
            link: Link { doubts: false, ..link },
            wishes: Mutex::default(),
            wished: Notify::new(),
        }
    }

    pub(super) fn close(&self) {
        self.link.close();
        // Whoever comes later sees that the link is closed.
        let turned_away = std::mem::take(&mut self.wishes().in_line);
        drop(turned_away);
    }

    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        // No code that can panic runs while it is locked.
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn confirm(
        &self,
        limit: Duration,
        what: Replication,
        renew: &Order<'_>,
    ) -> Result<(Value, Reached), RedisError> {
        let behind = limit + what.timeout.max(self.wishes().longest_wait());
        let how = How {
            patience: limit,
            ..How::plainly(Lane::Users, behind)
        };
        let (connection, renewed) = self.link.call_over_one(&how, renew).await?;
        let (answer, answered) = oneshot::channel();
        let wish = Wish {
            connection,
            limit: behind,
            what,
            answer,
        };
        {
            let mut wishes = self.wishes();
            if self.link.is_closed() {
                return Err(self.link.down());
            }
            wishes.in_line.push_back(wish);
        }
        self.wished.notify_one();
        // Dropped without a reply: the link was closed.
        let reached = answered.await.unwrap_or_else(|_| Err(self.link.down()))?;
        Ok((renewed, reached))
    }

    pub(super) async fn run(&self) {
        let link = &self.link;
        futures::join!(
            link.keep_up(|_| ()),
            link.serve_line(),
            link.keep_functions(),
            self.serve()
        );
    }

    /// Sends one WAIT after the other. Never ends.
    async fn serve(&self) {
        loop {
            // In order. Callers that want the same of the same connection get their reply with the first one.
            let batch = self.next_batch();
            let (Some(first), Some(limit)) = (batch.first(), batch.iter().map(|wish| wish.limit).max()) else {
                self.wished.notified().await;
                continue;
            };
            let reached = self.ask(first, limit).await;
            self.wishes().under_way = Duration::ZERO;
            for wish in batch {
                // The caller may have gone.
                let _ = wish.answer.send(reached.clone());
            }
        }
    }

    fn next_batch(&self) -> Vec<Wish> {
        let mut wishes = self.wishes();
        let mut batch: Vec<Wish> = Vec::new();
        for wish in std::mem::take(&mut wishes.in_line) {
            if wish.answer.is_closed() {
                continue;
            }
            match batch.first() {
                Some(first) if first.what != wish.what || !Arc::ptr_eq(&first.connection, &wish.connection) => {
                    wishes.in_line.push_back(wish);
                }
                _ => batch.push(wish),
            }
        }
        wishes.under_way = batch.first().map(|wish| wish.what.timeout).unwrap_or_default();
        batch
    }

    async fn ask(&self, wish: &Wish, limit: Duration) -> Result<Reached, RedisError> {
        let mut wire = wish.connection.wire.clone();
        let wait = wish.what.command();
        let reply = self.link.conclude(&wish.connection, limit, wire.send(&wait));
        wish.what.reached(reply.await?)
    }
}
