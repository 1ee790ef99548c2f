//! The start of a client: it connects, and starts the two tasks that work for it.
//!
//! The tasks end in one way. When the last handle goes, the channel of releases closes; the releaser empties it, deletes the
//! introduction and ends the watchdog.

use super::deadlock::find_deadlocks;
use super::release::release_dropped;
use super::renew::renew_due;
use super::session::{Handle, Session, Settings};
use crate::transport::route::Target;
use crate::types::error::runtime_ended;
use redis::RedisError;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Lives in the watchdog's task. When it is dropped without a shutdown, the runtime has ended, or the last handle has
/// gone and nobody listens.
struct Alive(Arc<Session>);

impl Drop for Alive {
    fn drop(&mut self) {
        let session = &self.0;
        if session.is_closed() {
            // Of a stream that began while the client shut down.
            return session.shared.subscribers.end();
        }
        if session.shared.registry.end() {
            tracing::warn!("the client's runtime has ended: waits fail, holds end with their leases");
        }
        session.shared.subscribers.fail(&runtime_ended());
        session.route.close();
    }
}

/// Connects, and starts the tasks on the current runtime.
pub(crate) async fn connect(target: &Target, settings: Settings) -> Result<Arc<Handle>, RedisError> {
    let (releases, dropped) = mpsc::unbounded_channel();
    let session = Session::connect(target, settings, &releases).await?;
    let watchdog = target.spawn({
        let alive = Alive(Arc::clone(&session));
        async move {
            let session = &alive.0;
            let deadlocks = Box::pin(find_deadlocks(session));
            futures::join!(session.route.run(), renew_due(session), deadlocks);
        }
    });
    let releaser = target.spawn({
        let (session, watchdog) = (Arc::clone(&session), watchdog.clone());
        async move {
            release_dropped(&session, dropped).await;
            session.bid_farewell().await;
            watchdog.abort();
        }
    });
    session.keep(vec![watchdog, releaser]);
    Ok(Arc::new(Handle::new(session, releases)))
}
