//! Which process this is.

/// Another number in a child of fork() than in its parent.
pub(crate) fn id() -> u32 {
    std::process::id()
}
