//! What needs more than a server: `make browser` runs these.

mod browser;
mod chromium;
