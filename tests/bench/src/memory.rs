//! Bytes that this thread has allocated and not freed: counted by the allocator while somebody wants to know, so that
//! what is measured otherwise pays for one look at a flag. The benchmark allocates in one thread; its tests are several.

#![allow(
    unsafe_code,
    reason = "an allocator is unsafe by its trait; this one only counts before the system's"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::marker::PhantomData;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// Neither is made or dropped by code that allocates.
thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: usize, sign: i64) {
    if COUNTS.get() {
        BYTES.set(BYTES.get() + sign * bytes as i64);
    }
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Counts from now on, until it is dropped. One at a time.
pub struct Counted(PhantomData<*const ()>);

impl Counted {
    pub fn begin() -> Self {
        let counts = COUNTS.replace(true);
        assert!(!counts, "somebody counts already");
        BYTES.set(0);
        Self(PhantomData)
    }

    /// Allocated since it began, less what was freed since.
    pub fn bytes(&self) -> f64 {
        BYTES.get() as f64
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        COUNTS.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn what_is_kept_counts_and_what_is_freed_does_not() {
        let counted = Counted::begin();
        let mut kept = black_box(vec![0_u8; 1 << 20]);
        drop(black_box(vec![1_u8; 1 << 22]));
        kept.reserve_exact(1 << 20);
        let bytes = counted.bytes();
        drop(black_box(kept));
        assert_eq!([bytes, counted.bytes()], [f64::from(1 << 21), 0.0]);
    }
}
