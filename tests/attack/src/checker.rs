//! Checks invariants over a journal, in one pass.
