//! Random numbers of tests, which a seed repeats.

pub use fastrand::Rng;

/// From the environment's `FAIRLOCK_SEED` if it is set. Prints the seed, which is shown when the test fails.
pub fn seeded() -> Rng {
    let seed = match std::env::var("FAIRLOCK_SEED") {
        Ok(seed) => seed.parse().expect("FAIRLOCK_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    println!("FAIRLOCK_SEED={seed}");
    Rng::with_seed(seed)
}

/// Numbers for one purpose among several of a seed: what one purpose draws does not move the numbers of another.
pub fn stream(seed: u64, purpose: u64) -> Rng {
    Rng::with_seed(Rng::with_seed(seed).u64(..).wrapping_add(purpose))
}
