//! Whatever bytes a server answers, read as RESP and then as the reply of each script.
#![no_main]

#[path = "../checks/reply.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::check(bytes));
