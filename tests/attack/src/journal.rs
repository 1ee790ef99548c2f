//! Scripts that keep a journal, and reading it.
