//! The same lock for threads, tools and tests: each call blocks its thread.
//!
//! ```no_run
//! use fairlock::blocking::Client;
//! use std::time::Duration;
//!
//! fn main() -> Result<(), fairlock::Error> {
//!     let client = Client::connect("redis://127.0.0.1:6379")?; // one per process
//!     let invoice = client.rw_lock("invoice:42");
//!     let guard = invoice.write().acquire_fair()?;
//!     println!("token {}", guard.fencing_token());
//!     guard.release()?;
//!
//!     if let Some(guard) = invoice.read().try_acquire_for(Duration::from_secs(5))? {
//!         assert!(guard.is_held());
//!     } // dropped: released
//!     Ok(())
//! }
//! ```
//!
//! The types wrap those of the crate's root, which say what each call does, its fairness and its errors. A thread in the
//! background (`fairlock`) has the client's tasks: it renews leases and hears of grants. It ends when the last client, lock,
//! request, guard and stream is gone, of the async API too, and everything that was dropped is released or its lease is over.
//! Async and blocking clients share the queues.
//!
//! For what has no blocking form, such as elections and several locks in one guard, [`Client::block_on`] runs any future of
//! the async API, reached by [`Client::inner`], [`RwLock::inner`], [`Semaphore::inner`] and [`Guard::inner`].
//!
//! Do not call this from an async task, because it blocks the task's thread. Use the async API there, or
//! `tokio::task::spawn_blocking`.

mod semaphore;

pub use semaphore::{PermitGuard, Semaphore};

use crate::types::mode::{Access, Policy, Read, Write};
use crate::types::owner::Owner;
use crate::types::timers::CONNECT_TIMEOUT;
use crate::types::token::FencingToken;
use crate::{ClientBuilder, Error, IntoServer, LostReason, Status};
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;
use tokio::runtime::{Handle, Runtime, RuntimeFlavor};
use tokio::time::timeout;

/// A read hold, beside other readers.
pub type ReadGuard = Guard<Read>;

/// A write hold, which is exclusive.
pub type WriteGuard = Guard<Write>;

/// The runtime of the thread with the client's tasks.
#[derive(Clone)]
struct Background(Handle);

thread_local! {
    /// Whether this thread may have tasks of a client.
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// While it exists, its thread waits already: a call within that needs no care for other tasks.
struct Waits {
    was_background: bool,
}

impl Waits {
    fn begin() -> Self {
        Self {
            was_background: IS_BACKGROUND.replace(false),
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        IS_BACKGROUND.set(self.was_background);
    }
}

impl Background {
    fn start() -> Result<(Self, Runtime), Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("fairlock")
            .on_thread_start(|| IS_BACKGROUND.set(true))
            .enable_all()
            .build();
        match runtime {
            Ok(runtime) => Ok((Self(runtime.handle().clone()), runtime)),
            Err(source) => Err(Error::of_connect("the background thread".into(), source.into())),
        }
    }

    /// The thread ends after the client's tasks, which outlive the last handle until all that was dropped is released.
    fn end_after(&self, client: &crate::Client, runtime: Runtime) {
        let ended = client.handle.session.ended();
        self.0.spawn(async move {
            ended.await;
            // A plain drop would wait, and panics within a runtime.
            runtime.shutdown_background();
        });
    }

    /// Runs a future on the caller's thread, with the timers of the background thread. `Runtime::block_on` would panic
    /// within another runtime, and that of the crate futures within itself: a future may own a guard and drop it.
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        let waits = Waits::begin();
        // A task of the user's on the background thread: that thread's other tasks must go on meanwhile. A runtime of the
        // user's, on another thread of this one, is no such task.
        let is_task = |here: Handle| waits.was_background && here.runtime_flavor() == RuntimeFlavor::MultiThread;
        if Handle::try_current().is_ok_and(is_task) {
            return tokio::task::block_in_place(|| self.wait_for(future));
        }
        self.wait_for(future)
    }

    fn wait_for<F: Future>(&self, future: F) -> F::Output {
        let _timers = self.0.enter();
        let blocked = Arc::new(Blocked {
            thread: std::thread::current(),
            woken: AtomicBool::new(false),
        });
        let waker = Waker::from(Arc::clone(&blocked));
        let mut context = Context::from_waker(&waker);
        // A task's budget is filled again when the task returns, which this thread does not.
        let mut future = pin!(tokio::task::unconstrained(future));
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            // An inner call may use up what unparks the thread. So `woken` counts.
            while !blocked.woken.swap(false, Ordering::Acquire) {
                std::thread::park();
            }
        }
    }
}

/// A call that blocks its thread.
struct Blocked {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Blocked {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// A connected client: see [`crate::Client`]. Clones share the connections and the background thread.
#[derive(Clone)]
pub struct Client {
    inner: crate::Client,
    background: Background,
}

impl Client {
    /// Connects with the default settings: see [`crate::Client::connect`].
    ///
    /// # Errors
    /// Those of [`crate::Client::connect`], and [`Error::Connect`] if the system gives no thread.
    pub fn connect(server: impl IntoServer) -> Result<Self, Error> {
        Self::connect_with(crate::Client::builder(), server)
    }

    /// Connects with the settings of a builder.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), fairlock::Error> {
    /// let settings = fairlock::Client::builder().lease(std::time::Duration::from_secs(5));
    /// let client = fairlock::blocking::Client::connect_with(settings, "redis://127.0.0.1:6379")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`ClientBuilder::connect`], and [`Error::Connect`] if the system gives no thread.
    pub fn connect_with(settings: ClientBuilder, server: impl IntoServer) -> Result<Self, Error> {
        let (background, runtime) = Background::start()?;
        match background.block_on(settings.connect(server)) {
            Ok(inner) => {
                background.end_after(&inner, runtime);
                Ok(Self { inner, background })
            }
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Returns the lock of that name, without I/O: see [`crate::Client::rw_lock`].
    #[must_use]
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock {
            inner: self.inner.rw_lock(name),
            background: self.background.clone(),
        }
    }

    /// Runs a future, such as a call of the async API, on this thread until it is done.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.background.block_on(future)
    }

    /// The client of the async API. Its calls need [`block_on`](Self::block_on), or a runtime of their own.
    #[must_use]
    pub fn inner(&self) -> &crate::Client {
        &self.inner
    }

    /// Leaves every queue, releases every hold, and waits for that, at most about five seconds: see
    /// [`crate::Client::shutdown`].
    pub fn shutdown(&self) {
        self.block_on(self.inner.shutdown());
    }
}

/// A fair read/write lock with a name: see [`crate::RwLock`].
#[derive(Clone)]
pub struct RwLock {
    inner: crate::RwLock,
    background: Background,
}

impl RwLock {
    /// Returns a request to write.
    pub fn write(&self) -> Acquire<Write> {
        self.request(self.inner.write())
    }

    /// Returns a request to read, beside other readers.
    pub fn read(&self) -> Acquire<Read> {
        self.request(self.inner.read())
    }

    /// Returns the same lock for this owner: see [`crate::RwLock::with_owner`].
    #[must_use]
    pub fn with_owner(&self, owner: &Owner) -> Self {
        Self {
            inner: self.inner.with_owner(owner),
            background: self.background.clone(),
        }
    }

    /// Returns the same lock with another policy: see [`crate::RwLock::policy`].
    #[must_use]
    pub fn policy(&self, policy: Policy) -> Self {
        Self {
            inner: self.inner.policy(policy),
            background: self.background.clone(),
        }
    }

    /// Returns the same lock, which at most so many readers hold at a time: see [`crate::RwLock::max_readers`].
    #[must_use]
    pub fn max_readers(&self, readers: u32) -> Self {
        Self {
            inner: self.inner.max_readers(readers),
            background: self.background.clone(),
        }
    }

    /// Reads the state of the lock at this moment.
    ///
    /// # Errors
    /// Those of [`crate::RwLock::status`].
    pub fn status(&self) -> Result<Status, Error> {
        self.background.block_on(self.inner.status())
    }

    /// The lock of the async API.
    #[must_use]
    pub fn inner(&self) -> &crate::RwLock {
        &self.inner
    }

    fn request<M>(&self, inner: crate::Acquire<M>) -> Acquire<M> {
        Acquire {
            inner,
            background: self.background.clone(),
        }
    }
}

/// A request for a lock that the client has not sent yet: see [`crate::Acquire`].
#[must_use = "nothing is asked of the server until one of the acquire methods is called"]
pub struct Acquire<M> {
    inner: crate::Acquire<M>,
    background: Background,
}

impl<M: Access> Acquire<M> {
    /// Changes the request by methods of the async API.
    ///
    /// ```no_run
    /// # fn example(lock: fairlock::blocking::RwLock) -> Result<(), fairlock::Error> {
    /// use std::time::Duration;
    /// let request = lock.write().with(|request| request.lease(Duration::from_secs(60)).max_hold(Duration::from_secs(5)));
    /// let guard = request.acquire_fair()?;
    /// # Ok(()) }
    /// ```
    pub fn with(self, change: impl FnOnce(crate::Acquire<M>) -> crate::Acquire<M>) -> Self {
        Self {
            inner: change(self.inner),
            background: self.background,
        }
    }

    /// Blocks until the lock is acquired: first come, first served.
    ///
    /// # Errors
    /// Those of [`crate::Acquire::acquire_fair`].
    pub fn acquire_fair(self) -> Result<Guard<M>, Error> {
        let acquired = self.background.block_on(self.inner.acquire_fair());
        acquired.map(|guard| Guard::new(guard, self.background))
    }

    /// Tries the lock: `None` if it is busy or somebody waits.
    ///
    /// # Errors
    /// Those of [`crate::Acquire::try_acquire`].
    pub fn try_acquire(self) -> Result<Option<Guard<M>>, Error> {
        let acquired = self.background.block_on(self.inner.try_acquire())?;
        Ok(acquired.map(|guard| Guard::new(guard, self.background)))
    }

    /// Blocks for at most this time; `None` if there was no grant in time.
    ///
    /// # Errors
    /// Those of [`crate::Acquire::try_acquire_for`].
    pub fn try_acquire_for(self, limit: Duration) -> Result<Option<Guard<M>>, Error> {
        let acquired = self.background.block_on(self.inner.try_acquire_for(limit))?;
        Ok(acquired.map(|guard| Guard::new(guard, self.background)))
    }
}

/// A hold on a lock: see [`crate::Guard`].
///
/// A drop releases the lock and waits for the server's confirmation, for at most two seconds. So a program may end right
/// after it. What the server did not confirm by then, the background thread goes on to release. A guard in a
/// `thread_local!` that the end of its thread drops may not wait. In a child of fork() a drop does nothing, because the hold is
/// its parent's.
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct Guard<M> {
    /// Taken by what ends the guard.
    inner: Option<crate::Guard<M>>,
    background: Background,
}

impl<M> Guard<M> {
    fn new(inner: crate::Guard<M>, background: Background) -> Self {
        Self {
            inner: Some(inner),
            background,
        }
    }

    /// The guard of the async API.
    pub fn inner(&self) -> &crate::Guard<M> {
        // Only methods that consume the guard take it.
        self.inner.as_ref().expect("an ended guard is not used again")
    }

    /// Returns the number to send to the resource with every write: see [`FencingToken`].
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.inner().fencing_token()
    }

    /// Returns the owner: see [`crate::Guard::owner`].
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.inner().owner()
    }

    /// Whether the lock is certainly still held, without I/O: see [`crate::Guard::is_held`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.inner().is_held()
    }

    /// Blocks until the hold is lost, for at most this time. `None`: it is still held.
    #[must_use]
    pub fn lost_within(&self, limit: Duration) -> Option<LostReason> {
        let lost = async { timeout(limit, self.inner().lost()).await.ok() };
        self.background.block_on(lost)
    }

    /// Releases the lock and waits for the server's confirmation.
    ///
    /// # Errors
    /// Those of [`crate::Guard::release`].
    pub fn release(mut self) -> Result<(), Error> {
        match self.inner.take() {
            Some(guard) => self.background.block_on(guard.release()),
            None => Ok(()),
        }
    }
}

impl Guard<Read> {
    /// Waits until this owner is the only reader, and then holds the lock to write too: see
    /// [`crate::ReadGuard::upgrade`].
    ///
    /// # Errors
    /// Those of [`crate::ReadGuard::upgrade`].
    pub fn upgrade(&self) -> Result<WriteGuard, Error> {
        let upgraded = self.background.block_on(self.inner().upgrade())?;
        Ok(Guard::new(upgraded, self.background.clone()))
    }

    /// The same if this owner is the only reader now, and `None` otherwise: see [`crate::ReadGuard::try_upgrade`].
    ///
    /// # Errors
    /// Those of [`crate::ReadGuard::try_upgrade`].
    pub fn try_upgrade(&self) -> Result<Option<WriteGuard>, Error> {
        let upgraded = self.background.block_on(self.inner().try_upgrade())?;
        Ok(upgraded.map(|guard| Guard::new(guard, self.background.clone())))
    }
}

impl Guard<Write> {
    /// Turns the write hold into a read hold, with no moment without a hold: see [`crate::WriteGuard::downgrade`].
    ///
    /// # Errors
    /// Those of [`crate::WriteGuard::downgrade`].
    pub fn downgrade(mut self) -> Result<ReadGuard, Error> {
        // As in inner(): this method is the first that takes it.
        let guard = self.inner.take().expect("an ended guard is not used again");
        let downgraded = self.background.block_on(guard.downgrade())?;
        Ok(Guard::new(downgraded, self.background.clone()))
    }
}

impl<M> Drop for Guard<M> {
    fn drop(&mut self) {
        if let Some(guard) = self.inner.take() {
            // A thread that ends may have no place any more for tokio's context. Then the release goes out in the
            // background, as for any guard that is dropped outside of a runtime.
            let context = tokio::runtime::Handle::try_current();
            let is_gone = context.is_err_and(|error| error.is_thread_local_destroyed());
            if is_gone || guard.handle.shared().is_a_childs_copy() {
                return;
            }
            // A loss is no news for who drops the guard, and the background releases what got no reply.
            let released = async { timeout(CONNECT_TIMEOUT, guard.release()).await };
            let _ = self.background.block_on(released);
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<M: Access> fmt::Debug for Acquire<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<M: Access> fmt::Debug for Guard<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner().fmt(f)
    }
}
