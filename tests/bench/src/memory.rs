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

    #[test]
    fn what_is_kept_counts_and_what_is_freed_does_not() {
        let counted = Counted::begin();
        let mut kept = vec![0_u8; 1 << 20];
        drop(vec![1_u8; 1 << 22]);
        kept.reserve_exact(1 << 20);
        let bytes = counted.bytes();
        drop(kept);
        // Other tests allocate too, though not as much.
        assert!((bytes - f64::from(1 << 21)).abs() < f64::from(1 << 18), "{bytes}");
        assert!(counted.bytes().abs() < f64::from(1 << 18), "{}", counted.bytes());
    }
}
