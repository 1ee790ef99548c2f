//! A hold that changes its mode: upgrades and downgrades.

mod downgrade;
mod upgrade;
