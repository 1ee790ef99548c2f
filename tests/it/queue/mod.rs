//! The queue: who enters when, under which policy, before how many, and what an operator takes out of it.

mod evict;
mod fairness;
mod policy;
mod scale;
