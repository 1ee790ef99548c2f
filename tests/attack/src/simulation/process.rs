//! A simulated process: tasks that can be stopped at any await, as by SIGSTOP, and killed.

use fairlock::testing::OnPush;
use redis::PushInfo;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use tokio::task::AbortHandle;

pub struct Process {
    pub id: u64,
    frozen: AtomicBool,
    killed: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
    /// What arrived while it was frozen.
    inbox: Mutex<Vec<(OnPush, PushInfo)>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Process {
    pub fn new(id: u64) -> Arc<Self> {
        Arc::new(Self {
            id,
            frozen: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            wakers: Mutex::default(),
            inbox: Mutex::default(),
            tasks: Mutex::default(),
        })
    }

    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::SeqCst)
    }

    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::SeqCst)
    }

    /// To be ended with the process.
    pub fn keep(&self, task: AbortHandle) {
        let mut tasks = self.tasks.lock().expect("no panic while it is locked");
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }

    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::SeqCst);
    }

    pub fn thaw(&self) {
        self.frozen.store(false, Ordering::SeqCst);
        for (on_push, push) in std::mem::take(&mut *self.inbox.lock().expect("no panic while it is locked")) {
            if !self.is_killed() {
                on_push(push);
            }
        }
        for waker in std::mem::take(&mut *self.wakers.lock().expect("no panic while it is locked")) {
            waker.wake();
        }
    }

    /// Its tasks are dropped without being polled again: nothing that their destructors begin is carried out.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::SeqCst);
        for task in std::mem::take(&mut *self.tasks.lock().expect("no panic while it is locked")) {
            task.abort();
        }
    }

    pub fn deliver(&self, on_push: OnPush, push: PushInfo) {
        if self.is_frozen() {
            let mut inbox = self.inbox.lock().expect("no panic while it is locked");
            inbox.push((on_push, push));
        } else if !self.is_killed() {
            on_push(push);
        }
    }
}

struct Pausable<F> {
    process: Arc<Process>,
    task: Pin<Box<F>>,
}

/// Runs a task only while its process runs.
pub fn pausable<F: Future>(process: Arc<Process>, task: F) -> impl Future<Output = F::Output> {
    Pausable {
        process,
        task: Box::pin(task),
    }
}

impl<F: Future> Future for Pausable<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if self.process.is_frozen() || self.process.is_killed() {
            let mut wakers = self.process.wakers.lock().expect("no panic while it is locked");
            wakers.push(context.waker().clone());
            return Poll::Pending;
        }
        self.task.as_mut().poll(context)
    }
}
