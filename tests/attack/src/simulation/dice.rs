//! Random numbers that follow from a seed.

use fairlock_support::random::Rng;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Dice(Rng);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    pub fn number(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// 0 to n - 1.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.u64(..n.max(1))
    }

    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// True in so many of 1,000 cases.
    pub fn permille(&mut self, n: u64) -> bool {
        self.below(1000) < n
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.index(of.len())]
    }

    /// Whole milliseconds below `most`; short ones are as likely as long ones.
    pub fn span(&mut self, most: Duration) -> Duration {
        let most = most.as_millis() as u64;
        let bits = u64::from(64 - most.leading_zeros());
        let ceiling = 1 << self.below(bits + 1);
        Duration::from_millis(self.below(ceiling).min(most))
    }

    /// Another source that depends on this one only by its seed.
    pub fn fork(&mut self) -> Self {
        Self(self.0.fork())
    }
}
