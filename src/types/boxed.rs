//! A future in a box.

use std::future::Future;
use std::pin::Pin;

/// What `Box::pin` does, but for the copy: that makes a future on the stack, and a call's future is three kilobytes.
#[inline(always)]
pub(crate) fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, make()))
}
