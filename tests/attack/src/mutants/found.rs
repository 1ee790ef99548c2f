//! The bugs that this crate had.

pub struct Bug {
    pub what: &'static str,
    pub how: &'static str,
    pub held_by: &'static str,
}
pub const ALL: &[Bug] = &[];
