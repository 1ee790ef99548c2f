//! Names of locks, requests and owners: there and back, and no two alike.
#![no_main]

#[path = "../checks/name.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::check(bytes));
