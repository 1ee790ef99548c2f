//! Random numbers. In simulation they come from the seed.

use uuid::Uuid;

/// 62 random bits.
pub(crate) fn number() -> u64 {
    #[cfg(feature = "attack")]
    if let Some(number) = crate::attack::seeded_number() {
        return number;
    }
    Uuid::new_v4().as_u64_pair().1 & ((1 << 62) - 1)
}
