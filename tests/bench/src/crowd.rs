//! Tasks that enter together, and are counted.

use crate::clock;
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};

/// What each task of a crowd has.
#[derive(Clone)]
pub struct Member {
    entered: mpsc::UnboundedSender<f64>,
    leave: Arc<Notify>,
}

impl Member {
    /// Says that it is in, and stays until all are counted: a task that ended would end within the time of those behind it.
    pub async fn stay(&self) {
        let left = self.leave.notified();
        self.entered.send(clock::now()).expect("somebody counts");
        left.await;
    }
}

pub struct Crowd {
    inside: mpsc::UnboundedReceiver<f64>,
    leave: Arc<Notify>,
}

impl Crowd {
    pub fn new() -> (Self, Member) {
        let (entered, inside) = mpsc::unbounded_channel();
        let leave = Arc::new(Notify::new());
        let member = Member {
            entered,
            leave: Arc::clone(&leave),
        };
        (Self { inside, leave }, member)
    }

    /// When the last of so many was in.
    pub async fn last(&mut self, members: usize) -> f64 {
        let mut last: f64 = 0.0;
        for _ in 0..members {
            last = last.max(self.inside.recv().await.expect("a task"));
        }
        last
    }

    /// All that are in may go.
    pub fn leave(self) {
        self.leave.notify_waiters();
    }
}
