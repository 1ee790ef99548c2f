//! How far an acquisition is, for those who follow it from outside of its future.

use super::attempt::Attempt;
use crate::state::request::Request;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

/// Tells the owner of an acquisition how far it is. The acquisition stops when its first request has been asked for, until it
/// is polled again.
#[derive(Default)]
pub(crate) struct Progress(Mutex<Option<Asked>>);

struct Asked {
    request: Arc<Request>,
    ahead: usize,
}

impl Progress {
    fn asked(&self) -> MutexGuard<'_, Option<Asked>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has_asked(&self) -> bool {
        self.asked().is_some()
    }

    /// How many waiters stood before the first request.
    pub(crate) fn ahead(&self) -> usize {
        self.asked().as_ref().map_or(0, |asked| asked.ahead)
    }

    /// The present request: after a lost place it is another one.
    pub(crate) fn request(&self) -> Option<Arc<Request>> {
        self.asked().as_ref().map(|asked| Arc::clone(&asked.request))
    }

    /// A request waits, or holds.
    pub(crate) async fn tell(&self, attempt: &Attempt) {
        let request = Arc::clone(attempt.request());
        let mut stops = {
            let mut asked = self.asked();
            let first = asked.is_none();
            let ahead = asked.as_ref().map_or(attempt.ahead, |asked| asked.ahead);
            *asked = Some(Asked { request, ahead });
            first
        };
        poll_fn(|_| match std::mem::take(&mut stops) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
    }
}
