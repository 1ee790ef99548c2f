//! Random numbers of tests, which a seed repeats.

/// Random numbers. The seed is printed, and taken back from the environment.
pub struct Random(fastrand::Rng);

impl Random {
    /// From the environment's `FAIRLOCK_SEED` if it is set. Prints the seed, which is shown when the test fails.
    pub fn seeded() -> Self {
        let seed = match std::env::var("FAIRLOCK_SEED") {
            Ok(seed) => seed.parse().expect("FAIRLOCK_SEED is a number"),
            Err(_) => fastrand::u64(..),
        };
        println!("FAIRLOCK_SEED={seed}");
        Self(fastrand::Rng::with_seed(seed))
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0.usize(..limit)
    }

    /// Another one, for a task of its own.
    pub fn fork(&mut self) -> Self {
        Self(self.0.fork())
    }
}
