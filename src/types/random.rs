//! Random numbers of the client, for its name and for the jitter of pauses. A test may choose the seed.

use uuid::Uuid;

/// 62 random bits.
pub(crate) fn number() -> u64 {
    #[cfg(feature = "__testing")]
    if let Some(number) = seeded::next() {
        return number;
    }
    Uuid::new_v4().as_u64_pair().1 & ((1 << 62) - 1)
}

/// The seam for simulations.
#[cfg(feature = "__testing")]
pub(crate) mod seeded {
    use std::cell::Cell;

    thread_local! {
        static SEED: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// From now on the client's random numbers on this thread follow from the seed.
    pub fn seed(seed: u64) {
        SEED.set(Some(seed));
    }

    /// The next number of splitmix64, which is good enough for jitter and names.
    pub(super) fn next() -> Option<u64> {
        let state = SEED.get()?.wrapping_add(0x9e37_79b9_7f4a_7c15);
        SEED.set(Some(state));
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some((mixed ^ (mixed >> 31)) & ((1 << 62) - 1))
    }
}
