//! The line: calls that cannot be sent at once. The link sends them in the order in which they came.
//!
//! The line belongs to the link and not to the callers, so no caller's future holds up another. A caller that leaves
//! takes its call along, unless the link has sent it. One atomic step of `Place` and `Call` decides which.

use super::{AT_ONCE, Connection, How, Link, Sending, State};
use crate::protocol::order::{Draft, Form, Made, Order};
use crate::types::boxed::boxed;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use redis::{RedisError, Value};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_stream::StreamExt;

type Answer = Result<(Arc<Connection>, Value), RedisError>;

/// A call in line.
struct Call {
    draft: Draft,
    limit: Duration,
    sending: Sending,
    stage: Arc<Stage>,
    answer: oneshot::Sender<Answer>,
}

#[derive(Default)]
struct Stage(AtomicU8);

impl Stage {
    const WAITS: u8 = 0;
    const SENT: u8 = 1;
    const LEFT: u8 = 2;

    /// Moves from waiting to that state. `false`: the call did not wait any more.
    fn become_one(&self, next: u8) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        self.0.compare_exchange(Self::WAITS, next, success, failure).is_ok()
    }

    fn has_left(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::LEFT
    }
}

#[derive(Default)]
pub(super) struct Line {
    calls: VecDeque<Call>,
    /// The number of calls that have left.
    left: usize,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Ends the callers' waits when it is dropped.
    pub(super) fn take_all(&mut self) -> impl Sized + use<> {
        self.left = 0;
        std::mem::take(&mut self.calls)
    }

    fn next(&mut self) -> Option<Call> {
        loop {
            let call = self.calls.pop_front()?;
            if call.stage.become_one(Stage::SENT) {
                return Some(call);
            }
            self.left = self.left.saturating_sub(1);
        }
    }

    /// A call has left. The line removes such calls when they are the greater part, so that a line that does not move
    /// stays short.
    fn has_one_less(&mut self) {
        self.left += 1;
        if self.left * 2 > self.calls.len() {
            self.calls.retain(|call| !call.stage.has_left());
            self.left = 0;
        }
    }
}

/// A caller's side of a call in line.
struct Place<'a> {
    link: &'a Link,
    stage: Arc<Stage>,
    sent: &'a AtomicBool,
}

impl Place<'_> {
    /// `false`: the call has been sent.
    fn leave(&self) -> bool {
        self.stage.become_one(Stage::LEFT)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.leave() || self.stage.has_left() {
            self.link.side().line.has_one_less();
        } else {
            self.sent.store(true, Ordering::Relaxed);
        }
    }
}

/// A sent call, after its first poll.
struct Sent {
    connection: Arc<Connection>,
    limit: Duration,
    form: Form,
    reply: Reply,
    answer: oneshot::Sender<Answer>,
}

enum Reply {
    Pending(BoxFuture<'static, Result<Value, RedisError>>),
    Ready(Result<Value, RedisError>),
}

impl Link {
    pub(super) async fn stand_in_line(&self, how: &How, order: &Order<'_>) -> Answer {
        let (answer, mut answered) = oneshot::channel();
        let stage = Arc::<Stage>::default();
        let place = Place {
            link: self,
            stage: Arc::clone(&stage),
            sent: order.sent,
        };
        let call = Call {
            draft: order.draft(how.sending.asks()),
            limit: how.limit,
            sending: how.sending,
            stage,
            answer,
        };
        if !self.admit(call) {
            return Err(self.down());
        }
        self.in_line.notify_one();
        let answer = match timeout(how.patience, &mut answered).await {
            Ok(answer) => answer,
            Err(_) if place.leave() => return Err(self.down()),
            // The link bounds the sent calls.
            Err(_) => answered.await,
        };
        // Dropped without a reply: the link was closed.
        answer.unwrap_or_else(|_| Err(self.down()))
    }

    /// `false`: the link is closed.
    fn admit(&self, call: Call) -> bool {
        let mut side = self.side();
        match side.state {
            State::Closed => return false,
            State::Idle => self.need(&mut side),
            State::Up(_) | State::Down(_) => {}
        }
        side.line.calls.push_back(call);
        true
    }

    /// Sends the calls in line, and passes their replies on. Never ends.
    pub(super) async fn serve_line(&self) {
        let mut calls = FuturesUnordered::new();
        loop {
            while calls.len() < AT_ONCE
                && let Some(sent) = poll_fn(|context| Poll::Ready(self.send_next(context))).await
            {
                calls.push(self.bring(sent));
            }
            tokio::select! {
                biased;
                Some(()) = calls.next(), if !calls.is_empty() => {}
                () = self.in_line.notified(), if calls.len() < AT_ONCE => {}
            }
        }
    }

    /// The first poll and leaving the line are one step, so that a caller that sees the line empty sends after this
    /// call.
    fn send_next(&self, context: &mut Context<'_>) -> Option<Sent> {
        let mut side = self.side();
        let State::Up(connection) = &side.state else {
            return None;
        };
        let connection = Arc::clone(connection);
        let call = side.line.next()?;
        let Made { command, form } = call.draft.make(connection.peer(), &connection.known);
        let mut wire = connection.wire.clone();
        let sending = call.sending;
        let mut reply: BoxFuture<'static, _> = boxed(|| async move {
            match sending {
                Sending::Plainly => wire.send(&command).await,
                #[cfg(feature = "cluster")]
                Sending::Asking => wire.send_asking(&command).await,
            }
        });
        let reply = match reply.as_mut().poll(context) {
            Poll::Ready(reply) => Reply::Ready(reply),
            Poll::Pending => Reply::Pending(reply),
        };
        connection.known.learn(form);
        Some(Sent {
            connection,
            limit: call.limit,
            form,
            reply,
            answer: call.answer,
        })
    }

    async fn bring(&self, sent: Sent) {
        let Sent { connection, reply, .. } = sent;
        let reply = async {
            match reply {
                Reply::Pending(reply) => reply.await,
                Reply::Ready(reply) => reply,
            }
        };
        let reply = self.conclude(&connection, sent.limit, reply).await;
        let reply = reply.map_err(|error| self.on_error(&connection, sent.form, error));
        // The caller may have gone.
        let _ = sent.answer.send(reply.map(|reply| (connection, reply)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::backend::Backend;
    use super::super::Lane;
    use super::*;
    use std::pin::pin;
    use std::task::Waker;

    /// Nothing sends them, because nothing drives the link.
    #[tokio::test]
    async fn calls_that_have_left_do_not_stay_in_a_line_that_does_not_move() {
        let client = redis::Client::open("redis://127.0.0.1:1").expect("a URL");
        let link = Link::idle(Backend::of(&client).expect("a server"), None);
        let (sent, command) = (AtomicBool::new(false), redis::cmd("TIME"));
        let how = How::plainly(Lane::Users, Duration::from_secs(3600));
        for _ in 0..1_000 {
            let order = Order::command(&command, &sent);
            let mut call = pin!(link.call(&how, &order));
            assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        let left = link.side().line.calls.len();
        assert!(left <= 2, "{left} calls");
    }
}
