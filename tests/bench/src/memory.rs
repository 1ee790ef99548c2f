//! Bytes that this process has allocated and not freed: counted by the allocator while somebody wants to know, so that
//! what is measured otherwise pays for one look at a flag.

#![allow(
    unsafe_code,
    reason = "an allocator is unsafe by its trait; this one only counts before the system's"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static BYTES: AtomicI64 = AtomicI64::new(0);

fn count(bytes: usize, sign: i64) {
    if COUNTS.load(Ordering::Relaxed) {
        BYTES.fetch_add(sign * bytes as i64, Ordering::Relaxed);
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
pub struct Counted(());

impl Counted {
    pub fn begin() -> Self {
        let counts = COUNTS.swap(true, Ordering::Relaxed);
        assert!(!counts, "somebody counts already");
        BYTES.store(0, Ordering::Relaxed);
        Self(())
    }

    /// Allocated since it began, less what was freed since.
    pub fn bytes(&self) -> f64 {
        BYTES.load(Ordering::Relaxed) as f64
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        COUNTS.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn what_is_kept_counts_and_what_is_freed_does_not() {
        // Nobody touches this memory, so that it may be much more than what other tests allocate meanwhile.
        const MUCH: usize = 1 << 26;
        let counted = Counted::begin();
        let mut kept: Vec<u8> = Vec::with_capacity(MUCH);
        drop(black_box(Vec::<u8>::with_capacity(4 * MUCH)));
        kept.reserve_exact(2 * MUCH);
        let bytes = counted.bytes() / MUCH as f64;
        drop(black_box(kept));
        assert!((bytes - 2.0).abs() < 0.1, "{bytes}");
        let bytes = counted.bytes() / MUCH as f64;
        assert!(bytes.abs() < 0.1, "{bytes}");
    }
}
