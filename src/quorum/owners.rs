//! The greatest token of the holds of each named owner in this client. An owner's holds of one lock may have begun with the
//! votes of different majorities. Without this the inner of two nested holds might get a smaller token than the outer one,
//! and the resource would refuse it.

use crate::types::owner::Owner;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

type Key = (Arc<str>, Owner);

/// By lock and owner, for as long as a ballot of theirs is there.
#[derive(Default)]
pub(super) struct Owners(Mutex<HashMap<Key, Weak<OwnersToken>>>);

/// What the ballots of one owner and lock share.
pub(super) struct OwnersToken {
    owners: Arc<Owners>,
    key: Key,
    greatest: AtomicU64,
}

impl Owners {
    pub(super) fn token_of(self: &Arc<Self>, lock: &Arc<str>, owner: Owner) -> Arc<OwnersToken> {
        let key = (Arc::clone(lock), owner);
        let mut owners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = owners.get(&key).and_then(Weak::upgrade) {
            return token;
        }
        let token = Arc::new(OwnersToken {
            owners: Arc::clone(self),
            key: key.clone(),
            greatest: AtomicU64::new(0),
        });
        owners.insert(key, Arc::downgrade(&token));
        token
    }
}

impl OwnersToken {
    /// The token of a hold that begins now, whose votes have this one: it is no smaller than that of any hold that has begun.
    pub(super) fn raised(&self, token: u64) -> u64 {
        self.greatest.fetch_max(token, Ordering::SeqCst).max(token)
    }
}

impl Drop for OwnersToken {
    fn drop(&mut self) {
        let mut owners = self.owners.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Another one may have its place by now.
        if owners.get(&self.key).is_some_and(|token| token.strong_count() == 0) {
            owners.remove(&self.key);
        }
    }
}

#[cfg(all(test, not(fairlock_loom)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_an_owner_whose_requests_are_over() {
        let (owners, owner) = (Arc::<Owners>::default(), Owner::new());
        let one = owners.token_of(&"a".into(), owner);
        let other = owners.token_of(&"a".into(), owner);
        assert!(Arc::ptr_eq(&one, &other));
        drop((one, other));
        assert!(owners.0.lock().unwrap().is_empty());
    }
}
