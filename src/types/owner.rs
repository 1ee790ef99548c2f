//! Owners and clients, and how requests are named after them.

use super::random;
use std::fmt;
use std::future::Future;
use std::str::FromStr;
use uuid::Uuid;

tokio::task_local! {
    /// The owner of requests that name none.
    static CURRENT: Owner;
}

/// One logical thread of control, which may acquire again what it holds without waiting.
///
/// Requests of one `Owner` reenter: a writer may write again and may read, and a reader may read again, also while
/// others wait. Use one `Owner` for one chain of calls. Tasks that run side by side need an owner each. An owner gets
/// no second place in the queue of a lock ([`Error::OwnerWaiting`]), because its two waits could wait for each other.
///
/// A request without a named owner is its own owner and never reenters, except inside of a [`scope`](Self::scope). The
/// guide [`owners`](crate::guide::owners) says more, also how to give an owner to another process.
///
/// [`Error::OwnerWaiting`]: crate::Error::OwnerWaiting
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Owner(Uuid);

impl Owner {
    /// Returns a new owner, different from every other.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a default that differs each time surprises")]
    pub fn new() -> Self {
        Self(Uuid::new_v4())
    }

    /// Returns the owner with this identity, so that another process can act for the same owner.
    ///
    /// The second process reenters what the first one holds, and takes nothing over. Every hold has a lease of its own,
    /// which the process of that hold renews. To give a lock to another process, let the second process acquire before
    /// the first one releases. Then the owner holds the lock all the time, with one token.
    ///
    /// Version-8 UUIDs name the owners of requests without a named owner. Such an owner cannot acquire.
    #[must_use]
    pub fn from_uuid(id: Uuid) -> Self {
        Self(id)
    }

    /// Returns the identity to give to another process.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.0
    }

    /// Runs a future as this owner: requests in it that name no owner are this owner's, and reenter what it holds.
    ///
    /// The owner of a request is settled by the first poll of its acquire method, not by [`RwLock::write`]. An owner
    /// that [`RwLock::with_owner`] names counts more than the scope, and an inner scope more than an outer one. A guard
    /// keeps its owner when it leaves the scope.
    ///
    /// Tasks that you spawn in the scope are outside of it, because they run side by side with it: they need owners of
    /// their own. The same is true of futures that you join: two waits of one owner for one lock are refused.
    ///
    /// ```no_run
    /// # async fn example(client: fairlock::Client) -> Result<(), fairlock::Error> {
    /// use fairlock::{Client, Error, Owner};
    ///
    /// async fn audit(client: &Client) -> Result<(), Error> {
    ///     client.rw_lock("invoice:42").read().acquire_fair().await?.release().await
    /// }
    ///
    /// Owner::new().scope(async {
    ///     let guard = client.rw_lock("invoice:42").write().acquire_fair().await?;
    ///     audit(&client).await?; // does not wait for its caller
    ///     guard.release().await
    /// }).await
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// A drop drops the inner future, and nothing else.
    ///
    /// [`RwLock::write`]: crate::RwLock::write
    /// [`RwLock::with_owner`]: crate::RwLock::with_owner
    pub async fn scope<F: Future>(self, future: F) -> F::Output {
        CURRENT.scope(self, future).await
    }

    /// The owner of the innermost [`scope`](Self::scope) that this code runs in. `None` outside of any scope, and in
    /// tasks that were spawned in one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// use fairlock::Owner;
    ///
    /// let me = Owner::new();
    /// assert_eq!(me.scope(async { Owner::current() }).await, Some(me));
    /// assert_eq!(me.scope(tokio::spawn(async { Owner::current() })).await.unwrap(), None);
    /// # }
    /// ```
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.try_with(|owner| *owner).ok()
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.0.get_version_num() == 8
    }

    /// Whether this is the owner that holds a lock during a quarantine.
    pub(crate) fn is_nobody(&self) -> bool {
        self.0.is_nil()
    }

    /// Returns the owner's name in Redis: `{client}:{number}` for the owner of an unowned request.
    pub(crate) fn name(&self) -> String {
        if !self.is_anonymous() {
            return self.0.simple().to_string();
        }
        let (high, low) = self.0.as_u64_pair();
        let client = ClientId((high >> 16) << 12 | high & 0xfff);
        format!("{client}:{}", low & NUMBER_MASK)
    }

    /// Returns the owner with this name in Redis.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        match name.split_once(':') {
            Some((client, number)) => {
                let client = u64::from_str_radix(client, 16)
                    .ok()
                    .filter(|client| client >> 60 == 0)?;
                let number = number.parse().ok().filter(|number| *number <= NUMBER_MASK)?;
                Some(Self::anonymous(ClientId(client), number))
            }
            None => name.parse().ok().filter(|owner: &Self| !owner.is_anonymous()),
        }
    }

    /// Returns the owner of a request without a named one.
    pub(crate) fn anonymous(client: ClientId, number: u64) -> Self {
        let high = (client.0 >> 12) << 16 | 0x8000 | client.0 & 0xfff;
        Self(Uuid::from_u64_pair(high, 1 << 63 | number & NUMBER_MASK))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Uuid> for Owner {
    fn from(id: Uuid) -> Self {
        Self(id)
    }
}

impl FromStr for Owner {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

const NUMBER_MASK: u64 = (1 << 62) - 1;

/// One connected client: 60 random bits. Among 100,000 clients two are equal with a probability of 4 in 10^9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientId(u64);

impl ClientId {
    pub(crate) fn new() -> Self {
        Self(random::number() & ((1 << 60) - 1))
    }

    /// What is displayed, without the cost of a formatter: each request has it in its name.
    pub(crate) fn digits(self) -> [u8; 15] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        std::array::from_fn(|at| DIGITS[(self.0 >> (56 - 4 * at) & 15) as usize])
    }

    pub(crate) fn add_to(self, text: &mut String) {
        text.push_str(std::str::from_utf8(&self.digits()).unwrap_or_default());
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:015x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_an_unowned_request_is_named_after_it() {
        for (client, number) in [(0, 0), ((1 << 60) - 1, NUMBER_MASK), (0x123_4567_89ab_cdef, 42)] {
            let owner = Owner::anonymous(ClientId(client), number);
            assert!(owner.is_anonymous());
            assert_eq!(owner.name(), format!("{client:015x}:{number}"));
            let mut text = String::new();
            ClientId(client).add_to(&mut text);
            assert_eq!(text, ClientId(client).to_string());
            assert_eq!(owner.uuid().get_variant(), uuid::Variant::RFC4122);
            assert_eq!(Owner::of_name(&owner.name()), Some(owner));
        }
    }

    #[test]
    fn a_named_owner_survives_its_text() {
        let owner = Owner::new();
        assert_eq!(owner.to_string().parse(), Ok(owner));
        assert_eq!(owner.name().len(), 32);
        assert!(!owner.is_anonymous());
    }
}
