//! Whatever comes on a channel: a client's messages, events, and what clients say of themselves.
#![no_main]

#[path = "../checks/message.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::check(bytes));
