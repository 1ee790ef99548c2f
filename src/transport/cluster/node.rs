//! A node of the cluster: its command connection, whether it belongs to the table, and the agenda of its subscription.

use super::super::backend::Backend;
use super::super::link::{How, Link};
use super::locked;
use crate::protocol::order::Order;
use crate::types::clock;
use crate::types::error::disconnected;
use redis::{ConnectionAddr, ConnectionInfo, RedisError, Value};
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

/// How long the client keeps a node that has not owned a slot yet, because a node gets calls before it owns its first
/// slot.
const NODE_LINGER: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// Whether a node belongs to the table of slots. It only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Membership {
    /// The node has not owned a slot yet, since that time.
    Candidate(Instant),
    /// The node owned slots when the client last read the table.
    Owner,
    /// The node owns no slot any more: its connections are closed.
    Left,
}

/// What the subscription of a node has not checked yet.
#[derive(Debug)]
pub(super) enum Agenda {
    /// Locks that got a first waiter since the last check.
    Fresh(Vec<Arc<str>>),
    /// All locks of the node and all events. The fresh locks among them are known, so that they need not wait for the
    /// rest.
    Everything(Vec<Arc<str>>),
}

pub(crate) struct Node {
    pub(super) address: Address,
    pub(super) backend: Backend,
    pub(super) link: Link,
    membership: watch::Sender<Membership>,
    /// A call has had no reply for a while. It may be in a future that nobody polls any more, so the doubt has an end.
    doubted_until: Mutex<Option<Instant>>,
    /// The node's subscription gets no reply.
    suspect: AtomicBool,
    agenda: Mutex<Agenda>,
    /// Says that the agenda is not empty.
    pub(super) wanted: Notify,
}

impl Node {
    pub(super) fn new(address: Address, backend: Backend, label: Option<String>) -> Self {
        Self {
            address,
            link: Link::idle(backend.clone(), label),
            backend,
            membership: watch::Sender::new(Membership::Candidate(clock::now())),
            doubted_until: Mutex::default(),
            suspect: AtomicBool::new(false),
            agenda: Mutex::new(Agenda::Everything(Vec::new())),
            wanted: Notify::new(),
        }
    }

    /// Whether a caller waits for it in vain.
    pub(super) fn is_doubtful(&self) -> bool {
        self.link.is_down() || self.suspect.load(Ordering::Relaxed) || self.owes_a_reply()
    }

    fn owes_a_reply(&self) -> bool {
        locked(&self.doubted_until).is_some_and(|until| clock::now() < until)
    }

    pub(super) fn suspect(&self, suspect: bool) {
        self.suspect.store(suspect, Ordering::Relaxed);
    }

    /// Doubts the table when half of the limit has passed.
    pub(super) async fn call(&self, stale: &Notify, how: &How, order: &Order<'_>) -> Result<Value, RedisError> {
        let mut gone = pin!(self.left());
        if self.link.is_closed() {
            return Err(left());
        }
        let mut call = pin!(self.link.call(how, order));
        tokio::select! {
            biased;
            reply = &mut call => return reply,
            () = &mut gone => return Err(left()),
            () = sleep(how.limit / 2) => {}
        }
        let until = clock::now() + how.limit / 2;
        locked(&self.doubted_until).replace(until);
        stale.notify_one();
        tokio::select! {
            biased;
            reply = call => {
                if reply.is_ok() {
                    locked(&self.doubted_until).take();
                }
                reply
            }
            () = gone => Err(left()),
        }
    }

    pub(super) fn becomes_owner(&self) {
        self.membership.send_if_modified(|membership| {
            let news = matches!(membership, Membership::Candidate(_));
            if news {
                *membership = Membership::Owner;
            }
            news
        });
    }

    /// Takes in whether the node owns slots in the table. `false`: it is no longer a node of the cluster, and callers
    /// need not wait for its reply.
    pub(super) fn stays(&self, owns: bool) -> bool {
        if owns {
            self.becomes_owner();
            return true;
        }
        let membership = *self.membership.borrow();
        if matches!(membership, Membership::Candidate(since) if clock::since(since) < NODE_LINGER) {
            return true;
        }
        self.link.close();
        self.membership.send_replace(Membership::Left);
        false
    }

    /// Waits until the node owns no slot any more.
    pub(super) async fn left(&self) {
        let mut membership = self.membership.subscribe();
        // This fails only when the sender is gone, which `self` holds.
        let _ = membership.wait_for(|now| *now == Membership::Left).await;
    }

    /// Makes its subscription check everything.
    pub(super) fn look(&self) {
        self.look_later();
        self.wanted.notify_one();
    }

    /// The same, without a wake-up.
    pub(super) fn look_later(&self) {
        let mut agenda = locked(&self.agenda);
        let fresh = agenda.take_fresh();
        *agenda = Agenda::Everything(fresh);
    }

    /// A lock got a first waiter.
    pub(super) fn look_at(&self, lock: &Arc<str>) {
        let (Agenda::Fresh(fresh) | Agenda::Everything(fresh)) = &mut *locked(&self.agenda);
        fresh.push(Arc::clone(lock));
        self.wanted.notify_one();
    }

    pub(super) fn take_agenda(&self) -> Agenda {
        std::mem::replace(&mut *locked(&self.agenda), Agenda::Fresh(Vec::new()))
    }

    /// Only the fresh locks; the rest of the agenda stays.
    pub(super) fn take_fresh(&self) -> Vec<Arc<str>> {
        locked(&self.agenda).take_fresh()
    }
}

impl Agenda {
    fn take_fresh(&mut self) -> Vec<Arc<str>> {
        let (Self::Fresh(fresh) | Self::Everything(fresh)) = self;
        std::mem::take(fresh)
    }
}

/// The node owns no slot any more.
pub(super) fn left() -> RedisError {
    disconnected("the node has left the cluster")
}

impl Address {
    pub(super) fn of(info: &ConnectionInfo) -> Option<Self> {
        match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => Some(Self {
                host: host.clone(),
                port: *port,
            }),
            _ => None,
        }
    }

    /// As MOVED and ASK have it: the host may be missing, and have colons in it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: port.parse().ok()?,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::link::Lane;
    use super::*;
    use std::task::{Context, Waker};

    /// No reply comes: nothing drives the link.
    #[tokio::test]
    async fn a_call_that_nobody_polls_any_more_does_not_make_its_node_doubtful_for_ever() {
        const LIMIT: Duration = Duration::from_millis(200);
        let client = redis::Client::open("redis://127.0.0.1:1").expect("a URL");
        let address = Address::parse("127.0.0.1:1").expect("an address");
        let node = Node::new(address, Backend::of(&client).expect("a server"), None);
        let (stale, sent, command) = (Notify::new(), AtomicBool::new(false), redis::cmd("TIME"));
        let how = How {
            patience: Duration::from_secs(3600),
            ..How::plainly(Lane::Users, LIMIT)
        };
        let order = Order::command(&command, &sent);
        let mut call = pin!(node.call(&stale, &how, &order));
        let mut poll = || call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending() && !node.owes_a_reply());
        sleep(LIMIT / 2).await;
        assert!(poll().is_pending());
        let until = locked(&node.doubted_until).expect("in doubt");
        assert!(node.owes_a_reply() || clock::now() >= until);
        stale.notified().await;
        clock::sleep_until(until).await;
        assert!(!node.owes_a_reply());
    }
}
