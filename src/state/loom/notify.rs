//! tokio's `Notify` from loom's parts, as far as the client uses it. A test compares the two.

use ::loom::sync::Mutex;
use ::loom::sync::atomic::AtomicUsize;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

#[derive(Debug)]
pub(crate) struct Notify {
    /// Calls of `notify_waiters` so far. Read without the mutex, as tokio does.
    calls: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    permit: bool,
    last: u64,
    waiters: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    waker: Waker,
    told: Option<Told>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Alone,
    WithAll,
}

#[derive(Debug)]
pub(crate) struct Notified<'a> {
    notify: &'a Notify,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Not polled yet, with the number of calls before it was created.
    New(usize),
    Waiting(u64),
    Done,
}

impl Notify {
    pub(crate) fn new() -> Self {
        Self {
            calls: AtomicUsize::new(0),
            state: Mutex::default(),
        }
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        let stage = Stage::New(self.calls.load(Ordering::Acquire));
        Notified { notify: self, stage }
    }

    pub(crate) fn notify_one(&self) {
        let woken = self.state.lock().unwrap().tell_one();
        if let Some(waker) = woken {
            waker.wake();
        }
    }

    pub(crate) fn notify_waiters(&self) {
        let mut state = self.state.lock().unwrap();
        self.calls.fetch_add(1, Ordering::AcqRel);
        let waiting = state.waiters.iter_mut().filter(|waiter| waiter.told.is_none());
        let woken: Vec<_> = waiting
            .map(|waiter| {
                waiter.told = Some(Told::WithAll);
                waiter.waker.clone()
            })
            .collect();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl State {
    fn tell_one(&mut self) -> Option<Waker> {
        let waiting = self.waiters.iter_mut().find(|waiter| waiter.told.is_none());
        let Some(waiter) = waiting else {
            self.permit = true;
            return None;
        };
        waiter.told = Some(Told::Alone);
        Some(waiter.waker.clone())
    }

    fn take(&mut self, id: u64) -> Waiter {
        let at = self.waiters.iter().position(|waiter| waiter.id == id).unwrap();
        self.waiters.remove(at).unwrap()
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let mut state = this.notify.state.lock().unwrap();
        let done = match this.stage {
            Stage::New(calls) => {
                this.notify.calls.load(Ordering::Acquire) != calls || std::mem::take(&mut state.permit)
            }
            Stage::Waiting(id) => {
                let waiter = state.waiters.iter_mut().find(|waiter| waiter.id == id).unwrap();
                waiter.waker.clone_from(context.waker());
                let told = waiter.told.is_some();
                if told {
                    state.take(id);
                }
                told
            }
            Stage::Done => true,
        };
        if done {
            this.stage = Stage::Done;
            return Poll::Ready(());
        }
        if let Stage::New(_) = this.stage {
            state.last += 1;
            let (id, waker) = (state.last, context.waker().clone());
            state.waiters.push_back(Waiter { id, waker, told: None });
            this.stage = Stage::Waiting(id);
        }
        Poll::Pending
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        let Stage::Waiting(id) = self.stage else { return };
        let mut state = self.notify.state.lock().unwrap();
        let gone = state.take(id);
        // A wake-up that one waiter did not see goes to the next waiter.
        let woken = (gone.told == Some(Told::Alone)).then(|| state.tell_one());
        drop(state);
        if let Some(waker) = woken.flatten() {
            waker.wake();
        }
    }
}

/// The same random calls, one after the other, on this one and on tokio's.
#[test]
fn the_model_does_what_tokio_does() {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn compare(seed: u64) {
        let mut random = seed;
        let mut below = move |limit: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % limit
        };
        let (model, real) = (Notify::new(), tokio::sync::Notify::new());
        let (model_wakes, real_wakes) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let mut waiting = Vec::new();
        for step in 0..40 {
            match below(8) {
                0 => {
                    model.notify_one();
                    real.notify_one();
                }
                1 => {
                    model.notify_waiters();
                    real.notify_waiters();
                }
                2 | 3 => waiting.push((model.notified(), Box::pin(real.notified()))),
                4 if !waiting.is_empty() => {
                    let both = waiting.swap_remove(below(waiting.len()));
                    drop(both);
                }
                _ if !waiting.is_empty() => {
                    let at = below(waiting.len());
                    let (ours, theirs) = &mut waiting[at];
                    let (waker, other) = (Waker::from(model_wakes.clone()), Waker::from(real_wakes.clone()));
                    let ours = Pin::new(ours).poll(&mut Context::from_waker(&waker));
                    let theirs = theirs.as_mut().poll(&mut Context::from_waker(&other));
                    assert_eq!(ours, theirs, "seed {seed}, step {step}");
                    if ours.is_ready() {
                        drop(waiting.swap_remove(at));
                    }
                }
                _ => {}
            }
            let woken = |count: &Count| count.0.load(Ordering::SeqCst);
            assert_eq!(woken(&model_wakes), woken(&real_wakes), "seed {seed}, step {step}");
        }
    }

    for seed in 0..500 {
        ::loom::model::Builder::new().check(move || compare(seed));
    }
}
