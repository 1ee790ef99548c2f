//! The test as which this binary runs itself: see `fairlock_support::process`.

pub use fairlock_support::process::{Process, Resource};

#[test]
fn child() {
    fairlock_support::process::child();
}
