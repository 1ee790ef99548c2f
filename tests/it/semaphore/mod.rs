//! Semaphores and bounded locks: permits, limits, the room in the queue and the place there, and grants that nobody hears.

mod grace;
mod limits;
mod permits;
mod place;

use crate::server::Server;
use crate::users::{LONG, client};
use fairlock::{Access, Acquire, Guard, Semaphore};

/// The semaphore "a", of a client of its own.
async fn user(server: &Server, permits: u32) -> Semaphore {
    client(server.url(), LONG).await.semaphore("a", permits)
}

/// A request that need not wait.
async fn take<M: Access>(request: Acquire<M>) -> Guard<M> {
    let taken = request.try_acquire().await.expect("an answer");
    taken.expect("there is room")
}

async fn busy<M: Access>(request: Acquire<M>) -> bool {
    request.try_acquire().await.expect("an answer").is_none()
}

async fn used(semaphore: &Semaphore) -> u32 {
    semaphore.status().await.expect("a status").used
}
